"""Exact solving: linear program, reduced-cost fixing, reduction, in turn; then the mixed-integer program of the rest.

All of it looks for a choice of cost below some reach, so low that it deletes most pairs of options. What is found there
is the optimum; else the reach is proved as a bound, and grows: to the cost of the best choice, where one is known.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ...formulation.network.network import INFINITE
from ..elimination.kernels import Floats, Ints
from .covers import cover
from .fixing import Least, fixed
from .form import Flat
from .highs import End, Highs
from .linear import relaxed, worst
from .polytope import Held, polytope, program
from .reduce import reduced
from .substitution import Reduced

_FIRST = 2  # pairs per variable and edge within the first reach
_GROWTH = 4
_MOST = 300_000  # pairs in a program
_RETREATS = 3  # to smaller reaches, where one holds more
_SHRUNK = 0.8  # of the pairs: a network that fixing leaves larger than this is not reduced again
_RANGE, _FINEST = 1e6, 1e9  # the largest cost in the objective of a mixed-integer program
_HIDDEN = 4e-6  # of that objective's unit: what HiGHS's tolerances may hide


@dataclass(frozen=True, slots=True, eq=False)
class Exact:
    """The best choice known (None for none) with its cost (INFINITE), and a bound that no better choice goes below.

    Where the bound reaches the cost or the ceiling, it is proved; INFINITE where there is no choice at all.
    """

    choice: Ints | None
    cost: int
    bound: int


Report = Callable[[Exact], None]


def _any_better(cost: int | None) -> int:
    return INFINITE if cost is None else cost


def solve_exactly(
    flat: Flat,
    until: float = math.inf,
    choice: Ints | None = None,
    ceiling: Callable[[int | None], int] = _any_better,
    report: Report | None = None,
    proved: Least | None = None,
    highs: Highs | None = None,
) -> Exact:
    """The best choice below the ceiling, as far as the time `until` (of perf_counter) suffices.

    `choice` is one that is known; `proved` what is proved already, in place of a linear program of the whole. The
    ceiling is what a choice must cost less than to be wanted still, where one of the given cost (None for none) is
    known. `report` hears of every better choice and bound. `highs` is for who wants to cancel it.
    """
    with highs or Highs() as solver:
        closing = _Closing(flat, until, solver, ceiling, report or (lambda _: None))
        if choice is not None:
            closing.offer(choice)
        closing.close(proved)
        return closing.state


class _Closing:
    """The choice and the bound of one network, which come closer."""

    def __init__(
        self, flat: Flat, until: float, highs: Highs, ceiling: Callable[[int | None], int], report: Report
    ) -> None:
        self.flat, self.until, self.highs, self.report = flat, until, highs, report
        self.wanted_below, self.range = ceiling, _RANGE
        self.state = Exact(None, INFINITE, -INFINITE)

    @property
    def seconds(self) -> float:
        return self.until - time.perf_counter()

    @property
    def ceiling(self) -> int:
        """What a choice must cost less than."""
        return self.wanted_below(None if self.state.choice is None else self.state.cost)

    def offer(self, choice: Ints) -> bool:
        """Keep a choice if it is the best so far; whether it is feasible."""
        cost = self.flat.price(choice)
        if cost is not None and cost < self.state.cost:
            before, self.state = self.state, Exact(choice, cost, min(cost, self.state.bound))
            self.report(self.state)  # also where it refutes what was proved
            assert cost >= before.bound, (cost, before.bound)
        return cost is not None

    def prove(self, bound: int) -> None:
        bound = min(bound, self.state.cost)
        if bound > self.state.bound:
            self.state = Exact(self.state.choice, self.state.cost, bound)
            self.report(self.state)

    def close(self, proved: Least | None) -> None:
        if self.flat.variables == 0:
            nothing = np.zeros(0, np.int64)
            self.prove(self.flat.constant if self.offer(nothing) else INFINITE)
            return
        rows: tuple[int, ...] = ()
        if proved is None:
            root = relaxed(self.flat, self.until, highs=self.highs)
            if root is None:
                return
            proved, rows = root.proved, root.rows
        self.prove(proved.bound(self.flat))
        levels = np.sort(np.concatenate([proved.options, proved.entries]))
        levels = levels[: np.searchsorted(levels, np.inf)] - proved.total
        done, slack, retreats = 0.0, _at(levels, _FIRST * (self.flat.variables + len(self.flat.ends))), _RETREATS
        while self.state.bound < self.ceiling and self.seconds > 0:
            slack = min(slack, self.ceiling - self.flat.constant - proved.total)
            all_of_it = np.searchsorted(levels, slack, side="right") > _SHRUNK * len(levels)
            most = INFINITE if all_of_it else self.flat.constant + math.floor(proved.total + slack) + 1
            reach = min(self.ceiling, most)
            if reach > self.state.bound:
                before = self.state
                bound = self.below(reach, proved, rows)
                if bound is None:  # too large
                    retreats -= 1
                    if retreats < 0:
                        return
                    slack = (done + slack) / 2
                    continue
                self.prove(bound)
                if self.state == before:  # HiGHS's tolerances hide the rest
                    if self.range >= _FINEST:
                        return
                    self.range = _FINEST
            done, slack = slack, max(1.0, slack * _GROWTH, 0.0 if self.state.choice is None else _at(levels, _MOST))

    def below(self, reach: int, proved: Least, rows: Sequence[int]) -> int | None:
        """Look for the best choice of cost below `reach`; what is proved of it, `reach` or more unless time is up.

        None where too much is left for a linear program.
        """
        rest = Reduced(self.flat)
        while True:
            left = fixed(rest.flat, proved, reach)
            if left is None:
                return reach
            narrow = Reduced(left.flat, rest.lifts + left.lifts)
            if _pairs(left.flat) > _SHRUNK * _pairs(rest.flat):
                return min(reach, self.mixed(narrow, rows)) if _pairs(left.flat) <= _MOST else None
            after = reduced(left.flat, self.until)
            if after is None:
                return reach
            rest = Reduced(after.flat, narrow.lifts + after.lifts)
            if rest.flat.variables == 0:
                self.offer(rest.lift(np.zeros(0, np.int64)))
                return min(reach, rest.flat.constant)
            if _pairs(rest.flat) > _MOST:
                return None
            again = relaxed(rest.flat, self.until, highs=self.highs)
            if again is None:
                return -INFINITE
            proved, rows = again.proved, again.rows
            self.prove(min(reach, proved.bound(rest.flat)))

    def mixed(self, small: Reduced, rows: Sequence[int]) -> int:
        """Offer the best choice of a smaller network, which shall hold these capacities; a bound on all of it."""
        flat, held = small.flat, Held(list(rows))
        shape = polytope(flat)
        scale = max(1.0, float(np.abs(shape.cost).max(initial=0.0)) / self.range)
        while True:
            outcome = self.highs.solve(program(shape, held, scale, whole=True)[0], self.seconds)
            if outcome.end is End.INFEASIBLE:
                return INFINITE
            bound = flat.constant + math.ceil((outcome.bound - _HIDDEN) * scale) if outcome.bound > -1e15 else -INFINITE
            if outcome.point is None:
                return bound
            choice = shape.choice(outcome.point)
            feasible = self.offer(small.lift(choice))
            if feasible or outcome.end is End.STOPPED:
                return bound
            _hold(flat, choice, held)


def _at(levels: Floats, count: int) -> float:
    return float(levels[min(count, len(levels) - 1)]) if len(levels) else 0.0


def _hold(flat: Flat, choice: Ints, held: Held) -> None:
    """Hold capacities that a choice exceeds, or where all those are held, a cover of one."""
    over = flat.loads(choice) - flat.limits
    rows = worst(over / np.maximum(flat.limits, 1), held)
    held.rows += rows
    if not rows:
        held.covers.append(cover(flat, choice, int(over.argmax())))


def _pairs(flat: Flat) -> int:
    """How many options and pairs are allowed."""
    return sum(int((values < INFINITE).sum()) for values in (flat.cost, flat.table))
