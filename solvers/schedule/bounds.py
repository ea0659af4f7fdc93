"""Lower bounds on the makespan and period of a pipeline, without search.

`tightened` adds edges that lose nothing; `makespan_bound` and `period_bound` look at one device at a time (Jackson's
preemptive schedule), with what must come before its first and after its last task.
"""

import heapq
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise

from ...formulation.pipeline.problem import Precedence, Problem, with_edges

Row = tuple[int | None, ...]


def tightened(problem: Problem) -> Problem:
    """The problem with micro-batches in order, and with memory as edges where a device holds equal pieces.

    Micro-batches are interchangeable where their tasks and edges are equal. Take any schedule, and of every kind and
    stage give the m-th start to the m-th of them. Sorting keeps what holds of all pairs (s_j(m) >= s_i(m) + lag, and
    the m-th smallest of s_j is no less than that of s_i plus the lag), the intervals of a device are the same, and so
    are its bytes at every time. So some shortest schedule runs them in order.

    In order, m-th pieces are released m-th; where a device has room for c equal pieces, the take of m + c waits for the
    release of m. It starts after that releaser has started, and on one device they do not overlap: so after its end.
    """
    classes = _interchangeable(problem)
    edges = [
        Precedence(problem.index[slot], problem.index[slot._replace(micro=after)])
        for own in classes
        for before, after in pairwise(own)
        for slot in (task.slot for task in problem.tasks if task.micro == before)
    ]
    for d, capacity in enumerate(problem.capacities):
        held = [h for h in problem.holdings if h.device == d]
        if capacity is not None and held and len(_types(problem, d)) == 1 and len(classes) == 1:
            held.sort(key=lambda h: problem.tasks[h.taker].micro)
            room = capacity // held[0].bytes
            edges += [Precedence(first.releaser, later.taker) for first, later in zip(held, held[room:], strict=False)]
    return with_edges(problem, edges)


def _interchangeable(problem: Problem) -> list[list[int]]:
    """Groups of interchangeable micro-batches; none if one waits for another."""
    tasks = problem.tasks
    if any(tasks[e.before].micro != tasks[e.after].micro for e in problem.edges):
        return []
    looks: dict[int, set[object]] = defaultdict(set)
    for t in tasks:
        looks[t.micro].add((t.kind, t.stage, t.devices, t.duration_ns, t.takes_bytes, t.releases_bytes))
    for e in problem.edges:
        before, after = tasks[e.before], tasks[e.after]
        looks[before.micro].add((before.kind, before.stage, after.kind, after.stage, e.lag_ns))
    groups: dict[frozenset[object], list[int]] = defaultdict(list)
    for micro in sorted(looks):
        groups[frozenset(looks[micro])].append(micro)
    return list(groups.values())


def _types(problem: Problem, device: int) -> set[tuple[str, int, str, int, int]]:
    """The kinds of memory that a device holds, whatever the micro-batch."""
    tasks = problem.tasks
    return {
        (tasks[h.taker].kind, tasks[h.taker].stage, tasks[h.releaser].kind, tasks[h.releaser].stage, h.bytes)
        for h in problem.holdings
        if h.device == device
    }


def heads(problem: Problem, sources: Sequence[int] | None = None) -> Row:
    """Earliest start of every task if `sources` begin at 0 and devices are free; None: it depends on no source.

    Without sources: from the beginning.
    """
    start: list[int | None] = [0 if sources is None else None] * len(problem.tasks)
    for i in sources or ():
        start[i] = 0
    into: dict[int, list[Precedence]] = defaultdict(list)
    for edge in problem.edges:
        into[edge.after].append(edge)
    for i in problem.topological:
        for edge in into[i]:
            known = start[edge.before]
            if known is not None:
                start[i] = max(start[i] or 0, known + problem.tasks[edge.before].duration_ns + edge.lag_ns)
    return tuple(start)


def tails(problem: Problem, sinks: Sequence[int] | None = None, closing_ns: int = 0) -> Row:
    """The shortest time from the end of every task to `closing_ns` after `sinks`, or to the end of the step."""
    last: list[int | None] = [*problem.closing_of] if sinks is None else [None] * len(problem.tasks)
    for i in sinks or ():
        last[i] = closing_ns
    out: dict[int, list[Precedence]] = defaultdict(list)
    for edge in problem.edges:
        out[edge.before].append(edge)
    for i in reversed(problem.topological):
        for edge in out[i]:
            known = last[edge.after]
            if known is not None:
                last[i] = max(last[i] or 0, edge.lag_ns + problem.tasks[edge.after].duration_ns + known)
    return tuple(last)


def jackson(tasks: Sequence[tuple[int, int, int]]) -> int:
    """The end of the shortest preemptive schedule of tasks (head, duration, tail) on one machine; 0 for none.

    Of what is there, always that with the longest tail (Jackson): max over sets of tasks of their least head, all their
    durations and their least tail. No schedule without preemption ends earlier.
    """
    coming, waiting = sorted(tasks, reverse=True), list[tuple[int, int]]()
    now = end = 0
    while coming or waiting:
        if not waiting:
            now = max(now, coming[-1][0])
        while coming and coming[-1][0] <= now:
            _, duration, tail = coming.pop()
            heapq.heappush(waiting, (-tail, duration))
        tail, left = heapq.heappop(waiting)
        run = min(left, coming[-1][0] - now) if coming else left
        now += run
        if run < left:
            heapq.heappush(waiting, (tail, left - run))
        else:
            end = max(end, now - tail)
    return end


def makespan_bound(problem: Problem) -> int:
    """Lower bound on the makespan in ns."""
    problem = tightened(problem)
    return max(_windows(problem, heads(problem), tails(problem), range(problem.devices)))


def period_bound(problem: Problem) -> int:
    """Lower bound on the period: the longest time of any device from its first start to its last end.

    Whatever starts after a task of device d and ends before another lies within that time of d.
    """
    problem = tightened(problem)
    return max(
        found
        for own, closing in zip(problem.on_device, problem.closing_ns, strict=True)
        for found in _windows(problem, heads(problem, own), tails(problem, own, closing), range(problem.devices))
    )


def _windows(problem: Problem, head: Row, tail: Row, devices: Sequence[int]) -> Iterator[int]:
    """The bound of every device, over its tasks that have a head and a tail."""
    for d in devices:
        own = [
            (before, problem.tasks[i].duration_ns, after)
            for i in problem.on_device[d]
            if (before := head[i]) is not None and (after := tail[i]) is not None
        ]
        yield jackson(own)
