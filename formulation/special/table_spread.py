"""Joined tables spread over the coordinates of an axis, and the load of each coordinate.

A *unit* is some columns of one table; equal units of a table are interchangeable, and a piece is a run of them on one
coordinate. Every coordinate looks up all samples in its units, so its time and what it sends are proportional to its
columns, of whatever tables; its memory is its columns times the rows of their tables.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import gcd
from typing import NamedTuple, TypeAlias

import numpy as np

from ...model.errors import PartitaError
from ...model.graph.dtypes import ITEMSIZE
from ...model.machine.machine import Device
from ...model.machine.precision import Precision

NEAR = 1.01
"""Units are as wide as possible with at most this times the fewest columns on the busiest coordinate."""


class ColumnRange(NamedTuple):
    """Columns `start` to `stop` (exclusive) of the table of this number."""

    table: int
    start: int
    stop: int


class CoordinateLoad(NamedTuple):
    """Columns, elements and units of a coordinate."""

    columns: int
    elements: int
    units: int


@dataclass(frozen=True)
class TableSpread:
    """`pieces[c]` lie on coordinate c; table t has `rows[t]` rows and `width` columns.

    PartitaError: pieces overlap, miss columns, or leave a coordinate empty.
    """

    rows: tuple[int, ...]
    width: int
    pieces: tuple[tuple[ColumnRange, ...], ...]

    def __post_init__(self) -> None:
        reached = dict.fromkeys(range(len(self.rows)), 0)
        for piece in sorted(piece for own in self.pieces for piece in own):
            if not 0 <= piece.table < len(self.rows) or not 0 <= piece.start < piece.stop <= self.width:
                raise PartitaError(f"columns {piece.start} to {piece.stop} are not in table {piece.table}")
            before = reached[piece.table]
            if piece.start != before:
                how = "overlap" if piece.start < before else "are missing"
                places = sorted((before, piece.start))
                raise PartitaError(f"columns {places[0]} to {places[1]} of table {piece.table} {how}")
            reached[piece.table] = piece.stop
        short = next((table for table, stop in reached.items() if stop < self.width), None)
        if short is not None:
            raise PartitaError(f"columns {reached[short]} to {self.width} of table {short} are missing")
        empty = next((c for c, own in enumerate(self.pieces) if not own), None)
        if empty is not None:
            raise PartitaError(f"coordinate {empty} has no columns")

    @cached_property
    def unit(self) -> int:
        """The width of all units: the largest that divides every piece."""
        return gcd(self.width, *(bound for own in self.pieces for piece in own for bound in piece[1:]))

    @cached_property
    def loads(self) -> tuple[CoordinateLoad, ...]:
        """The load of every coordinate."""
        return tuple(load(self.rows, own, self.unit) for own in self.pieces)

    @cached_property
    def largest(self) -> CoordinateLoad:
        """The largest number of columns, of elements and of units on any coordinate."""
        return CoordinateLoad(*(max(amounts) for amounts in zip(*self.loads, strict=True)))

    def coordinates(self, table: int) -> tuple[int, ...]:
        """The coordinates on which a table lies."""
        return tuple(c for c, own in enumerate(self.pieces) if any(piece.table == table for piece in own))


TableSpreader: TypeAlias = Callable[[tuple[int, ...], int, int, int], TableSpread | None]
"""(rows of the tables, their width, size of an axis, `row_columns`) -> a spread; None if there are too few columns."""


def row_columns(device: Device, precision: Precision, sparse: bool) -> int:
    """The columns that a look-up moves at least, those of a transaction; `sparse` tables are read as stored."""
    return -(-device.transaction_bytes // ITEMSIZE[precision.master if sparse else precision.compute])


def load(rows: Sequence[int], own: Iterable[ColumnRange], unit: int) -> CoordinateLoad:
    """The load of a coordinate with these pieces."""
    widths = [(rows[piece.table], piece.stop - piece.start) for piece in own]
    columns = sum(width for _, width in widths)
    return CoordinateLoad(columns, sum(count * width for count, width in widths), columns // unit)


def fewest_columns(tables: int, width: int, ranks: int, unit: int = 1) -> int:
    """Lower bound on the columns of the busiest coordinate, for units of `unit` columns."""
    return unit * -(-tables * width // unit // ranks)


def unit_widths(tables: int, width: int, ranks: int, row: int = 1) -> tuple[int, ...]:
    """The widths of units that cost (nearly) no time, widest first; none if a coordinate would be left empty.

    A look-up moves a multiple of `row` columns.
    """
    if tables * width < ranks:
        return ()
    units = (u for u in range(width, 0, -1) if width % u == 0)
    moved = {u: fewest_columns(tables, width, ranks, u) // u * -(-u // row) * row for u in units}
    return tuple(u for u, columns in moved.items() if columns <= NEAR * min(moved.values()))


def fewest_elements(rows: Sequence[int], width: int, ranks: int) -> int:
    """Lower bound on the elements of the fullest coordinate."""
    return -(-sum(rows) * width // ranks)


def of_counts(rows: tuple[int, ...], width: int, counts: Sequence[Sequence[int]]) -> TableSpread:
    """The spread with `counts[c][t]` units of table t on coordinate c, one coordinate's columns after another's.

    Coordinates are reordered so that those of each table lie close together.
    """
    order = _together([frozenset(t for t, count in enumerate(own) if count) for own in counts])
    units, reached, pieces = [sum(column) for column in zip(*counts, strict=True)], [0] * len(rows), []
    for own in (counts[c] for c in order):
        here = []
        for table, count in enumerate(own):
            if count:
                start, step = reached[table], width // units[table]
                reached[table] += count * step
                here.append(ColumnRange(table, start, reached[table]))
        pieces.append(tuple(here))
    return TableSpread(rows, width, tuple(pieces))


def _together(tables: Sequence[frozenset[int]]) -> list[int]:
    """An order of coordinates with these tables in which neighbours share tables: local search by swaps."""
    order = list(range(len(tables)))
    shared = [t for t in frozenset().union(*tables) if sum(t in own for own in tables) > 1]
    has = np.array([[t in own for t in shared] for own in tables])

    def length() -> int:
        here = has[order]
        return int((len(order) - 1 - here[::-1].argmax(axis=0) - here.argmax(axis=0)).sum())

    least = length()
    for _ in range(len(order)):
        before = least
        for a in range(len(order)):
            for b in range(a):
                order[a], order[b] = order[b], order[a]
                now = length()
                if now < least:
                    least = now
                else:
                    order[a], order[b] = order[b], order[a]
        if least == before:
            break
    return order
