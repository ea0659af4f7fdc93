"""Consistency of a cost network: how its parts have to fit together."""

from collections.abc import Iterator, Mapping
from typing import TypeAlias

import numpy as np

from .network import INFINITE, Chain, Edge, Network, Table, Variable, WindowStreams, chain_edges, streams_by_part


def check_network(network: Network) -> None:
    """Raise ValueError for the first inconsistency, with the values at fault."""
    for problem in problems(network):
        raise ValueError(problem)


def problems(network: Network) -> Iterator[str]:
    """A message for every inconsistency; later ones assume that earlier ones are absent."""
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
    yield from _switch_problems(network)
    yield from _window_problems(network)
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


def _switch_problems(network: Network) -> Iterator[str]:
    variables, count = network.variables, len(network.capacities)
    owner: dict[tuple[str, int], int] = {}
    own = {s.variable for s in network.switches}
    for number, switch in enumerate(network.switches):
        at = f"switch {number}"
        if not 0 <= switch.variable < len(variables):
            yield f"{at}: variable {switch.variable} of {len(variables)}"
        modes = len(variables[switch.variable].cost)
        for kind, tables in (("variable", switch.variables), ("edge", switch.edges)):
            parts: tuple[Variable, ...] | tuple[Edge, ...] = variables if kind == "variable" else network.edges
            for k, (cost, use, extra) in tables.items():
                if not 0 <= k < len(parts):
                    yield f"{at}: {kind} {k} of {len(parts)}"
                name, part = f"{at}, {kind} {k}", parts[k]
                if owner.setdefault((kind, k), number) != number or (kind == "variable" and k in own):
                    yield f"{name} belongs to another switch, or is one"
                if isinstance(part, Variable) and part.rows is not None:
                    yield f"{name}: rows where a switch decides"
                if isinstance(part, Edge) and switch.variable in (part.u, part.v):
                    yield f"{name} ends at the switch itself"
                shape = modes, *part.cost.shape
                if (
                    cost.shape != shape
                    or (use is not None and use.shape != (*shape, count))
                    or (extra is not None and extra.shape != shape)
                ):
                    shapes = [None if t is None else t.shape for t in (cost, use, extra)]
                    yield f"{name}: cost, use and extra {shapes} for {shape} and {count} capacities"
                yield from _bad_values(name, cost, use)
                yield from _bad_values(f"{name}, extra", cost, extra)
                if not _alike(cost[0], part.cost) or not _alike(None if use is None else use[0], part.use):
                    yield f"{name}: its own tables are not those of mode 0"


def _window_problems(network: Network) -> Iterator[str]:
    modes = {
        (kind, k): (len(network.variables[s.variable].cost),)
        for s in network.switches
        for kind, decided in (("variable", s.variables), ("edge", s.edges))
        for k in decided
    }
    for w, window in enumerate(network.windows):
        if not (window.variables or window.edges):
            yield f"window {w} has no tables"
            continue
        for kind, tables in (("variable", window.variables), ("edge", window.edges)):
            parts: tuple[Variable, ...] | tuple[Edge, ...] = network.variables if kind == "variable" else network.edges
            for k, table in tables.items():
                name = f"window {w}, {kind} {k}"
                if not 0 <= k < len(parts):
                    yield f"{name} of {len(parts)}"
                    continue
                shape = *modes.get((kind, k), ()), *parts[k].cost.shape
                if (
                    table.dtype != np.int64
                    or table.shape[1:] != shape
                    or len(table) != window.streams
                    or not len(table)
                ):
                    yield f"{name}: {table.shape} of {table.dtype}, expected int64, {(window.streams, *shape)}"
                elif table.size and not 0 <= table.min() <= table.max() < INFINITE:
                    yield f"{name}: from {table.min()} to {table.max()} ns"


def _alike(a: Table | None, b: Table | None) -> bool:
    """True if tables are equal; None is all zeros."""
    if a is None or b is None:
        return not any(t is not None and t.any() for t in (a, b))
    return np.array_equal(a, b)


