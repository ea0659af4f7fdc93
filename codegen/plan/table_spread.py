"""Joined tables spread over an axis: from a plan's choice to the pieces of every coordinate, and back; as text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, TypeAlias

from ...formulation.special.table_spread import ColumnRange, TableSpread
from ...formulation.weights.storage import stored_itemsize
from ...model.errors import PartitaError
from ...model.graph.joined_tables import table_rows
from ...model.graph.layout import B, P, R
from ...model.graph.pcg import Node
from ...model.graph.sparse_tables import sparse_tables
from ...model.machine.precision import precision

if TYPE_CHECKING:
    from .plan import Plan

At: TypeAlias = tuple[tuple[str, int, int, int], ...]
"""Pieces: name of the table, first column, the one after the last, coordinate."""


def at_of(node: Node, spread: TableSpread) -> At:
    """The pieces of a spread by the names of the tables."""
    names = tuple(node.originals)
    return tuple((names[p.table], p.start, p.stop, c) for c, own in enumerate(spread.pieces) for p in own)


def spread_of(node: Node, at: At, ranks: int) -> TableSpread:
    """The pieces of each coordinate of an axis. Raises PartitaError if they do not make up the node's tables."""
    numbers = {name: number for number, name in enumerate(node.originals)}
    pieces: list[list[ColumnRange]] = [[] for _ in range(ranks)]
    for name, start, stop, coordinate in at:
        if name not in numbers or not 0 <= coordinate < ranks:
            raise PartitaError(f"parameter {node.name!r}: no table {name!r}, or no coordinate {coordinate} of {ranks}")
        pieces[coordinate].append(ColumnRange(numbers[name], start, stop))
    try:
        return TableSpread(table_rows(node), node.shape[1], tuple(map(tuple, pieces)))
    except PartitaError as error:
        raise PartitaError(f"parameter {node.name!r}: {error}") from error


def spread_axis(plan: Plan, index: int) -> int | None:
    """The axis over which the tables that a parameter joins are spread."""
    choice, sizes = plan.choices[index], plan.placement.sizes
    return next((a for a, x in enumerate(choice.output) if x == P and sizes[a] > 1), None) if choice.at else None


def plan_spread(plan: Plan, index: int) -> TableSpread | None:
    """How a plan spreads the tables that a parameter joins, if it does."""
    axis = spread_axis(plan, index)
    if axis is None:
        return None
    return spread_of(plan.graph.nodes[index], plan.choices[index].at, plan.placement.sizes[axis])


def check_spread(plan: Plan, index: int) -> None:
    """Raise PartitaError unless spread tables are read as they are stored, and their pieces make them up."""
    node, choice, sizes = plan.graph.nodes[index], plan.choices[index], plan.placement.sizes
    axes = [axis for axis, x in enumerate(choice.output) if x == P and sizes[axis] > 1]
    if bool(axes) != bool(choice.at):
        raise PartitaError(f"parameter {node.name!r}: tables have pieces where they are spread (P), and only there")
    if not table_rows(node):
        return
    read = [plan.choices[i].inputs[0] for i in plan.graph.consumers[index]]
    for axis, size in enumerate(sizes):
        spread = size > 1 and P in {layout[axis] for layout in (choice.output, choice.given, *read)}
        if spread and ({choice.given, *read} != {choice.output} or choice.regather):
            raise PartitaError(f"parameter {node.name!r}: spread tables must be read as they are stored")
    if axes and (len(axes) > 1 or not {x for x, n in zip(choice.output, sizes, strict=True) if n > 1} <= {R, B, P}):
        raise PartitaError(
            f"parameter {node.name!r}: tables can be spread over one axis only, and are whole on the others"
        )
    if axes:
        spread_of(node, choice.at, sizes[axes[0]])


def places_text(spread: TableSpread, table: int) -> str:
    """Where a table lies: `@0..2` at coordinates 0 to 2, `@0,4..5`."""
    return "@" + ",".join(f"{a}..{b}" if a < b else str(a) for a, b in _runs(spread.coordinates(table)))


def _runs(numbers: Iterable[int]) -> list[tuple[int, int]]:
    found = sorted(numbers)
    ends = [i for i, (a, b) in enumerate(pairwise(found), 1) if b != a + 1]
    return [(found[a], found[b - 1]) for a, b in pairwise([0, *ends, len(found)])]


def places(plan: Plan, index: int) -> dict[str, str]:
    """Where each spread table of a parameter lies, by name."""
    spread = plan_spread(plan, index)
    if spread is None:
        return {}
    return {name: places_text(spread, table) for table, name in enumerate(plan.graph.nodes[index].originals)}


def spread_argument(plan: Plan, index: int, name: str) -> list[str]:
    """The argument of the program's `weight` for spread tables; `name` is the expression of the weight's name."""
    axis = spread_axis(plan, index)
    return [] if axis is None else [f"spread=(SPREAD[{name}], {plan.axes[axis]})"]


def loads_text(plan: Plan, index: int, axis: str) -> str:
    """The range of columns and of bytes that the coordinates of an axis have."""
    spread = plan_spread(plan, index)
    assert spread is not None
    item = stored_itemsize(precision(plan.dtype), sparse=index in sparse_tables(plan.graph))
    sizes = [load.elements * item for load in spread.loads]
    unit, scale = next((word, size) for word, size in _UNITS if sum(sizes) >= size)
    columns = _range([load.columns for load in spread.loads])
    return (
        f"Over {axis}: {columns} of {len(spread.rows) * spread.width:,} columns, "
        f"{_range([size / scale for size in sizes])} of {sum(sizes) / scale:,.2f} {unit}; "
        f"in units of {spread.unit} columns."
    )


_UNITS = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10), ("B", 1))


def _range(numbers: Sequence[float]) -> str:
    ends = (f"{x:,}" if isinstance(x, int) else f"{x:,.2f}" for x in (min(numbers), max(numbers)))
    return " to ".join(dict.fromkeys(ends))
