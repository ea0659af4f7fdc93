"""The outer search: which pipeline, inner placement and number of micro-batches, best first by what is proved of each.

Every configuration begins with what its arithmetic takes at an even share, and with what is proved of one that has as
many stages and micro-batches, where each stage's devices are merged into one. In the order of these bounds each is
taken a step further: its parts without a limit of memory, then by prices of memory, then to the gap that is asked for.
What is proved without a limit of memory also holds where micro-batches are cut finer by a whole factor, so the coarsest
cut that is still possible goes first. A configuration whose bound reaches what is known is left: most are never solved.

Several configurations are under way at once. What is found is heard in the order in which they were begun, and what is
begun depends on what was heard, so the answer does not depend on who computes, and how fast.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Executor
from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod
from operator import attrgetter
from typing import NamedTuple, TypeAlias

from ...formulation.encoding.encoding import Encoding
from ...formulation.network.network import INFINITE
from ...formulation.pipeline.configuration import Configuration
from ...formulation.pipeline.schedule import ONE_F_ONE_B, Schedule
from ...formulation.placement.placement import Placement, Row
from ...model.errors import PartitaError
from ...model.garbage_collection import seldom_collected
from ..executors import Serial, in_order
from ..protocol import NO_LIMITS, Limits, Progress, Solver, Status
from .candidate import Candidate, evenly_spread, plainness
from .cut_search import raise_bound, search_cuts
from .merged_device_bound import MergedDeviceBound
from .parts import Networks
from .pipeline_problem import PipelineProblem
from .planning_problem import PlanningProblem
from .state import Effort, Level, Stages, State
from .unpipelined import works

AHEAD = 3
"""Configurations that are under way at once."""
MOST = 16
"""Times the work that one network may take: what one elimination of each of them may take in all."""
LEAST = 1 << 24
"""Additions that take about as long as what every configuration takes besides."""
FIRST = 0.1
"""The gap of the first plan, of which only a cost to compare with is wanted."""
CLOSER = 0.25
"""The part of the gap to which the best plan is improved before others are closed, within the gap itself or not: the
better it is, the less is asked of all others."""
FAR = 1.5
"""Times itself a bound is raised at a time."""
DEEP = 3.0
"""Times the least bound, beyond which no solution is sought before its turn."""
BOUNDS = (Level.RELAXED, Level.BOUNDED)


Solved: TypeAlias = tuple[Encoding, tuple[int, ...]]
"""The network of a stage and its assignment."""
StepNs: TypeAlias = Callable[[PlanningProblem, Configuration, tuple[int, ...], Sequence[Solved]], int]
"""Of a problem, a configuration, the boundaries where it is cut and the stages; it can be pickled."""


@dataclass(frozen=True)
class Space:
    """Which configurations there are: placements of a stage's inner mesh for every row of the pipeline's axis.

    `step_ns` tells the step of stages that are solved where what is searched for is only a bound of it.
    """

    placements: dict[Row, tuple[Placement, ...]]
    schedule: Schedule = ONE_F_ONE_B
    chunks: int = 1
    step_ns: StepNs | None = None


@dataclass(frozen=True)
class SearchResult:
    """The best plan (None: none found), what is proved, and how the search went.

    `stages` are the networks of the plan's stages with their assignments, `asked` the configurations of which any part
    was solved, `solved` and `kept` the networks, those kept from before among them; `solving` the part of the seconds
    in which networks were solved. `exhausted`: there was nothing left to ask, whatever is proved.
    """

    status: Status
    configuration: Configuration | None
    objective: int | None
    bounds: tuple[int, ...]
    stages: tuple[Solved, ...]
    bound: int
    seconds: float
    configurations: int
    asked: int
    solved: int
    kept: int
    options: int
    solving: float
    missing_bytes: int | None = None
    near: bool = False
    interrupted: bool = False
    left_out: int = 0
    exhausted: bool = False


def search(
    problem: PlanningProblem,
    space: Space,
    solver: Solver,
    limits: Limits = NO_LIMITS,
    executor: Executor | None = None,
) -> SearchResult:
    """The best plan over all configurations; ends early on time or KeyboardInterrupt, with the best so far.

    `executor`: who computes (None: this thread); anything that it sends elsewhere can be pickled.
    """
    return _Search(PipelineProblem(problem), space, solver, limits, executor or Serial()).run()


class _Asked(NamedTuple):
    """How far a configuration is taken, and the bound with which it is left."""

    candidate: Candidate
    levels: tuple[Level, ...]
    gap: float
    reach: int


_Task: TypeAlias = tuple[PipelineProblem, Configuration, bool, State, int, tuple[Effort, ...], Solver, StepNs | None]


class _Search:
    """Also the iterator of the next tasks: it has none while all that is worthwhile is under way."""

    def __init__(
        self, whole: PipelineProblem, space: Space, solver: Solver, limits: Limits, executor: Executor
    ) -> None:
        self.whole, self.space, self.solver, self.limits, self.executor = whole, space, solver, limits, executor
        self.start = time.monotonic()
        self.best: tuple[Configuration, Stages] | None = None
        self.families: dict[tuple[Row, tuple[Row, ...]], dict[int, Candidate]] = {}
        self.evens: dict[tuple[int, int], Candidate] = {}  # by stages and micro-batches
        self.prices: dict[tuple[int, int], tuple[float, ...]] = {}  # of a byte, likewise
        self.plainest: dict[int, Candidate] = {}
        self.leader: Candidate | None = None  # that of the best
        self.reach = limits.ceiling(None)  # what is not proved to cost this much is still asked
        self.under_way: deque[tuple[Candidate, Level, int]] = deque()
        self.left_out = 0
        self.interrupted = False

    @property
    def objective(self) -> int | None:
        return self.best[1].objective if self.best else None

    def left(self) -> float:
        return self.limits.seconds - (time.monotonic() - self.start)

    def run(self) -> SearchResult:
        try:
            self._enumerate()
            if self.families:
                self.plainest = self.families[min(self.families, key=lambda key: plainness(*key))]
            self._pursue()
        except KeyboardInterrupt:
            self.interrupted = True
        return self._found()

    def _pursue(self) -> None:
        """Ask and hear until nothing worthwhile is left; in this thread where the executor breaks down."""
        try:
            for state, stages in in_order(self.executor, _pursued, self, AHEAD):
                self._hear(state, stages)
                if all(candidate.bound >= self.reach for candidate in self._candidates()):
                    return  # whatever is under way
        except BrokenExecutor:  # a process was killed, perhaps for its memory
            for candidate, _, _ in self.under_way:
                candidate.under_way = False
            self.under_way.clear()
            self.executor = Serial()
            self._pursue()

    def _enumerate(self) -> None:
        """Every configuration, with the bound that its arithmetic gives."""
        space, axes = self.space, self._axes()
        for row, places in space.placements.items():
            p = prod(row)
            order = (space.schedule, space.chunks) if p > 1 else (ONE_F_ONE_B, 1)
            counts = [k for k in self.whole.problem.micro_batches if order[0].runs(p, k)]
            for placement in places if p * order[1] < self.whole.count and counts else ():
                if len(placement.sizes) > axes:
                    self.left_out += 1
                    continue
                family = self.families.setdefault((row, placement.matrix), {})
                for k in counts:
                    made = Configuration(row, placement.matrix, k, *order)
                    bound = evenly_spread(self.whole, made)
                    family[k] = Candidate(made, State(bound=bound))
                    self.evens.setdefault(
                        (made.devices, k), Candidate(made, State(bound=bound), charted=True, even=True)
                    )

    def _axes(self) -> int:
        """The most axes of a mesh for which all configurations together are not too much work."""
        work, counts = works(self.whole.problem, plain=False), len(self.whole.problem.micro_batches)
        meshes = [len(p.sizes) for places in self.space.placements.values() for p in places]
        in_all = {n: counts * sum(max(LEAST, work[axes]) for axes in meshes if axes <= n) for n in work}
        most = self.whole.problem.most_work
        return max((n for n in work if work[n] <= most and in_all[n] <= MOST * most), default=1)

    # What is asked next

    def __iter__(self) -> Iterator[_Task]:
        return self

    def __next__(self) -> _Task:
        chosen = self._next() if self.left() > 0 else None
        if chosen is None:
            raise StopIteration
        candidate, levels, gap, reach = chosen
        candidate.under_way = True
        self.under_way.append((candidate, levels[-1], reach))
        state = replace(candidate.state)  # its bound may be raised before it is sent
        own, prices = candidate.configuration, self.prices.get(candidate.size, ())
        efforts = tuple(Effort(level, gap, seconds=self.left(), prices=prices) for level in levels)
        step_ns = self.space.step_ns if own.schedule.priced_by_slots else None
        return self.whole, own, candidate.even, state, reach, efforts, self.solver, step_ns

    def _next(self) -> _Asked | None:
        dive, leader = self._dive(), self.leader
        if dive is not None:
            return dive
        closer = None
        if leader is not None and not leader.under_way and leader.level is not Level.CLOSED:
            limits = replace(self.limits, gap=self.limits.gap * CLOSER)
            if leader.level is Level.PRICED and leader.bound < self.reach:
                return _Asked(leader, (Level.CLOSED,), limits.gap, self.reach)
            closer = _Asked(leader, (Level.CLOSED,), limits.gap, limits.ceiling(self.objective))
        while (chosen := self._most_promising()) is not None:
            if chosen.level is Level.PRICED and closer is not None:  # which a better plan may make needless
                return closer
            if chosen.even or chosen.charted:
                levels = BOUNDS if chosen.even else (chosen.next_level,)
                reach = self._far(chosen) if levels[-1] in BOUNDS else self.reach
                return _Asked(chosen, levels, self.limits.gap, reach)
            self._chart(chosen)
        return None

    def _dive(self) -> _Asked | None:
        """Towards a first plan: the plainest mesh, with the fewest micro-batches with which it may fit."""
        for _, candidate in sorted(self.plainest.items()) if self.best is None else ():
            even = self.evens[candidate.size]
            if candidate.under_way or even.under_way or candidate.bound >= INFINITE or candidate.dived:
                continue
            if even.level is None and not even.dived:
                even.dived = True
                return _Asked(even, BOUNDS, self.limits.gap, self._far(even))
            candidate.dived = True
            last = Level.BOUNDED if candidate.configuration.devices == 1 else Level.PRICED
            return _Asked(candidate, (Level.RELAXED, last), max(FIRST, self.limits.gap), self.reach)
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
        if begun and all(c.even or level < Level.BOUNDED for c, level, _ in self.under_way):
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
        even = self.evens[candidate.size]
        return even if even.level is None else self._coarsest(candidate)

    def _coarsest(self, candidate: Candidate) -> Candidate:
        """The coarsest cut that is still possible, and whose bound without a limit of memory holds for this one too."""
        k, family = candidate.configuration.micro_batches, self._family(candidate)
        coarser = (other for count, other in sorted(family.items()) if k % count == 0 and other.level is None)
        open_ones = (c for c in coarser if c.bound < self.reach and self.evens[c.size].level is not None)
        return next(open_ones)

    def _chart(self, candidate: Candidate) -> None:
        """Raise a bound by what follows from arithmetic and from coarser cuts."""
        candidate.charted, k = True, candidate.configuration.micro_batches
        for count, other in self._family(candidate).items():
            if count < k and k % count == 0:
                candidate.state.known.inherit(other.state.known)
        parts = Networks(self.whole, candidate.configuration, self.solver)
        raise_bound(parts, candidate.configuration, candidate.state)

    # What is heard

    def _hear(self, state: State, stages: Stages | None) -> None:
        candidate, level, reach = self.under_way.popleft()
        if not reach <= state.bound < self.reach:
            candidate.level = level
        state.bound = max(state.bound, candidate.bound)  # which others may have raised meanwhile
        candidate.state, candidate.under_way = state, False
        self.prices[candidate.size] = state.prices
        if candidate.even:
            self._spread(candidate)
        if stages is not None and stages.objective < min(self.objective or INFINITE, self.limits.cutoff or INFINITE):
            self.best, self.leader = (candidate.configuration, stages), candidate
            self.reach = self.limits.ceiling(stages.objective)
        if level is Level.RELAXED:
            for other in self._family(candidate).values():
                other.charted &= other is candidate
        if self.limits.progress is not None:
            self.limits.progress(Progress(self.objective, self._bound(), time.monotonic() - self.start))

    def _spread(self, even: Candidate) -> None:
        """What holds wherever stages are placed; where memory is scarce then, bounds without it are left out."""
        for candidate in self._candidates():
            if candidate.size == even.size:
                candidate.state.bound = max(candidate.bound, even.bound)
                if even.state.prices and candidate.level is None:
                    candidate.level = Level.RELAXED

    def _candidates(self) -> Iterator[Candidate]:
        return (c for family in self.families.values() for c in family.values())

    def _family(self, candidate: Candidate) -> dict[int, Candidate]:
        return self.families[candidate.configuration.row, candidate.configuration.matrix]

    def _bound(self) -> int:
        known = [INFINITE if self.objective is None else self.objective, *(c.bound for c in self._candidates())]
        return min(known) if self.families else self.whole.problem.floor_ns()

    def _found(self) -> SearchResult:
        everything, bound, objective = [*self._candidates(), *self.evens.values()], self._bound(), self.objective
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
            stages.bounds if stages else (),
            _decoded(Networks(self.whole, configuration, self.solver), stages) if configuration and stages else (),
            bound,
            seconds,
            len(everything) - len(self.evens),
            sum(c.state.solved > 0 for c in self._candidates()),
            sum(s.solved for s in states),
            sum(s.kept for s in states),
            max((s.options for s in states), default=0),
            seconds * sum(s.solving for s in states) / worked if worked else 0.0,
            missing,
            objective is not None and bound >= self.reach,
            self.interrupted,
            self.left_out,
            not self.interrupted and self.left() > 0,
        )


@seldom_collected()
def _pursued(task: _Task) -> tuple[State, Stages | None]:
    """Pursue a configuration, in whatever process."""
    whole, configuration, even, before, reach, efforts, solver, step_ns = task
    state = before.copy()  # what is found is known when it is heard, whoever computes
    kept, began = getattr(solver, "kept", 0), time.monotonic()
    parts = (MergedDeviceBound if even else Networks)(whole, configuration, solver)
    stages = None
    for effort in efforts:
        stages = search_cuts(parts, configuration, state, reach, effort)
    if stages is not None and step_ns is not None:
        exact = step_ns(whole.problem, configuration, stages.bounds, _decoded(parts, stages))
        assert exact >= stages.objective or whole.problem.pcg.alternatives, (exact, stages.objective)
        stages = replace(stages, objective=exact)
    state.kept += getattr(solver, "kept", 0) - kept
    state.seconds += time.monotonic() - began
    state.solving += parts.solving
    state.options = max(state.options, parts.options)
    return state, stages


def _decoded(parts: Networks, stages: Stages) -> tuple[Solved, ...]:
    flights = map(parts.configuration.in_flight, range(len(stages.answers)))
    ends = pairwise(stages.bounds)
    return tuple(
        parts.decoded(i, j, flight, answer)
        for (i, j), flight, answer in zip(ends, flights, stages.answers, strict=True)
    )
