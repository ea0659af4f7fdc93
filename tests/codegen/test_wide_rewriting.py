"""Rewritings where all of them at once are too wide, and inside of branches side by side."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from partita.codegen.plan.plan import Plan
from partita.codegen.planner.plan_graph import plan_graph
from partita.codegen.planner.rewritten_graph import taken_graph
from partita.codegen.planner.wide_rewriting import alone
from partita.formulation.rewriting.rules import planner_rules
from partita.formulation.rewriting.saturate import rewritings
from partita.formulation.search_space import SearchSpace
from partita.model.graph.builder import Builder
from partita.model.graph.pcg import PCG
from partita.model.machine.machine import Machine
from partita.model.training import Training
from partita.solvers.search import enumeration
from partita.solvers.search.planning_problem import PlanningProblem

Judge = Callable[..., dict[str, Any]]

BATCH, WIDTH = 12, 16
LAUNCH_NS = 20_000


def machine(*hierarchy: int) -> Machine:
    """Kernels take long to launch, so that branches are worth running side by side."""
    found = Machine.adhoc(hierarchy)
    return replace(found, device=replace(found.device, launch_ns=LAUNCH_NS))


def linear(b: Builder, name: str, x: int) -> int:
    w, bias = b.parameter(f"{name}.weight", (WIDTH, WIDTH)), b.parameter(f"{name}.bias", (WIDTH,))
    return b.add("linear", x, w, bias, shape=(BATCH, WIDTH), name=name, path=name)


def towers() -> PCG:
    """Two branches: one with layers to fuse, one with layers of one input to merge; their concatenation."""
    b = Builder(BATCH)
    first, second = b.input("x", (BATCH, WIDTH)), b.input("y", (BATCH, WIDTH))
    for k in range(2):
        first = b.add("relu", linear(b, f"a{k}", first), shape=(BATCH, WIDTH))
    parts = [b.add("tanh", linear(b, f"b{k}", second), shape=(BATCH, WIDTH)) for k in range(2)]
    second = b.add("mul", *parts, shape=(BATCH, WIDTH))
    both = b.add("cat", first, second, shape=(BATCH, 2 * WIDTH), dim=1)
    return b.build(b.add("projection", both, shape=(), site=0))


def planned(graph: PCG, of: Machine, **wishes: object) -> Plan:
    return plan_graph(
        graph, of, Training(BATCH, "float64", "sgd"), SearchSpace(**{"micro_batches": 1, "stages": 1, **wishes})
    )


@pytest.mark.parametrize("mesh", [(2,), (2, 2)])
def test_branches_side_by_side_are_computed_in_the_best_ways(mesh: tuple[int, ...], judge: Judge) -> None:
    """As the best of all choices of ways, each planned as a graph of its own."""
    graph = towers()
    joint = planned(graph, machine(*mesh), mesh=mesh, rules=planner_rules())
    assert len(joint.bundles) == 1
    assert {(c["was"], c["operator"]) for c in joint.report["rewritten"]} >= {
        ("relu", "linear_relu"),
        ("linear", "part"),
    }
    every = rewritings(graph, planner_rules()).graph
    costs = []
    for ways in product(*every.members.values()):
        taken, _ = taken_graph(every, dict(zip(every.members, ways, strict=True)))
        names = [name for i in taken.of("parameter") for name in taken.nodes[i].originals]
        if len({*names}) == len(names):
            costs.append(planned(taken, machine(*mesh), mesh=mesh).report["objective_ns"])
    assert len(costs) > 4 and joint.report["objective_ns"] == min(costs) < max(costs)
    judge(joint, graph)


def narrow(problem: PlanningProblem, work: object) -> int:
    """As if only meshes of one axis were narrow enough for all rewritings."""
    all_rewritings = problem.plain is not None
    return 1 if all_rewritings else max(len(p.sizes) for p in problem.placements)


def test_wide_placements_have_graphs_that_are_rewritten_beforehand(
    monkeypatch: pytest.MonkeyPatch, judge: Judge
) -> None:
    """So the best plan is found as before, since the rewriting that is best on one device is best here too."""
    graph, of = towers(), machine(2, 2)
    whole = planned(graph, of, rules=planner_rules())
    assert len(whole.placement.sizes) == 2 and not whole.report["space"]["limits_hit"]
    monkeypatch.setattr(enumeration, "quick_axes", narrow)
    wide = planned(graph, of, rules=planner_rules())
    assert wide.report["space"]["rewritings"]["without"] > 0
    assert wide.report["space"]["limits_hit"] == ["rewriting: width"]
    assert len(wide.placement.sizes) == 2 and wide.report["status"] == "optimal"
    assert wide.report["objective_ns"] == whole.report["objective_ns"]
    assert {c["name"] for c in wide.report["rewritten"]} == {c["name"] for c in whole.report["rewritten"]}
    judge(wide, graph)


def test_what_is_fixed_is_searched_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(enumeration, "quick_axes", narrow)
    plan = planned(towers(), machine(2, 2), rules=planner_rules(), fix=(("tanh", "i.0,i.0"),))
    assert plan.report["space"]["rewritings"]["without"] > 0 and plan.report["rewritten"] == []


def test_one_device_holds_any_model() -> None:
    found = alone(Machine.load("summit", nodes=4))
    assert found.devices == 1 and found.device.capacity_bytes > 2**49
