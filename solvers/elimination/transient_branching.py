"""Branch and bound over the largest transient use, and over how many switches take each mode.

For networks with windows, whose label lists grow too long. Solutions of τ in [lo, hi] leave M_0 - lo for what is
kept, and no switch uses more than hi. A node is a region: an interval of τ, and counts of switches by mode. The network
relaxed over it (`transient_relaxation.py`) is priced, windows included. Prices say how the bound moves with either end
of the interval, which cuts off the parts that are as dear as the incumbent, and both ends move to uses that what is
left of the circuit can have. If much was cut off, the rest is priced again, else split. The relaxed solution mixes
some in which a mode is taken more often with some in which it is taken less: if the mean number is far from whole, one
part takes the mode at most so often, the other more often. Else the interval is split at the largest use of the relaxed
solution: the lower part forbids it, the upper part pays for it, so that the solution changes in one and nearly holds in
the other. Copies of chains are raised to what they cost with at most hi where that may be enough, or
nothing is left to split. Solutions on the way, and their crossovers and mixtures, are incumbents.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from math import floor, fsum

from ...formulation.network.network import extras
from ..protocol import Limits, OutOfTimeError, Search
from .circuit import Circuit
from .copy_costs import raise_copies
from .copy_mixtures import Mixtures
from .memory_price import Price
from .transient_relaxation import Count, Groups, Interval, Region, relax_region, snapped, taking, transient_levels
from .window_relaxation import WindowPrice, price_windows

_NARROWED = 0.5  # share of an interval that is left where it is priced again, not split
_CLOSE = 1e-3  # share of the capacity: shorter intervals are not split
_NEAR = 0.5  # of the gap of the search: how far below the ceiling a bound may be for copies to raise it; or as far as
# they raised that of the whole
_BELOW = 1 / 8  # of the way from the largest use of the relaxed solution to its mean: where intervals are split
_APART = 0.1  # of a switch: how far from whole the number of those that take a mode is where that is branched on
_UNMOVED = 0.5  # share of the work, after which branching ends if the bound is hardly nearer to the ceiling
_MOVED = 0.1  # of the room between both: a bound that is nearer


@dataclass(frozen=True, slots=True, order=True)
class _Node:
    """The solutions of a region cost at least `bound`.

    `prices` are the first to try. `settled`: branching can raise the bound no more.
    """

    bound: int
    region: Region
    prices: tuple[float, ...] = ()
    settled: bool = False


def branch_transient(circuit: Circuit, groups: Groups, search: Search, root: WindowPrice, most_work: float) -> None:
    """Raise the bound of `search` by branching over the largest transient use and counts of modes; offer solutions.

    `circuit` has its transient use, and all solutions below the ceiling; `root` is its price, relaxed over the groups.
    Ends after `most_work` of the search, where a part of what is left of that brought the bound little nearer to the
    ceiling, or where intervals are too short to be split.
    """
    branching = _Branching(circuit, groups, search, root.mixtures)
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

    def __init__(self, circuit: Circuit, groups: Groups, search: Search, mixtures: Mixtures | None) -> None:
        self.circuit, self.groups, self.search, self.mixtures = circuit, groups, search, mixtures
        self.capacity = circuit.network.capacities[0]
        self.levels = transient_levels(circuit, self.capacity)
        self.raised = 0  # how much more copies proved of the whole than prices
        self.reach = search.ceiling - 1

    def first(self, root: WindowPrice) -> list[_Node]:
        """The parts of all solutions, of which the relaxation over groups knows the price already."""
        self.raised = max(0, self.search.bound - root.price.bound)
        region, bound, prices = self.whole(root)
        return self._split(root, region, bound, prices) if region.interval.low <= region.interval.high else []

    def whole(self, root: WindowPrice) -> tuple[Region, int, tuple[float, ...]]:
        """The region of all solutions, their bound, and the prices of the relaxation over groups as those of it."""
        others = len(self.circuit.network.capacities) - 1
        kept, further = root.price.price[: len(self.groups)], root.price.price[len(self.groups) :]
        weights = self.search.prices[: -len(root.price.price)]
        prices = (*weights, 0.0, *further[:others], *kept, *[0.0] * len(self.groups))
        return Region(snapped(Interval(0, self.capacity), self.levels)), self.search.bound, prices

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
        search, groups, before = self.search, self.groups, node.region.interval
        relaxed = relax_region(self.circuit, groups, node.region)
        found = price_windows(relaxed, inner, self.reach, self.mixtures)
        if inner.assignment is not None:
            search.offer(inner.assignment)
        reach = min(search.ceiling - 1, relaxed.max_cost)
        if found is None or inner.bound > reach:
            return []
        shortest = max(1, _CLOSE * self.capacity)  # a single use is split no more
        interval = snapped(_shortened(before, groups, found.price, search.ceiling), self.levels)
        length, region = interval.high - interval.low, node.region._replace(interval=interval)
        if length < 0:
            return []
        bound = max(node.bound, inner.bound)
        near = search.ceiling - inner.bound <= max(self.raised, _NEAR * search.limits.gap * abs(search.ceiling))
        longer = before.high - before.low
        if length <= _NARROWED * longer and longer >= shortest and not near:
            return [_Node(bound, region, inner.prices)]
        whole = length < shortest and self._between(found, region) is None
        if near or whole:
            small = found.restricted(reach, inner.until)
            if small is None:
                return []
            raise_copies(small, found, groups, inner, reach, region=node.region, most_work=left)
            if inner.assignment is not None:
                search.offer(inner.assignment)
            bound = max(bound, inner.bound)
        if whole:
            return [_Node(bound, region, settled=True)]
        return self._split(found, region, bound, inner.prices)

    def _split(self, found: WindowPrice, region: Region, bound: int, prices: Sequence[float]) -> list[_Node]:
        """The parts of a region: by the number of switches that take a mode, if it is far from whole, else by the
        largest transient use."""
        between = self._between(found, region)
        if between is None:
            return self._split_interval(found, region, bound, prices)
        known, at = between
        if known not in region.counts:  # without prices yet
            sums = len(self.groups)
            prices = (*prices[: len(prices) - sums], 0.0, 0.0, *prices[len(prices) - sums :])
            region = region._replace(counts=(*region.counts, known))
        parts = known._replace(high=at), known._replace(low=at + 1)
        return [
            _Node(bound, region._replace(counts=tuple(part if c == known else c for c in region.counts)), tuple(prices))
            for part in parts
        ]

    def _between(self, found: WindowPrice, region: Region) -> tuple[Count, int] | None:
        """The count of a mode whose number in the relaxed solution is farthest from whole, and the whole number below;
        None if all are nearly whole.

        Prices that are still too low leave more or fewer than the region has: there is nothing to split then.
        """
        best, apart = None, _APART
        total = fsum(share for share, _ in found.mix)
        known = {(c.group, c.mode): c for c in region.counts}
        for g, group in enumerate(self.groups):
            for mode in range(max(len(self.search.network.variables[z].cost) for z in group)):
                count = known.get((g, mode), Count(g, mode, 0, len(group)))
                many = fsum(share * taking(mode, group, x) for share, x in found.mix) / max(total, 1e-9)
                away = min(many - floor(many), floor(many) + 1 - many)
                if away > apart and count.low < many < count.high:
                    best, apart = (count, floor(many)), away
        return best

    def _split_interval(self, found: WindowPrice, region: Region, bound: int, prices: Sequence[float]) -> list[_Node]:
        """The parts of a region: below the largest transient use of the relaxed solution, and from there on.

        If the upper part leaves less memory for the rest than the mean use does, the rest starts from the price of
        the means.
        """
        interval = region.interval
        solution = found.circuit.weighted(found.weights).decode(found.price.slots)
        needs = extras(self.search.network, solution)
        mean = max(sum(needs[z] for z in group) // len(group) for group in self.groups)
        most = max(needs.values(), default=0)
        at = most - floor(_BELOW * (most - mean))
        if not interval.low < at <= interval.high:
            at = (interval.low + interval.high) // 2 + 1
        lower, upper = (snapped(x, self.levels) for x in (Interval(interval.low, at - 1), Interval(at, interval.high)))
        moved = self._shifted(prices, len(region.counts)) if at > mean else tuple(prices)
        parts = (lower, tuple(prices)), (upper, moved)
        return [_Node(bound, region._replace(interval=part), first) for part, first in parts if part.low <= part.high]

    def _shifted(self, prices: Sequence[float], counts: int) -> tuple[float, ...]:
        """The prices, with those of the means of groups added to that of what is left for the rest."""
        groups, others = len(self.groups), len(self.circuit.network.capacities) - 1
        first = len(prices) - 2 * groups - 2 * counts - others - 1
        means = first + 1 + others
        found = list(prices)
        found[first] += fsum(prices[means : means + groups])
        found[means : means + groups] = [0.0] * groups
        return tuple(found)


def _shortened(interval: Interval, groups: Groups, price: Price, ceiling: int) -> Interval:
    """The interval without the transient uses of which the prices prove at least the ceiling."""
    of_kept, of_extra = price.price[0], price.price[len(price.price) - len(groups) :]
    room, slope = ceiling - price.bound, sum(p * len(group) for p, group in zip(of_extra, groups, strict=True))
    low, high = interval
    return Interval(
        max(low, high - floor(room / slope)) if slope else low,
        min(high, low + floor(room / of_kept)) if of_kept else high,
    )
