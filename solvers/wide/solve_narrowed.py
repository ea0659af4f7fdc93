"""Solve a network too wide for elimination by one of few options: those of little excess at prices on hubs.

The prices (`hub_prices.py`) bound what every option costs in all. What exceeds the bound by more than a slack is left
out, so that elimination can take the rest; the slack grows until the answer is near enough, or the rest too wide. A
network of few options also tells what memory costs: then the prices on hubs are raised again, at that price.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import floor, inf
from time import perf_counter

from ...formulation.network.joined_pairs import LEAST_COPIES, joined
from ...formulation.network.loose_hubs import with_options, without_modes
from ...formulation.network.network import INFINITE, Network
from ..elimination.kernels import Floats
from ..elimination.order import is_narrow
from ..elimination.transient_memory import without_windows
from ..elimination.transient_relaxation import groups_of
from ..protocol import INTERRUPTED, Search, Solution, Status
from .hub_prices import HubPrices, within
from .solve_reduced import Solve

_FIRST, _GROWTH = 1 / 1024, 2.0  # slacks, of the bound
_RISE, _COARSE = 5e-4, 0.05  # of the bound, and of the requested gap: what rises by less in some passes has risen
_ROUGH = 0.2  # where the cheapest bound suffices, of it
_REST = 1 / 512  # of the cost to beat: left to options of little excess
_CLIMB = 0.6  # of the time left, for prices
_ROUNDS = 4  # of prices of memory
_WORDS = "too wide for elimination, but for few options"


def solve_narrowed(search: Search, solve: Solve) -> Solution | None:
    """The answer by networks of fewer options; None if the network has no layers, or even few options are too many."""
    limits, network = search.limits, search.network
    if len(network.pairs) <= LEAST_COPIES:
        return None
    (price, transient), tied = _of_memory(network, limits.prices), frozenset[int]()
    rise = _ROUGH if limits.rough else max(_RISE, _COARSE * limits.gap)
    known = None
    if any(price) and (first := _without_modes(network, price)) is not None:
        known = HubPrices(first, price)
        known.climb(rise, perf_counter() + _CLIMB * search.left, inf)
        found = _of_few_options(search, solve, *known.options(), proves=False)
        if search.done or (limits.quick and search.objective is not None):
            return search.finish(_WORDS)
        if found is not None and any(found.prices):
            price, transient = _of_memory(network, found.prices)
    plain, rest = _plain(network, price), _REST
    for _ in range(_ROUNDS):
        prices = HubPrices(plain, price, known, tied, transient)
        wanted = min(limits.enough, search.ceiling)
        prices.climb(rise, perf_counter() + _CLIMB * search.left, wanted - rest * abs(wanted))
        bound, excess = prices.options()
        if bound == INFINITE:
            return search.finish(_WORDS, infeasible=True)
        search.raise_bound(min(bound, search.ceiling))
        if _suffices(search) or limits.rough:
            return search.finish()
        found = _of_few_options(search, solve, bound, excess)
        if found is None:
            return None
        closer, before = tied or prices.close(), price
        price, transient = _of_memory(network, found.prices)
        same = price == before and closer == tied and not rest
        if _suffices(search) or found.words == INTERRUPTED or (limits.quick and search.objective is not None) or same:
            break
        known, tied, rest = prices, closer, 0.0
        if network.switches and any(price) and not any(before):  # now with modes, and so with other components
            plain, tied, rest = _plain(network, price), frozenset(), _REST
    return search.finish(_WORDS)


def _suffices(search: Search) -> bool:
    """True if the bound is as high as any caller needs, or the time is up."""
    return search.done or search.bound >= search.limits.enough


def _plain(network: Network, price: Sequence[float]) -> Network:
    """A network without windows and pairs that bounds this one at the price of memory.

    Where memory costs nothing and recomputation something, without modes: they make one component of every layer.
    """
    plain = replace(without_windows(network), chains=(), pairs=(), line=())
    return plain if any(price) else without_modes(plain) or plain


def _without_modes(network: Network, price: Sequence[float]) -> Network | None:
    """The network for prices on hubs to begin with, of the first modes: it bounds nothing, but takes less time."""
    return without_modes(_plain(network, price)) if network.switches else None


def _of_few_options(
    search: Search, solve: Solve, bound: int, excess: Sequence[Floats], proves: bool = True
) -> Solution | None:
    """The answer of the most options that elimination takes, or of fewer that suffice; None if none are few enough.

    No assignment with other options costs less than the bound and the slack; unless this `proves` so, the first
    answer will do.
    """
    network, limits, found = search.network, search.limits, None
    modes = {s.variable for s in network.switches}
    slack = max(1.0, abs(bound) * _FIRST)
    bound, quick = bound if proves else -INFINITE, limits.quick or not proves
    while not _suffices(search):
        options = {v: within(own, float("inf") if v in modes else slack) for v, own in enumerate(excess)}
        slack *= _GROWTH
        if not all(map(len, options.values())):
            continue
        few = with_options(network, options)
        together = joined(few)
        if not is_narrow(few if together is None else together.network):
            break
        few = few if together is not None else replace(few, pairs=(), line=())
        proved = bound + floor(slack / _GROWTH)  # of all assignments with other options
        best = [x for x in (search.objective, limits.cutoff) if x is not None]
        own = replace(
            limits, seconds=search.left, quick=quick, prices=(), progress=None, cutoff=min(best, default=None)
        )
        if proves and limits.enough < INFINITE:  # a better solution is not needed, nor a bound beyond the slack
            own = own.reaching(min(limits.enough, proved))
        answer = solve(few, own)
        found, search.prices, search.proof = answer, answer.prices, answer.proof
        if answer.assignment is not None:
            search.offer(tuple(int(options[v][x]) for v, x in enumerate(answer.assignment)))
        least = own.ceiling(None) if answer.status is Status.INFEASIBLE else answer.bound
        search.raise_bound(min(least, proved, search.ceiling))
        if answer.words == INTERRUPTED or (quick and search.objective is not None):
            break
    return found


def _of_memory(network: Network, prices: Sequence[float]) -> tuple[tuple[float, ...], dict[int, float]]:
    """The price of each capacity, and of transient use of each switch, by its variable; 0 if unknown.

    The first capacity has a price for each group of switches, whose mean transient use counts.
    """
    count, groups = len(network.capacities), groups_of(network)
    rows = max(1, len(groups)) + count - 1
    if len(prices) < rows or not count:
        return (0.0,) * count, {}
    own = prices[len(prices) - rows :]
    transient = {z: p / len(group) for p, group in zip(own, groups, strict=False) for z in group}
    return (sum(own[: rows - count + 1]), *own[rows - count + 1 :]), transient
