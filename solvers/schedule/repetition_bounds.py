"""Lower bounds on the makespan of n repetitions of a problem, for all n at once."""

from collections.abc import Iterator
from fractions import Fraction

from ...formulation.pipeline.problem import Holding, Problem
from ...formulation.pipeline.steady import RepetitionBound
from .bounds import heads, tails


def repetition_bounds(problem: Problem) -> Iterator[RepetitionBound]:
    """Bounds from every device's work, its memory, and both together, for periodic schedules and others."""
    head, tail = (tuple(x or 0 for x in row) for row in (heads(problem), tails(problem)))
    for d, own in enumerate(problem.on_device):
        load = problem.loads_ns[d]
        around = min(head[i] for i in own) + min(tail[i] for i in own)
        yield RepetitionBound(Fraction(load), around, 0, f"the work of device {d}")
        held, capacity = [h for h in problem.holdings if h.device == d], problem.capacities[d]
        if capacity is None or not held or capacity < max(h.bytes for h in held):
            continue
        if len({h.bytes for h in held}) == 1:
            capacity -= capacity % held[0].bytes
        area = sum(h.bytes * _held_ns(problem, h) for h in held)
        around = min(head[h.taker] for h in held) + min(tail[h.releaser] for h in held)
        yield RepetitionBound(Fraction(area, capacity), around, 0, f"the memory of device {d}")
        if len(held) == 1 and _between(problem, held[0]):
            pieces = capacity // held[0].bytes
            around = sum(_waits(problem, held[0], pieces, head[held[0].taker], tail[held[0].releaser]))
            yield RepetitionBound(Fraction(load), around, pieces, f"the work and the memory of device {d}")


def _held_ns(problem: Problem, held: Holding) -> int:
    """The least time that a piece is in memory: the longest path from its taker's start to its releaser's end."""
    apart = heads(problem, [held.taker])[held.releaser]
    return (apart or 0) + problem.tasks[held.releaser].duration_ns


def _between(problem: Problem, held: Holding) -> bool:
    """True if all tasks of the device lie between taker and releaser, or are one of them."""
    after, before = heads(problem, [held.taker]), tails(problem, [held.releaser])
    return all(after[i] is not None and before[i] is not None for i in problem.on_device[held.device])


def _waits(problem: Problem, held: Holding, pieces: int, head: int, tail: int) -> tuple[int, int]:
    """The idle time of the device at the beginning and at the end, with memory for `pieces`.

    Until the first piece is released, the device runs only the first repetition and, of as many more as fit, what comes
    before their releasers; it idles for the rest of that time. Likewise, backwards, after the last piece is taken. The
    two times do not overlap if there are more repetitions than pieces; repetitions are in order (`tightened`).
    """
    load = problem.loads_ns[held.device]
    first, last = (problem.tasks[i].duration_ns for i in held[:2])
    spare = _held_ns(problem, held) - load
    before = max(head, head + spare - (pieces - 1) * (load - last))
    return before, max(tail, tail + spare - (pieces - 1) * (load - first))
