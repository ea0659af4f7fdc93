"""Transformations: what op-trans does to one operator (SuperScaler, sections 3.1 and 5).

A transformation picks one of the strategy rows derived from an operator's index notation (`strategies.strategy`).
`split` names a dimension of the graph, so one transformation applies to many operators: those with the dimension are
split, the others replicated.

A row's letters give the layout of every tensor: S(atom) split, P partial (value split), R and B replicated; the
gradient is whole at R and partial at B.
"""

from __future__ import annotations

import sys
from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol, TypeAlias

from ...model.errors import PartitaError
from ...model.graph.layout import B, P, R, S, atom_of, is_split
from ...model.graph.pcg import SOURCES
from ...model.operators.operator import operator
from ...model.wording import did_you_mean
from ..strategies.row import Row
from ..strategies.strategy import rows
from .names import BATCH, dims_of

if TYPE_CHECKING:
    from .graph import Graph
    from .op import Op

Dim: TypeAlias = "str | int | tuple[str, int] | tuple[str, int, int]"
"""A dimension: `"batch"`; dim d of a named tensor, `("layers.0.up.weight", 0)`; a factor of it,
`("layers.0.qkv.weight", 0, 1)` for the heads of three fused projections; an index of the operator's notation, `"o"`,
`"o:1"`; or a dim number of the output. `*` in a name matches any text."""


class Transformation(Protocol):
    """Chooses the strategy row of a node; messages and `Op.coordinate` refer to it by `label`."""

    @property
    def parts(self) -> int: ...

    @property
    def label(self) -> str: ...

    def row(self, graph: Graph, node: int) -> Row: ...


@dataclass(frozen=True, slots=True)
class Split:
    """Spatial split along the first of `dims` that an operator has; operators without any are replicated.

    Along the batch, gradients of replicated operators become partial sums over samples; operators linear in a sum over
    samples (a scaled loss) compute on its addends.
    """

    dims: tuple[Dim, ...]
    parts: int
    label: str

    def row(self, graph: Graph, node: int) -> Row:
        if graph.pcg.nodes[node].op == "parameter":
            letters = (_parameter_letter(graph, node, dim) for dim in self.dims)
            return Row((), next(filter(None, letters), R))
        for dim in self.dims:
            found = candidates(graph, node, dim)
            if found:
                return min(found, key=_preference)
        own = next((dim for dim in self.dims if not isinstance(dim, tuple) and dim != BATCH), None)
        if own is not None:
            raise PartitaError(f"{_where(graph, node)} has no dimension {own!r}: {_known(graph, node, own)}")
        if BATCH in self.dims and node in graph.sums:
            summed = [i in graph.sums for i in graph.pcg.nodes[node].inputs]
            for row in rows(graph.pcg, node):
                if row.output == P and row.index is None and [letter == P for letter in row.inputs] == summed:
                    return row
        return replicated(graph, node, addends=BATCH in self.dims)


@dataclass(frozen=True, slots=True)
class MicroBatches:
    """Split along the batch, but the parts stay one operator, which computes them one after another."""

    parts: int
    label: str

    def row(self, graph: Graph, node: int) -> Row:
        return Split((BATCH,), self.parts, self.label).row(graph, node)


@dataclass(frozen=True, slots=True)
class Replicate:
    """Every part computes the whole; with `addends` each produces an addend of the gradient."""

    parts: int
    addends: bool
    label: str

    def row(self, graph: Graph, node: int) -> Row:
        return replicated(graph, node, self.addends)


@dataclass(frozen=True, slots=True)
class SplitValue:
    """Value split: the operator is linear in one operand, so its parts map addends to addends."""

    operand: str
    parts: int
    label: str

    def row(self, graph: Graph, node: int) -> Row:
        names = _operands(graph, node)
        if self.operand not in names:
            known = f"it has {', '.join(names)}{did_you_mean(self.operand, names)}"
            raise PartitaError(f"{_where(graph, node)} has no operand {self.operand!r}; {known}")
        place = names.index(self.operand)
        for row in rows(graph.pcg, node):
            if not row.special and row.output == P and row.inputs[place] == P and row.index is None:
                return row
        raise PartitaError(
            f"{_where(graph, node)} is not linear in {self.operand!r} alone: it cannot be split into addends"
        )


