"""Plans for the worst of several machines."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import partita
from partita import Machine, PartitaError, Plan
from partita.codegen.planner.context import Context
from partita.codegen.planner.plan_graph import plan_graph
from partita.codegen.planner.worst_case import _Searches, plan_for_all
from partita.codegen.pricing.on_machine import step_on
from partita.codegen.pricing.plan_price import plan_price
from partita.codegen.report.show import show
from partita.formulation.search_space import SearchSpace
from partita.model.capture.capture import capture
from partita.model.errors import DoesNotFitError
from partita.model.graph.pcg import PCG
from partita.model.training import Training
from partita.solvers.budget import UNLIMITED

TRAINING = Training(1024, "float32", "sgd")
SPACE = SearchSpace(mesh=(2, 2), micro_batches=1, stages=1, recompute="none")


def module_and_input() -> tuple[nn.Module, torch.Tensor]:
    with torch.device("meta"):
        return nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(4))), torch.zeros(1024, 1024)


@pytest.fixture(scope="module")
def graph() -> PCG:
    module, x = module_and_input()
    return capture(module, (x,), batch=1024, loss="projection")


def networked(name: str, outer: float, inner: float, memory: int | None = None) -> Machine:
    """2 x 2 devices with these bandwidths between nodes and inside of them."""
    made = Machine.adhoc((2, 2))
    levels = tuple(replace(level, bandwidth=b) for level, b in zip(made.levels, (outer, inner), strict=True))
    device = replace(made.device, memory_bytes=memory or made.device.memory_bytes)
    return replace(made, name=name, levels=levels, device=device)


OUTSIDE, INSIDE = networked("a", 10e9, 230e9), networked("b", 230e9, 10e9)
"""Machines whose slow network is between the nodes, or inside of them."""


@pytest.fixture(scope="module")
def own(graph: PCG) -> dict[str, Plan]:
    """The best plan on each machine alone."""
    return {machine.name: plan_graph(graph, machine, TRAINING, SPACE) for machine in (OUTSIDE, INSIDE)}


@pytest.fixture(scope="module")
def both(graph: PCG) -> Plan:
    return plan_for_all(graph, (OUTSIDE, INSIDE), TRAINING, SPACE, UNLIMITED, Context())


def worst(plan: Plan) -> int:
    steps = [step_on(plan, machine) for machine in (OUTSIDE, INSIDE)]
    assert None not in steps
    return max(step for step in steps if step is not None)


def test_the_worst_step_is_between_the_bounds_and_any_single_optimum(both: Plan, own: dict[str, Plan]) -> None:
    report = both.report
    assert max(plan.report["objective_ns"] for plan in own.values()) == report["bound_ns"]
    assert report["bound_ns"] <= report["objective_ns"] == worst(both) <= min(map(worst, own.values()))
    assert all(worst(plan) > plan.report["objective_ns"] for plan in own.values())  # either is slow elsewhere
    assert report["gap"] == pytest.approx(1 - report["bound_ns"] / report["objective_ns"])
    assert (report["status"] == "optimal") == (report["gap"] == 0)


def test_a_plan_says_its_step_on_every_machine(both: Plan, own: dict[str, Plan]) -> None:
    assert [(each["name"], each["objective_ns"], each["bound_ns"]) for each in both.report["machines"]] == [
        (m.name, step_on(both, m), own[m.name].report["objective_ns"]) for m in (OUTSIDE, INSIDE)
    ]
    assert both.machine.name == max(both.report["machines"], key=lambda each: each["objective_ns"])["name"]
    assert plan_price(both).objective_ns == both.report["objective_ns"]
    assert both.summary()["machines"] == both.report["machines"]
    first = str(both).splitlines()
    assert "planned for the worst of a and b: 2 nodes" in first[0]
    assert any("for the worst of a and b (bound" in " ".join(first[i : i + 2]) for i in range(6))


def test_it_is_saved_and_shown(both: Plan, tmp_path: Any) -> None:
    both.save(tmp_path / "plan")
    again = Plan.load(tmp_path / "plan")
    assert again.to_json() == json.loads(json.dumps(both.to_json())) and again.emit() == both.emit()
    text = show(tmp_path / "plan")
    assert "on the worst of a and b" in text.splitlines()[0] and "machines" in text


def test_one_machine_is_planned_as_ever(graph: PCG, own: dict[str, Plan]) -> None:
    alone = plan_for_all(graph, (OUTSIDE,), TRAINING, SPACE, UNLIMITED, Context())
    assert alone == replace(own["a"], report=alone.report) and "machines" not in alone.report


def test_twice_the_same_machine_is_no_harder(graph: PCG, own: dict[str, Plan]) -> None:
    twin = replace(OUTSIDE, name="twin")
    made = plan_for_all(graph, (OUTSIDE, twin), TRAINING, SPACE, UNLIMITED, Context())
    assert made.report["status"] == "optimal"
    assert made.report["objective_ns"] == own["a"].report["objective_ns"]


def test_a_plan_fits_the_memory_of_all(graph: PCG, own: dict[str, Plan]) -> None:
    reserved, used = OUTSIDE.device.reserved_bytes, plan_price(own["a"]).memory_bytes
    tight = networked("tight", 460e9, 230e9, reserved + 4 * used // 5)
    made = plan_for_all(graph, (OUTSIDE, tight), TRAINING, SPACE, UNLIMITED, Context())
    assert made.report["memory_bytes"] < used and made.report["capacity_bytes"] == 4 * used // 5
    with pytest.raises(DoesNotFitError):
        tiny = networked("tiny", 460e9, 230e9, reserved + 1000)
        plan_for_all(graph, (OUTSIDE, tiny), TRAINING, SPACE, UNLIMITED, Context())


def test_a_pipeline_moves_between_machines(graph: PCG) -> None:
    space = SearchSpace(stages=2, micro_batches=2, recompute="none")
    made = plan_for_all(graph, (OUTSIDE, INSIDE), TRAINING, space, UNLIMITED, Context())
    assert made.size == 2
    assert made.report["objective_ns"] == plan_price(made).objective_ns == worst(made)
    assert Plan.from_json(json.loads(json.dumps(made.to_json()))).to_json() == made.to_json()


def test_optimize_takes_several_machines(both: Plan) -> None:
    module, x = module_and_input()
    options: dict[str, Any] = {"optimizer": "sgd", "loss": "projection", "mesh": (2, 2), "micro_batches": 1}
    made = partita.optimize(module, (x,), [OUTSIDE, INSIDE], recompute="none", cache="none", **options)
    assert made.report["machines"] == both.report["machines"]
    with pytest.raises(PartitaError, match="no machine is given"):
        partita.optimize(module, (x,), [], loss="projection")


@pytest.mark.parametrize(
    ("other", "words"),
    [(Machine.adhoc((2, 4)), "a has 2x2 devices, adhoc-2x4 2x4"), (OUTSIDE, "two machines are named a")],
)
def test_machines_that_cannot_be_compared_are_refused(graph: PCG, other: Machine, words: str) -> None:
    with pytest.raises(PartitaError, match=words):
        plan_for_all(graph, (OUTSIDE, other), TRAINING, SPACE, UNLIMITED, Context())


def test_a_faster_plan_of_another_search_takes_the_proof_away(both: Plan) -> None:
    """Where searches differ in what they may choose, a bound of one is none of the others' plans."""
    report = {"bound_ns": 100, "space": {"limits_hit": []}}
    searches = _Searches((OUTSIDE, INSIDE), reports=[report, report])
    assert searches.bounds == [100, 100]
    searches.plans.append((both, report, [120, 99]))
    assert searches.bounds == [100, 0]


def test_a_machine_that_keeps_nothing_on_its_host_takes_no_proof_away(graph: PCG) -> None:
    """No plan that runs on all of them has states there, so the bounds of both searches are of all plans."""
    hostless = replace(OUTSIDE, name="c", device=replace(OUTSIDE.device, host_bandwidth=None))
    training = replace(TRAINING, optimizer="adamw")
    made = plan_for_all(graph, (OUTSIDE, hostless), training, SPACE, UNLIMITED, Context())
    never = plan_for_all(graph, (OUTSIDE, hostless), training, replace(SPACE, offload=False), UNLIMITED, Context())
    assert made.report["objective_ns"] == made.report["bound_ns"] == never.report["objective_ns"]