def _chain_problems(network: Network) -> Iterator[str]:
    owner: dict[int, str] = {}
    for c, chain in enumerate(network.chains):
        yield from _form_problems(network, f"chain {c}", chain, owner)
    for c, chain in enumerate(network.chains):
        yield from _boundary_problems(network, f"chain {c}", chain, owner)
    copy_edges, rest = chain_edges(network)
    for k in rest:
        for v in (network.edges[k].u, network.edges[k].v):
            if v in owner:
                yield f"{network.variables[v].name} of {owner[v]} has an edge that leaves its copy"
    yield from _straddling(network, copy_edges)
    yield from _windows_across(network, copy_edges)
    for c, chain in enumerate(network.chains):
        yield from _copy_problems(network, f"chain {c}", chain, copy_edges[c])


def _form_problems(network: Network, at: str, chain: Chain, owner: dict[int, str]) -> Iterator[str]:
    """Copies of different size, unknown variables, variables of two chains; notes the owner of each variable."""
    variables = network.variables
    if not chain.copies or len(chain.boundaries) != len(chain.copies) + 1:
        yield f"{at}: {len(chain.boundaries)} boundaries for {len(chain.copies)} copies"
    if {len(copy) for copy in chain.copies} != {len(chain.copies[0])}:
        yield f"{at}: copies of {sorted({len(copy) for copy in chain.copies})} variables"
    owned = [*chain.boundaries[1:-1], *(v for copy in chain.copies for v in copy)]
    for v in (*owned, chain.boundaries[0], chain.boundaries[-1], *chain.reads):
        if not 0 <= v < len(variables):
            yield f"{at}: variable {v} of {len(variables)}"
    if chain.boundaries[0] == chain.boundaries[-1]:
        yield f"{at}: starts and ends at {variables[chain.boundaries[0]].name}"
    for v in owned:
        if v in owner:
            yield f"{variables[v].name} belongs to {owner[v]} and to {at}"
        owner[v] = at


def _boundary_problems(network: Network, at: str, chain: Chain, owner: Mapping[int, str]) -> Iterator[str]:
    """Ends inside of another chain, repeated reads, boundaries of different domains or that cost or use something."""
    variables = network.variables
    for v in (chain.boundaries[0], chain.boundaries[-1]):
        if v in owner:
            yield f"{at} ends at {variables[v].name}, which is inside {owner[v]}"
    for v in chain.reads:
        if v in owner or v in chain.boundaries:
            yield f"{at} reads {variables[v].name}, which is inside {owner.get(v, at)}"
    if len({*chain.reads}) < len(chain.reads):
        yield f"{at} names a variable that it reads twice"
    first = variables[chain.boundaries[0]]
    for b in chain.boundaries:
        if len(variables[b].cost) != len(first.cost):
            yield f"{at}: boundaries of {len(first.cost)} and {len(variables[b].cost)} options"
    for b in chain.boundaries[1:-1]:
        if variables[b].cost.any() or variables[b].use.any():
            yield f"{at}: boundary {variables[b].name} has a cost or a use of its own"


def _copy_problems(network: Network, at: str, chain: Chain, edges: list[list[int]]) -> Iterator[str]:
    """Copies that are not equal to the first."""
    streams = streams_by_part(network)
    first_copy = _signature(network, chain, 0, edges[0], streams)
    for i in range(len(chain.copies)):
        mine = _signature(network, chain, i, edges[i], streams)
        if isinstance(mine, str):
            yield f"{at}, copy {i}: {mine}"
        elif not isinstance(first_copy, str):
            yield from (f"{at}: copy {i} differs from copy 0 in {what}" for what in _differ(first_copy, mine))


def _straddling(network: Network, copy_edges: list[list[list[int]]]) -> Iterator[str]:
    """Switches that are partly in a copy of a chain."""
    of_edge = {k: (c, i) for c, copies in enumerate(copy_edges) for i, edges in enumerate(copies) for k in edges}
    of_variable: dict[int, object] = {}
    for c, chain in enumerate(network.chains):
        of_variable |= {b: f"boundary {b}" for b in chain.boundaries[1:-1]}
        of_variable |= {v: (c, i) for i, copy in enumerate(chain.copies) for v in copy}
    for number, switch in enumerate(network.switches):
        z = of_variable.get(switch.variable)
        if any(switch.variable in chain.boundaries for chain in network.chains):
            yield f"switch {number} is the boundary of a chain"
        if any(of_variable.get(v) != z for v in switch.variables) or any(of_edge.get(k) != z for k in switch.edges):
            yield f"switch {number} is partly in a copy of a chain"


