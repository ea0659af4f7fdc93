"""Makespan, period and memory of orders, in plain Python: the check of every order, written or found.

Every task begins once its device is free and its predecessors have ended: given the orders, nothing ends earlier.
The bytes in use on a device depend on its order alone, since it runs one task at a time.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ...model.errors import PartitaError
from .orders import Orders, Slot
from .problem import Precedence, Problem


@dataclass(frozen=True, slots=True)
class TimedOrders:
    """Orders with the start of every task (ns, by task index).

    `makespan_ns`: from the first start to the last end, with what devices do after their last task
    (`Problem.closing_ns`). `period_ns`: time between steps if every device begins its next step as soon as it ended
    this one, without waiting for the others. `bubble`, `period_bubble`: the idle share of the makespan and of the
    period. `peak_bytes`: of every device.
    """

    orders: Orders
    starts_ns: tuple[int, ...]
    makespan_ns: int
    period_ns: int
    bubble: float
    period_bubble: float
    peak_bytes: tuple[int, ...]


def evaluate(problem: Problem, orders: Sequence[Sequence[Slot]]) -> TimedOrders:
    """Run every task as early as these orders allow.

    PartitaError: a task is missing, duplicated or on another device; the orders deadlock; a device lacks memory.
    """
    slots = tuple(tuple(Slot(*slot) for slot in own) for own in orders)
    sequences = _indices(problem, slots)
    earliest, duration = _earliest(problem, sequences), [task.duration_ns for task in problem.tasks]
    peaks = tuple(_peaks(problem, sequences))
    starts = [start for start in earliest(range(len(duration))) if start is not None]
    makespan = max(map(sum, zip(starts, duration, problem.closing_of, strict=True)))
    from_first, lasts = [earliest(own[:1]) for own in sequences], [own[-1] for own in sequences]
    ends = [(last, duration[last] + closing) for last, closing in zip(lasts, problem.closing_ns, strict=True)]
    reach = [
        [None if (start := table[last]) is None else start + after for last, after in ends] for table in from_first
    ]
    period = _cycle_mean(reach)
    busy = sum(problem.loads_ns) + sum(problem.closing_ns)
    return TimedOrders(
        orders=slots,
        starts_ns=tuple(starts),
        makespan_ns=makespan,
        period_ns=period,
        bubble=1 - busy / (problem.devices * makespan),
        period_bubble=1 - busy / (problem.devices * period),
        peak_bytes=peaks,
    )


def starts_ns(problem: Problem, orders: Sequence[Sequence[Slot]]) -> tuple[int, ...]:
    """Only the starts of `evaluate`, in less time for many tasks."""
    earliest = _earliest(problem, _indices(problem, tuple(map(tuple, orders))))
    return tuple(start for start in earliest(range(len(problem.tasks))) if start is not None)


def _earliest(problem: Problem, sequences: Sequence[Sequence[int]]) -> Callable[[Sequence[int]], list[int | None]]:
    """A function: sources that begin at 0 -> the earliest start of every task; None if it depends on no source."""
    edges = [*problem.edges, *(Precedence(a, b) for own in sequences for a, b in pairwise(own))]
    order = _sorted(problem, edges)
    into: list[list[Precedence]] = [[] for _ in problem.tasks]
    for edge in edges:
        into[edge.after].append(edge)
    duration = [task.duration_ns for task in problem.tasks]

    def earliest(sources: Sequence[int]) -> list[int | None]:
        starts: list[int | None] = [None] * len(duration)
        for i in order:
            found = [known + duration[e.before] + e.lag_ns for e in into[i] if (known := starts[e.before]) is not None]
            starts[i] = max([*found, *([0] if i in sources else [])], default=None)
        return starts

    return earliest


def _indices(problem: Problem, orders: Orders) -> list[list[int]]:
    """The orders as indices of tasks."""
    if len(orders) != problem.devices:
        raise PartitaError(f"orders for {len(orders)} devices are given, of {problem.devices}")
    for d, order in enumerate(orders):
        needed = {problem.tasks[i].slot for i in problem.on_device[d]}
        counts = Counter(order)
        wrong = [
            *(f"{slot} is no task of it" for slot in counts if slot not in needed),
            *(f"{slot} is there {count} times" for slot, count in counts.items() if count > 1),
            *(f"{slot} is missing" for slot in sorted(needed - set(counts))),
        ]
        if wrong:
            raise PartitaError(f"the order of device {d}: {wrong[0]}")
    if not problem.tasks or not all(orders):
        raise PartitaError("a device without any task: leave it out")
    return [[problem.index[slot] for slot in order] for order in orders]


def _sorted(problem: Problem, edges: Sequence[Precedence]) -> list[int]:
    """The tasks in topological order. PartitaError: a cycle; a shortest one is named."""
    waits = [0] * len(problem.tasks)
    out: list[list[int]] = [[] for _ in problem.tasks]
    for edge in edges:
        waits[edge.after] += 1
        out[edge.before].append(edge.after)
    ready = deque(i for i, count in enumerate(waits) if count == 0)
    order = []
    while ready:
        order.append(ready.popleft())
        for after in out[order[-1]]:
            waits[after] -= 1
            if waits[after] == 0:
                ready.append(after)
    if len(order) < len(problem.tasks):
        left = set(range(len(problem.tasks))) - set(order)
        circle = _circle({i: [e.before for e in edges if e.after == i and e.before in left] for i in left})
        needs = {edge[:2] for edge in problem.edges}
        words = str(problem.tasks[circle[0]].slot)
        for i, before in pairwise(circle):
            slot, shared = (
                problem.tasks[before].slot,
                set(problem.tasks[i].devices) & set(problem.tasks[before].devices),
            )
            words += f" needs {slot}" if (before, i) in needs else f" comes after {slot} on device {min(shared)}"
            words += ", which" if before != circle[0] else ""
        raise PartitaError(f"these orders deadlock: {words}; change the order of one of these devices")
    return order


def _circle(waits: dict[int, list[int]]) -> list[int]:
    """A shortest cycle, each task waiting for the next; the first one is repeated at the end."""
    best: list[int] = []
    for first in sorted(waits):
        came: dict[int, int] = {}
        queue = deque([first])
        while queue and first not in came:
            i = queue.popleft()
            for before in waits[i]:
                if before not in came:
                    came[before] = i
                    queue.append(before)
        if first in came:
            circle, i = [first], came[first]
            while i != first:
                circle.append(i)
                i = came[i]
            circle = [first, *circle[:0:-1], first]
            best = circle if not best or len(circle) < len(best) else best
    return best


def _peaks(problem: Problem, sequences: Sequence[Sequence[int]]) -> Iterator[int]:
    for d, (own, capacity) in enumerate(zip(sequences, problem.capacities, strict=True)):
        used = peak = 0
        for i in own:
            used += problem.tasks[i].takes_bytes
            if capacity is not None and used > capacity:
                slot = problem.tasks[i].slot
                raise PartitaError(f"device {d} has room for {capacity:,} bytes, but {slot} brings it to {used:,}")
            peak = max(peak, used)
            used -= problem.tasks[i].releases_bytes
        yield peak


def _cycle_mean(reach: Sequence[Sequence[int | None]]) -> int:
    """The time from step to step, rounded up: the maximum cycle mean over devices (Karp).

    `reach[a][b]`: from the first start on a to the last end on b in one step. Device b begins its next step max over a
    of reach[a][b] after a began this one, so starts grow by the largest mean a step.
    """
    count = len(reach)
    walks: list[list[int | None]] = [[0] * count]
    for _ in range(count):
        walks.append(
            [
                max(
                    (
                        w + r
                        for w, row in zip(walks[-1], reach, strict=True)
                        if w is not None and (r := row[b]) is not None
                    ),
                    default=None,
                )
                for b in range(count)
            ]
        )
    # Started anywhere at 0, all walks of n steps: the mean is max over ends of min over k.
    means = [
        min(-(-(end - w) // (count - k)) for k in range(count) if (w := walks[k][b]) is not None)
        for b in range(count)
        if (end := walks[count][b]) is not None
    ]
    return max(means)
