"""Slots of a template's tasks, whose micro-batches run the tasks of a slot in one order.

Tasks that nothing orders run once their data is there, and while a pipeline fills, data may arrive in another order
than later. `in_one_order` has all micro-batches run a slot as those between the first and the last do, or else as the
first does, of which others may read what is the same in all.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from heapq import heappop, heappush
from itertools import pairwise
from typing import TypeAlias

from ..strategies.row import Row
from .loop import Irregular, Template, micro_of
from .op import Op, Phase
from .order import Completed, ordered
from .supplies import device

Key: TypeAlias = tuple[str, int]
"""A slot of any micro-batch: its kind and its stage."""

_KINDS = {Phase.FORWARD: "F", Phase.RECOMPUTE: "R", Phase.BACKWARD: "B", Phase.WEIGHT: "W"}
ALL_OF_IT: Key = ("", 0)
"""The slot of a plan without a schedule: everything of a micro-batch."""

_LATE = (Phase.RECOMPUTE, Phase.RELOAD)


def slots_of(tasks: Sequence[Op], template: Template) -> list[Key]:
    """The slot of every task; what the schedule does not name runs with what follows or precedes it on its device."""
    named = {(slot.kind, slot.stage) for own in template.orders for slot in own}
    found: list[Key | None] = []
    for op in tasks:
        key = (_KINDS.get(op.phase, ""), template.stage.get(op.forward or op, -1))
        found.append(key if key in named else None if named else ALL_OF_IT)
    for order, late in ((range(len(tasks)), False), (range(len(tasks))[::-1], True)):
        near: dict[tuple[int, int | None], Key] = {}
        for at in order:
            op, own = tasks[at], found[at]
            where = device(op), micro_of(op)
            if own is not None:
                near[where] = own
            elif (op.phase in _LATE) == late:
                found[at] = near.get(where)
    for op, slot in zip(tasks, found, strict=True):
        if slot is None and micro_of(op) is not None:
            raise Irregular(f"{op.name} is in no slot")
    return [slot or ALL_OF_IT for slot in found]


Likeness: TypeAlias = tuple[int, int, str, tuple[tuple[Row, int, int], ...]]


def likeness_of(op: Op) -> Likeness:
    """Equal for tasks of two micro-batches that differ in these alone."""
    cuts = tuple((cut.row, cut.parts, cut.number if not cut.of else 0) for cut in op.cuts)
    return device(op), op.node, op.phase.value, cuts


def in_one_order(completed: Completed, template: Template) -> Completed:
    """The order of a template's tasks in which those of each slot run alike in all micro-batches, if it can run."""
    tasks = completed.order
    keys = slots_of(tasks, template)
    own: dict[int, list[int]] = defaultdict(list)  # by device: its tasks
    blocks: dict[tuple[int, Key], dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for at, op in enumerate(tasks):
        own[device(op)].append(at)
        micro = micro_of(op)
        if micro is not None:
            blocks[device(op), keys[at]][micro].append(at)
    for model in (1, 0):
        moved: dict[int, int] = {}  # by task, the one that takes its place
        for alike in blocks.values():
            rank = {likeness_of(tasks[at]): place for place, at in enumerate(alike[model])}
            for found in alike.values():
                if {likeness_of(tasks[at]) for at in found} == rank.keys() and len(found) == len(rank):
                    moved |= zip(found, sorted(found, key=lambda at: rank[likeness_of(tasks[at])]), strict=True)
        if all(at == other for at, other in moved.items()):
            return completed
        order = _run(completed, {number: [moved.get(at, at) for at in here] for number, here in own.items()})
        if len(order) == len(tasks):
            return replace(completed, order=tuple(tasks[at] for at in order))
    return completed


def _run(completed: Completed, own: Mapping[int, Sequence[int]]) -> list[int]:
    """The tasks that can run if every device runs its own in this order, earlier ones of `completed` first."""
    place = {op: at for at, op in enumerate(completed.order)}
    after: dict[object, list[object]] = defaultdict(list)  # a task is its number, an order itself
    waits: dict[object, int] = defaultdict(int)
    edges: list[tuple[object, object]] = [(a, b) for here in own.values() for a, b in pairwise(here)]
    edges += [(place[producer], place[need.task]) for need, producer in completed.chosen.items()]
    for number, (_, first, second) in enumerate(ordered(completed.tasks)):
        edges += [(place[op], ("order", number)) for op in first]
        edges += [(("order", number), place[op]) for op in second]
    for before, later in edges:
        after[before].append(later)
        waits[later] += 1
    ready = [at for at in range(len(place)) if not waits[at]]
    found: list[int] = []
    while ready:
        found.append(heappop(ready))
        ended: list[object] = [found[-1]]
        while ended:
            for later in after[ended.pop()]:
                waits[later] -= 1
                if not waits[later] and isinstance(later, int):
                    heappush(ready, later)
                elif not waits[later]:
                    ended.append(later)
    return found
