"""Schedules as values: one registered in a test, and one whose order the solver finds, from the plan to its program."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import partita
from partita.codegen.plan.plan import PipelinePlan
from partita.codegen.plan.plan_file import load_plan
from partita.codegen.pricing.plan_price import plan_price
from partita.codegen.verification.verify import verify
from partita.codegen.verification.worker import load_program
from partita.formulation.pipeline import schedule
from partita.formulation.pipeline.orders import Slot, slot_lines
from partita.formulation.pipeline.schedule import (
    SOLVED,
    ZERO_BUBBLE,
    Schedule,
    SlotTable,
    register_schedule,
    schedule_named,
    with_orders,
)
from partita.model.capture.load import load_module
from partita.model.errors import PartitaError
from partita.model.machine.machine import Machine


def in_pairs(device: int, devices: int, micro_batches: int) -> list[tuple[str, int, int]]:
    """Two forwards, then their backwards, the later one first."""
    pairs = [range(m, min(m + 2, micro_batches)) for m in range(0, micro_batches, 2)]
    return [
        slot
        for pair in pairs
        for slot in [*(("forward", device, m) for m in pair), *(("backward", device, m) for m in reversed(pair))]
    ]


def uses_a_name(device: int, devices: int, micro_batches: int) -> list[tuple[str, int, int]]:
    return in_pairs(device, devices, micro_batches)


def chunks_in_turn(device: int, devices: int, micro_batches: int, chunks: int) -> list[tuple[str, int, int]]:
    """GPipe with several stages a device."""
    stages = range(device, devices * chunks, devices)
    forwards = [("forward", stage, m) for stage in stages for m in range(micro_batches)]
    return forwards + [("backward", stage, m) for stage in reversed(stages) for m in range(micro_batches)]


def forgotten(device: int, devices: int, micro_batches: int) -> list[tuple[str, int, int]]:
    return [("forward", device, m) for m in range(micro_batches)]


def misspelt(device: int, devices: int, micro_batches: int) -> list[tuple[str, int, int]]:
    return [("fwd", device, m) for m in range(micro_batches)]


def crossed(device: int, devices: int, micro_batches: int) -> list[tuple[str, int, int]]:
    """Backwards of the last micro-batch first on even devices alone: they wait for each other."""
    every = [slot for m in range(micro_batches) for slot in (("forward", device, m), ("backward", device, m))]
    return every if device % 2 == 0 else [*every[::2][::-1], *every[1::2]]


PAIRS = Schedule("in-pairs", "1F1B in pairs", in_pairs)
IN_TURN = Schedule("in-turn", "chunks in turn", chunks_in_turn, virtual_stages=True)


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """The two schedules are known in these tests alone."""
    monkeypatch.setattr(schedule, "_REGISTRY", dict(schedule._REGISTRY))
    register_schedule(PAIRS)
    register_schedule(IN_TURN)


def planned(**asked: Any) -> PipelinePlan:
    options = {"batch": 8, "micro_batches": 4, "stages": 2, "workers": 1, "cache": "none", "gap": 0.02} | asked
    plan = partita.optimize(*load_module("mlp", small=True), Machine.adhoc((2,)), dtype="float64", **options)
    assert isinstance(plan, PipelinePlan)
    return plan


@pytest.mark.parametrize(("made", "chunks", "in_flight"), [(PAIRS, 1, 2), (IN_TURN, 2, 4)])
def test_a_registered_schedule_is_planned_emitted_and_verified(
    made: Schedule, chunks: int, in_flight: int, tmp_path: Path
) -> None:
    plan = planned(schedule=made.name, chunks=chunks)
    assert plan.schedule == made and {part.in_flight for part in plan.stages} == {in_flight}
    assert plan.report["bound_ns"] <= plan.report["objective_ns"] == plan_price(plan).objective_ns
    assert made.label in str(plan)
    plan.save(tmp_path / "plan")
    again = load_plan(tmp_path / "plan")
    assert isinstance(again, PipelinePlan) and again.schedule is made
    program = load_program(tmp_path / "plan" / "program.py")
    ran = [[slot for action, slot in program.timetable(device) if action == "run"] for device in range(2)]
    assert ran == [list(made.order(device, 2, 4, *[chunks] * (chunks > 1))) for device in range(2)]
    assert verify(plan, steps=1)["ok"]


def test_an_order_that_is_found_is_planned_saved_and_verified(tmp_path: Path) -> None:
    plan, named = planned(schedule="solve"), planned(schedule="zero-bubble")
    assert plan.schedule.name == "solve" and isinstance(plan.schedule.order, SlotTable)
    assert plan.report["objective_ns"] == plan_price(plan).objective_ns <= named.report["objective_ns"]
    assert plan.report["bound_ns"] <= plan.report["objective_ns"]
    order = plan.report["order"]
    assert order["status"] in ("optimal", "feasible") and order["bound_ns"] <= order["step_ns"]
    assert f"order found by the solver ({order['status']})" in str(plan)
    plan.save(tmp_path / "plan")
    data = json.loads((tmp_path / "plan" / "plan.json").read_text())
    assert data["schedule"] == "solve" and data["orders"] == slot_lines(plan.orders)
    again = load_plan(tmp_path / "plan")
    assert again == plan and again.emit() == plan.emit()
    assert all(line in plan.emit() for line in data["orders"])
    assert isinstance(again, PipelinePlan) and verify(replace(again, module=plan.module), steps=1)["ok"]


@pytest.mark.parametrize(
    ("name", "stages", "micro_batches"),
    [("mlp", 2, 2), ("gpt2", 2, 4)]
    + [(name, n, 4) for name in ("mlp", "bert-large", "llama-7b", "swin-1.8b", "mbart-4.7b") for n in (2, 4)]
    + [("gpt2", 4, 8), ("gpt3-1.3b", 2, 8), ("gpt3-1.3b", 4, 4), ("mixtral-8x7b", 2, 4), ("llama-70b", 4, 8)]
    + [("bert-large", 2, 8), ("llama-7b", 2, 8), ("candle-uno", 2, 4)],
)  # fmt: skip
def test_the_solvers_step_is_the_predicted_one(name: str, stages: int, micro_batches: int) -> None:
    """Messages and updates included: the order is the best of the whole step of these stages."""
    module, inputs = load_module(name, small=True)
    plan = partita.optimize(
        module, inputs, Machine.adhoc((stages,)), batch=8, stages=stages, micro_batches=micro_batches,
        schedule="solve", workers=1, cache="none", gap=0.05,
    )  # fmt: skip
    order, price = plan.report["order"], plan_price(plan)
    assert order["bound_ns"] <= order["step_ns"] == price.objective_ns == plan.report["objective_ns"]
    assert any(stage.ns["gradients"] for stage in price.stages)  # an update, which the step ends with


def test_orders_in_a_file_are_checked(tmp_path: Path) -> None:
    plan = planned(schedule="solve")
    plan.save(tmp_path / "plan.json")
    data = json.loads((tmp_path / "plan.json").read_text())
    (first, second), path = data["orders"], tmp_path / "changed.json"
    for changed, why in (
        ({"orders": [first, second.replace("W0", "")]}, r"device 1: W\(stage 1, micro-batch 0\) is missing"),
        ({"orders": [first, second.replace("W0", "X0")]}, "'X0' is no slot"),
        ({"orders": [f"B0 {first.replace('B0', '')}", second]}, "these orders deadlock: "),
        ({"orders": ["F0 F1 F2 F3 B0 B1 B2 B3 W0 W1 W2 W3"] * 2}, "keep 4 micro-batches on stage 0, .* room for 2"),
        ({"schedule": "1f1b"}, "1f1b has its own orders"),
        ({"schedule": "fastest"}, "schedule 'fastest': choose from 1f1b, "),
    ):
        path.write_text(json.dumps(data | changed))
        with pytest.raises(PartitaError, match=why):
            load_plan(path)
    del data["orders"]
    path.write_text(json.dumps(data))
    with pytest.raises(PartitaError, match="'orders' is missing"):
        load_plan(path)


def test_wrong_schedules_are_not_registered() -> None:
    for made, why in (
        (Schedule("1f1b", "another", in_pairs), "there is another schedule '1f1b'"),
        (Schedule("forgotten", "forgotten", forgotten), r"device 0: B\(stage 0, micro-batch 0\) is missing"),
        (Schedule("crossed", "crossed", crossed), "these orders deadlock: "),
        (Schedule("misspelt", "misspelt", misspelt), "device 0 has a slot of kind 'fwd': choose from forward, "),
        (
            Schedule("in-file", "in file", uses_a_name, copied=True),
            "uses in_pairs: a copied one has its arguments alone",
        ),
    ):
        with pytest.raises(PartitaError, match=why):
            register_schedule(made)
        assert made.name == "1f1b" or made.name not in schedule.schedule_names()
    assert register_schedule(PAIRS) is schedule_named("in-pairs") is PAIRS


def test_the_package_has_these_schedules() -> None:
    assert schedule.schedule_names()[:6] == ("1f1b", "gpipe", "interleaved", "zero-bubble", "2bw", "solve")


def test_what_an_order_says_of_memory() -> None:
    assert [ZERO_BUBBLE.in_flight(4, 1, 8, stage) for stage in range(4)] == [4, 4, 4, 4]
    assert [ZERO_BUBBLE.deferred_weight_gradients(4, 1, 8, stage) for stage in range(4)] == [0, 2, 3, 4]
    assert [ZERO_BUBBLE.forwards_ahead(4, 1, 8, stage) for stage in range(4)] == [4, 3, 2, 1]
    assert [SOLVED.deferred_weight_gradients(4, 1, 8, stage) for stage in range(4)] == [0, 4, 4, 4]
    late = tuple((*(Slot(kind, d, m) for kind, m in zip("FFBBWW", (0, 1, 0, 1, 0, 1), strict=True)),) for d in (0, 1))
    found = with_orders(SOLVED, late, 2)
    assert [found.deferred_weight_gradients(2, 1, 2, stage) for stage in (0, 1)] == [0, 2]
    with pytest.raises(PartitaError, match="orders for 2 devices are given, of 4"):
        replace(found).orders(4, 1, 2)
