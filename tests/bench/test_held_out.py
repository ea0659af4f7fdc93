"""Machine numbers fitted to runs: the step as a function of them, and predictions from other models' runs alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from partita.bench.held_out import CHANGE, FITTED, Stage, Step, changed, fitted_costs, held_out, step_of
from partita.codegen.planner.context import Context
from partita.codegen.planner.named_model import captured
from partita.codegen.planner.plan_graph import plan_graph
from partita.codegen.pricing.plan_price import plan_price
from partita.formulation.parallelism import Parallelism
from partita.formulation.search_space import SearchSpace
from partita.model.machine.machine import Machine
from partita.model.training import Training
from partita.solvers.budget import Budget
from partita.solvers.cache.store import store_in

MACHINE = Machine.load("p5-h100", nodes=2)


def step(alone: float, kernels: float, traffic: float) -> Step:
    """A step whose kernels cost what number 0 does, and whose traffic what number 1 does."""
    windows = np.array([[[kernels, kernels, 0], [traffic, 0, traffic]]]) * 1e9
    return Step((Stage(np.array([alone, 0, 0]) * 1e9, windows),), 1, None)


def row(model: str, measured: float) -> dict[str, Any]:
    return {"model": model, "measured_s": measured}


def test_a_rate_falls_and_a_time_grows_with_its_cost() -> None:
    assert (
        changed(MACHINE, "device.matmul_efficiency", 2).device.matmul_efficiency == MACHINE.device.matmul_efficiency / 2
    )
    assert changed(MACHINE, "device.host_ns", 2).device.host_ns == 2 * MACHINE.device.host_ns
    node, gpu = changed(MACHINE, "levels.0.bandwidth", 2).levels
    assert node.bandwidth == MACHINE.levels[0].bandwidth / 2 and gpu == MACHINE.levels[1]


@pytest.mark.parametrize("machine", FITTED)
def test_every_fitted_number_is_one_of_its_machine(machine: str) -> None:
    base = Machine.load(machine)
    assert len({changed(base, name, CHANGE) for name in FITTED[machine]} | {base}) == len(FITTED[machine]) + 1


def test_a_window_takes_its_longest_stream() -> None:
    assert step(1, 2, 3).seconds([1, 1]) == pytest.approx(4)
    assert step(1, 2, 3).seconds([2, 1]) == pytest.approx(5)


def test_costs_are_found_that_explain_the_seconds() -> None:
    steps = [step(1, 2, 3), step(1, 5, 2), step(0, 1, 4)]
    measured = [one.seconds([1.2, 0.7]) for one in steps]
    assert fitted_costs(steps, measured) == pytest.approx([1.2, 0.7], rel=1e-3)


def test_a_model_is_predicted_from_the_others() -> None:
    steps = [step(0, 2, 0), step(0, 4, 0), step(0, 1, 0), None]
    rows = [row("a", 3.0), row("a", 6.0), row("b", 2.0), row("b", 9.0)]
    assert held_out(rows, steps) == [pytest.approx(4, rel=1e-3), pytest.approx(8, rel=1e-3), pytest.approx(1.5), None]
    assert held_out(rows[:2], steps[:2]) == [None, None]


@pytest.mark.parametrize("stages", [1, 2])
def test_a_plan_costs_what_it_does_on_the_changed_machine(stages: int) -> None:
    training = Training(batch=16, dtype="mixed-bfloat16", optimizer="adamw")
    graph, _ = captured("llama-7b", training, small=True)
    sizes = Parallelism(dp=8 // stages, tp=2, sequence_parallel=True)
    space = SearchSpace(offload=False, stages=stages, parallelism=sizes)
    plan = plan_graph(graph, MACHINE, training, space, Budget(workers=1, store=store_in("none")), Context(emits=False))
    names = FITTED["p5-h100"]
    made = step_of(plan, [MACHINE, *(changed(MACHINE, name, CHANGE) for name in names)])
    assert made.seconds([1.0] * len(names)) == pytest.approx(plan_price(plan).objective_ns / 1e9, rel=1e-9)
    slower = step_of(plan, [changed(MACHINE, "device.host_ns", 2)])
    assert made.seconds([2.0 if name == "device.host_ns" else 1.0 for name in names]) == pytest.approx(
        slower.seconds([]), rel=1e-6 if stages == 1 else 2e-3
    )
