"""Prices on the layouts of hubs: a bound for networks whose hubs tie too much together, and on every option.

Each reader of a *hub* may assume another layout h of it, if it pays for that (Lagrangian decomposition):

    min_x Σ_e c_e(h, x_e)   ≥   min_x Σ_e min_h (c_e(h, x_e) + λ_e(h))        where  Σ_e λ_e(h) ≤ 0  for every h

What is left are small components, of which equal ones are solved once: those of equal layers, mostly. The prices
λ are raised where a reader would choose a layout too cheaply: all readers of a hub take the mean of the least totals
through each of its layouts, with momentum. Where a mode z decides on what readers cost, each has prices for each mode:
the readers under one mode agree in every mode, and with others in the best mode of each layout:

    Σ_s max_z Σ_(e under s) λ_e(z, h) ≤ 0  for every h,  s being switches, or readers under none

What the least total through an option exceeds the bound by is its *excess*: options of more excess than a slack are in
no assignment that costs less than the bound and the slack.
"""

from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from itertools import pairwise
from math import ceil, floor, inf
from time import perf_counter
from types import MappingProxyType
from typing import TypeAlias

import numpy as np

from ...formulation.network.loose_hubs import free_hubs
from ...formulation.network.network import INFINITE, Network, SwitchTables
from ..elimination.bucket import Bucket
from ..elimination.circuit import Circuit
from ..elimination.factors import Factor, network_factors
from ..elimination.kernels import Floats, Ints, least_of_classes, least_of_rows, row_classes
from ..elimination.order import arrange, most_work
from ..elimination.tables import Tables, backward, forward

_LEAST_READERS = 3
_ROUNDS = 2  # of telling apart what has other neighbours
_STEP, _MOMENTUM = 0.3, 0.8
_MOST_WORK = 1 << 27  # additions of a bucket, with a hub whose readers are close to each other
_PASSES, _WINDOW = 150, 10  # at most; those in which the bound has to rise


@dataclass(frozen=True, slots=True, eq=False)
class _OfMode:
    """A reader's table in one mode: [hub, class] and its transpose.

    Options of a class, `of` [rest], have equal columns: they need the same layout.
    """

    of: Ints
    table: Floats
    turned: Floats

    @classmethod
    def made(cls, table: Floats) -> "_OfMode":
        """Of a table [rest, hub]."""
        of, firsts = row_classes(table)
        return cls(of, np.ascontiguousarray(table[firsts].T), table[firsts])

    def least(self, prices: Floats) -> Floats:
        """The least over the hub's layouts at these prices [rest]."""
        found: Floats = least_of_rows(self.table, prices)[self.of]
        return found

    def through(self, beyond: Floats, prices: Floats) -> Floats:
        """For each of the hub's layouts the least of what it costs and of what is beyond the table [rest]."""
        found: Floats = least_of_rows(self.turned, least_of_classes(beyond, self.of, len(self.turned))) + prices
        return found


@dataclass(frozen=True, slots=True, eq=False)
class _Side:
    """One kind of a reader's table, in each of its modes (one if no switch decides on it), and where its prices are."""

    slot: int
    price: tuple[int, int]
    modes: Sequence[_OfMode]

    def least(self, prices: Floats) -> Floats:
        """The least over the hub's layouts at these prices [modes, hub]: [modes times rest]."""
        return np.concatenate([mode.least(own) for mode, own in zip(self.modes, prices, strict=True)])

    def through(self, beyond: Floats, prices: Floats) -> Floats:
        """For each mode and layout of the hub the least of what it costs and of what is beyond the table."""
        parts = beyond.reshape(len(self.modes), -1)
        return np.stack([m.through(own, p) for m, own, p in zip(self.modes, parts, prices, strict=True)])


Side: TypeAlias = tuple[int, int]
"""A kind of reader of a kind of hub."""
Sides: TypeAlias = tuple[Side, ...]
"""The readers of a hub under one switch, or one under none."""


