"""Branch and bound over the largest transient use of networks with windows, whose label lists grow too long.

Solutions of τ in [lo, hi] leave M_0 - lo for what is kept, and no switch uses more than hi. A node is an interval: the
network relaxed over it (`transient_relaxation.py`) is priced, windows included, and copies of chains are raised to what
they cost with at most hi. Prices say how the bound moves with either end, which cuts off the parts of the interval that
are as dear as the incumbent; the rest is halved. Solutions on the way, and their crossovers, are incumbents.
"""

import heapq
from dataclasses import dataclass
from math import floor

from ..protocol import Limits, OutOfTimeError, Search
from .circuit import Circuit
from .copy_costs import raise_copies
from .memory_price import Price
from .transient_relaxation import Groups, Interval, relax_interval
from .window_relaxation import price_windows

_NARROWED = 0.5  # share of an interval that is left where it is priced again, not halved
_CLOSE = 1e-3  # share of the capacity: shorter intervals are not halved
_UNMOVED = 0.2  # share of the work, after which branching ends if neither the bound nor the incumbent is better


@dataclass(frozen=True, slots=True, order=True)
class _Node:
    """Solutions whose largest transient use is in an interval cost at least `bound`; `prices` are the first to try."""

    bound: int
    interval: Interval
    prices: tuple[float, ...] = ()


def branch_transient(circuit: Circuit, groups: Groups, search: Search, most_work: float) -> None:
    """Raise the bound of `search` by branching over the largest transient use, and offer solutions.

    `circuit` has its transient use, and all solutions below the ceiling. Ends after `most_work` of the search, after a
    fifth of what is left of that if nothing came of it, or where intervals are too short to be halved.
    """
    before, first = (search.bound, search.objective), search.work + _UNMOVED * (most_work - search.work)
    capacity = circuit.network.capacities[0]
    nodes, short = [_Node(search.bound, Interval(0, capacity))], search.ceiling
    while nodes and not search.done:
        if search.work >= (first if (search.bound, search.objective) == before else most_work):
            break
        node = heapq.heappop(nodes)
        if node.bound < search.ceiling:
            try:
                parts = _priced(circuit, groups, search, node, most_work - search.work)
            except OutOfTimeError:
                return
            for part in parts:
                if part.interval.high - part.interval.low < _CLOSE * capacity:
                    short = min(short, part.bound)
                else:
                    heapq.heappush(nodes, part)
        search.raise_bound(min([short, search.ceiling, *(n.bound for n in nodes[:1])]))


def _priced(circuit: Circuit, groups: Groups, search: Search, node: _Node, left: float) -> list[_Node]:
    """The nodes that are left of one after it is priced: itself if its interval got shorter, or its halves.

    Copies are raised by at most the work that is `left`, pricing included.
    """
    relaxed = relax_interval(circuit, groups, node.interval)
    known = [x for x in (search.objective, search.limits.cutoff) if x is not None]
    limits = Limits(search.left, cutoff=min(known, default=None), gap=search.limits.gap, prices=node.prices)
    inner = Search(search.network, limits, search.source)
    found = price_windows(relaxed, inner)
    if found is None:
        return []
    if inner.bound < search.ceiling:
        reach = min(search.ceiling - 1, relaxed.max_cost)
        small = found.restricted(reach, inner.until)
        if small is None:
            return []
        raise_copies(small, found, groups, inner, reach, interval=node.interval, most_work=left)
    if inner.assignment is not None:
        search.offer(inner.assignment)
    bound, interval = max(node.bound, inner.bound), _shortened(node.interval, groups, found.price, search.ceiling)
    if bound >= search.ceiling or interval.low > interval.high:
        return []
    length, before = (each.high - each.low for each in (interval, node.interval))
    if length <= _NARROWED * before:
        return [_Node(bound, interval, inner.prices)]
    middle = (interval.low + interval.high) // 2
    halves = Interval(interval.low, middle), Interval(middle + 1, interval.high)
    return [_Node(bound, half, inner.prices) for half in halves]


def _shortened(interval: Interval, groups: Groups, price: Price, ceiling: int) -> Interval:
    """The interval without the transient uses of which the prices prove at least the ceiling."""
    of_kept, of_extra = price.price[0], price.price[len(price.price) - len(groups) :]
    room, slope = ceiling - price.bound, sum(p * len(group) for p, group in zip(of_extra, groups, strict=True))
    low, high = interval
    return Interval(
        max(low, high - floor(room / slope)) if slope else low,
        min(high, low + floor(room / of_kept)) if of_kept else high,
    )
