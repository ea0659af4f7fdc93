"""Search of pipelines whose stages have unequally many devices, each with a mesh of its own (Alpa's stages).

A candidate divides the devices among stages and the batch into micro-batches. Its cuts of least bound are found by
bounds of the parts (`share_bound`, `share_parts`); the parts that are chosen are solved, their bounds rise, and cuts
are chosen again, as in `cut_search`. The candidate of least bound goes first.

Once all chosen parts are solved they are planned, in all that a stage does, and priced slot by slot. Their bound stays
that of the candidate; other cuts of it are looked at while they may be better.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heappush
from itertools import pairwise
from typing import NamedTuple

from ...formulation.network.network import INFINITE
from ...formulation.pipeline.configuration import Configuration
from ...formulation.pipeline.shares import divisions
from ..protocol import Limits, Progress, Solver, Status
from .mesh_width import elimination_work, quick_axes
from .part_encoding import View
from .part_networks import PartNetworks
from .pipeline_problem import PipelineProblem
from .planning_problem import PlanningProblem
from .result import ConfigurationSpace, OtherPlan, SearchResult, Solved
from .share_bound import best_cuts, share_bound
from .share_parts import Part, ShareParts

PART_GAP = 0.25
"""The share of the gap to which parts are solved."""
OTHERS = 8
"""The most plans beside the best that a result has."""
MOST_PLANS = 64
"""The most cuts that are planned; the first few are seldom far from the best."""


@dataclass(order=True)
class Candidate:
    """Devices divided among stages, with its bound; `fixed`: the first cuts; `barred`: not the next one."""

    bound: int
    shares: tuple[int, ...]
    micro_batches: int
    fixed: tuple[int, ...] = ()
    barred: frozenset[int] = field(default=frozenset(), compare=False)

    def may_begin(self, stage: int, boundary: int) -> bool:
        """True if a stage may begin at a boundary."""
        if stage == 0 or stage <= len(self.fixed):
            return stage == 0 or self.fixed[stage - 1] == boundary
        return stage > len(self.fixed) + 1 or boundary not in self.barred

    def others(self, bounds: tuple[int, ...]) -> Iterator[Candidate]:
        """All other cuts of this candidate, divided by the first that is another one."""
        inner = bounds[1:-1]
        for number in range(len(self.fixed), len(inner)):
            barred = {inner[number]} | (self.barred if number == len(self.fixed) else set())
            yield replace(self, fixed=inner[:number], barred=frozenset(barred))


class Found(NamedTuple):
    """A plan: its step, configuration, cuts and stages."""

    objective: int
    configuration: Configuration
    bounds: tuple[int, ...]
    stages: tuple[Solved, ...]

    def decode(self) -> tuple[Solved, ...]:
        return self.stages


def search_shares(problem: PlanningProblem, space: ConfigurationSpace, solver: Solver, limits: Limits) -> SearchResult:
    """The best pipeline of unequal stages whose shares and meshes are those of a space."""
    return _ShareSearch(PipelineProblem(problem), space, solver, limits).run()


class _ShareSearch:
    def __init__(self, pipeline: PipelineProblem, space: ConfigurationSpace, solver: Solver, limits: Limits) -> None:
        self.axes = quick_axes(pipeline.problem, elimination_work(pipeline.problem))
        quick = {row: tuple(p for p in places if len(p.sizes) <= self.axes) for row, places in space.placements.items()}
        self.left_out = sum(len(places) - len(quick[row]) for row, places in space.placements.items())
        space = replace(space, placements=quick)
        self.pipeline, self.space, self.solver, self.limits = pipeline, space, solver, limits
        self.start, self.interrupted = time.monotonic(), False
        nothing = Configuration((), (), 1, space.schedule)
        self.counts = PartNetworks(pipeline, nothing, solver)
        self.parts = ShareParts(self.counts, space, limits.gap * PART_GAP, self.left)
        self.open: list[Candidate] = []
        self.closed = INFINITE  # the least bound of cuts that were planned
        self.found: list[Found] = []  # the best first

    def run(self) -> SearchResult:
        q, space = self.pipeline.problem, self.space
        self.parts.check_cut()
        for shares in divisions(q.machine.hierarchy, space.shares, q.space.stages):
            if len(shares) < self.pipeline.count:
                self.open += [Candidate(0, shares, k) for k in q.micro_batches]
        heapify(self.open)
        self.configurations = len(self.open)
        try:
            while self.open and self.open[0].bound < self._target and self.left() > 0:
                self._advance_first()
        except KeyboardInterrupt:
            self.interrupted = True
        return self._result()

    def left(self) -> float:
        return self.limits.seconds - (time.monotonic() - self.start)

    @property
    def objective(self) -> int | None:
        return self.found[0].objective if self.found else None

    @property
    def bound(self) -> int:
        known = (INFINITE if self.objective is None else self.objective, self.closed)
        return min(*known, min((candidate.bound for candidate in self.open), default=INFINITE))

    @property
    def _target(self) -> int:
        """Bounds from here on are not worth a look."""
        return self.limits.ceiling(self.objective)

    def _advance_first(self) -> None:
        """Advance the candidate of least bound, which stays open if that is interrupted."""
        candidate = heappop(self.open)
        try:
            self._advance(candidate)
        except KeyboardInterrupt:
            heappush(self.open, candidate)
            raise

    def _advance(self, candidate: Candidate) -> None:
        """Raise a candidate's bound until another one is below it, or all parts of its best cuts are solved."""
        configuration = self.parts.configuration(candidate.shares, candidate.micro_batches)
        bound, at = share_bound(configuration), self.parts.situations(configuration)
        while True:
            target = self._target
            chosen = best_cuts(bound, [self.parts.least(own) for own in at], candidate.may_begin, target)
            if chosen is None:
                candidate.bound = target
                self.closed = min(self.closed, target)
                return
            candidate.bound, bounds = max(candidate.bound, chosen[0]), chosen[1]
            if self.left() <= 0 or (self.open and candidate.bound > self.open[0].bound):
                heappush(self.open, candidate)
                return
            parts = [self.parts.part(*ends, own) for ends, own in zip(pairwise(bounds), at, strict=True)]
            unsolved = [part for part in parts if not self.parts.is_solved(part)]
            if not unsolved:
                break
            self.parts.solve(max(unsolved, key=lambda part: self.parts.least(part.at)[part.start][part.stop]))
        self._plan(configuration, bounds, parts)
        self.closed = min(self.closed, candidate.bound)
        if len(self.found) < MOST_PLANS:
            for other in candidate.others(bounds):
                heappush(self.open, other)

    def _plan(self, configuration: Configuration, bounds: tuple[int, ...], parts: list[Part]) -> None:
        """Plan the stages in all that they do, and price them slot by slot."""
        answers = [self.parts.answer(part, View.PRICED)[1] for part in parts]
        stages = tuple(answer for answer in answers if answer is not None)
        if len(stages) < len(parts):
            return
        made = replace(configuration, meshes=tuple(part.mesh for part in parts))
        assert self.space.step_ns is not None
        step = self.space.step_ns(self.pipeline.problem, made, bounds, stages)
        self.found.append(Found(step, made, bounds, stages))
        self.found.sort(key=lambda found: found.objective)
        if self.limits.progress is not None:
            self.limits.progress(Progress(self.objective, self.bound, time.monotonic() - self.start))

    def _result(self) -> SearchResult:
        bound, best, counts = self.bound, self.found[0] if self.found else None, self.counts
        status = Status.UNKNOWN if bound < INFINITE or self.interrupted else Status.INFEASIBLE
        if best is not None:
            status = Status.OPTIMAL if bound >= best.objective else Status.FEASIBLE
        return SearchResult(
            status,
            best.configuration if best else None,
            self.objective,
            bounds=best.bounds if best else (),
            stages=best.stages if best else (),
            bound=bound,
            seconds=time.monotonic() - self.start,
            configurations=self.configurations,
            asked=self.configurations,
            solved=self.parts.networks,
            kept=getattr(self.solver, "kept", 0),
            options=counts.options,
            solving=counts.solving,
            missing_bytes=self.parts.missing,
            near=best is not None and bound >= self._target,
            interrupted=self.interrupted,
            exhausted=not self.interrupted and self.left() > 0,
            left_out=self.left_out,
            axes=self.axes,
            orders_left_out=any(len(p.sizes) > 1 for places in self.space.placements.values() for p in places),
            refused=counts.refused,
            solver_words=counts.solver_words,
            others=tuple(
                OtherPlan(found.configuration, found.objective, found.bounds, found.decode)
                for found in self.found[1 : 1 + OTHERS]
            ),
        )
