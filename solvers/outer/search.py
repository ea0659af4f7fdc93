"""The outer search: which pipeline, inner placement and number of micro-batches, best first by what is proved of each.

Every configuration begins with what its arithmetic takes at an even share. In the order of these bounds each is taken
a step further: its parts without a limit of memory, then by prices of memory, then to the gap that is asked for. What
is proved without a limit of memory also holds where micro-batches are cut finer by a whole factor, so the coarsest cut
that is still possible goes first. A configuration whose bound reaches what is known is left: most are never solved.

Several configurations are under way at once. What is found is heard in the order in which they were begun, and what is
begun depends on what was heard, so the answer does not depend on who computes, and how fast.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Executor
from dataclasses import dataclass
from math import prod
from typing import TypeAlias

from ...formulation.encoding import Encoding
from ...formulation.network import INFINITE
from ...formulation.outer import Configuration, admitted
from ...formulation.placement import Placement, Row
from ...model.errors import PartitaError
from ..parallel import Serial, in_order
from ..protocol import NO_LIMITS, Limits, Progress, Solver, Status
from ..question import Question
from ..search import quick_axes
from .parts import Networks
from .pursuit import Effort, Level, Stages, State, pursue, raise_bound
from .question import Whole

AHEAD = 3
"""Configurations that are under way at once."""
FIRST = 0.1
"""The gap of the first plans, of which only a cost to compare with is wanted."""
DIVES = 3
"""Pipelines among the first plans."""


@dataclass(frozen=True)
class Space:
    """Which configurations there are: placements of a stage's inner mesh for every row of the pipeline's axis."""

    placements: dict[Row, tuple[Placement, ...]]
    schedule: str = "1f1b"
    chunks: int = 1


@dataclass(frozen=True)
class OuterFound:
    """The best plan (None: none found), what is proved, and how the search went.

    `stages` are the networks of the plan's stages with their assignments, `asked` the configurations of which any part
    was solved, `solved` and `kept` the networks, those kept from before among them; `solving` the part of the seconds
    in which networks were solved. `exhausted`: there was nothing left to ask, whatever is proved.
    """

    status: Status
    configuration: Configuration | None
    objective: int | None
    bounds: tuple[int, ...]
    stages: tuple[tuple[Encoding, tuple[int, ...]], ...]
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


@dataclass(slots=True, eq=False)
class _Candidate:
    """A configuration, what is known of it, and how far it was taken (None: not at all)."""

    configuration: Configuration
    state: State
    level: Level | None = None
    charted: bool = False  # whether its bound says what is known of its parts
    under_way: bool = False

    @property
    def bound(self) -> int:
        return self.state.bound

    @property
    def next_level(self) -> Level:
        return Level.RELAXED if self.level is None else Level(self.level + 1)


def search(
    question: Question,
    space: Space,
    solver: Solver,
    limits: Limits = NO_LIMITS,
    executor: Executor | None = None,
) -> OuterFound:
    """The best plan over all configurations; ends early on time or KeyboardInterrupt, with the best so far.

    `executor`: who computes (None: this thread); anything that it sends elsewhere can be pickled.
    """
    return _Search(Whole(question), space, solver, limits, executor or Serial()).run()


_Task: TypeAlias = tuple[Whole, Configuration, State, int, Effort, Solver]


class _Search:
    """Also the iterator of the next tasks: it has none while all that is worthwhile is under way."""

    def __init__(self, whole: Whole, space: Space, solver: Solver, limits: Limits, executor: Executor) -> None:
        self.whole, self.space, self.solver, self.limits, self.executor = whole, space, solver, limits, executor
        self.start = time.monotonic()
        self.best: tuple[Configuration, Stages] | None = None
        self.families: dict[tuple[Row, tuple[Row, ...]], dict[int, _Candidate]] = {}
        self.under_way: deque[tuple[_Candidate, Level]] = deque()
        self.left_out = 0
        self.interrupted = False

    @property
    def objective(self) -> int | None:
        return self.best[1].objective if self.best else None

    @property
    def reach(self) -> int:
        """What is not proved to cost this much is still asked."""
        return self.limits.ceiling(self.objective)

    def left(self) -> float:
        return self.limits.seconds - (time.monotonic() - self.start)

    def run(self) -> OuterFound:
        try:
            self._enumerate()
            self.dives = self._dives()
            for state, stages in in_order(self.executor, _pursued, self, AHEAD):
                self._hear(state, stages)
        except KeyboardInterrupt:
            self.interrupted = True
        return self._found()

    def _enumerate(self) -> None:
        """Every configuration, with the bound that its arithmetic gives."""
        space, axes = self.space, quick_axes(self.whole.question, plain=False)
        for row, places in space.placements.items():
            p = prod(row)
            order = (space.schedule, space.chunks) if p > 1 else ("1f1b", 1)
            counts = admitted(order[0], p, self.whole.question.micro_batches)
            for placement in places if p * order[1] < self.whole.count and counts else ():
                if len(placement.sizes) > axes:
                    self.left_out += 1
                    continue
                family = self.families.setdefault((row, placement.matrix), {})
                for k in counts:
                    made = Configuration(row, placement.matrix, k, *order)
                    family[k] = _Candidate(made, State(bound=_even(self.whole, made)))

    # What is asked next

    def __iter__(self) -> Iterator[_Task]:
        return self

    def __next__(self) -> _Task:
        chosen = self._next() if self.left() > 0 else None
        if chosen is None:
            raise StopIteration
        candidate, effort = chosen
        candidate.under_way = True
        self.under_way.append((candidate, effort.level))
        return self.whole, candidate.configuration, candidate.state, self.reach, effort, self.solver

    def _next(self) -> tuple[_Candidate, Effort] | None:
        for candidate in self.dives:
            return candidate, Effort(Level.PRICED, max(FIRST, self.limits.gap), seconds=self.left())
        while (chosen := self._most_promising()) is not None:
            if chosen.charted:
                return chosen, Effort(chosen.next_level, self.limits.gap, seconds=self.left())
            self._chart(chosen)
        return None

    def _dives(self) -> Iterator[_Candidate]:
        """A few configurations that are likely to be good: no pipeline, then some with meshes of one axis a level."""
        found: dict[int, _Candidate] = {}
        for (row, _), family in sorted(self.families.items(), key=lambda item: _plainness(*item[0])):
            p = prod(row)
            if p == 1 and p not in found:
                found[p] = next(iter(family.values()))
                yield from (family[k] for k in sorted(family) if self.best is None)
            elif p not in found:
                found[p] = min(family.values(), key=lambda c: (c.configuration.micro_batches < 4 * p, c.bound))
        pipelines = (c for p, c in found.items() if p > 1)
        yield from sorted(pipelines, key=lambda c: (c.bound, c.configuration))[:DIVES]

    def _most_promising(self) -> _Candidate | None:
        """The one of least bound; that of least bound without a limit of memory first, for it may be the best."""
        reach = self.reach
        idle = [c for c in self._candidates() if c.bound < reach and c.level is not Level.CLOSED and not c.under_way]
        relaxed = [c for c in idle if c.level is Level.RELAXED]
        if relaxed and all(level is not Level.PRICED for _, level in self.under_way):
            return min(relaxed, key=_order)
        while idle:
            chosen = min(idle, key=_order)
            first = self._coarsest(chosen) if chosen.level is None else chosen
            if not first.under_way:
                return first
            family = self._family(chosen)
            idle = [c for c in idle if c.level is not None or self._family(c) is not family]
        return None

    def _coarsest(self, candidate: _Candidate) -> _Candidate:
        """The coarsest cut that is still possible, and whose bound without a limit of memory holds for this one too."""
        k, family = candidate.configuration.micro_batches, self._family(candidate)
        coarser = (other for count, other in sorted(family.items()) if k % count == 0 and other.level is None)
        return next(other for other in coarser if other.bound < self.reach)

    def _chart(self, candidate: _Candidate) -> None:
        """Raise a bound by what follows from arithmetic and from coarser cuts."""
        candidate.charted, k = True, candidate.configuration.micro_batches
        for count, other in self._family(candidate).items():
            if count < k and k % count == 0:
                candidate.state.known.inherit(other.state.known)
        parts = Networks(self.whole, candidate.configuration, self.solver)
        raise_bound(parts, candidate.configuration, candidate.state)

    # What is heard

    def _hear(self, state: State, stages: Stages | None) -> None:
        candidate, level = self.under_way.popleft()
        candidate.state, candidate.level, candidate.under_way = state, level, False
        if stages is not None and (self.best is None or stages.objective < self.best[1].objective):
            self.best = candidate.configuration, stages
        if level is Level.RELAXED:
            for other in self._family(candidate).values():
                other.charted &= other is candidate
        if self.limits.progress is not None:
            self.limits.progress(Progress(self.objective, self._bound(), time.monotonic() - self.start))

    def _candidates(self) -> Iterator[_Candidate]:
        return (c for family in self.families.values() for c in family.values())

    def _family(self, candidate: _Candidate) -> dict[int, _Candidate]:
        return self.families[candidate.configuration.row, candidate.configuration.matrix]

    def _bound(self) -> int:
        known = [INFINITE if self.objective is None else self.objective, *(c.bound for c in self._candidates())]
        return min(known) if self.families else self.whole.question.floor_ns()

    def _found(self) -> OuterFound:
        everything, bound, objective = list(self._candidates()), self._bound(), self.objective
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
        return OuterFound(
            status,
            configuration,
            objective,
            stages.bounds if stages else (),
            tuple(self._decoded(configuration, stages)) if configuration and stages else (),
            bound,
            seconds,
            len(everything),
            sum(s.solved > 0 for s in states),
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

    def _decoded(self, configuration: Configuration, stages: Stages) -> Iterator[tuple[Encoding, tuple[int, ...]]]:
        parts = Networks(self.whole, configuration, self.solver)
        for s, answer in enumerate(stages.answers):
            yield parts.decoded(stages.bounds[s], stages.bounds[s + 1], configuration.in_flight(s), answer)


def _pursued(task: _Task) -> tuple[State, Stages | None]:
    """Pursue a configuration, in whatever process."""
    whole, configuration, state, reach, effort, solver = task
    kept, began = getattr(solver, "kept", 0), time.monotonic()
    parts = Networks(whole, configuration, solver)
    stages = pursue(parts, configuration, state, reach, effort)
    state.kept += getattr(solver, "kept", 0) - kept
    state.seconds += time.monotonic() - began
    state.solving += parts.solving
    state.options = max(state.options, parts.options)
    return state, stages


def _even(whole: Whole, configuration: Configuration) -> int:
    """The step if all arithmetic is spread evenly over the devices."""
    total = int(whole.floors(configuration)[0, -1])
    p, rounds = configuration.devices, configuration.micro_batches * configuration.chunks
    return total // p + (total - total // p) // rounds


def _order(candidate: _Candidate) -> tuple[object, ...]:
    c = candidate.configuration
    return candidate.level is Level.PRICED, candidate.bound, len(c.matrix), c


def _plainness(row: Row, matrix: tuple[Row, ...]) -> tuple[object, ...]:
    """Small for pipelines over the outermost level, and meshes with one axis for every level."""
    apart = all(sum(factor > 1 for factor in level) <= 1 for level in zip(*matrix, strict=True))
    return tuple(-f for f in row), not apart or len(matrix) > 2, -len(matrix), matrix
