"""The parts of a model as stages with shares of their own: lower bounds on their times, and their solutions.

A part's times depend on its mesh and its situation, not on which candidate has it: what is proved of it holds for all.
They begin as floors. Once one of a mesh is to be solved, single segments and single layers are bounded inside of any
larger stage of that mesh, without memory, and add up (`PartNetworks.solve`); then parts are solved one by one.

What crosses a boundary is equal on the ranks of a stage, or split; each side chooses how, as every rank receives its
own part, whoever has it (`received_price`). So parts do not depend on one another's layouts.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, TypeAlias

import numpy as np

from ...formulation.network.network import INFINITE
from ...formulation.pipeline.configuration import Configuration
from ...formulation.pipeline.stage_transfers import stage_transfers
from ...formulation.placement.placement import Row
from ...model.errors import PartitaError
from ...model.machine.collective_price import CollectivePrice
from ..protocol import INTERRUPTED, Limits, Status
from .interval_bounds import max_disjoint_sum
from .memory_limits import least_use
from .part_bounds import ANY, Query
from .part_encoding import View, encoding
from .part_networks import PartNetworks, without_addends
from .result import ConfigurationSpace, Solved
from .share_bound import Rows
from .shortest_cut import Times
from .state import Effort, Level

Mesh: TypeAlias = tuple[Row, tuple[Row, ...]]
"""The row of a stage's share, and the matrix of its mesh."""


class Situation(NamedTuple):
    """What a part's times depend on beside its contents and mesh: its share, those in flight, what it receives."""

    micro_batches: int
    share: int
    in_flight: int
    transfer: CollectivePrice


class Part(NamedTuple):
    """A stage on a mesh: its boundaries, and where it is."""

    start: int
    stop: int
    at: Situation
    mesh: Mesh


