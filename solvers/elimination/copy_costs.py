"""Exact costs of a chain's copies between two layouts, where weights leave a gap.

At prices λ, and weights of streams, elimination gives every copy of a chain a table F over what is around it: its two
boundaries, and what all copies read. The gap between weighted sums and longest streams is alike in all copies, so on
the whole network it is as many times as large, too large for lists. But a solution meets few entries of F. These are
raised to their exact values

    E[b, b'] = min over the copy of  cost + Σ_w max_k S_wk + Σ_r λ_r use_r

each a small problem without capacities: weights of its own, then lists (`copy_labels.py`), or where these are too long
a program (`copy_program.py`), within its own gap, or up to what is asked for. Several entries have lists in common: the
layouts at the ends are variables of these, and what entries cost so far is subtracted. Where weights of an entry raise
its bound, they bound all other entries of its mode, too: those of the whole network suit the mode taken most.
Within an interval of the largest transient use, every switch of the copy has a capacity: the upper end. The chain is
solved again with the raised table, which is a lower bound in every entry, until its solution meets exact entries only.
Then prices change as in `memory_price.py`: that solution is a cut. Solutions are offered, and mixtures of them; for
these, copies are also solved in each of their modes, at two prices.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, floor, fsum, inf
from typing import NamedTuple, TypeAlias

import numpy as np

from ...formulation.network.network import Chain, Network, Switch, evaluate
from ..protocol import Search
from .circuit import Circuit, Weights
from .copy_descent import descended
from .copy_labels import list_copy
from .copy_mixtures import Mixtures
from .copy_pairs import merged
from .copy_program import Found, solve_copy
from .factors import Factor
from .kernels import Floats
from .memory_price import highest_prices, least_use_of
from .order import arrange, restrict
from .tables import Tables
from .transient_relaxation import Groups, Region, relaxed_use
from .window_relaxation import Cuts, WindowPrice, weighted_factors

_ROUNDS = 12  # of weights, for one entry
_FEW, _FEWER = 5, 1  # rounds before lists are tried; from the weights of another entry in the same mode
_FIRST_STEP = 0.25  # of the way from the first weights to those that cuts recommend
_CLOSE, _OF_GAP = 1e-4, 0.25  # the gap left open: share of the cost where memory has a price, or of the search's gap
_LITTLE = 0.1  # of that gap: what cuts promise at most where weights are left
_OF_ENTRY = 0.5  # of an entry's gap: that of a program
_OF_MODE = 0.002  # of a copy's cost: how near the best one in other modes is sought
_MIXED = 1.0, 0.7  # times the first prices: at which copies in each mode are solved, to be mixed
_PRICES = 8
_FIRST, _FARTHEST = 0.1, 4.0  # the largest prices: what adds so much of the cost, or multiples of the first
_TIMES, _MORE = 2.0, 3.0  # times the work for pricing, plus seconds

Place: TypeAlias = tuple[int, tuple[int, ...]]
"""A chain, the place of the copy's mode, and those of options of what is around it: an entry of the chain's table."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A lower bound on a copy's cost between two layouts, the least cost found, and the options that lead to it, of the
    copy's variables, then others. `final`: it was raised as far as a program gets.
    """

    bound: float
    cost: float = inf
    options: tuple[int, ...] = ()
    final: bool = False


class Start(NamedTuple):
    """The weights of a copy's windows in a mode that proved most of the last entry, and the point that they are of."""

    point: Floats
    weights: Weights


