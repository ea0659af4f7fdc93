"""Plans whose micro-batches stay one operator, against the same plans with an operator for each."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import partita
from partita import (
    gpipe,
    in_order,
    micro_batches,
    one_f_one_b,
    op_assign,
    op_order,
    op_trans,
    place,
    recompute,
    split,
    stages,
    swap,
)
from partita.codegen.emission.spacetime.emit import emit
from partita.codegen.emission.spacetime.segment_functions import Code, Segments
from partita.codegen.plan.spacetime_plan import SpaceTimePlan
from partita.codegen.report.spacetime_trace import timeline
from partita.formulation.pipeline.orders import Slot
from partita.formulation.spacetime.graph import Graph
from partita.formulation.spacetime.loop import Irregular, Loop, expanded, loop_of, template
from partita.formulation.spacetime.op import Op
from partita.formulation.spacetime.order import PlanConflict
from partita.formulation.spacetime.peak import alive
from partita.formulation.spacetime.stages import evenly
from partita.formulation.spacetime.transformation import Dim
from partita.model.capture.load import import_file
from partita.model.machine.machine import Machine
from partita.model.zoo import build

FOLDER = Path(__file__).parents[2] / "examples" / "plans"
GPT = "gpt3-1.3b"

Write = Callable[[Graph, Any], None]
"""Writes a plan; the second argument makes the transformation into micro-batches of their number."""


def each(count: int) -> Any:
    return split("batch", count, "micro")


def planned(
    write: Write, cut: Any, batch: int, machine: Machine | None = None, dtype: str = "float32"
) -> SpaceTimePlan:
    graph = partita.graph(*build(GPT, small=True, sizes={"layers": 2}), batch=batch)
    write(graph, cut)
    return partita.space_time(graph, machine, dtype=dtype)


def traced(plan: SpaceTimePlan) -> list[dict[str, Any]]:
    """The events of a plan's timeline, with its messages numbered anew."""
    numbers: dict[int, int] = {}
    events = timeline(plan.prediction)["traceEvents"]
    return [e | ({"id": numbers.setdefault(e["id"], len(numbers))} if "id" in e else {}) for e in events]


def alike(a: SpaceTimePlan, b: SpaceTimePlan) -> None:
    """Compare predictions, what they tell, and programs."""
    one, other = a.prediction, b.prediction
    assert traced(a) == traced(b)
    for device in range(a.ranks):
        assert {*alive(one, device)} == {*alive(other, device)}
    assert one.step_ns == other.step_ns
    assert [usage.peak for usage in one.memory] == [usage.peak for usage in other.memory]
    assert one.busy_ns == other.busy_ns
    assert a.looped.tasks == b.looped.tasks
    assert a.dtype == b.dtype
    assert emit(a.looped, dtype=a.dtype, initial=a.initial) == emit(b.looped, dtype=b.dtype, initial=b.initial)


EXAMPLES: dict[str, tuple[int, int, int, dict[str, int]]] = {
    "one_f_one_b": (3, 3, 10, {"micros": 5}),
    "zero_bubble": (2, 3, 10, {"micros": 5}),
    "interleaved_1f1b": (4, 4, 8, {}),
    "pipeline_tensor_data": (2, 8, 8, {"micros": 4}),
}
"""Layers, devices, batch, and arguments of the example plans whose micro-batches are alike."""


