"""The option "unused", the last one of every variable that some choices of alternatives do not need.

Unused, a variable costs and uses nothing, and nothing that is used reads it. Each alternative of a tensor has a
variable of its own, so that what one reads does not widen the network for the others.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ...network.network import INFINITE, Edge, Table, Variable


@dataclass(frozen=True, slots=True)
class ComputedWhen:
    """The options of a variable with which a node is computed: one of them, or (None) all but "unused"."""

    variable: int
    option: int | None = None


class UnusedOptions:
    """Lengthens the `conditional` variables, and their edges.

    `selective`: edges whose first variable may be unused while the second is used, since another alternative computes
    the tensor. `hubs`: edges whose second variable is a hub of the first, unused exactly if that is.
    """

    def __init__(self, variables: list[Variable], edges: list[Edge], conditional: Collection[int]) -> None:
        self.variables, self.edges, self.conditional = variables, edges, conditional
        self._tables: dict[object, tuple[Table, Table | None]] = {}

    def lengthen(self, selective: Collection[int], hubs: Collection[int]) -> None:
        """Append the option to all conditional variables."""
        for number, edge in enumerate(self.edges):
            if edge.u in self.conditional or edge.v in self.conditional:
                self.edges[number] = self._edge(edge, number in selective, number in hubs)
        for v in self.conditional:
            self.variables[v] = self._variable(self.variables[v])

    def choose(self, alternatives: Mapping[int, Sequence[int]]) -> None:
        """Option n of a choosing variable is taken if and only if its n-th alternative is used."""
        for choosing, members in alternatives.items():
            for number, member in enumerate(members):
                fits = np.zeros((len(self.variables[choosing].cost), len(self.variables[member].cost)), np.bool_)
                fits[number, :-1] = True
                fits[np.arange(len(fits)) != number, -1] = True
                self._allow(choosing, member, fits, ("choice", number))

    def need(self, pairs: Iterable[tuple[int, int]]) -> None:
        """Of each (choosing variable, reader): if the last option chooses no alternative, the reader is not used."""
        for choosing, v in pairs:
            fits = np.ones((len(self.variables[choosing].cost), len(self.variables[v].cost)), np.bool_)
            fits[-1] = False
            if v in self.conditional:
                fits[-1, -1] = True
            self._allow(choosing, v, fits, ("needs", v in self.conditional))

    def exclude(self, pairs: Iterable[tuple[ComputedWhen, ComputedWhen]]) -> None:
        """Of each pair at most one node is computed."""
        for pair in pairs:
            one, other = (self._mask(node) for node in pair)
            key = "exclude", *(node.option for node in pair)
            self._allow(pair[0].variable, pair[1].variable, ~np.logical_and.outer(one, other), key)

    def _mask(self, node: ComputedWhen) -> npt.NDArray[np.bool_]:
        """The options with which a node is computed."""
        size = len(self.variables[node.variable].cost)
        options = np.arange(size)
        if node.option is not None:
            return np.asarray(options == node.option, dtype=np.bool_)
        return np.asarray(options < size - (node.variable in self.conditional), dtype=np.bool_)

    def _allow(self, u: int, v: int, fits: npt.NDArray[np.bool_], key: object) -> None:
        """Append an edge that allows what fits; equal tables are one object, by which equal parts are found."""
        table = self._tables.setdefault((key, fits.shape), (np.where(fits, 0, INFINITE).astype(np.int64), None))
        self.edges.append(Edge(u, v, *table))

    def _variable(self, old: Variable) -> Variable:
        key = "variable", id(old.cost), id(old.use)
        if key not in self._tables:
            self._tables[key] = np.append(old.cost, 0), np.concatenate([old.use, np.zeros_like(old.use[:1])])
        cost, use = self._tables[key]
        assert use is not None
        return replace(old, cost=cost, use=use)

    def _edge(self, edge: Edge, selective: bool, hub: bool) -> Edge:
        first, second = (v in self.conditional for v in (edge.u, edge.v))
        key = id(edge.cost), id(edge.use), first, second, selective, hub
        if key not in self._tables:
            n, m = edge.cost.shape
            cost = np.zeros((n + first, m + second), np.int64)
            cost[:n, :m] = edge.cost
            if first and not selective:
                cost[n, :m] = INFINITE
            if second and hub:
                cost[:n, m] = INFINITE
            use = None if edge.use is None else np.zeros((*cost.shape, edge.use.shape[2]), np.int64)
            if use is not None and edge.use is not None:
                use[:n, :m] = edge.use
            self._tables[key] = cost, use
        return Edge(edge.u, edge.v, *self._tables[key])
