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
        largest = max(range(len(parts)), key=lambda k: tables[k].size)
        small = [table.reshape(-1) for k, table in enumerate(tables) if k != largest]
        self.flat = tables[largest].reshape(-1), np.concatenate(small) if small else np.zeros(0)
        self.steps = np.zeros((len(parts), 2 + len(self.dims)), np.int64)
        """Of each table: in which one of `flat` it is, from which entry on, and the step of each axis."""
        at = 0
        for k, ((_, axes), turn, table) in enumerate(zip(parts, self.turns, tables, strict=True)):
            if k != largest:
                self.steps[k, :2], at = (1, at), at + table.size
            for n, a in enumerate(turn):
                self.steps[k, 2 + self.order.index(axes[a])] = prod(table.shape[n + 1 :])

    def least(self) -> Floats:
        """The table over the kept axes."""
        out = np.empty(int(np.prod(self.dims[1:])))
        _least(self.flat, self.steps, self.dims, out)
        rows, places = out.reshape(self.dims[1 : len(self.order)].tolist()), self.order[1:]
        return turned(rows, [places.index(a) for a in range(1, len(self.order))])

    def through(self, outside: Floats, asked: Sequence[int]) -> list[Floats]:
        """The least sum through each entry of some tables, given what is outside of each entry of the kept axes."""
        largest = next(k for k, which in enumerate(self.steps[:, 0].tolist()) if not which)
        sizes = self.flat[0].size if largest in asked else 0, self.flat[1].size
        least = np.full(sizes[0], np.inf), np.full(sizes[1], np.inf)
        rest = turned(outside, [a - 1 for a in self.order[1:]]).reshape(-1)
        _through(self.flat, self.steps, self.dims, rest, least, np.array(asked))
        found = []
        for k in asked:
            (which, at), turn, shape = self.steps[k, :2].tolist(), self.turns[k], self.shapes[k]
            table = least[which][at : at + prod(shape)].reshape(shape)
            found.append(turned(table, [turn.index(k) for k in range(len(turn))]))
        return found


@compiled
def _least(flat: tuple[Floats, Floats], steps: Ints, dims: Ints, out: Floats) -> None:
    """out ← the least sums, row by row."""
    n, total = dims[-1], np.empty(dims[-1])
    at, place = steps[:, 1].copy(), np.zeros_like(dims)
    for r in range(out.shape[0] // n):
        row = out[r * n : (r + 1) * n]
        row[:] = np.inf
        for v in range(dims[0]):
            if _add(flat, steps, at, v, total):
                for y in range(n):
                    row[y] = total[y] if total[y] < row[y] else row[y]
        _step(at, place, steps, dims)


@compiled
def _through(
    flat: tuple[Floats, Floats], steps: Ints, dims: Ints, outside: Floats, least: tuple[Floats, Floats], asked: Ints
) -> None:
    """least ← the least sums through each entry of the tables of `flat` that are asked for; it holds +inf."""
    n, total, last = dims[-1], np.empty(dims[-1]), steps.shape[1] - 1
    at, place = steps[:, 1].copy(), np.zeros_like(dims)
    for r in range(outside.shape[0] // n):
        around = outside[r * n : (r + 1) * n]
        left = False
        for y in range(n):
            left |= around[y] < np.inf
        for v in range(dims[0] if left else 0):
            if not _add(flat, steps, at, v, total):
                continue
            lowest = np.inf
            for y in range(n):
                total[y] += around[y]
                lowest = total[y] if total[y] < lowest else lowest
            for k in asked:
                found, first = least[steps[k, 0]], at[k] + v * steps[k, 2]
                if steps[k, last]:
                    own = found[first : first + n]
                    for y in range(n):
                        own[y] = total[y] if total[y] < own[y] else own[y]
                elif lowest < found[first]:
                    found[first] = lowest
        _step(at, place, steps, dims)


@compiled
def _add(flat: tuple[Floats, Floats], steps: Ints, at: Ints, option: int, total: Floats) -> bool:
    """total ← the sum of the tables' rows at an option; False if some table forbids all of it."""
    parts, last, n = steps.shape[0], steps.shape[1] - 1, total.shape[0]
    for k in range(parts):
        if steps[k, last] == 0 and flat[steps[k, 0]][at[k] + option * steps[k, 2]] == np.inf:
            return False
    for k in range(parts):
        table, first = flat[steps[k, 0]], at[k] + option * steps[k, 2]
        if steps[k, last] == 0:
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
        at += steps[:, 2 + a]
        if place[a] < dims[a]:
            return
        at -= dims[a] * steps[:, 2 + a]
        place[a] = 0
