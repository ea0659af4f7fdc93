"""What switches use for a while: the largest of it, τ, takes its part of capacity 0 from all else.

    min cost(x)   s.t.  use_0(x) + τ ≤ M_0,   extra_s(x) ≤ τ  ∀ switches s

1. *Price*: the mean of the extras of some switches is no more than the largest, which gives a network without extras,
   and a bound (`transient_relaxation.py`).
2. *List*: within a slack, the labels (time, use, extra) of every segment (`segment_lists.py`).
3. *Divide*: solutions whose τ is in [lo, hi] are made of labels up to hi, under M_0 - lo. Where the best of these needs
   more than lo, [lo, hi] falls apart at what it needs; that, left free, gives incumbents.
4. Where lists grow too long, [0, M_0] falls apart before: the more is used for a while, the better is the bound without
   extras, under M_0 - lo; the less may be used, the shorter are the lists.
5. The slack grows until it reaches the incumbent.
"""

import heapq
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import floor

import numpy as np

from ...formulation.network.network import INFINITE, Network, evaluate, extras
from ..protocol import INTERRUPTED, PRICED, STOPPED, Limits, Search, Solution, Status, TooManyError
from .circuit import Circuit
from .labels import LabelBounds
from .memory_price import Price, at_price, search_within, sweep
from .order import TooWideError, compile_network, restrict
from .segment_lists import Columns, blocks_of, list_segments
from .tables import Tables
from .transient_relaxation import Groups, groups_of, with_means

EXTRAS = "what switches use for a while has no place in its program"
_FEW, _LABELS = 1 << 14, 1 << 18  # in one table, where the answer is wanted quickly, and else
_LONG = 12  # intervals that are divided for their lists, each of which took seconds
_QUICK = 2.0, 5.0  # times what the price takes, and seconds, after which a quick search has no lists any more
_TRIES = 8  # of τ
_TRIAL = 1.0  # seconds for a solution of some τ, beside those that the price took
_Solve = Callable[[Network, Limits], Solution]
_Node = tuple[int, int, int]  # what solutions cost at least whose extras are between two levels


def has_extras(network: Network) -> bool:
    """True if there are extras, and a capacity that they are used of."""
    return bool(network.capacities) and any(s.has_extra for s in network.switches)


def without_extras(network: Network, tau: int = 0) -> Network:
    """The network without extras, whose capacity 0 is less by `tau`."""
    switches = tuple(
        replace(
            s,
            variables={v: (cost, use, None) for v, (cost, use, _) in s.variables.items()},
            edges={k: (cost, use, None) for k, (cost, use, _) in s.edges.items()},
        )
        for s in network.switches
    )
    first, *others = network.capacities
    return replace(network, switches=switches, capacities=(first - tau, *others))


def solve_transient(search: Search, solve: _Solve) -> Solution:
    """The solution of a search's network by a solver of those without extras."""
    try:
        circuit = compile_network(search.network)
    except TooWideError:
        return _solve_wide(search, solve)
    groups = groups_of(search.network)
    mean = with_means(circuit, groups)
    if not mean.exact:
        return _solve_wide(search, solve)
    best = sweep(mean, search)
    if best is None:
        return search.finish("no solution, at any price of memory", infeasible=True)
    if search.done:
        return search.finish("proved by prices" if search.bound >= search.ceiling else STOPPED)
    if search.limits.rough:
        return search.finish(PRICED)
    division = _Division(search, solve, circuit, groups, mean=mean, best=best, took=search.seconds)
    try:
        solution = search_within(mean, best, search, division.offer, ("lists of segments", "lists of segments"))
    except TooWideError as error:
        return search.finish(f"too wide for lists: {error}")
    return replace(solution, words=PRICED) if search.limits.quick and not search.done else solution


def _largest(network: Network, assignment: tuple[int, ...]) -> int:
    return max(extras(network, assignment).values(), default=0)


