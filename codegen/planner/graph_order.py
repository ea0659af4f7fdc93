"""Which schedules keep the orders of a hand-written plan."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

from ...formulation.pipeline.orders import Orders, Slot
from ...formulation.pipeline.schedule import Schedule, schedule_named, schedule_names
from ...formulation.spacetime.graph import Graph
from ...formulation.spacetime.op import Op, Phase
from ...formulation.spacetime.site import told
from ...formulation.spacetime.stages import in_order
from ...model.errors import PartitaError
from ..plan.spacetime_graph import MICRO

Pairs: TypeAlias = frozenset[tuple[frozenset[Op], frozenset[Op]]]
"""What runs before what."""


def schedules_of(
    graph: Graph, stages: Sequence[Sequence[Op]], devices: int, chunks: int, micro_batches: int
) -> str | None:
    """The schedules that keep the orders of the operators of stages, as `--schedule` names them; None if any may run.

    That is the one whose orders they are; of orders that leave something open, all that agree. PartitaError: none does.
    """
    known = [op for ops in stages for op in ops]
    split = next((op for op in known if op.split), None)
    given, loops = _pairs(graph, known), {schedule.orders for schedule in graph.schedules}
    _check_updates(graph)
    if not given and not loops:
        if split is not None:
            raise PartitaError(
                told(
                    split.where,
                    f"--start: the backward of {split.of.name!r} is split, which a schedule does: order the stages, by "
                    "in_order(zero_bubble(...), ...)",
                )
            )
        return None
    running = list(_running(devices, chunks, micro_batches, splits=split is not None))
    agreeing = list[str]()
    for schedule in running:
        for orders in _both(schedule.orders(devices, chunks, micro_batches)):
            pairs = None if loops else _ordered(graph, orders, stages, known)
            if given == pairs or (loops == {orders} and not given):
                return schedule.name if devices > 1 else None
            if pairs is not None and given <= pairs:
                agreeing.append(schedule.name)
    if agreeing:
        return ",".join(dict.fromkeys(agreeing)) if devices > 1 else None
    where = next((o.where for o in graph.orders if o.where is not None), None)
    names = ", ".join(schedule.name for schedule in running) or "none"
    raise PartitaError(
        told(
            where,
            f"--start: the order of the operators is no schedule of the planner's with {devices} "
            f"stage{'s' * (devices != 1)} and {micro_batches} micro-batch{'es' * (micro_batches != 1)} ({names}): "
            "leave it out, or order the stages by in_order()",
        )
    )


def _running(devices: int, chunks: int, micro_batches: int, *, splits: bool) -> Iterator[Schedule]:
    for schedule in map(schedule_named, schedule_names()):
        fits = schedule.virtual_stages == (chunks > 1) and schedule.splits_backward == splits
        fits = fits and not schedule.by_operators  # whose stages are not those of the whole graph
        if fits and schedule.limit is None and not schedule.double_buffered and schedule.runs(devices, micro_batches):
            yield schedule


def _both(orders: Orders) -> tuple[Orders, Orders]:
    """Orders as they are, and with what is recomputed right before its backward."""

    def again(slot: Slot) -> tuple[Slot, ...]:
        return (slot._replace(kind="R"), slot) if slot.kind == "B" else (slot,)

    return orders, tuple(tuple(one for slot in order for one in again(slot)) for order in orders)


def _ordered(graph: Graph, orders: Orders, stages: Sequence[Sequence[Op]], known: Iterable[Op]) -> Pairs:
    """What `in_order` would order."""
    kept, loops = graph.orders, graph.schedules
    graph.orders, graph.schedules = [], []
    try:
        in_order(orders, stages, MICRO)
        return _pairs(graph, known)
    finally:
        graph.orders, graph.schedules = kept, loops


def _pairs(graph: Graph, known: Iterable[Op]) -> Pairs:
    """The orders of a graph among the tasks of some operators."""
    own = {*known}

    def tasks(ops: Iterable[Op]) -> frozenset[Op]:
        current = (now for op in ops for now in op.current)
        return frozenset(op for op in current if (op.forward or op) in own)

    found = ((tasks(order.first), tasks(order.second)) for order in graph.orders)
    return frozenset(pair for pair in found if all(pair))


def _check_updates(graph: Graph) -> None:
    """PartitaError: an update runs before something else of the step, where the planner's are its end."""
    for order in graph.orders:
        update = next((op for op in order.first if op.phase is Phase.UPDATE), None)
        if update is not None:
            raise PartitaError(
                told(
                    order.where,
                    f"--start: {update.name} runs before {order.second[0].name}: in the planner's plans updates end a "
                    "step, and gradients travel while backward runs; leave this order out",
                )
            )
