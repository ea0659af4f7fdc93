"""The order in which a plan's tasks run: orders and needs as precedences, and a deterministic completion (section 3.2).

A need waits for any one of its producers, an order for all of its first operators: precedences with AND and OR. Going
on with whatever may run decides them (Möhring, Skutella and Stork, Scheduling with AND/OR precedence constraints,
SIAM J. Computing 33, 2004): what runs never hinders another, so who gets stuck is stuck in every order.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from ...model.errors import PartitaError
from .graph import Order
from .op import Op, Phase
from .priority import priorities
from .tasks import Need, Tasks

_TOLD = 24  # how many conflicts a message tells


class PlanConflict(PartitaError):  # noqa: N818
    """A plan that cannot run: `conflicts` are its faults, or the smallest set of orders and needs that conflict.

    The message has the first of them.
    """

    def __init__(self, message: str, conflicts: Sequence[str]) -> None:
        self.conflicts = tuple(conflicts)
        more = [f"and {len(conflicts) - _TOLD} more"] if len(conflicts) > _TOLD else []
        super().__init__("\n  ".join((message, *conflicts[:_TOLD], *more)))


@dataclass(frozen=True, slots=True)
class Completed:
    """A total order of all tasks that respects every need and order; `chosen` is the producer that each need waits for.

    Every producer in `chosen` comes before its task in `order`. A device runs its tasks in this order.
    """

    tasks: Tasks
    order: tuple[Op, ...]
    chosen: Mapping[Need, Op]


@dataclass(frozen=True, slots=True)
class Wait:
    """`task` runs after any one of `producers`, the first of which it prefers. All are numbers of events.

    `count` is what the wait adds to a number of needs and orders: an order's event waits, and is waited for.
    """

    task: int
    producers: tuple[int, ...]
    source: Need | Order
    count: int = 1


@dataclass(frozen=True, slots=True)
class Precedences:
    """Events and what they wait for. The first events are the tasks, in their order; then comes one for every order:
    it waits for each of the first operators, and each of the second waits for it."""

    tasks: Tasks
    priority: tuple[int, ...]
    waits: tuple[Wait, ...]


def precedences(tasks: Tasks) -> Precedences:
    """Orders and needs of a plan. A need prefers the producer on its own device, then that of the lowest rank."""
    rank = priorities(tasks)
    number = {op: at for at, op in enumerate(tasks.ops)}
    waits: list[Wait] = []
    for need in tasks.needs:
        producers = sorted(
            (number[op] for op in need.producers),
            key=lambda at: (tasks.ops[at].device != need.task.device, tasks.ops[at].device, rank[at]),
        )
        waits.append(Wait(number[need.task], tuple(producers), need))
    for event, (order, first, second) in enumerate(ordered(tasks), len(tasks.ops)):
        waits += [Wait(event, (number[op],), order, 0) for op in first]
        waits += [Wait(number[op], (event,), order) for op in second]
    return Precedences(tasks, (*rank, *(-1 for _ in tasks.orders)), tuple(waits))


def ordered(tasks: Tasks) -> Iterator[tuple[Order, tuple[Op, ...], tuple[Op, ...]]]:
    """Every order with the tasks that it names, the first and the second.

    The update of a parameter that a plan does not assign is several tasks, one for each of its stores. What is never
    run because the loss does not depend on it has no part in an order.
    """
    running = set(tasks.ops)
    updates: dict[int, list[Op]] = defaultdict(list)
    for op in tasks.ops:
        if op.phase is Phase.UPDATE:
            updates[op.node].append(op)

    def named(ops: Sequence[Op]) -> tuple[Op, ...]:
        found: dict[Op, None] = {}
        for op in ops:
            here = [op] if op in running else updates[op.node] if op.phase is Phase.UPDATE else []
            found |= dict.fromkeys(here)
        return tuple(found)

    for order in tasks.orders:
        yield order, named(order.first), named(order.second)


def complete(given: Precedences) -> Completed | frozenset[int]:
    """The order of all tasks, or the events that no order can reach.

    What is ready by the producers that it prefers goes first; another producer is taken only where nothing else is
    left. Recomputations and reloads are then put off until shortly before they are needed.
    """
    events = _run(given)
    if len(events) < len(given.priority):
        return frozenset(range(len(given.priority))) - set(events)
    at = {event: place for place, event in enumerate(events)}
    taken = [next(p for p in w.producers if at[p] < at[w.task]) for w in given.waits]
    events = _put_off(given, events, taken)
    ops = given.tasks.ops
    return Completed(
        given.tasks,
        tuple(ops[event] for event in events if event < len(ops)),
        {w.source: ops[p] for w, p in zip(given.waits, taken, strict=True) if isinstance(w.source, Need)},
    )


def _run(given: Precedences) -> list[int]:
    """Events in the order in which they happen; those that are stuck are not among them."""
    count = len(given.priority)
    waiting: list[list[int]] = [[] for _ in range(count)]  # the waits that an event may end
    able, preferred = [0] * count, [0] * count  # waits still to be ended: by any, by the preferred producer
    for number, wait in enumerate(given.waits):
        able[wait.task] += 1
        preferred[wait.task] += 1
        for producer in wait.producers:
            waiting[producer].append(number)
    ready: list[tuple[bool, int, int]] = []
    for event in range(count):
        if not able[event]:
            heappush(ready, (False, given.priority[event], event))
    ended, happened, found = [False] * len(given.waits), [False] * count, list[int]()
    while ready:
        _, _, event = heappop(ready)
        if happened[event]:
            continue
        happened[event] = True
        found.append(event)
        for number in waiting[event]:
            wait = given.waits[number]
            task = wait.task
            first = not ended[number]
            ended[number] = True
            able[task] -= first
            preferred[task] -= wait.producers[0] == event
            if not able[task] and (first or not preferred[task]):
                heappush(ready, (preferred[task] > 0, given.priority[task], task))
    return found


_LATE = (Phase.RECOMPUTE, Phase.RELOAD)


def _put_off(given: Precedences, events: Sequence[int], taken: Sequence[int]) -> list[int]:
    """The same events, where those that can wait come just before the first that needs them."""
    ops = given.tasks.ops
    after: dict[int, list[int]] = {event: [] for event in events}
    for wait, producer in zip(given.waits, taken, strict=True):
        after[producer].append(wait.task)
    place = {event: at for at, event in enumerate(events)}
    anchor: dict[int, int] = {}
    for event in reversed(events):
        late = event >= len(ops) or ops[event].phase in _LATE
        anchor[event] = min((anchor[e] for e in after[event]), default=len(events)) if late else place[event]
    return sorted(events, key=lambda event: (anchor[event], anchor[event] == place[event], place[event]))


def edges(completed: Completed) -> Iterator[tuple[Op, Op]]:
    """What a completed order must respect: pairs of an earlier and a later task."""
    yield from ((producer, need.task) for need, producer in completed.chosen.items())
    for _, first, second in ordered(completed.tasks):
        yield from ((a, b) for a in first for b in second)
