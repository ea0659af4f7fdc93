"""Maxima: transient memory of switches and windows of streams, by lists of the segments that they lie in.

The largest transient use, τ, is reserved from capacity 0:

    min cost(x) + Σ_w max_k S_wk(x)   s.t.  use_0(x) + τ ≤ M_0,   extra_s(x) ≤ τ  ∀ switches s

1. *Price*: weighted sums bound the longest streams (`window_relaxation.py`), means over groups of switches bound τ
   (`transient_relaxation.py`): a network without windows and extras gives a lower bound.
2. *List*: within a slack, the labels (time, use, extra) of every segment (`segment_lists.py`).
3. *Branch*: solutions of τ in [lo, hi] consist of labels up to hi, under M_0 - lo. If the best one needs more than lo,
   [lo, hi] is split at what it needs; solving at exactly that τ gives incumbents.
4. If lists grow too long, [0, M_0] is split beforehand: larger lo raise the bound without extras, under M_0 - lo;
   smaller hi shorten the lists.
5. The slack grows until it reaches the incumbent.
"""

import heapq
from bisect import bisect_right
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import floor, inf

import numpy as np

from ...formulation.network.network import (
    INFINITE,
    Network,
    Table,
    WindowStreams,
    evaluate,
    extras,
    streams_by_part,
    window_terms,
)
from ..protocol import INTERRUPTED, PRICED, STOPPED, Limits, OutOfTimeError, Search, Solution, Status, TooManyError
from ..work import spent
from .circuit import Circuit, Weights
from .copy_costs import raise_copies
from .copy_counts import raise_counts
from .copy_descent import offer_descended
from .labels import LabelBounds
from .longest_streams import without_shorter_streams
from .memory_price import Price, at_price, search_within, sweep
from .order import TooWideError, compile_network, restrict
from .segment_lists import SegmentLists, blocks_of, list_segments
from .tables import Tables
from .transient_branching import branch_transient
from .transient_relaxation import Groups, groups_of, relax_transient, unrelaxed, with_factors
from .window_relaxation import WindowPrice, price_windows

_DONE = "proved by prices"
_MOST = 1 << 12  # the sum of the weights of a window's streams, of which all but the first have one
_FEW, _OF_STREAMS, _LABELS = 1 << 14, 1 << 13, 1 << 18  # per table: in quick searches, with windows, in others
_MAX_SPLITS = 12  # intervals of τ split after lists too long, each of which took seconds
_NEAR = 1 / 32  # of the bound: the first slack in which copies are raised
_BRANCHING = 3.0, 1.0  # times the work before, plus seconds, for branching over the largest transient use
_QUICK_BRANCHING = 2.0, 0.3  # likewise, in quick searches that have a solution
_LISTING = 2.0, 2.0  # times the work for pricing, plus seconds, for all lists of streams of a search
_QUICK = 2.0, 5.0  # times the work for pricing, plus seconds, after which a quick search lists nothing
_ANY = 0.1  # the gap of a solution without windows, sought where none is known
_FIRST_FOUND = 1e9  # so large a gap that the first solution ends the search
_TRIES = 8  # values of τ
_TRIAL = 10.0  # seconds for a solution of one τ, which only networks too wide for elimination need
_Solve = Callable[[Network, Limits], Solution]
_Node = tuple[int, int, int]  # lower bound on solutions whose τ is between two levels


def has_extras(network: Network) -> bool:
    """True if some switch has transient use, and there is a capacity to count it."""
    return bool(network.capacities) and any(s.has_extra for s in network.switches)


def without_extras(network: Network, tau: int = 0) -> Network:
    """The network without transient use, `tau` subtracted from capacity 0."""
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


def has_maxima(network: Network) -> bool:
    """True if it has windows, or transient use."""
    return bool(network.windows) or has_extras(network)


