"""Exact costs of a chain's copies between two layouts, where weights leave a gap.

At prices λ, and weights of streams, elimination gives every copy of a chain a table F over its two boundaries. The gap
between weighted sums and longest streams is alike in all copies, so on the whole network it is as many times as large,
too large for lists. But a solution meets few entries of F. These are raised to their exact values

    E[b, b'] = min over the copy of  cost + Σ_w max_k S_wk + Σ_r λ_r use_r

each a small problem without memory: weights of its own, then label lists within its own gap. The chain is solved again
with the raised table, which is a lower bound in every entry, until its solution meets exact entries only. Then prices
change as in `memory_price.py`: that solution is a cut. Solutions are offered, and crossovers of those on both sides of
the capacities.
"""

from dataclasses import dataclass, replace
from itertools import pairwise
from math import ceil, fsum

import numpy as np

from ...formulation.network.network import Chain, Network, Switch, evaluate, extras
from ..protocol import OutOfTimeError, Search, TooManyError
from .circuit import Circuit
from .factors import Factor
from .labels import LabelBounds, enumerate_labels
from .memory_price import highest_prices
from .order import arrange, restrict
from .segment_lists import with_columns
from .tables import Tables
from .transient_relaxation import Groups
from .window_relaxation import Cuts, Weights, WindowPrice, cross, weighted

_ROUNDS = 12  # of weights, for one entry
_LABELS = 1 << 16  # per table
_CLOSE = 1e-4  # of an entry: a gap not worth lists
_STEPS = 32, 16, 8, 4, 2, 1  # what parts of an entry's gap lists try
_PRICES = 8
_FIRST, _FARTHEST = 0.1, 4.0  # the largest prices: what adds so much of the cost, or multiples of the first
_SHARE = 0.25  # of the time left, for the lists of one entry
_TIMES, _SECONDS = 2.0, 2.0  # multiples of the time for pricing, and seconds


@dataclass(frozen=True, slots=True)
class _Entry:
    """A lower bound on a copy's cost between two layouts, and the best options found of the copy's variables."""

    bound: float
    options: tuple[int, ...]


def raise_copies(circuit: Circuit, found: WindowPrice, groups: Groups, search: Search, reach: int) -> None:
    """Raise the bound of `search` by exact costs of copies, and offer solutions, in a time like that for pricing.

    `circuit` is relaxed over `groups`, and restricted to the solutions of cost up to `reach`.
    """
    until = search.seconds * (1 + _TIMES) + _SECONDS
    price, capacities = found.price.price, np.array(circuit.network.capacities, np.float64)
    scale = _FIRST * max(1.0, abs(found.price.total)) / np.maximum(1.0, capacities)
    box = np.maximum(_FARTHEST * np.array(price), scale)
    cuts, sides = list(found.cuts), dict[bool, tuple[int, ...]]()
    best, center = -np.inf, np.array(price)
    for _ in range(_PRICES):
        copies = _CopyCosts(circuit, circuit.exact_price(price), found.weights, search, reach)
        value, assignment = copies.solved(until) if any(copies.worth) else (0.0, None)
        if assignment is None or search.done:
            return
        cost, use, fits = _cut(search.network, groups, assignment)
        search.offer(assignment)
        sides[fits] = assignment
        if len(sides) > 1:
            cross(sides, search)
        if search.done or not price or (cost, *use) in cuts or search.seconds > until:
            return
        cuts.append((cost, *use))
        if value > best:
            best, center = value, np.array(copies.price)
        target, upper = highest_prices(np.array(cuts, np.float64), capacities, box)
        if upper - best <= _CLOSE * abs(upper):
            return
        price = tuple(((center + np.array(target)) / 2).tolist())  # farther, other layouts are met


