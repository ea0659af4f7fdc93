"""A cost network compiled for elimination: a circuit of buckets, evaluated in the min-plus semiring.

A bucket joins its inputs over one eliminated variable v and the kept ones x:  out(x) = min_v Σ_j in_j(v, x).
Equal copies of a chain are compiled once, to a table F over its two boundaries; the chain is a min-plus power of F
by repeated squaring, again buckets, so L layers cost log L products. A restricted circuit ends in the middle of its
longest chain instead, so that two lists of half the chain meet there and none of the whole is made. `forward` gives
the optimum, `backward` (the reverse mode of the same circuit) the best cost of any solution through every option and
every pair of an edge.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import TypeVar

import numpy as np

from ..formulation.network import INFINITE, Edge, Network, Table, Variable, chain_edges
from .bucket import Bucket, Join
from .kernels import Bools, Floats, Ints

MOST_ENTRIES = 1 << 26  # of one table: 512 MiB
MOST_WORK = 1 << 36  # additions of one bucket: some seconds


_State = TypeVar("_State", bound=Hashable)


class TooWideError(Exception):
    """Elimination would need more memory or time than is sensible."""


@dataclass(frozen=True, slots=True, eq=False)
class Factor:
    """A table of the network over one or two variables: `time` +inf where forbidden, `use` [..., R] or None.

    Of equal copies only the first has factors. The floats hold integers below 2^53, exactly.
    """

    scope: tuple[int, ...]
    time: Floats
    use: Floats | None

    def priced(self, time: int, price: Sequence[float]) -> Floats:
        """time * cost + Σ_r price_r * use_r, +inf where forbidden; `time` is 0 or 1."""
        table = self.time if time == 1 else np.where(self.time < np.inf, 0.0, np.inf)
        if self.use is not None:
            for r, p in enumerate(price):
                if p:
                    table = table + self.use[..., r] * p
        return table

    def take(self, options: Sequence[Ints]) -> "Factor":
        """The same over some of the options."""
        at = np.ix_(*options)
        return Factor(self.scope, self.time[at], None if self.use is None else self.use[at])


@dataclass(frozen=True, eq=False)
class Circuit:
    """Slots 0..len(factors)-1 hold the factors, the next the buckets in order; the last bucket is the optimum.

    `kept[d]` are the options left in domain d, as the network numbers them; variable v has domain `domain[v]`
    (equal copies and the boundaries of a chain share). `copies` holds the slot of each chain's F.
    """

    network: Network
    factors: tuple[Factor, ...]
    buckets: tuple[Bucket, ...]
    domain: tuple[int, ...]
    kept: Mapping[int, Ints]
    copies: tuple[int, ...]

    @property
    def root(self) -> int:
        return len(self.factors) + len(self.buckets) - 1

    @property
    def options(self) -> int:
        """How many options are left, equal copies counted once."""
        return sum(len(k) for k in self.kept.values())

    def below(self, top: Iterable[int], stop: Iterable[int] = ()) -> set[int]:
        """The slots `top` and all that they are made of, not looking beneath those of `stop`."""
        found: set[int] = set()
        stack, closed = list(top), set(stop)
        while stack:
            slot = stack.pop()
            if slot not in found:
                found.add(slot)
                if slot >= len(self.factors) and slot not in closed:
                    stack.extend(child for child, _ in self.buckets[slot - len(self.factors)].inputs)
        return found

    def rounding(self, price: Sequence[float], total: float) -> float:
        """How far floats may put a total off: nothing without a price, as integers below 2^53 are exact."""
        if not any(price):
            return 0.0
        return (sum(len(b.inputs) for b in self.buckets) + 8) * 2.0**-52 * (abs(total) + 2 * self.debt)

    @cached_property
    def debt(self) -> float:
        """A bound on how much negative costs may take off a total."""
        many = sum(len(chain) for chain in self.network.chains) + 1
        least = [f.time[f.time < np.inf].min(initial=0.0) for f in self.factors]
        return -float(sum(least)) * many

    @cached_property
    def most_cost(self) -> int:
        """The sum of the largest permitted costs: no feasible assignment of the network costs more."""
        most = [int(f.time[f.time < np.inf].max(initial=-INFINITE)) for f in self.factors]
        again = (
            (len(chain) - 1) * sum(most[slot] for slot in self.below([one]) if slot < len(most))
            for chain, one in zip(self.network.chains, self.copies, strict=True)
        )
        return self.network.constant + sum(most) + sum(again)

    def tables(self, time: int, price: Sequence[float]) -> list[Floats]:
        return [f.priced(time, price) for f in self.factors]

    def forward(self, tables: Iterable[Floats]) -> list[Floats]:
        """The table of every slot; the root's only entry is the optimum, +inf when there is none."""
        slots = list(tables)
        for bucket in self.buckets:
            slots.append(Join(bucket, slots).forward())
        return slots

    def backward(self, slots: list[Floats]) -> list[Floats]:
        """The best total through every entry of every slot, least over all the places of a shared one."""
        through = [np.full(s.shape, np.inf) for s in slots]
        through[-1] = slots[-1]
        for index in range(self.root, len(self.factors) - 1, -1):
            bucket = self.buckets[index - len(self.factors)]
            outside = outside_of(through[index], slots[index])
            marginals = Join(bucket, slots).backward(outside, through[index])
            for (slot, _), marginal in zip(bucket.inputs, marginals, strict=True):
                np.minimum(through[slot], marginal, out=through[slot])
        return through

    def decode(self, slots: list[Floats]) -> tuple[int, ...]:
        """A best assignment in the network's options; ties go to the lower option, bucket by bucket."""

        start: list[tuple[int, tuple[int, ...], int]] = [(self.root, (), 0)]
        return self.assemble(start, lambda slot, values: self._best(slots, slot, values))

    def totals(self, slots: list[Floats]) -> tuple[int, tuple[int, ...]]:
        """Cost, without the constant, and use of the assignment that `decode` gives, in time that grows with log L.

        Equal entries are counted, from the root down to the factors, instead of visited.
        """
        cost, use = 0, [0] * len(self.network.capacities)
        many = [Counter[tuple[int, ...]]() for _ in slots]
        many[self.root][()] = 1
        for slot in range(self.root, -1, -1):
            for values, n in many[slot].items():
                if slot < len(self.factors):
                    factor = self.factors[slot]
                    cost += n * int(factor.time[values])
                    for r, u in enumerate([] if factor.use is None else factor.use[values]):
                        use[r] += n * int(u)
                    continue
                states = self._best(slots, slot, values)[1]
                for (child, _), state in zip(self.buckets[slot - len(self.factors)].inputs, states, strict=True):
                    many[child][state] += n
        return cost, tuple(use)

    def _best(self, slots: list[Floats], slot: int, values: tuple[int, ...]) -> tuple[int, list[tuple[int, ...]]]:
        """The best option of a bucket's variable at an entry of its table, and the entries of its inputs."""
        bucket = self.buckets[slot - len(self.factors)]
        here = (Join(bucket, slots).best(values), *values)
        return here[0], [tuple(here[a] for a in axes) for _, axes in bucket.inputs]

    def assemble(
        self,
        starts: list[tuple[int, _State, int]],
        choose: Callable[[int, _State], tuple[int, list[_State]]],
        given: Mapping[int, int] | None = None,
    ) -> tuple[int, ...]:
        """The assignment found by descending from `starts`: (slot, state, index of the copy it begins with).

        `choose` gives, for the state of a bucket, the option of its variable and the states of its inputs; `given`
        are the options of variables that are known.
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
            bucket = self.buckets[slot - len(self.factors)]
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
                picks[v] = found[first]
        for v, x in rest.items():
            picks[v] = x
        kept = {d: options.tolist() for d, options in self.kept.items()}
        return tuple([kept[d][x] for d, x in zip(self.domain, picks, strict=True)])

    def restrict(self, through: Sequence[Floats], most: float) -> "Circuit | None":
        """The circuit without the options and pairs through which no solution totals at most `most`.

        None when nothing is left.
        """
        alive: dict[int, Bools] = {d: np.zeros(len(k), np.bool_) for d, k in self.kept.items()}
        for f, marginal in zip(self.factors, through[: len(self.factors)], strict=True):
            if len(f.scope) == 1:
                alive[self.domain[f.scope[0]]] |= marginal <= most
        for chain, one in zip(self.network.chains, self.copies, strict=True):
            d = self.domain[chain.boundaries[0]]  # an inner boundary has no factor of its own
            alive[d] |= (through[one] <= most).any(0) | (through[one] <= most).any(1)
        left = {d: np.flatnonzero(a) for d, a in alive.items()}
        if any(len(options) == 0 for options in left.values()):
            return None
        factors = []
        for f, marginal in zip(self.factors, through[: len(self.factors)], strict=True):
            fine = Factor(f.scope, np.where(marginal <= most, f.time, np.inf), f.use)
            factors.append(fine.take([left[self.domain[v]] for v in f.scope]))
        kept = {d: k[left[d]] for d, k in self.kept.items()}
        try:
            return arrange(self.network, factors, self.domain, kept, meeting=True)
        except TooWideError:
            return arrange(self.network, factors, self.domain, kept)


def outside_of(through: Floats, inside: Floats) -> Floats:
    """What the rest of the network adds to each entry, +inf where there is no entry."""
    out = np.full(inside.shape, np.inf)
    np.subtract(through, inside, out=out, where=through < np.inf)
    return out


# Totals


def exact_in_floats(network: Network) -> bool:
    """Whether all costs, and all uses, sum to less than 2^52 in absolute value."""
    parts: list[Variable | Edge] = [*network.variables, *network.edges]
    cost = _sum_of([p.cost for p in parts], lambda t: np.abs(np.where(t >= INFINITE, 0, t)).max())
    use = _sum_of([p.use for p in parts if p.use is not None], lambda t: t.max(initial=0))
    return max(cost, use, *network.capacities) < 1 << 52


def _sum_of(tables: Sequence[Table], measure: Callable[[Table], np.int64]) -> int:
    """The sum of a measure over tables, which is taken once of each."""
    known = dict(zip(map(id, tables), tables, strict=True))
    return sum(many * int(measure(known[table])) for table, many in Counter(map(id, tables)).items())


# Compiling


def compile_network(network: Network) -> Circuit:
    """The circuit of a network; equal copies appear once. Raises TooWideError when a table would be too large."""
    copy_edges, rest_edges = chain_edges(network)
    parent = list(range(len(network.variables)))

    def find(v: int) -> int:
        while parent[v] != v:
            parent[v] = v = parent[parent[v]]
        return v

    inner: set[int] = set()  # variables that another stands for, or that have no table
    for chain in network.chains:
        inner.update(chain.boundaries[1:-1], *chain.copies[1:])
        for b in chain.boundaries[1:]:
            parent[find(b)] = find(chain.boundaries[0])
    domain = list(parent)
    for chain in network.chains:
        for b in chain.boundaries:
            domain[b] = find(b)
        for copy in chain.copies[1:]:
            for v, first in zip(copy, chain.copies[0], strict=True):
                domain[v] = first
    variables = [v for v in range(len(network.variables)) if v not in inner]
    factors = network_factors(network, variables, [*(k for chain in copy_edges for k in chain[0]), *rest_edges])
    kept = {d: np.arange(len(network.variables[d].cost)) for d in sorted(set(domain))}
    return arrange(network, factors, tuple(domain), kept)


def network_factors(
    network: Network, variables: Iterable[int] | None = None, edges: Iterable[int] | None = None
) -> list[Factor]:
    """The factors of some variables and edges (all)."""
    known: dict[int, Floats] = {}
    factors = []
    for v in range(len(network.variables)) if variables is None else variables:
        variable = network.variables[v]
        factors.append(Factor((v,), _floats(variable.cost, known), _uses(variable.use)))
    for k in range(len(network.edges)) if edges is None else edges:
        e = network.edges[k]
        factors.append(Factor((e.u, e.v), _floats(e.cost, known), None if e.use is None else _uses(e.use)))
    return factors


def _floats(cost: Ints, known: dict[int, Floats]) -> Floats:
    if id(cost) not in known:
        known[id(cost)] = np.where(cost >= INFINITE, np.inf, cost.astype(np.float64))
    return known[id(cost)]


def _uses(use: Ints) -> Floats | None:
    return use.astype(np.float64) if use.any() else None


def arrange(
    network: Network,
    factors: Sequence[Factor],
    domain: tuple[int, ...],
    kept: Mapping[int, Ints],
    meeting: bool = False,
) -> Circuit:
    """Order the eliminations: the interiors of each chain's first copy, the powers, then the rest.

    When `meeting`, the boundary in the middle of the longest chain is the last variable, between two powers.
    """
    size = [len(kept[d]) for d in domain]
    buckets: list[Bucket] = []
    copies: list[int] = []
    rest = {i: f.scope for i, f in enumerate(factors)}
    longest = max(map(len, network.chains), default=0) if meeting else 0
    middle: set[int] = set()
    for c, chain in enumerate(network.chains):
        first, last = chain.boundaries[:2]
        inside = {i for i, scope in rest.items() if _in_copy(scope, chain.copies[0], first, last)}
        mine = {i: rest.pop(i) for i in sorted(inside)}
        mine = _eliminate(mine, set(chain.copies[0]), size, buckets, len(factors))
        one = _join(mine, (first, last), size, buckets, len(factors))
        copies.append(one)
        half = len(chain) // 2 if len(chain) == longest and not middle else 0
        power = _power(one, half or len(chain), c, size[first], buckets, len(factors))
        meet = chain.boundaries[len(chain) - half]  # the last, when there is no second half
        if half:
            middle.add(meet)
            buckets.append(Bucket(((power, (1, 2)),), (1, size[first], size[first]), None, c, start=len(chain) - half))
            rest[len(factors) + len(buckets) - 1] = (meet, chain.boundaries[-1])
            if len(chain) % 2:
                power = _times(power, one, half, c, size[first], buckets, len(factors))
        rest[power] = (chain.boundaries[0], meet)
    variables = {v for scope in rest.values() for v in scope}
    rest = _eliminate(rest, variables - middle, size, buckets, len(factors))
    rest = _eliminate(rest, middle, size, buckets, len(factors))
    _join(rest, (), size, buckets, len(factors))
    return Circuit(network, tuple(factors), tuple(buckets), domain, kept, tuple(copies))


def _in_copy(scope: tuple[int, ...], interior: tuple[int, ...], first: int, last: int) -> bool:
    return any(v in interior for v in scope) or (len(scope) == 2 and set(scope) == {first, last})


def _eliminate(
    scopes: dict[int, tuple[int, ...]], variables: set[int], size: list[int], buckets: list[Bucket], base: int
) -> dict[int, tuple[int, ...]]:
    """Append a bucket per variable, the one of least work first; returns the slots that remain."""
    near: dict[int, set[int]] = {v: set() for v in variables}  # the slots of each variable
    for slot, scope in scopes.items():
        for v in scope:
            if v in near:
                near[v].add(slot)
    scopes = dict(scopes)

    def work(v: int) -> tuple[int, int]:
        around = {v}.union(*(scopes[s] for s in near[v]))
        return prod(size[u] for u in around), len(around)  # options may be few: then leaves go first

    cost = {v: work(v) for v in sorted(variables)}
    while cost:
        v = min(cost, key=cost.__getitem__)
        del cost[v]
        inputs = sorted(near.pop(v))
        kept = tuple(sorted({u for s in inputs for u in scopes[s]} - {v}))
        slot = _bucket(inputs, scopes, v, kept, size, buckets, base)
        for s in inputs:
            for u in scopes.pop(s):
                if u in near:
                    near[u].discard(s)
        scopes[slot] = kept
        for u in kept:
            if u in near:
                near[u].add(slot)
        for u in kept:
            if u in near:
                cost[u] = work(u)
    return scopes


def _join(
    scopes: dict[int, tuple[int, ...]], kept: tuple[int, ...], size: list[int], buckets: list[Bucket], base: int
) -> int:
    return _bucket(sorted(scopes), scopes, None, kept, size, buckets, base)


def _bucket(
    inputs: list[int],
    scopes: Mapping[int, tuple[int, ...]],
    variable: int | None,
    kept: tuple[int, ...],
    size: list[int],
    buckets: list[Bucket],
    base: int,
) -> int:
    dims = (1 if variable is None else size[variable], *(size[u] for u in kept))
    if prod(dims) > MOST_WORK or prod(dims[1:]) > MOST_ENTRIES:
        raise TooWideError(f"a bucket over {len(dims)} variables with {dims} options")
    axis = {u: a for a, u in enumerate(kept, 1)} | ({} if variable is None else {variable: 0})
    buckets.append(Bucket(tuple((s, tuple(axis[u] for u in scopes[s])) for s in inputs), dims, variable))
    return base + len(buckets) - 1


def _power(one: int, length: int, chain: int, size: int, buckets: list[Bucket], base: int) -> int:
    """The slot of F^length: squares, then the product of those that the binary digits of `length` name."""
    result, done, square, step = -1, 0, one, 1
    while True:
        if length & step:
            result = square if not done else _times(result, square, done, chain, size, buckets, base)
            done += step
        if done == length:
            return result
        square, step = _times(square, square, step, chain, size, buckets, base), 2 * step


def _times(left: int, right: int, half: int, chain: int, size: int, buckets: list[Bucket], base: int) -> int:
    inputs = (left, (1, 0)), (right, (0, 2))
    buckets.append(Bucket(inputs, (size,) * 3, None, chain, half))
    return base + len(buckets) - 1