@dataclass(frozen=True, slots=True)
class Own:
    """A user-defined transformation: how operands are cut and results joined.

    A cut is a dim, "whole" or "addends". The transformation is proved like a substitution before it is applied.
    """

    inputs: tuple[int | str, ...]
    output: int | str
    parts: int
    label: str

    def row(self, graph: Graph, node: int) -> Row:
        pcg = graph.pcg
        sources = pcg.nodes[node].inputs
        if len(self.inputs) != len(sources):
            raise PartitaError(f"{_where(graph, node)} has {len(sources)} operands, not {len(self.inputs)}")
        shared = B if self.output != "whole" else R
        letters = [
            self._letter(graph, i, how, shared if pcg.nodes[i].gradient and pcg.nodes[node].gradient else R)
            for i, how in zip(sources, self.inputs, strict=True)
        ]
        row = Row(tuple(letters), self._letter(graph, node, self.output, R), ("own", 0))
        derived = {known.inputs for known in rows(pcg, node) if known.output == row.output and not known.special}
        if row.inputs not in derived:
            graph.prove(node, row, self.label)
        return row

    def _letter(self, graph: Graph, node: int, how: int | str, shared: int) -> int:
        if how in ("whole", "addends"):
            return shared if how == "whole" else P
        found = graph.atoms[node]
        if not isinstance(how, int) or not 0 <= how < len(found.dims) or not found.dims[how]:
            hint = did_you_mean(how, ("whole", "addends"))
            raise PartitaError(
                f"{self.label}: {how!r} is no cut of {graph.pcg.nodes[node].name!r}, of shape "
                f"{graph.pcg.nodes[node].shape}{hint} (a cut is a dim that can be split, 'whole' or 'addends')"
            )
        return S(found.of_dim(how).start)


@dataclass(frozen=True, slots=True)
class SpecialStrategy:
    """A special strategy of an operator: its parts exchange data while they run."""

    strategy: str
    parts: int
    dim: Dim | None
    label: str

    def row(self, graph: Graph, node: int) -> Row:
        known = rows(graph.pcg, node) if graph.pcg.nodes[node].op not in SOURCES else []
        found = [row for row in known if row.special == self.strategy]
        if not found:
            special = sorted({row.special for row in known if row.special})
            has = f"it has {', '.join(special)}{did_you_mean(self.strategy, special)}" if special else "it has none"
            raise PartitaError(f"{_where(graph, node)} has no special strategy {self.strategy!r}: {has}")
        if self.dim is None:
            return found[0]
        along = [row for row in found if row in candidates(graph, node, self.dim, special=True)]
        if not along:
            raise PartitaError(f"{_where(graph, node)}: {self.strategy} does not split {_text(self.dim)}")
        return along[0]


@dataclass(frozen=True, slots=True)
class Chosen:
    """One of an operator's own rows, as a planner chose it; of a parameter, the letter by which it is cut."""

    given: Row
    parts: int
    label: str

    def row(self, graph: Graph, node: int) -> Row:
        return self.given


def split(dim: Dim | list[Dim], parts: int, label: str = "") -> Split:
    """Split operators along a dimension into `parts`, equal if the size divides; operators without it are replicated.

    Given a list, each operator is split along the first dimension it has. If the dimension occurs several times
    (queries and keys, rows and columns of pairs), the first dim of the result is split. `split("batch", n)` on an
    operator without samples (a position table) makes its gradient partial. Raises PartitaError for a malformed
    dimension; when applied, for an unknown one or one too small for `parts`.
    """
    dims = tuple(dim) if isinstance(dim, list) else (dim,)
    if not dims or not all(map(_is_dim, dims)):
        raise PartitaError(
            f"{dim!r} is no dimension: it is 'batch', (tensor, dim), (tensor, dim, factor), the number of a dim of the "
            "result, or an index of the operator such as 'o'; or a list of these"
        )
    return Split(dims, _count(parts), label or " or ".join(map(_text, dims)))


def micro_batches(count: int, label: str = "micro") -> MicroBatches:
    """Split the batch into equal parts that stay one operator, which computes them one after another.

    The plan says once for all micro-batches what it does with one; `in_order` orders them. It is checked, predicted and
    emitted as quickly with a thousand of them as with three. `split("batch", n)` makes operators that can differ.
    """
    return MicroBatches(_count(count), label)


def replicate(parts: int, *, addends: bool = False, label: str = "replica") -> Replicate:
    """Every part computes the whole; with `addends` each produces an addend of the gradient."""
    return Replicate(_count(parts), addends, label)


def split_value(operand: str, parts: int, label: str = "") -> SplitValue:
    """The parts read addends of an operand (`"x"` of a linear) and write addends of the result."""
    return SplitValue(operand, _count(parts), label or f"addends of {operand}")


def special(strategy: str, parts: int, dim: Dim | None = None, label: str = "") -> SpecialStrategy:
    """A special strategy of an operator, such as `halo`, `ring` or `vocabulary`: its parts exchange data as they run.

    `dim`: what it splits, if it can split several. All parts run at once, so each needs a device of its own.
    """
    return SpecialStrategy(strategy, _count(parts), dim, label or strategy)


def transformation(inputs: Sequence[int | str], output: int | str, parts: int, label: str = "own") -> Own:
    """A user-defined transformation: for every operand and the output the split dim, "whole" or "addends".

    It is proved for all sizes before it is applied.
    """
    return Own(tuple(inputs), output, _count(parts), label)