class HubPrices:
    """The prices, the bound that they prove (ns, with the constant), and the excess of every option."""

    def __init__(
        self,
        network: Network,
        price: Sequence[float],
        start: "HubPrices | None" = None,
        tied: AbstractSet[int] = frozenset(),
        transient: Mapping[int, float] = MappingProxyType({}),
    ) -> None:
        """`network` has no windows or chains; `price`: ns a byte of each capacity.

        `start`: prices on hubs to begin with, of the same network at another price of memory, or without modes. `tied`:
        hubs whose readers all take the same layout, as in the network. `transient`: for the variable of a switch, ns a
        byte of its transient use; they sum up to the price of capacity 0 at most. Costs at the price are rounded down
        to whole ns, so that sums of them are exact.
        """
        self.network = network
        factors = _priced(network_factors(network if any(price) else _of_costs(network)), price, transient)
        self.modes = {s.variable for s in network.switches}
        self.scopes = [f.scope for f in factors]
        refunded = sum(ceil(p * capacity) for p, capacity in zip(price, network.capacities, strict=True))
        self.constant = network.constant - refunded
        readers: dict[int, list[tuple[int, int]]] = defaultdict(list)  # the factors of each hub, and its axis there
        for i, f in enumerate(factors):
            for axis, v in enumerate(f.scope):
                readers[v].append((i, axis))
        size = [len(v.cost) for v in network.variables]
        # a hub's own table of zeros counts as one reader
        self.hubs = {v for v in free_hubs(network) if size[v] > 1 and len(readers[v]) > _LEAST_READERS} - tied
        for f in factors:  # of two that meet, one stays
            met = [v for v in f.scope if v in self.hubs]
            self.hubs -= set(met[1:])
        self.readers = {h: [(i, axis) for i, axis in readers[h] if len(factors[i].scope) > 1] for h in self.hubs}
        self._classify(factors, size)
        if start is not None:
            self._take(start)
        self._compile(factors, size)

    def _take(self, start: "HubPrices") -> None:
        """Begin with the prices of another one, as far as it has the same hubs."""
        for h in self.hubs & start.hubs:
            for i, _ in self.readers[h]:
                own = self.prices[self.side_of[i]]
                own[:] = start.prices[start.side_of[i]]
        for kind in self.groups:
            self._settle(kind)

    def _classify(self, factors: Sequence[Factor], size: Sequence[int]) -> None:
        """Components, their kinds, and the kinds of hubs: what has equal tables, and neighbours of equal kinds."""
        parent = list(range(len(size)))

        def find(v: int) -> int:
            while parent[v] != v:
                parent[v] = v = parent[parent[v]]
            return v

        hub_of: dict[int, tuple[int, int]] = {}
        for i, f in enumerate(factors):
            own = [v for v in f.scope if v not in self.hubs]
            for u, v in pairwise(own):
                parent[find(u)] = find(v)
            for axis, v in enumerate(f.scope):
                if v in self.hubs and len(f.scope) > 1:
                    hub_of[i] = v, axis
        members: dict[int, list[int]] = defaultdict(list)
        for v in range(len(size)):
            if v not in self.hubs:
                members[find(v)].append(v)
        place = {v: n for own in members.values() for n, v in enumerate(own)}
        parts: dict[int, list[int]] = defaultdict(list)
        for i, f in enumerate(factors):
            own = [v for v in f.scope if v not in self.hubs]
            if own:
                parts[find(own[0])].append(i)
        numbers: dict[Hashable, int] = {}

        def number(key: Hashable) -> int:
            return numbers.setdefault(key, len(numbers))

        kind = {}
        for root, own in parts.items():
            kind[root] = number(
                tuple((tuple(place.get(v, -1) for v in factors[i].scope), id(factors[i].time)) for i in own)
            )
        groups = {h: self._groups(own) for h, own in self.readers.items()}
        rank = {i: n for own in parts.values() for n, i in enumerate(own)}
        where = {i: root for root, own in parts.items() for i in own}
        hub_kind = dict.fromkeys(self.hubs, 0)
        for _ in range(_ROUNDS):
            hub_kind = {
                h: number(("hub", tuple(sorted(tuple(sorted((kind[where[i]], rank[i]) for i in g)) for g in own))))
                for h, own in groups.items()
            }
            before = kind
            kind = {
                root: number((kind[root], tuple(hub_kind[hub_of[i][0]] for i in own if i in hub_of)))
                for root, own in parts.items()
            }
        self.members, self.parts, self.kind, self.place = members, parts, kind, place
        self.hub_kind, self.hub_of, self.where, self.rank = hub_kind, hub_of, where, rank
        self.side_of = {i: (hub_kind[h], number(("side", before[where[i]], rank[i]))) for i, (h, _) in hub_of.items()}
        self.count = Counter(kind[root] for root in parts)
        self.first: dict[int, int] = {}
        for root in parts:
            self.first.setdefault(kind[root], root)
        one = {k: h for h, k in hub_kind.items()}
        self.groups = {
            k: Counter(tuple(sorted(self.side_of[i] for i in own)) for own in groups[h]) for k, h in one.items()
        }
        modes = {
            self.side_of[i]: size[self.scopes[i][0]] if self.scopes[i][0] in self.modes else 1
            for h in one.values() for i, _ in self.readers[h]
        }  # fmt: skip
        self.prices = {side: np.zeros((count, size[one[side[0]]])) for side, count in modes.items()}

    def _groups(self, readers: Sequence[tuple[int, int]]) -> list[list[int]]:
        """The factors of a hub, those under one switch together."""
        found: dict[int, list[int]] = defaultdict(list)
        for i, _ in readers:
            mode = self.scopes[i][0]
            found[mode if mode in self.modes else -1 - i].append(i)
        return list(found.values())

    def _compile(self, factors: Sequence[Factor], size: Sequence[int]) -> None:
        """A circuit of the first component of each kind."""
        made: list[Factor] = []
        self.terms: list[_Side] = []
        self.slots: dict[int, int] = {}
        kept: dict[tuple[int, int, bool], Sequence[_OfMode]] = {}
        for root in self.first.values():
            for i in self.parts[root]:
                f = factors[i]
                self.slots[i] = len(made)
                if i not in self.hub_of:
                    made.append(Factor(f.scope, f.time, None))
                    continue
                _, axis = self.hub_of[i]
                decided = f.scope[0] in self.modes
                key = id(f.time), axis, decided
                if key not in kept:
                    table = np.ascontiguousarray(np.moveaxis(f.time, axis, -1))
                    of_modes = table.reshape(len(table) if decided else 1, -1, table.shape[-1])
                    kept[key] = [_OfMode.made(own) for own in of_modes]
                scope = tuple(v for v in f.scope if v not in self.hubs)
                shape = tuple(size[v] for v in scope)
                self.terms.append(_Side(len(made), self.side_of[i], kept[key]))
                made.append(Factor(scope, np.broadcast_to(np.zeros(()), shape), None))
        every = {v: np.arange(n) for v, n in enumerate(size)}
        plain = self.network
        of_term = {t.slot for t in self.terms}
        late = _changing([f.scope for f in made], of_term, {s.variable for s in plain.switches})
        self.circuit: Circuit = arrange(plain, made, tuple(range(len(size))), every, late=late)
        base = [np.zeros(leaf.time.shape) if n in of_term else leaf.time for n, leaf in enumerate(self.circuit.leaves)]
        kind_of = {v: self.kind[r] for r in self.first.values() for v in self.members[r]}
        least: dict[int, int] = {}
        for slot, _ in self.circuit.bucket(self.circuit.root).inputs:
            v = self.circuit.leaves[slot].scope[0] if slot < len(made) else self.circuit.bucket(slot).variable
            assert v is not None
            least[slot] = self.count[kind_of[v]]
        buckets, count = self.circuit.buckets, len(made)
        own: dict[int, int] = {}  # of each variable the first table, that of the variable alone, but for its mode
        for n, leaf in enumerate(self.circuit.leaves):
            for v in leaf.scope:
                own.setdefault(v, n)
        self.whole = _Buckets(base, buckets, {t.slot: t.slot for t in self.terms}, least, frozenset(own.values()))
        changing = {*of_term, self.circuit.root}  # what prices change; the rest is computed once
        for n, bucket in enumerate(buckets, count):
            if any(child in changing for child, _ in bucket.inputs):
                changing.add(n)
        ahead = [n for n in sorted(changing) if n >= count]
        met = {child for n in ahead for child, _ in buckets[n - count].inputs}
        known = sorted((met - changing) | of_term)
        number = {slot: n for n, slot in enumerate([*known, *ahead])}
        start = forward(base, buckets, known=set(map(id, base)))
        self.part = _Buckets(
            [start[slot] for slot in known],
            [
                replace(buckets[n - count], inputs=tuple((number[c], axes) for c, axes in buckets[n - count].inputs))
                for n in ahead
            ],
            {slot: number[slot] for slot in of_term},
            {number[slot]: n for slot, n in least.items()},
        )

    def close(self) -> frozenset[int]:
        """Hubs of which several readers are in one component, if elimination can take that together with the hub.

        Without them readers would choose for themselves what they have to agree on soon after.
        """
        found, allowed = set[int](), dict[int, bool]()
        size = [len(v.cost) for v in self.network.variables]
        for h, own in self.readers.items():
            roots = [self.where[i] for i, _ in own]
            if len(set(roots)) == len(roots):
                continue
            kind = self.hub_kind[h]
            if kind not in allowed:
                inside = {i for root in roots for i in self.parts[root]}
                scopes = [tuple(v for v in self.scopes[i] if v == h or v not in self.hubs) for i in sorted(inside)]
                allowed[kind] = most_work(scopes, size) <= _MOST_WORK
            if allowed[kind]:
                found.add(h)
        return frozenset(found)

    def evaluate(self, at: "_Buckets", until: float = inf) -> tuple[float, Tables, dict[int, Floats]]:
        """The bound at the prices, the best totals, and for the table of each kind of reader the hub's excesses."""
        tables, reduced = list(at.base), {}
        for t in self.terms:
            n = at.terms[t.slot]
            reduced[n] = t.least(self.prices[t.price])
            tables[n] = reduced[n].copy().reshape(at.base[n].shape)
        slots = forward(tables, at.buckets, until, known={id(table) for table in at.base})
        bound = self.constant + sum(n * float(slots[slot].min()) for slot, n in at.least.items())
        wanted = {*at.terms.values(), *(at.own if at is self.whole else ())}
        through, total = backward(slots, at.buckets, until, wanted), float(slots[len(slots) - 1].min())
        found = {}
        for t in self.terms:
            n = at.terms[t.slot]
            with np.errstate(invalid="ignore"):
                beyond = through[n].reshape(-1) - reduced[n] - total
            beyond[np.isnan(beyond)] = inf
            found[t.slot] = t.through(beyond, self.prices[t.price])
        return bound, through, found

    def climb(self, rise: float, until: float = inf, wanted: float = inf) -> float:
        """Raise the prices until the bound hardly rises, is `wanted`, or the time is up.

        Returns the best bound; its prices stay.
        """
        speed = {side: np.zeros_like(price) for side, price in self.prices.items()}
        best, kept, bounds = -inf, dict(self.prices), list[float]()
        for _ in range(_PASSES):
            bound, _, excesses = self.evaluate(self.part)
            if bound > best:
                best, kept = bound, dict(self.prices)
            bounds.append(best)
            enough = len(bounds) > _WINDOW and bounds[-1] - bounds[-1 - _WINDOW] <= rise * abs(best)
            if enough or best >= wanted or perf_counter() > until:
                break
            found: dict[tuple[int, int], Floats] = {}
            for t in self.terms:
                own = excesses[t.slot]
                found[t.price] = np.minimum(found[t.price], own) if t.price in found else own
            for kind, groups in self.groups.items():
                for side, move in _moves(groups, found).items():
                    speed[side] = _MOMENTUM * speed[side] + _STEP * move
                    self.prices[side] = np.round(self.prices[side] + speed[side])
                self._settle(kind)
        self.prices = kept
        return best

    def _settle(self, kind: int) -> None:
        """Lower one reader's prices until those of all readers sum to at most 0, without which the bound is none."""
        groups = self.groups[kind]
        side = next(iter(groups))[0]
        many = sum(n * own.count(side) for own, n in groups.items())
        most = sum(n * np.sum([self.prices[s] for s in own], axis=0).max(axis=0) for own, n in groups.items())
        self.prices[side] = self.prices[side] - np.ceil(most / many)

    def options(self) -> tuple[int, list[Floats]]:
        """The bound, and the excess of every option of every variable; `INFINITE` and none if there is no solution."""
        bound, through, sides = self.evaluate(self.whole)
        if bound == inf:
            return INFINITE, [np.zeros(len(v.cost)) for v in self.network.variables]
        excess: dict[int, Floats] = {}
        total = float(through[len(through) - 1].min())
        for n in sorted(self.whole.own):
            scope = self.circuit.leaves[n].scope
            for axis, v in enumerate(scope):
                if v not in excess:
                    table = through[n]
                    excess[v] = table.min(axis=tuple(a for a in range(table.ndim) if a != axis)) - total
        found: list[Floats] = [np.zeros(len(v.cost)) for v in self.network.variables]
        for root, own in self.members.items():
            for v, like in zip(own, self.members[self.first[self.kind[root]]], strict=True):
                found[v] = excess.get(like, found[v])
        known: dict[Hashable, Floats] = {}
        for h, readers in self.readers.items():
            of_part: dict[int, list[tuple[int, ...]]] = defaultdict(list)
            for group in self._groups(readers):  # in one component each
                part = self.where[group[0]]
                first = self.parts[self.first[self.kind[part]]]
                of_part[part].append(tuple(self.slots[first[self.rank[i]]] for i in group))
            key = tuple(map(tuple, of_part.values()))
            if key not in known:  # a component has the largest of its excesses, the hub the sum of its components'
                known[key] = np.sum([_of_component([[sides[s] for s in g] for g in of]) for of in key], axis=0)
            found[h] = known[key]
        return floor(bound), found


