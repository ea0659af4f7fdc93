"""A cost network compiled for elimination: a circuit of buckets, evaluated in the min-plus semiring.

A bucket eliminates one variable v and keeps others x:  out(x) = min_v Σ_j in_j(v, x).
Equal copies of a chain are compiled once, to a table F over its two boundaries; the chain is a min-plus power of F by
repeated squaring, so L layers cost log L products. A restricted circuit eliminates the middle of its longest chain last
instead, so that label lists of its halves meet there and the whole chain needs none. `forward` gives the optimum,
`backward` (reverse mode) the best cost of any solution through every option and every pair of an edge.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import ceil, floor, inf, log2, prod
from typing import TypeVar

import numpy as np

from ...formulation.network.network import INFINITE, Network
from .bucket import Bucket, Join
from .factors import Factor, each
from .kernels import Floats, Ints
from .tables import Tables, backward, forward

_State = TypeVar("_State", bound=Hashable)
Weights = Mapping[int, tuple[float, ...]]
"""Of the streams of each window."""
_DIGITS = 12  # of the highest price, at least


@dataclass(frozen=True, eq=False)
class Circuit:
    """Slots 0..len(factors)-1 hold the factors, the next the buckets in order; the last bucket is the optimum.

    `leaves` are the factors as the slots hold them, without variables of one option (numpy limits the axes).
    `kept[d]` are the network's numbers of the options left in domain d; variable v has domain `domain[v]`, which equal
    copies and the boundaries of a chain share. `copies` holds the slot of each chain's F, `blocks` those of parts that
    were eliminated first. `weights` are those of the streams of windows in the costs; none: streams do not count.
    """

    network: Network
    factors: tuple[Factor, ...]
    leaves: tuple[Factor, ...]
    buckets: tuple[Bucket, ...]
    domain: tuple[int, ...]
    kept: Mapping[int, Ints]
    copies: tuple[int, ...]
    blocks: tuple[int, ...] = ()
    weights: Weights = field(default_factory=dict)

    @property
    def root(self) -> int:
        return len(self.factors) + len(self.buckets) - 1

    def with_cheaper(self, factors: tuple[Factor, ...]) -> "Circuit":
        """The circuit with other costs, of which no assignment has more than with its own and its streams.

        What bounds totals is computed once: that of this circuit holds.
        """
        return self._bounding(replace(self, factors=factors, leaves=tuple(f.narrow() for f in factors)))

    def weighted(self, weights: Weights) -> "Circuit":
        """The circuit whose costs hold the weighted streams, rounded down."""
        return self._bounding(replace(self, weights=weights))

    def _bounding(self, other: "Circuit") -> "Circuit":
        for name in ("negative_cost", "max_cost", "max_use"):
            other.__dict__[name] = getattr(self, name)
        return other

    def bucket(self, slot: int) -> Bucket:
        return self.buckets[slot - len(self.factors)]

    def places(self, variables: Iterable[int], options: Iterable[int]) -> tuple[int, ...]:
        """Where options of variables are among those that are left."""
        kept = (self.kept[self.domain[v]] for v in variables)
        return tuple(int(np.searchsorted(own, option)) for own, option in zip(kept, options, strict=True))

    @property
    def entries(self) -> int:
        """The number of entries of factors that are not forbidden, equal copies counted once."""
        return sum(int(np.count_nonzero(f.time < inf)) for f in self.factors)

    @property
    def options(self) -> int:
        """Number of options left, equal copies counted once."""
        return sum(len(k) for k in self.kept.values())

    def work(self, axes: int) -> float:
        """Additions of the distinct buckets if all but switches had their options on each of `axes` mesh axes."""
        different = {(b.dims, b.modes, tuple(kept for _, kept in b.inputs)) for b in self.buckets}
        return float(sum(modes * (prod(dims) // modes) ** axes for dims, modes, _ in different))

    @cached_property
    def size(self) -> tuple[int, int]:
        """The entries of all tables, and the additions that compute them; structurally equal ones counted once."""
        numbers: dict[Hashable, int] = {}
        kinds = [numbers.setdefault((id(f.time), id(f.use)), len(numbers)) for f in self.leaves]
        entries = additions = 0
        for bucket in self.buckets:
            key = bucket.dims, tuple((kinds[slot], axes) for slot, axes in bucket.inputs)
            if key not in numbers:
                entries, additions = entries + prod(bucket.dims[1:]), additions + prod(bucket.dims)
            kinds.append(numbers.setdefault(key, len(numbers)))
        return entries, additions

    def below(self, top: Iterable[int], stop: Iterable[int] = ()) -> set[int]:
        """The slots `top` and all their transitive inputs; those of `stop` are not expanded."""
        found: set[int] = set()
        stack, closed = list(top), set(stop)
        while stack:
            slot = stack.pop()
            if slot not in found:
                found.add(slot)
                if slot >= len(self.factors) and slot not in closed:
                    stack.extend(child for child, _ in self.bucket(slot).inputs)
        return found

    def rounding(self, price: Sequence[float], total: float) -> float:
        """Bound on the rounding error of a total; 0 without a price, as integers below 2^53 are exact."""
        if not any(price):
            return 0.0
        return (sum(len(b.inputs) for b in self.buckets) + 8) * 2.0**-52 * (abs(total) + 2 * self.negative_cost)

    @cached_property
    def negative_cost(self) -> float:
        """Upper bound on what negative costs subtract from a total."""
        many = sum(len(chain) for chain in self.network.chains) + 1
        return -float(sum(each(self._times, lambda t: t[t < np.inf].min(initial=0.0)))) * many

    @cached_property
    def max_cost(self) -> int:
        """The sum of the largest permitted costs and streams: no feasible assignment costs more."""
        largest = self._sum(self._times, lambda t: t[t < np.inf].max(initial=-INFINITE))
        return self.network.constant + largest + self._largest_streams

    @cached_property
    def _largest_streams(self) -> int:
        """The sum of the largest entries of all streams."""
        tables = [(w, table) for f in self.factors for w, table in f.streams]
        largest = each([table for _, table in tables], lambda table: table.max(initial=0))
        return sum(int(most) * self.repeats[w] for (w, _), most in zip(tables, largest, strict=True))

    @cached_property
    def repeats(self) -> dict[int, int]:
        """How many windows each window stands for: as many as its chain has copies."""
        found = {w: 1 for f in self.factors for w, _ in f.streams}
        for chain, one in zip(self.network.chains, self.copies, strict=True):
            inside = (slot for slot in self.below([one]) if slot < len(self.factors))
            found |= {w: len(chain) for slot in inside for w, _ in self.factors[slot].streams}
        return found

    @cached_property
    def exact(self) -> bool:
        """As `exact_in_floats`, computed from one copy of each chain."""
        cost = self._sum(self._times, lambda t: np.abs(t[t < np.inf]).max(initial=0))
        return (
            max(cost + self._largest_streams, self.max_use, abs(self.network.constant), *self.network.capacities)
            < 1 << 52
        )

    @cached_property
    def max_use(self) -> float:
        """The sum of the largest uses of any capacity."""
        return self._sum([f.use for f in self.factors], lambda use: use.max(initial=0))

    def exact_price(self, price: Sequence[float]) -> tuple[float, ...]:
        """The price rounded so that totals are exact in floats, as far as that leaves it some digits.

        Equal tables then compare equal. Of large networks the sums of all largest entries, which no solution comes
        near, are beyond what is exact at any useful price.
        """
        largest = 1.0 + abs(self.max_cost) + self.negative_cost + sum(price) * self.max_use
        grain = 2.0 ** min(1000, floor(51 - log2(largest)))
        if (highest := max(price, default=0.0)) > 0:
            grain = max(grain, 2.0 ** min(1000, _DIGITS - floor(log2(highest))))
        return tuple(ceil(p * grain) / grain for p in price)

    @property
    def _times(self) -> list[Floats]:
        return [f.time for f in self.factors]

    def _sum(self, tables: Sequence[Floats | None], measure: Callable[[Floats], float]) -> int:
        """The sum of a measure over the factors' tables, those of a chain's copy once per copy."""
        values = list(map(int, each(tables, measure)))
        repeated = (
            (len(chain) - 1) * sum(values[slot] for slot in self.below([one]) if slot < len(values))
            for chain, one in zip(self.network.chains, self.copies, strict=True)
        )
        return sum(values) + sum(repeated)

    def tables(self, time: int, price: Sequence[float], slots: Iterable[int] | None = None) -> list[Floats]:
        """The priced tables of the leaves, or of those in some slots; equal factors share one."""
        found: dict[Hashable, Floats] = {}

        def priced(f: Factor) -> Floats:
            key = id(f.time), id(f.use), *(x for w, table in f.streams for x in (self.weights.get(w), id(table)))
            if key not in found:
                found[key] = f.priced(time, price, self.weights)
            return found[key]

        return [priced(f) for f in (self.leaves if slots is None else [self.leaves[slot] for slot in slots])]

    def forward(self, tables: Iterable[Floats], until: float = inf) -> Tables:
        """The table of every slot; the root's only entry is the optimum, +inf if infeasible.

        The leaves' `tables` are overwritten, but for the circuit's own.
        """
        return forward(tables, self.buckets, until, {id(f.time) for f in self.leaves})

    def in_modes(
        self,
        top: int,
        switch: int | None,
        tables: Mapping[int, Floats],
        until: float = inf,
        modes: Sequence[int] | None = None,
    ) -> Floats:
        """[modes, ...]: the table of a chain's copy, in slot `top`, in some modes of a switch, or in each.

        `tables` are those of the copy's leaves, by slot. Without a switch there is one mode.
        What no mode changes is computed once, all else from the entries of each mode alone.
        """
        count = len(self.factors)
        if modes is None:
            modes = range(1 if switch is None else len(self.kept[self.domain[switch]]))
        slots, changed = sorted(self.below([top])), set[int]()
        for slot in slots:
            inputs = self.bucket(slot).inputs if slot >= count else ()
            if any(child in changed for child, _ in inputs) or (slot < count and switch in self.leaves[slot].scope):
                changed.add(slot)
        alike = [slot for slot in slots if slot not in changed]
        met = {child for slot in changed if slot >= count for child, _ in self.bucket(slot).inputs} - changed
        start = self._forward(alike, tables, {*met, *{top} - changed}, until)
        if top in start:
            return np.stack([start[top]] * len(modes))
        axes = {slot: self.leaves[slot].scope.index(switch) for slot in changed if slot < count}
        rest, found = [*start, *sorted(changed)], list[Floats]()
        for m in modes:
            of_mode = {slot: tables[slot].take([m], axis) for slot, axis in axes.items()}
            found.append(self._forward(rest, start | of_mode, {top}, until, single=switch)[top])
        return np.stack(found)

    def _forward(
        self,
        slots: Iterable[int],
        known: Mapping[int, Floats],
        wanted: Iterable[int],
        until: float,
        single: int | None = None,
    ) -> dict[int, Floats]:
        """The tables of `wanted` slots, from some slots in order: known ones, which are not overwritten, or of buckets
        with inputs among them. The variable `single` has one option in them."""
        order = sorted(slots, key=lambda slot: slot not in known)
        number = {slot: n for n, slot in enumerate(order)}

        def part(bucket: Bucket) -> Bucket:
            inputs = tuple((number[child], axes) for child, axes in bucket.inputs)
            sizes = zip((bucket.variable, *bucket.kept), bucket.dims, strict=True)
            return replace(bucket, inputs=inputs, dims=tuple(1 if v == single is not None else n for v, n in sizes))

        tables = [known[slot] for slot in order if slot in known]
        buckets = [part(self.bucket(slot)) for slot in order if slot not in known]
        found = forward(tables, buckets, until, set(map(id, tables)))
        return {slot: found[number[slot]] for slot in wanted}

    def backward(self, slots: Tables, until: float = inf) -> Tables:
        """The best total through every entry of every slot; shared slots take the minimum over their uses."""
        return backward(slots, self.buckets, until)

    def decode(self, slots: Tables) -> tuple[int, ...]:
        """An optimal assignment in the network's options; ties go to the lower option, bucket by bucket."""
        start: list[tuple[int, tuple[int, ...], int]] = [(self.root, (), 0)]
        return self.assemble(start, lambda slot, values: self._best(slots, slot, values))

    def totals(self, slots: Tables) -> tuple[int, tuple[int, ...]]:
        """Cost (without the constant) and use of the assignment of `decode`, in O(log L)."""
        cost, use = 0, [0] * len(self.network.capacities)
        cache: dict[object, tuple[int, list[int]]] = {}
        for leaf, entries in zip(self.leaves, self.counts(slots), strict=True):
            for values, n in entries.items():
                key = id(leaf.time), id(leaf.use), values
                if key not in cache:
                    uses = [] if leaf.use is None else leaf.use[values].astype(int).tolist()
                    cache[key] = int(leaf.time[values]), uses
                cost += n * cache[key][0]
                for r, u in enumerate(cache[key][1]):
                    use[r] += n * u
        return cost, tuple(use)

    def counts(self, slots: Tables) -> list[dict[tuple[int, ...], int]]:
        """How often the assignment of `decode` takes each entry of every leaf.

        Equal entries are counted, from the root down to the leaves, instead of visited.
        """
        many: list[dict[tuple[int, ...], int]] = [{} for _ in range(len(slots))]
        many[self.root][()] = 1
        for slot in range(self.root, len(self.factors) - 1, -1):
            for values, n in many[slot].items():
                states = self._best(slots, slot, values)[1]
                for (child, _), state in zip(self.bucket(slot).inputs, states, strict=True):
                    many[child][state] = many[child].get(state, 0) + n
        return many[: len(self.factors)]

    def _best(self, slots: Tables, slot: int, values: tuple[int, ...]) -> tuple[int, list[tuple[int, ...]]]:
        """The best option of a bucket's variable at an entry of its table, and the entries of the inputs there."""
        bucket = self.bucket(slot)
        key = slots.recipes[slot], values
        if key not in slots.choices:
            slots.choices[key] = Join(bucket, slots.arrays).best(values)
        here = (slots.choices[key], *values)
        return here[0], [tuple([here[a] for a in axes]) for _, axes in bucket.inputs]

    def assemble(
        self,
        starts: list[tuple[int, _State, int]],
        choose: Callable[[int, _State], tuple[int, list[_State]]],
        given: Mapping[int, int] | None = None,
    ) -> tuple[int, ...]:
        """The assignment found by descending from `starts`: (slot, state, index of the first copy).

        `choose` maps a bucket's slot and state to the option of its variable and the states of its inputs; `given`
        holds options of variables decided before.
        """
        picks = [0] * len(self.network.variables)
        copy_of = {one: c for c, one in enumerate(self.copies)}
        inside: dict[tuple[int, _State], dict[int, int]] = {}  # the interior of a copy, by its state
        chosen: dict[tuple[int, _State], tuple[int, list[_State]]] = {}
        rest = dict(given or {})
        placed: list[tuple[int, int, dict[int, int]]] = []
        stack = [(slot, state, at, rest) for slot, state, at in starts]
        while stack:
            slot, state, at, found = stack.pop()
            if slot in copy_of and found is rest:
                new = (slot, state) not in inside
                found = inside.setdefault((slot, state), {})
                placed.append((copy_of[slot], at, found))
                if not new:
                    continue
            if slot < len(self.factors):
                continue
            bucket = self.bucket(slot)
            if (slot, state) not in chosen:
                chosen[slot, state] = choose(slot, state)
            option, states = chosen[slot, state]
            if bucket.half:
                picks[self.network.chains[bucket.chain].boundaries[at + bucket.half]] = option
            elif bucket.variable is not None:
                found[bucket.variable] = option
            for k, (child, _) in enumerate(bucket.inputs):
                stack.append((child, states[k], at + bucket.start + bucket.half * (k > 0), found))
        for c, i, found in placed:
            copies = self.network.chains[c].copies
            for v, first in zip(copies[i], copies[0], strict=True):
                picks[v] = found.get(first, 0)
        for v, x in rest.items():
            picks[v] = x
        kept = {d: options.tolist() for d, options in self.kept.items()}
        return tuple([kept[d][x] for d, x in zip(self.domain, picks, strict=True)])