def without_windows(
    network: Network, even: bool = False, kernels_only: bool = False, keep: AbstractSet[int] = frozenset()
) -> Network:
    """A network without windows that bounds one with windows: the first stream of each has nearly all the weight.

    All of it where there is no other, or with `kernels_only`. `even`: all streams have the same weight instead.
    Windows `keep` stay, but where there is no other stream.
    """
    if not network.windows:
        return network
    idle = {w: not any(table[1:].any() for _, table in terms) for w, terms in enumerate(window_terms(network))}
    stays = {w for w in keep if not idle[w]}
    known: dict[tuple[int, ...], Table] = {}  # equal layers share tables

    def weighted_streams(streams: Table, alone: bool) -> Table:
        found: Table = streams[0]
        if alone or kernels_only:
            return found
        if even:
            found = streams.sum(axis=0) // len(streams)
            return found
        found = (streams.sum(axis=0) + streams[0] * (_MOST - len(streams))) // _MOST
        return found

    def added(table: Table, parts: WindowStreams) -> Table:
        parts = tuple(part for part in parts if part[0] not in stays)
        if not parts:
            return table
        key = id(table), *(x for w, streams in parts for x in (id(streams), idle[w]))
        if key not in known:
            means = (weighted_streams(streams, idle[w]) for w, streams in parts)
            known[key] = np.where(table >= INFINITE, INFINITE, sum(means, table))
        return known[key]

    of_variable, of_edge = streams_by_part(network)
    variables, edges = list(network.variables), list(network.edges)
    decided = ({v for s in network.switches for v in s.variables}, {k for s in network.switches for k in s.edges})
    for v in of_variable.keys() - decided[0]:
        variables[v] = replace(variables[v], cost=added(variables[v].cost, of_variable[v]))
    for k in of_edge.keys() - decided[1]:
        edges[k] = replace(edges[k], cost=added(edges[k].cost, of_edge[k]))
    switches = tuple(
        replace(
            s,
            variables={v: (added(t[0], of_variable.get(v, ())), *t[1:]) for v, t in s.variables.items()},
            edges={k: (added(t[0], of_edge.get(k, ())), *t[1:]) for k, t in s.edges.items()},
        )
        for s in network.switches
    )
    windows = tuple(network.windows[w] for w in sorted(stays))
    return replace(network, variables=tuple(variables), edges=tuple(edges), switches=switches, windows=windows)


def memory_has_price(network: Network, prices: Sequence[float]) -> bool:
    """True if the prices of a solution say that memory is scarce; those of streams' weights come before."""
    rows = max(1, len(groups_of(network))) + len(network.capacities) - 1 if network.capacities else 0
    return any(prices[len(prices) - rows :])


def plainest(network: Network) -> Network:
    """A network without windows and transient use that bounds one with them."""
    network = without_windows(network)
    return without_extras(network) if has_extras(network) else network


def solve_maxima(search: Search, solve: _Solve) -> Solution:
    """Solve a search's network by `solve`, which takes networks without windows and transient use."""
    limits, windows = search.limits, bool(search.network.windows)
    any_will_do = windows and limits.quick and limits.gap >= _ANY and limits.cutoff is None
    try:
        circuit = compile_network(search.network)
    except TooWideError:
        return _solve_wide(search, solve)
    groups = groups_of(search.network) if has_extras(search.network) else ()
    if not groups:
        circuit = _without_extra(circuit)
    relaxed = relax_transient(circuit, groups) if groups else circuit
    if not relaxed.exact:
        return _solve_wide(search, solve)
    best = _priced(relaxed, search)
    if best is None:
        return search.finish("no solution, at any price of memory", infeasible=True)
    if not search.done and not limits.rough and windows:
        if search.objective is None and (ended := _without_windows_solved(search, solve)) is not None:
            return ended
        if any_will_do and search.objective is not None:
            return search.finish(PRICED)
        if not search.done and (best.is_mixed or not limits.quick) and not _count(best, groups, search):
            _raise_copies(best, groups, search)
        _branch(best, groups, search)
    if search.bound >= INFINITE:
        return _without_solution(search, "no solution, by branching over transient use")
    if search.done:
        return search.finish(_DONE if search.bound >= search.ceiling else STOPPED)
    if limits.rough or (limits.quick and (windows or not groups)):
        return search.finish(PRICED)
    return _list(search, solve, circuit, groups, best)


def _list(search: Search, solve: _Solve, circuit: Circuit, groups: Groups, best: WindowPrice) -> Solution:
    """Solve the network of a search by lists of segments, given its circuit and the best price."""
    branching = _TauSearch(search, solve, circuit, groups, best=best, pricing=search.work)
    by = "lists of segments", "lists of segments"
    try:
        solution = search_within(best.circuit, best.price, search, branching.offer, by)
    except TooWideError as error:
        return search.finish(f"too wide for lists: {error}")
    return replace(solution, words=PRICED) if search.limits.quick and not search.done else solution


def tau_of(network: Network, assignment: tuple[int, ...]) -> int:
    """The largest transient use of an assignment."""
    return max(extras(network, assignment).values(), default=0)


