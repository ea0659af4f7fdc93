"""The cost network: the one form that every solver reads.

    variables v with finite domains D_v
    min  constant + Σ_v c_v(x_v) + Σ_(u,v) c_uv(x_u, x_v)                      (ns)
    s.t. no cost is INFINITE;  Σ_v m_vr(x_v) + Σ_(u,v) m_uvr(x_u, x_v) ≤ M_r   ∀ r (bytes)

Where capacities are many (a memory at tens of thousands of times), a variable names only the `rows` it counts on.
Equal parts in a row are named by a `Chain`, so that a solver may solve one of them and count the rest.
The mode z of a `Switch` decides on the tables of many variables and edges: c_v(z, x_v), c_uv(z, x_u, x_v), and what
they use. Transient use e(z, ...) comes on top, but only that of the switch with the most, since one acts at a time:

    Σ_v m_v0 + Σ_(u,v) m_uv0 + max_s Σ_(v ∈ s) e_v(z_s, x_v) + Σ_((u,v) ∈ s) e_uv(z_s, x_u, x_v) ≤ M_0

What runs at the same time is a `Window` w of streams k, such as kernels and the gathering of weights. It takes as long
as its longest stream, on top of the costs above:

    + Σ_w max_k Σ_(v ∈ w) s_vk(x_v) + Σ_((u,v) ∈ w) s_uvk(x_u, x_v)
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

INFINITE = 1 << 60  # a cost of at least this much is forbidden
Table = npt.NDArray[np.int64]
SwitchTables: TypeAlias = tuple[Table, Table | None, Table | None]
"""Cost [M, ...] in ns, use [M, ..., R] in bytes and extra [M, ...] in bytes, in each of M modes; None for nothing."""


@dataclass(frozen=True, slots=True, eq=False)
class Variable:
    """A choice among n options: `cost` [n] in ns, `use` [n, P] in bytes.

    Column p of `use` counts on each of the capacities rows[p, 0] to rows[p, 1] (`rows` [P, 2], half-open; columns may
    overlap, and then add up). Without `rows`, P is the number of capacities, and column r counts on capacity r.
    """

    name: str
    cost: Table
    use: Table
    rows: Table | None = None

    def dense(self, count: int) -> Table:
        """[n, R]: what every option uses of each of R = `count` capacities."""
        if self.rows is None:
            return self.use
        use = np.zeros((len(self.cost), count), np.int64)
        for p, (first, last) in enumerate(self.rows.tolist()):
            use[:, first:last] += self.use[:, p : p + 1]
        return use


@dataclass(frozen=True, slots=True, eq=False)
class Edge:
    """What two choices cost together: `cost` [n_u, n_v] in ns, `use` [n_u, n_v, R] in bytes, or None for nothing."""

    u: int
    v: int
    cost: Table
    use: Table | None = None


@dataclass(frozen=True, slots=True)
class Chain:
    """L equal copies in a row: `boundaries` b_0..b_L, and the interior variables of each copy in one common order.

    Copy i holds its interior variables, the edges among them, and all edges between them, b_i and b_{i+1}, and from
    them to `reads`: variables elsewhere that every copy may touch, as decoder layers read what the encoder computed.
    Copies agree position by position; b_1..b_{L-1} cost and use nothing and touch nothing else, interiors neither.
    """

    boundaries: tuple[int, ...]
    copies: tuple[tuple[int, ...], ...]
    reads: tuple[int, ...] = ()

    def around(self, i: int) -> tuple[int, ...]:
        """The variables around copy i: b_i, b_{i+1} and what all copies read."""
        return (*self.boundaries[i : i + 2], *self.reads)

    def __len__(self) -> int:
        return len(self.copies)


@dataclass(frozen=True, slots=True, eq=False)
class Switch:
    """A choice of M modes, option m of `variable` being mode m, that decides on the tables of others.

    Those of a variable v, cost [M, n], use [M, n, R], extra [M, n], and of the edge of a number, cost [M, n_u, n_v] and
    so on, take the place of its own, which are those of mode 0. `extra` is transient use of capacity 0: that of the
    switch with the most counts. No variable or edge belongs to two switches, those of a copy of a chain to one in it.
    """

    variable: int
    variables: Mapping[int, SwitchTables]
    edges: Mapping[int, SwitchTables]

    @property
    def has_extra(self) -> bool:
        """True if it has transient use."""
        return any(t[2] is not None and t[2].any() for t in (*self.variables.values(), *self.edges.values()))

    def scope(self, edges: Sequence["Edge"]) -> tuple[int, ...]:
        """The mode, the variables that it decides on, and the ends of the edges; `edges` are the network's."""
        ends = (v for k in self.edges for v in (edges[k].u, edges[k].v))
        return tuple(dict.fromkeys((self.variable, *self.variables, *ends)))

    def with_tables(self, changed: Callable[[SwitchTables], SwitchTables]) -> "Switch":
        """The same switch with other tables."""
        variables, edges = ({k: changed(t) for k, t in of.items()} for of in (self.variables, self.edges))
        return Switch(self.variable, variables, edges)