def _cut(network: Network, groups: Groups, assignment: tuple[int, ...]) -> tuple[int, tuple[int, ...], bool]:
    """Cost (without the constant), use of the rows of a relaxation over `groups`, and feasibility of an assignment."""
    verdict = evaluate(network, assignment)
    cost, use = verdict.cost - network.constant, verdict.use
    if groups:
        needs = extras(network, assignment)
        first = use[0] - max(needs.values(), default=0)
        use = (*(first + sum(needs[z] for z in group) // len(group) for group in groups), *use[1:])
    return cost, use, verdict.feasible


class _CopyCosts:
    """The tables of a circuit's chains at given prices, raised entry by entry; `weights` stand for its windows."""

    def __init__(
        self, circuit: Circuit, price: tuple[float, ...], weights: Weights, search: Search, reach: int
    ) -> None:
        self.search, self.weights, self.price = search, weights, price
        self.circuit, self.reach = circuit, reach
        relaxed = weighted(circuit, weights)
        slots = relaxed.forward(relaxed.tables(1, price), search.until)
        self.tables = [slots[one].copy() for one in circuit.copies]
        inside = [circuit.below([one]) for one in circuit.copies]
        self.inside = [[slot for slot in sorted(below) if slot < len(circuit.factors)] for below in inside]
        self.worth = [any(circuit.factors[slot].streams for slot in slots) for slots in self.inside]
        self.priced = {
            slot: replace(f, time=np.floor(f.priced(1, price)), use=None, extra=None)
            for slots in self.inside
            for slot in slots
            for f in [circuit.factors[slot]]
        }
        self.known: dict[tuple[int, int, int], _Entry] = {}
        own = {slot for slots in self.inside for slot in slots}
        self.rest = [replace(f, extra=None) for slot, f in enumerate(relaxed.factors) if slot not in own]

    def solved(self, until: float) -> tuple[float, tuple[int, ...] | None]:
        """Raise the bound of the search to what the prices prove; returns that without the constant, and the solution,
        or None if there is none, or after `until` (seconds of the search)."""
        search = self.search
        paid = fsum(p * c for p, c in zip(self.price, self.circuit.network.capacities, strict=True))
        value = -np.inf
        while not search.done:
            outline, slots = self._solved()
            total = float(slots[-1])
            if total == np.inf:
                search.raise_bound(self.reach + 1)
                break
            value = total - paid
            margin = 8 * self.circuit.rounding(self.price, abs(total) + paid)
            search.raise_bound(min(self.reach + 1, outline.network.constant + ceil(value - margin)))
            assignment = outline.decode(slots)
            met = {
                (c, self._at(b, assignment), self._at(b_next, assignment))
                for c, chain in enumerate(self.circuit.network.chains)
                if self.worth[c]
                for b, b_next in pairwise(chain.boundaries)
            }
            left = sorted(met - self.known.keys())
            if not left:
                return value, self._whole(assignment)
            for entry in left:
                if search.seconds > until:
                    return value, None
                self._raise(*entry, until=search.started + search.seconds + _SHARE * (until - search.seconds))
        return value, None

    def _at(self, variable: int, assignment: tuple[int, ...]) -> int:
        """The place of a variable's option among those left."""
        return int(np.searchsorted(self.circuit.kept[self.circuit.domain[variable]], assignment[variable]))

    def _solved(self) -> tuple[Circuit, Tables]:
        """The circuit of boundaries and what is outside of chains, with the raised tables, and its tables."""
        network = self.circuit.network
        chains = tuple(Chain(chain.boundaries, ((),) * len(chain)) for chain in network.chains)
        outline = replace(network, chains=chains, windows=())
        tables = [
            Factor((chain.boundaries[0], chain.boundaries[1]), table, None)
            for chain, table in zip(chains, self.tables, strict=True)
        ]
        circuit = arrange(outline, [*self.rest, *tables], self.circuit.domain, self.circuit.kept)
        return circuit, circuit.forward(circuit.tables(1, self.price), self.search.until)

    def _raise(self, c: int, first: int, last: int, until: float) -> None:
        """Raise one entry to its exact value, or as far as lists stay short and lead `until` (of `perf_counter`)."""
        part = self._between(c, first, last)
        cuts = Cuts(part)
        bound, cost, weights = -np.inf, np.inf, self.weights
        options: tuple[int, ...] = ()
        point = cuts.normal([x for w in cuts.counts for x in self.weights[w]])
        best, step = point, 1.0
        for _ in range(_ROUNDS):
            now = cuts.weights(point)
            relaxed = weighted(part, now)
            slots = relaxed.forward(relaxed.tables(1, ()), self.search.until)
            total = float(slots[-1])
            if total == np.inf:
                self._know(c, first, last, _Entry(np.inf, ()))
                return
            step = 1.0 if total > bound else step / 2
            better = total > bound
            if better:
                bound, best, weights = total, point, now
            found, _ = cuts.add(slots)
            if found < cost:
                better, cost = True, found
                options = relaxed.decode(slots)[: len(self.circuit.network.chains[c].copies[0])]
            target, upper = cuts.highest(0.0)
            if cost - bound <= _CLOSE * abs(cost) or upper - bound <= _CLOSE * abs(bound):
                break
            if better:
                cuts.circuit = part = self._cheaper(part, relaxed, slots, cost)
            point = best + step * (target - best)
        if cost - bound > _CLOSE * abs(cost):
            bound, cost, options = self._listed(part, weights, _Entry(bound, options), cost, until)
        self._know(c, first, last, _Entry(min(bound, cost), options))

    def _cheaper(self, part: Circuit, relaxed: Circuit, slots: Tables, cost: float) -> Circuit:
        """The circuit of a copy without what is in no solution up to `cost`, by the tables of the weighted one."""
        small = restrict(part, relaxed.backward(slots, self.search.until), cost)
        assert small is not None  # it has the solution of that cost
        return small

    def _know(self, c: int, first: int, last: int, entry: _Entry) -> None:
        self.known[c, first, last] = entry
        self.tables[c][first, last] = max(self.tables[c][first, last], entry.bound)

    def _between(self, c: int, first: int, last: int) -> Circuit:
        """The circuit of one copy between two layouts, priced, with its windows; variables are numbered anew."""
        circuit, chain = self.circuit, self.circuit.network.chains[c]
        place = {chain.boundaries[0]: first, chain.boundaries[1]: last}
        met = {v for slot in self.inside[c] for v in self.priced[slot].scope}  # `restrict` reads options from factors
        number = {v: n for n, v in enumerate((*chain.copies[0], *(v for v in place if v in met)))}
        kept = {n: circuit.kept[circuit.domain[v]] for v, n in number.items()}
        kept |= {number[v]: kept[number[v]][[at]] for v, at in place.items() if v in met}
        factors = []
        for slot in self.inside[c]:
            f = self.priced[slot]
            if any(v in place for v in f.scope):
                options = [
                    np.array([place[v]]) if v in place else np.arange(n)
                    for v, n in zip(f.scope, f.time.shape, strict=True)
                ]
                f = f.take(options)
            factors.append(replace(f, scope=tuple(number[v] for v in f.scope)))
        network = Network(
            tuple(circuit.network.variables[v] for v in number),
            switches=tuple(
                Switch(number[s.variable], {number[v]: t for v, t in s.variables.items()}, {})
                for s in circuit.network.switches
                if s.variable in number
            ),
        )
        return arrange(network, factors, tuple(range(len(number))), kept)

    def _listed(
        self, part: Circuit, weights: Weights, known: _Entry, cost: float, until: float
    ) -> tuple[float, float, tuple[int, ...]]:
        """The exact cost of an entry by label lists, or the bound that they prove; the least cost and its options."""
        relaxed = weighted(part, weights)
        slots = relaxed.forward(relaxed.tables(1, ()), self.search.until)
        through = relaxed.backward(slots, self.search.until)
        bound, options = known.bound, known.options
        for share in _STEPS:
            reach = known.bound + (cost - known.bound) / share
            small = restrict(part, through, reach)
            if small is None:
                bound = reach
                continue
            one, price = with_columns(small, set(range(len(small.factors))), weights)
            try:
                limits = LabelBounds(np.array(price), reach, _LABELS, min(until, self.search.until))
                listing = enumerate_labels(one, limits, (one.root,))
            except (TooManyError, OutOfTimeError):
                break
            labels = listing.slots[one.root]
            longest = labels.use.max(axis=1, initial=np.iinfo(np.int64).min)
            if len(longest) and longest.min() <= reach:
                if longest.min() < cost:
                    cost = float(longest.min())
                    options = listing.decode(int(longest.argmin()))[: len(options)]
                return cost, cost, options
            bound = reach
        return bound, cost, options

    def _whole(self, assignment: tuple[int, ...]) -> tuple[int, ...] | None:
        """The solution with the best options found of every copy; None if a copy has none."""
        picks = list(assignment)
        for c, chain in enumerate(self.circuit.network.chains):
            for copy, (b, b_next) in zip(chain.copies, pairwise(chain.boundaries), strict=True):
                entry = self.known.get((c, self._at(b, assignment), self._at(b_next, assignment)))
                if entry is None or not entry.options:
                    return None
                for v, option in zip(copy, entry.options, strict=True):
                    picks[v] = option
        return tuple(picks)
