"""The paths through the slots of a step: how often each has the forward, the backward and the messages of a stage.

A step runs an order of slots. A slot waits for the one before it on each of its devices and, a message later, for the
slot of the neighbouring stage. So the step is as long as its longest path, and no path is longer.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ...formulation.pipeline.orders import Orders, Slot
from ...formulation.pipeline.problem import Problem, Stage, chunked
from ...formulation.pipeline.schedule import Schedule
from ..elimination.kernels import compiled

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

FORWARD, BACKWARD, AHEAD, BACK = range(4)
"""Rows of counts and times: the slots of a stage, and the messages that follow them."""


def slot_floors(forward: Ints, backward: Ints, messages: Ints) -> Ints:
    """[2, n, n]: floors of the slots of a micro-batch in every part, forward and backward.

    `forward`, `backward` [n]: of what is before each boundary; `messages` [2, n]: of what crosses it, ahead and back.
    No slot is shorter than the message that it sends.
    """
    ahead, back = messages
    forward, backward = (way[None, :] - way[:, None] for way in (forward, backward))
    return np.stack([np.maximum(forward, ahead[None, :]), np.maximum(backward, back[:, None])])


class Path(NamedTuple):
    """`counts` [4][stages]; the update of the stages on `device`, where it ends, comes after it."""

    counts: tuple[tuple[int, ...], ...]
    device: int


class SlotGraph:
    """The slots of an order, and what each waits for."""

    def __init__(self, problem: Problem, orders: Orders) -> None:
        tasks, index = problem.tasks, problem.index
        self.stages = 1 + max(task.stage for task in tasks)
        self.ends = [index[Slot(*own[-1])] for own in orders]
        self.row = np.array([("F", "B").index(task.kind) for task in tasks])
        self.stage = np.array([task.stage for task in tasks])
        before: list[dict[int, bool]] = [{} for _ in tasks]  # True: a message later
        for own in orders:
            for a, b in pairwise(own):
                before[index[Slot(*b)]][index[Slot(*a)]] = False
        for edge in problem.edges:
            before[edge.after][edge.before] = tasks[edge.before].devices != tasks[edge.after].devices
        after: list[list[int]] = [[] for _ in tasks]
        for task, own_before in enumerate(before):
            for other in own_before:
                after[other].append(task)
        waits = [*map(len, before)]
        order = [task for task, count in enumerate(waits) if not count]
        for task in order:
            for other in after[task]:
                waits[other] -= 1
                if not waits[other]:
                    order.append(other)
        assert len(order) == len(tasks), "orders of schedules come to an end"
        self.order = np.array(order)
        self.first = np.cumsum([0, *map(len, before)])
        self.before = np.array([other for each in before for other in each], dtype=np.int64)
        self.later = np.array([later for each in before for later in each.values()], dtype=np.bool_)

    def longest(self, times: Floats, closing: Sequence[float]) -> tuple[list[float], Ints]:
        """The longest path to each device's end, and which slot every slot waits for longest; `times` [4, stages]."""
        slots, messages = times[self.row, self.stage], times[2 + self.row, self.stage]
        ends, came = _run(self.order, self.first, self.before, self.later, slots, messages)
        return [float(ends[end]) + own for end, own in zip(self.ends, closing, strict=True)], came

    def path(self, came: Ints, device: int) -> Path:
        """The longest path to the end of a device; `came` is what `longest` returned."""
        counts = np.zeros((4, self.stages), dtype=np.int64)
        task = self.ends[device]
        while task >= 0:
            counts[self.row[task], self.stage[task]] += 1
            at = came[task]
            if at >= 0 and self.later[at]:
                before = self.before[at]
                counts[2 + self.row[before], self.stage[before]] += 1
            task = self.before[at] if at >= 0 else -1
        return Path(tuple(map(tuple, counts.tolist())), device)


@compiled
def _run(
    order: Ints, first: Ints, before: Ints, later: npt.NDArray[np.bool_], slots: Floats, messages: Floats
) -> tuple[Floats, Ints]:
    """The end of every slot, and the place in `before` of what it waits for longest; -1: nothing."""
    ends, came = np.zeros(len(slots)), np.full(len(slots), -1)
    for task in order:
        start = 0.0
        for at in range(first[task], first[task + 1]):
            ready = ends[before[at]] + (messages[before[at]] if later[at] else 0.0)
            if ready > start or came[task] < 0:
                start, came[task] = ready, at
        ends[task] = start + slots[task]
    return ends, came


@lru_cache(maxsize=64)
def slot_graph(schedule: Schedule, devices: int, chunks: int, micro_batches: int) -> SlotGraph:
    """The slots of a schedule."""
    problem = chunked([Stage(1, 1)] * devices * chunks, devices, micro_batches)
    return SlotGraph(problem, schedule.orders(devices, chunks, micro_batches))


@lru_cache(maxsize=64)
def first_paths(schedule: Schedule, devices: int, chunks: int, micro_batches: int) -> tuple[Path, ...]:
    """The longest paths of equal stages to the end of each device, in some proportions."""
    graph, found = slot_graph(schedule, devices, chunks, micro_batches), dict[Path, None]()
    for proportions in ((1, 2, 0, 0), (2, 1, 0, 0), (1, 2, 0.2, 0.2)):
        _, came = graph.longest(np.outer(proportions, np.ones(graph.stages)), [0] * devices)
        found |= dict.fromkeys(graph.path(came, device) for device in range(devices))
    return tuple(found)
