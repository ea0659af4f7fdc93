"""What a choice of ways to compute a graph leaves out: one more option of a variable, which is to be unused.

Unused, a variable costs and uses nothing, and nothing that is used reads it. Where a tensor can be computed in several
ways, a further variable says which is taken: its *mode*. Each way has a variable of its own, so that what one way reads
does not widen the network for the others.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from .network import INFINITE, Edge, Table, Variable


@dataclass(frozen=True, slots=True)
class Taken:
    """The options of a variable that take part in something: one of a mode, or (None) all but to be unused."""

    variable: int
    option: int | None = None


@dataclass
class UnusedOptions:
    """Lengthens the variables that are `conditional`, and their edges.

    `loose`: edges whose first variable may be unused where the second is not, since the tensor comes from another way.
    `shows`: edges whose second is no reader of the first but the layouts that it is converted to: not used without it.
    """

    variables: list[Variable]
    edges: list[Edge]
    conditional: Collection[int]
    loose: Collection[int]
    shows: Collection[int]
    made: dict[object, tuple[Table, Table | None]] = field(default_factory=dict)

    def lengthen(self) -> None:
        for number, edge in enumerate(self.edges):
            if edge.u in self.conditional or edge.v in self.conditional:
                self.edges[number] = self._edge(number, edge)
        for v in self.conditional:
            self.variables[v] = self._variable(self.variables[v])

    def modes(self, modes: Mapping[int, Sequence[int]]) -> None:
        """Option w of each mode is taken if and only if way w is used; none of them where it has a last option more."""
        for mode, ways in modes.items():
            for number, way in enumerate(ways):
                fits = np.zeros((len(self.variables[mode].cost), len(self.variables[way].cost)), np.bool_)
                fits[number, :-1] = True
                fits[np.arange(len(fits)) != number, -1] = True
                self._only(mode, way, fits, ("mode", number))

    def needs(self, pairs: Iterable[tuple[int, int]]) -> None:
        """Of each pair (mode, variable): where nothing is taken, that is not used."""
        for mode, v in pairs:
            fits = np.ones((len(self.variables[mode].cost), len(self.variables[v].cost)), np.bool_)
            fits[-1] = False
            if v in self.conditional:
                fits[-1, -1] = True
            self._only(mode, v, fits, ("needs", v in self.conditional))

    def apart(self, pairs: Iterable[tuple[Taken, Taken]]) -> None:
        """Of each pair one at least does not take part."""
        for pair in pairs:
            one, other = (self._mask(taken) for taken in pair)
            key = "apart", *(taken.option for taken in pair)
            self._only(pair[0].variable, pair[1].variable, ~np.logical_and.outer(one, other), key)

    def _mask(self, taken: Taken) -> npt.NDArray[np.bool_]:
        """Which options take part."""
        size = len(self.variables[taken.variable].cost)
        options = np.arange(size)
        if taken.option is not None:
            return np.asarray(options == taken.option, dtype=np.bool_)
        return np.asarray(options < size - (taken.variable in self.conditional), dtype=np.bool_)

    def _only(self, u: int, v: int, fits: npt.NDArray[np.bool_], key: object) -> None:
        """An edge that forbids what does not fit; one table for all that are alike, by which equal parts are told."""
        table = self.made.setdefault((key, fits.shape), (np.where(fits, 0, INFINITE).astype(np.int64), None))
        self.edges.append(Edge(u, v, *table))

    def _variable(self, old: Variable) -> Variable:
        key = "variable", id(old.cost), id(old.use)
        if key not in self.made:
            self.made[key] = np.append(old.cost, 0), np.concatenate([old.use, np.zeros_like(old.use[:1])])
        cost, use = self.made[key]
        assert use is not None
        return replace(old, cost=cost, use=use)

    def _edge(self, number: int, edge: Edge) -> Edge:
        first, second = (v in self.conditional for v in (edge.u, edge.v))
        loose, shows = number in self.loose, number in self.shows
        key = id(edge.cost), id(edge.use), first, second, loose, shows
        if key not in self.made:
            n, m = edge.cost.shape
            cost = np.zeros((n + first, m + second), np.int64)
            cost[:n, :m] = edge.cost
            if first and not loose:
                cost[n, :m] = INFINITE
            if second and shows:
                cost[:n, m] = INFINITE
            use = None if edge.use is None else np.zeros((*cost.shape, edge.use.shape[2]), np.int64)
            if use is not None and edge.use is not None:
                use[:n, :m] = edge.use
            self.made[key] = cost, use
        return Edge(edge.u, edge.v, *self.made[key])
