"""One step of elimination: the tables around a variable, summed and minimised over it."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from math import prod
from typing import TypeVar

import numpy as np

from ..work import CALL, ENTRY, spend
from .joins import Rows
from .kernels import Floats, Ints, min_plus, turned

_Table = TypeVar("_Table", Floats, Ints)

_PRODUCT = 1 << 13  # a product of fewer entries takes less time than to call it


@dataclass(frozen=True, slots=True)
class Bucket:
    """out(x_1..x_k) = min over v of the sum of the inputs; axis 0 is v, axes 1..k are kept.

    `inputs` are slots with the axes of their tables, `dims` the sizes of all axes. `variable` is v; None for a join
    without minimisation, and in powers of a chain's copy (`half` > 0), where v is the boundary after the first `half`
    copies, which are the first input. A bucket with `start` > 0 has one input, a power whose first copy has that index.
    Switches make the table `modes` times as large. `kept` are the variables of axes 1..k (empty for powers).
    """

    inputs: tuple[tuple[int, tuple[int, ...]], ...]
    dims: tuple[int, ...]
    variable: int | None
    chain: int = 0
    half: int = 0
    start: int = 0
    modes: int = 1
    kept: tuple[int, ...] = ()


class Join:
    """A bucket with its tables, evaluated forward and backward.

    If two kept axes x, y share no input with v, the join is a min-plus product [x, v] · [v, y] for each choice of the
    other kept axes (the batch); else its sums are formed row by row.
    """

    def __init__(self, bucket: Bucket, slots: Sequence[Floats]) -> None:
        self.dims = bucket.dims
        self.kept = tuple(range(1, len(bucket.dims)))
        self.parts = [(slots[slot], axes) for slot, axes in bucket.inputs]
        self.inner = [k for k, (_, axes) in enumerate(self.parts) if 0 in axes]
        self.outer = [k for k, (_, axes) in enumerate(self.parts) if 0 not in axes]
        pairs = [p for p in combinations(self.kept, 2) if not any({*p} <= {*self.parts[k][1]} for k in self.inner)]
        pair = max(pairs, key=lambda p: self.dims[p[0]] * self.dims[p[1]], default=None)
        called = 0 if pair is None else self.dims[0] * self.dims[pair[0]] * self.dims[pair[1]]
        small = len(self.kept) > 2 and called <= _PRODUCT
        self.pair = None if small else pair
        self.batch = tuple(a for a in self.kept if a not in (self.pair or ()))

    def best(self, values: Sequence[int]) -> int:
        """The best option of v given those of the kept axes; the lowest of equals."""
        total = np.zeros(self.dims[0])
        for table, axes in (self.parts[k] for k in self.inner):
            total += table[tuple(slice(None) if a == 0 else values[a - 1] for a in axes)]
        return int(np.argmin(total))

    def forward(self) -> Floats:
        """The table over the kept axes."""
        spend(CALL + ENTRY * prod(self.dims))
        shape = self.dims[1:]
        if self.pair is None:
            out = self._rows().least() if self.inner else np.zeros(shape)
        else:
            order = (*self.batch, *self.pair)
            rows = np.empty([self.dims[a] for a in order])
            laid = self._laid(self.pair)
            for index in np.ndindex(rows.shape[:-2]):
                rows[index] = min_plus(*self._factors(laid, index))
            out = turned(rows, [order.index(a) for a in self.kept])
        return self._with_outer(out)

    def backward(self, outside: Floats, through: Floats, asked: Sequence[int]) -> list[Floats]:
        """The best total through each entry of the inputs that are asked for.

        Given are those outside of and through each entry of out.
        """
        spend(CALL + 2 * ENTRY * prod(self.dims))
        found = {k: np.full(self.parts[k][0].shape, np.inf) for k in asked}
        for k in self.outer:
            if k in found:
                _lower(found[k], self.parts[k][1], through, self.kept)
        inner = [n for n, k in enumerate(self.inner) if k in found]
        if inner:
            found |= self._through_inner(self._with_outer(outside), inner)
        return [found[k] for k in asked]

    def _through_inner(self, outside: Floats, asked: Sequence[int]) -> dict[int, Floats]:
        """As `backward`, of some inner inputs, by their places among these."""
        found: dict[int, Floats] = {}
        if self.pair is None:
            tables = self._rows().through(outside, asked)
            return {self.inner[n]: table for n, table in zip(asked, tables, strict=True)}
        order, laid = (*self.batch, *self.pair), self._laid(self.pair)
        rest = turned(outside, [a - 1 for a in order])
        least = {k: np.full(table.shape, np.inf) for k, (table, _) in laid.items()}
        for index in np.ndindex(rest.shape[:-2]):
            a, b = self._factors(laid, index)
            left = a + min_plus(rest[index], turned(b, (1, 0)))
            right = b + min_plus(turned(a, (1, 0)), rest[index])
            for k, (_, axes) in laid.items():
                target, own = least[k][self._at(axes, index)], axes[sum(a in self.batch for a in axes) :]
                total, both = (right, (0, self.pair[1])) if self.pair[1] in own else (left, (self.pair[0], 0))
                _lower(target, own, total, both)
        for k in (self.inner[n] for n in asked):
            found[k] = turned(least[k], [laid[k][1].index(a) for a in self.parts[k][1]])
        return found

    def _with_outer(self, table: Floats) -> Floats:
        for t, axes in (self.parts[k] for k in self.outer):
            table = table + spread(t, axes, self.kept)
        return table

    def _rows(self) -> Rows:
        """The inner inputs as rows."""
        return Rows([self.parts[k] for k in self.inner], self.dims)

    def _laid(self, pair: tuple[int, int]) -> dict[int, tuple[Floats, tuple[int, ...]]]:
        """The inner inputs with axes of the batch first, then [x, v] or [v, y] or [v]."""
        found = {}
        for k in self.inner:
            table, axes = self.parts[k]
            order = tuple(a for a in (*self.batch, pair[0], 0, pair[1]) if a in axes)
            found[k] = turned(table, [axes.index(a) for a in order]), order
        return found

    def _at(self, axes: tuple[int, ...], index: tuple[int, ...]) -> tuple[int, ...]:
        """Where a choice of the batch is in an input of such axes."""
        return tuple(i for a, i in zip(self.batch, index, strict=True) if a in axes)

    def _factors(
        self, laid: dict[int, tuple[Floats, tuple[int, ...]]], index: tuple[int, ...]
    ) -> tuple[Floats, Floats]:
        """The factors [x, v] and [v, y] of a choice of the batch."""
        assert self.pair is not None
        sides: tuple[list[Floats], list[Floats]] = [], []
        x, y = self.pair
        for table, axes in laid.values():
            part = table[self._at(axes, index)]
            sides[y in axes].append(part if y in axes or x in axes else part[None])
        return _sum(sides[0], (self.dims[x], self.dims[0])), _sum(sides[1], (self.dims[0], self.dims[y]))


def spread(table: _Table, axes: tuple[int, ...], order: tuple[int, ...]) -> _Table:
    """A view with the axes in `order`, of size 1 where the table lacks them; any numbers may stand for axes."""
    turned = table.transpose([axes.index(a) for a in order if a in axes])
    return turned[tuple(slice(None) if a in axes else None for a in order)]


def _sum(parts: Sequence[Floats], shape: tuple[int, ...]) -> Floats:
    """The sum of tables of that shape, or spread to it; a table itself where it is alone."""
    if len(parts) == 1 and parts[0].shape == shape:
        return parts[0]
    total = np.zeros(shape)
    for part in parts:
        total += part
    return total


def _lower(target: Floats, axes: tuple[int, ...], total: Floats, order: tuple[int, ...]) -> None:
    """target = min(target, `total` minimised over the axes that target lacks)."""
    least = total.min(axis=tuple(k for k, a in enumerate(order) if a not in axes))
    left = tuple(a for a in order if a in axes)
    np.minimum(target, least.transpose([left.index(a) for a in axes]), out=target)