def _priced(circuit: Circuit, search: Search) -> WindowPrice | None:
    """Raise the bound of `search` by pricing and offer the solutions found; None if infeasible."""
    if search.network.windows:
        return price_windows(circuit, search)
    best = sweep(circuit, search)
    return None if best is None else WindowPrice(circuit, {}, best)


def _without_windows_solved(search: Search, solve: _Solve) -> Solution | None:
    """Offer a solution found without windows, and raise the bound; the end of the search if there is none.

    Whether memory suffices does not depend on windows, whose lists are much longer.
    """
    plain = without_windows(search.network)
    limits = Limits(search.left, search.ceiling, gap=max(_ANY, search.limits.gap), quick=True)
    answer = _solve_silently(search, solve, plain, limits)
    needed = not search.limits.quick and search.limits.cutoff is None
    if answer.assignment is None and answer.status is not Status.INFEASIBLE and needed:
        search.raise_bound(answer.bound)
        answer = _solve_silently(search, solve, plain, Limits(search.left, gap=_FIRST_FOUND, prices=answer.prices))
    if answer.status is Status.INFEASIBLE:
        return _without_solution(search, answer.words)
    search.raise_bound(answer.bound)
    if answer.assignment is not None:
        search.offer(answer.assignment)
        _descend(search)
        if not search.done and search.limits.gap < _ANY:  # its traffic, of next to no price, may exceed its kernels
            limits = Limits(search.left, search.ceiling, gap=limits.gap, quick=True, prices=answer.prices)
            even = _solve_silently(search, solve, without_windows(search.network, even=True), limits)
            search.raise_bound(min(even.bound, search.ceiling))
            if even.assignment is not None:
                search.offer(even.assignment)
    if not search.prices:
        search.prices = answer.prices
    return None


def _descend(search: Search) -> None:
    """Offer what changes of single options make of an incumbent that was found without windows."""
    if search.assignment is not None and search.left > 0:
        with suppress(TooWideError):
            offer_descended(compile_network(search.network), search.assignment, search)


def _without_solution(search: Search, words: str) -> Solution:
    """The end of a search without solution: none is below the ceiling, if there is one."""
    if search.ceiling >= INFINITE:
        return search.finish(words, infeasible=True)
    search.raise_bound(search.ceiling)
    return search.finish(words)


def _count(best: WindowPrice, groups: Groups, search: Search) -> bool:
    """Raise the bound of `search` by counts of copies; False if that does not apply."""
    if search.ceiling >= INFINITE:  # entries are too many where nothing can be left out
        return False
    return raise_counts(best, groups, search, min(search.ceiling - 1, best.circuit.max_cost))


def _raise_copies(best: WindowPrice, groups: Groups, search: Search) -> None:
    """Raise the bound of `search` by exact costs of the copies of chains, within a slack that excludes most options."""
    circuit = best.circuit
    through, least = circuit.backward(best.price.slots, search.until), search.bound - best.price.bound
    slack = max(1.0, least, _NEAR * abs(best.price.bound))
    while not search.done:
        reach = min(best.price.bound + int(slack), search.ceiling - 1, circuit.max_cost)
        small = restrict(circuit, through, best.price.max_total(circuit, reach), ())
        if small is None:
            search.raise_bound(reach + 1)
        else:
            raise_copies(small, best, groups, search, reach)
        if search.bound <= reach or reach == circuit.max_cost:
            break
        slack *= 4


def _branch(best: WindowPrice, groups: Groups, search: Search) -> None:
    """Raise the bound of `search` by branching over the largest transient use, if that has a price."""
    if not groups or search.done or (search.objective is not None and not any(best.price.price)):
        return
    reach = min(search.ceiling - 1, best.circuit.max_cost)
    small = best.smaller(reach, search.until)
    if small is None:
        search.raise_bound(reach + 1)
    else:
        small = unrelaxed(small, groups)
        quick = search.limits.quick and search.objective is not None
        times, more = _QUICK_BRANCHING if quick else _BRANCHING
        branch_transient(small, groups, search, best, search.work * (1 + times) + more)


def _without_extra(circuit: Circuit) -> Circuit:
    if all(f.extra is None for f in circuit.factors):
        return circuit
    return with_factors(circuit, circuit.network.capacities, [replace(f, extra=None) for f in circuit.factors])


