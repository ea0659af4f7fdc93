"""The way of `auto` through networks that are too wide for elimination.

Reduction first. Where little is left, programs alone are given a while to close it (`integer.py`). Then messages give a
bound and a choice to begin with, while a descent looks for any. Then one core goes on with a proof, by programs or from
what the messages know, under the best cost so far, and the other one dives and descends; where the proof gives up, both
do, and what they find is fused. What any part finds or proves is told as it comes.
"""

from __future__ import annotations

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
from .close import close, reduction
from .deadline import Deadline
from .decimation import decimated, first_solution
from .descent import Descent
from .fixing import Least
from .fusion import fused
from .highs import Highs
from .incumbent import Known
from .integer import Exact, solve_exactly
from .messages import Messages
from .proof import proved
from .substitution import Reduced

_PROGRAM = 200_000  # allowed pairs that a linear program may hold at once
_TRIAL = 0.4, 30.0  # of the time left, seconds: what programs may take where counting comes after them
_ALONE = 0.15, 15.0  # what they may take before others work beside them
_MESSAGES = 0.12, 20.0  # what messages may take
_DECIMATION = 0.25, 60.0
_DIVES = 0.5, 150.0  # for dives
_SLICE = 0.05, 8.0  # what descents may take in between
_BY_PROGRAMS, _BY_MESSAGES = 0.8, 0.6  # of the time left, for a proof
_PASSES, _SWEEPS = 60, 5  # of messages before a dive; back and forth at its prices
_DEARER = 1.0, 1.03, 1.1, 0.97, 1.06  # what dives multiply prices by
_SHARES = 0.02, 0.01  # of the open variables, settled at once in dives
_KEPT = 4  # of the best descents
_FUSION = 5.0  # seconds
_MOMENT, _NEWS = 0.05, 1.0  # seconds between two looks at the clock, and at what is new
_PATIENCE = 60.0  # seconds at least without anything new before a search without a limit ends


def solve_flat(search: Search) -> Solution:
    """The best assignment, or the best found within the limits and a proved bound."""
    small = reduction(search)
    return small if isinstance(small, Solution) else _Portfolio(search, small).solve()


def try_programs(search: Search) -> Solution | None:
    """What programs make of a small network in a share of the time; None for a large one, or one with switches."""
    if search.network.switches or sum(e.cost.size for e in search.network.edges) > _PROGRAM:
        return None
    small = reduction(search)
    return small if isinstance(small, Solution) else close(search, small, time.perf_counter() + _share(search, *_TRIAL))


def _share(search: Search, share: float, most: float) -> float:
    return min(share * search.left, most)


