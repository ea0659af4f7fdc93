"""Elimination orders: compile a cost network to a circuit of buckets, and restrict a circuit to a slack."""

from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from functools import lru_cache
from heapq import heapify, heappop, heappush
from math import inf, prod

import numpy as np

from ...formulation.network.network import Chain, Network, chain_edges
from .bucket import Bucket
from .circuit import Circuit
from .factors import Factor, dense, network_factors, reachable
from .kernels import Bools, Ints
from .tables import Tables

MAX_ENTRIES = 1 << 26  # of one table: 512 MiB
MAX_WORK = 1 << 36  # additions of one bucket: some seconds
MAX_SIZE = 1 << 28, 1 << 38  # entries of all tables (2 GiB, and as much for the best totals through them); additions
MAX_CAPACITIES = 8  # each has a price and a column in every label list


class TooWideError(Exception):
    """Elimination would need too much memory or time."""


def compile_network(network: Network) -> Circuit:
    """The circuit of a network; equal copies appear once.

    Raises TooWideError if a table, or all of them together, would be too large, or the capacities too many.
    """
    outline, variables, edges = _outline(network)
    factors = tuple(network_factors(outline.network, variables, edges))
    return replace(outline, factors=factors, leaves=tuple(f.narrow() for f in factors))


def is_narrow(network: Network) -> bool:
    """True if elimination can take a network, as the shapes of its tables tell."""
    try:
        _outline(network)
    except TooWideError:
        return False
    return True


def most_work(scopes: Sequence[tuple[int, ...]], size: Sequence[int]) -> float:
    """Additions of the largest bucket of an elimination of all variables in some scopes; inf if it is too wide."""
    builder = _Builder([], size, len(scopes), {})
    try:
        builder.eliminate(dict(enumerate(scopes)), {v for scope in scopes for v in scope})
    except TooWideError:
        return inf
    return max(prod(bucket.dims) for bucket in builder.buckets)


def _outline(network: Network) -> tuple[Circuit, list[int], list[int]]:
    """The circuit of a network without the numbers in its tables, and the variables and edges that have factors."""
    if len(network.capacities) > MAX_CAPACITIES:
        raise TooWideError(f"{len(network.capacities)} capacities, each of which needs a price")
    network = reachable(dense(network))
    copy_edges, rest_edges = chain_edges(network)
    parent = list(range(len(network.variables)))

    def find(v: int) -> int:
        while parent[v] != v:
            parent[v] = v = parent[parent[v]]
        return v

    inner: set[int] = set()  # variables represented by another, or without tables
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
    edges = [*(k for chain in copy_edges for k in chain[0]), *rest_edges]
    kept = {d: np.arange(len(network.variables[d].cost)) for d in sorted(set(domain))}
    circuit = arrange(network, network_factors(network, variables, edges, outline=True), tuple(domain), kept)
    if any(found > limit for found, limit in zip(circuit.size, MAX_SIZE, strict=True)):
        raise TooWideError("tables of {} entries in all, and {} additions".format(*circuit.size))
    return circuit, variables, edges