def _solve_wide(search: Search, solve: _Solve) -> Solution:
    """A bound without transient use and windows, and solutions under a growing τ."""
    relaxed = plainest(search.network)
    limits = replace(search.limits, seconds=search.left, prices=())
    answer = _solve_silently(search, solve, relaxed, limits)
    if answer.status is Status.INFEASIBLE:
        return _without_solution(search, answer.words)
    search.raise_bound(answer.bound)
    fits = answer.assignment is None or search.offer(answer.assignment) or not has_extras(search.network)
    if not fits and answer.assignment is not None and not search.limits.rough:
        _raise_tau(search, solve, tau_of(search.network, answer.assignment))
    what = "windows" if search.network.windows else "transient memory"
    return search.finish("" if search.done else f"too wide to price {what}")


def _raise_tau(search: Search, solve: _Solve, tau: int) -> None:
    """Offer solutions under successive τ, each the transient use of the solution before."""
    tried = set[int]()
    while tau not in tried and tau <= search.network.capacities[0] and len(tried) < _TRIES and not search.done:
        tried.add(tau)
        limits = Limits(search.left, search.ceiling, gap=search.limits.gap, quick=True)
        answer = _solve_silently(search, solve, without_extras(without_windows(search.network), tau), limits)
        if answer.assignment is None:
            return
        search.offer(answer.assignment)
        tau = tau_of(search.network, answer.assignment)


def _solve_silently(search: Search, solve: _Solve, network: Network, limits: Limits) -> Solution:
    """The solver's answer, without progress reports; its interrupt is raised again."""
    answer = solve(network, replace(limits, progress=None))
    if answer.words == INTERRUPTED:
        raise KeyboardInterrupt
    return answer


@dataclass(frozen=True, slots=True, eq=False)
class _Relaxation:
    """A circuit relaxed over groups, or without extras; its price, and the best total through every entry at it.

    `weights` stand for windows at that price. `tau` is subtracted from capacity 0.
    """

    circuit: Circuit
    price: Price
    weights: Weights
    through: Tables
    groups: Groups = ()
    tau: int = 0

    def bound(self, low: int) -> int:
        """Lower bound on solutions of transient use `low` or more."""
        return self.price.bound + floor(self.slope * (low - self.tau))

    def max_total(self, low: int, reach: int) -> float:
        """Upper bound on the total of those of cost up to `reach`."""
        return self.price.max_total(self.circuit, reach) - self.slope * (low - self.tau)

    @property
    def slope(self) -> float:
        """The price of a byte of capacity 0."""
        return self.price.price[0] if self.price.price else 0.0


