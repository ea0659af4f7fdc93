"""How many copies of a chain take each mode and pass each pair of layouts, at several prices of memory at once.

At any price λ_j, a copy in mode m between layouts b and b' costs at least F_j[m, b, b'], and what is outside of chains
at least Σ_t O_j,t[o], o being the layouts at the ends of chains and what else its tables t are over
(`copy_outside.py`). Every solution costs at least what the dearest price says, so that a program with a column for
every entry bounds them all:

    min θ   s.t.  θ ≥ Σ F_j[k] n[k] + Σ O_j,t[e] y[t,e] - λ_j M   ∀ j,     n, y as in `counted.py`            (ns)

Unlike prices alone, it knows that layers are whole. It has no columns for entries through which every solution costs
more than `reach`, as a price says; `reach` is lower where these are too many, and the bound, too.

The entries that its solution meets are raised (`copy_costs.py`) at the price that says most of them, no farther than
the search asks for: what is dearer needs no exact cost. The first price was found where all copies were alike; if the
copies raised first would cost much more at another one, the search moves half of the way to it (`copy_prices.py`). Once
copies in other modes lead to no better solutions, entries that cost nearly as little are raised with those that are
met. When all that are met are exact, the labels found (`copy_mixtures.py`) tell at which price these numbers of entries
would cost most, and that price is added.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor, fsum, inf
from operator import mul

import numpy as np

from ...formulation.network.network import Chain
from ..decomposition.counted import CopyLabels, build, trail
from ..decomposition.counted_linear import linear, unit_of
from ..protocol import Search
from ..wide.highs import End, near_best
from ..wide.integer import HIDDEN
from ..work import spend
from .circuit import Circuit
from .copy_costs import CopyCosts, Place, Start, put
from .copy_mixtures import Mixtures
from .copy_outside import Outside
from .copy_prices import FoundCopies, Kind
from .factors import Factor
from .kernels import Bools, Floats
from .order import TooWideError
from .transient_relaxation import Groups
from .window_relaxation import WindowPrice

_COLUMNS = 1 << 11  # of a program
_CYCLES = 48  # after which a program is given up
_ROUNDED = 1.0  # ns
_NODES, _SECONDS, _GAP = 2000, 5.0, 1e-5  # of a program
_SPARE = 1.5  # an entry is raised by this times its copy's share of what the bound lacks
_OF_MODES = 20.0  # the gap of copies in other modes, as a multiple of that of the entries met
_COLUMN = 1e-4  # seconds for each, and price
_PRICES = 12
_OF_LACK = 0.1  # the gap of entries at first, as a share of what their copies lack
_MOVED = 5.0  # the least gain for which the first price is replaced, as a multiple of what may be left open
_OF_GAP = 0.1  # of the gap of the search: left open by the copies of a solution, and what prices may add in the end
_TIMES, _MORE = 2.0, 20.0  # times the work for pricing, plus seconds

_Picks = Mapping[int, int]
"""The option of every variable that is kept of what is outside."""
_Met = Sequence[Counter[tuple[int, ...]]]
"""For each chain how many of its copies take an entry (mode, ends...) of its table."""


def raise_counts(found: WindowPrice, groups: Groups, search: Search, reach: int) -> bool:
    """Raise the bound of `search` by counts of the copies of chains at several prices, and offer solutions.

    The circuit of `found` is relaxed over `groups`, by means; solutions of cost up to `reach` are looked at. False: it
    does not apply, as there are no chains or prices, or too many entries.
    """
    if not found.circuit.network.chains or not any(found.price.price) or search.done:
        return False
    circuit = found.restricted(reach, search.until)
    if circuit is None:
        search.raise_bound(reach + 1)
        return True
    try:
        return _Counting(circuit, found, groups, search, reach).raised()
    except TooWideError:
        return False


@dataclass(slots=True, eq=False)
class _Cut:
    """At a price: the costs of copies, the tables of what is outside, and what capacities subtract.

    `least`: what any solution costs at least through every entry of these, outside first; None: to be computed anew.
    """

    copies: CopyCosts
    outside: list[Floats]
    paid: float
    least: list[Floats] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class _Fewest:
    """A lower bound of the solutions of cost up to `reach`, and the entries, walked in the order of copies, and the
    options outside that it is of.
    """

    bound: float
    reach: int
    walks: tuple[tuple[tuple[int, ...], ...], ...]
    outside: _Picks

    @property
    def met(self) -> _Met:
        return [Counter(walk) for walk in self.walks]


class _Counting:
    """The prices so far, and the solutions found."""

    def __init__(self, circuit: Circuit, found: WindowPrice, groups: Groups, search: Search, reach: int) -> None:
        self.circuit, self.found, self.groups, self.search, self.reach = circuit, found, groups, search, reach
        self.mixtures = found.mixtures or Mixtures(search.network)
        self.capacities = np.array(circuit.network.capacities, np.float64)
        self.starts = dict[tuple[int, int], Start]()
        inside = circuit.below(circuit.copies)
        self.outside = Outside(circuit, [f for slot, f in enumerate(circuit.factors) if slot not in inside])
        self.cuts: list[_Cut] = []
        self.cycles: list[tuple[int, frozenset[int]]] = []  # that programs had
        self.all_modes = True  # are solved of what is met most often, until that finds nothing better
        self.most_work = search.work * (1 + _TIMES) + _MORE
        self.close = _OF_GAP * search.limits.gap * max(1.0, abs(found.price.value))

    def raised(self) -> bool:
        search = self.search
        self._add(np.array(self.found.price.price))
        while not search.done and search.work < self.most_work:
            fewest = self._fewest()
            if fewest is None:
                return len(self.cuts) > 1
            search.raise_bound(min(fewest.reach + 1, self.circuit.network.constant + ceil(fewest.bound)))
            if search.done:
                break
            at = max(self.cuts, key=lambda cut: self._says(cut, fewest))
            if self._raise(at, fewest):
                self._move(fewest)
                continue
            self._offer(at, fewest)  # these entries may never have been met together
            found = self._found(fewest, any_mode=False)
            price, upper = found.dearest([cut.copies.price for cut in self.cuts], max(1.0, abs(fewest.bound)))
            if upper - fewest.bound <= self.close:
                break
            known = next((cut for cut in self.cuts if np.allclose(cut.copies.price, price, rtol=1e-3, atol=0)), None)
            if known is None and len(self.cuts) < _PRICES:
                known = self._add(price)
            if known is None or not self._raise(known, fewest):
                break
        return True

    def _move(self, fewest: _Fewest) -> None:
        """Move the only price half of the way to that at which the copies found cost most, if that is much more.

        Copies count in their cheapest mode. Nothing moves once other modes lead to no better solutions.
        """
        if len(self.cuts) > 1 or not self.all_modes or self.search.done:
            return
        (before,) = self.cuts
        found, now = self._found(fewest, any_mode=True), np.array(before.copies.price)
        price, upper = found.dearest([before.copies.price], max(1.0, abs(fewest.bound)))
        if upper - found.at(now) > _MOVED * self.close:
            self.cuts.clear()
            self._add((now + price) / 2).copies.know_options(before.copies.known)

    def _add(self, price: Floats) -> _Cut:
        """The cut of another price."""
        rows = self.circuit.exact_price(price.tolist())
        args = self.circuit, rows, self.found.weights, self.search, self.reach
        copies = CopyCosts(*args, groups=self.groups, region=None, starts=self.starts)
        paid = fsum(p * c for p, c in zip(rows, self.capacities, strict=True))
        self.cuts.append(_Cut(copies, self.outside.tables(copies.rest, rows), paid))
        return self.cuts[-1]

    def _says(self, cut: _Cut, fewest: _Fewest) -> float:
        """What a price says of numbers of entries."""
        tables = zip(cut.copies.tables, fewest.met, strict=True)
        costs = [n * float(table[entry]) for table, met in tables for entry, n in met.items()]
        for scope, table in zip(self.outside.scopes, cut.outside, strict=True):
            costs.append(float(table[tuple(fewest.outside[v] for v in scope)]))
        return fsum([*costs, -cut.paid])

    def _raise(self, cut: _Cut, fewest: _Fewest) -> bool:
        """Raise the entries met at a price as far as the search may need, and offer solutions of them.

        False if all of them are exact.
        """
        copies, before = cut.copies, self.search.objective
        met = {(c, entry): n for c, own in enumerate(fewest.met) for entry, n in own.items()}
        wanted = float(self.search.ceiling - self.circuit.network.constant)
        many, lacks = sum(met.values()), wanted - self._says(cut, fewest)
        fine = self.close / many
        for gap in (max(fine, _OF_LACK * lacks / many), fine):
            if left := {place: n for place, n in met.items() if not copies.is_exact(place, gap)}:
                break
        else:
            return False
        rise = max(gap, _SPARE * lacks / sum(left.values())) + gap
        if len(self.cuts) == 1 and copies.known and not self.all_modes and self._raise_near(cut, left, rise, gap):
            return True
        most = [own.most_common(1)[0][0] for own in fewest.met] if self.all_modes else []
        more = [(c, (m, *ends)) for c, (_, *ends) in enumerate(most) for m in range(len(copies.tables[c]))]
        for place, close in (dict.fromkeys(more, max(gap, _OF_MODES * fine)) | dict.fromkeys(left, gap)).items():
            value = float(copies.tables[place[0]][place[1]])
            if (place in left or place not in copies.known) and value < inf and not self.search.done:
                copies.raise_entry(place, close, value + rise)
        cut.least = None
        self._offer(cut, fewest)
        self.all_modes = self.all_modes and self.search.objective != before
        return True

    def _raise_near(self, cut: _Cut, met: Collection[Place], rise: float, gap: float) -> bool:
        """Raise entries that cost nearly as little as those `met`, in the same modes, together with these.

        False if none of those met rose.
        """
        copies, chains = cut.copies, self.circuit.network.chains
        least = self._least_at(cut)[-len(chains) :]
        best = min(float(table.min()) for table in least)
        before = [copies.tables[c][entry] for c, entry in met]
        for c, mode in sorted({(c, entry[0]) for c, entry in met}):
            extra = least[c][mode] - best
            for of, (m, *ends) in copies.known:
                if (of, m) == (c, mode) and copies.is_exact((c, (m, *ends)), gap):
                    extra[tuple(ends)] = inf
            if options := copies.raise_together(c, mode, extra, rise, gap):
                self.mixtures.add_copy(c, options)
        cut.least = None
        self.mixtures.offer_best(self.search)
        return any(copies.tables[c][entry] > was + gap for (c, entry), was in zip(met, before, strict=True))

    def _offer(self, cut: _Cut, fewest: _Fewest) -> None:
        """Offer the solution of entries met, as found at a price, and mixtures with what else was found there."""
        circuit, known = self.circuit, cut.copies.known
        picks = list(self.outside.decode(cut.copies.rest, cut.copies.price, fewest.outside))
        others = []
        for c, (chain, walk) in enumerate(zip(circuit.network.chains, fewest.walks, strict=True)):
            for i, (copy, entry) in enumerate(zip(chain.copies, walk, strict=True)):
                for v, x in zip(chain.around(i), entry[1:], strict=True):
                    picks[v] = int(circuit.kept[circuit.domain[v]][x])
                if not put(picks, copy, known.get((c, entry))):
                    return
                if entry not in walk[:i]:
                    alike = [(c, (m, *entry[1:])) for m in range(len(cut.copies.tables[c]))]
                    others += [(copy, known[place]) for place in alike if place in known]
        self.mixtures.add(picks)
        for copy, found in others:
            other = list(picks)
            if put(other, copy, found):
                self.mixtures.add(other)
        self.mixtures.offer_best(self.search)

    def _found(self, fewest: _Fewest, any_mode: bool) -> FoundCopies:
        """What was found of every entry met, or of those in any mode at the same ends, and of what is outside."""
        circuit, network, first = self.circuit, self.search.network, int(any_mode)
        kinds = list[Kind]()

        def line(time: int, use: Sequence[int], extra: int, inside: Sequence[int]) -> tuple[float, Floats]:
            if not self.groups:
                return float(time), np.array(use, np.float64)
            means = [use[0] + (extra / len(group) if not group.isdisjoint(inside) else 0.0) for group in self.groups]
            return float(time), np.array([*means, *use[1:]], np.float64)

        for c, walk in enumerate(fewest.walks):
            chain, switch = network.chains[c], self.cuts[0].copies.switches[c]
            around, copy = chain.around(0), chain.copies[0]
            of = {entry: Kind(n, []) for entry, n in Counter(entry[first:] for entry in walk).items()}
            for x in self.mixtures.of_copies[c].values():
                mode = circuit.places((switch,), (x.options[copy.index(switch)],)) if switch is not None else (0,)
                entry = (*mode, *circuit.places(around, x.around))[first:]
                if entry in of:
                    of[entry].labels.append(line(x.time, x.use, x.extra, copy))
            kinds += of.values()
        variables = self.mixtures.outside.variables
        at, met = [variables.index(v) for v in fewest.outside], tuple(fewest.outside.values())
        of_outside = [
            line(x.time, x.use, x.extra, variables)
            for x in self.mixtures.of_outside.values()
            if circuit.places(fewest.outside, [x.options[k] for k in at]) == met
        ]
        return FoundCopies([*kinds, Kind(1, of_outside)], self.capacities)

    def _least(self) -> list[Floats]:
        """What any solution costs at least through every entry of the tables outside, then of the chains'."""
        for cut in self.cuts:
            if cut.least is None:
                cut.least = self._least_at(cut)
        return [np.max(own, axis=0) for own in zip(*(cut.least or [] for cut in self.cuts), strict=True)]

    def _least_at(self, cut: _Cut) -> list[Floats]:
        """The same, as one price says."""
        copies, whole = cut.copies, self.circuit.network.constant - cut.paid
        best = [table.min(axis=0) for table in copies.tables]
        through, around = self.outside.least_totals(copies.rest, best, copies.price)
        for table, least, total in zip(copies.tables, best, around, strict=True):
            more = np.subtract(table, least, out=np.full(table.shape, inf), where=np.isfinite(table))
            through.append(total + more)
        largest = max(abs(float(table.min())) for table in through)
        if largest == inf:  # there is no solution
            return through
        margin = 8 * self.circuit.rounding(copies.price, largest) + _ROUNDED
        return [table + (whole - margin) for table in through]

    def _fewest(self) -> _Fewest | None:
        """The bound of all prices; None if no solution is left, or the program would be too large, or ends without one
        of walks."""
        return self._counted() if len(self.cuts) > 1 else self._at(self.cuts[0])

    def _at(self, cut: _Cut) -> _Fewest | None:
        """The bound of one price, which needs no program."""
        copies, circuit = cut.copies, self.circuit
        tables = [table.min(axis=0) for table in copies.tables]
        total, assignment = self.outside.best(copies.rest, tables, copies.price)
        if total == inf:
            self.search.raise_bound(self.reach + 1)
            return None
        walks = []
        for chain, table in zip(circuit.network.chains, copies.tables, strict=True):
            around = map(chain.around, range(len(chain)))
            ends = [circuit.places(own, [assignment[v] for v in own]) for own in around]
            walks.append(tuple((int(np.argmin([mode[own] for mode in table])), *own) for own in ends))
        kept = self.outside.size
        picks = dict(zip(kept, circuit.places(kept, [assignment[v] for v in kept]), strict=True))
        margin = 8 * circuit.rounding(copies.price, abs(total) + cut.paid) + _ROUNDED
        return _Fewest(total - cut.paid - margin, self.reach, tuple(walks), picks)

    def _counted(self) -> _Fewest | None:
        """The bound of all prices, by a program."""
        chains, cuts, outside = self.circuit.network.chains, self.cuts, self.outside
        least = self._least()
        reach = _within(least, min(self.reach, self.search.ceiling - 1))
        if reach < self.search.bound:
            return None
        says = [np.array(own) for own in zip(*((*cut.outside, *cut.copies.tables) for cut in cuts), strict=True)]
        entries = [_Entries(own, table <= reach) for own, table in zip(says, least, strict=True)]
        paid = np.array([[-cut.paid] for cut in cuts]) + np.zeros(outside.size[outside.anchor])  # of every solution
        tables, inside = [_Entries(paid, paid[0] < inf), *entries[: -len(chains)]], entries[-len(chains) :]
        scopes = [(outside.anchor,), *outside.scopes]
        factors = [
            Factor(scope, np.where(own.left, 0.0, inf), None, streams=((0, own.amounts),))
            for scope, own in zip(scopes, tables, strict=True)
        ]
        labels = [own.of_chain(chain) for chain, own in zip(chains, inside, strict=True)]
        program = build(factors, outside.size, (), labels)
        shift = fsum([*(own.shift for own in tables), *map(mul, map(len, chains), (own.shift for own in inside))])
        for c, layouts in self.cycles:
            program.cut_off(c, layouts)
        scale = unit_of(program)
        for _ in range(_CYCLES):
            spend(_COLUMN * len(program.upper) * len(cuts))
            outcome = near_best(linear(program, scale, whole=True), _GAP, _NODES, min(self.search.left, _SECONDS))
            if outcome.end is End.INFEASIBLE:
                self.search.raise_bound(reach + 1)
            if outcome.point is None or outcome.bound == -inf:  # points are found before the first bound
                return None
            value = np.round(outcome.point).astype(np.int64).tolist().__getitem__
            self.cycles += (cycles := program.cut_cycles(value))
            if not cycles:
                picks, counts = program.read(value)
                walks = []
                for of, own, ns in zip(labels, inside, counts, strict=True):
                    walk, _ = trail(picks[of.first], of.ends, ns)
                    walks.append(tuple(tuple(own.places[:, k].tolist()) for k in walk))
                bound = (outcome.bound - HIDDEN * len(program.upper)) * scale + shift - _ROUNDED
                return _Fewest(bound, reach, tuple(walks), picks)
            if self.search.work > self.most_work:
                break
        return None