def raise_copies(
    circuit: Circuit,
    found: WindowPrice,
    groups: Groups,
    search: Search,
    reach: int,
    region: Region | None = None,
    most_work: float = inf,
) -> None:
    """Raise the bound of `search` by exact costs of copies, and offer solutions, by about as much work as for pricing.

    The work of `search` ends at `most_work` at the latest. `circuit` is relaxed over `groups`, by means or over a
    region, and restricted to the solutions of cost up to `reach`.
    """
    most_work = min(most_work, search.work * (1 + _TIMES) + _MORE)
    mixtures = found.mixtures or Mixtures(search.network)
    price, capacities = found.price.price, np.array(circuit.network.capacities, np.float64)
    scale = _FIRST * max(1.0, abs(found.price.total)) / np.maximum(1.0, capacities)
    box = np.maximum(_FARTHEST * np.array(price), scale)
    cuts, mixed = list(found.cuts), False
    best, center, starts = -np.inf, np.array(price), dict[tuple[int, int], Start]()
    for _ in range(_PRICES):
        rows = circuit.exact_price(price)
        copies = CopyCosts(circuit, rows, found.weights, search, reach, groups=groups, region=region, starts=starts)
        value, assignment = copies.solved(most_work) if any(copies.worth) else (0.0, None)
        if assignment is None or search.done:
            return
        verdict = evaluate(search.network, assignment)
        cut = (
            verdict.cost - search.network.constant,
            *relaxed_use(search.network, groups, region, assignment, verdict.use),
        )
        search.offer(assignment)
        mixtures.add(assignment)
        if price and region is None and not (mixed or search.done):
            mixed = True
            for share in _MIXED:
                rows = circuit.exact_price([p * share for p in copies.price])
                of = CopyCosts(circuit, rows, found.weights, search, reach, groups=groups, region=None, starts=starts)
                for other in of.in_each_mode(assignment):
                    mixtures.add(other)
        mixtures.offer_best(search)
        if search.done or not price or cut in cuts or search.work > most_work:
            return
        cuts.append(cut)
        if value > best:
            best, center = value, np.array(copies.price)
        target, upper = highest_prices(np.array(cuts, np.float64), capacities, box)
        if upper - best <= copies.close * abs(upper):
            return
        price = tuple(((center + np.array(target)) / 2).tolist())  # farther, other layouts are met