@pytest.mark.parametrize("name", EXAMPLES)
def test_example_plans_with_loops_are_as_with_operators(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    layers, devices, batch, arguments = EXAMPLES[name]
    module = import_file(FOLDER / f"{name}.py")

    def made(loop: bool) -> SpaceTimePlan:
        def cut(dim: Dim | list[Dim], parts: int, label: str = "") -> Any:
            return micro_batches(parts, label) if loop and label == "micro" else split(dim, parts, label)

        monkeypatch.setattr(module, "split", cut)
        graph = partita.graph(*build(GPT, small=True, sizes={"layers": layers}), batch=batch)
        module.plan(graph, range(devices), **arguments)
        return partita.space_time(graph)

    found = made(loop=True)
    assert found.looped.loop is not None and found.looped.loop.count == arguments.get("micros", 4)
    alike(found, made(loop=False))


def test_constants_are_sent_once_for_all_micro_batches() -> None:
    """LLaMA's tables of positions, computed in the first stage: those of none of the micro-batches that read them."""

    def made(cut: Any) -> SpaceTimePlan:
        graph = partita.graph(*build("llama-7b", small=True, sizes={"layers": 4}), batch=6)
        pipelined(graph, cut, devices=4, micros=6)
        return partita.space_time(graph)

    loop = made(micro_batches)
    alike(loop, made(each))
    assert re.search(r'v\["to(_\d)?"\] = run\.(receive|broadcast)', loop.source())


def accumulated(graph: Graph, cut: Any) -> None:
    for op in graph.forward:
        for device, part in enumerate(op_trans(op, split("batch", 2))):
            op_assign(op_trans(part, cut(5)), device)


def uneven(graph: Graph, cut: Any) -> None:
    """Micro-batches of three samples on two devices."""
    for op in graph.forward:
        for part in op_trans(op, cut(5)):
            for device, own in enumerate(op_trans(part, split("batch", 2))):
                op_assign(own, device)


def by_micro(graph: Graph, made: Callable[[Iterable[Op]], None]) -> None:
    """Call a primitive for the operators of every layer and micro-batch."""
    for layer in ("layers.0", "layers.1"):
        for micro in range(5):
            made(op for op in graph.forward if op.layer == layer and op.coordinate("micro") == micro)


def recomputed(graph: Graph, cut: Any) -> None:
    pipelined(graph, cut)
    by_micro(graph, recompute)


def swapped(graph: Graph, cut: Any) -> None:
    pipelined(graph, cut)
    by_micro(graph, swap)


def fetched(graph: Graph, cut: Any) -> None:
    """Weights in halves on two devices, which fetch them for every use."""
    accumulated(graph, cut)
    for op in graph.optimizer:
        name, half = op.of.name, evenly(op, 2)
        parts = op_trans(op, half)
        place(graph, name, half, [0, 1])
        for device, part in enumerate(parts):
            op_assign(part, device)


def pipelined(graph: Graph, cut: Any, devices: int = 2, micros: int = 5) -> None:
    for op in graph.forward:
        op_trans(op, cut(micros))
    parts = stages(graph, devices)
    for device, ops in enumerate(parts):
        op_assign(ops, device)
    in_order(one_f_one_b(devices, micros), parts)


@pytest.mark.parametrize("write, batch", [(accumulated, 10), (recomputed, 10), (fetched, 10), (uneven, 15)])
def test_other_plans_with_loops_are_as_with_operators(write: Write, batch: int) -> None:
    a, b = planned(write, micro_batches, batch), planned(write, each, batch)
    assert a.looped.loop is not None
    alike(a, b)


def ordered_updates(graph: Graph, cut: Any) -> None:
    """Updates of one device after those of another: nothing is sent between them."""
    accumulated(graph, cut)
    weights = [op for op in graph.optimizer if op.of.name.endswith("up.weight")]
    for device, op in enumerate(weights):
        op_assign(op, device)
    op_order(*weights)


def test_orders_of_updates_are_no_messages() -> None:
    a, b = planned(ordered_updates, micro_batches, 10), planned(ordered_updates, each, 10)
    assert a.looped.loop is not None
    alike(a, b)


def test_last_gradients_of_replicas_are_summed_behind_backward() -> None:
    """What sums them belongs to no micro-batch, and yet is in the window of the layer's last backward."""

    def made(cut: Any) -> SpaceTimePlan:
        module = nn.Sequential(*(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64)) for _ in range(3)))
        graph = partita.graph(module, (torch.zeros(1, 64),), batch=8, loss="projection")
        for op in graph.forward:
            for device, part in enumerate(op_trans(op, split("batch", 2))):
                op_assign(op_trans(part, cut(4)), device)
        return partita.space_time(graph)

    a, b = made(micro_batches), made(each)
    assert a.looped.loop is not None
    alike(a, b)


