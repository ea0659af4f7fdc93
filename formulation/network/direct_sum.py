"""The direct sum of networks: one network that chooses among several with the same variables and edges.

With c^p the tables of network p ∈ P, an option of the sum's variable v is a pair (p, i), i ∈ D_v^p:

    x_v ∈ ⊔_p D_v^p,   q ∈ P
    min  constant^q + Σ_v c_v^p(i) + Σ_(u,v) c_uv^p(i, j)        where x_v = (p, i); x_u = (p, i), x_v = (p, j)
    s.t. an edge joins options of one network only;  q agrees with one variable of every connected part

So every assignment is one of network q, at the same cost and the same use of capacities. In a program with a Boolean
per option and pair, x[v,p,i] and y[e,p,i,j], the equations of edges hold for every network apart: its linear relaxation
is the best of their relaxations, and no weaker. Equal copies stay equal, so chains and switches are kept; the mode of a
switch is shared by all networks.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from .network import INFINITE, Edge, Network, Switch, SwitchTables, Table, Variable, Window

Starts = tuple[int, ...]
"""The first option of every network in a variable of the sum, and the number of its options."""


@dataclass(frozen=True, slots=True, eq=False)
class DirectSum:
    """The sum `network`, whose variable `choice` takes option q for network q.

    `starts`: those of every variable; None for one that all networks share.
    """

    network: Network
    choice: int
    starts: tuple[Starts | None, ...]

    def chosen(self, assignment: Sequence[int]) -> tuple[int, tuple[int, ...]]:
        """The number of the chosen network, and its assignment."""
        q = assignment[self.choice]
        taken = zip(assignment, self.starts, strict=False)
        return q, tuple(x if start is None else x - start[q] for x, start in taken)


def direct_sum(networks: Sequence[Network], name: str = "choice") -> DirectSum:
    """The sum of networks that differ in options and tables only; `name` is that of the variable `choice`.

    ValueError: other variables, edges or switches, or variables with rows of their own.
    """
    forms = {
        (
            tuple((v.name, v.rows is None) for v in n.variables),
            tuple((e.u, e.v) for e in n.edges),
            tuple((s.variable, tuple(s.variables), tuple(s.edges)) for s in n.switches),
            tuple((w.streams, tuple(w.variables), tuple(w.edges)) for w in n.windows),
            len(n.capacities),
        )
        for n in networks
    }
    if len(forms) != 1 or any(v.rows is not None for v in networks[0].variables):
        raise ValueError(f"{len(networks)} networks of {len(forms)} forms, or with rows, have no direct sum")
    made = _Sum(networks)
    own = tuple(None if v in made.shared else starts for v, starts in enumerate(made.starts))
    return DirectSum(made.network(name), len(own), own)


class _Sum:
    """The parts of the joint network; tables made of the same tables are one object, so that equal copies stay so."""

    def __init__(self, networks: Sequence[Network]) -> None:
        self.networks, self.first = networks, networks[0]
        self.shared = {s.variable for s in self.first.switches}
        sizes = [[len(n.variables[v].cost) for n in networks] for v in range(len(self.first.variables))]
        self.starts = [(0, *accumulate(own)) for own in sizes]
        self.capacities = tuple(max(n.capacities[r] for n in networks) for r in range(len(self.first.capacities)))
        self.known: dict[tuple[object, ...], tuple[Table | None, Sequence[Table | None]]] = {}
        self.chains = [c for c in self.first.chains if all(c in n.chains for n in networks)]

    def network(self, name: str) -> Network:
        """All parts together."""
        first, networks = self.first, self.networks
        choice = len(first.variables)
        edges = [self._edge(k) for k in range(len(first.edges))]
        variables = [self._variable(v) for v in range(len(first.variables))]
        constant = min(n.constant for n in networks)
        own = np.array([n.constant - constant for n in networks], np.int64)
        use = np.array([np.subtract(self.capacities, n.capacities) for n in networks], np.int64)
        variables.append(Variable(name, own, use.reshape(len(networks), len(self.capacities))))
        edges += [self._agreement(v) for v in self._representatives()]
        for v in sorted(self.shared):
            if any(not np.array_equal(n.variables[v].cost, first.variables[v].cost) for n in networks):
                costs = np.stack([n.variables[v].cost for n in networks])
                edges.append(Edge(choice, v, costs))
                variables[v] = Variable(variables[v].name, np.zeros_like(costs[0]), variables[v].use)
                self.chains = []
        return Network(
            tuple(variables),
            tuple(edges),
            self.capacities,
            constant,
            chains=tuple(self.chains),
            switches=tuple(self._switches()),
            windows=tuple(self._windows()),
        )

    def _variable(self, v: int) -> Variable:
        own = [n.variables[v] for n in self.networks]
        if v in self.shared:
            assert all(np.array_equal(x.use, own[0].use) for x in own)
            return own[0]
        cost, use = (self._joined([getattr(x, name) for x in own], (v,), name) for name in ("cost", "use"))
        assert cost is not None and use is not None
        return Variable(own[0].name, cost, use)

    def _edge(self, k: int) -> Edge:
        own = [n.edges[k] for n in self.networks]
        ends = own[0].u, own[0].v
        cost, use = (self._joined([getattr(e, name) for e in own], ends, name) for name in ("cost", "use"))
        assert cost is not None
        return Edge(*ends, cost, use)

    def _switches(self) -> Iterator[Switch]:
        for number, switch in enumerate(self.first.switches):
            own = [n.switches[number] for n in self.networks]
            edges = {k: (self.first.edges[k].u, self.first.edges[k].v) for k in switch.edges}
            yield Switch(
                switch.variable,
                {v: self._decided([s.variables[v] for s in own], (v,)) for v in switch.variables},
                {k: self._decided([s.edges[k] for s in own], ends) for k, ends in edges.items()},
            )

    def _windows(self) -> Iterator[Window]:
        decided = {("variable", v) for s in self.first.switches for v in s.variables}
        decided |= {("edge", k) for s in self.first.switches for k in s.edges}

        def joined(tables: Sequence[Table], scope: tuple[int, ...], part: tuple[str, int]) -> Table:
            found = self._joined(tables, scope, "streams", modes=1 + (part in decided))
            assert found is not None
            return found

        for number, window in enumerate(self.first.windows):
            own = [n.windows[number] for n in self.networks]
            ends = {k: (self.first.edges[k].u, self.first.edges[k].v) for k in window.edges}
            yield Window(
                {v: joined([w.variables[v] for w in own], (v,), ("variable", v)) for v in window.variables},
                {k: joined([w.edges[k] for w in own], at, ("edge", k)) for k, at in ends.items()},
            )

    def _decided(self, tables: Sequence[SwitchTables], scope: tuple[int, ...]) -> SwitchTables:
        cost, use, extra = (
            self._joined([t[i] for t in tables], scope, name, modes=1)
            for i, name in enumerate(("cost", "use", "extra"))
        )
        assert cost is not None
        return cost, use, extra

    def _joined(
        self, tables: Sequence[Table | None], scope: tuple[int, ...], kind: str, modes: int = 0
    ) -> Table | None:
        """The tables over one scope as blocks of one; outside of the blocks costs are infinite and uses 0.

        The first `modes` dims, and those of shared variables, are common to all blocks.
        """
        if all(t is None for t in tables):
            return None
        starts = tuple(None if v in self.shared else self.starts[v] for v in scope)
        key = tuple(map(id, tables)), starts, kind, modes
        if key not in self.known:
            some = next(t for t in tables if t is not None)
            shape = list(some.shape)
            for dim, start in enumerate(starts, modes):
                shape[dim] = shape[dim] if start is None else start[-1]
            apart = sum(start is not None for start in starts) > 1
            whole = np.full(shape, INFINITE if kind == "cost" and apart else 0, np.int64)
            for p, table in enumerate(tables):
                block = [slice(None) if s is None else slice(s[p], s[p + 1]) for s in starts]
                if table is not None:
                    whole[(*[slice(None)] * modes, *block)] = table
            self.known[key] = whole, tables  # whose ids stay theirs
        return self.known[key][0]

    def _agreement(self, v: int) -> Edge:
        """Between the choice and a variable."""
        cost = np.full((len(self.networks), self.starts[v][-1]), INFINITE, np.int64)
        for p in range(len(self.networks)):
            cost[p, self.starts[v][p] : self.starts[v][p + 1]] = 0
        return Edge(len(self.first.variables), v, cost)

    def _representatives(self) -> list[int]:
        """One variable of every part that edges connect, not inside of a chain unless the whole part is."""
        inside = {v for c in self.chains for v in (*c.boundaries[1:-1], *(v for copy in c.copies for v in copy))}
        parts = _components(len(self.first.variables), self.first.edges, self.shared)
        found = [min(part, key=lambda v: (v in inside, v)) for part in parts]
        if inside & {*found}:
            self.chains = []
        return found


def _components(count: int, edges: Iterable[Edge], without: set[int]) -> list[list[int]]:
    """The connected parts of the variables, `without` some."""
    part = list(range(count))

    def root(v: int) -> int:
        while part[v] != v:
            part[v] = v = part[part[v]]
        return v

    for e in edges:
        if not {e.u, e.v} & without:
            part[root(e.u)] = root(e.v)
    found: dict[int, list[int]] = {}
    for v in range(count):
        if v not in without:
            found.setdefault(root(v), []).append(v)
    return list(found.values())
