"""The portfolio of `auto` for networks too wide for elimination.

Reduction first. If little is left, programs alone may close it (`integer.py`). Then messages give a bound and a first
choice, while a descent looks for any solution. Then one core continues a proof, by programs or from the messages, under
the incumbent's cost, while the other dives and descends; if the proof gives up, both do, and their choices are fused.
Improvements of any part are reported as they come.
"""

import math
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from itertools import count
from threading import Lock

import numpy as np

from ...formulation.network.network import INFINITE
from ..elimination.kernels import Ints
from ..protocol import INEXACT, STOPPED, Search, Solution
from .decimation import any_solution, decimated, first_solution
from .descent import Descent
from .fixing import LowerBounds
from .highs import Highs
from .integer import Exact, close, fused, solve_exactly
from .messages import Messages
from .shared_state import Deadline, Incumbent
from .solve_reduced import solve_reduced
from .substitution import Reduced

_PROGRAM = 200_000  # allowed pairs that a linear program may hold at once
_TRIAL = 0.4, 30.0  # share of the time left, most seconds: for programs tried before counting
_ALONE = 0.15, 15.0  # for programs before other parts start
_MESSAGES = 0.12, 20.0  # for messages
_DECIMATION = 0.25, 60.0
_DIVES = 0.5, 150.0  # for dives
_SLICE = 0.05, 8.0  # for a descent in between
_BY_PROGRAMS, _BY_MESSAGES = 0.8, 0.6  # shares of the time left, for a proof
_PASSES, _SWEEPS = 60, 5  # of messages before a dive; at its prices
_DEARER = 1.0, 1.03, 1.1, 0.97, 1.06  # factors of the prices in dives
_SHARES = 0.02, 0.01  # of the open variables, fixed at once in dives
_KEPT = 4  # descents kept
_FUSION = 5.0  # seconds
_MOMENT, _NEWS = 0.05, 1.0  # seconds between checks of the clock, and of improvements
_PATIENCE = 60.0  # least seconds without improvement before a search without a limit ends


def solve_flat(search: Search) -> Solution:
    """The best assignment found within the limits, and a proved bound."""
    return solve_reduced(search, lambda search, small: _Portfolio(search, small).solve())


def try_programs(search: Search) -> Solution | None:
    """Try programs on a small network for a share of the time; None for a large one, or one with switches."""
    if search.network.switches or sum(e.cost.size for e in search.network.edges) > _PROGRAM:
        return None
    return solve_reduced(search, lambda _, small: close(search, small, time.perf_counter() + _share(search, *_TRIAL)))


def _share(search: Search, share: float, most: float) -> float:
    return min(share * search.left, most)


