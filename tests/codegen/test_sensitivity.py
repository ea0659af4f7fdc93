"""Plans priced on other machines: their rivals, and which plan wins where a number of the machine moves."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product

import pytest
import torch
from torch import nn

from partita import Machine, PartitaError, Plan
from partita.codegen.plan.plan import PipelinePlan
from partita.codegen.planner.plan_graph import plan_graph
from partita.codegen.planner.rivals import MOST, rivals
from partita.codegen.pricing.on_machine import on_machine, step_on
from partita.codegen.pricing.plan_price import plan_price
from partita.codegen.report.facts import facts
from partita.codegen.report.sensitivity import Move, moves
from partita.formulation.search_space import SearchSpace
from partita.model.capture.capture import capture
from partita.model.graph.pcg import PCG
from partita.model.machine.machine_numbers import moved, uncertain
from partita.model.training import Training

TRAINING = Training(1024, "float32", "sgd")


@pytest.fixture(scope="module")
def graph() -> PCG:
    with torch.device("meta"):
        module, x = nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(4))), torch.zeros(1024, 1024)
    return capture(module, (x,), batch=1024, loss="projection")


@pytest.fixture(scope="module")
def machine() -> Machine:
    """Two nodes whose network decides which matrices are split over it; its bandwidth may be half as much."""
    made = Machine.adhoc((2, 2))
    outer = replace(made.levels[0], bandwidth=1.6e11)
    return replace(made, levels=(outer, made.levels[1]), errors={"levels.0.bandwidth": 0.5})


@pytest.fixture(scope="module")
def split(graph: PCG, machine: Machine) -> dict[str, Plan]:
    """Plans by what is split over nodes and inside of them: samples, or matrices."""
    splits = {
        "data": ("batch,batch",) * 2,
        "inner": ("batch,column", "batch,row"),
        "outer": ("column,batch", "row,batch"),
    }
    spaces = {
        name: SearchSpace(mesh=(2, 2), micro_batches=1, stages=1, fix=tuple((str(i), pair[i % 2]) for i in range(4)))
        for name, pair in splits.items()
    }
    return {name: plan_graph(graph, machine, TRAINING, space) for name, space in spaces.items()}


@pytest.fixture(scope="module")
def best(split: dict[str, Plan]) -> Plan:
    """The fastest of these plans, with the others as its rivals."""
    first, *others = sorted(split.values(), key=lambda plan: plan_price(plan).objective_ns)
    assert first is split["inner"]
    return replace(first, rivals=tuple(others))


@pytest.fixture(scope="module")
def pipelined(graph: PCG, machine: Machine) -> Plan:
    return plan_graph(graph, machine, TRAINING, SearchSpace(stages=2, micro_batches=2, recompute="none"))


def test_a_plan_on_its_own_machine_costs_the_same(split: dict[str, Plan], pipelined: Plan) -> None:
    for plan in (*split.values(), pipelined):
        assert on_machine(plan, plan.machine) == plan
        assert step_on(plan, plan.machine) == plan.report["objective_ns"] == plan_price(plan).objective_ns


def test_a_plan_on_another_machine_costs_what_a_search_there_says(graph: PCG, split: dict[str, Plan]) -> None:
    other = moved(split["data"].machine, "levels.0.bandwidth", 0.5)
    fixed = SearchSpace(mesh=(2, 2), micro_batches=1, stages=1, fix=(("*", "batch,batch"),))
    searched = plan_graph(graph, other, TRAINING, fixed).report["objective_ns"]
    priced = step_on(split["data"], other)
    assert priced is not None and priced >= searched > split["data"].report["objective_ns"]


def test_stages_and_messages_move_with_the_machine(pipelined: Plan) -> None:
    slower = moved(pipelined.machine, "levels.0.bandwidth", 0.01)
    there = on_machine(pipelined, slower)
    assert there.stages[0].transfer != pipelined.stages[0].transfer
    assert plan_price(there).objective_ns > pipelined.report["objective_ns"]


def test_what_does_not_fit_or_cannot_run_has_no_step(split: dict[str, Plan]) -> None:
    plan = split["data"]
    small = replace(plan.machine.device, memory_bytes=plan.machine.device.reserved_bytes + 1000)
    assert step_on(plan, replace(plan.machine, device=small)) is None
    assert step_on(plan, Machine.adhoc((2, 4))) is None
    with pytest.raises(PartitaError, match="does not fit a machine"):
        on_machine(plan, Machine.adhoc((2, 4)))


def brute_force(plan: Plan) -> dict[tuple[str, float], int | None]:
    """By number and factor: the fastest rival that is faster than the plan by a thousandth, every rival priced."""
    found: dict[tuple[str, float], int | None] = {}
    for (path, error), sign in product(uncertain(plan.machine).items(), (-1, 1)):
        there = moved(plan.machine, path, 1 + sign * error)
        steps = [step_on(rival, there) or 10**18 for rival in plan.rivals]
        own = step_on(plan, there) or 10**18
        least = min(steps)
        found[path, 1 + sign * error] = steps.index(least) if least < own * 0.999 else None
    return found


def test_another_plan_wins_where_its_step_is_shorter(best: Plan) -> None:
    found, expected = moves(best), brute_force(best)
    wins = {key: rival for key, rival in expected.items() if rival is not None}
    assert ("levels.0.bandwidth", 0.5) in wins  # the matrices that are split over it have less to send
    assert {(move.path, move.factor): move.rival for move in found if move.rival is not None} == wins
    gains = [move.gain for move in found]
    assert gains == sorted(gains, reverse=True)
    told = facts(best)
    table = next(table for table in told.tables if table.title == "Sensitivity")
    assert table.rows[0][0] == "node bandwidth" and "plan 1" in table.rows[0]
    assert any(line.startswith("The choice hangs on node bandwidth") for line in told.optimum)


def test_a_robust_choice_is_one_sentence(best: Plan) -> None:
    sure = replace(best.machine, errors=dict.fromkeys(uncertain(best.machine), 1e-6))
    told = facts(replace(on_machine(best, sure), rivals=tuple(on_machine(rival, sure) for rival in best.rivals)))
    assert not any(table.title == "Sensitivity" for table in told.tables)
    (line,) = (line for line in told.optimum if line.startswith("Robust: "))
    assert "faster by 0.1 % or more; " in line


def test_a_plan_that_no_longer_fits_comes_first(split: dict[str, Plan], machine: Machine) -> None:
    plan = split["data"]
    used, device = plan_price(plan).memory_bytes, machine.device
    tight = replace(device, memory_bytes=device.reserved_bytes + used + 10)
    errors = dict.fromkeys(uncertain(machine), 1e-9) | {"device.memory_bytes": 0.001}
    there = replace(machine, device=tight, errors=errors)
    first = moves(replace(on_machine(plan, there), rivals=(on_machine(split["inner"], there),)))[0]
    assert plan_price(split["inner"]).memory_bytes < used - 0.001 * tight.memory_bytes
    assert (first.path, first.step_ns, first.rival) == ("device.memory_bytes", None, 0)


def test_gains() -> None:
    assert Move("p", 0.9, 100).gain == 0
    assert Move("p", 0.9, 100, 0, 75).gain == 0.25
    assert Move("p", 0.9, None, 0, 75).gain == Move("p", 0.9, None).gain == float("inf")


# Rivals


def test_a_search_keeps_its_next_best_plans_of_other_kinds(graph: PCG, machine: Machine) -> None:
    slow = replace(machine, levels=(replace(machine.levels[0], bandwidth=4e10), machine.levels[1]))
    plan = plan_graph(graph, slow, TRAINING, SearchSpace(micro_batches=1, recompute="none"))
    assert 1 <= len(plan.rivals) <= MOST
    steps = [rival.report["objective_ns"] for rival in plan.rivals]
    assert steps == sorted(steps) and steps[0] >= plan.report["objective_ns"]
    assert [plan_price(rival).objective_ns for rival in plan.rivals] == steps
    data = json.loads(json.dumps(plan.to_json()))
    again = Plan.from_json(data)
    assert again.to_json() == data
    assert [replace(rival, report={}) for rival in again.rivals] == [
        replace(rival, report={}, model=again.model) for rival in map(without_reports, plan.rivals)
    ]
    assert not Plan.from_json({key: value for key, value in data.items() if key != "rivals"}).rivals


def test_rivals_with_and_without_stages_share_the_graph(split: dict[str, Plan], pipelined: Plan) -> None:
    for plan, rival in ((split["data"], pipelined), (pipelined, split["data"])):
        data = json.loads(json.dumps(replace(plan, rivals=(rival,)).to_json()))
        assert "graph" not in data["rivals"][0]
        (again,) = Plan.from_json(data).rivals
        assert again == replace(without_reports(rival), model=plan.model)
        assert plan_price(again) == plan_price(rival)


def without_reports(plan: Plan) -> Plan:
    if not isinstance(plan, PipelinePlan):
        return replace(plan, report={})
    return replace(plan, report={}, stages=tuple(replace(stage, report={}) for stage in plan.stages))


def test_plans_that_spend_alike_are_one(split: dict[str, Plan]) -> None:
    inner, outer, data = split["inner"], split["outer"], split["data"]
    assert rivals(inner, [inner, replace(inner, machine=inner.machine), outer, data, outer]) == (outer, data)
    assert rivals(inner, [outer, replace(data, report=data.report | {"objective_ns": 10**9})]) == (outer,)  # too slow


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"micro_batches": "two"}, "rival 0: 'two' is not an integer"),
        ({"micro_batches": 0}, "rival 0: 0 micro-batches do not divide"),
        ({"micro_batches": 7}, "rival 0: 7 micro-batches do not divide"),
        ({"choices": 3}, "rival 0: 3 is not a list"),
        ({"choices": [{"choice": {}, "nodes": [-1]}]}, "rival 0: a choice is of a node that the graph does not have"),
        ({"choices": [{"choice": {}, "nodes": [10**6]}]}, "rival 0: "),
    ],
)
def test_malformed_rivals_are_refused(split: dict[str, Plan], change: dict[str, object], words: str) -> None:
    data = json.loads(json.dumps(replace(split["data"], rivals=(split["inner"],)).to_json()))
    data["rivals"][0] |= change
    with pytest.raises(PartitaError, match=words):
        Plan.from_json(data)