class CopyCosts:
    """The tables of a circuit's chains at given prices, raised entry by entry; `weights` stand for its windows.

    `starts`: for a chain and a mode, the weights and prices that were best for the last entry. The next one begins with
    them, and the tables have what they prove.
    """

    def __init__(
        self,
        circuit: Circuit,
        price: tuple[float, ...],
        weights: Weights,
        search: Search,
        reach: int,
        groups: Groups,
        region: Region | None,
        starts: dict[tuple[int, int], Start],
    ) -> None:
        self.search, self.weights, self.price = search, weights, price
        self.circuit, self.reach, self.starts = circuit, reach, starts
        self.interval = interval = None if region is None else region.interval
        self.close = max(_CLOSE if any(price) else 0.0, _OF_GAP * search.limits.gap)
        self.switches = [mode_of(circuit.network, chain) for chain in circuit.network.chains]
        inside = [circuit.below([one]) for one in circuit.copies]
        self.inside = [[slot for slot in sorted(below) if slot < len(circuit.factors)] for below in inside]
        self.worth = [any(circuit.factors[slot].streams for slot in slots) for slots in self.inside]
        self.extra_prices = [self._extra_prices(c, groups) for c in range(len(circuit.copies))]
        self.tables = [self._weighed(c, weights) for c in range(len(circuit.copies))]
        for (c, mode), start in starts.items():
            self._reweigh(c, mode, start.weights)
        count = len(price) - len(groups) if interval else len(price)
        self.prices_of_use = price[:count]
        self.priced: dict[int, list[Factor]] = {}
        self.known: dict[Place, Entry] = {}
        own = {slot for slots in self.inside for slot in slots}
        rest = [replace(f, extra=None) for slot, f in enumerate(circuit.factors) if slot not in own]
        self.rest = weighted_factors(rest, weights)

    def _weighed(self, c: int, weights: Weights, modes: Sequence[int] | None = None) -> Floats:
        """The table of a chain's copy at some weights in each mode, or in some: [modes, ends...]."""
        circuit, until = self.circuit.weighted(weights), self.search.until
        tables = dict(zip(self.inside[c], circuit.tables(1, self.price, self.inside[c]), strict=True))
        paid = fsum(self.extra_prices[c].values()) * (self.interval.high if self.interval else 0)
        return circuit.in_modes(circuit.copies[c], self.switches[c], tables, until, modes) - paid

    def _reweigh(self, c: int, mode: int, weights: Weights) -> None:
        """Raise all entries of a chain in a mode to what they cost at other weights of its windows."""
        table = self.tables[c]
        table[mode] = np.maximum(table[mode], self._weighed(c, {**self.weights, **weights}, [mode])[0])

    def _keep(self, place: Place, start: Start, least: float) -> None:
        """Keep the weights that bound an entry by `least`, for the next entries in its mode to begin with.

        If that is more than its bound so far, bound the others of its mode by them, too.
        """
        c, (mode, *_) = place
        self.starts[c, mode] = start
        if least > self.tables[c][place[1]]:
            self._reweigh(c, mode, start.weights)

    def _extra_prices(self, c: int, groups: Groups) -> dict[int, float]:
        """The prices of transient use of the switches in a copy; none outside of an interval."""
        if self.interval is None:
            return {}
        first = len(self.price) - len(groups)
        inner = {*self.circuit.network.chains[c].copies[0]}
        return {z: self.price[first + g] for g, group in enumerate(groups) for z in group if z in inner}

    def _factors(self, c: int) -> list[Factor]:
        """The factors of a copy, priced, in as few tables as they have variables."""
        if c not in self.priced:
            own = [self._priced(c, self.circuit.factors[slot], self.prices_of_use) for slot in self.inside[c]]
            self.priced[c] = merged(own)
        return self.priced[c]

    def _priced(self, c: int, f: Factor, price: tuple[float, ...]) -> Factor:
        """A factor of a copy, memory priced; within an interval its use is the transient use of each switch."""
        switches, use = list(self.extra_prices[c]), None
        if f.extra is not None and f.scope[0] in switches:
            use = np.zeros((*f.extra.shape, len(switches)))
            use[..., switches.index(f.scope[0])] = f.extra
        return replace(f, time=np.floor(f.priced(1, price)), use=use, extra=None)

    def solved(self, most_work: float) -> tuple[float, tuple[int, ...] | None]:
        """Raise the bound of the search to what the prices prove; returns that without the constant, and the solution,
        or None if there is none, or after `most_work` of the search."""
        search = self.search
        whole = paid = fsum(p * c for p, c in zip(self.price, self.circuit.network.capacities, strict=True))
        if self.interval is not None:  # tables of copies have it
            chains = zip(self.circuit.network.chains, self.extra_prices, strict=True)
            paid -= self.interval.high * fsum(len(chain) * fsum(prices.values()) for chain, prices in chains)
        value = -np.inf
        while not search.done:
            outline, slots = self._solved()
            total = float(slots[-1])
            if total == np.inf:
                search.raise_bound(self.reach + 1)
                break
            value = total - paid
            margin = 8 * self.circuit.rounding(self.price, abs(total) + whole)
            search.raise_bound(min(self.reach + 1, outline.network.constant + ceil(value - margin)))
            assignment = outline.decode(slots)
            met = Counter(
                self._place(c, i, assignment)
                for c, chain in enumerate(self.circuit.network.chains)
                if self.worth[c]
                for i in range(len(chain))
            )
            gaps = {entry: self.close * abs(value) / many / len(met) for entry, many in met.items()}
            left = [entry for entry, gap in sorted(gaps.items()) if not self.is_exact(entry, gap)]
            if not left:
                return value, self._whole(assignment)
            for entry in left:
                if search.work > most_work:
                    return value, None
                self.raise_entry(entry, gaps[entry])
        return value, None

    def is_exact(self, entry: Place, gap: float) -> bool:
        """True if an entry is known within a gap, in ns, or can be raised no more."""
        known = self.known.get(entry)
        return known is not None and (known.final or known.bound == inf or known.cost - known.bound <= gap)

    def _place(self, c: int, i: int, assignment: tuple[int, ...]) -> Place:
        """The entry of copy i of a chain."""
        around = self.circuit.network.chains[c].around(i)
        ends = self.circuit.places(around, (assignment[v] for v in around))
        return c, (int(np.argmin([table[ends] for table in self.tables[c]])), *ends)

    def _solved(self) -> tuple[Circuit, Tables]:
        """The circuit of boundaries and what is outside of chains, with the raised tables, and its tables."""
        network = self.circuit.network
        chains = tuple(replace(chain, copies=((),) * len(chain)) for chain in network.chains)
        outline = replace(network, chains=chains, windows=())
        tables = [
            Factor(chain.around(0), table.min(axis=0), None) for chain, table in zip(chains, self.tables, strict=True)
        ]
        circuit = arrange(outline, [*self.rest, *tables], self.circuit.domain, self.circuit.kept)
        return circuit, circuit.forward(circuit.tables(1, self.price), self.search.until)

    def raise_entry(self, place: Place, gap: float, enough: float = inf) -> None:
        """Raise one entry to within `gap` of its cost, or to `enough`, or as far as a program gets."""
        part, c = self._between(place), place[0]
        limits = part.network.capacities
        if any(least_use_of(part, r, self.search.until) > most for r, most in enumerate(limits)):
            self._know(place, Entry(inf))
            return
        cuts, known, at = Cuts(part), self._known_of(place, part), np.zeros(0)
        starts = list(self.extra_prices[c].values())
        cuts.box = np.array([max(_FARTHEST * p, _FIRST * self._scale(place) / max(1, limits[0])) for p in starts])
        point = cuts.normal([x for w in cuts.counts for x in self.weights[w]] + starts)
        kind = c, place[1][0]
        few = _FEW
        if kind in self.starts and len(self.starts[kind].point) == len(point):
            point, few = self.starts[kind].point, _FEWER
        best, step, priced = point, _FIRST_STEP, -inf

        def left() -> float:
            return min(known.cost, enough) - known.bound

        for n in range(_ROUNDS):
            if n == few:
                known = self._listed(part, (cuts.weights(best), at), known, gap, enough)
                if left() <= gap:
                    break
            relaxed = part.weighted(cuts.weights(point))
            price = relaxed.exact_price(point[cuts.size :].tolist())
            slots = relaxed.forward(relaxed.tables(1, price), self.search.until)
            total = float(slots[-1])
            if total == np.inf:
                self._know(place, Entry(inf))
                return
            paid = fsum(p * most for p, most in zip(price, limits, strict=True))
            value = floor(total - paid - 8 * relaxed.rounding(price, abs(total) + paid)) if limits else total
            better = value > priced
            step = min(1.0, 2 * step) if better else step / 2
            if better:
                priced, best, at = value, point, np.array(price)
                known = replace(known, bound=max(known.bound, priced))
            found, use = cuts.add(slots)
            if found < inf and all(u <= most for u, most in zip(use, limits, strict=True)):
                cost, options = descended(part, relaxed.decode(slots))
                if cost < known.cost:
                    better, known = True, replace(known, cost=cost, options=options)
            target, upper = cuts.highest(0.0)
            if left() <= gap or upper - priced <= _LITTLE * gap:
                break
            if better and known.cost < inf:
                cuts.circuit = part = self._cheaper(part, relaxed, slots, known.cost + paid)
            point = best + step * (target - best)
        self._keep(place, Start(best, cuts.weights(best)), priced - gap)
        if left() > gap:
            known = self._listed(part, (cuts.weights(best), at), known, gap, enough)
        if left() > gap:
            known = replace(self._solved_whole(part, (cuts.weights(best), at), known, gap), final=True)
        self._know(place, replace(known, bound=min(known.bound, known.cost)))

    def raise_together(self, c: int, mode: int, extra: Floats, rise: float, gap: float) -> tuple[int, ...]:
        """Raise entries of a chain in one mode to their values less `extra` plus `rise`, or, within `gap`, to the most
        that is proved of all of them at once; `extra`: [ends...], infinite for entries that are left as they are.

        Returns the options of a good solution of one of them, of the copy's variables, then around it, if one is found.
        """
        table = self.tables[c][mode]
        near = np.nonzero((extra < rise) & (table < inf))
        if not len(near[0]) or self.search.done:
            return ()
        low, shift = np.floor(table[near] - extra[near]), np.full(table.shape, inf)
        shift[near] = -low
        places = [tuple(np.unique(own).tolist()) for own in near]
        part = self._within(c, [(mode,), *places], shift[np.ix_(*places)])
        cuts = Cuts(part)
        point = cuts.normal([x for w in cuts.counts for x in self.weights[w]])
        if (c, mode) in self.starts and len(self.starts[c, mode].point) == len(point):
            point = self.starts[c, mode].point
        at = cuts.weights(point)
        relaxed = part.weighted(at)
        slots = relaxed.forward(relaxed.tables(1, ()), self.search.until)
        found = Found(float(slots[-1]))
        if found.bound < rise - gap:
            small = self._cheaper(part, relaxed, slots, rise)
            found = list_copy(small, (at, np.zeros(0)), found, gap, rise, self.search.until)
        table[near] = np.maximum(table[near], low + min(found.bound, rise))
        return found.options

    def know_options(self, known: Mapping[Place, Entry]) -> None:
        """Take the options that were found of entries at another price."""
        self.known |= {place: Entry(-inf, options=of.options) for place, of in known.items() if of.options}

    def _known_of(self, place: Place, part: Circuit) -> Entry:
        """What is known of an entry, whose circuit is `part`; options from another price are improved at this one."""
        known = self.known.get(place, Entry(-inf))
        if known.cost < inf or not known.options:
            return known
        cost, options = descended(part, known.options)
        return replace(known, cost=cost, options=options)

    def _listed(self, part: Circuit, at: tuple[Weights, Floats], known: Entry, gap: float, enough: float) -> Entry:
        """An entry with the bound and the solution of lists, if these are short."""
        if known.cost == inf:
            return known
        found = list_copy(part, at, Found(known.bound, known.cost, known.options), gap, enough, self.search.until)
        return replace(known, bound=found.bound, cost=found.cost, options=found.options)

    def _scale(self, place: Place) -> float:
        """About what a copy costs there, in ns."""
        return max(1.0, abs(float(self.tables[place[0]][place[1]])))

    def _cheaper(self, part: Circuit, relaxed: Circuit, slots: Tables, cost: float) -> Circuit:
        """The circuit of a copy without what is in no solution up to `cost`, priced, by tables of the weighted one.

        It has a solution of at most that total, but for rounding.
        """
        return restrict(part, relaxed.backward(slots, self.search.until), cost) or part

    def _know(self, place: Place, entry: Entry) -> None:
        self.known[place] = entry
        table = self.tables[place[0]]
        table[place[1]] = max(table[place[1]], entry.bound)

    def _between(self, entry: Place) -> Circuit:
        """The circuit of one copy between given layouts, priced, with its windows; variables are numbered anew."""
        return self._within(entry[0], [(x,) for x in entry[1]])

    def _within(self, c: int, places: Sequence[tuple[int, ...]], shift: Floats | None = None) -> Circuit:
        """The circuit of `_between`, with `places` to choose from: modes, then options of what is around the copy.

        `shift`: [places...], is added to its cost.
        """
        circuit, chain, switch = self.circuit, self.circuit.network.chains[c], self.switches[c]
        place = dict(zip(chain.around(0), places[1:], strict=True))
        own = self._factors(c)
        if shift is not None:
            own = [*own, Factor(tuple(place), shift, None)]
        met = {v for f in own for v in f.scope}  # `restrict` reads options from factors
        number = {v: n for n, v in enumerate((*chain.copies[0], *(v for v in place if v in met)))}
        if switch is not None:
            place[switch] = places[0]
            met.add(switch)
        kept = {n: circuit.kept[circuit.domain[v]] for v, n in number.items()}
        kept |= {number[v]: kept[number[v]][list(at)] for v, at in place.items() if v in met}
        factors = []
        for f in own:
            if f.time is not shift and any(v in place for v in f.scope):
                options = [
                    np.array(place[v]) if v in place else np.arange(n)
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
            capacities=() if self.interval is None else (self.interval.high,) * len(self.extra_prices[c]),
        )
        return arrange(network, factors, tuple(range(len(number))), kept)

    def in_each_mode(self, assignment: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        """The assignment with the copies of a chain in each of their modes: about the best of these at the prices."""
        for c, chain in enumerate(self.circuit.network.chains):
            places = Counter(self._place(c, i, assignment)[1][1:] for i in range(len(chain)))
            ((ends, _),) = places.most_common(1)
            for mode in range(len(self.tables[c])) if self.worth[c] else ():
                place = c, (mode, *ends)
                if self.search.done:
                    return
                if self.tables[c][place[1]] == inf:
                    continue
                if place not in self.known:
                    self.raise_entry(place, _OF_MODE * self._scale(place))
                picks = list(assignment)
                if all(put(picks, copy, self.known[place]) for copy in chain.copies):
                    yield tuple(picks)

    def _solved_whole(self, part: Circuit, at: tuple[Weights, Floats], known: Entry, gap: float) -> Entry:
        """An entry with the bound and the solution that a program finds; `at`: weights and prices that prove its bound
        so far."""
        weights, prices = at
        if known.cost < inf:
            relaxed = part.weighted(weights)
            slots = relaxed.forward(relaxed.tables(1, prices.tolist()), self.search.until)
            paid = float(prices @ np.array(part.network.capacities, np.float64))
            part = self._cheaper(part, relaxed, slots, known.cost + paid)
        found = solve_copy(part, _OF_ENTRY * gap / max(1.0, abs(known.bound)), self.search.left)
        known = replace(known, bound=max(known.bound, found.bound))
        return known if found.cost >= known.cost else replace(known, cost=found.cost, options=found.options)

    def _whole(self, assignment: tuple[int, ...]) -> tuple[int, ...] | None:
        """The solution with the best options found of every copy; None if a copy has none."""
        picks = list(assignment)
        for c, chain in enumerate(self.circuit.network.chains):
            for i, copy in enumerate(chain.copies):
                if not put(picks, copy, self.known.get(self._place(c, i, assignment))):
                    return None
        return tuple(picks)


def put(picks: list[int], copy: Sequence[int], entry: Entry | None) -> bool:
    """Give the variables of a copy the options of an entry; False if it has none."""
    if entry is None or not entry.options:
        return False
    for v, option in zip(copy, entry.options, strict=False):
        picks[v] = option
    return True


def mode_of(network: Network, chain: Chain) -> int | None:
    """The switch in the first copy of a chain, if there is one alone."""
    inner = {*chain.copies[0]}
    found = [s.variable for s in network.switches if s.variable in inner]
    return found[0] if len(found) == 1 else None
