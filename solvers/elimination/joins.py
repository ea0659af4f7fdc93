"""Sums of tables minimised over a variable, in one pass: no table of the sums is made.

A row at a time: the entries of the longest kept axis. Rows that a table forbids are left out.
"""

from collections.abc import Sequence
from math import prod

import numpy as np

from .kernels import Floats, Ints, compiled, turned

Part = tuple[Floats, tuple[int, ...]]
"""A table, and what its axes are: 0, which is minimised over, or kept ones."""


class Rows:
    """Tables over the axes of `dims`, the first of which is minimised over, laid out so that rows are in one piece."""

    def __init__(self, parts: Sequence[Part], dims: tuple[int, ...]) -> None:
        kept = range(1, len(dims))
        longest = max(kept, key=dims.__getitem__, default=0)
        self.order = (0, *(a for a in kept if a != longest), *[longest] * (longest > 0))
        self.dims = np.array([*(dims[a] for a in self.order), *[1] * (not longest)])
        self.turns = [
            sorted(range(len(axes)), key=[self.order.index(a) for a in axes].__getitem__) for _, axes in parts
        ]
        tables = [turned(table, turn) for (table, _), turn in zip(parts, self.turns, strict=True)]
        self.shapes = [table.shape for table in tables]
        self.largest = max(range(len(parts)), key=lambda k: tables[k].size)
        self.large = np.ascontiguousarray(tables[self.largest]).reshape(-1)
        small = [table.reshape(-1) for k, table in enumerate(tables) if k != self.largest]
        self.small = np.concatenate(small) if small else np.zeros(0)
        self.steps = np.zeros((len(parts), 1 + len(self.dims)), np.int64)  # of the part: its start, and of each axis
        at = 0
        for k, ((_, axes), turn, table) in enumerate(zip(parts, self.turns, tables, strict=True)):
            if k != self.largest:
                self.steps[k, 0], at = at, at + table.size
            for n, a in enumerate(turn):
                self.steps[k, 1 + self.order.index(axes[a])] = prod(table.shape[n + 1 :])

    def least(self) -> Floats:
        """The table over the kept axes."""
        out = np.empty(int(np.prod(self.dims[1:])))
        _least(self.large, self.small, self.largest, self.steps, self.dims, out)
        rows, places = out.reshape(self.dims[1 : len(self.order)].tolist()), self.order[1:]
        return turned(rows, [places.index(a) for a in range(1, len(self.order))])

    def through(self, outside: Floats) -> list[Floats]:
        """The least sum through each entry of each table, given what is outside of each entry of the kept axes."""
        large, small = np.full(self.large.shape, np.inf), np.full(self.small.shape, np.inf)
        rest = turned(outside, [a - 1 for a in self.order[1:]]).reshape(-1)
        _through(self.large, self.small, self.largest, self.steps, self.dims, rest, large, small)
        found = []
        for n, (turn, shape) in enumerate(zip(self.turns, self.shapes, strict=True)):
            start = int(self.steps[n, 0])
            flat = large if n == self.largest else small[start : start + prod(shape)]
            found.append(turned(flat.reshape(shape), [turn.index(k) for k in range(len(turn))]))
        return found


@compiled
def _add(large: Floats, small: Floats, largest: int, steps: Ints, at: Ints, option: int, total: Floats) -> bool:
    """total ← the sum of the tables' rows at an option; False if some forbids all of it."""
    parts, row, n = steps.shape[0], steps.shape[1] - 1, total.shape[0]
    for k in range(parts):
        if steps[k, row] == 0:
            table = large if k == largest else small
            if table[at[k] + option * steps[k, 1]] == np.inf:
                return False
    for k in range(parts):
        table = large if k == largest else small
        first = at[k] + option * steps[k, 1]
        if steps[k, row] == 0:
            x = table[first]
            for y in range(n):
                total[y] = total[y] + x if k else x
        else:
            own = table[first : first + n]
            for y in range(n):
                total[y] = total[y] + own[y] if k else own[y]
    return True


@compiled
def _step(at: Ints, place: Ints, steps: Ints, dims: Ints) -> None:
    """Go to the next row: its place, and where it is in the tables."""
    for a in range(dims.shape[0] - 2, 0, -1):
        place[a] += 1
        at += steps[:, 1 + a]
        if place[a] < dims[a]:
            return
        at -= dims[a] * steps[:, 1 + a]
        place[a] = 0


@compiled
def _least(large: Floats, small: Floats, largest: int, steps: Ints, dims: Ints, out: Floats) -> None:
    """out ← the least sums, row by row; `steps` of the tables: their start, and of each axis."""
    n, many = dims[-1], dims[0]
    total, at, place = np.empty(n), steps[:, 0].copy(), np.zeros_like(dims)
    for r in range(out.shape[0] // n):
        row = out[r * n : (r + 1) * n]
        row[:] = np.inf
        for v in range(many):
            if _add(large, small, largest, steps, at, v, total):
                for y in range(n):
                    row[y] = total[y] if total[y] < row[y] else row[y]
        _step(at, place, steps, dims)


@compiled
def _through(
    large: Floats,
    small: Floats,
    largest: int,
    steps: Ints,
    dims: Ints,
    outside: Floats,
    of_large: Floats,
    of_small: Floats,
) -> None:
    """of_large, of_small ← the least sums through each of their entries; they hold +inf."""
    n, many, row_step = dims[-1], dims[0], steps[:, steps.shape[1] - 1]
    total, at, place = np.empty(n), steps[:, 0].copy(), np.zeros_like(dims)
    for r in range(outside.shape[0] // n):
        around = outside[r * n : (r + 1) * n]
        left = False
        for y in range(n):
            left |= around[y] < np.inf
        for v in range(many if left else 0):
            if not _add(large, small, largest, steps, at, v, total):
                continue
            least = np.inf
            for y in range(n):
                total[y] += around[y]
                least = total[y] if total[y] < least else least
            for k in range(steps.shape[0]):
                found = of_large if k == largest else of_small
                first = at[k] + v * steps[k, 1]
                if row_step[k]:
                    own = found[first : first + n]
                    for y in range(n):
                        own[y] = total[y] if total[y] < own[y] else own[y]
                elif least < found[first]:
                    found[first] = least
        _step(at, place, steps, dims)