@dataclass
class ShareParts:
    """Bounds of all parts; `networks` of them were solved. `missing`: the least bytes that one lacked.

    `counts` are those of `PartNetworks`, which solves; `left()`: the seconds that are left.
    """

    counts: PartNetworks
    space: ConfigurationSpace
    gap: float
    left: Callable[[], float]
    networks: int = 0
    missing: int | None = None
    times: dict[tuple[Situation, Mesh], Times] = field(default_factory=dict)
    rows: dict[Situation, Rows] = field(default_factory=dict)  # the least of all meshes
    solved: set[tuple[Situation, Mesh, Hashable]] = field(default_factory=set)  # and kind
    inside: dict[tuple[int, Mesh], Times] = field(default_factory=dict)  # by micro-batches

    def configuration(self, shares: tuple[int, ...], micro_batches: int) -> Configuration:
        """A configuration with these shares, each with its first mesh."""
        return self._with(micro_batches, tuple(self.meshes[share][0] for share in shares))

    def _with(self, micro_batches: int, meshes: tuple[Mesh, ...]) -> Configuration:
        hierarchy = self.counts.pipeline.problem.machine.hierarchy
        one = (1,) * len(hierarchy)
        return Configuration(one, (hierarchy,), micro_batches, self.space.schedule, meshes=meshes)

    @cached_property
    def meshes(self) -> dict[int, tuple[Mesh, ...]]:
        """By share the meshes that a stage may have."""
        placed = self.space.placements.items()
        return {places[0].devices: tuple((row, place.matrix) for place in places) for row, places in placed}

    @cached_property
    def _positions(self) -> dict[Hashable, list[tuple[int, int]]]:
        """The parts of every kind that can be stages: they have all of their weights to themselves."""
        pipeline, found = self.counts.pipeline, dict[Hashable, list[tuple[int, int]]]()
        last = pipeline.count - 1
        for i in range(last):
            for j in range(i + 1, last + 1):
                if (i, j) != (0, last) and not any(pipeline.shared(i, j)):
                    found.setdefault(pipeline.kind(i, j), []).append((i, j))
        return found

    def check_cut(self) -> None:
        """PartitaError if weights that several parts of the model share leave no place to cut."""
        pipeline, reached = self.counts.pipeline, {0}
        for i, j in sorted(part for own in self._positions.values() for part in own):
            reached |= {j} if i in reached else set()
        if pipeline.count - 1 not in reached:
            tied = ", ".join(map(repr, pipeline.weights)) or "none"
            raise PartitaError(
                "--unequal-stages: stages with meshes of their own share no weights, and no cut of this model leaves "
                f"{tied} in one stage"
            )

    def situations(self, configuration: Configuration) -> list[Situation]:
        """Those of all stages."""
        shares, k = configuration.shares, configuration.micro_batches
        lines = stage_transfers(self.counts.pipeline.problem.machine, configuration.row, shares, len(shares))
        flights = map(configuration.in_flight, range(len(shares)))
        return [Situation(k, *each) for each in zip(shares, flights, lines, strict=True)]

    # Bounds

    def least(self, at: Situation) -> Rows:
        """[n][n]: lower bounds on the times of all parts on the best mesh; INFINITE where a part cannot be a stage."""
        if at not in self.rows:
            self.rows[at] = np.minimum.reduce([self._times(at, mesh) for mesh in self.meshes[at.share]]).tolist()
        return self.rows[at]

    def part(self, start: int, stop: int, at: Situation) -> Part:
        """A part on the mesh of least bound."""
        mesh = min(self.meshes[at.share], key=lambda mesh: int(self._times(at, mesh)[start, stop]))
        return Part(start, stop, at, mesh)

    def _times(self, at: Situation, mesh: Mesh) -> Times:
        if (at, mesh) not in self.times:
            known = self.inside.get((at.micro_batches, mesh))
            known = self._floors(at.micro_batches, mesh) if known is None else known
            found = np.full_like(known, INFINITE)
            for parts in self._positions.values():
                i, j = np.array(parts).T
                found[i, j] = known[i, j]
            self.times[at, mesh] = found
        return self.times[at, mesh]

    def _floors(self, micro_batches: int, mesh: Mesh) -> Times:
        return self.counts.pipeline.floors(self._with(micro_batches, (mesh,)).of(0))

    def is_solved(self, part: Part) -> bool:
        """True if the least time of a part is known."""
        return (part.at, part.mesh, self.counts.pipeline.kind(part.start, part.stop)) in self.solved

    def solve(self, part: Part) -> None:
        """Raise the bounds of a mesh by its layers, or, where that is done, the bound of a part to its least time."""
        if (part.at.micro_batches, part.mesh) not in self.inside:
            self._bound_inside(part.at.micro_batches, part.mesh)
            return
        bound, kind = self.answer(part, View.BOUND)[0], self.counts.pipeline.kind(part.start, part.stop)
        self.solved.add((part.at, part.mesh, kind))
        times = self._times(part.at, part.mesh)
        i, j = np.array(self._positions[kind]).T
        times[i, j] = np.maximum(times[i, j], bound)
        self.rows.pop(part.at, None)

    def _bound_inside(self, micro_batches: int, mesh: Mesh) -> None:
        """Bound single segments and single layers inside of any larger stage on a mesh, and so all parts."""
        pipeline, known = self.counts.pipeline, self._floors(micro_batches, mesh).copy()
        parts = PartNetworks(pipeline, self._with(micro_batches, (mesh,)).of(0), self.counts.solver)
        query, last = Query(0, shared=(ANY,) * len(pipeline.weights)), pipeline.count - 1
        bounds = dict[Hashable, int]()
        for length in {1, self._period}:
            for i in range(last + 1 - length):
                kind = pipeline.kind(i, i + length)
                if kind not in bounds and length < last:
                    effort = Effort(Level.RELAXED, self.gap, seconds=max(self.left(), 0.01))
                    bounds[kind] = parts.solve(i, i + length, query, effort).inside
                    self.networks += 1
                known[i, i + length] = max(known[i, i + length], bounds.get(kind, 0))
        self.counts.solving += parts.solving
        self.inside[micro_batches, mesh] = added = np.minimum(max_disjoint_sum(known), INFINITE)
        for (at, own), times in self.times.items():
            if (at.micro_batches, own) == (micro_batches, mesh):
                np.maximum(times, added, out=times)
                self.rows.pop(at, None)

    @cached_property
    def _period(self) -> int:
        """The boundaries from one layer to the next like it; 1 if no two are alike."""
        pipeline = self.counts.pipeline
        kinds = [pipeline.kind(i, i + 1) for i in range(pipeline.count - 1)]
        middle = len(kinds) // 2
        return next((n for n in range(1, len(kinds) - middle) if kinds[middle + n] == kinds[middle]), 1)

    def answer(self, part: Part, view: View) -> tuple[int, Solved | None]:
        """The bound on a part, and its solution if it has one."""
        counts, alone = self.counts, self._with(part.at.micro_batches, (part.mesh,)).of(0)
        try:
            found = encoding(counts.pipeline, alone, part[:2], part.at.in_flight, view=view, transfer=part.at.transfer)
        except PartitaError:  # a tensor cannot be split so finely
            return INFINITE, None
        network = without_addends(found)
        counts.count_options(network)
        self.networks += 1
        answer = counts.answered(network, Limits(max(self.left(), 0.01), gap=self.gap))
        if answer.words == INTERRUPTED:
            raise KeyboardInterrupt
        if answer.status is Status.INFEASIBLE:
            lacks = least_use(network) - network.capacities[0]
            if lacks > 0:
                self.missing = lacks if self.missing is None else min(lacks, self.missing)
            return INFINITE, None
        return answer.bound, None if answer.assignment is None else (found, answer.assignment)