class _Entries:
    """The entries `left` of a table, and what they add at each price to what that says, less the least, `shift`."""

    def __init__(self, tables: Floats, left: Bools) -> None:
        self.left, self.places = left, np.argwhere(left).T
        whole = np.floor(np.where(left, tables, 0.0))
        self.shift = min(0.0, float(whole.min(initial=0.0)))
        self.amounts = np.where(left, whole - self.shift, 0.0).astype(np.int64)

    def of_chain(self, chain: Chain) -> CopyLabels:
        """The labels of copies that take these entries, each a mode and what is around a copy."""
        _, first, last, *reads = self.places
        none = np.zeros((len(first), 0), np.int64)
        return CopyLabels(
            chain.boundaries[0],
            chain.boundaries[-1],
            len(chain),
            np.array([first, last]),
            none.sum(axis=1),
            use=none,
            reads=dict(zip(chain.reads, reads, strict=True)),
            streams=((0, self.amounts[:, self.left]),),
        )


def _within(least: Sequence[Floats], reach: int) -> int:
    """The largest reach, up to a given one, for which a program has columns for all entries of least costs up to it."""
    costs = np.concatenate([table.ravel() for table in least])
    if np.count_nonzero(costs <= reach) <= _COLUMNS:
        return reach
    return floor(float(np.partition(costs, _COLUMNS)[_COLUMNS])) - 1