class _Portfolio:
    """A network while it is solved: `small` is what reduction left of it.

    The thread that was called tells the search what is `known`, and is the one that an interrupt ends. A thread of its
    own conducts: it works itself, and has a proof and more dives and descents beside it. All of them see the same
    deadline.
    """

    def __init__(self, search: Search, small: Reduced) -> None:
        self.search, self.small, self.flat = search, small, small.flat
        self.known, self.before = Known(small.flat, search.bound), search.objective
        self.told: Ints | None = None
        self.deadline = Deadline(search.until)
        self.proving, self.fusing = Highs(), Highs()
        self.proof: Future[None] | None = None
        self.from_messages = False  # whether that is the proof, the last that is tried
        self.lock = Lock()  # of the descents that nobody works on
        self.descents: list[Descent] = []
        self.trouble = ""

    def solve(self) -> Solution:
        """Let the parts work until the time is up, or the bound reaches the cost."""
        try:
            with ThreadPoolExecutor(3) as pool:
                conductor = pool.submit(self._conduct, pool)
                try:
                    self._tell(conductor)
                finally:
                    self.deadline.ended.set()
                    self.proving.cancel()
                    self.fusing.cancel()
                    wait([conductor])  # it may submit more until it sees that
        finally:
            self._publish()
        conductor.result()
        return self._finish()

    @property
    def over(self) -> bool:
        """True if nothing is left to do, or no time."""
        return self.deadline.past or self.known.bound >= self._ceiling(None)

    def _ceiling(self, cost: int | None) -> int:
        """What a choice must cost less than, where one of this cost is known as well."""
        costs = [x for x in (cost, self.known.cost, self.before) if x is not None]
        return self.search.limits.ceiling(min(costs, default=None))

    def _slice(self, share: float, most: float) -> Deadline:
        return self.deadline.within(_share(self.search, share, most))

    # What the search hears

    def _tell(self, conductor: Future[None]) -> None:
        news = -math.inf
        while not conductor.done() and not self.over:
            wait([conductor], _MOMENT)
            if time.perf_counter() > news + _NEWS:
                self._publish()
                news = time.perf_counter()

    def _publish(self) -> None:
        search, known = self.search, self.known.now()
        if known.refuted:  # what was told may be wrong
            search.bound = min(search.bound, known.bound)
        if known.choice is not None and known.choice is not self.told:
            search.offer(tuple(self.small.lift(known.choice).tolist()))
            self.told = known.choice
        search.raise_bound(min(known.bound, search.ceiling))

    def _finish(self) -> Solution:
        search, known = self.search, self.known.now()
        if search.assignment is None and known.bound >= INFINITE:
            return search.finish(f"no solution, by {known.prover}", infeasible=True)
        words = []
        if search.objective != search.bound:
            ends = (
                (search.bound >= search.ceiling, "as close as was asked for"),
                (search.left <= 0, STOPPED),
                (known.bound >= self._ceiling(None), INEXACT),
                (True, "nothing better for long"),
            )
            words.append(next(end for so, end in ends if so))
        if known.bound > -INFINITE:
            words.append(f"{'the bound' if words else 'proved'} by {known.prover}")
        words += [f"the best by {known.finder}"] * (search.objective == known.cost is not None)
        words += [f"a bound by {part} was wrong" for part in known.refuted]
        return search.finish("; ".join(words + [self.trouble] * bool(self.trouble)))

    # The conductor

    def _conduct(self, pool: ThreadPoolExecutor) -> None:
        """Programs alone, messages, then the proof beside dives and descents."""
        if int((self.flat.table < INFINITE).sum()) <= _PROGRAM and not self.over:
            self.proof = pool.submit(self._prove, None, self.deadline.within(_BY_PROGRAMS * self.search.left))
            alone = self._slice(*_ALONE)
            while not (alone.past or self.over or self.proof.done()):
                wait([self.proof], _MOMENT)
        if self.over:
            return
        messages = self._message(pool)
        self._dive(pool, messages)
        while not (self._descends or self.over or self._waited_long()):  # the dive beside the last one brought news
            self._dive(pool, messages)
        if self._descends:
            self._descend(pool, messages)

    def _message(self, pool: ThreadPoolExecutor) -> Messages:
        """Messages, while a first descent looks for any solution."""
        messages, until = Messages(self.flat), self._slice(*_MESSAGES)
        running = pool.submit(messages.climb, 1 << 30, None, until)
        if self._descends:
            self.descents.append(Descent(self.flat, np.zeros(self.flat.variables, np.int64)))
        while not running.done():
            for descent in self.descents:
                self._run(descent, until.within(_NEWS))
            wait([running], _MOMENT)
            self.known.prove(messages.bound, "messages")
        running.result()
        self.known.prove(messages.bound, "messages")
        return messages

    @property
    def _descends(self) -> bool:
        """True if descent handles this network."""
        return self.flat.pair_use is None

    def _dive(self, pool: ThreadPoolExecutor, messages: Messages) -> None:
        """Dives from messages at several prices, on the cores that the proof leaves; for ever where nothing follows."""
        until = self._slice(*_DIVES) if self._descends else self.deadline
        mine, others = messages, messages.copy()
        beside: Future[None] | None = None
        numbers = count()
        while not (until.past or self.over or self._waited_long()):
            if not self._proves(pool, mine) and (beside is None or beside.done()):
                if beside is not None:
                    beside.result()
                beside = pool.submit(self._attempt, "a dive", partial(self._one_dive, others, next(numbers)))
            self._attempt("a dive", partial(self._one_dive, mine, next(numbers)))
        if beside is not None:
            beside.result()

    def _one_dive(self, messages: Messages, number: int) -> None:
        """On with the messages under the best cost, a choice by decimation, and descent from there."""
        messages.climb(_PASSES, self.known.cost, self._slice(*_SLICE))
        self.known.prove(messages.bound, "messages")
        dearer, share = _DEARER[number % len(_DEARER)], _SHARES[number % len(_SHARES)]
        work = messages.copy()
        work.reprice(messages.prices * dearer)
        work.sweep(_SWEEPS)
        until = self._slice(*_DECIMATION)
        if not self._descends:
            self.known.take(first_solution(work, share, until)[0], "dive")
            return
        choice = decimated(work, share, until)
        self.known.take(choice, "dive")
        descent = Descent(self.flat, choice, messages.prices, number + 1, self.descents[0].net)
        self._run(descent, self._slice(*_SLICE))
        self._keep(descent)

    def _descend(self, pool: ThreadPoolExecutor, messages: Messages) -> None:
        """Slices of descent of the two best on the cores that the proof leaves, and fusion of some more."""
        fused_at: int | None = None
        while not (self.over or self._waited_long()):
            proves = self._proves(pool, messages)
            if not proves and self.known.cost != fused_at:
                self._attempt("fusion", self._fuse)
                fused_at = self.known.cost
            until = self._slice(*_SLICE)
            beside = [pool.submit(self._run, descent, until) for descent in self.descents[1:2] if not proves]
            self._run(self.descents[0], until)
            for running in beside:
                running.result()
            self._keep()

    def _run(self, descent: Descent, until: Deadline) -> None:
        while not (until.past or self.over):
            self.known.take(descent.run(until.within(_NEWS)), "descent")

    def _keep(self, *more: Descent) -> None:
        """Keep the best descents, these among them, the best first."""
        with self.lock:
            self.descents = sorted([*self.descents, *more], key=lambda d: (d.cost is None, d.cost))[:_KEPT]

    def _fuse(self) -> None:
        """Put the best combination of what descents found in the place of all but the best."""
        known = [x for x in (self.known.choice, *(descent.best for descent in self.descents)) if x is not None]
        together = fused(self.flat, known, self.deadline.within(_FUSION), self.fusing)
        if together is not None:
            self.known.take(together, "fusion")
            for descent in self.descents[1:]:
                descent.adopt(together)

    def _waited_long(self) -> bool:
        """Without a time limit: whether nothing new came for as long as all before, and no proof is under way."""
        if math.isfinite(self.deadline.at) or self.proof is None or not self.proof.done():
            return False
        now, last = time.perf_counter(), self.known.changed
        return now - last > max(_PATIENCE, last - self.search.started)

    # The proof

    def _proves(self, pool: ThreadPoolExecutor, messages: Messages) -> bool:
        """True if a proof is under way; where none was tried or programs alone gave up, that from messages begins."""
        if not self.from_messages and (self.proof is None or self.proof.done()):
            self.from_messages, until = True, self.deadline.within(_BY_MESSAGES * self.search.left)
            self.proof = pool.submit(self._prove, messages.copy(), until)
        return self.proof is not None and not self.proof.done()

    def _prove(self, messages: Messages | None, until: Deadline) -> None:
        """Close the network from what messages know (None: from a linear program of all of it), as far as it goes."""

        def ceiling(cost: int | None) -> int:
            return -INFINITE if until.past else self._ceiling(cost)

        def hear(state: Exact) -> None:
            self.known.take(state.choice, "HiGHS")
            self.known.prove(state.bound, "HiGHS")

        def close_it() -> None:
            start: Least | None = None if messages is None else proved(messages)
            if start is not None:
                self.known.prove(start.bound(self.flat), "messages")
            known = self.flat, until.at, self.known.choice
            solve_exactly(*known, ceiling, hear, start, self.proving)

        self._attempt("HiGHS", close_it)

    def _attempt(self, part: str, work: Callable[[], None]) -> None:
        """Work that may break off, while the others go on."""
        try:
            work()
        except Exception as error:  # of memory, of processes, of what floats let through
            self.trouble = f"{part} broke off ({type(error).__name__}{f': {error}' if str(error) else ''})"
            if isinstance(error, AssertionError):  # a choice costs less than what was proved
                self.known.withdraw(part)
