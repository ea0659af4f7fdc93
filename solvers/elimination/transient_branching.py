"""Branch and bound over the largest transient use of networks with windows, whose label lists grow too long.

Solutions of τ in [lo, hi] leave M_0 - lo for what is kept, and no switch uses more than hi. A node is an interval: the
network relaxed over it (`transient_relaxation.py`) is priced, windows included. Prices say how the bound moves with
either end, which cuts off the parts of the interval that are as dear as the incumbent, and both ends move to uses that
what is left of the circuit can have. The rest is split at the largest use of the relaxed solution: the lower part
forbids it, the upper part pays for it, so that the solution changes in one and nearly holds in the other. Copies of
chains are raised to what they cost with at most hi where that may be enough, or nothing is left to split. Solutions on
the way, and their crossovers, are incumbents.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from math import floor

from ...formulation.network.network import extras
from ..protocol import Limits, OutOfTimeError, Search
from .circuit import Circuit
from .copy_costs import raise_copies
from .memory_price import Price
from .transient_relaxation import Groups, Interval, relax_interval, snapped, transient_levels
from .window_relaxation import WindowPrice, price_windows, weighted

_NARROWED = 0.5  # share of an interval that is left where it is priced again, not split
_CLOSE = 1e-3  # share of the capacity: shorter intervals are not split
_NEAR = 0.5  # of the gap of the search: how far below the ceiling a bound may be for copies to raise it
_BELOW = 1 / 8  # of the way from the largest use of the relaxed solution to its mean: where intervals are split
_UNMOVED = 0.2  # share of the work, after which branching ends if the bound is hardly nearer to the ceiling
_MOVED = 0.1  # of the room between both: a bound that is nearer


@dataclass(frozen=True, slots=True, order=True)
class _Node:
    """Solutions whose largest transient use is in an interval cost at least `bound`.

    `prices` are the first to try. `settled`: branching can raise the bound no more.
    """

    bound: int
    interval: Interval
    prices: tuple[float, ...] = ()
    settled: bool = False


def branch_transient(circuit: Circuit, groups: Groups, search: Search, root: WindowPrice, most_work: float) -> None:
    """Raise the bound of `search` by branching over the largest transient use, and offer solutions.

    `circuit` has its transient use, and all solutions below the ceiling; `root` is its price, relaxed over the groups.
    Ends after `most_work` of the search, where a part of what is left of that brought the bound little nearer to the
    ceiling, or where intervals are too short to be split.
    """
    branching = _Branching(circuit, groups, search)
    room, patience = search.ceiling - search.bound, _UNMOVED * (most_work - search.work)
    nodes, settled, until = branching.first(root), search.ceiling, search.work + patience
    heapq.heapify(nodes)
    while nodes and not search.done and search.work < min(until, most_work):
        node = heapq.heappop(nodes)
        if node.bound < search.ceiling:
            try:
                parts = branching.priced(node, most_work - search.work)
            except OutOfTimeError:
                return
            for part in parts:
                if part.settled:
                    settled = min(settled, part.bound)
                else:
                    heapq.heappush(nodes, part)
        search.raise_bound(min([settled, search.ceiling, *(n.bound for n in nodes[:1])]))
        if search.ceiling - search.bound <= (1 - _MOVED) * room:
            room, until = search.ceiling - search.bound, search.work + patience


class _Branching:
    """What all nodes share; `reach`: the circuit has all solutions of cost up to that."""

    def __init__(self, circuit: Circuit, groups: Groups, search: Search) -> None:
        self.circuit, self.groups, self.search = circuit, groups, search
        self.capacity = circuit.network.capacities[0]
        self.levels = transient_levels(circuit, self.capacity)
        self.reach = search.ceiling - 1

    def first(self, root: WindowPrice) -> list[_Node]:
        """The parts of all transient uses, of which the relaxation over groups knows the price already."""
        others = len(self.circuit.network.capacities) - 1
        kept, further = root.price.price[: len(self.groups)], root.price.price[len(self.groups) :]
        weights = self.search.prices[: -len(root.price.price)]
        prices = (*weights, 0.0, *further[:others], *kept, *[0.0] * len(self.groups))
        whole = snapped(Interval(0, self.capacity), self.levels)
        return self._split(root, whole, self.search.bound, prices) if whole.low <= whole.high else []

    def priced(self, node: _Node, left: float) -> list[_Node]:
        """The nodes that are left of one after it is priced: itself if its interval got shorter, or its parts.

        Copies are raised by at most the work that is `left`, pricing included. OutOfTimeError: what was found is
        offered.
        """
        search = self.search
        known = [x for x in (search.objective, search.limits.cutoff) if x is not None]
        limits = Limits(search.left, cutoff=min(known, default=None), gap=search.limits.gap, prices=node.prices)
        inner = Search(search.network, limits, search.source)
        try:
            return self._parts(inner, node, left)
        finally:
            if inner.assignment is not None:
                search.offer(inner.assignment)

    def _parts(self, inner: Search, node: _Node, left: float) -> list[_Node]:
        """The nodes that are left of one, which is priced by the search `inner`."""
        search, groups = self.search, self.groups
        relaxed = relax_interval(self.circuit, groups, node.interval)
        found = price_windows(relaxed, inner, self.reach)
        if inner.assignment is not None:
            search.offer(inner.assignment)
        reach = min(search.ceiling - 1, relaxed.max_cost)
        if found is None or inner.bound > reach:
            return []
        shortest = _CLOSE * self.capacity
        interval = snapped(_shortened(node.interval, groups, found.price, search.ceiling), self.levels)
        length, before = (each.high - each.low for each in (interval, node.interval))
        if length < 0:
            return []
        bound = max(node.bound, inner.bound)
        near = search.ceiling - bound <= _NEAR * search.limits.gap * abs(search.ceiling)
        if length <= _NARROWED * before and before >= shortest and not near:
            return [_Node(bound, interval, inner.prices)]
        if near or length < shortest:
            small = found.restricted(reach, inner.until)
            if small is None:
                return []
            raise_copies(small, found, groups, inner, reach, interval=node.interval, most_work=left)
            if inner.assignment is not None:
                search.offer(inner.assignment)
            bound = max(bound, inner.bound)
        if length < shortest:
            return [_Node(bound, interval, settled=True)]
        return self._split(found, interval, bound, inner.prices)

    def _split(self, found: WindowPrice, interval: Interval, bound: int, prices: Sequence[float]) -> list[_Node]:
        """The parts of an interval: below the largest transient use of the relaxed solution, and from there on.

        If the upper part leaves less memory for the rest than the mean use does, the rest starts from the price of
        the means.
        """
        solution = weighted(found.circuit, found.weights).decode(found.price.slots)
        needs = extras(self.search.network, solution)
        mean = max(sum(needs[z] for z in group) // len(group) for group in self.groups)
        most = max(needs.values(), default=0)
        at = most - floor(_BELOW * (most - mean))
        if not interval.low < at <= interval.high:
            at = (interval.low + interval.high) // 2 + 1
        lower, upper = (snapped(x, self.levels) for x in (Interval(interval.low, at - 1), Interval(at, interval.high)))
        parts = (lower, tuple(prices)), (upper, self._shifted(prices) if at > mean else tuple(prices))
        return [_Node(bound, part, first) for part, first in parts if part.low <= part.high]

    def _shifted(self, prices: Sequence[float]) -> tuple[float, ...]:
        """The prices, with those of the means of groups added to that of what is left for the rest."""
        count, others = len(self.groups), len(self.circuit.network.capacities) - 1
        *weights, kept = prices[: -2 * count - others]
        further, means, sums = (prices[len(prices) - n :] for n in (2 * count + others, 2 * count, count))
        means = means[:count]
        return (*weights, kept + sum(means), *further[:others], *[0.0] * count, *sums)


def _shortened(interval: Interval, groups: Groups, price: Price, ceiling: int) -> Interval:
    """The interval without the transient uses of which the prices prove at least the ceiling."""
    of_kept, of_extra = price.price[0], price.price[len(price.price) - len(groups) :]
    room, slope = ceiling - price.bound, sum(p * len(group) for p, group in zip(of_extra, groups, strict=True))
    low, high = interval
    return Interval(
        max(low, high - floor(room / slope)) if slope else low,
        min(high, low + floor(room / of_kept)) if of_kept else high,
    )