def _solve_wide(search: Search, solve: _Solve) -> Solution:
    """A bound without extras, and solutions under a growing τ."""
    answer = _asked(search, solve, without_extras(search.network), replace(search.limits, seconds=search.left))
    if answer.status is Status.INFEASIBLE:
        return search.finish(answer.words, infeasible=True)
    search.raise_bound(answer.bound)
    if answer.assignment is not None and not search.offer(answer.assignment) and not search.limits.rough:
        _grow(search, solve, _largest(search.network, answer.assignment))
    return search.finish("" if search.done else "too wide to price what switches use for a while")


def _grow(search: Search, solve: _Solve, tau: int) -> None:
    """Offer solutions under some τ, each what the solution before uses for a while."""
    tried = set[int]()
    while tau not in tried and tau <= search.network.capacities[0] and len(tried) < _TRIES and not search.done:
        tried.add(tau)
        limits = Limits(search.left, search.ceiling, gap=search.limits.gap, quick=True)
        answer = _asked(search, solve, without_extras(search.network, tau), limits)
        if answer.assignment is None:
            return
        search.offer(answer.assignment)
        tau = _largest(search.network, answer.assignment)


def _asked(search: Search, solve: _Solve, network: Network, limits: Limits) -> Solution:
    """What a solver answers; an interrupt of it is one of the search."""
    answer = solve(network, replace(limits, progress=None))
    if answer.words == INTERRUPTED:
        raise KeyboardInterrupt
    return answer


@dataclass(frozen=True, slots=True, eq=False)
class _Relaxed:
    """A circuit without extras, or with means of groups, its price, and what is best through every entry there.

    Capacity 0 is less by `tau`.
    """

    circuit: Circuit
    price: Price
    through: Tables
    groups: Groups = ()
    tau: int = 0

    def bound(self, low: int) -> int:
        """What a solution costs at least that uses `low` for a while."""
        return self.price.bound + floor(self.price.price[0] * (low - self.tau))

    def most(self, low: int, reach: int) -> float:
        """The most that one of at most the cost `reach` totals."""
        return self.price.most(self.circuit, reach) - self.price.price[0] * (low - self.tau)


