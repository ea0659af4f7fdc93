"""Pairs of variables as one variable, so that layers with two tensors between them are copies of a chain, too.

Between two layers of AlphaFold's evoformer lead two tensors, so that no variable alone separates them. The network in
which the two are one variable, with an option for each pair of theirs, has the same assignments at the same cost.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from .chains import Position, find_chains
from .network import INFINITE, Edge, Network, Switch, SwitchTables, Table, Variable, Window

MOST_OPTIONS = 256
"""Most options of such a variable: the min-plus power of a chain takes its cube."""
LEAST_COPIES = 3


@dataclass(frozen=True)
class Joined:
    """A network in which the last variable of each pair stands for both; the first one has a single option."""

    network: Network
    pairs: tuple[tuple[int, int], ...]
    options: tuple[int, ...]

    def apart(self, assignment: Sequence[int]) -> tuple[int, ...]:
        """The assignment of the network as it was."""
        found = [*assignment]
        for (first, last), options in zip(self.pairs, self.options, strict=True):
            found[first], found[last] = divmod(assignment[last], options)
        return tuple(found)


def joined(network: Network) -> Joined | None:
    """The network with its pairs joined; None if it has chains as it is, or none of several copies afterwards."""
    pairs = tuple(
        (u, v) for u, v in network.pairs
        if len(network.variables[u].cost) * len(network.variables[v].cost) <= MOST_OPTIONS
    )  # fmt: skip
    if network.chains or len(pairs) <= LEAST_COPIES or not _free(network, {v for pair in pairs for v in pair}):
        return None
    made, gone, last = _Joining(network, pairs).network(), {u for u, _ in pairs}, {v for _, v in pairs}
    line = (v for v in network.line if v not in gone)
    place = {v: Position(n, cut=v in last) for n, v in enumerate(line)}
    apart = Position(0, shared=True)
    chains = find_chains(made, [place.get(v, apart) for v in range(len(made.variables))])
    if max(map(len, chains), default=0) < LEAST_COPIES:
        return None
    options = tuple(len(network.variables[v].cost) for _, v in pairs)
    return Joined(replace(made, chains=chains), pairs, options)


def _free(network: Network, variables: set[int]) -> bool:
    """True if these variables can be joined: switches and windows have only their edges, and no edge joins a pair."""
    decided = (part.variables.keys() for parts in (network.switches, network.windows) for part in parts)
    modes = {switch.variable for switch in network.switches}
    whole = all(network.variables[v].rows is None for v in variables) and variables.isdisjoint(modes)
    ends = (e for e in network.edges if e.u in variables and e.v in variables)
    partner = {v: u for u, v in network.pairs} | dict(network.pairs)
    return whole and all(map(variables.isdisjoint, decided)) and all(partner.get(e.u) != e.v for e in ends)


class _Joining:
    """Makes tables over the options of both variables of a pair from those over one; equal ones once."""

    def __init__(self, network: Network, pairs: Sequence[tuple[int, int]]) -> None:
        self.before, self.pairs = network, pairs
        count = [len(v.cost) for v in network.variables]
        self.other = {u: (v, count[v]) for u, v in pairs} | {v: (v, count[u]) for u, v in pairs}
        self.first = {u for u, _ in pairs}
        self.known: dict[tuple[object, ...], Table] = {}

    def network(self) -> Network:
        network = self.before
        variables = list(network.variables)
        for u, v in self.pairs:
            variables[u], variables[v] = self._both(network.variables[u], network.variables[v])
        at = [self.other.get(v, (v, 1))[0] for v in range(len(variables))]
        edges = tuple(
            Edge(at[e.u], at[e.v], self._wide(e.cost, e, 0), None if e.use is None else self._wide(e.use, e, 0))
            for e in network.edges
        )
        return replace(
            network,
            variables=tuple(variables),
            edges=edges,
            switches=tuple(Switch(s.variable, s.variables, dict(self._decided(s.edges))) for s in network.switches),
            windows=tuple(Window(w.variables, dict(self._streams(w.edges))) for w in network.windows),
            pairs=(),
            line=(),
        )

    def _both(self, first: Variable, last: Variable) -> tuple[Variable, Variable]:
        """What is left of the first variable of a pair, and both as one."""
        zero = np.zeros(1, np.int64), np.zeros((1, first.use.shape[1]), np.int64)
        cost = np.minimum(first.cost[:, None] + last.cost, INFINITE).ravel()
        use = (first.use[:, None] + last.use).reshape(len(cost), -1)
        return Variable(first.name, *zero), Variable(f"{first.name}, {last.name}", cost, use)

    def _decided(self, tables: Mapping[int, SwitchTables]) -> Iterator[tuple[int, SwitchTables]]:
        for k, (cost, use, extra) in tables.items():
            e = self.before.edges[k]
            more, back = (None if table is None else self._wide(table, e, 1) for table in (use, extra))
            yield k, (self._wide(cost, e, 1), more, back)

    def _streams(self, tables: Mapping[int, Table]) -> Iterator[tuple[int, Table]]:
        for k, table in tables.items():
            yield k, self._wide(table, self.before.edges[k], table.ndim - 2)

    def _wide(self, table: Table, edge: Edge, start: int) -> Table:
        """A table of an edge, whose ends are at the dims from `start` on."""
        for axis, v in enumerate((edge.u, edge.v), start):
            if v in self.other and self.other[v][1] > 1:
                table = self._repeated(table, axis, self.other[v][1], each=v in self.first)
        return table

    def _repeated(self, table: Table, axis: int, times: int, each: bool) -> Table:
        """A table so many times along a dim, each entry at once or all after one another."""
        key = id(table), axis, times, each
        if key not in self.known:
            made = np.repeat(table, times, axis) if each else np.concatenate([table] * times, axis)
            self.known[key] = made
        return self.known[key]
