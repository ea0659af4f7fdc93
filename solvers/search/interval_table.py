"""What is proved of all parts of one kind at once: for all sides of their ends, as an array.

Sides are only ever split, so what was proved of a side holds for each that it was split into. Nothing else is to be
learnt then of what was known before: a query has sides of its time, or, without a limit of memory, none at all.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TypeAlias

import numpy as np

from .part_bounds import PartBounds, Query, Side
from .shortest_cut import Times

Sides: TypeAlias = tuple[Side, ...]


class Bounds:
    """`groups` tells what boundaries a kind of parts begins and ends at, `sides` what is told apart at such a one."""

    def __init__(
        self,
        known: PartBounds,
        groups: Callable[[Hashable], tuple[Hashable, Hashable]],
        sides: Callable[[Hashable], Sides],
    ) -> None:
        self.known, self.groups, self.sides = known, groups, sides
        self.arrays: dict[Hashable, dict[tuple[int, Sides], Times]] = {}

    def of(self, kind: Hashable, in_flight: int, shared: Sides) -> Times:
        """[left, right]: what is proved between each two sides."""
        own = self.arrays.setdefault(kind, {})
        if (in_flight, shared) not in own:
            left, right = self.groups(kind)
            shape = len(self.sides(left)), len(self.sides(right))
            own[in_flight, shared] = np.zeros(shape, dtype=np.int64)
            for query, answer in self.known.answers.get(kind, ()):
                self._raise(kind, query, answer.bound, [(in_flight, shared)])
        return own[in_flight, shared]

    def learn(self, kind: Hashable, query: Query, bound: int) -> None:
        """A query has this bound."""
        self._raise(kind, query, bound, [*self.arrays.get(kind, ())])

    def _raise(self, kind: Hashable, query: Query, bound: int, keys: Sequence[tuple[int, Sides]]) -> None:
        left, right = self.groups(kind)
        rows = np.array([side.within(query.left) for side in self.sides(left)])
        columns = np.array([side.within(query.right) for side in self.sides(right)])
        asked = rows[:, None] & columns
        for in_flight, shared in keys:
            if in_flight >= query.in_flight and all(a.within(b) for a, b in zip(shared, query.shared, strict=True)):
                values = self.arrays[kind][in_flight, shared]
                np.maximum(values, bound, out=values, where=asked)

    def split(self, parts: Mapping[Hashable, Sequence[int]]) -> None:
        """Of groups of boundaries, each side was split into so many."""
        for kind, own in self.arrays.items():
            for axis, group in enumerate(self.groups(kind)):
                if group in parts:
                    own.update({key: np.repeat(values, parts[group], axis=axis) for key, values in own.items()})
