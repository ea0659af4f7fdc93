"""Plans with micro-batches that stay one operator (`micro_batches`), and the small plan that stands for all of them.

What a plan derives for one micro-batch between the first and the last holds for all of these: their tasks, needs and
transfers differ in a number only. `template` has three micro-batches of the same size: the first, one between, and the
last. `expanded` has them all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ...model.errors import PartitaError
from ...model.graph.batch import with_micro_batches
from ...model.graph.constants import built_once
from ...model.graph.sparse_tables import sparse_tables
from ..pipeline.orders import Orders
from .graph import Graph, Order
from .op import Cut, Op, Phase
from .site import told
from .stages import in_order

SHOWN = 3
"""Micro-batches of a template: the first, one between, the last."""


class Irregular(Exception):  # noqa: N818
    """Micro-batches differ in more than their number."""


@dataclass(frozen=True, slots=True)
class Loop:
    """The micro-batches of a plan: the label of the transformation that made them, and their number."""

    label: str
    count: int

    @property
    def shown(self) -> tuple[int, ...]:
        """The micro-batches that a template has."""
        return (0, 1, self.count - 1) if self.count > SHOWN else tuple(range(self.count))

    def number(self, micro: int) -> int:
        """The micro-batch of a template that stands for one."""
        return next(number for number in range(len(self.shown)) if micro in self.stands_for(number))

    def stands_for(self, number: int) -> range:
        """The micro-batches for which one of a template stands."""
        first = self.shown[number]
        return range(first, self.count - 1) if number == 1 and self.count > SHOWN else range(first, first + 1)


@dataclass(frozen=True, slots=True)
class Template:
    """The plan `graph` of three micro-batches that stands for all of a loop.

    `orders`: those of the schedule, of all micro-batches; `stage`: that of every forward operator of `graph` in it.
    """

    graph: Graph
    loop: Loop
    orders: Orders
    stage: Mapping[Op, int]


def loop_of(graph: Graph) -> Loop | None:
    """The loop of a graph's operators; None without any. Constants are computed once, outside of it.

    PartitaError: other operators have no loop, or another one.
    """
    forward = graph.forward
    first = next((op for op in forward if op.loop is not None), None)
    if first is None or first.loop is None:
        return None
    found = Loop(first.loop.label, first.loop.parts)
    once = built_once(graph.pcg)
    looped = (op for op in forward if op.loop is not None or op.node not in once)
    other = next((op for op in looped if op.loop is None or Loop(op.loop.label, op.loop.parts) != found), None)
    if other is not None:
        has = "has no micro-batches" if other.loop is None else f"has {other.loop.parts} of {other.loop.label!r}"
        words = f"{other.name} {has}, {first.name} has {found.count} of {found.label!r}: a plan has one loop for all"
        raise PartitaError(told(other.where, f"{words}, or makes its micro-batches with split()"))
    if graph.pcg.batch % found.count:
        raise PartitaError(
            f"{graph.pcg.batch} samples are not {found.count} equal micro-batches: make them with split()"
        )
    return found


def expanded(graph: Graph, loop: Loop) -> Graph:
    """The plan with an operator for every micro-batch."""
    return _with(graph, loop, range(loop.count))[0]


def template(graph: Graph, loop: Loop) -> Template | None:
    """The plan with the first micro-batch, one between and the last.

    None if it has no others. Raises Irregular if some have other sizes, for several schedules or one of other parts,
    and for orders of operators that became micro-batches later.
    """
    if loop.count <= SHOWN:
        return None
    for table in sparse_tables(graph.pcg):
        raise Irregular(f"the gradient of {graph.pcg.nodes[table].name} has more rows with each")
    unlike = next((op for op in graph.forward if not op.alike), None)
    if unlike is not None:
        raise Irregular(f"those of {unlike.name} have unlike sizes")
    ordered = (now for order in graph.orders for op in (*order.first, *order.second) for now in op.current)
    later = next((op for op in ordered if op.loop is not None), None)
    if later is not None:
        raise Irregular(f"{later.name} was ordered before it became micro-batches")
    if len(graph.schedules) > 1:
        raise Irregular("several schedules order them")
    other = next((schedule.label for schedule in graph.schedules if schedule.label != loop.label), None)
    if other is not None:
        raise Irregular(f"the schedule orders the parts {other!r} instead")
    made, stage = _with(graph, loop, loop.shown)
    return Template(made, loop, graph.schedules[0].orders if graph.schedules else (), stage)


def _with(graph: Graph, loop: Loop, micros: Sequence[int]) -> tuple[Graph, dict[Op, int]]:
    """The plan with some micro-batches, and the stages of its operators in a schedule."""
    made = graph.of_batch(with_micro_batches(graph.pcg, loop.count, len(micros)))
    copies: dict[Op, list[Op]] = {}
    groups: dict[tuple[int, int], int] = {}
    stage: dict[Op, int] = {}

    for op in (*graph.forward, *graph.optimizer, *graph.stores):
        copies[op] = []
        for number in range(len(micros)) if op.loop is not None else (0,):
            cuts = tuple(_copied(cut, len(micros), number) for cut in op.cuts)
            copy = Op(made, op.node, op.phase, cuts)
            copy._device, copy.made, copy.assigned, copy.split = op._device, op.made, op.assigned, op.split
            copy.group = made.micro_batch_group(graph, groups, op.group, number)
            copy.swapped = made.micro_batch_group(graph, groups, op.swapped, number)
            copies[op].append(copy)
    made.take(copies)
    made.stores = [copy for op in graph.stores for copy in copies[op]]
    made.move_data_as(graph)

    def of(ops: Sequence[Op]) -> tuple[Op, ...]:
        found: dict[Op | None, None] = {}
        for now in (now for op in ops for now in op.current):
            own = copies[now.forward or now]
            found |= dict.fromkeys(own if now.forward is None else (made.derived(copy, now.phase) for copy in own))
        return tuple(op for op in found if op is not None)

    made.orders = [Order(of(order.first), of(order.second), order.where) for order in graph.orders]
    known = {micro: number for number, micro in enumerate(micros)}
    for schedule in graph.schedules:
        orders = schedule.orders
        if schedule.label == loop.label:
            orders = tuple(
                tuple(slot._replace(micro=known[slot.micro]) for slot in own if slot.micro in known) for own in orders
            )
        stages = [of(ops) for ops in schedule.stages]
        in_order(orders, stages, schedule.label)
        stage |= {op: number for number, ops in enumerate(stages) for op in ops}
    return made, stage


def _copied(cut: Cut, count: int, number: int) -> Cut:
    if not cut.loop:
        return cut
    return replace(cut, parts=count, number=number, loop=False, of=cut.parts if count < cut.parts else 0)


def micro_of(op: Op) -> int | None:
    """The number of the micro-batch of a template's task; None if it runs once in a step."""
    own = op.forward or op
    if own.phase is not Phase.FORWARD:
        return None
    for cut in own.cuts:
        if cut.of:
            return cut.number
    return None
