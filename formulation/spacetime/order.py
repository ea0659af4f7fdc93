"""Task order: orders and dependencies as precedences, and a deterministic completion (SuperScaler, section 3.2).

A need waits for any one of its producers, an order for all of its first operators: AND/OR precedence constraints.
Running whatever is ready decides feasibility (Möhring, Skutella and Stork, Scheduling with AND/OR precedence
constraints, SIAM J. Computing 33, 2004): running a task never blocks another, so a stuck task is stuck in every order.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from ...model.errors import PartitaError
from ...model.wording import MOST_LINES, cut
from .graph import Order
from .op import Op, Phase
from .priority import priorities
from .tasks import Need, Tasks


class PlanConflict(PartitaError):  # noqa: N818
    """The plan cannot run. `conflicts`: its faults, or the smallest conflicting set of orders and needs.

    The message lists as many as fit in `MOST_LINES`, and counts the others.
    """

    def __init__(self, message: str, conflicts: Sequence[str]) -> None:
        self.conflicts = tuple(conflicts)
        super().__init__("\n  ".join((message, *cut(conflicts, MOST_LINES - 1))))


@dataclass(frozen=True, slots=True)
class Completed:
    """A total order of all tasks that respects every need and order; `chosen`: the producer that each need awaits."""

    tasks: Tasks
    order: tuple[Op, ...]
    chosen: Mapping[Need, Op]


@dataclass(frozen=True, slots=True)
class Wait:
    """Event `task` runs after any one of `producers`, preferably the first.

    `count`: the wait's contribution to the size of a conflict; 0 into the event of an order, so an order counts once.
    """

    task: int
    producers: tuple[int, ...]
    source: Need | Order
    count: int = 1


@dataclass(frozen=True, slots=True)
class Precedences:
    """Events and their waits: first one event per task, then one per order, between its first and second operators.

    Tasks that meet are one event, that of the first: `of` has it by task, `together` by it the places of all of them.
    """

    tasks: Tasks
    priority: tuple[int, ...]
    waits: tuple[Wait, ...]
    of: Mapping[Op, int]
    together: Mapping[int, tuple[int, ...]]

    def at(self, event: int, ops: Iterable[Op], device: int | None = None) -> Op:
        """That of some tasks which an event is; of several that meet, the one on a device."""
        if event not in self.together:
            return self.tasks.ops[event]
        met = [op for op in ops if self.of.get(op) == event]
        return next((op for op in met if op.device == device), met[0])


def precedences(tasks: Tasks) -> Precedences:
    """The waits of a plan. A need prefers the producer on its own device, then the lowest rank."""
    rank = priorities(tasks)
    number = {op: at for at, op in enumerate(tasks.ops)}
    together = {number[met.ops[0]]: tuple(number[op] for op in met.ops) for met in tasks.meetings.values()}
    number |= {op: number[met.ops[0]] for op, met in tasks.meetings.items()}
    waits: list[Wait] = []
    sorts: dict[tuple[tuple[Op, ...], int | None], tuple[int, ...]] = {}  # many tasks of a device read the same
    for need in tasks.needs:
        if len(need.producers) == 1:
            waits.append(Wait(number[need.task], (number[need.producers[0]],), need))
            continue
        key = need.producers, need.task.device
        if key not in sorts:
            found = sorted((op.device != key[1], op.device, rank[number[op]], number[op]) for op in need.producers)
            sorts[key] = tuple(dict.fromkeys(at for *_, at in found))
        waits.append(Wait(number[need.task], sorts[key], need))
    for event, (order, first, second) in enumerate(ordered(tasks), len(tasks.ops)):
        waits += [Wait(event, (number[op],), order, 0) for op in first]
        waits += [Wait(number[op], (event,), order) for op in second]
    return Precedences(tasks, (*rank, *(-1 for _ in tasks.orders)), tuple(waits), number, together)


def ordered(tasks: Tasks) -> Iterator[tuple[Order, tuple[Op, ...], tuple[Op, ...]]]:
    """Every order with its first and second tasks.

    An unassigned update stands for one task per store of its parameter. Operators that the loss does not depend on
    never run and are left out.
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
    """The order of all tasks, or the events that no order reaches.

    Tasks whose preferred producers have run go first; other producers are used only if nothing else is ready.
    Recomputations and reloads are then delayed until just before their first consumer; if they have none, as others of
    their group.
    """
    events = _run(given)
    if len(events) < len(given.priority):
        return frozenset(range(len(given.priority))) - set(events)
    at = {event: place for place, event in enumerate(events)}
    taken = [
        w.producers[0] if at[w.producers[0]] < at[w.task] else next(p for p in w.producers if at[p] < at[w.task])
        for w in given.waits
    ]
    events = _delayed(given, events, taken)
    ops = given.tasks.ops
    return Completed(
        given.tasks,
        tuple(ops[event] for event in events if event < len(ops)),
        {
            w.source: given.at(p, w.source.producers, w.source.task.device)
            for w, p in zip(given.waits, taken, strict=True)
            if isinstance(w.source, Need)
        },
    )


