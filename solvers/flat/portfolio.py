"""The way of `auto` through networks that are too wide for elimination.

Reduction first. What it leaves is closed by programs where it is small (`close.py`). Where it is large, messages give
a bound and a choice to begin with, while a descent looks for any. Then one core tries a proof from what the messages
know, under the best cost so far, and the other one descends; where the proof gives up, both descend, and what they find
is fused.
"""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor, wait
from itertools import count
from threading import Lock

import numpy as np

from ...formulation.network import INFINITE
from ..kernels import Ints
from ..protocol import STOPPED, Search, Solution
from .close import close, reduction
from .decimation import decimated, first_solution
from .descent import Descent
from .form import Flat
from .fusion import fused
from .highs import Highs
from .integer import Exact, solve_exactly
from .messages import Messages
from .proof import proved
from .substitution import Reduced

_PROGRAM = 200_000  # allowed pairs that a linear program may hold at once
_MESSAGES = 0.12, 20.0  # of the time left, seconds: what messages may take
_DECIMATION = 0.25, 60.0
_PASSES, _SWEEPS = 60, 5  # of messages before a dive; back and forth at its prices
_DEARER = 1.0, 1.03, 1.1, 0.97, 1.06  # what dives multiply prices by
_SHARES = 0.02, 0.01  # of the open variables, settled at once in dives
_DIVES = 0.5  # of the time left, for dives
_FUSED = 4  # of the best descents
_PROOF = 0.6  # of the time left, for the proof
_SLICE = 0.05, 8.0  # of the time left, seconds: what descents may take in between
_TRIAL = 0.4, 30.0  # of the time left, seconds: what programs may take where counting comes after them
_FUSION, _MOMENT = 5.0, 0.05  # seconds


def solve_flat(search: Search) -> Solution:
    """The best assignment, or the best found within the limits and a proved bound."""
    small = reduction(search)
    if isinstance(small, Solution):
        return small
    if _pairs(small.flat) <= _PROGRAM:
        return close(search, small)
    if small.flat.pair_use is not None:
        return _by_dive(search, small)
    return _Large(search, small).solve()


def try_programs(search: Search) -> Solution | None:
    """What programs make of a small network in a share of the time; None for a large one."""
    if sum(e.cost.size for e in search.network.edges) > _PROGRAM:
        return None
    small = reduction(search)
    return small if isinstance(small, Solution) else close(search, small, _until(search, *_TRIAL))


def _by_dive(search: Search, small: Reduced) -> Solution:
    """Messages and one dive, then programs: for pairs that use something, which descent does not know."""
    messages = Messages(small.flat)
    messages.climb(1 << 30, until=_until(search, *_MESSAGES))
    if messages.bound >= INFINITE:
        return search.finish("no solution, by messages", infeasible=True)
    search.raise_bound(min(messages.bound, search.ceiling))
    choice, cost = first_solution(messages, until=_until(search, *_DECIMATION))
    if cost is not None and search.better(cost):
        search.offer(tuple(small.lift(choice).tolist()))
    return close(search, small)


def _until(search: Search, share: float, most: float) -> float:
    return time.perf_counter() + min(share * search.left, most)


def _pairs(flat: Flat) -> int:
    return int((flat.table < INFINITE).sum())


