"""The parts of a plan whose operators lie on the same ranks: its stages, and what all devices compute together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ...formulation.pipeline.shares import blocks
from ...formulation.placement.placement import ranks
from ...formulation.spacetime.op import Op
from ...formulation.spacetime.primitives import op_assign, op_trans
from ...formulation.spacetime.transformation import Chosen, replicate
from ...formulation.strategies.row import Row
from ...formulation.strategies.strategy import rows_taken
from ...model.errors import PartitaError
from ...model.graph.atoms import atoms
from ...model.graph.batch import with_batch
from ...model.graph.interlaced import interlaced
from ...model.graph.pcg import PCG, TRANSFERS
from ...model.graph.rejoined import rejoined
from ...model.graph.stages import stage
from .choice import Choice
from .plan import Plan


@dataclass(frozen=True, eq=False)
class Mesh:
    """Ranks by their coordinates on named axes."""

    names: tuple[str, ...]
    ranks: NDArray[np.int64]

    @property
    def axes(self) -> tuple[tuple[int, str, int], ...]:
        """Number, name and size of every axis that has more than one rank."""
        sized = zip(self.names, self.ranks.shape, strict=True)
        return tuple((axis, name, size) for axis, (name, size) in enumerate(sized) if size > 1)

    @property
    def devices(self) -> list[int]:
        """All ranks, the last axis fastest."""
        found: list[int] = self.ranks.ravel().tolist()
        return found

    def only(self, axis: int, start: int, stop: int) -> Mesh:
        """Some adjacent coordinates of an axis."""
        return Mesh(self.names, self.ranks.take(range(start, stop), axis))

    def rank(self, op: Op) -> int:
        """The rank of a part, by its coordinates."""
        return int(self.ranks[tuple(op.coordinate(name) for name in self.names)])


class Part:
    """A stage of a plan: its nodes by their index in the whole graph, its ranks, and what became of its operators."""

    def __init__(self, plan: Plan, number: int, ranks: NDArray[np.int64], whole: tuple[int, ...]) -> None:
        self.plan, self.number, self.ranks = plan, number, ranks
        self.ops: list[Op] = []
        self.own = {
            i: n for n, i in enumerate(whole) if self.plan.graph.nodes[n].op not in TRANSFERS
        }  # by index in the whole graph, the one in the stage's
        self.whole = whole

    def choice(self, index: int) -> Choice:
        return self.plan.choices[self.own[index]]

    @cached_property
    def everywhere(self) -> Mesh:
        """The mesh of all its ranks."""
        return Mesh(self.plan.axes, self.ranks)

    def mesh(self, index: int) -> Mesh:
        """The mesh on which a node is: of a branch beside others the coordinates that it has of their axis."""
        at, found = self.own[index], self.everywhere
        for axis, start in self.plan.choices[at].beside:
            known = self.plan.range_of.get(at)
            found = found.only(axis, start, known[2] if known and known[0] == axis else start + 1)
        return found

    def rows(self, index: int) -> list[Row]:
        """The row of an operator on every axis of more than one rank."""
        pcg, at, axes = self.plan.graph, self.own[index], self.mesh(index).axes
        choice = self.plan.joining(at)
        taken = rows_taken(pcg, at, choice.inputs, choice.output)
        found = [row for axis, _, _ in axes if (row := taken[axis]) is not None]
        assert len(found) == len(axes), pcg.nodes[at].name
        return found

    def assign(self, op: Op, index: int, everywhere: bool) -> Iterator[Op]:
        """An operator, cut along every axis of its mesh, each part on its rank; or whole on every rank."""
        parts = [op]
        mesh = self.everywhere if everywhere else self.mesh(index)
        rows = [None] * len(mesh.axes) if everywhere else self.rows(index)
        for (_, name, size), row in zip(mesh.axes, rows, strict=True):
            how = replicate(size, label=name) if row is None else Chosen(row, size, name)
            try:
                parts = [part for each in parts for part in op_trans(each, how)]
            except PartitaError as error:
                raise PartitaError(
                    f"{error}. Plan again with --mesh or --micro-batches of sizes that divide it, or with another "
                    f"--fix {op.of.name}=ROW"
                ) from error
        for part, rank in zip(parts, mesh.devices, strict=True):
            op_assign(part, rank)
        return iter(parts)


def parts_of(plan: Plan) -> tuple[PCG, list[Part]]:
    """The graph of all operators, and its parts: the stages, and what all devices of an interlaced pipeline compute."""
    numbers = ranks(plan.placement)
    if plan.size == 1:
        return plan.graph, [Part(plan, 0, numbers, tuple(range(len(plan.graph.nodes))))]
    shares, found = blocks(plan.shares), list[Part]()
    whole, places = _whole(plan)
    for number, (part, nodes) in enumerate(zip(plan.parts, places, strict=True)):
        if plan.shares:
            own = shares[number].start + ranks(part.placement)
        else:
            own = numbers[list(plan.schedule.devices_of(number, plan.size))].reshape(part.placement.sizes)
        found.append(Part(part, number, own, nodes))
    if plan.shared is not None:
        found.append(Part(plan.everything[-1], len(found), numbers, interlaced(plan.graph).shared.nodes))
    return whole, found


def _whole(plan: Plan) -> tuple[PCG, Sequence[tuple[int, ...]]]:
    """The graph of the operators of all stages, and where it has the nodes of each: the plan's, unless rewritten."""
    between = [stage(plan.cut, *ends) for ends in pairwise(plan.bounds)]
    rewritten = [n for n, (own, part) in enumerate(zip(between, plan.stages, strict=True)) if own.graph != part.graph]
    if not rewritten:
        return plan.graph, [tuple(plan.cut_nodes[i] for i in own.nodes) for own in between]
    if plan.schedule.by_operators:
        raise PartitaError(
            f"stage {rewritten[0]} is a rewritten graph, and schedule {plan.schedule} is of the model's operators: "
            "plan again without --rewrite, or with --schedule 1f1b"
        )
    graphs = [with_batch(part.graph, plan.batch) for part in plan.stages]
    whole, places = rejoined(graphs)
    for number, (graph, nodes) in enumerate(zip(graphs, places, strict=True)):
        for node, own, at in zip(graph.nodes, atoms(graph), nodes, strict=True):
            if own != atoms(whole)[at]:
                raise PartitaError(
                    f"stage {number} splits {node.name!r} by the factors {own.dims} of its dims, rewritten stages "
                    f"together by {atoms(whole)[at].dims}: plan again without --rewrite, or with --stages 1"
                )
    return whole, places
