"""The search over pipelines, inner placements and numbers of micro-batches, best first by what is proved of each.

Every configuration begins with a bound on its arithmetic. It is taken further level by level: bounds without a limit
of memory, then by prices of memory, then solutions, then to the gap that is asked for. What is proved without a limit
of memory also holds where micro-batches are cut finer by a whole factor, so the coarsest cut that is still possible
goes first. A configuration whose bound reaches what is known is left: most are never solved. A configuration of one
stage is one network (`single_stage`), one of several stages a choice of cuts (`cut_search`).

Where there are pipelines, a configuration is first compared with one that has as many stages and micro-batches, where
each stage's devices are merged into one; and several configurations are under way at once. Results are heard in the
order in which they were begun, and what is begun depends on what was heard, so the answer does not depend on who
computes, and how fast.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, Executor
from dataclasses import replace
from itertools import pairwise
from math import prod
from operator import attrgetter
from typing import NamedTuple, TypeAlias

from ...formulation.network.network import INFINITE
from ...formulation.pipeline.configuration import Configuration
from ...formulation.pipeline.schedule import ONE_F_ONE_B
from ...formulation.placement.placement import Placement, Row
from ...model.errors import PartitaError
from ...model.garbage_collection import seldom_collected
from ..executors import Serial, in_order
from ..protocol import NO_LIMITS, Limits, Progress, Solver, Status
from .candidate import Candidate, evenly_spread, plainness
from .cut_search import raise_bound, search_cuts
from .merged_device_bound import MergedDeviceBound
from .mesh_width import elimination_work, quick_axes
from .part_networks import PartNetworks
from .pipeline_problem import PipelineProblem
from .planning_problem import PlanningProblem
from .result import ConfigurationSpace, SearchResult, Solved, StepNs, without_pipelines
from .single_stage import solve_single_stage
from .state import BOUNDS, Effort, Level, Stages, State

AHEAD = 3
"""Configurations that are under way at once, where there are pipelines."""
MOST = 16
"""Times the work that one network may take: what one elimination of each of them may take in all."""
LEAST = 1 << 24
"""Additions that take about as long as what every configuration takes besides."""
FIRST = 0.1
"""The gap of the first plan, of which only a cost to compare with is wanted."""
COARSE = 0.01
"""Without pipelines, the gap to which all networks are solved before one is solved further: pricing alone proves it."""
CLOSER = 0.25
"""The part of the gap to which the best plan is improved before others are closed, within the gap itself or not: the
better it is, the less is asked of all others."""
FAR = 1.5
"""Times itself a bound is raised at a time."""
DEEP = 3.0
"""Times the least bound, beyond which no solution is sought before its turn."""


def search(
    problem: PlanningProblem,
    solver: Solver,
    limits: Limits = NO_LIMITS,
    space: ConfigurationSpace | None = None,
    executor: Executor | None = None,
) -> SearchResult:
    """The best plan of a space (None: the problem's placements, without pipelines).

    Ends early on time or KeyboardInterrupt, with the best plan so far and its bound. `executor` computes where there
    are pipelines (None: this thread); anything that it sends elsewhere can be pickled.
    """
    space = space or without_pipelines(problem)
    return _Search(PipelineProblem(problem), space, solver, limits, executor or Serial()).run()


class _Asked(NamedTuple):
    """How far a configuration is taken, the bound with which it is left, and the level that it has then."""

    candidate: Candidate
    levels: tuple[Level, ...]
    gap: float
    reach: int
    heard_as: Level | None


class _Task(NamedTuple):
    """What one call of the executor computes."""

    pipeline: PipelineProblem
    configuration: Configuration
    merged: bool
    state: State
    reach: int
    efforts: tuple[Effort, ...]
    solver: Solver
    step_ns: StepNs | None


_Family: TypeAlias = dict[int, Candidate]
"""The configurations of one row and mesh, by their number of micro-batches."""


class _Search:
    """Also the iterator of the next tasks: it has none while all that is worthwhile is under way."""

    def __init__(
        self, pipeline: PipelineProblem, space: ConfigurationSpace, solver: Solver, limits: Limits, executor: Executor
    ) -> None:
        self.pipeline, self.space, self.solver, self.limits = pipeline, space, solver, limits
        self.has_pipelines = space.has_pipelines
        self.executor = executor if self.has_pipelines else Serial()
        self.start = time.monotonic()
        self.best: tuple[Configuration, Stages] | None = None
        self.families: dict[tuple[Row, tuple[Row, ...]], _Family] = {}
        self.merged: dict[tuple[int, int], Candidate] = {}  # by stages and micro-batches
        self.prices: dict[tuple[int, int], tuple[float, ...]] = {}  # of a byte, likewise
        self.plainest: _Family = {}
        self.leader: Candidate | None = None  # that of the best
        self.reach = limits.ceiling(None)  # what is not proved to cost this much is still asked
        self.under_way: deque[_Asked] = deque()
        self.left_out = 0
        self.interrupted = False

    @property
    def objective(self) -> int | None:
        return self.best[1].objective if self.best else None

    @property
    def cutoff(self) -> int | None:
        """The cost below which a plan is wanted."""
        return min((x for x in (self.objective, self.limits.cutoff) if x is not None), default=None)

    def left(self) -> float:
        return self.limits.seconds - (time.monotonic() - self.start)

    def run(self) -> SearchResult:
        try:
            self._enumerate()
            if self.families:
                self.plainest = self.families[min(self.families, key=lambda key: plainness(*key))]
            self._search()
        except KeyboardInterrupt:
            self.interrupted = True
        return self._result()

    def _search(self) -> None:
        """Ask and hear until nothing worthwhile is left; in this thread where the executor breaks down."""
        try:
            for state, stages in in_order(self.executor, _take_further, self, AHEAD if self.has_pipelines else 1):
                self._hear(state, stages)
                if self.interrupted or all(candidate.bound >= self.reach for candidate in self._candidates()):
                    return  # whatever is under way
        except BrokenExecutor:  # a process was killed, perhaps for its memory
            for asked in self.under_way:
                asked.candidate.under_way = False
            self.under_way.clear()
            self.executor = Serial()
            self._search()

    # Which configurations there are

    def _enumerate(self) -> None:
        """Every configuration, with the bound that its arithmetic gives."""
        space, axes, problem = self.space, self._axes(), self.pipeline.problem
        floor = 0 if self.has_pipelines else problem.floor_ns()
        fitting = problem.micro_batches if self.has_pipelines else problem.fits() or problem.micro_batches[-1:]
        for row, places in space.placements.items():
            p = prod(row)
            order = (space.schedule, space.chunks) if p > 1 else (ONE_F_ONE_B, 1)
            counts = [k for k in fitting if order[0].runs(p, k)]
            for placement in places if p * order[1] < self.pipeline.count and counts else ():
                if len(placement.sizes) > axes:
                    self.left_out += 1
                    continue
                family = self.families.setdefault((row, placement.matrix), {})
                for k in counts:
                    made = Configuration(row, placement.matrix, k, *order)
                    bound = evenly_spread(self.pipeline, made) if self.has_pipelines else floor
                    family[k] = Candidate(made, State(bound=bound))
                    if self.has_pipelines:
                        self.merged.setdefault(
                            (made.devices, k), Candidate(made, State(bound=bound), charted=True, merged=True)
                        )

    def _axes(self) -> int:
        """The most axes of a mesh for which a network, and all configurations together, are not too much work."""
        problem = self.pipeline.problem
        if not self.has_pipelines:
            rewritten = quick_axes(problem)
            self.pipeline = PipelineProblem(replace(problem, rewritten_axes=rewritten))
            return quick_axes(replace(problem, rewritten_axes=0)) if problem.plain else rewritten
        work, counts, most = elimination_work(problem), len(problem.micro_batches), problem.most_work
        meshes = [len(p.sizes) for places in self.space.placements.values() for p in places]
        in_all = {n: counts * sum(max(LEAST, work[axes]) for axes in meshes if axes <= n) for n in work}
        return max((n for n in work if work[n] <= most and in_all[n] <= MOST * most), default=1)

    # What is asked next

    def __iter__(self) -> Iterator[_Task]:
        return self

    def __next__(self) -> _Task:
        asked = self._next() if self.left() > 0 else None
        if asked is None:
            raise StopIteration
        candidate = asked.candidate
        candidate.under_way = True
        self.under_way.append(asked)
        state = replace(candidate.state)  # its bound may be raised before it is sent
        prices = state.prices or self.prices.get(candidate.size, ()) if self.has_pipelines else ()
        efforts = tuple(
            Effort(level, asked.gap, self.cutoff, self.left(), prices, self._progress(candidate, level))
            for level in asked.levels
        )
        step_ns = self.space.step_ns if candidate.configuration.schedule.priced_by_slots else None
        return _Task(
            pipeline=self.pipeline,
            configuration=candidate.configuration,
            merged=candidate.merged,
            state=state,
            reach=asked.reach,
            efforts=efforts,
            solver=self.solver,
            step_ns=step_ns,
        )

    def _progress(self, candidate: Candidate, level: Level) -> Callable[[Progress], None] | None:
        """Reports progress within a network; without a limit of memory its incumbents are no plans yet."""
        tell = self.limits.progress
        if tell is None or self.has_pipelines:  # computed elsewhere
            return None

        def report(news: Progress) -> None:
            found = news.incumbent if level is not Level.RELAXED else None
            best = min((x for x in (found, self.cutoff) if x is not None), default=None)
            others = (c.bound for c in self._candidates() if c is not candidate)
            bound = min([max(candidate.bound, news.bound), *others, *([] if best is None else [best])])
            tell(Progress(best, bound, time.monotonic() - self.start))

        return report

    def _next(self) -> _Asked | None:
        dive, leader = self._dive(), self.leader
        if dive is not None:
            return dive
        closer = None
        if leader is not None and not leader.under_way and leader.level is not Level.CLOSED:
            limits = replace(self.limits, gap=self.limits.gap * CLOSER)
            if leader.level is Level.PRICED and leader.bound < self.reach:
                return self._asked(leader, (Level.CLOSED,), limits.gap, self.reach)
            closer = self._asked(leader, (Level.CLOSED,), limits.gap, limits.ceiling(self.objective))
        while (chosen := self._most_promising()) is not None:
            if chosen.level is Level.PRICED and closer is not None:  # which a better plan may make needless
                return closer
            if not (chosen.merged or chosen.charted):
                self._chart(chosen)
            elif self._is_nearly_known(chosen):
                chosen.level = Level.PRICED
            else:
                return self._further(chosen)
        return None

    def _further(self, chosen: Candidate) -> _Asked:
        """What takes a configuration to its next level."""
        ladder = tuple(Level) if self.has_pipelines else (Level.RELAXED, Level.PRICED, Level.CLOSED)
        following = ladder[0 if chosen.level is None else ladder.index(chosen.level) + 1]
        levels = BOUNDS if chosen.merged else (following,)
        coarse = following is Level.PRICED and not self.has_pipelines
        gap = max(COARSE, self.limits.gap) if coarse else self.limits.gap
        reach = self._far(chosen) if levels[-1] in BOUNDS and not chosen.single_stage else self.reach
        return self._asked(chosen, levels, gap, reach)

    @staticmethod
    def _asked(candidate: Candidate, levels: tuple[Level, ...], gap: float, reach: int) -> _Asked:
        return _Asked(candidate, levels, gap, reach, levels[-1])

    def _is_nearly_known(self, candidate: Candidate) -> bool:
        """True if a network is known as well as a coarse solution would make it."""
        if self.has_pipelines or candidate.level is not Level.RELAXED:
            return False
        return candidate.bound >= self.limits.within(COARSE).ceiling(self.objective)

    def _dive(self) -> _Asked | None:
        """Towards a first plan: the plainest mesh, with the fewest micro-batches with which it may fit."""
        for _, candidate in sorted(self.plainest.items()) if self.best is None else ():
            merged = self.merged.get(candidate.size)
            if candidate.under_way or candidate.bound >= INFINITE or candidate.dived:
                continue
            if merged is not None and merged.under_way:
                continue
            if merged is not None and merged.level is None and not merged.dived:
                merged.dived = True
                return self._asked(merged, BOUNDS, self.limits.gap, self._far(merged))
            candidate.dived, gap = True, max(FIRST, self.limits.gap)
            if not self.has_pipelines:  # its bound without a limit of memory is still to be asked
                return _Asked(candidate, (Level.PRICED,), gap, self.reach, None)
            last = Level.BOUNDED if candidate.configuration.devices == 1 else Level.PRICED
            return self._asked(candidate, (Level.RELAXED, last), gap, self.reach)
        return None

    def _far(self, candidate: Candidate) -> int:
        """How far a bound is raised at a time: others may be least then, and never was this one worth more."""
        return min(self.reach, int(FAR * candidate.bound)) if candidate.bound > 0 else self.reach

    def _most_promising(self) -> Candidate | None:
        """The one of least bound; but one of those begun is always taken further, for it may lead to a better plan."""
        reach = self.reach
        idle = [c for c in self._candidates() if c.bound < reach and c.level is not Level.CLOSED and not c.under_way]
        near = DEEP * min((c.bound for c in idle), default=0)
        begun = [c for c in idle if c.level in BOUNDS and c.bound <= near]
        if begun and all(a.candidate.merged or a.levels[-1] < Level.BOUNDED for a in self.under_way):
            return min(begun, key=lambda c: (c.bound, c.order))
        while idle:
            chosen = min(idle, key=attrgetter("order"))
            first = chosen if chosen.level is not None else self._before(chosen)
            if not first.under_way:
                return first
            family = self._family(chosen)
            idle = [c for c in idle if c.level is not None or self._family(c) is not family]
        return None

    def _before(self, candidate: Candidate) -> Candidate:
        """What is asked before a candidate that was not taken up yet."""
        merged = self.merged.get(candidate.size)
        return merged if merged is not None and merged.level is None else self._coarsest(candidate)

    def _coarsest(self, candidate: Candidate) -> Candidate:
        """The coarsest cut that is still possible, and whose bound without a limit of memory holds for this one too."""
        k, family = candidate.configuration.micro_batches, self._family(candidate)
        coarser = (other for count, other in sorted(family.items()) if k % count == 0 and other.level is None)

        def is_open(other: Candidate) -> bool:
            merged = self.merged.get(other.size)
            return other.bound < self.reach and (merged is None or merged.level is not None)

        return next(filter(is_open, coarser))

    def _chart(self, candidate: Candidate) -> None:
        """Raise a bound by what follows from arithmetic and from coarser cuts."""
        candidate.charted, k, state = True, candidate.configuration.micro_batches, candidate.state
        coarser = [c.state for count, c in self._family(candidate).items() if count < k and k % count == 0]
        if candidate.single_stage:
            state.bound = max([state.bound, *(other.relaxed for other in coarser)])
            state.has_room |= any(other.has_room for other in coarser)
            return
        for other in coarser:
            state.known.inherit(other.known)
        raise_bound(PartNetworks(self.pipeline, candidate.configuration, self.solver), candidate.configuration, state)

    # What is heard

    def _hear(self, state: State, stages: Stages | None) -> None:
        asked = self.under_way.popleft()
        candidate = asked.candidate
        if asked.heard_as is not None and not asked.reach <= state.bound < self.reach:
            candidate.level = asked.heard_as
        state.bound = max(state.bound, candidate.bound)  # which others may have raised meanwhile
        candidate.state, candidate.under_way = state, False
        self.interrupted |= state.interrupted
        self.prices[candidate.size] = state.prices
        if candidate.merged:
            self._share_bound(candidate)
        if stages is not None and stages.objective < min(self.objective or INFINITE, self.limits.cutoff or INFINITE):
            self.best, self.leader = (candidate.configuration, stages), candidate
            self.reach = self.limits.ceiling(stages.objective)
        if asked.levels[-1] is Level.RELAXED:
            for other in self._family(candidate).values():
                other.charted &= other is candidate
        if self.limits.progress is not None:
            self.limits.progress(Progress(self.objective, self._bound(), time.monotonic() - self.start))

    def _share_bound(self, merged: Candidate) -> None:
        """What holds wherever stages are placed; where memory is scarce then, bounds without it are left out."""
        for candidate in self._candidates():
            if candidate.size == merged.size:
                candidate.state.bound = max(candidate.bound, merged.bound)
                if merged.state.prices and candidate.level is None:
                    candidate.level = Level.RELAXED

    def _candidates(self) -> Iterator[Candidate]:
        return (c for family in self.families.values() for c in family.values())

    def _family(self, candidate: Candidate) -> _Family:
        return self.families[candidate.configuration.row, candidate.configuration.matrix]

    def _bound(self) -> int:
        if self.interrupted and not self.families:
            return self.pipeline.problem.floor_ns()
        return min([INFINITE if self.objective is None else self.objective, *(c.bound for c in self._candidates())])

    def _result(self) -> SearchResult:
        everything, bound, objective = [*self._candidates(), *self.merged.values()], self._bound(), self.objective
        if objective is None:
            status = Status.INFEASIBLE if bound >= INFINITE and not self.interrupted else Status.UNKNOWN
        else:
            status = Status.OPTIMAL if bound >= objective else Status.FEASIBLE
        configuration, stages = self.best or (None, None)
        states = [c.state for c in everything]
        worked, seconds = sum(s.seconds for s in states), time.monotonic() - self.start
        refusals = [s.refusal for s in states if s.refusal]
        missing = min((s.missing for s in states if s.missing is not None), default=None)
        if refusals and status is Status.INFEASIBLE and missing is None:
            raise PartitaError(refusals[0])
        return SearchResult(
            status,
            configuration,
            objective,
            bounds=stages.bounds if stages else (),
            stages=_decoded(PartNetworks(self.pipeline, configuration, self.solver), stages)
            if configuration and stages
            else (),
            bound=bound,
            seconds=seconds,
            configurations=len(everything) - len(self.merged),
            asked=sum(c.state.solved > 0 for c in self._candidates()),
            solved=sum(s.solved for s in states),
            kept=sum(s.kept for s in states),
            options=max((s.options for s in states), default=0),
            solving=seconds * sum(s.solving for s in states) / worked if worked else 0.0,
            source=stages.source if stages else "",
            missing_bytes=missing,
            near=objective is not None and bound >= self.reach,
            interrupted=self.interrupted,
            left_out=self.left_out,
            exhausted=not self.interrupted and self.left() > 0,
            unrewritten=self._unrewritten(),
        )

    def _unrewritten(self) -> tuple[Placement, ...]:
        """The placements that were searched with the graph as it was captured."""
        asked = {c.configuration.placement for c in self._candidates() if c.state.options}
        return tuple(p for p in self.pipeline.problem.placements if self.pipeline.problem.too_wide(p) and p in asked)


@seldom_collected()
def _take_further(task: _Task) -> tuple[State, Stages | None]:
    """Take a configuration further, in whatever process."""
    configuration, solver = task.configuration, task.solver
    state = task.state.copy()  # what is found is known when it is heard, whoever computes
    kept, began = getattr(solver, "kept", 0), time.monotonic()
    parts = (MergedDeviceBound if task.merged else PartNetworks)(task.pipeline, configuration, solver)
    stages = None
    for effort in task.efforts:
        if configuration.devices == 1 and not task.merged:
            stages = solve_single_stage(parts, state, task.reach, effort)
        else:
            stages = search_cuts(parts, configuration, state, task.reach, effort)
        if stages is not None:
            break
    if stages is not None and task.step_ns is not None:
        problem = task.pipeline.problem
        exact = task.step_ns(problem, configuration, stages.bounds, _decoded(parts, stages))
        assert exact >= stages.objective or problem.pcg.alternatives, (exact, stages.objective)
        stages = replace(stages, objective=exact)
    state.kept += getattr(solver, "kept", 0) - kept
    state.seconds += time.monotonic() - began
    state.solving += parts.solving
    state.options = max(state.options, parts.options)
    return state, stages


def _decoded(parts: PartNetworks, stages: Stages) -> tuple[Solved, ...]:
    """The networks of the stages with their assignments; an answer without a limit of memory is of its own network."""
    flights = (parts.configuration.in_flight(s) if a.in_flight else 0 for s, a in enumerate(stages.answers))
    ends = pairwise(stages.bounds)
    return tuple(
        parts.decoded(i, j, flight, answer)
        for (i, j), flight, answer in zip(ends, flights, stages.answers, strict=True)
    )
