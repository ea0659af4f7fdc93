"""The order of elimination: a cost network compiled to a circuit of buckets, and a circuit restricted to a slack."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from heapq import heapify, heappop, heappush
from math import prod

import numpy as np

from ...formulation.network.network import Chain, Network, chain_edges
from .bucket import Bucket
from .circuit import Circuit
from .factors import Factor, dense, network_factors, reachable
from .kernels import Bools, Floats, Ints

MOST_ENTRIES = 1 << 26  # of one table: 512 MiB
MOST_WORK = 1 << 36  # additions of one bucket: some seconds
# Entries of all tables, 2 GiB, and as much again for what is best through them; additions.
MOST_IN_ALL = 1 << 28, 1 << 38
MOST_CAPACITIES = 8  # each has a price and a column in every list of labels


class TooWideError(Exception):
    """Elimination would need more memory or time than is sensible."""


def compile_network(network: Network) -> Circuit:
    """The circuit of a network; equal copies appear once.

    Raises TooWideError when a table or all of them together would be too large, or the capacities are too many.
    """
    if len(network.capacities) > MOST_CAPACITIES:
        raise TooWideError(f"{len(network.capacities)} capacities, of which each needs a price")
    network = reachable(dense(network))
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
    circuit = arrange(network, factors, tuple(domain), kept)
    if any(found > most for found, most in zip(circuit.in_all, MOST_IN_ALL, strict=True)):
        raise TooWideError("tables of {} entries in all, and {} additions".format(*circuit.in_all))
    return circuit


def restrict(
    circuit: Circuit, through: Sequence[Floats], most: float, blocks: tuple[frozenset[int], ...] | None = None
) -> Circuit | None:
    """The circuit without the options and pairs through which no solution totals at most `most`.

    None when nothing is left. With `blocks` these come first (see `arrange`), else half of a chain meets the other.
    """
    alive: dict[int, Bools] = {d: np.zeros(len(k), np.bool_) for d, k in circuit.kept.items()}
    marginals = [m.reshape(f.time.shape) for f, m in zip(circuit.factors, through[: len(circuit.factors)], strict=True)]
    told: set[int] = set()  # any of its factors knows which options of a variable are left, the smallest at least cost
    for f, marginal in sorted(zip(circuit.factors, marginals, strict=True), key=lambda pair: len(pair[0].scope)):
        for axis, v in enumerate(f.scope):
            if v not in told:
                told.add(v)
                others = tuple(a for a in range(len(f.scope)) if a != axis)
                alive[circuit.domain[v]] |= (marginal <= most).any(axis=others)
    for chain, one in zip(circuit.network.chains, circuit.copies, strict=True):
        d = circuit.domain[chain.boundaries[0]]  # an inner boundary has no factor of its own
        alive[d] |= (through[one] <= most).any(0) | (through[one] <= most).any(1)
    left = {d: np.flatnonzero(a) for d, a in alive.items()}
    if any(len(options) == 0 for options in left.values()):
        return None
    factors = []
    for f, marginal in zip(circuit.factors, marginals, strict=True):
        fine = replace(f, time=np.where(marginal <= most, f.time, np.inf))
        factors.append(fine.take([left[circuit.domain[v]] for v in f.scope]))
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
) -> Circuit:
    """Order the eliminations: the variables of blocks, the interiors of each chain's first copy, the powers, the rest.

    When `meeting`, the boundary in the middle of the longest chain is the last variable, between two powers.
    """
    size = tuple(len(kept[d]) for d in domain)
    reach = tuple((s.variable, frozenset(s.variables)) for s in network.switches)
    leaves = tuple(f.narrow() for f in factors)
    scopes, narrow = tuple(f.scope for f in factors), tuple(leaf.scope for leaf in leaves)
    buckets, copies, made = _arranged(network.chains, reach, scopes, narrow, size, meeting=meeting, blocks=blocks)
    parts = network, tuple(factors), leaves, buckets
    return Circuit(*parts, domain=domain, kept=kept, copies=copies, blocks=made)


@lru_cache(maxsize=4)  # one network is asked for its least memory, its least time, and both
def _arranged(
    chains: tuple[Chain, ...],
    switches: tuple[tuple[int, frozenset[int]], ...],
    scopes: tuple[tuple[int, ...], ...],
    leaves: tuple[tuple[int, ...], ...],
    size: tuple[int, ...],
    meeting: bool,
    blocks: tuple[frozenset[int], ...],
) -> tuple[tuple[Bucket, ...], tuple[int, ...], tuple[int, ...]]:
    """The buckets, the slot of one copy of every chain, and that of every block, for factors of given scopes.

    `leaves` are the scopes without what has no choice.
    """
    buckets = _Buckets([], size, len(scopes), dict(switches))
    copies: list[int] = []
    rest = dict(enumerate(leaves))
    longest = max(map(len, chains), default=0) if meeting else 0
    middle: set[int] = set()
    made: list[int] = []
    for block in blocks:
        mine = {i: rest.pop(i) for i, scope in enumerate(scopes) if not block.isdisjoint(scope)}
        mine = buckets.eliminate(mine, set(block))
        kept = tuple(sorted({v for scope in mine.values() for v in scope}))
        made.append(buckets.join(mine, kept))
        rest[made[-1]] = kept
    for c, chain in enumerate(chains):
        first, last = chain.boundaries[:2]
        inside = {i for i, scope in enumerate(scopes) if i in rest and _in_copy(scope, chain.copies[0], first, last)}
        mine = {i: rest.pop(i) for i in sorted(inside)}
        mine = buckets.eliminate(mine, set(chain.copies[0]))
        one = buckets.join(mine, (first, last))
        copies.append(one)
        half = len(chain) // 2 if len(chain) == longest and not middle else 0
        power = buckets.power(one, half or len(chain), c, size[first])
        meet = chain.boundaries[len(chain) - half]  # the last, when there is no second half
        if half:
            middle.add(meet)
            dims = (1, size[first], size[first])
            second = buckets.put(Bucket(((power, (1, 2)),), dims, None, c, start=len(chain) - half))
            rest[second] = (meet, chain.boundaries[-1])
            if len(chain) % 2:
                power = buckets.times(power, one, half, c, size[first])
        rest[power] = (chain.boundaries[0], meet)
    variables = {v for scope in rest.values() for v in scope}
    rest = buckets.eliminate(rest, variables - middle)
    rest = buckets.eliminate(rest, middle)
    buckets.join(rest, ())
    return tuple(buckets.made), tuple(copies), tuple(made)


def _in_copy(scope: tuple[int, ...], interior: tuple[int, ...], first: int, last: int) -> bool:
    return any(v in interior for v in scope) or (len(scope) == 2 and set(scope) == {first, last})


@dataclass(frozen=True, slots=True)
class _Buckets:
    """The buckets `made` so far, numbered after `base` factors, of variables of so many options each (`size`).

    `switches`: the variables that must be gone before a switch is, so that their tables are but M times as large.
    """

    made: list[Bucket]
    size: Sequence[int]
    base: int
    switches: Mapping[int, frozenset[int]]

    def eliminate(self, scopes: dict[int, tuple[int, ...]], variables: set[int]) -> dict[int, tuple[int, ...]]:
        """A bucket per variable, the one of least work first; returns the slots that remain."""
        near: dict[int, set[int]] = {v: set() for v in variables}  # the slots of each variable
        around: dict[int, set[int]] = {v: {v} for v in variables}  # what has a slot with it
        for slot, scope in scopes.items():
            for v in scope:
                if v in near:
                    near[v].add(slot)
                    around[v].update(scope)
        scopes, size = dict(scopes), self.size.__getitem__

        def work(v: int) -> tuple[bool, int, int]:
            waits = v in self.switches and not self.switches[v].isdisjoint(around[v] & near.keys())
            # options may be few: then leaves go first
            return waits, prod(map(size, around[v])), len(around[v])

        cost = {v: work(v) for v in variables}
        queue = [(cost[v], v) for v in variables]
        heapify(queue)
        while queue:
            known, v = heappop(queue)
            if cost.get(v) != known:  # eliminated already, or its work has changed since
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
        if prod(dims) > MOST_WORK or prod(dims[1:]) > MOST_ENTRIES:
            raise TooWideError(f"a bucket over {len(dims)} variables with {dims} options")
        axis = {u: a for a, u in enumerate(kept, 1)} | ({} if variable is None else {variable: 0})
        modes = prod(self.size[u] for u in axis if u in self.switches)
        parts = tuple((s, tuple(axis[u] for u in scopes[s])) for s in inputs)
        return self.put(Bucket(parts, dims, variable, modes=modes, kept=kept))

    def power(self, one: int, length: int, chain: int, size: int) -> int:
        """The slot of F^length: squares, then the product of those that the binary digits of `length` name."""
        result, done, square, step = -1, 0, one, 1
        while True:
            if length & step:
                result = square if not done else self.times(result, square, done, chain, size)
                done += step
            if done == length:
                return result
            square, step = self.times(square, square, step, chain, size), 2 * step

    def times(self, left: int, right: int, half: int, chain: int, size: int) -> int:
        return self.put(Bucket(((left, (1, 0)), (right, (0, 2))), (size,) * 3, None, chain, half))

    def put(self, bucket: Bucket) -> int:
        self.made.append(bucket)
        return self.base + len(self.made) - 1
