"""Best-first search over pipelines, inner placements and numbers of micro-batches.

Every configuration starts with the lower bound that its arithmetic gives and advances level by level (`state.Level`):
bounds that ignore the memory limit, bounds that price memory, solutions, and finally the requested gap. A bound that
ignores memory also holds when micro-batches are split further by a whole factor, so the coarsest split goes first. A
configuration whose bound reaches the target (the incumbent, less the gap) is dropped: most are never solved. One of
a single stage is one network (`single_stage`); one of several stages is a choice of cuts (`cut_search`).

With pipelines, a configuration is bounded first by the one of equally many stages and micro-batches whose stages each
run on one merged device (`merged_device_bound`), and several configurations run at once. Results are recorded in the
order in which they were started, and what starts next depends only on recorded results, so the answer does not depend
on the executor or its timing.

Two spaces can be searched together: both by turns while the first one's plan is far from its bound, else the second
once the first is done. The best step so far is the cutoff of both. As soon as the second has a plan, the space with the
least bound comes first.
"""

import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import BrokenExecutor, Executor
from typing import NamedTuple

from ...model.errors import PartitaError
from ..executors import Serial, in_order
from ..protocol import NO_LIMITS, Limits, Progress, Solver
from .advance import Task, advance
from .configuration_search import ConfigurationSearch
from .pipeline_problem import PipelineProblem
from .planning_problem import PlanningProblem
from .result import ConfigurationSpace, SearchResult, without_pipelines

CONCURRENT = 3
"""Configurations that run at once if there are pipelines."""
SECOND_SHARE = 0.1
"""Time kept for a second space, as a multiple of the first one's, where that takes all of it."""


class Asked(NamedTuple):
    """A problem, and the space to search for it."""

    problem: PlanningProblem
    space: ConfigurationSpace


def search(
    problem: PlanningProblem,
    solver: Solver,
    limits: Limits = NO_LIMITS,
    space: ConfigurationSpace | None = None,
    executor: Executor | None = None,
) -> SearchResult:
    """The best plan of a space (None: the problem's placements, without pipelines).

    A time limit or KeyboardInterrupt ends it early with the best plan so far and its bound. `executor` runs the work
    if there are pipelines (None: this thread); everything submitted to it can be pickled.
    """
    (found,) = search_together([Asked(problem, space or without_pipelines(problem))], solver, limits, executor)
    if isinstance(found, PartitaError):
        raise found
    return found


def search_together(
    asked: Sequence[Asked], solver: Solver, limits: Limits = NO_LIMITS, executor: Executor | None = None
) -> list[SearchResult | PartitaError]:
    """The best plan of each of one or two spaces, or why a space has none.

    The best step so far is the cutoff of both, so a plan that is worse than that of the other space may be missing.
    """
    searches = [ConfigurationSearch(PipelineProblem(one.problem), one.space, solver, limits) for one in asked]
    piped = any(one.has_pipelines for one in searches)
    _Turns(searches, limits, (executor or Serial()) if piped else Serial()).run()
    found: list[SearchResult | PartitaError] = []
    for one in searches:
        try:
            found.append(one.result())
        except PartitaError as error:
            found.append(error)
    return found


class _Turns:
    """The tasks of all searches, in the order in which they are to be done."""

    def __init__(self, searches: Sequence[ConfigurationSearch], limits: Limits, executor: Executor) -> None:
        self.searches, self.limits, self.executor = searches, limits, executor
        self.taken: deque[ConfigurationSearch] = deque()  # whose tasks are running
        self.begun: list[ConfigurationSearch] = []
        self.exhausted = False  # whoever had its turn had nothing to do, even if its gap is still open
        for one in searches:
            one.alone = len(searches) == 1
        self.start = time.monotonic()

    def run(self) -> None:
        try:
            self._begin()
            self._run()
        except KeyboardInterrupt:
            for one in self.searches:
                one.interrupted = True

    def _begin(self) -> None:
        """Let the next search join in."""
        one = self.searches[len(self.begun)]
        one.enumerate()
        self.begun.append(one)

    def _run(self) -> None:
        """Run tasks until no open configuration is left; continue in this thread if the executor breaks."""
        ahead = CONCURRENT if any(one.has_pipelines for one in self.searches) else 1
        try:
            for state, stages in in_order(self.executor, advance, self, ahead):
                recorded = self.taken.popleft()
                recorded.record(state, stages)
                self._tell(recorded)
                if recorded.interrupted:
                    raise KeyboardInterrupt
                if self.begun == self.searches and all(one.is_done for one in self.searches):
                    return  # drop what is still running
        except BrokenExecutor:  # a worker was killed, perhaps for its memory
            for one in self.searches:
                one.drop_running()
            self.taken.clear()
            self.executor = Serial()
            self._run()

    def _tell(self, recorded: ConfigurationSearch) -> None:
        """Let all searches know of the best step, and whoever follows their progress."""
        for other in self.searches:
            other.beat(recorded.objective)
        if self.limits.progress is not None:
            steps = [one.objective for one in self.begun if one.objective is not None]
            bound = min([one.bound() for one in self.begun])
            self.limits.progress(Progress(min(steps, default=None), bound, time.monotonic() - self.start))

    def __iter__(self) -> Iterator[Task]:
        return self

    def __next__(self) -> Task:
        while True:
            for one in self._in_turn():
                task = one.next_task()
                if task is not None:
                    self.taken.append(one)
                    return task
            if self.taken or self.exhausted:
                raise StopIteration
            self.exhausted = True
            if self.begun != self.searches:
                self._begin()

    def _in_turn(self) -> Sequence[ConfigurationSearch]:
        """The searches that may have the next task, the first choice first."""
        first, *others = self.searches
        if not others:
            return self.begun
        (second,) = others
        if second.best is not None:
            return sorted(self.begun, key=lambda one: one.bound())
        needed = first.is_done or self.exhausted or self._is_late()
        if not needed and not first.is_far:
            return [first]
        if len(self.begun) == 1:
            self._begin()
        busy = len(first.running) > len(second.running)
        return [second, first] if needed or busy else [first, second]

    def _is_late(self) -> bool:
        """True if the first search has taken its share of the time."""
        return (time.monotonic() - self.start) * (1 + SECOND_SHARE) > self.limits.seconds