def _windows_across(network: Network, copy_edges: list[list[list[int]]]) -> Iterator[str]:
    """Windows that are partly in a copy of a chain."""
    of_edge = {k: (c, i) for c, copies in enumerate(copy_edges) for i, edges in enumerate(copies) for k in edges}
    of_variable = {
        v: (c, i) for c, chain in enumerate(network.chains) for i, copy in enumerate(chain.copies) for v in copy
    }
    inner = {b for chain in network.chains for b in chain.boundaries[1:-1]}
    for w, window in enumerate(network.windows):
        if len({*(of_variable.get(v) for v in window.variables), *(of_edge.get(k) for k in window.edges)}) > 1:
            yield f"window {w} is partly in a copy of a chain"
        if inner & window.variables.keys():
            yield f"window {w} has a boundary of a chain"


_Part: TypeAlias = tuple[tuple[int, ...], bool, tuple[Table | None, ...], tuple[tuple[int, Table], ...]]


def _signature(
    network: Network, chain: Chain, i: int, edges: list[int], streams: tuple[dict[int, WindowStreams], ...]
) -> list[_Part] | str:
    """The tables of copy i by position (interiors, then what is around), or the variable that is out of place."""
    scope = (*chain.copies[i], *chain.around(i))
    position = {v: p for p, v in enumerate(scope)}
    parts: list[_Part] = []
    of_variable, of_edge = streams
    own = [
        *(w for v in chain.copies[i] for w, _ in of_variable.get(v, ())),
        *(w for k in edges for w, _ in of_edge.get(k, ())),
    ]
    number = {w: n for n, w in enumerate(sorted(set(own)))}

    def in_windows(part: WindowStreams) -> tuple[tuple[int, Table], ...]:
        return tuple((number[w], table) for w, table in part)

    for v, term in zip(chain.copies[i], network.terms(chain.copies[i], ()), strict=True):
        use = term.use if term.rows is None else network.variables[v].dense(len(network.capacities))
        where = tuple(position[u] for u in term.scope)
        parts.append((where, False, (term.cost, use, term.extra), in_windows(of_variable.get(v, ()))))
    for k, term in zip(edges, network.terms((), edges), strict=True):
        for v in term.scope:
            if v not in position:
                return f"an edge leaves it for {network.variables[v].name}"
        *z, u, v = (position[v] for v in term.scope)
        tables = term.cost, term.use, term.extra
        parts.append(((*z, min(u, v), max(u, v)), u > v, tables, in_windows(of_edge.get(k, ()))))
    return sorted(parts, key=lambda part: part[0])  # stable: parallel edges keep their order


def _differ(first: list[_Part], other: list[_Part]) -> Iterator[str]:
    if [p[0] for p in first] != [p[0] for p in other]:
        yield "its edges"
        return
    for (where, flip, tables, windows), (_, other_flip, others, other_windows) in zip(first, other, strict=True):
        if [w for w, _ in windows] != [w for w, _ in other_windows]:
            yield f"the windows at {where}"
            continue
        for (_, mine), (_, its) in zip(windows, other_windows, strict=True):
            if not np.array_equal(mine if flip == other_flip else np.swapaxes(mine, -2, -1), its):
                yield f"the streams at {where}"
        for a, b in zip(tables, others, strict=True):
            if a is b and (flip == other_flip or a is None):
                continue
            if a is None or b is None:
                if (b if a is None else a).any():  # type: ignore[union-attr]
                    yield f"the uses at {where}"
                continue
            same = a if flip == other_flip else np.swapaxes(a, len(where) - 2, len(where) - 1)
            if not np.array_equal(same, b):
                yield f"the tables at {where}"
