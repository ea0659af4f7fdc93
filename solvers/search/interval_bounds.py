"""Operations on values of all parts at once: arrays [n, n] indexed by the boundaries of a part."""

from collections.abc import Callable, Hashable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ...formulation.network.network import INFINITE
from .shortest_cut import Times

Positions: TypeAlias = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]
"""Start and end boundaries of parts."""


def positions_by_kind(
    stages: npt.NDArray[np.bool_], kind: Callable[[int, int], Hashable], shared: Callable[[int, int], tuple[bool, ...]]
) -> dict[Hashable, list[Positions]]:
    """Start and end boundaries of the parts of every kind, one entry per set of shared weights that they have."""
    found: dict[Hashable, dict[tuple[bool, ...], list[tuple[int, int]]]] = {}
    for i, j in np.argwhere(stages).tolist():
        found.setdefault(kind(i, j), {}).setdefault(shared(i, j), []).append((i, j))
    return {
        name: [(np.array([i for i, _ in at]), np.array([j for _, j in at])) for at in each.values()]
        for name, each in found.items()
    }


def max_adjacent_sum(one: Times, other: Times) -> Times:
    """[n, n]: for each part, the largest one[i, k] + other[k, j] over its boundaries k."""
    sums = np.full_like(one, -INFINITE)
    for k in range(len(one)):
        np.maximum(sums, one[:, k, None] + other[None, k, :], out=sums)
    return np.clip(sums, -INFINITE, INFINITE)


def max_disjoint_sum(inside: Times) -> Times:
    """[n, n]: for each part, the largest sum over disjoint parts within it; 0 where i = j, -INFINITE where i > j."""
    n = len(inside)
    sums = np.where(np.triu(np.ones((n, n)), 1) > 0, inside, -INFINITE)
    np.fill_diagonal(sums, 0)
    for k in range(n):
        np.maximum(sums, np.minimum(sums[:, k, None] + sums[None, k, :], INFINITE), out=sums)
    return sums