class _Large:
    """A network while it is solved: `small` is what reduction left of it, `best` the best choice of that, `cost` its.

    `bound` is what the proof knows, `part` what found the best choice.
    """

    def __init__(self, search: Search, small: Reduced) -> None:
        self.search, self.small, self.lock = search, small, Lock()
        self.best: Ints | None = None
        self.cost: int | None = None
        self.bound, self.part = -INFINITE, ""
        self.descents: list[Descent] = []
        self.highs, self.stopping = Highs(), False

    def solve(self) -> Solution:
        """Messages, then the proof beside dives and descents, until the time is up or the bound reaches the cost."""
        search = self.search
        with ThreadPoolExecutor(2) as pool:
            try:
                messages = self._message(pool)
                if messages.bound >= INFINITE:
                    return search.finish("no solution, by messages", infeasible=True)
                proof = pool.submit(self._prove, messages.copy(), time.perf_counter() + _PROOF * search.left)
                self._dive(pool, proof, messages)
                self._descend(pool, proof)
            finally:
                self.stopping = True
                self.highs.cancel()
                self._publish()
        if self.bound >= INFINITE and self.cost is None:
            return search.finish("no solution, by HiGHS", infeasible=True)
        done = search.bound >= search.ceiling
        return search.finish(f"{'proved by HiGHS' if done else STOPPED}; the best by {self.part or 'nobody'}")

    def _message(self, pool: ThreadPoolExecutor) -> Messages:
        """Messages, while a first descent looks for any solution."""
        messages = Messages(self.small.flat)
        until = _until(self.search, *_MESSAGES)
        running = pool.submit(messages.climb, 1 << 30, None, until)
        first = Descent(self.small.flat, np.zeros(self.small.flat.variables, np.int64))
        self.descents.append(first)
        while not running.done():
            first.run(min(until, _until(self.search, *_SLICE)))
            self._publish()
            wait([running], _MOMENT)
        running.result()
        self.bound = messages.bound
        return messages

    def _dive(self, pool: ThreadPoolExecutor, proof: Future[None], messages: Messages) -> None:
        """Dives from messages at several prices, each followed by a slice of descent, on the cores the proof leaves."""
        until = time.perf_counter() + _DIVES * self.search.left
        mine, others = messages, messages.copy()
        beside: Future[None] | None = None
        numbers = count()
        while not self._publish() and time.perf_counter() < until:
            if proof.done() and (beside is None or beside.done()):
                proof.result()
                beside = pool.submit(self._one_dive, others, next(numbers))
            self._one_dive(mine, next(numbers))
        if beside is not None:
            beside.result()

    def _one_dive(self, messages: Messages, number: int) -> None:
        """On with the messages under the best cost, a choice by decimation, and descent from there."""
        messages.climb(_PASSES, self.cost, _until(self.search, *_SLICE))
        work = messages.copy()
        work.reprice(messages.prices * _DEARER[number % len(_DEARER)])
        work.sweep(_SWEEPS)
        choice = decimated(work, _SHARES[number % len(_SHARES)], _until(self.search, *_DECIMATION))
        descent = Descent(self.small.flat, choice, messages.prices, number + 1, self.descents[0].net)
        descent.run(_until(self.search, *_SLICE))
        with self.lock:
            self.bound = max(self.bound, messages.bound)
            self.descents.append(descent)

    def _descend(self, pool: ThreadPoolExecutor, proof: Future[None]) -> None:
        """Slices of descent of the two best on the cores that the proof leaves, and fusion of some more."""
        fused_at: int | None = None
        while not self._publish():
            best = sorted(self.descents, key=lambda d: (d.cost is None, d.cost))[:_FUSED]
            if proof.done() and self.cost is not None and self.cost != fused_at:
                proof.result()
                fused_at = self._fuse(best)
            until = _until(self.search, *_SLICE)
            beside = [pool.submit(d.run, until) for d in best[1:2] if proof.done()]
            best[0].run(until)
            for running in beside:
                running.result()

    def _fuse(self, descents: list[Descent]) -> int | None:
        """Put the best combination of what some descents found in their place; the best cost afterwards."""
        known = [x for x in (self.best, *(descent.best for descent in descents)) if x is not None]
        until = min(self.search.until, time.perf_counter() + _FUSION)
        together = fused(self.small.flat, known, until)
        if together is not None:
            self._take(together, "fusion")
            for descent in descents[1:]:
                descent.adopt(together)
        return self.cost

    def _prove(self, messages: Messages, until: float) -> None:
        """Close the network from what messages know; what it finds out is taken, whoever waits for it."""

        def ceiling(cost: int | None) -> int:
            if self.stopping:
                return -INFINITE  # nothing is wanted any more
            known = [x for x in (cost, self.cost) if x is not None]
            return self.search.limits.ceiling(min(known, default=None))

        def hear(state: Exact) -> None:
            self._take(state.choice, "HiGHS")
            with self.lock:
                self.bound = max(self.bound, state.bound)

        solve_exactly(self.small.flat, until, self.best, ceiling, hear, proved(messages), self.highs)

    def _take(self, choice: Ints | None, part: str) -> None:
        cost = None if choice is None else self.small.flat.price(choice)
        with self.lock:
            if cost is not None and (self.cost is None or cost < self.cost):
                self.best, self.cost, self.part = choice, cost, part

    def _publish(self) -> bool:
        """Tell the search what is known; whether it is done."""
        search = self.search
        for descent in list(self.descents):
            self._take(descent.best, "descent")
        with self.lock:
            best, cost, bound = self.best, self.cost, self.bound
        if best is not None and cost is not None and search.better(cost):
            search.offer(tuple(self.small.lift(best).tolist()))
        search.raise_bound(min(bound, search.ceiling))
        return search.done
