"""A network without switches: variables that a switch decides take its mode into their own options.

Option m · n + i of a variable of n options under a switch is option i in mode m; modes that differ exclude each other.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .network import INFINITE, Edge, Network, Switch, Table, Variable, Window


@dataclass(frozen=True, slots=True, eq=False)
class WithoutSwitches:
    """The network `of` as one without switches and chains."""

    of: Network
    network: Network

    def lift(self, assignment: Sequence[int]) -> tuple[int, ...]:
        """The assignment of the network with switches."""
        return tuple(x % len(v.cost) for x, v in zip(assignment, self.of.variables, strict=True))


def without_switches(network: Network) -> WithoutSwitches:
    """The equal network without switches; raises ValueError if one has transient use."""
    if network.capacities and any(s.has_extra for s in network.switches):
        raise ValueError("transient use of switches cannot be expressed without switches")
    if not network.switches:
        return WithoutSwitches(network, network)
    products = _Products(network)
    of_edge = {k: s for s in network.switches for k in s.edges}
    edges = [products.edge(k, e, of_edge.get(k)) for k, e in enumerate(network.edges)]
    variables = [products.variable(v) for v in range(len(network.variables))]
    edges += [products.agreement(v, s) for v, switches in products.switches.items() for s in switches]
    windows = tuple(
        Window(
            {v: products.streams((v,), table, products.own.get(v)) for v, table in window.variables.items()},
            {
                k: products.streams((network.edges[k].u, network.edges[k].v), table, of_edge.get(k))
                for k, table in window.edges.items()
            },
        )
        for window in network.windows
    )
    plain = Network(tuple(variables), tuple(edges), network.capacities, network.constant, windows=windows)
    return WithoutSwitches(network, plain)


class _Products:
    """The switches whose modes each variable takes into its options; its own change fastest."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.switches: dict[int, list[Switch]] = {v: [s] for s in network.switches for v in s.variables}
        self.own = {v: s for s in network.switches for v in s.variables}
        self.known: dict[object, tuple[Table, Table | None]] = {}
        for s in network.switches:
            for k in s.edges:
                ends = network.edges[k].u, network.edges[k].v
                if not any(s in self.switches.get(v, ()) for v in ends):
                    least = min(ends, key=lambda v: self._dims(v))
                    self.switches.setdefault(least, []).append(s)

    def _dims(self, v: int) -> tuple[int, ...]:
        modes = (len(self.network.variables[s.variable].cost) for s in self.switches.get(v, ()))
        return (*modes, len(self.network.variables[v].cost))

    def _options(self, v: int) -> tuple[dict[int, Table], Table]:
        """For every option the mode of each switch (by its variable), and what it is of its own."""
        *modes, own = np.indices(self._dims(v)).reshape(len(self._dims(v)), -1)
        return {s.variable: m for s, m in zip(self.switches.get(v, ()), modes, strict=True)}, own

    def variable(self, v: int) -> Variable:
        """A variable with its products."""
        variable = self.network.variables[v]
        if v not in self.switches:
            return variable
        modes, own = self._options(v)
        if v not in self.own:
            return Variable(variable.name, variable.cost[own], variable.use[own], variable.rows)
        cost, use, _ = self.own[v].variables[v]
        key = id(cost), id(use), self._dims(v)
        if key not in self.known:
            at = modes[self.own[v].variable], own
            used = np.zeros((len(own), len(self.network.capacities)), np.int64) if use is None else use[at]
            self.known[key] = cost[at], used
        found, used_ = self.known[key]
        assert used_ is not None
        return Variable(variable.name, found, used_)

    def edge(self, k: int, edge: Edge, switch: Switch | None) -> Edge:
        """An edge over the products of its ends."""
        if not (edge.u in self.switches or edge.v in self.switches):
            return edge
        cost, use = (edge.cost, edge.use) if switch is None else switch.edges[k][:2]
        shape = [[s.variable for s in self.switches.get(v, ())] for v in (edge.u, edge.v)]
        names = {z: n for n, z in enumerate(dict.fromkeys([*shape[0], *shape[1]]))}  # equal copies are of equal form
        form = tuple(tuple(names[z] for z in zs) for zs in shape), names.get(switch.variable) if switch else None
        key = id(cost), id(use), form, self._dims(edge.u), self._dims(edge.v)
        if key not in self.known:
            modes_u, modes_v = self._options(edge.u)[0], self._options(edge.v)[0]
            at = self._at((edge.u, edge.v), switch)
            table = cost[at]
            for z in modes_u.keys() & modes_v.keys():
                table = np.where(modes_u[z][:, None] == modes_v[z][None, :], table, INFINITE)
            self.known[key] = table, None if use is None else use[at]
        return Edge(edge.u, edge.v, *self.known[key])

    def _at(self, scope: tuple[int, ...], switch: Switch | None) -> tuple[Table, ...]:
        """The entry of a table over one or two variables, z first where a switch decides, for all their options."""
        found: list[Table] = []
        modes: dict[int, Table] = {}
        for axis, v in enumerate(scope):
            turn = tuple(slice(None) if axis == a else None for a in range(len(scope)))
            its, own = self._options(v)
            modes |= {z: mode[turn] for z, mode in its.items() if z not in modes}
            found.append(own[turn])
        return tuple(found) if switch is None else (modes[switch.variable], *found)

    def streams(self, scope: tuple[int, ...], table: Table, switch: Switch | None) -> Table:
        """The streams of a window over the products of the variables `scope`."""
        if not any(v in self.switches for v in scope):
            return table
        at = self._at(scope, switch)
        return np.stack([stream[at] for stream in table])

    def agreement(self, v: int, switch: Switch) -> Edge:
        """The edge that holds a variable to the mode of a switch."""
        mode = self._options(v)[0][switch.variable]
        key = mode.tobytes()
        if key not in self.known:
            modes = np.arange(len(self.network.variables[switch.variable].cost))
            self.known[key] = np.where(modes[:, None] == mode[None, :], 0, INFINITE).astype(np.int64), None
        return Edge(switch.variable, v, *self.known[key])