def replicated(graph: Graph, node: int, addends: bool = False) -> Row:
    """The row in which every part computes the whole."""
    pcg = graph.pcg
    sources = pcg.nodes[node].inputs
    letters = tuple(B if addends and pcg.nodes[i].gradient and pcg.nodes[node].gradient else R for i in sources)
    return Row(letters, B if addends and pcg.nodes[node].gradient else R)


def _is_dim(dim: object) -> bool:
    if isinstance(dim, tuple):
        return len(dim) in (2, 3) and isinstance(dim[0], str) and all(type(k) is int for k in dim[1:])
    if isinstance(dim, str):
        index, _, position = dim.partition(":")
        return bool(index) and (not position or position.isdecimal())
    return type(dim) is int


def _count(parts: int) -> int:
    if isinstance(parts, bool) or not isinstance(parts, int) or parts < 1:
        raise PartitaError(f"the number of parts must be a positive integer, not {parts!r}")
    return parts


def _text(dim: Dim) -> str:
    if isinstance(dim, str):
        return dim
    return f"dim {dim}" if isinstance(dim, int) else f"{dim[0]}.{'.'.join(map(str, dim[1:]))}"


def _preference(row: Row) -> tuple[int, int]:
    """Sort key: most tensors split, then the first dim of the result; sums last."""
    return -sum(map(is_split, (*row.inputs, row.output))), row.output if is_split(row.output) else sys.maxsize


def candidates(graph: Graph, node: int, dim: Dim, special: bool = False) -> list[Row]:
    """The rows of a node that split a dimension; `special`: those of special strategies instead."""
    pcg = graph.pcg
    known = (row for row in rows(pcg, node) if bool(row.special) is special)
    found = [row for row in known if any(map(is_split, (*row.inputs, row.output)))]
    if isinstance(dim, int):
        places = graph.atoms[node].of_dim(dim) if 0 <= dim < len(graph.atoms[node].dims) else range(0)
        return [row for row in found if is_split(row.output) and atom_of(row.output) in places][:1]
    if isinstance(dim, str) and dim != BATCH:
        index, _, position = dim.partition(":")
        return [row for row in found if row.index == (index, int(position or 0))]
    wanted = graph.dimension(dim)
    return [row for row in found if splits(graph, node, row, wanted)]


def splits(graph: Graph, node: int, row: Row, dims: Container[int]) -> bool:
    """True if a row splits one of some dimensions, given by their numbers."""
    tensors = (*graph.pcg.nodes[node].inputs, node)
    return any(
        is_split(letter) and graph.dimensions[tensor][atom_of(letter)] in dims
        for letter, tensor in zip((*row.inputs, row.output), tensors, strict=True)
    )


def with_own_statistics(op: Op, row: Row, parts: int) -> Row:
    """The row of an operator that is cut into parts of its samples, where micro-batches have their own statistics.

    Parts of several micro-batches give, or read, the sums of their own; parts of one micro-batch give addends.
    """
    graph, node = op.graph, op.of
    sums = {"moments": op.node, "batch_norm": node.inputs[1] if len(node.inputs) > 1 else 0}.get(node.op)
    if sums is None or graph.pcg.nodes[sums].get("parts", 1) == 1 or not is_split(row.inputs[0]):
        return row
    of, dims = graph.atoms[sums].of_dim(1)[-1], graph.dimensions[node.inputs[0]]
    several = op.mask(None if sums == op.node else 1).sizes[of]
    if dims[atom_of(row.inputs[0])] not in graph.batch or several == 1 or several % parts:
        return row
    return (
        replace(row, output=S(of)) if sums == op.node else replace(row, inputs=(row.inputs[0], S(of), *row.inputs[2:]))
    )


def _parameter_letter(graph: Graph, node: int, dim: Dim) -> int:
    known = graph.atoms[node]
    if isinstance(dim, int):
        if not 0 <= dim < len(known.dims) or not known.dims[dim]:
            raise PartitaError(f"{graph.pcg.nodes[node].name} of shape {graph.pcg.nodes[node].shape} has no dim {dim}")
        return S(known.of_dim(dim).start)
    if isinstance(dim, str) and dim != BATCH:
        hint = did_you_mean(dim, (BATCH,))
        raise PartitaError(f"a parameter has dims by number (0, 1) or by name, not {dim!r}{hint}")
    wanted = graph.dimension(dim)
    return next((S(a) for a, number in enumerate(graph.dimensions[node]) if number in wanted), R)


def _operands(graph: Graph, node: int) -> tuple[str, ...]:
    found = graph.pcg.nodes[node]
    return operator(found.op).named(found) if found.op not in SOURCES else ()


def _where(graph: Graph, node: int) -> str:
    return f"{graph.pcg.nodes[node].op} {graph.pcg.nodes[node].name!r}"


def _known(graph: Graph, node: int, dim: object) -> str:
    """The end of a message about a dimension that a node lacks: those that it has, and the nearest."""
    names = list(dims_of(graph.pcg, node, graph.batch))
    return f"it has {', '.join(names)}{did_you_mean(dim, names)}" if names else "it cannot be split"