@dataclass(eq=False)
class _Division:
    """The search for solutions by what their switches use for a while at most."""

    search: Search
    solve: _Solve
    plain: Circuit
    groups: Groups
    mean: Circuit
    best: Price  # of the mean
    took: float  # seconds
    tried: set[int] = field(default_factory=set)
    long: int = 0  # lists that grew too long

    def __post_init__(self) -> None:
        self.blocks = blocks_of(self.search.network)

    @cached_property
    def alone(self) -> "_Relaxed":
        """The circuit without extras, priced where capacity 0 is less by what the incumbent uses for a while."""
        search, network = self.search, self.search.network
        tau = 0 if search.assignment is None else _largest(network, search.assignment)
        inner = Search(without_extras(network, tau), Limits(search.left), search.source)
        first, *others = self.plain.network.capacities
        circuit = replace(self.plain, network=replace(self.plain.network, capacities=(first - tau, *others)))
        price = sweep(circuit, inner) or at_price(circuit, [0.0] * len(network.capacities), search.until)
        return _Relaxed(circuit, price, circuit.backward(price.slots, search.until), tau=tau)

    def offer(self, through: Tables, reach: int) -> bool:
        """Offer the best solution within `reach`; whether the search for it was complete."""
        quick = self.search.limits.quick
        late = self.search.objective is not None and self.search.seconds > _QUICK[0] * self.took + _QUICK[1]
        if quick and (self.tried or late):  # lists of little slack gave the best that they hold
            return False
        mean = _Relaxed(self.mean, self.best, through, self.groups)
        try:
            return self._among(mean, 0, self.search.network.capacities[0], reach)
        except TooManyError:
            return not quick and self._between(0, self.search.network.capacities[0], reach)

    def _between(self, low: int, high: int, reach: int) -> bool:
        """The same of those that use from `low` to `high` for a while at most."""
        reach = min(reach, self.search.ceiling - 1)
        least, rise = self.alone.bound(low), self.alone.price.price[0]
        if least > reach:
            return True
        high = min(high, low + floor((reach + 1 - least) / rise)) if rise else high
        try:
            return self._among(self.alone, low, high, reach)
        except TooManyError:
            self.long += 1
            if self.long > _LONG or low == high:
                raise
        middle = (low + high) // 2  # what is used anyway is a bound, and what may not be used shortens lists
        return self._between(middle + 1, high, reach) and self._between(low, middle, reach)

    def _among(self, relaxed: "_Relaxed", low: int, high: int, reach: int) -> bool:
        """The same by lists from a relaxation."""
        search, most = self.search, relaxed.most(low, reach)
        small = restrict(relaxed.circuit, relaxed.through, most, self.blocks)
        if small is None:
            return True
        limit = _FEW if search.limits.quick else _LABELS
        bounds = LabelBounds(np.array(relaxed.price.price), most, limit, search.until)
        columns = list_segments(small, relaxed.groups, bounds, high)
        return self._divide(columns, low, reach)

    def _divide(self, columns: Columns, low: int, reach: int) -> bool:
        """The same by lists that hold them."""
        search = self.search
        levels = [level for level in columns.levels if level >= low]
        nodes = [(search.bound, 0, len(levels) - 1)] if levels else []  # what solutions of some levels cost at least
        while nodes and search.left > 0:
            bound, first, last = heapq.heappop(nodes)
            parts = [] if bound >= min(reach + 1, search.ceiling) else self._parts(columns, levels, first, last, reach)
            if parts is None:
                return False
            for part in parts:
                heapq.heappush(nodes, part)
        return not nodes

    def _parts(self, columns: Columns, levels: list[int], first: int, last: int, reach: int) -> list[_Node] | None:
        """What is open of some levels once they are asked for; None where nothing more can be told."""
        search, bound = self.search, -INFINITE
        hurried = search.limits.quick
        for quick in (True,) if hurried else (True, False):  # who needs too much tells where to divide, best or not
            limits = Limits(search.left, min(reach + 1, search.ceiling), quick=quick)
            answer, found = self._ask(columns, levels[first], levels[last], limits)
            if answer is None or answer.bound >= min(reach + 1, search.ceiling):
                return []
            bound = answer.bound
            if found is None:
                continue
            needs, verdict = _largest(search.network, found), evaluate(search.network, found)
            if not verdict.feasible:
                spare = search.network.capacities[0] - verdict.use[0] + needs
                split = (bisect_right(levels, spare) + levels.index(needs) + 1) // 2  # neither part has it
                self._free(columns, needs)
                return [(bound, first, split - 1), (bound, split, last)]
        middle = (first + last + 1) // 2
        return [(bound, first, middle - 1), (bound, middle, last)] if first < last and not hurried else None

    def _free(self, columns: Columns, tau: int) -> None:
        """Offer a good solution of those that use at most `tau` for a while."""
        search = self.search
        if tau not in self.tried:
            self.tried.add(tau)
            seconds, quick = min(search.left, self.took + _TRIAL), search.limits.quick
            self._ask(columns, tau, tau, Limits(seconds, search.ceiling, quick=quick))

    def _ask(
        self, columns: Columns, low: int, high: int, limits: Limits
    ) -> tuple[Solution | None, tuple[int, ...] | None]:
        """The best by labels up to `high`, where `low` is used anyway, and its assignment; None where there is none."""
        search, (capacity, *others) = self.search, self.search.network.capacities
        labels = columns.within(high)
        if labels is None or low > capacity:
            return None, None
        answer = _asked(search, self.solve, columns.network(labels, (capacity - low, *others)), limits)
        if answer.status is Status.INFEASIBLE:
            return None, None
        found = None if answer.assignment is None else columns.assemble(labels, answer.assignment)
        if found is not None:
            search.offer(found)
        return answer, found