class _Portfolio:
    """The solution of one network, reduced to `small`.

    The calling thread publishes the incumbent to the search and receives interrupts. A conductor thread works itself,
    and runs a proof, dives and descents in parallel. All threads share one deadline.
    """

    def __init__(self, search: Search, small: Reduced) -> None:
        self.search, self.small, self.flat = search, small, small.flat
        self.incumbent, self.initial_cost = Incumbent(small.flat, search.bound), search.objective
        self.published: Ints | None = None
        self.deadline = Deadline(search.until)
        self.proving, self.fusing = Highs(), Highs()
        self.proof: Future[None] | None = None
        self.from_messages = False  # True once the last kind of proof started
        self.lock = Lock()  # guards `descents`
        self.descents: list[Descent] = []
        self.failure = ""

    def solve(self) -> Solution:
        """Run the parts until the time is up or the bound reaches the cost."""
        try:
            with ThreadPoolExecutor(3) as pool:
                conductor = pool.submit(self._conduct, pool)
                try:
                    self._publish_until_done(conductor)
                finally:
                    self.deadline.ended.set()
                    self.proving.cancel()
                    self.fusing.cancel()
                    wait([conductor])  # it may submit more until it notices
            if self.incumbent.choice is None and self.initial_cost is None and not self._closed:
                # some plan is better than none, even late
                self.incumbent.take(any_solution(self.flat), "a quick choice")
        finally:
            self._publish()
        conductor.result()
        return self._finish()

    @property
    def over(self) -> bool:
        """True if the network is solved or the time is up."""
        return self.deadline.past or self._closed

    @property
    def _closed(self) -> bool:
        """True if the bound reaches the cost, or what a solution must cost less than."""
        return self.incumbent.bound >= self._ceiling(None)

    def _ceiling(self, cost: int | None) -> int:
        """The cost that a choice must beat, given another one of this cost."""
        costs = [x for x in (cost, self.incumbent.cost, self.initial_cost) if x is not None]
        return self.search.limits.ceiling(min(costs, default=None))

    def _slice(self, share: float, most: float) -> Deadline:
        return self.deadline.within(_share(self.search, share, most))

    # Publishing

    def _publish_until_done(self, conductor: Future[None]) -> None:
        last = -math.inf
        while not conductor.done() and not self.over:
            wait([conductor], _MOMENT)
            if time.perf_counter() > last + _NEWS:
                self._publish()
                last = time.perf_counter()

    def _publish(self) -> None:
        search, known = self.search, self.incumbent.now()
        if known.refuted:  # a published bound may be wrong
            search.bound = min(search.bound, known.bound)
        if known.choice is not None and known.choice is not self.published:
            search.offer(self.small.assignment(known.choice))
            self.published = known.choice
        search.raise_bound(min(known.bound, search.ceiling))

    def _finish(self) -> Solution:
        search, known = self.search, self.incumbent.now()
        if search.assignment is None and known.bound >= INFINITE:
            return search.finish(f"no solution, by {known.prover}", infeasible=True)
        words = []
        if search.objective != search.bound:
            ends = (
                (search.bound >= search.ceiling, "within the requested gap"),
                (search.left <= 0, STOPPED),
                (known.bound >= self._ceiling(None), INEXACT),
                (True, "no improvement for long"),
            )
            words.append(next(end for so, end in ends if so))
        if known.bound > -INFINITE:
            words.append(f"{'the bound' if words else 'proved'} by {known.prover}")
        words += [f"the best by {known.finder}"] * (search.objective == known.cost is not None)
        words += [f"a bound by {part} was wrong" for part in known.refuted]
        return search.finish("; ".join(words + [self.failure] * bool(self.failure)))

    # The conductor

    def _conduct(self, pool: ThreadPoolExecutor) -> None:
        """Programs alone, messages, then the proof in parallel with dives and descents."""
        if int((self.flat.table < INFINITE).sum()) <= _PROGRAM and not self.over:
            self.proof = pool.submit(self._prove, None, self.deadline.within(_BY_PROGRAMS * self.search.left))
            alone = self._slice(*_ALONE)
            while not (alone.past or self.over or self.proof.done()):
                wait([self.proof], _MOMENT)
        if self.over:
            return
        messages = self._message(pool)
        self._dive(pool, messages)
        while not (self._can_descend or self.over or self._stalled()):  # the parallel dive improved the incumbent
            self._dive(pool, messages)
        if self._can_descend:
            self._descend(pool, messages)

    def _message(self, pool: ThreadPoolExecutor) -> Messages:
        """Compute messages, while a first descent looks for any solution."""
        messages, until = Messages(self.flat), self._slice(*_MESSAGES)
        running = pool.submit(messages.climb, 1 << 30, None, until)
        if self._can_descend:
            self.descents.append(Descent(self.flat, np.zeros(self.flat.variables, np.int64)))
        while not running.done():
            for descent in self.descents:
                self._run(descent, until.within(_NEWS))
            wait([running], _MOMENT)
            self.incumbent.prove(messages.bound, "messages")
        running.result()
        self.incumbent.prove(messages.bound, "messages")
        return messages

    @property
    def _can_descend(self) -> bool:
        """True if descent handles this network."""
        return self.flat.pair_use is None

    def _dive(self, pool: ThreadPoolExecutor, messages: Messages) -> None:
        """Dive from messages at several prices, on cores free of the proof; to the end if there is no descent."""
        until = self._slice(*_DIVES) if self._can_descend else self.deadline
        mine, others = messages, messages.copy()
        parallel: Future[None] | None = None
        numbers = count()
        while not (until.past or self.over or self._stalled()):
            if not self._proof_runs(pool, mine) and (parallel is None or parallel.done()):
                if parallel is not None:
                    parallel.result()
                parallel = pool.submit(self._attempt, "a dive", partial(self._one_dive, others, next(numbers)))
            self._attempt("a dive", partial(self._one_dive, mine, next(numbers)))
        if parallel is not None:
            parallel.result()

    def _one_dive(self, messages: Messages, number: int) -> None:
        """Improve the messages under the best cost, decimate, and descend from that choice."""
        messages.climb(_PASSES, self.incumbent.cost, self._slice(*_SLICE))
        self.incumbent.prove(messages.bound, "messages")
        dearer, share = _DEARER[number % len(_DEARER)], _SHARES[number % len(_SHARES)]
        work = messages.copy()
        work.reprice(messages.prices * dearer)
        work.sweep(_SWEEPS)
        until = self._slice(*_DECIMATION)
        if not self._can_descend:
            self.incumbent.take(first_solution(work, share, until)[0], "dive")
            return
        choice = decimated(work, share, until)
        self.incumbent.take(choice, "dive")
        descent = Descent(self.flat, choice, messages.prices, number + 1, self.descents[0].net)
        self._run(descent, self._slice(*_SLICE))
        self._keep(descent)

    def _descend(self, pool: ThreadPoolExecutor, messages: Messages) -> None:
        """Run the two best descents in slices on the cores that the proof leaves, and fuse the best choices."""
        fused_at: int | None = None
        while not (self.over or self._stalled()):
            proof_runs = self._proof_runs(pool, messages)
            if not proof_runs and self.incumbent.cost != fused_at:
                self._attempt("fusion", self._fuse)
                fused_at = self.incumbent.cost
            until = self._slice(*_SLICE)
            parallel = [pool.submit(self._run, descent, until) for descent in self.descents[1:2] if not proof_runs]
            self._run(self.descents[0], until)
            for running in parallel:
                running.result()
            self._keep()

    def _run(self, descent: Descent, until: Deadline) -> None:
        while not (until.past or self.over):
            self.incumbent.take(descent.run(until.within(_NEWS)), "descent")

    def _keep(self, *more: Descent) -> None:
        """Add descents and keep the best ones, the best first."""
        with self.lock:
            self.descents = sorted([*self.descents, *more], key=lambda d: (d.cost is None, d.cost))[:_KEPT]

    def _fuse(self) -> None:
        """Fuse the choices of all descents, and continue all but the best from the result."""
        known = [x for x in (self.incumbent.choice, *(descent.best for descent in self.descents)) if x is not None]
        together = fused(self.flat, known, self.deadline.within(_FUSION), self.fusing)
        if together is not None:
            self.incumbent.take(together, "fusion")
            for descent in self.descents[1:]:
                descent.adopt(together)

    def _stalled(self) -> bool:
        """Without a time limit: True if no proof runs and the last improvement is as long ago as it took."""
        if math.isfinite(self.deadline.at) or self.proof is None or not self.proof.done():
            return False
        now, last = time.perf_counter(), self.incumbent.changed
        return now - last > max(_PATIENCE, last - self.search.started)

    # The proof

    def _proof_runs(self, pool: ThreadPoolExecutor, messages: Messages) -> bool:
        """True if a proof is running; starts the one from messages once programs gave up or were not tried."""
        if not self.from_messages and (self.proof is None or self.proof.done()):
            self.from_messages, until = True, self.deadline.within(_BY_MESSAGES * self.search.left)
            self.proof = pool.submit(self._prove, messages.copy(), until)
        return self.proof is not None and not self.proof.done()

    def _prove(self, messages: Messages | None, until: Deadline) -> None:
        """Try to prove optimality from messages (None: from a linear program of the whole network)."""

        def ceiling(cost: int | None) -> int:
            return -INFINITE if until.past else self._ceiling(cost)

        def report(state: Exact) -> None:
            self.incumbent.take(state.choice, "HiGHS")
            self.incumbent.prove(state.bound, "HiGHS")

        def close_it() -> None:
            start: LowerBounds | None = None if messages is None else messages.lower_bounds()
            if start is not None:
                self.incumbent.prove(start.bound(self.flat), "messages")
            known = self.flat, until.at, self.incumbent.choice
            solve_exactly(*known, ceiling, report, start, self.proving)

        self._attempt("HiGHS", close_it)

    def _attempt(self, part: str, work: Callable[[], None]) -> None:
        """Run a part; if it fails, the others continue."""
        try:
            work()
        except Exception as error:  # out of memory, no process, float tolerances
            self.failure = f"{part} failed ({type(error).__name__}{f': {error}' if str(error) else ''})"
            if isinstance(error, AssertionError):  # a choice costs less than its bound
                self.incumbent.withdraw(part)
