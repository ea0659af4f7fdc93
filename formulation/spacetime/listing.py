"""The operators of a graph as a table: names, shapes, and the dimensions along which `op_trans` splits them.

Equal layers are told once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple

from ...model.graph.atoms import atoms
from ...model.graph.pcg import PCG, SOURCES
from .names import SplitDim, batch_of, dims_of, layer_of

COLUMNS = 'name, operator, shape, dims as in split("o", n)'


@dataclass(frozen=True, slots=True)
class Listed:
    """An input, a parameter or an operator. `note`: more about it, in the last column."""

    name: str
    operator: str
    path: str
    shape: tuple[int, ...]
    dims: tuple[SplitDim, ...]
    note: str = ""

    def cells(self, layer: str = "") -> tuple[str, ...]:
        """Its line, in columns; its name within `layer` only."""
        shape = "x".join(map(str, self.shape)) or "scalar"
        dims = ", ".join(f"{dim.name} {dim.size}" for dim in self.dims)
        return self.name.removeprefix(f"{layer}." if layer else ""), self.operator, shape, dims, self.note

    def to_json(self) -> dict[str, Any]:
        """The output of `partita show MODEL --operators --json`."""
        dims = [{"name": d.name, "size": d.size, "tensors": [list(place) for place in d.tensors]} for d in self.dims]
        return {"name": self.name, "operator": self.operator, "path": self.path, "shape": self.shape, "dims": dims}


def listing(pcg: PCG, note: Callable[[int], str] = lambda node: "") -> tuple[Listed, ...]:
    """Inputs, parameters and operators, in the graph's order; buffers are left out."""
    batch, found = batch_of(pcg), []
    for index, node in enumerate(pcg.nodes):
        if node.op != "buffer":
            dims = _numbered(pcg, index) if node.op in SOURCES else tuple(dims_of(pcg, index, batch).values())
            found.append(Listed(node.name, node.op, node.path, node.shape, dims, note(index)))
    return tuple(found)


def _numbered(pcg: PCG, index: int) -> tuple[SplitDim, ...]:
    """The dims of an input or a parameter by number; of one that is a product, its factors: `0 192, 0.0 3, 0.1 4`."""
    found, node = [], pcg.nodes[index]
    for dim, factors in enumerate(atoms(pcg)[index].dims):
        if len(factors) > 1:
            found += [SplitDim(f"{dim}.{k}", size, ((node.name, dim, k),)) for k, size in enumerate(factors)]
        elif factors:
            found.append(SplitDim(str(dim), factors[0], ((node.name, dim, 0),)))
    return tuple(found)


class _Line(NamedTuple):
    """A line of a table: columns or text, and how many entries it tells."""

    content: tuple[str, ...] | str
    entries: int = 1


def table(entries: Sequence[Listed], most: int | None = None) -> list[str]:
    """The lines of a table in aligned columns; of more than `most` the first and last, with a count of those between.

    Layers that are equal to the one before are told in one line.
    """
    lines = list(_lines(entries, 1))
    if most is not None and len(lines) > most:
        first, last = lines[: 2 * most // 3], lines[2 * most // 3 + 1 - most :]
        left = len(entries) - sum(line.entries for line in (*first, *last))
        lines = [*first, _Line(f"... {left:,} more ...", left), *last]
    rows = [line.content for line in lines if not isinstance(line.content, str)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        line.content
        if isinstance(line.content, str)
        else "  ".join(f"{cell:{width}}" for cell, width in zip(line.content, widths, strict=True)).rstrip()
        for line in lines
    ]


def _lines(entries: Sequence[Listed], depth: int) -> Iterator[_Line]:
    """The lines of entries, in groups of the layers at this depth of lists within lists."""
    told: tuple[str, list[tuple[str, ...]]] | None = None
    equal: list[str] = []
    for layer, run in groupby(entries, key=lambda entry: layer_of(entry.path, depth)):
        own = list(run)
        within = [entry.cells(layer) for entry in own]
        if layer and told is not None and within == told[1]:
            equal.append(layer)
            continue
        yield from _repeated(equal, told)
        told, equal = (layer, within) if layer else None, []
        yield from _lines(own, depth + 1) if layer else (_Line(entry.cells()) for entry in own)
    yield from _repeated(equal, told)


def _repeated(equal: Sequence[str], told: tuple[str, list[tuple[str, ...]]] | None) -> Iterator[_Line]:
    if equal and told is not None:
        first, own = told
        stacks = [list(run) for _, run in groupby(equal, key=lambda layer: layer.rpartition(".")[0])]
        names = ", ".join(run[0] if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in stacks)
        each = ", each" if len(equal) > 1 else ""
        yield _Line(f"{names}{each} as {first}", len(equal) * len(own))
