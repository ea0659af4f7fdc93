"""The master problem: the best cuts of a pipeline, given the time of every stage for every part of the model.

    min  M + ⌈(Σ_s W_s(i_s, i_s+1) - M) / R⌉   over paths  0 = i_0, i_1, ..., i_p = n - 1  and  M ≥ W_s(i_s, i_s+1) ∀ s

For a given M this is a shortest path through p layers, whose sum never grows with M. So an interval of values of M is
done once both ends have the same sum, or once its least M with the sum of its largest one does not beat the best: few
values are tried. (One CP-SAT program over y[s, i, j] takes seconds to minutes for 25 to 50 boundaries; this takes
milliseconds.)

With several virtual stages on each of d devices, M is the largest sum of a device. Only M ≥ ⌈Σ_s W_s / d⌉ is used here,
so the optimum is a lower bound.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ...formulation.network.network import INFINITE
from ...formulation.pipeline.configuration import waited

Times: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class CutPath:
    """The p + 1 nodes of a path and its cost (ns)."""

    nodes: tuple[int, ...]
    objective: int


def best_path(
    times: Sequence[Times], rounds: int | None, devices: int, messages: Times | None = None
) -> CutPath | None:
    """The cheapest path from node 0 to the last; `times[s]` [n, n] holds W_s, INFINITE where there is none.

    `rounds` is R, the micro-batches times the stages of each of the `devices` (None: minimize M). Ties go to the
    smaller M, then to the earlier nodes. None if there is no path. `messages` [n]: a step takes those of every node of
    its path besides.
    """
    sums = times if messages is None or rounds is None else [np.minimum(t + rounds * messages, INFINITE) for t in times]
    loosest = shortest(sums, times, INFINITE - 1)
    if loosest is None:
        return None
    taken = [int(t[u, v]) for t, (u, v) in zip(times, pairwise(loosest[1]), strict=True)]
    least = loosest[0] if sums is times else (shortest(times, times, INFINITE - 1) or loosest)[0]
    each = [t[(t >= least // len(times)) & (t <= max(taken))] for t in {id(t): t for t in times}.values()]
    values = np.unique(np.concatenate(each))  # no path has a smaller M
    known = {len(values) - 1: loosest}

    def least_until(at: int) -> tuple[int, tuple[int, ...]]:
        if at not in known:
            known[at] = shortest(sums, times, int(values[at])) or (INFINITE, ())
        return known[at]

    def cost(at: int, total: int) -> tuple[int, int]:
        longest = int(values[at]) if messages is not None else max(int(values[at]), -(-total // devices))
        return INFINITE if total >= INFINITE else waited(longest, total, rounds), at

    best = cost(len(values) - 1, loosest[0])
    stack = [(0, len(values) - 1)]
    while stack:
        first, last = stack.pop()
        totals = least_until(first)[0], least_until(last)[0]
        best = min(best, cost(first, totals[0]), cost(last, totals[1]))
        if last - first > 1 and totals[0] != totals[1] and cost(first + 1, totals[1]) < best:
            middle = (first + last) // 2
            stack += [(middle, last), (first, middle)]
    return CutPath(least_until(best[1])[1], best[0])


def shortest(sums: Sequence[Times], times: Sequence[Times], most: int) -> tuple[int, tuple[int, ...]] | None:
    """The least sum of a path whose stages take at most `most` each, and its nodes."""
    last = len(times[0]) - 1
    reach, came = np.zeros(1, dtype=np.int64), []
    for s, (added, t) in enumerate(zip(sums, times, strict=True)):  # from node 0, and to the last one only
        where = slice(None) if s else slice(1), slice(last if s == len(times) - 1 else 0, None)
        through = reach[:, None] + np.where(t[where] <= most, added[where], INFINITE)
        came.append(through.argmin(axis=0))
        reach = np.minimum(through[came[-1], np.arange(through.shape[1])], INFINITE)
    if reach[0] >= INFINITE:
        return None
    nodes = [0]
    for back in reversed(came):
        nodes.append(int(back[nodes[-1]]))
    return int(reach[0]), (*reversed(nodes[1:]), last)
