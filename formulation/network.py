"""The cost network: the one form that every solver reads.

    variables v with finite domains D_v
    min  constant + Σ_v c_v(x_v) + Σ_(u,v) c_uv(x_u, x_v)                      (ns)
    s.t. no cost is INFINITE;  Σ_v m_vr(x_v) + Σ_(u,v) m_uvr(x_u, x_v) ≤ M_r   ∀ r (bytes)

Where capacities are many (a memory at tens of thousands of times), a variable names only the `rows` it counts on.
Equal parts in a row are named by a `Chain`, so that a solver may solve one of them and count the rest.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

INFINITE = 1 << 60  # a cost of at least this much is forbidden
Table = npt.NDArray[np.int64]


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

    Copy i holds its interior variables, the edges among them, and all edges between them, b_i and b_{i+1}.
    Copies agree position by position; b_1..b_{L-1} cost and use nothing and touch nothing else, interiors neither.
    """

    boundaries: tuple[int, ...]
    copies: tuple[tuple[int, ...], ...]

    def __len__(self) -> int:
        return len(self.copies)


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What an assignment costs (ns) and uses (bytes per capacity); `why` says what forbids it, else is empty."""

    cost: int
    use: tuple[int, ...]
    feasible: bool
    why: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Network:
    """Variables, edges between them, and capacities in bytes; `check` says whether the parts fit together."""

    variables: tuple[Variable, ...]
    edges: tuple[Edge, ...] = ()
    capacities: tuple[int, ...] = ()
    constant: int = 0
    chains: tuple[Chain, ...] = ()

    def check(self) -> None:
        """Raise ValueError for the first inconsistency found, with the values at fault."""
        for problem in _problems(self):
            raise ValueError(problem)

    def to_json(self) -> dict[str, Any]:
        """A dict of plain lists and numbers; equal tables are stored once, forbidden costs as None."""
        from .network_file import network_json

        return network_json(self)

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> "Network":
        """The network that `to_json` wrote; raises PartitaError that says what is wrong, and where."""
        from .network_file import read_network

        return read_network(data)


def evaluate(network: Network, assignment: Sequence[int]) -> Evaluation:
    """The cost, use and feasibility of an assignment (an option per variable), in exact Python integers.

    Raises ValueError when the assignment does not name one option of every variable.
    """
    if len(assignment) != len(network.variables):
        raise ValueError(f"{len(assignment)} options for {len(network.variables)} variables")
    for v, x in zip(network.variables, assignment, strict=True):
        if not 0 <= x < len(v.cost):
            raise ValueError(f"{v.name} has options 0 to {len(v.cost) - 1}, not {x}")
    cost, why = int(network.constant), ""
    capacities = range(len(network.capacities))
    steps = [0] * (len(capacities) + 1)  # by how much more is used of a capacity than of the one before
    for v, x in zip(network.variables, assignment, strict=True):  # `item` is several times faster than an index
        here = v.cost.item(x)
        cost += here
        for p in range(v.use.shape[1]):
            first, last = (p, p + 1) if v.rows is None else (v.rows.item(p, 0), v.rows.item(p, 1))
            steps[first] += v.use.item(x, p)
            steps[last] -= v.use.item(x, p)
        if here >= INFINITE:
            why = why or f"{v.name} may not take option {x}"
    for e in network.edges:
        i, j = assignment[e.u], assignment[e.v]
        here = e.cost.item(i, j)
        cost += here
        if e.use is not None:
            for r in capacities:
                steps[r] += e.use.item(i, j, r)
                steps[r + 1] -= e.use.item(i, j, r)
        if here >= INFINITE:
            names = network.variables[e.u].name, network.variables[e.v].name
            why = why or f"{names[0]} with option {i} and {names[1]} with option {j} exclude each other"
    use = tuple(accumulate(steps[:-1]))
    for r, (total, capacity) in enumerate(zip(use, network.capacities, strict=True)):
        if total > capacity:
            why = why or f"capacity {r} is exceeded: {total} of {capacity} bytes"
    return Evaluation(cost, use, not why, why)


# Checking


def _problems(network: Network) -> Iterator[str]:
    """Every inconsistency, in words; a later one may rest on an earlier one being absent."""
    variables, count = network.variables, len(network.capacities)
    for r, capacity in enumerate(network.capacities):
        if capacity < 0:
            yield f"capacity {r} is {capacity}"
    for v in variables:
        columns = count if v.rows is None else len(v.rows)
        if v.cost.ndim != 1 or len(v.cost) == 0 or v.use.shape != (len(v.cost), columns):
            where = f"{count} capacities" if v.rows is None else f"rows {v.rows.shape}"
            yield f"{v.name}: cost {v.cost.shape} and use {v.use.shape}, for {where}"
        if v.rows is not None:
            yield from _bad_rows(v.name, v.rows, count)
        yield from _bad_values(v.name, v.cost, v.use)
    for e in network.edges:
        if not (0 <= e.u < len(variables) and 0 <= e.v < len(variables)) or e.u == e.v:
            yield f"edge ({e.u}, {e.v}) among {len(variables)} variables"
        name = f"edge {variables[e.u].name} - {variables[e.v].name}"
        shape = len(variables[e.u].cost), len(variables[e.v].cost)
        if e.cost.shape != shape:
            yield f"{name}: cost {e.cost.shape}, domains {shape}"
        if e.use is not None and e.use.shape != (*shape, count):
            yield f"{name}: use {e.use.shape}, expected {(*shape, count)}"
        yield from _bad_values(name, e.cost, e.use)
    if network.chains:
        yield from _chain_problems(network)


def _bad_values(name: str, cost: Table, use: Table | None) -> Iterator[str]:
    if cost.dtype != np.int64 or (use is not None and use.dtype != np.int64):
        yield f"{name}: cost {cost.dtype} and use {None if use is None else use.dtype}, expected int64"
    if cost.size and cost.min() <= -INFINITE:
        yield f"{name}: cost {cost.min()}"
    if use is not None and use.size and use.min() < 0:
        yield f"{name}: use {use.min()} bytes"


def _bad_rows(name: str, rows: Table, count: int) -> Iterator[str]:
    if rows.dtype != np.int64 or rows.ndim != 2 or rows.shape[1] != 2:
        yield f"{name}: rows {rows.shape} of {rows.dtype}, expected [P, 2] of int64"
    wrong = (rows[:, 0] < 0) | (rows[:, 0] > rows[:, 1]) | (rows[:, 1] > count)
    if wrong.any():
        yield f"{name}: rows {rows[wrong][0].tolist()} of {count} capacities"


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


def _chain_problems(network: Network) -> Iterator[str]:
    variables = network.variables
    owner: dict[int, str] = {}
    for c, chain in enumerate(network.chains):
        at = f"chain {c}"
        if not chain.copies or len(chain.boundaries) != len(chain.copies) + 1:
            yield f"{at}: {len(chain.boundaries)} boundaries for {len(chain.copies)} copies"
        if {len(copy) for copy in chain.copies} != {len(chain.copies[0])}:
            yield f"{at}: copies of {sorted({len(copy) for copy in chain.copies})} variables"
        owned = [*chain.boundaries[1:-1], *(v for copy in chain.copies for v in copy)]
        for v in (*owned, chain.boundaries[0], chain.boundaries[-1]):
            if not 0 <= v < len(variables):
                yield f"{at}: variable {v} of {len(variables)}"
        if chain.boundaries[0] == chain.boundaries[-1]:
            yield f"{at}: starts and ends at {variables[chain.boundaries[0]].name}"
        for v in owned:
            if v in owner:
                yield f"{variables[v].name} belongs to {owner[v]} and to {at}"
            owner[v] = at
    for c, chain in enumerate(network.chains):
        for v in (chain.boundaries[0], chain.boundaries[-1]):
            if v in owner:
                yield f"chain {c} ends at {variables[v].name}, which is inside {owner[v]}"
        first = variables[chain.boundaries[0]]
        for b in chain.boundaries:
            if len(variables[b].cost) != len(first.cost):
                yield f"chain {c}: boundaries of {len(first.cost)} and {len(variables[b].cost)} options"
        for b in chain.boundaries[1:-1]:
            if variables[b].cost.any() or variables[b].use.any():
                yield f"chain {c}: boundary {variables[b].name} has a cost or a use of its own"
    copy_edges, rest = chain_edges(network)
    for k in rest:
        for v in (network.edges[k].u, network.edges[k].v):
            if v in owner:
                yield f"{variables[v].name} of {owner[v]} has an edge that leaves its copy"
    for c, chain in enumerate(network.chains):
        first_copy = _signature(network, chain, 0, copy_edges[c][0])
        for i in range(len(chain.copies)):
            mine = _signature(network, chain, i, copy_edges[c][i])
            if isinstance(mine, str):
                yield f"chain {c}, copy {i}: {mine}"
            elif not isinstance(first_copy, str):
                yield from (f"chain {c}: copy {i} differs from copy 0 in {what}" for what in _differ(first_copy, mine))


_Part: TypeAlias = tuple[tuple[int, ...], bool, Table, Table | None]


def _signature(network: Network, chain: Chain, i: int, edges: list[int]) -> list[_Part] | str:
    """The tables of copy i by position (interiors, then b_i, b_{i+1}), or the variable that is out of place."""
    scope = (*chain.copies[i], chain.boundaries[i], chain.boundaries[i + 1])
    position = {v: p for p, v in enumerate(scope)}
    parts: list[_Part] = [
        ((p,), False, network.variables[v].cost, network.variables[v].dense(len(network.capacities)))
        for p, v in enumerate(chain.copies[i])
    ]
    for k in edges:
        e = network.edges[k]
        for v in (e.u, e.v):
            if v not in position:
                return f"an edge leaves it for {network.variables[v].name}"
        u, v, flip = position[e.u], position[e.v], position[e.u] > position[e.v]
        parts.append(((v, u) if flip else (u, v), flip, e.cost, e.use))
    return sorted(parts, key=lambda part: part[0])  # stable: parallel edges keep their order


def _differ(first: list[_Part], other: list[_Part]) -> Iterator[str]:
    if [p[0] for p in first] != [p[0] for p in other]:
        yield "its edges"
        return
    for (where, flip, *tables), (_, other_flip, *others) in zip(first, other, strict=True):
        for a, b in zip(tables, others, strict=True):
            if a is b and (flip == other_flip or a is None):
                continue
            if a is None or b is None:
                if (b if a is None else a).any():  # type: ignore[union-attr]
                    yield f"the uses at {where}"
                continue
            same = a if flip == other_flip else np.swapaxes(a, 0, 1)
            if not np.array_equal(same, b):
                yield f"the tables at {where}"
