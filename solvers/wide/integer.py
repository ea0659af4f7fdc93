"""Exact solving: linear program, reduced-cost fixing and reduction in turn, then a mixed-integer program of the rest.

Each round looks for choices of cost below a reach low enough to delete most pairs of options. The best one found is
optimal; if there is none, the reach is a lower bound, and grows, at most to the cost of the incumbent.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ...formulation.network.network import INFINITE
from ..elimination.kernels import Floats, Ints
from ..protocol import STOPPED, Search, Solution
from .fixing import LowerBounds, fixed
from .form import Flat
from .highs import End, Highs
from .polytope import ActiveRows, cover, polytope, program, relaxed, worst
from .reduce import reduced
from .shared_state import Deadline
from .substitution import Reduced

_FIRST = 2  # pairs per variable and edge within the first reach
_GROWTH = 4
_MOST = 300_000  # pairs per program
_RETREATS = 3  # to smaller reaches, after programs too large
_SHRUNK = 0.8  # of the pairs: reduction follows only if fixing leaves a smaller share
RANGE, _FINEST = 1e6, 1e9  # the largest cost in the objective of a mixed-integer program
HIDDEN = 4e-6  # of that objective's unit: the error within HiGHS's tolerances


@dataclass(frozen=True, slots=True, eq=False)
class Exact:
    """The best choice known (or None) with its cost (or INFINITE), and a lower bound on any better choice.

    The choice is optimal once the bound reaches its cost or the ceiling. The bound is INFINITE if infeasible.
    """

    choice: Ints | None
    cost: int
    bound: int


Report = Callable[[Exact], None]
Ceiling = Callable[[int | None], int]


def solve_exactly(
    flat: Flat,
    until: float = math.inf,
    choice: Ints | None = None,
    ceiling: Ceiling = lambda cost: INFINITE if cost is None else cost,
    report: Report = lambda state: None,
    proved: LowerBounds | None = None,
    highs: Highs | None = None,
) -> Exact:
    """The best choice below the ceiling found before `until` (of perf_counter).

    `choice` is an initial incumbent; `proved` replaces the linear program of the whole network. `ceiling` maps the
    incumbent's cost (or None) to the cost that a choice must beat. `report` receives every better choice and bound.
    Pass `highs` to be able to cancel it.
    """
    with highs or Highs() as solver:
        search = _ExactSearch(flat, until, solver, ceiling, report)
        if choice is not None:
            search.offer(choice)
        search.close(proved)
        return search.state


def close(search: Search, small: Reduced, until: float = math.inf) -> Solution:
    """Solve a search's network, reduced to `small`, until the search's deadline or `until` (of perf_counter)."""
    offered = INFINITE

    def report(state: Exact) -> None:
        nonlocal offered
        if state.choice is not None and state.cost < offered:
            offered = state.cost
            search.offer(small.assignment(state.choice))
        search.raise_bound(min(state.bound, search.ceiling))

    def ceiling(cost: int | None) -> int:
        return min(search.ceiling, search.limits.ceiling(cost))

    before = search.bound
    try:
        best = solve_exactly(small.flat, min(until, search.until), None, ceiling, report)
    except (AssertionError, MemoryError, OSError) as error:  # a choice below HiGHS's bound; out of memory; no process
        search.bound = before
        return search.finish(f"HiGHS failed ({type(error).__name__})")
    if search.assignment is None and best.bound >= INFINITE:
        return search.finish("no solution, by HiGHS", infeasible=True)
    if search.bound >= search.ceiling:
        return search.finish("proved by HiGHS")
    gave_up = "HiGHS cannot close the gap: too large, or cost differences too small"
    return search.finish(STOPPED if search.left <= 0 else gave_up)


def lower_bound(flat: Flat, until: float, highs: Highs) -> int:
    """What one mixed-integer program, without further reduction, proves of all choices before `until`."""
    return _ExactSearch(flat, until, highs, lambda cost: INFINITE, lambda state: None).mixed(Reduced(flat), ())


def restricted(flat: Flat, choices: Sequence[Ints]) -> Flat:
    """The network with all options forbidden that no choice takes."""
    taken = np.zeros(len(flat.cost), np.bool_)
    for choice in choices:
        taken[flat.start[:-1] + choice] = True
    return replace(flat, cost=np.where(taken, flat.cost, INFINITE))


def fused(flat: Flat, choices: Sequence[Ints], until: Deadline, highs: Highs | None = None) -> Ints | None:
    """The best combination of the choices found by the deadline; None unless it beats all of them.

    It takes each option from one of the choices. Good choices mostly agree; where they differ, few options per variable
    remain: a network that reduces to a small one. `highs` allows cancelling.
    """
    known = min((price for choice in choices if (price := flat.price(choice)) is not None), default=INFINITE)
    small = reduced(restricted(flat, choices), until.at)
    if small is None:
        return None

    def ceiling(cost: int | None) -> int:
        return -INFINITE if until.past else known if cost is None else min(cost, known)

    exact = solve_exactly(small.flat, until.at, ceiling=ceiling, highs=highs)
    return None if exact.choice is None or exact.cost >= known else small.lift(exact.choice)


class _ExactSearch:
    """The incumbent and the bound of one network."""

    def __init__(self, flat: Flat, until: float, highs: Highs, ceiling: Ceiling, report: Report) -> None:
        self.flat, self.until, self.highs, self.report = flat, until, highs, report
        self.ceiling_for, self.range = ceiling, RANGE
        self.state = Exact(None, INFINITE, -INFINITE)

    @property
    def seconds(self) -> float:
        return self.until - time.perf_counter()

    @property
    def ceiling(self) -> int:
        """The cost that a choice must beat."""
        return self.ceiling_for(None if self.state.choice is None else self.state.cost)

    def offer(self, choice: Ints) -> bool:
        """Keep a choice if it is feasible and cheaper; True if it is feasible."""
        cost = self.flat.price(choice)
        if cost is not None and cost < self.state.cost:
            before, self.state = self.state, Exact(choice, cost, min(cost, self.state.bound))
            self.report(self.state)  # even if it refutes the bound
            assert cost >= before.bound, (cost, before.bound)
        return cost is not None

    def prove(self, bound: int) -> None:
        bound = min(bound, self.state.cost)
        if bound > self.state.bound:
            self.state = Exact(self.state.choice, self.state.cost, bound)
            self.report(self.state)

    def close(self, proved: LowerBounds | None) -> None:
        """Raise the reach until the bound meets the ceiling."""
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
            deletes_little = np.searchsorted(levels, slack, side="right") > _SHRUNK * len(levels)
            limit = INFINITE if deletes_little else self.flat.constant + math.floor(proved.total + slack) + 1
            reach = min(self.ceiling, limit)
            if reach > self.state.bound:
                before = self.state
                bound = self.search_below(reach, proved, rows)
                if bound is None:  # too large
                    retreats -= 1
                    if retreats < 0:
                        return
                    slack = (done + slack) / 2
                    continue
                self.prove(bound)
                if self.state == before:  # the rest is within HiGHS's tolerances
                    if self.range >= _FINEST:
                        return
                    self.range = _FINEST
            done, slack = slack, max(1.0, slack * _GROWTH, 0.0 if self.state.choice is None else _at(levels, _MOST))

    def search_below(self, reach: int, proved: LowerBounds, rows: Sequence[int]) -> int | None:
        """Offer the best choice of cost below `reach`; returns a bound on it, `reach` or more unless time is up.

        None if too much is left for a linear program.
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
        """Offer the best choice of a reduced network by integer programs, from the capacities `rows` on; its bound."""
        flat, held = small.flat, ActiveRows(list(rows))
        shape = polytope(flat)
        scale = max(1.0, float(np.abs(shape.cost).max(initial=0.0)) / self.range)
        while True:
            outcome = self.highs.solve(program(shape, held, scale, whole=True)[0], self.seconds)
            if outcome.end is End.INFEASIBLE:
                return INFINITE
            bound = flat.constant + math.ceil((outcome.bound - HIDDEN) * scale) if outcome.bound > -1e15 else -INFINITE
            if outcome.point is None:
                return bound
            choice = shape.choice(outcome.point)
            feasible = self.offer(small.lift(choice))
            if feasible or outcome.end is End.STOPPED:
                return bound
            _hold(flat, choice, held)


def _at(levels: Floats, count: int) -> float:
    return float(levels[min(count, len(levels) - 1)]) if len(levels) else 0.0


def _hold(flat: Flat, choice: Ints, held: ActiveRows) -> None:
    """Add the capacities that a choice exceeds to the program, or a cover of one if all are in it."""
    over = flat.loads(choice) - flat.limits
    rows = worst(over / np.maximum(flat.limits, 1), held)
    held.rows += rows
    if not rows:
        held.covers.append(cover(flat, choice, int(over.argmax())))


def _pairs(flat: Flat) -> int:
    """Number of allowed options and pairs."""
    return sum(int((values < INFINITE).sum()) for values in (flat.cost, flat.table))