def restrict(
    circuit: Circuit, through: Tables, max_total: float, blocks: tuple[frozenset[int], ...] | None = None
) -> Circuit | None:
    """The circuit without options and pairs that occur in no solution of total up to `max_total`; None if none is left.

    With `blocks` these are eliminated first (see `arrange`), else the halves of the longest chain meet. Equal factors
    of which the same is left share tables.
    """
    alive: dict[int, Bools] = {d: np.zeros(len(k), np.bool_) for d, k in circuit.kept.items()}
    of_kind: dict[tuple[int, float], Bools] = {}
    keys = [*zip(through.kinds, through.offsets, strict=True)][: len(circuit.factors)]
    for slot, key in enumerate(keys):
        if key not in of_kind:
            of_kind[key] = through[slot] <= max_total
    within = [of_kind[key].reshape(f.time.shape) for f, key in zip(circuit.factors, keys, strict=True)]
    seen: set[int] = set()  # any factor of a variable shows its options left; the smallest is cheapest
    for f, some in sorted(zip(circuit.factors, within, strict=True), key=lambda pair: len(pair[0].scope)):
        for axis, v in enumerate(f.scope):
            if v not in seen:
                seen.add(v)
                others = tuple(a for a in range(len(f.scope)) if a != axis)
                alive[circuit.domain[v]] |= some.any(axis=others)
    for chain, one in zip(circuit.network.chains, circuit.copies, strict=True):
        d = circuit.domain[chain.boundaries[0]]  # an inner boundary has no factor of its own
        left_of = through[one] <= max_total
        for end in (0, 1):
            alive[d] |= left_of.any(axis=tuple(a for a in range(left_of.ndim) if a != end))
    equal: dict[bytes, Ints] = {}
    left = {d: equal.setdefault(a.tobytes(), np.flatnonzero(a)) for d, a in alive.items()}
    if any(len(options) == 0 for options in left.values()):
        return None
    known: dict[Hashable, Factor] = {}

    def restricted(f: Factor, some: Bools, key: tuple[int, float]) -> Factor:
        options = [left[circuit.domain[v]] for v in f.scope]
        tables = f.time, f.use, f.extra, *(table for _, table in f.streams), *options
        whole = key, *map(id, tables)
        if whole not in known:
            taken = f.take(options)
            known[whole] = replace(taken, time=np.where(some[np.ix_(*options)], taken.time, np.inf))
        streams = zip((w for w, _ in f.streams), (table for _, table in known[whole].streams), strict=True)
        return replace(known[whole], scope=f.scope, streams=tuple(streams))

    factors = [restricted(*parts) for parts in zip(circuit.factors, within, keys, strict=True)]
    kept = {d: k[left[d]] for d, k in circuit.kept.items()}
    if blocks is not None:
        return arrange(circuit.network, factors, circuit.domain, kept, blocks=blocks)
    try:
        return arrange(circuit.network, factors, circuit.domain, kept, meeting=True)
    except TooWideError:
        return arrange(circuit.network, factors, circuit.domain, kept)


def arrange(
    network: Network,
    factors: Sequence[Factor],
    domain: tuple[int, ...],
    kept: Mapping[int, Ints],
    meeting: bool = False,
    blocks: tuple[frozenset[int], ...] = (),
    late: frozenset[int] = frozenset(),
) -> Circuit:
    """Order the eliminations: variables of blocks, interiors of each chain's first copy, powers, the rest.

    Variables that are `late` come after others of equal work.

    If `meeting`, the boundary in the middle of the longest chain comes last, between two powers. What switches outside
    of chains decide is eliminated before the rest if that is less work: else the modes of neighbouring layers meet.
    """
    size = tuple(len(kept[d]) for d in domain)
    reach = tuple((s.variable, frozenset(s.variables)) for s in network.switches)
    leaves = tuple(f.narrow() for f in factors)
    scopes = tuple(f.scope for f in factors)
    chained = {v for chain in network.chains for copy in chain.copies for v in copy}
    several = not blocks and sum(z not in chained for z, _ in reach) > 1
    found: Circuit | None = None
    for apart in (False, True)[: 1 + several]:
        try:
            buckets, copies, block_slots = _arranged(
                network.chains, reach, scopes, size, meeting=meeting, blocks=blocks, apart=apart, late=late
            )
        except TooWideError:
            if found is None and apart == several:
                raise
            continue
        parts = network, tuple(factors), leaves, buckets
        circuit = Circuit(*parts, domain=domain, kept=kept, copies=copies, blocks=block_slots)
        if found is None or circuit.size[1] < found.size[1]:
            found = circuit
    assert found is not None
    return found