@pytest.mark.parametrize(
    "write, dtype",
    [
        (pipelined, "mixed-bfloat16"),
        (pipelined, "mixed-float16"),
        (pipelined, "pure-bfloat16"),
        (fetched, "mixed-bfloat16"),
    ],
)
def test_other_dtypes(write: Write, dtype: str) -> None:
    a, b = (planned(write, cut, 10, dtype=dtype) for cut in (micro_batches, each))
    assert a.looped.loop is not None and dtype.partition("-")[2] in a.source()
    alike(a, b)


@pytest.mark.parametrize("dtype", ["float32", "mixed-bfloat16"])
def test_equals_the_module(dtype: str) -> None:
    found = planned(pipelined, micro_batches, 10, dtype=dtype)
    assert found.looped.loop is not None
    verdict = found.verify(steps=2)
    assert verdict["ok"] and verdict["checked"] > 20, verdict


def test_micro_batches_of_unlike_sizes_are_expanded() -> None:
    """Of ten samples on each device 3, 3, 3 and 1: of three micro-batches for these, seven or eight samples."""

    def write(graph: Graph, cut: Any) -> None:
        for op in graph.forward:
            for device, part in enumerate(op_trans(op, split("batch", 2))):
                op_assign(op_trans(part, cut(4)), device)

    a, b = (planned(write, cut, 20) for cut in (micro_batches, each))
    assert a.looped.loop is None
    assert "forward (batch 1/2, micro 1 to 4) have unlike sizes" in str(a)
    alike(a, b)


def test_schedules_hold_for_parts() -> None:
    """Operators that are transformed after they were ordered."""

    def write(graph: Graph, cut: Any) -> None:
        pipelined(graph, cut)
        for op in graph.find("layers.*.up"):
            for part in op_trans(op, split("o", 2)):
                op_assign(part, op.device or 0)

    a, b = (planned(write, cut, 10) for cut in (micro_batches, each))
    assert a.looped.loop is not None
    alike(a, b)


def test_orders_of_what_became_micro_batches() -> None:
    """All micro-batches of one before all of the other, and of updates that were transformed since."""

    def write(graph: Graph, cut: Any) -> None:
        first, second = graph.find("layers.*.up")
        op_order(first.backward, graph.optimizer[0])
        op_order(graph.optimizer[-1], graph.optimizer[0])
        op_order(first, second)
        op_trans(graph.optimizer[0], evenly(graph.optimizer[0], 2))
        for op in graph.forward:
            op_trans(op, cut(5))
        op_assign(graph.ops, 0)

    a, b = (planned(write, cut, 10) for cut in (micro_batches, each))
    assert a.looped.loop is None
    alike(a, b)


def test_a_schedule_of_other_parts_than_micro_batches() -> None:
    def write(graph: Graph, cut: Any, count: int = 2) -> None:
        for op in graph.forward:
            op_assign([q for p in op_trans(op, split("batch", 3, "third")) for q in op_trans(p, cut(count))], 0)
        in_order(gpipe(1, 3), [graph.forward], "third")

    alike(*(planned(write, cut, 6) for cut in (micro_batches, each)))
    graph = partita.graph(*build(GPT, small=True, sizes={"layers": 2}), batch=12)
    write(graph, micro_batches, 4)
    with pytest.raises(Irregular, match="parts 'third' instead"):
        template(graph, Loop("micro", 4))


def test_reloads_among_other_micro_batches_are_expanded() -> None:
    machine = Machine.load("v100-32gb", nodes=1)
    a, b = planned(swapped, micro_batches, 10, machine), planned(swapped, each, 10, machine)
    assert a.looped.loop is None
    alike(a, b)


def test_the_expanded_plan_is_the_reference() -> None:
    graph = partita.graph(*build(GPT, small=True, sizes={"layers": 2}), batch=10)
    pipelined(graph, micro_batches)
    loop = loop_of(graph)
    assert loop is not None and loop.count == 5
    whole = partita.space_time(expanded(graph, loop))
    assert whole.looped.loop is None
    alike(partita.space_time(graph), whole)


