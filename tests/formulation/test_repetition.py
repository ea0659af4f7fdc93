"""Loops of many micro-batches, derived from few of them, against the same derived from all."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

import partita
from partita import (
    in_order,
    interleaved,
    micro_batches,
    one_f_one_b,
    op_assign,
    op_trans,
    place,
    split,
    split_backward,
    stages,
    zero_bubble,
)
from partita.codegen.plan.spacetime_plan import SpaceTimePlan
from partita.formulation.pipeline.orders import Orders, Slot
from partita.formulation.spacetime import looped, repetition
from partita.formulation.spacetime.graph import Graph
from partita.formulation.spacetime.loop import Template
from partita.formulation.spacetime.repetition import Order, Repeat
from partita.formulation.spacetime.stages import evenly
from partita.model.machine.machine import Machine
from partita.model.zoo import build

VOCABULARY, HEADS = ("token_embedding.weight", 0), ("layers.*.attention.qkv.weight", 0, 1)


def eager(stage: int, count: int, warm: int) -> Orders:
    """1F1B with more micro-batches under way than stages need."""
    orders = []
    for s in range(stage):
        ahead = min(count, warm + stage - s)
        own = [Slot("F", s, m) for m in range(ahead)]
        for m in range(count):
            own += [Slot("B", s, m), *([Slot("F", s, m + ahead)] if m + ahead < count else [])]
        orders.append(tuple(own))
    return tuple(orders)


ORDERS: dict[str, Any] = {
    "1F1B": one_f_one_b,
    "eager": lambda devices, count: eager(devices, count, 3),
    "interleaved": interleaved,
    "zero bubble": zero_bubble,
}


def written(name: str, devices: int, count: int, ranks: int, fetched: bool = False) -> Graph:
    """A small GPT in stages of `ranks` tensor-parallel devices, or of data-parallel ones that fetch weights."""
    chunks = 2 if name == "interleaved" else 1
    graph = partita.graph(
        *build("gpt3-1.3b", small=True, sizes={"layers": max(2, devices * chunks)}),
        batch=count * (ranks if fetched else 1),
    )
    how = split("batch", ranks, "rank") if fetched else split([HEADS, VOCABULARY], ranks, "rank")
    for op in graph.forward:
        for micro in op_trans(op, micro_batches(count)):
            op_trans(micro, how)
    if name == "zero bubble":
        split_backward(graph.forward)
    parts = stages(graph, devices * chunks)
    for stage, ops in enumerate(parts):
        for op in ops:
            op_assign(op, stage % devices * ranks + op.coordinate("rank"))
    for op in graph.optimizer if fetched else ():
        own = sorted({forward.device or 0 for forward in graph.forward if op.node in forward.of.inputs})
        place(graph, op.of.name, evenly(op, len(own)), own)
    if name in ORDERS:
        in_order(ORDERS[name](devices, count), parts)
    return graph


def unlike(devices: int, seed: int) -> Machine:
    """A machine whose levels are slower, each by a factor of its own."""
    chance = random.Random(seed)
    machine = Machine.adhoc((devices // 2, 2) if devices % 2 == 0 and devices > 2 else (devices,))
    levels = [replace(level, bandwidth=level.bandwidth * chance.choice((1, 0.1, 0.01))) for level in machine.levels]
    return replace(machine, levels=tuple(levels)).without_memory_limit()


def no_fewer(template: Template) -> Iterator[Any]:
    """Micro-batches are all there."""
    return iter(())


def compared(graph: Any, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> SpaceTimePlan:
    """A plan, whose order, times, memory and program are as from all micro-batches."""
    found = partita.space_time(graph(), machine)
    monkeypatch.setattr(looped, "shorter", no_fewer)
    whole = partita.space_time(graph(), machine)
    assert whole.looped.order.repeat is None
    assert np.array_equal(found.looped.steps, whole.looped.steps)
    assert np.array_equal(found.looped.micros, whole.looped.micros)
    one, other = found.prediction, whole.prediction
    assert one.step_ns == other.step_ns
    assert one.peaks == other.peaks and one.busy_ns == other.busy_ns
    for device in range(found.ranks):
        assert one.alive(device) == other.alive(device)
        held = sum(each.span.size_bytes for each in one.alive(device)) + sum(one.living[device].always.values())
        assert held == one.peak_bytes[device]
        for part in fields(one.times[device]):
            assert np.array_equal(getattr(one.times[device], part.name), getattr(other.times[device], part.name))
        assert one.memory[device].over_time == other.memory[device].over_time
    assert found.source() == whole.source()
    monkeypatch.undo()
    return found


CASES = {
    "1F1B": (3, 1, False),
    "1F1B, tensor-parallel": (2, 2, False),
    "1F1B, fetched weights": (2, 2, True),
    "eager": (2, 1, False),
    "interleaved": (2, 1, False),
    "zero bubble": (2, 1, False),
    "accumulation": (1, 2, True),
}
"""Stages, ranks of each, and whether these fetch their weights."""


@pytest.mark.parametrize("name", CASES)
def test_few_micro_batches_tell_what_all_do(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    devices, ranks, fetched = CASES[name]
    monkeypatch.setattr(repetition, "KEPT", 12)
    count = 96 if name == "interleaved" else 64
    machine = unlike(devices * ranks, len(name))
    found = compared(lambda: written(name.split(",")[0], devices, count, ranks, fetched), machine, monkeypatch)
    assert found.looped.order.repeat is not None and found.prediction.simulated.again is not None


def test_too_few_micro_batches_are_lengthened_until_they_repeat(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three repetitions do not reach the steady state of three stages."""
    monkeypatch.setattr(repetition, "KEPT", 3)
    found = compared(lambda: written("eager", 3, 80, 1), unlike(3, 1), monkeypatch)
    assert found.looped.order.repeat is not None
    assert found.looped.short.count > 12


def test_without_a_state_that_comes_again_all_are_simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repetition, "KEPT", 12)
    graph = written("1F1B", 2, 64, 1)
    found = partita.space_time(graph).prediction
    monkeypatch.setattr("partita.formulation.spacetime.timeline.shift_of", lambda *_: 0)
    whole = partita.space_time(graph).prediction
    assert found.simulated.again is not None and whole.simulated.again is None
    assert (found.step_ns, found.peak_bytes, found.busy_ns) == (whole.step_ns, whole.peak_bytes, whole.busy_ns)


def test_a_plan_of_more_micro_batches_has_no_more_events_derived() -> None:
    few, many = (partita.space_time(written("1F1B", 2, count, 1)) for count in (128, 1024))
    assert len(few.looped.order.steps) * 1.5 > len(many.looped.order.steps)
    assert many.looped.tasks > 7 * few.looped.tasks
    assert many.prediction.step_ns > 7 * few.prediction.step_ns


def test_orders_with_repetitions_are_lengthened_by_any_number() -> None:
    steps, micros = np.array([0, 1, 1, 1, 1, 2]), np.array([0, 1, 2, 3, 4, 5])
    order = Order(steps, micros, Repeat(1, 3, 2, 3))
    found = order.longer(2, [0, 1, 2])
    assert found.repeat == Repeat(5, 7, 2, 1)
    assert found.steps.tolist() == [0, *[1] * 8, 2] and found.micros.tolist() == list(range(10))
    assert order.longer(3, [0, 1, 2]).repeat is None
    assert Repeat(1, 3, 2, 3).alike(steps, micros, 9) == 1 and Repeat(3, 5, 2, 3).alike(steps, micros, 9) == 2
