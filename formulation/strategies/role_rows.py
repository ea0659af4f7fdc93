"""Which rows an operator may take on a mesh axis that has a role, and how weights may be stored there.

A row is judged by the graph-wide dimensions that it splits (`model.graph.atoms.dimensions`): samples, positions, or
what weights have, such as heads and channels.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from ...model.graph.atoms import atoms, dimensions, numbered_in
from ...model.graph.boundaries import boundaries
from ...model.graph.dtypes import FLOATS
from ...model.graph.layout import B, atom_of, is_split
from ...model.graph.pcg import PCG, Node
from ...model.operators.operator import operator
from ..parallelism import Role
from .row import Row
from .strategy import rows

Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class DimensionKinds:
    """Numbers of the graph-wide dimensions that count samples, positions in a sample, and rows or columns of weights.

    `residual`: those of weights that the tensors between layers have too.
    """

    samples: frozenset[int]
    positions: frozenset[int]
    weights: frozenset[int]
    residual: frozenset[int]


def dimension_kinds(graph: PCG) -> DimensionKinds:
    """Positions are the dims of token ids that do not count samples, and dims that no parameter has."""
    return _kinds(numbered_in(graph))


@lru_cache(maxsize=64)
def _kinds(graph: PCG) -> DimensionKinds:
    known, numbered = atoms(graph), dimensions(graph)
    samples = {numbered[i][a] for i, of in enumerate(known) for a in of.batch}

    def dimensions_of(chosen: Callable[[Node], bool]) -> set[int]:
        pairs = zip(graph.nodes, numbered, strict=True)
        return {number for node, own in pairs if chosen(node) for number in own}

    tokens = dimensions_of(lambda node: node.op == "input" and node.dtype not in FLOATS)
    computed = dimensions_of(lambda node: True) - dimensions_of(lambda node: node.op == "parameter")
    positions = (tokens | computed) - samples
    weights = dimensions_of(lambda node: node.op == "parameter" and len(node.shape) > 1) - positions - samples
    crossing = {number for boundary in boundaries(graph) for i in boundary.crossing for number in numbered[i]}
    return DimensionKinds(*map(frozenset, (samples, positions, weights, weights & crossing)))


def allowed_rows(graph: PCG, node: int, role: Role, sequence_parallel: bool | None) -> Flags:
    """[2, rows]: those that an axis of this role may take, and those of them that it takes if they leave no rank empty.

    On tensor axes these are the ones that split matrices and heads, and with sequence parallelism, what lies between.
    Without it, what a stage of a pipeline hands on may still be split by positions: each rank sends a part of what all
    have, and the next stage gathers it (the scatter and gather of Narayanan et al., SC'21).
    """
    every = rows(graph, node)
    if role is Role.FREE:
        return np.ones((2, len(every)), dtype=np.bool_)
    judge = _Judge(graph, node, sequence_parallel)
    fits = np.array([judge.fits(row, role) for row in every], dtype=np.bool_)
    preferred = fits & np.array([judge.prefers(row, role) for row in every], dtype=np.bool_)
    return np.array([fits, preferred if preferred.any() else fits])


class _Judge:
    def __init__(self, graph: PCG, node: int, by_positions: bool | None) -> None:
        self.kinds = dimension_kinds(graph)
        numbered, this = dimensions(graph), graph.nodes[node]
        self.operands = [numbered[i] for i in (*this.inputs, node)]
        self.weight = [graph.nodes[i].op == "parameter" for i in this.inputs] + [False]
        self.trained = [*(graph.nodes[i].gradient for i in this.inputs), this.gradient and node != graph.loss]
        self.is_attention = this.op == "attention"
        self.by_positions = None if operator(this.op).transfer and not by_positions else by_positions
        matrix = [graph.nodes[i].op == "parameter" and len(graph.nodes[i].shape) > 1 for i in this.inputs]
        self.has_matrix = any(matrix)

    def split(self, row: Row) -> list[int | None]:
        """Of every operand, the last being the output, the dimension that is split."""
        letters = (*row.inputs, row.output)
        return [own[atom_of(x)] if is_split(x) else None for own, x in zip(self.operands, letters, strict=True)]

    def fits(self, row: Row, role: Role) -> bool:
        split = self.split(row)
        found = {number for number in split if number is not None}
        if role is Role.DIRECTION and not self.is_independent(row):
            return False
        if role is Role.TENSOR:
            passed = {number for number, weight in zip(split, self.weight, strict=True) if not weight}
            excluded = found & self.kinds.samples or passed & self.kinds.residual
            return not excluded and (self.by_positions is not False or not found & self.kinds.positions)
        if role is Role.EXPERT and self.splits_experts(split):
            return True
        kind = self.kinds.positions if role is Role.CONTEXT else self.kinds.samples
        return found <= kind and self._covers(split, kind, role)

    def is_independent(self, row: Row) -> bool:
        """True if no gradient is summed before it reaches the weights: each is split, or stays addends."""
        letters = zip((*row.inputs, row.output), self.trained, strict=True)
        return not row.special and all(x == B or is_split(x) for x, trained in letters if trained)

    def _covers(self, split: Sequence[int | None], kind: frozenset[int], role: Role) -> bool:
        """True if the output is split, where it can be, else an input; samples are split in every operand."""
        has = [bool(kind & {*own}) and not weight for own, weight in zip(self.operands, self.weight, strict=True)]
        if not any(has):
            return True
        if role is not Role.CONTEXT:
            return all(number is not None for number, must in zip(split, has, strict=True) if must)
        return split[-1] is not None if has[-1] else any(number is not None for number in split)

    def splits_experts(self, split: Sequence[int | None]) -> bool:
        """True if an index of a batched product is split: one that inputs, weight and output have."""
        number = split[-1]
        return number in self.kinds.weights and self.has_matrix and all(own == number for own in split)

    def prefers(self, row: Row, role: Role) -> bool:
        split = self.split(row)
        if role is Role.TENSOR:
            if self.has_matrix or self.is_attention:
                return any(number in self.kinds.weights for number in split)
            between = bool(self.kinds.residual & {*self.operands[-1]})
            return not (between and self.by_positions) or split[-1] in self.kinds.positions
        return role is not Role.EXPERT or self.splits_experts(split)