@dataclass(frozen=True, slots=True, eq=False)
class Window:
    """K streams that run at the same time, of which the longest counts.

    `variables`, and `edges` by their numbers, say what a choice adds to each stream: ns [K, ...], at least 0, with the
    dims of its cost table behind, those of a switch's cost table where one decides. They may be in several windows. A
    window that touches a copy of a chain has no variables but the interior ones of that copy, and edges of that copy.
    """

    variables: Mapping[int, Table]
    edges: Mapping[int, Table]

    @property
    def streams(self) -> int:
        """K."""
        return next(len(t) for of in (self.variables, self.edges) for t in of.values())


WindowStreams: TypeAlias = tuple[tuple[int, Table], ...]
"""Numbers of windows, with what a variable or an edge adds to their streams (see `Window`)."""


class CostTerm(NamedTuple):
    """A table of the network over the variables `scope`, z first where a switch decides; all else as of its parts."""

    scope: tuple[int, ...]
    cost: Table
    use: Table | None
    extra: Table | None = None
    rows: Table | None = None


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What an assignment costs (ns) and uses (bytes per capacity); `why` says what forbids it, else is empty."""

    cost: int
    use: tuple[int, ...]
    feasible: bool
    why: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Network:
    """Variables, edges between them, and capacities in bytes; see `checks.check_network` for how the parts fit.

    `pairs` (u, v): together they alone lead from what is before v in `line` to what is after (`joined_pairs`).
    """

    variables: tuple[Variable, ...]
    edges: tuple[Edge, ...] = ()
    capacities: tuple[int, ...] = ()
    constant: int = 0
    chains: tuple[Chain, ...] = ()
    switches: tuple[Switch, ...] = ()
    windows: tuple[Window, ...] = ()
    pairs: tuple[tuple[int, int], ...] = ()
    line: tuple[int, ...] = ()

    def terms(self, variables: Iterable[int] | None = None, edges: Iterable[int] | None = None) -> Iterator[CostTerm]:
        """The tables of some variables, and of some edges, in that order (all)."""
        of_variable = {v: (s.variable, t) for s in self.switches for v, t in s.variables.items()}
        of_edge = {k: (s.variable, t) for s in self.switches for k, t in s.edges.items()}
        for v, x in enumerate(self.variables) if variables is None else ((v, self.variables[v]) for v in variables):
            if v in of_variable:
                yield CostTerm((of_variable[v][0], v), *of_variable[v][1])
            else:
                yield CostTerm((v,), x.cost, x.use, None, x.rows)
        for k, e in enumerate(self.edges) if edges is None else ((k, self.edges[k]) for k in edges):
            if k in of_edge:
                yield CostTerm((of_edge[k][0], e.u, e.v), *of_edge[k][1])
            else:
                yield CostTerm((e.u, e.v), e.cost, e.use)


def evaluate(network: Network, assignment: Sequence[int]) -> Evaluation:
    """The cost, use and feasibility of an assignment (an option per variable), in exact Python integers.

    Raises ValueError unless the assignment names one option of every variable.
    """
    if len(assignment) != len(network.variables):
        raise ValueError(f"{len(assignment)} options for {len(network.variables)} variables")
    for variable, x in zip(network.variables, assignment, strict=True):
        if not 0 <= x < len(variable.cost):
            raise ValueError(f"{variable.name} has options 0 to {len(variable.cost) - 1}, not {x}")
    totals = [0] * len(network.capacities)
    steps = [0] * (len(network.capacities) + 1)  # of intervals: how much more is used of a capacity than of the last
    cost, why = int(network.constant), ""
    for scope, options, table, use, rows in _entries(network, assignment):
        here = table.item(options)  # `item` is several times faster than an index
        cost += here
        if here >= INFINITE:
            why = why or _forbidden(network, scope, options)
        if use is None:
            continue
        if rows is None:
            for r in range(len(totals)):
                totals[r] += use.item(*options, r)
            continue
        for p, (first, last) in enumerate(rows.tolist()):
            steps[first] += use.item(*options, p)
            steps[last] -= use.item(*options, p)
    cost += sum(map(max, window_streams(network, assignment)))
    totals = [total + step for total, step in zip(totals, accumulate(steps[:-1]), strict=True)]
    if totals:
        totals[0] += max(extras(network, assignment).values(), default=0)
    for r, (total, capacity) in enumerate(zip(totals, network.capacities, strict=True)):
        if total > capacity:
            why = why or f"capacity {r} is exceeded: {total} of {capacity} bytes"
    return Evaluation(cost, tuple(totals), not why, why)


def _entries(
    network: Network, assignment: Sequence[int]
) -> Iterator[tuple[tuple[int, ...], tuple[int, ...], Table, Table | None, Table | None]]:
    """Of every term the variables, their options, and the tables; without switches faster than `terms`."""
    if network.switches:
        for term in network.terms():
            yield term.scope, tuple(assignment[v] for v in term.scope), term.cost, term.use, term.rows
        return
    for v, x in enumerate(network.variables):
        yield (v,), (assignment[v],), x.cost, x.use, x.rows
    for e in network.edges:
        yield (e.u, e.v), (assignment[e.u], assignment[e.v]), e.cost, e.use, None


def _forbidden(network: Network, scope: Sequence[int], options: Sequence[int]) -> str:
    """Why a forbidden cost was met."""
    if len(scope) == 1:
        return f"{network.variables[scope[0]].name} may not take option {options[0]}"
    parts = (f"{network.variables[v].name} with option {x}" for v, x in zip(scope, options, strict=True))
    return f"{' and '.join(parts)} exclude each other"


def extras(network: Network, assignment: Sequence[int]) -> dict[int, int]:
    """Transient use of every switch of an assignment, by its variable."""
    found = dict.fromkeys((s.variable for s in network.switches), 0)
    decided = (v for s in network.switches for v in s.variables), (k for s in network.switches for k in s.edges)
    for term in network.terms(*decided):
        if term.extra is not None:
            found[term.scope[0]] += term.extra.item(tuple(assignment[v] for v in term.scope))
    return found


def window_terms(network: Network) -> list[list[tuple[tuple[int, ...], Table]]]:
    """The tables of every window, each with the variables that it is over, z first where a switch decides."""
    mode_of_variable = {v: (s.variable,) for s in network.switches for v in s.variables}
    mode_of_edge = {k: (s.variable,) for s in network.switches for k in s.edges}
    found = []
    for window in network.windows:
        terms = [((*mode_of_variable.get(v, ()), v), table) for v, table in window.variables.items()]
        for k, table in window.edges.items():
            terms.append(((*mode_of_edge.get(k, ()), network.edges[k].u, network.edges[k].v), table))
        found.append(terms)
    return found


def streams_by_part(network: Network) -> tuple[dict[int, WindowStreams], dict[int, WindowStreams]]:
    """The windows of every variable, and of every edge, that is in some: their numbers, with its tables."""
    variables: dict[int, WindowStreams] = {}
    edges: dict[int, WindowStreams] = {}
    for w, window in enumerate(network.windows):
        for found, part in ((variables, window.variables), (edges, window.edges)):
            for key, table in part.items():
                found[key] = (*found.get(key, ()), (w, table))
    return variables, edges


def window_streams(network: Network, assignment: Sequence[int]) -> list[list[int]]:
    """For every window the ns of each of its streams under an assignment."""
    of_variable = {v: s.variable for s in network.switches for v in s.variables}
    of_edge = {k: s.variable for s in network.switches for k in s.edges}
    known: dict[tuple[int, ...], list[int]] = {}  # equal layers share tables

    def added(table: Table, switch: int | None, *ends: int) -> list[int]:
        entry = [assignment[v] for v in ends] if switch is None else [assignment[v] for v in (switch, *ends)]
        key = id(table), *entry
        if key not in known:
            known[key] = [stream.item(*entry) for stream in table]
        return known[key]

    found = []
    for window in network.windows:
        parts = [added(table, of_variable.get(v), v) for v, table in window.variables.items()]
        for k, table in window.edges.items():
            parts.append(added(table, of_edge.get(k), network.edges[k].u, network.edges[k].v))
        found.append([sum(own) for own in zip(*parts, strict=True)])
    return found


def chain_edges(network: Network) -> tuple[list[list[list[int]]], list[int]]:
    """The indices of the edges in each copy of each chain, and those in none, every list in the network's order."""
    inside: dict[int, tuple[int, int]] = {}
    link: dict[tuple[int, int], tuple[int, int]] = {}
    for c, chain in enumerate(network.chains):
        for i, copy in enumerate(chain.copies):
            inside.update(dict.fromkeys(copy, (c, i)))
            for pair in (chain.boundaries[i : i + 2], chain.boundaries[i : i + 2][::-1]):
                link.setdefault((pair[0], pair[1]), (c, i))
    edges: list[list[list[int]]] = [[[] for _ in chain.copies] for chain in network.chains]
    rest: list[int] = []
    for k, e in enumerate(network.edges):
        place = inside.get(e.u) or inside.get(e.v) or link.get((e.u, e.v))
        (edges[place[0]][place[1]] if place else rest).append(k)
    return edges, rest


def table_bytes(network: Network) -> int:
    """The bytes of a network's tables, those that several parts share once."""
    tables = [t for term in network.terms() for t in (term.cost, term.use, term.extra) if t is not None]
    tables += [t for terms in window_terms(network) for _, t in terms]
    owners = [t if t.base is None else t.base for t in tables]
    return sum(t.nbytes for t in {id(t): t for t in owners}.values())
