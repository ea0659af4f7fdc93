"""Hubs of little consequence loosened: a network narrow enough for elimination, which bounds one that is too wide.

A mixture of experts hands the sum of its balancing losses from layer to layer, beside the activations, and which tokens
go to which expert from one operator to many others. These tensors are small, but their layouts tie all of a layer's
variables to each other, and the layers. A hub is *loose* if each of its readers may assume another layout of it, the
cheapest for itself:

    Σ_e c_e(h, x_e)   ≥   Σ_e min_h c_e(h, x_e)

and so for what edges use and what they add to windows. So every assignment of the network is one of the loose network
that costs and uses no more. What it costs more is at most the hub's *stake*: how much its tables vary along it, summed.

The way back is a network, too: what has little at stake is decided again, given all else (`Loosened.rest`).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from .joined_pairs import LEAST_COPIES
from .network import INFINITE, Edge, Network, Switch, SwitchTables, Table, Window, window_terms

Ints = npt.NDArray[np.int64]

_GROWTH = 2
_LEAST_OF_ALL = 16
"""Hubs with more than this part of the largest stake are not loosened."""

_LEAST = -1


@dataclass(frozen=True)
class Loosened:
    """The network with its `loose` hubs, which have one option each. `open` has little at stake: it is decided last."""

    network: Network
    before: Network
    loose: frozenset[int]
    open: frozenset[int]

    def rest(self, assignment: Sequence[int]) -> Network:
        """The network as it was, of which only the variables of little stake are left to be decided."""
        return _of_first_modes(_changed(self.before, {v: x for v, x in enumerate(assignment) if v not in self.open}))

    def assignment(self, found: Sequence[int], rest: Sequence[int]) -> tuple[int, ...]:
        """The assignment of the network as it was, from one of the loose network and one of what it left open."""
        return tuple(rest[v] if v in self.open else x for v, x in enumerate(found))


def loosened(network: Network, fits: Callable[[Network], bool]) -> Loosened | None:
    """The network with few hubs loosened, so many that it `fits`; None if that would loosen some of consequence.

    Of each of its `pairs` one is loosened, so that the other alone leads from layer to layer, then what has as little
    at stake.
    """
    if len(network.pairs) <= LEAST_COPIES:
        return None
    stakes, hubs = _stakes(network), free_hubs(network)
    if not all(u in hubs and v in hubs for u, v in network.pairs):
        return None
    most = max((stakes[v] for v in hubs), default=0) // _LEAST_OF_ALL
    reach = max(min(stakes[u], stakes[v]) for u, v in network.pairs)
    while reach <= most:
        loose = frozenset(v for v in hubs if stakes[v] <= reach)
        found = replace(_changed(network, dict.fromkeys(loose, _LEAST)), pairs=network.pairs, line=network.line)
        if fits(found):
            return Loosened(found, network, loose, _open(network, stakes, loose, reach))
        reach *= _GROWTH
    return None


def free_hubs(network: Network) -> set[int]:
    """Variables that cost and use nothing by themselves, and that decide on no tables."""
    decided = (part.variables.keys() for parts in (network.switches, network.windows) for part in parts)
    taken = {s.variable for s in network.switches}.union(*decided)
    return {v for v, x in enumerate(network.variables) if v not in taken and not (x.cost.any() or x.use.any())}


def _stakes(network: Network) -> list[int]:
    """How much the permitted entries of the tables of each variable vary along it, summed."""
    known: dict[tuple[int, int], tuple[int, ...]] = {}  # equal layers share tables

    def variations(table: Table, start: int) -> tuple[int, ...]:
        key = id(table), start
        if key not in known:
            forbidden = table >= INFINITE
            highest = np.where(forbidden, -INFINITE, table) if forbidden.any() else table
            lows = (table.min(axis=axis, initial=INFINITE) for axis in range(start, table.ndim))
            ranges = (highest.max(axis=axis, initial=-INFINITE) - low for axis, low in enumerate(lows, start))
            known[key] = tuple(int(np.max(x, initial=0)) for x in ranges)
        return known[key]

    found = [0] * len(network.variables)
    for scope, table, start in _tables(network):
        for v, x in zip(scope, variations(table, start), strict=True):
            found[v] += x
    return found


def _tables(network: Network) -> Iterator[tuple[tuple[int, ...], Table, int]]:
    """The tables of costs and of streams over each scope, whose dims are those from a number on."""
    for term in network.terms():
        yield term.scope, term.cost, 0
    for terms in window_terms(network):
        for scope, table in terms:
            yield scope, table, 1


def _open(network: Network, stakes: Sequence[int], loose: AbstractSet[int], reach: int) -> frozenset[int]:
    """Loose hubs, what is next to them, and what these lead to by variables of stakes up to `reach`, but for modes."""
    near: dict[int, set[int]] = {}
    for e in network.edges:
        near.setdefault(e.u, set()).add(e.v)
        near.setdefault(e.v, set()).add(e.u)
    modes, found = {s.variable for s in network.switches}, set(loose)
    ahead = [*loose]
    while ahead:
        v = ahead.pop()
        for u in near.get(v, set()) - found - modes:
            if v in loose or stakes[u] <= reach:
                found.add(u)
                ahead.append(u)
    return frozenset(found)


def with_options(network: Network, options: Mapping[int, Ints]) -> Network:
    """The network without chains, in which variables keep only these options."""
    known: dict[bytes, Ints] = {}
    same = {v: known.setdefault(own.tobytes(), own) for v, own in options.items()}
    return replace(_changed(network, same), pairs=network.pairs, line=network.line)


def _changed(network: Network, to: Mapping[int, int | Ints]) -> Network:
    """The network without chains, in which variables keep fewer options: one, several, or the `_LEAST` of each entry.

    Equal tables stay shared.
    """
    known: dict[tuple[object, ...], Table] = {}

    def changed(table: Table, scope: tuple[int, ...], start: int = 0) -> Table:
        ways = tuple(to.get(v) for v in scope)
        key = id(table), start, tuple(way if isinstance(way, int) else id(way) for way in ways)
        if key not in known:
            made, least = table, list[int]()
            for axis, way in enumerate(ways, start):
                if isinstance(way, int) and way == _LEAST:
                    least.append(axis)
                elif isinstance(way, int):
                    made = made[(*[slice(None)] * axis, slice(way, way + 1))]
                elif way is not None and len(way) < made.shape[axis]:
                    made = made.take(way, axis)
            known[key] = made.min(axis=tuple(least), keepdims=True) if least else made
        return known[key]

    def of_switch(tables: SwitchTables, scope: tuple[int, ...]) -> SwitchTables:
        use, extra = (None if table is None else changed(table, scope) for table in tables[1:])
        return changed(tables[0], scope), use, extra

    ends = [(e.u, e.v) for e in network.edges]
    variables = tuple(
        replace(x, cost=changed(x.cost, (v,)), use=changed(x.use, (v,))) for v, x in enumerate(network.variables)
    )
    edges = tuple(
        Edge(e.u, e.v, changed(e.cost, own), None if e.use is None else changed(e.use, own))
        for e, own in zip(network.edges, ends, strict=True)
    )
    switches = tuple(
        Switch(
            s.variable,
            {v: of_switch(tables, (s.variable, v)) for v, tables in s.variables.items()},
            {k: of_switch(tables, (s.variable, *ends[k])) for k, tables in s.edges.items()},
        )
        for s in network.switches
    )
    windows = []
    for w, terms in zip(network.windows, window_terms(network), strict=True):
        made = [changed(table, scope, 1) for scope, table in terms]
        own, between = made[: len(w.variables)], made[len(w.variables) :]
        windows.append(Window(dict(zip(w.variables, own, strict=True)), dict(zip(w.edges, between, strict=True))))
    found = replace(network, variables=variables, edges=edges, switches=switches, windows=tuple(windows))
    return replace(found, chains=(), pairs=(), line=())


def without_modes(network: Network) -> Network | None:
    """The network in the first of its modes, without switches; None if another mode costs less somewhere."""
    known: dict[int, bool] = {}
    for switch in network.switches:
        own = network.variables[switch.variable].cost
        for table in (own, *(t[0] for tables in (switch.variables, switch.edges) for t in tables.values())):
            if id(table) not in known:
                known[id(table)] = bool((table[1:] >= table[:1]).all())
            if not known[id(table)]:
                return None
    return replace(_of_first_modes(network), switches=())


def _of_first_modes(network: Network) -> Network:
    """The network whose variables and edges have the tables of the first of the modes that are left.

    Equal tables stay shared.
    """
    variables, edges, known = list(network.variables), list(network.edges), dict[int, Table]()

    def first(table: Table) -> Table:
        return known.setdefault(id(table), table[0])

    def unused(table: Table) -> Table:
        return known.setdefault(id(table), np.zeros_like(table))

    for switch in network.switches:
        for v, (cost, use, _) in switch.variables.items():
            own = unused(network.variables[v].use) if use is None else first(use)
            variables[v] = replace(variables[v], cost=first(cost), use=own)
        for k, (cost, use, _) in switch.edges.items():
            edges[k] = replace(edges[k], cost=first(cost), use=None if use is None else first(use))
    return replace(network, variables=tuple(variables), edges=tuple(edges))
