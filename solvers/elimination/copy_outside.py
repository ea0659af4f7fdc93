"""What is outside of the copies of chains, priced: a few small tables, by which a program of copies knows it.

Its variables are eliminated as long as tables stay small. Those left, beside the ends of chains, are what many tables
meet in, such as an embedding that an encoder, a decoder and the output share: with it apart, what each of them costs is
a table of its own, where one of all ends at once would have as many entries as these have combinations.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import inf, prod

import numpy as np

from ...formulation.network.network import Chain
from .circuit import Circuit
from .factors import Factor
from .kernels import Floats
from .order import arrange

_ENTRIES = 1 << 11  # of a table that elimination may leave, if those in its place have less together
_SWITCHES = 2  # outside of chains, whose modes are told apart


class Outside:
    """The variables kept, with their `size`, and the `scopes` of the tables over them, of factors `rest` at any price.

    Kept are the ends of chains, what these read, modes if there are few, and what is not eliminated.
    """

    def __init__(self, circuit: Circuit, rest: Sequence[Factor]) -> None:
        self.circuit = circuit
        chains = circuit.network.chains
        scopes = [f.narrow().scope for f in rest]
        met = {v for scope in scopes for v in scope}
        ends = {v for c in chains for v in (c.boundaries[0], c.boundaries[-1], *c.reads)}
        modes = {s.variable for s in circuit.network.switches} & met
        apart = ends | (modes if len(modes) <= _SWITCHES else set())
        size = {v: len(circuit.kept[circuit.domain[v]]) for v in met | apart}
        inner = _eliminated(scopes, size, met - apart)
        self.blocks = tuple(_components(scopes, inner))
        self.size = {v: size[v] for v in sorted(size.keys() - inner)}
        self.anchor = chains[0].boundaries[0]  # what depends on nothing that is kept is a table over it
        found = self._arranged(rest)
        self.scopes = [scope for scope, _ in self._places(found)]

    def tables(self, rest: Sequence[Factor], price: tuple[float, ...]) -> list[Floats]:
        """A table for each of the scopes: what the factors cost at a price."""
        found = self._arranged(rest)
        slots = found.forward(found.tables(1, price))
        return [self._table(slots[slot]) for _, slot in self._places(found)]

    def best(
        self, rest: Sequence[Factor], copies: Sequence[Floats], price: tuple[float, ...]
    ) -> tuple[float, tuple[int, ...]]:
        """The least total, of what is outside and of chains of such `copies`, and the assignment but for these."""
        found = self._with(rest, copies)
        slots = found.forward(found.tables(1, price))
        return float(slots[found.root]), found.decode(slots) if slots[found.root] < inf else ()

    def least_totals(
        self, rest: Sequence[Factor], copies: Sequence[Floats], price: tuple[float, ...]
    ) -> tuple[list[Floats], list[Floats]]:
        """The least total through each entry of the tables, and of those of the chains' `copies`."""
        found = self._with(rest, copies)
        through = found.backward(found.forward(found.tables(1, price)))
        outside = [self._table(through[slot]) for _, slot in self._places(found)]
        return outside[: len(self.scopes)], [through[one] for one in found.copies]

    def decode(self, rest: Sequence[Factor], price: tuple[float, ...], options: Mapping[int, int]) -> tuple[int, ...]:
        """An assignment whose variables outside of chains are the best ones at a price, given those that are kept."""
        only = [Factor((v,), np.where(np.arange(n) == options[v], 0.0, inf), None) for v, n in self.size.items()]
        found = self._arranged(rest, only)
        return found.decode(found.forward(found.tables(1, price)))

    def _with(self, rest: Sequence[Factor], copies: Sequence[Floats]) -> Circuit:
        chains = tuple(replace(chain, copies=((),) * len(chain)) for chain in self.circuit.network.chains)
        tables = [Factor(chain.around(0), table, None) for chain, table in zip(chains, copies, strict=True)]
        return self._arranged(rest, tables, chains)

    def _arranged(self, rest: Sequence[Factor], more: Sequence[Factor] = (), chains: tuple[Chain, ...] = ()) -> Circuit:
        network = replace(self.circuit.network, chains=chains, windows=())
        factors = [*(f.narrow() for f in rest), *more]
        return arrange(network, factors, self.circuit.domain, self.circuit.kept, blocks=self.blocks)

    def _places(self, found: Circuit) -> list[tuple[tuple[int, ...], int]]:
        """The scope and the slot of every table: those of blocks, then factors that are in none."""
        inner = frozenset[int]().union(*self.blocks)
        alone = [(f.scope, slot) for slot, f in enumerate(found.factors) if inner.isdisjoint(f.scope)]
        return [*((found.bucket(slot).kept or (self.anchor,), slot) for slot in found.blocks), *alone]

    def _table(self, table: Floats) -> Floats:
        return table if table.ndim else np.full(self.size[self.anchor], float(table))


def _eliminated(scopes: Iterable[tuple[int, ...]], size: Mapping[int, int], variables: set[int]) -> set[int]:
    """The variables that elimination takes, least tables first, if these are small or no larger than those before."""
    tables = dict(enumerate(map(frozenset, scopes)))
    near: dict[int, set[int]] = {v: set() for v in variables}
    for k, scope in tables.items():
        for v in scope & variables:
            near[v].add(k)

    def entries(scope: Iterable[int]) -> int:
        return prod(size[v] for v in scope)

    def left(v: int) -> frozenset[int]:
        return frozenset[int]().union(*(tables[k] for k in near[v])) - {v}

    cost = {v: entries(left(v)) for v in variables}
    waiting = set(variables)
    while waiting:
        v = min(waiting, key=lambda v: (cost[v], v))
        waiting.discard(v)
        if cost[v] > max(_ENTRIES, sum(entries(tables[k]) for k in near[v])):
            continue
        new, scope = max(tables) + 1, left(v)
        for k in near.pop(v):
            for u in tables.pop(k) & near.keys():
                near[u].discard(k)
        tables[new] = scope
        for u in scope & near.keys():
            near[u].add(new)
            cost[u] = entries(left(u))
            waiting.add(u)
    return variables - near.keys()


def _components(scopes: Iterable[tuple[int, ...]], variables: set[int]) -> list[frozenset[int]]:
    """The parts of these variables that no scope joins."""
    found: list[frozenset[int]] = []
    for scope in scopes:
        if own := frozenset(variables & {*scope}):
            met = [part for part in found if not part.isdisjoint(own)]
            found = [part for part in found if part.isdisjoint(own)] + [own.union(*met)]
    return found