@lru_cache(maxsize=8)  # the same network is often compiled several times
def _arranged(
    chains: tuple[Chain, ...],
    switches: tuple[tuple[int, frozenset[int]], ...],
    scopes: tuple[tuple[int, ...], ...],
    size: tuple[int, ...],
    meeting: bool,
    blocks: tuple[frozenset[int], ...],
    apart: bool,
    late: frozenset[int],
) -> tuple[tuple[Bucket, ...], tuple[int, ...], tuple[int, ...]]:
    """The buckets, the slot of one copy of every chain, and that of every block, for factors of these scopes.

    Variables of one option are left out. `apart`: outside of chains, what each switch decides is eliminated before the
    rest.
    """
    builder = _Builder([], size, len(scopes), dict(switches), late)
    copies: list[int] = []
    rest = {i: tuple(v for v in scope if size[v] > 1) or scope[:1] for i, scope in enumerate(scopes)}
    longest = max(map(len, chains), default=0) if meeting else 0
    middle: set[int] = set()
    block_slots: list[int] = []
    for block in blocks:
        mine = {i: rest.pop(i) for i, scope in enumerate(scopes) if not block.isdisjoint(scope)}
        mine = builder.eliminate(mine, set(block))
        kept = tuple(sorted({v for scope in mine.values() for v in scope}))
        block_slots.append(builder.join(mine, kept))
        rest[block_slots[-1]] = kept
    for c, chain in enumerate(chains):
        around = chain.around(0)
        inside = {i for i, scope in enumerate(scopes) if i in rest and _in_copy(scope, chain.copies[0], around)}
        mine = {i: rest.pop(i) for i in sorted(inside)}
        mine = builder.eliminate(mine, set(chain.copies[0]))
        one = builder.join(mine, around)
        copies.append(one)
        half = len(chain) // 2 if len(chain) == longest and not middle else 0
        sizes = [size[v] for v in around]
        power = builder.power(one, half or len(chain), c, sizes)
        meet = chain.boundaries[len(chain) - half]  # the last, when there is no second half
        if half:
            middle.add(meet)
            axes = tuple(range(1, 1 + len(sizes)))
            second = builder.put(Bucket(((power, axes),), (1, *sizes), None, c, start=len(chain) - half))
            rest[second] = (meet, chain.boundaries[-1], *chain.reads)
            if len(chain) % 2:
                power = builder.times(power, one, half, c, sizes)
        rest[power] = (chain.boundaries[0], meet, *chain.reads)
    for interior in _decided(switches, rest.values()) if apart else ():
        mine = {i: rest.pop(i) for i, scope in sorted(rest.items()) if not interior.isdisjoint(scope)}
        rest |= builder.eliminate(mine, interior)
    variables = {v for scope in rest.values() for v in scope}
    rest = builder.eliminate(rest, variables - middle)
    rest = builder.eliminate(rest, middle)
    builder.join(rest, ())
    return tuple(builder.buckets), tuple(copies), tuple(block_slots)


def _decided(
    switches: tuple[tuple[int, frozenset[int]], ...], scopes: Collection[tuple[int, ...]]
) -> Iterator[set[int]]:
    """For every switch in some scopes itself, what it decides, and what is next to nothing else."""
    near: dict[int, set[int]] = {}
    for scope in scopes:
        for v in scope:
            near.setdefault(v, set()).update(scope)
    taken = set[int]()
    for z, reach in switches:
        if z not in near:
            continue
        block = ({z, *reach} & near.keys()) - taken
        around = set[int]().union(*(near[v] for v in block)) - block - taken
        while private := {v for v in around if near[v] <= block | {v}}:
            block |= private
            around -= private
        taken |= block
        yield block


def _in_copy(scope: tuple[int, ...], interior: tuple[int, ...], around: tuple[int, ...]) -> bool:
    """True for a factor of a variable of the copy, or of both of its boundaries."""
    return any(v in interior for v in scope) or {*around[:2]} <= {*scope} <= {*around}


def _check_width(dims: tuple[int, ...]) -> None:
    """TooWideError for a bucket of too much work, or too large a table."""
    if prod(dims) > MAX_WORK or prod(dims[1:]) > MAX_ENTRIES:
        raise TooWideError(f"a bucket over {len(dims)} variables with {dims} options")