def test_tasks_do_not_grow_with_micro_batches() -> None:
    """Only three micro-batches are derived, however many there are."""
    small, large = (planned(many(count), micro_batches, count) for count in (4, 400))
    assert len(small.program.tasks.ops) == len(large.program.tasks.ops)
    assert large.looped.tasks > 50 * small.looped.tasks
    assert large.prediction.step_ns > 50 * small.prediction.step_ns
    assert large.batch == 400 and "BATCH = 400 " in large.source()


def test_the_functions_of_micro_batches_are_written_once(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[tuple[int, ...]] = []
    write = Segments.write

    def noted(segment: Segments) -> Code:
        written.append(tuple(op.node for op in segment.segment.ops))
        return write(segment)

    monkeypatch.setattr(Segments, "write", noted)
    planned(pipelined, micro_batches, 5).source()
    assert written
    assert len(written) == len({*written})


def many(count: int) -> Write:
    def write(graph: Graph, cut: Any) -> None:
        for op in graph.forward:
            op_assign(op_trans(op, cut(count)), 0)

    return write


def test_an_order_that_deadlocks_is_told() -> None:
    """Backward of a micro-batch before its forward, of the fifth only: the template alone does not show it."""

    def write(graph: Graph, cut: Any) -> None:
        for op in graph.forward:
            op_trans(op, cut(6))
        parts = stages(graph, 2)
        for device, ops in enumerate(parts):
            op_assign(ops, device)
        first, second = one_f_one_b(2, 6)
        at = second.index(Slot("B", 1, 4))
        turned = (*second[: at - 1], second[at], second[at - 1], *second[at + 1 :])
        assert second[at - 1] == Slot("F", 1, 4)
        in_order((first, turned), parts)

    with pytest.raises(PlanConflict, match=r"the smallest conflict[\s\S]*micro 5/6"):
        planned(write, micro_batches, 12)


def test_micro_batches_in_another_order_are_expanded() -> None:
    """The schedule runs the second last: they are not alike, and every one has its operators."""

    def write(graph: Graph, cut: Any) -> None:
        for op in graph.forward:
            op_assign(op_trans(op, cut(5)), 0)
        turns = (0, 2, 3, 4, 1)
        in_order((tuple(Slot(kind, 0, micro) for micro in turns for kind in "FB"),), [graph.forward])

    found = planned(write, micro_batches, 10)
    assert found.looped.loop is None
    assert "since they differ in more than their number: device 0 does not run" in str(found)
    alike(found, planned(write, each, 10))


@pytest.mark.parametrize("order", [gpipe, one_f_one_b])
def test_fills_and_what_is_computed_of_them_are_in_loops(order: Any) -> None:
    """Experts count their tokens with fills of every micro-batch; nothing reads some that recomputation makes."""
    graph = partita.graph(*build("mixtral-8x7b", small=True), batch=12)
    for op in graph.forward:
        op_trans(op, micro_batches(6))
    parts = stages(graph, 2)
    for device, ops in enumerate(parts):
        op_assign(ops, device)
        recompute(ops)
    in_order(order(2, 6), parts)
    plan = partita.space_time(graph)
    assert not plan.looped.irregular
    assert "one by one" not in plan.source()
    assert plan.verify(steps=1)["ok"]


def test_refusals() -> None:
    graph = partita.graph(*build(GPT, small=True, sizes={"layers": 2}), batch=10)
    first, second, *others = graph.forward
    (looped,) = op_trans(first, micro_batches(5))
    with pytest.raises(partita.PartitaError, match=r"arange .*has micro-batches already: 5 of 'micro'"):
        op_trans(looped, micro_batches(5))
    with pytest.raises(
        partita.PartitaError, match=r"stands for all its micro-batches: give in_order the stages as a list"
    ):
        op_order(looped, second)
    with pytest.raises(partita.PartitaError, match=r"runs once in a step"):
        op_trans(graph.optimizer[0], micro_batches(5))
    op_assign([looped, second, *others], 0)
    with pytest.raises(partita.PartitaError, match=r"has no micro-batches, .* has 5 of 'micro': a plan has one loop"):
        partita.space_time(graph)
    with pytest.raises(partita.PartitaError, match=r"positive integer"):
        micro_batches(0)
