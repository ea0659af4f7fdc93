"""How many copies of a chain take each mode and pass each pair of layouts, at several prices of memory at once.

At any price λ_j, a copy in mode m between layouts b and b' costs at least F_j[m, b, b'], and what is outside of chains
at least O_j[o], o being its own modes and the layouts at the ends of chains. Every solution costs at least what the
dearest price says, so that a program with a column for every such entry bounds them all:

    min θ   s.t.  θ ≥ Σ F_j[k] n[k] + Σ O_j[o] y[o] - λ_j M   ∀ j,      n, y as n, x of `counted.py`          (ns)

Unlike prices alone, it knows that layers are whole. The entries that its solution meets are raised (`copy_costs.py`) at
the price that says most of them; once they are, the labels found (`copy_mixtures.py`) tell at which price these numbers
of entries would cost most, and that one is added.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil, fsum, inf, prod

import numpy as np

from ..decomposition.counted import CopyLabels, build, trail
from ..decomposition.counted_linear import linear, unit_of
from ..protocol import Search
from ..wide.highs import near_best
from ..wide.integer import HIDDEN
from ..work import LINEAR_PROGRAM, spend
from .circuit import Circuit
from .copy_costs import CopyCosts, put
from .copy_mixtures import Mixtures
from .factors import Factor
from .kernels import Floats
from .memory_price import LP_SECONDS
from .order import TooWideError, arrange
from .transient_relaxation import Groups
from .window_relaxation import WindowPrice

_COLUMNS, _ENTRIES = 1 << 11, 1 << 14  # of a program, and of what is outside
_CYCLES = 4  # after which a program is given up
_ROUNDED = 1.0  # ns
_NODES, _SECONDS, _GAP = 2000, 5.0, 1e-5  # of a program
_COLUMN = 1e-4  # seconds for each, and price
_SWITCHES = 2  # outside of chains, whose modes are told apart
_PRICES = 12
_SECOND = 0.7  # of the first price: the second; at both, copies are also solved in modes that the bound does not need
_STEP = 1.6  # farthest from all prices before, as a ratio
_OF_GAP = 0.05  # of the gap of the search: left open by the copies of a solution, and what prices may add in the end
_TIMES, _MORE = 2.0, 3.0  # times the work for pricing, plus seconds

_Outside = tuple[int, ...]
_Met = Sequence[Counter[tuple[int, ...]]]
"""For each chain how many of its copies take an entry (mode, ends...) of its table."""


def raise_counts(circuit: Circuit, found: WindowPrice, groups: Groups, search: Search, reach: int) -> bool:
    """Raise the bound of `search` by counts of the copies of chains at several prices, and offer solutions.

    `circuit` is relaxed over `groups`, by means, and restricted to the solutions of cost up to `reach`. False: it does
    not apply, as there are no chains or prices, or too many entries.
    """
    if not circuit.network.chains or not any(found.price.price) or search.done:
        return False
    try:
        return _Counting(circuit, found, groups, search, reach).raised()
    except TooWideError:
        return False


@dataclass(frozen=True, slots=True, eq=False)
class _Cut:
    """At a price: the costs of copies, what is outside [kept...], priced, and what capacities subtract."""

    copies: CopyCosts
    outside: Floats
    paid: float

    def says(self, met: _Met, outside: _Outside) -> float:
        """What the price says of numbers of entries."""
        tables = zip(self.copies.tables, met, strict=True)
        costs = (n * float(table[entry]) for table, own in tables for entry, n in own.items())
        return fsum([*costs, float(self.outside[outside]), -self.paid])


@dataclass(frozen=True, slots=True, eq=False)
class _Fewest:
    """A lower bound, and the entries, walked in the order of copies, and what is outside that it is of."""

    bound: float
    walks: tuple[tuple[tuple[int, ...], ...], ...]
    outside: _Outside

    @property
    def met(self) -> _Met:
        return [Counter(walk) for walk in self.walks]


class _Counting:
    """The prices so far, and the solutions found; `kept`: the variables that tell what is outside apart."""

    def __init__(self, circuit: Circuit, found: WindowPrice, groups: Groups, search: Search, reach: int) -> None:
        self.circuit, self.found, self.groups, self.search, self.reach = circuit, found, groups, search, reach
        self.mixtures = found.mixtures or Mixtures(search.network)
        self.capacities = np.array(circuit.network.capacities, np.float64)
        self.starts = dict[int, Floats]()
        self.kept: tuple[int, ...] = ()
        self.cuts: list[_Cut] = []
        self.most_work = search.work * (1 + _TIMES) + _MORE
        self.close = _OF_GAP * search.limits.gap * max(1.0, abs(found.price.value))

    def raised(self) -> bool:
        search = self.search
        self._add(np.array(self.found.price.price))
        while not search.done and search.work < self.most_work:
            fewest = self._fewest()
            if fewest is None:
                return len(self.cuts) > 1
            search.raise_bound(min(self.reach + 1, self.circuit.network.constant + ceil(fewest.bound)))
            if search.done:
                break
            at = max(self.cuts, key=lambda cut: cut.says(fewest.met, fewest.outside))
            if self._raise(at, fewest):
                continue
            price, upper = self._dearest(fewest)
            if upper - fewest.bound <= self.close:
                break
            known = next((cut for cut in self.cuts if np.allclose(cut.copies.price, price, rtol=1e-3, atol=0)), None)
            if known is None and len(self.cuts) < _PRICES:
                known = self._add(price)
            if known is None or not self._raise(known, fewest):
                break
        return True

    def _add(self, price: Floats) -> _Cut:
        """The cut of another price."""
        rows = self.circuit.exact_price(price.tolist())
        args = self.circuit, rows, self.found.weights, self.search, self.reach
        copies = CopyCosts(*args, groups=self.groups, region=None, starts=self.starts)
        self.kept, outside = _outside_of(self.circuit, copies.rest, rows)
        paid = fsum(p * c for p, c in zip(rows, self.capacities, strict=True))
        self.cuts.append(_Cut(copies, outside, paid))
        return self.cuts[-1]

    def _raise(self, cut: _Cut, fewest: _Fewest) -> bool:
        """Raise the entries met at a price, and offer solutions of them; False if they were raised before."""
        copies, all_modes = cut.copies, len(self.cuts) == 1
        met = [(c, entry) for c, own in enumerate(fewest.met) for entry in own]
        if all(place in copies.known for place in met):
            return False
        gap = self.close / sum(map(len, fewest.walks))
        more = [(c, (m, *ends)) for c, (_, *ends) in met for m in range(len(copies.tables[c])) if all_modes]
        for place in dict.fromkeys([*met, *more]):
            if place not in copies.known and copies.tables[place[0]][place[1]] < inf and not self.search.done:
                copies.raise_entry(place, gap)
        self._offer(cut, fewest)
        return True

    def _offer(self, cut: _Cut, fewest: _Fewest) -> None:
        """Offer the solution of entries met, as found at a price, and mixtures with what else was found there."""
        circuit, known = self.circuit, cut.copies.known
        picks = list(self._outside(cut, fewest.outside))
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
        if self.search.offer(tuple(picks)) and self.search.done:
            return
        self.mixtures.add(picks)
        for copy, found in others:
            other = list(picks)
            if put(other, copy, found):
                self.mixtures.add(other)
        self.mixtures.offer_best(self.search)

    def _outside(self, cut: _Cut, outside: _Outside) -> tuple[int, ...]:
        """An assignment whose variables outside of chains are the best ones there at a price."""
        circuit = self.circuit
        outline = replace(circuit.network, chains=(), windows=())
        only = [
            Factor((v,), np.where(np.arange(n) == x, 0.0, inf), None)
            for v, n, x in zip(self.kept, cut.outside.shape, outside, strict=True)
        ]
        found = arrange(outline, [*cut.copies.rest, *only], circuit.domain, circuit.kept)
        return found.decode(found.forward(found.tables(1, cut.copies.price), self.search.until))

    def _dearest(self, fewest: _Fewest) -> tuple[Floats, float]:
        """The price at which numbers of entries cost most as far as solutions are known, and that cost."""
        from scipy.optimize import linprog

        prices = np.array([cut.copies.price for cut in self.cuts])
        if len(prices) == 1:
            return prices[0] * _SECOND, inf
        lines = self._lines(fewest)
        if not all(lines):
            return prices[0], -inf
        spend(LINEAR_PROGRAM)
        scale = max(1.0, abs(fewest.bound))
        high = np.maximum(prices.max(axis=0) * _STEP, 0.1 * scale / np.maximum(1.0, self.capacities))
        many = [n for own in fewest.met for n in own.values()] + [1]
        rows, right = [], []
        for k, own in enumerate(lines):
            for time, use in own:
                rows.append([*(np.arange(len(many)) == k), *(-use * high / scale)])
                right.append(time / scale)
        slope = np.array([*(-n for n in many), *(self.capacities * high / scale)])
        answer = linprog(
            slope,
            A_ub=np.array(rows),
            b_ub=right,
            bounds=[(None, None)] * len(many) + [(x, 1.0) for x in prices.min(axis=0) / _STEP / high],
            method="highs",
            options={"time_limit": LP_SECONDS},
        )
        if answer.x is None:
            return prices[0], -inf
        price: Floats = np.maximum(answer.x[len(many) :], 0.0) * high
        return price, -float(np.dot(answer.x, slope)) * scale

    def _lines(self, fewest: _Fewest) -> list[list[tuple[float, Floats]]]:
        """Cost and use of what was found of every entry met, and of what is outside."""
        circuit, network = self.circuit, self.search.network
        found: list[list[tuple[float, Floats]]] = []

        def line(time: int, use: Sequence[int], extra: int, inside: Sequence[int]) -> tuple[float, Floats]:
            if not self.groups:
                return float(time), np.array(use, np.float64)
            means = [use[0] + (extra / len(group) if not group.isdisjoint(inside) else 0.0) for group in self.groups]
            return float(time), np.array([*means, *use[1:]], np.float64)

        for c, own in enumerate(fewest.met):
            chain, switch = network.chains[c], self.cuts[0].copies.switches[c]
            labels = self.mixtures.of_copies[c].values()
            around, copy = chain.around(0), chain.copies[0]
            of: dict[tuple[int, ...], list[tuple[float, Floats]]] = {entry: [] for entry in own}
            for x in labels:
                mode = circuit.places((switch,), (x.options[copy.index(switch)],)) if switch is not None else (0,)
                entry = *mode, *circuit.places(around, x.around)
                if entry in of:
                    of[entry].append(line(x.time, x.use, x.extra, copy))
            found += of.values()
        variables = self.mixtures.outside.variables
        at = [variables.index(v) for v in self.kept]
        of_outside = [
            line(x.time, x.use, x.extra, variables)
            for x in self.mixtures.of_outside.values()
            if circuit.places(self.kept, [x.options[k] for k in at]) == fewest.outside
        ]
        return [*found, of_outside]

    def _fewest(self) -> _Fewest | None:
        """The bound of all prices; None if the program would be too large, or has no solution, or none of walks."""
        chains, cuts = self.circuit.network.chains, self.cuts
        tables = [[cut.copies.tables[c] for cut in cuts] for c in range(len(chains))]
        columns = [np.argwhere(np.isfinite(own).all(axis=0)) for own in tables]
        outside = np.argwhere(np.isfinite([cut.outside for cut in cuts]).all(axis=0))
        if len(outside) + sum(map(len, columns)) > _COLUMNS:
            return None
        size = dict(zip(self.kept, cuts[0].outside.shape, strict=True))
        chosen, labels = len(self.circuit.network.variables), []
        ends = dict.fromkeys(v for c in chains for v in (c.boundaries[0], c.boundaries[-1], *c.reads))
        factors = [Factor((chosen,), np.zeros(len(outside)), None)]
        for v in ends:
            taken = outside[:, self.kept.index(v)][:, None] == np.arange(size[v])
            factors.append(Factor((chosen, v), np.where(taken, 0.0, inf), None))
        for chain, own in zip(chains, columns, strict=True):
            reads, none = dict(zip(chain.reads, own.T[3:], strict=True)), np.zeros((len(own), 1), np.int64)
            first, last = chain.boundaries[0], chain.boundaries[-1]
            labels.append(CopyLabels(first, last, len(chain), own.T[1:3], none[:, 0], use=none[:, :0], reads=reads))
        program = build(factors, {v: size[v] for v in ends} | {chosen: len(outside)}, (), labels)
        says = [np.floor([cut.outside[tuple(outside.T)] - cut.paid for cut in cuts])]
        says += [np.floor([t[tuple(at.T)] for t in own]) for own, at in zip(tables, columns, strict=True)]
        shifts = [min(0.0, float(own.min(initial=0.0))) for own in says]  # θ is at least 0
        amounts = np.concatenate([own - least for own, least in zip(says, shifts, strict=True)], axis=1)
        numbers = [n for ns in (program.x[chosen], *program.counts) for n in ns]
        sums = [[*zip(own, numbers, strict=True)] for own in amounts.astype(np.int64).tolist()]
        many = [1, *map(len, chains)]
        shift = fsum(n * least for n, least in zip(many, shifts, strict=True))
        largest = fsum(n * float(own.max(initial=0.0)) for n, own in zip(many, says, strict=True)) - shift
        program.cost[program.maximum(ceil(largest), sums)] = 1
        spend(_COLUMN * len(program.upper) * len(cuts))
        scale = unit_of(program)
        for _ in range(_CYCLES):
            outcome = near_best(linear(program, scale, whole=True), _GAP, _NODES, min(self.search.left, _SECONDS))
            if outcome.point is None or outcome.bound == -inf:  # points are found before the first bound
                return None
            value = np.round(outcome.point).astype(np.int64).tolist().__getitem__
            if not program.cut_cycles(value):
                picks, counts = program.read(value)
                walks = []
                for own, of, ns in zip(columns, labels, counts, strict=True):
                    walk, _ = trail(picks[of.first], of.ends, ns)
                    walks.append(tuple(tuple(own[k].tolist()) for k in walk))
                bound = (outcome.bound - HIDDEN * len(program.upper)) * scale + shift - _ROUNDED
                return _Fewest(bound, tuple(walks), tuple(outside[picks[chosen]].tolist()))
        return None


def _outside_of(circuit: Circuit, rest: Sequence[Factor], price: tuple[float, ...]) -> tuple[tuple[int, ...], Floats]:
    """The ends of chains, what these read and modes outside; what all else outside costs with each of these, priced."""
    chains, network = circuit.network.chains, circuit.network
    met = {v for f in rest for v in f.scope}
    ends = {v for c in chains for v in (c.boundaries[0], c.boundaries[-1], *c.reads)}
    modes = {s.variable for s in network.switches} & met
    kept = tuple(sorted(ends | (modes if len(modes) <= _SWITCHES else set())))
    dims = tuple(len(circuit.kept[circuit.domain[v]]) for v in kept)
    if prod(dims) > _ENTRIES:
        raise TooWideError(f"{prod(dims)} entries of what is outside of chains")
    block = frozenset(met) - {*kept}
    outline = replace(network, chains=(), windows=())
    found = arrange(outline, rest, circuit.domain, circuit.kept, blocks=(block,) if block else ())
    parts = [(f.scope, f.priced(1, price)) for f in rest if block.isdisjoint(f.scope)]
    if block:
        slots = found.forward(found.tables(1, price))
        parts.append((found.bucket(found.blocks[0]).kept, slots[found.blocks[0]]))
    total = np.zeros(dims)
    for scope, table in parts:
        order = sorted(range(len(scope)), key=scope.__getitem__)
        shape = [n if v in scope else 1 for v, n in zip(kept, dims, strict=True)]
        total = total + table.transpose(order).reshape(shape)
    return kept, total