def _run(given: Precedences) -> list[int]:
    """Events in execution order, without those that are stuck."""
    count = len(given.priority)
    waiting: list[list[int]] = [[] for _ in range(count)]  # by event: the waits it may end
    able, preferred = [0] * count, [0] * count  # open waits: for any producer, for the preferred one
    follow = {event for first, events in given.together.items() for event in events if event != first}
    for number, wait in enumerate(given.waits):
        able[wait.task] += 1
        preferred[wait.task] += 1
        for producer in wait.producers:
            waiting[producer].append(number)
    ready: list[tuple[bool, int, int]] = []
    for event in range(count):
        if not able[event] and event not in follow:
            heappush(ready, (False, given.priority[event], event))
    ended, happened, found = [False] * len(given.waits), [False] * count, list[int]()
    task_of, wished = [wait.task for wait in given.waits], [wait.producers[0] for wait in given.waits]
    while ready:
        _, _, event = heappop(ready)
        if happened[event]:
            continue
        happened[event] = True
        found += given.together.get(event, (event,))
        for number in waiting[event]:
            task, first = task_of[number], not ended[number]
            if wished[number] == event:
                preferred[task] -= 1
            elif not first:
                continue
            if first:
                ended[number] = True
                able[task] -= 1
            if not able[task] and (first or not preferred[task]):
                heappush(ready, (preferred[task] > 0, given.priority[task], task))
    return found


_LATE = (Phase.RECOMPUTE, Phase.RELOAD)


def _delayed(given: Precedences, events: Sequence[int], taken: Sequence[int]) -> list[int]:
    """The same events, with orders, recomputations and reloads moved to just before their first consumer."""
    ops = given.tasks.ops
    after: dict[int, list[int]] = {event: [] for event in events}
    for wait, producer in zip(given.waits, taken, strict=True):
        after[producer].append(wait.task)
    place = {event: at for at, event in enumerate(events)}
    anchor: dict[int, int] = {}
    unread: list[int] = []
    for event in reversed(events):
        late = event >= len(ops) or ops[event].phase in _LATE
        anchor[event] = min((anchor[e] for e in after[event]), default=len(events)) if late else place[event]
    groups: dict[object, int] = {}
    for event in (event for event in events if event < len(ops) and ops[event].phase in _LATE):
        groups[_group(ops[event])] = min(groups.get(_group(ops[event]), len(events)), anchor[event])
        if not after[event]:
            unread.append(event)
    anchor |= {event: groups[_group(ops[event])] for event in unread}
    for first, met in given.together.items():
        if anchor[first] != place[first]:
            anchor |= dict.fromkeys(met, anchor[first])
    return sorted(events, key=lambda event: (anchor[event], anchor[event] == place[event], place[event]))


def _group(op: Op) -> object:
    """Equal for recomputations of one group, and for reloads of one."""
    own = op.forward or op
    return op.phase, op.device, own.group if op.phase is Phase.RECOMPUTE else own.swapped


def edges(completed: Completed) -> Iterator[tuple[Op, Op]]:
    """(earlier, later) pairs of tasks that a completed order respects."""
    yield from ((producer, need.task) for need, producer in completed.chosen.items())
    for _, first, second in ordered(completed.tasks):
        yield from ((a, b) for a in first for b in second)