@dataclass(eq=False)
class _TauSearch:
    """Branch and bound over τ."""

    search: Search
    solve: _Solve
    plain: Circuit
    groups: Groups
    best: WindowPrice
    pricing: float  # work
    tried: set[int] = field(default_factory=set)
    listing: float = 0.0  # work for lists
    splits: int = 0  # of intervals whose lists grew too long

    def __post_init__(self) -> None:
        self.blocks = blocks_of(self.search.network)

    @cached_property
    def plain_relaxation(self) -> _Relaxation:
        """The circuit without extras, priced with the incumbent's transient use subtracted from capacity 0."""
        search, network = self.search, self.search.network
        tau = 0 if search.assignment is None else tau_of(network, search.assignment)
        inner = Search(without_extras(network, tau), Limits(search.left), search.source)
        first, *others = self.plain.network.capacities
        circuit = replace(self.plain, network=replace(self.plain.network, capacities=(first - tau, *others)))
        found = _priced(circuit, inner)
        if found is None:  # with so little memory
            weights = self.best.weights
            none = [0.0] * len(network.capacities)
            found = WindowPrice(circuit, weights, at_price(circuit.weighted(weights), none, search.until))
        through = found.circuit.backward(found.price.slots, search.until)
        return _Relaxation(found.circuit, found.price, found.weights, through, tau=tau)

    def offer(self, through: Tables, reach: int) -> bool:
        """Offer the best solution of cost up to `reach`; True if the search was complete."""
        quick = self.search.limits.quick
        late = self.search.objective is not None and self.search.work > _QUICK[0] * self.pricing + _QUICK[1]
        if quick and (self.tried or late):  # lists of a small slack gave their best
            return False
        relaxation = _Relaxation(self.best.circuit, self.best.price, self.best.weights, through, self.groups)
        if not self.groups:
            return self._search_lists(relaxation, 0, 0, reach)
        try:
            return self._search_lists(relaxation, 0, self.search.network.capacities[0], reach)
        except TooManyError:
            if self.best.weights:  # intervals do not shorten lists of streams
                raise
            return not quick and self._search_interval(0, self.search.network.capacities[0], reach)

    def _search_interval(self, low: int, high: int, reach: int) -> bool:
        """As `offer`, for solutions of τ in [low, high]; splits the interval if its lists grow too long."""
        reach = min(reach, self.search.ceiling - 1)
        bound, slope = self.plain_relaxation.bound(low), self.plain_relaxation.slope
        if bound > reach:
            return True
        high = min(high, low + floor((reach + 1 - bound) / slope)) if slope else high
        try:
            return self._search_lists(self.plain_relaxation, low, high, reach)
        except TooManyError:
            self.splits += 1
            if self.splits > _MAX_SPLITS or low == high:
                raise
        middle = (low + high) // 2
        return self._search_interval(middle + 1, high, reach) and self._search_interval(low, middle, reach)

    def _search_lists(self, relaxed: _Relaxation, low: int, high: int, reach: int) -> bool:
        """As `offer`, for solutions of τ in [low, high], by lists from a relaxation."""
        search, max_total = self.search, relaxed.max_total(low, reach)
        small = restrict(relaxed.circuit, relaxed.through, max_total, self.blocks)
        if small is None:
            return True
        small, weights = without_shorter_streams(small, relaxed.weights, search.until)
        limit = _OF_STREAMS if weights else _FEW if search.limits.quick else _LABELS
        most = _LISTING[0] * self.pricing + _LISTING[1] if relaxed.weights else inf
        before, price = spent(), np.array(relaxed.price.price)
        bounds = LabelBounds(price, max_total, limit, search.until, most_work=before + most - self.listing)
        try:
            lists = list_segments(small, relaxed.groups, weights, bounds, high)
        except OutOfTimeError:
            if search.left <= 0:
                raise
            raise TooManyError("listing them exceeds the work limit") from None
        finally:
            self.listing += spent() - before
        levels = [level for level in lists.levels if level >= low]
        nodes = [(search.bound, 0, len(levels) - 1)] if levels else []
        while nodes and search.left > 0:
            bound, first, last = heapq.heappop(nodes)
            branches = (
                [] if bound >= min(reach + 1, search.ceiling) else self._branch(lists, levels, first, last, reach)
            )
            if branches is None:
                return False
            for branch in branches:
                heapq.heappush(nodes, branch)
        return not nodes

    def _branch(self, lists: SegmentLists, levels: list[int], first: int, last: int, reach: int) -> list[_Node] | None:
        """Solve a node, τ in levels[first..last], and return its open branches; None if it cannot be decided."""
        search, bound = self.search, -INFINITE
        hurried = search.limits.quick
        for quick in (True,) if hurried else (True, False):  # any solution that needs too much shows where to split
            limits = Limits(search.left, min(reach + 1, search.ceiling), quick=quick)
            answer, found = self._solve_labels(lists, levels[first], levels[last], limits)
            if answer is None or answer.bound >= min(reach + 1, search.ceiling):
                return []
            bound = answer.bound
            if found is None:
                continue
            needs, verdict = tau_of(search.network, found), evaluate(search.network, found)
            if not verdict.feasible:
                spare = search.network.capacities[0] - verdict.use[0] + needs
                split = (bisect_right(levels, spare) + levels.index(needs) + 1) // 2  # excludes it from both branches
                self._try_tau(lists, needs)
                return [(bound, first, split - 1), (bound, split, last)]
        middle = (first + last + 1) // 2
        return [(bound, first, middle - 1), (bound, middle, last)] if first < last and not hurried else None

    def _try_tau(self, lists: SegmentLists, tau: int) -> None:
        """Offer a good solution of transient use up to `tau`."""
        search = self.search
        if tau not in self.tried:
            self.tried.add(tau)
            self._solve_labels(lists, tau, tau, Limits(min(search.left, _TRIAL), search.ceiling, quick=True))

    def _solve_labels(
        self, lists: SegmentLists, low: int, high: int, limits: Limits
    ) -> tuple[Solution | None, tuple[int, ...] | None]:
        """The best solution from labels up to `high`, `low` subtracted from capacity 0, and its assignment; or None."""
        search, capacities = self.search, self.search.network.capacities
        labels = lists.up_to(high)
        if labels is None or (low and low > capacities[0]):
            return None, None
        left = (capacities[0] - low, *capacities[1:]) if low else capacities
        answer = _solve_silently(search, self.solve, lists.network(labels, left), limits)
        if answer.status is Status.INFEASIBLE:
            return None, None
        found = None if answer.assignment is None else lists.assemble(labels, answer.assignment)
        if found is not None:
            search.offer(found)
        return answer, found
