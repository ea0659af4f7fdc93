"""What holds for all parts between two boundaries at once, as arrays [n, n]."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ...formulation.network.network import INFINITE
from .shortest_cut import Times

Positions: TypeAlias = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]
"""The boundaries where parts start, and where they end."""


def positions(
    stages: npt.NDArray[np.bool_], kind: Callable[[int, int], Hashable], shared: Callable[[int, int], tuple[bool, ...]]
) -> dict[Hashable, list[Positions]]:
    """Where parts of every kind start and end, apart where they have other weights that several stages have."""
    found: dict[Hashable, dict[tuple[bool, ...], list[tuple[int, int]]]] = {}
    for i, j in np.argwhere(stages).tolist():
        found.setdefault(kind(i, j), {}).setdefault(shared(i, j), []).append((i, j))
    return {
        name: [(np.array([i for i, _ in at]), np.array([j for _, j in at])) for at in each.values()]
        for name, each in found.items()
    }


def around(one: Times, other: Times) -> Times:
    """[n, n]: the most that two neighbours add up to, within each part: one up to some boundary, the other from it."""
    sums = np.full_like(one, -INFINITE)
    for k in range(len(one)):
        np.maximum(sums, one[:, k, None] + other[None, k, :], out=sums)
    return np.clip(sums, -INFINITE, INFINITE)


def added(inside: Times) -> Times:
    """[n, n]: the most that is proved of disjoint parts of each part together; 0 where i = j, no part where i > j."""
    n = len(inside)
    sums = np.where(np.triu(np.ones((n, n)), 1) > 0, inside, -INFINITE)
    np.fill_diagonal(sums, 0)
    for k in range(n):
        np.maximum(sums, np.minimum(sums[:, k, None] + sums[None, k, :], INFINITE), out=sums)
    return sums