@dataclass(frozen=True, slots=True, eq=False)
class _Buckets:
    """Tables and the buckets over them.

    `terms`: by slot of a reader's table, its place in `base`. `least`: by slot of the least cost of a kind of
    component, how many components are of that kind. `own`: slots of tables in which every variable is.
    """

    base: list[Floats]
    buckets: Sequence[Bucket]
    terms: Mapping[int, int]
    least: Mapping[int, int]
    own: AbstractSet[int] = frozenset()


def _of_component(groups: Sequence[Sequence[Floats]]) -> Floats:
    """The excess of a component in each of a hub's layouts, given that of each table [modes or 1, hub].

    Tables of a group are in the same mode; others need not be.
    """
    found: Floats = np.max([np.max(own, axis=0).min(axis=0) for own in groups], axis=0)
    return found


def _moves(groups: Mapping[Sides, int], found: Mapping[Side, Floats]) -> dict[Side, Floats]:
    """How far the prices of the readers of one hub are from where all take the same, given their excesses."""
    level = {own: np.mean([found[s] for s in own], axis=0) for own in groups}
    best = {own: table.min(axis=0) for own, table in level.items()}
    mean = sum(n * len(own) * best[own] for own, n in groups.items()) / sum(n * len(own) for own, n in groups.items())
    moves: dict[Side, Floats] = {}
    count = Counter[Side]()
    for own, n in groups.items():
        for side in own:
            with np.errstate(invalid="ignore"):
                inside, across = level[own] - found[side], mean - best[own]
            move = np.where(np.isfinite(level[own]), inside, 0.0) + np.where(np.isfinite(mean), across, 0.0)
            moves[side] = moves.get(side, 0.0) + n * move
            count[side] += n
    return {side: move / count[side] for side, move in moves.items()}