@dataclass(frozen=True, slots=True)
class _Builder:
    """The buckets so far, numbered after `base` factors, over variables of `size` options.

    `switches`: the variables that are eliminated before each switch, so that its M modes widen tables only M times.
    `late`: variables that are eliminated after others of equal work.
    """

    buckets: list[Bucket]
    size: Sequence[int]
    base: int
    switches: Mapping[int, frozenset[int]]
    late: AbstractSet[int] = frozenset()

    def eliminate(self, scopes: dict[int, tuple[int, ...]], variables: set[int]) -> dict[int, tuple[int, ...]]:
        """Add a bucket per variable, that of least work first; returns the remaining slots and their scopes."""
        near: dict[int, set[int]] = {v: set() for v in variables}  # the slots of each variable
        around: dict[int, set[int]] = {v: {v} for v in variables}  # the variables that share a slot with it
        for slot, scope in scopes.items():
            for v in scope:
                if v in near:
                    near[v].add(slot)
                    around[v].update(scope)
        scopes, size = dict(scopes), self.size.__getitem__

        def work(v: int) -> tuple[bool, int, int, bool]:
            waits = v in self.switches and not self.switches[v].isdisjoint(around[v] & near.keys())
            # fewer neighbours first if the work is equal
            return waits, prod(map(size, around[v])), len(around[v]), v in self.late

        cost = {v: work(v) for v in variables}
        queue = [(cost[v], v) for v in variables]
        heapify(queue)
        while queue:
            known, v = heappop(queue)
            if cost.get(v) != known:  # eliminated, or its work has changed
                continue
            del cost[v]
            inputs = sorted(near.pop(v))
            kept = tuple(sorted(around.pop(v) - {v}))
            slot = self.bucket(inputs, scopes, v, kept)
            for s in inputs:
                for u in scopes.pop(s):
                    if u in near:
                        near[u].discard(s)
            scopes[slot] = kept
            for u in kept:
                if u in near:
                    near[u].add(slot)
                    around[u].update(kept)
                    around[u].discard(v)
                    cost[u] = work(u)
                    heappush(queue, (cost[u], u))
        return scopes

    def join(self, scopes: dict[int, tuple[int, ...]], kept: tuple[int, ...]) -> int:
        return self.bucket(sorted(scopes), scopes, None, kept)

    def bucket(
        self, inputs: list[int], scopes: Mapping[int, tuple[int, ...]], variable: int | None, kept: tuple[int, ...]
    ) -> int:
        dims = (1 if variable is None else self.size[variable], *(self.size[u] for u in kept))
        _check_width(dims)
        axis = {u: a for a, u in enumerate(kept, 1)} | ({} if variable is None else {variable: 0})
        modes = prod(self.size[u] for u in axis if u in self.switches)
        parts = tuple((s, tuple(axis[u] for u in scopes[s])) for s in inputs)
        return self.put(Bucket(parts, dims, variable, modes=modes, kept=kept))

    def power(self, one: int, length: int, chain: int, sizes: list[int]) -> int:
        """The slot of F^length, by repeated squaring, for what is around a copy of these `sizes`."""
        result, done, square, step = -1, 0, one, 1
        while True:
            if length & step:
                result = square if not done else self.times(result, square, done, chain, sizes)
                done += step
            if done == length:
                return result
            square, step = self.times(square, square, step, chain, sizes), 2 * step

    def times(self, left: int, right: int, half: int, chain: int, sizes: list[int]) -> int:
        """The product over the boundary in the middle, for every option of what both read."""
        dims, reads = (sizes[0], *sizes), tuple(range(3, 1 + len(sizes)))
        _check_width(dims)
        return self.put(Bucket(((left, (1, 0, *reads)), (right, (0, 2, *reads))), dims, None, chain, half))

    def put(self, bucket: Bucket) -> int:
        self.buckets.append(bucket)
        return self.base + len(self.buckets) - 1
