"""Lower bounds of many parts at once, as numpy arrays.

Arrays [n, n] are indexed by the boundaries of a part. `BoundTables` hold an array per kind of part over the layout sets
of both ends: these are only ever split, so a bound proved for a set holds for every set it was split into.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ...formulation.network.network import INFINITE
from .part_bounds import LayoutSet, PartBounds, Query
from .shortest_cut import Times

LayoutSets: TypeAlias = tuple[LayoutSet, ...]
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
    """[n, n]: for each part, the largest one[i, k] + other[k, j] over its boundaries k; -INFINITE where i > j."""
    sums = np.full_like(one, -INFINITE)
    for k in range(len(one)):
        within = sums[: k + 1, k:]  # elsewhere -INFINITE would cancel what is INFINITE
        np.maximum(within, one[: k + 1, k, None] + other[None, k, k:], out=within)
    return np.clip(sums, -INFINITE, INFINITE)


def max_disjoint_sum(inside: Times) -> Times:
    """[n, n]: for each part, the largest sum over disjoint parts within it; 0 where i = j, -INFINITE where i > j."""
    n = len(inside)
    sums = np.where(np.triu(np.ones((n, n)), 1) > 0, inside, -INFINITE)
    np.fill_diagonal(sums, 0)
    for k in range(n):
        np.maximum(sums, np.minimum(sums[:, k, None] + sums[None, k, :], INFINITE), out=sums)
    return sums


class BoundTables:
    """Arrays of bounds by kind. `groups(kind)`: the groups of its end boundaries; `sides(group)`: the sets there."""

    def __init__(
        self,
        known: PartBounds,
        groups: Callable[[Hashable], tuple[Hashable, Hashable]],
        sides: Callable[[Hashable], LayoutSets],
    ) -> None:
        self.known, self.groups, self.sides = known, groups, sides
        self.arrays: dict[Hashable, dict[tuple[int, LayoutSets], Times]] = {}

    def of(self, kind: Hashable, in_flight: int, shared: LayoutSets) -> Times:
        """[left sets, right sets]: lower bounds."""
        own = self.arrays.setdefault(kind, {})
        if (in_flight, shared) not in own:
            left, right = self.groups(kind)
            shape = len(self.sides(left)), len(self.sides(right))
            own[in_flight, shared] = np.zeros(shape, dtype=np.int64)
            for query, answer in self.known.answers.get(kind, ()):
                self._raise(kind, query, answer.bound, [(in_flight, shared)])
        return own[in_flight, shared]

    def learn(self, kind: Hashable, query: Query, bound: int) -> None:
        """Record the bound of a query."""
        self._raise(kind, query, bound, [*self.arrays.get(kind, ())])

    def _raise(self, kind: Hashable, query: Query, bound: int, keys: Sequence[tuple[int, LayoutSets]]) -> None:
        left, right = self.groups(kind)
        rows = np.array([side.is_subset_of(query.left) for side in self.sides(left)])
        columns = np.array([side.is_subset_of(query.right) for side in self.sides(right)])
        asked = rows[:, None] & columns
        for in_flight, shared in keys:
            if in_flight >= query.in_flight and all(
                a.is_subset_of(b) for a, b in zip(shared, query.shared, strict=True)
            ):
                values = self.arrays[kind][in_flight, shared]
                np.maximum(values, bound, out=values, where=asked)

    def split(self, parts: Mapping[Hashable, Sequence[int]]) -> None:
        """Follow a split: the number of sets that each set of these groups of boundaries became."""
        for kind, own in self.arrays.items():
            for axis, group in enumerate(self.groups(kind)):
                if group in parts:
                    own.update({key: np.repeat(values, parts[group], axis=axis) for key, values in own.items()})