def _changing(scopes: Sequence[tuple[int, ...]], priced: AbstractSet[int], modes: AbstractSet[int]) -> frozenset[int]:
    """The variables that lie between priced tables, of which `priced` has the numbers.

    All others, such as a weight that only one operator reads, can be eliminated before, without any prices.
    """
    near: dict[int, set[int]] = defaultdict(set)
    for scope in scopes:
        for v in scope:
            near[v].update(scope)
    fixed = {v for n in priced for v in scopes[n]} | modes
    ahead = [v for v in near if v not in fixed]
    while ahead:
        v = ahead.pop()
        around = near.get(v, set()) - modes - {v}
        if v in near and v not in fixed and len(around) <= 1:
            del near[v]
            for u in around:
                near[u].discard(v)
            ahead += around
    return frozenset(near)


def _of_costs(network: Network) -> Network:
    """The network of the costs alone, whose tables of use need not be copied."""

    def costs(tables: Mapping[int, SwitchTables]) -> dict[int, SwitchTables]:
        return {key: (cost, None, None) for key, (cost, _, _) in tables.items()}

    return replace(
        network,
        variables=tuple(replace(v, use=np.zeros((len(v.cost), 0), np.int64), rows=None) for v in network.variables),
        edges=tuple(replace(e, use=None) for e in network.edges),
        switches=tuple(replace(s, variables=costs(s.variables), edges=costs(s.edges)) for s in network.switches),
    )


def _priced(factors: Sequence[Factor], price: Sequence[float], transient: Mapping[int, float]) -> list[Factor]:
    """The factors with their use at a price, in whole ns; equal ones share tables."""
    if not any(price):
        return [replace(f, use=None, extra=None) for f in factors]
    known: dict[tuple[int, int, int, float], Floats] = {}
    found = []
    for f in factors:
        own = 0.0 if f.extra is None else transient.get(f.scope[0], 0.0)
        key = id(f.time), id(f.use), id(f.extra) if own else 0, own
        if key not in known:
            paid = f.time if f.use is None else f.priced(1, price)
            paid = paid if f.extra is None or not own else paid + own * f.extra
            known[key] = paid if paid is f.time else np.floor(paid)
        found.append(replace(f, time=known[key], use=None, extra=None))
    return found


def within(excess: Floats, slack: float) -> Ints:
    """The options of at most that excess."""
    return np.flatnonzero(excess <= slack)
