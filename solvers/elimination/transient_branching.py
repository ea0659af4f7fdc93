"""Branch and bound over the largest transient use of networks with windows, whose label lists grow too long.

Solutions of τ in [lo, hi] leave M_0 - lo for what is kept, and no switch uses more than hi. A node is an interval: the
network relaxed over it (`transient_relaxation.py`) is priced, windows included. Prices say how the bound moves with
either end, which cuts off the parts of the interval that are as dear as the incumbent, and both ends move to uses that
what is left of the circuit can have. The rest is split between the mean use of the relaxed solution and its largest:
the lower part forbids the large uses, the upper part pays for them. Copies of chains are raised to what they cost with
at most hi where that may be enough, or nothing is left to split. Solutions on the way, and their crossovers, are
incumbents.
"""

import heapq
from dataclasses import dataclass
from math import floor

from ..protocol import Limits, OutOfTimeError, Search
from .circuit import Circuit
from .copy_costs import raise_copies
from .memory_price import Price
from .transient_relaxation import Groups, Interval, relax_interval, snapped, transient_levels
from .window_relaxation import WindowPrice, price_windows

_NARROWED = 0.5  # share of an interval that is left where it is priced again, not split
_CLOSE = 1e-3  # share of the capacity: shorter intervals are not split
_NEAR = 0.5  # of the gap of the search: how far below the ceiling a bound may be for copies to raise it
_PART = 0.01  # share of a solution in the relaxed one, from which it counts
_UNMOVED = 0.2  # share of the work, after which branching ends if neither the bound nor the incumbent is better


@dataclass(frozen=True, slots=True, order=True)
class _Node:
    """Solutions whose largest transient use is in an interval cost at least `bound`.

    `prices` are the first to try. `settled`: branching can raise the bound no more.
    """

    bound: int
    interval: Interval
    prices: tuple[float, ...] = ()
    settled: bool = False


def branch_transient(circuit: Circuit, groups: Groups, search: Search, most_work: float) -> None:
    """Raise the bound of `search` by branching over the largest transient use, and offer solutions.

    `circuit` has its transient use, and all solutions below the ceiling. Ends after `most_work` of the search, after a
    part of what is left of that if nothing came of it, or where intervals are too short to be split.
    """
    before, first = (search.bound, search.objective), search.work + _UNMOVED * (most_work - search.work)
    whole = snapped(
        Interval(0, circuit.network.capacities[0]), transient_levels(circuit, circuit.network.capacities[0])
    )
    nodes, settled = [_Node(search.bound, whole)] if whole.low <= whole.high else [], search.ceiling
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
                if part.settled:
                    settled = min(settled, part.bound)
                else:
                    heapq.heappush(nodes, part)
        search.raise_bound(min([settled, search.ceiling, *(n.bound for n in nodes[:1])]))


def _priced(circuit: Circuit, groups: Groups, search: Search, node: _Node, left: float) -> list[_Node]:
    """The nodes that are left of one after it is priced: itself if its interval got shorter, or its parts.

    Copies are raised by at most the work that is `left`, pricing included. OutOfTimeError: what was found is offered.
    """
    known = [x for x in (search.objective, search.limits.cutoff) if x is not None]
    limits = Limits(search.left, cutoff=min(known, default=None), gap=search.limits.gap, prices=node.prices)
    inner = Search(search.network, limits, search.source)
    try:
        return _parts(circuit, groups, search, inner, node, left)
    finally:
        if inner.assignment is not None:
            search.offer(inner.assignment)


def _parts(circuit: Circuit, groups: Groups, search: Search, inner: Search, node: _Node, left: float) -> list[_Node]:
    """The nodes that are left of one, which is priced by the search `inner`."""
    relaxed = relax_interval(circuit, groups, node.interval)
    found = price_windows(relaxed, inner)
    if inner.assignment is not None:
        search.offer(inner.assignment)
    reach = min(search.ceiling - 1, relaxed.max_cost)
    small = None if found is None or inner.bound > reach else found.restricted(reach, inner.until)
    if found is None or small is None:
        return []
    capacity = circuit.network.capacities[0]
    levels, shortest = transient_levels(small, capacity), _CLOSE * capacity
    interval = snapped(_shortened(node.interval, groups, found.price, search.ceiling), levels)
    length, before = (each.high - each.low for each in (interval, node.interval))
    if length < 0:
        return []
    bound = max(node.bound, inner.bound)
    near = search.ceiling - bound <= _NEAR * search.limits.gap * abs(search.ceiling)
    if length <= _NARROWED * before and before >= shortest and not near:
        return [_Node(bound, interval, inner.prices)]
    if near or length < shortest:
        raise_copies(small, found, groups, inner, reach, interval=node.interval, most_work=left)
        if inner.assignment is not None:
            search.offer(inner.assignment)
        bound = max(bound, inner.bound)
    if length < shortest:
        return [_Node(bound, interval, settled=True)]
    at = _between(found, groups, interval)
    parts = (snapped(part, levels) for part in (Interval(interval.low, at), Interval(at + 1, interval.high)))
    return [_Node(bound, part, inner.prices) for part in parts if part.low <= part.high]


def _between(found: WindowPrice, groups: Groups, interval: Interval) -> int:
    """Where to split: between the mean transient use of the relaxed solution and its largest, or in the middle."""
    count = len(groups)
    uses = [max(total // len(g) for total, g in zip(cut[-count:], groups, strict=True)) for cut in found.cuts]
    mean = sum(share * use for share, use in zip(found.mix, uses, strict=True))
    most = max((use for share, use in zip(found.mix, uses, strict=True) if share > _PART), default=0)
    at = floor(mean + most) // 2
    return at if found.mix and interval.low <= at < interval.high else (interval.low + interval.high) // 2


def _shortened(interval: Interval, groups: Groups, price: Price, ceiling: int) -> Interval:
    """The interval without the transient uses of which the prices prove at least the ceiling."""
    of_kept, of_extra = price.price[0], price.price[len(price.price) - len(groups) :]
    room, slope = ceiling - price.bound, sum(p * len(group) for p, group in zip(of_extra, groups, strict=True))
    low, high = interval
    return Interval(
        max(low, high - floor(room / slope)) if slope else low,
        min(high, low + floor(room / of_kept)) if of_kept else high,
    )
