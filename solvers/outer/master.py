"""The master problem: where a pipeline is cut, if every stage's time is known for every part of the model.

    min  M + ⌈(Σ_s W_s(i_s, i_s+1) - M) / K⌉   over paths  0 = i_0, i_1, ..., i_p = n - 1  and  M ≥ W_s(i_s, i_s+1) ∀ s

For a given M that is a shortest path through p layers. The sum of a shortest path never grows with M, so an interval of
values of M is done where its ends have the same sum, or where its least M with the sum of its largest one is no better
than what is known: few of the values are looked at. (As one CP-SAT program over y[s, i, j] it takes seconds to minutes
for 25 to 50 places to cut, where this takes milliseconds.)

Where each of d devices has several stages, M is the longest of their sums. Of these only M ≥ ⌈Σ_s W_s / d⌉ is used: the
optimum is a bound of what the stages take then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ...formulation.network import INFINITE

Times: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Path:
    """The nodes of a path, p + 1 of them, and what it costs (ns)."""

    nodes: tuple[int, ...]
    objective: int


def best_path(times: Sequence[Times], rounds: int, devices: int) -> Path | None:
    """The cheapest path from node 0 to the last; `times[s]` [n, n] holds W_s, INFINITE where there is none.

    `rounds` is K, times the stages of each of the `devices`. Ties go to the smaller M, then to the earlier nodes. None:
    there is no path.
    """
    values = np.unique(np.concatenate([t[t < INFINITE] for t in {id(t): t for t in times}.values()]))
    if not len(values):
        return None
    known: dict[int, tuple[int, tuple[int, ...]] | None] = {}

    def shortest(at: int) -> tuple[int, tuple[int, ...]] | None:
        if at not in known:
            known[at] = _shortest(times, int(values[at]))
        return known[at]

    low, high = 0, len(values) - 1
    if shortest(high) is None:
        return None
    while low < high:  # the least M for which there is a path
        middle = (low + high) // 2
        low, high = (low, middle) if shortest(middle) is not None else (middle + 1, high)

    def cost(at: int, total: int) -> int:
        longest = max(int(values[at]), -(-total // devices))
        return longest + -(-(total - longest) // rounds)

    def total(at: int) -> int:
        found = shortest(at)
        assert found is not None
        return found[0]

    best = low
    stack = [(low, len(values) - 1)]
    while stack:
        first, last = stack.pop()
        for end in (first, last):
            if cost(end, total(end)) < cost(best, total(best)):
                best = end
        if last - first < 2 or total(first) == total(last):
            continue
        if cost(first + 1, total(last)) < cost(best, total(best)):
            middle = (first + last) // 2
            stack += [(middle, last), (first, middle)]
    found = shortest(best)
    assert found is not None
    return Path(found[1], cost(best, found[0]))


def _shortest(times: Sequence[Times], most: int) -> tuple[int, tuple[int, ...]] | None:
    """The least sum of a path whose stages take at most `most`, and that path."""
    reach = np.full(len(times[0]), INFINITE)
    reach[0] = 0
    came = []
    allowed: dict[int, Times] = {}
    for t in times:
        if id(t) not in allowed:
            allowed[id(t)] = np.where(t <= most, t, INFINITE)
        through = reach[:, None] + allowed[id(t)]
        came.append(through.argmin(axis=0))
        reach = np.minimum(through.min(axis=0), INFINITE)
    if reach[-1] >= INFINITE:
        return None
    nodes = [len(reach) - 1]
    for back in reversed(came):
        nodes.append(int(back[nodes[-1]]))
    return int(reach[-1]), tuple(reversed(nodes))
