"""The problem of each part of a network without capacities, so that the problems' optima add up to the network's.

The parts form a tree (`blocks.py`). Between part P and the one above, a message m_P is a cost for every option of the
separator that moves from one problem to the other:

    problem of P:   min  cost_P(x) + Σ_Q m_Q(x_s(Q)) - m_P(x_s(P))          over the variables x of P; Q: parts below P

The messages cancel in the sum of all problems, so bounds on the problems add up to one on the network, whatever the
messages are. A backend that proves the optimum of every problem, its separators being variables, proves the network's.
With the right messages nothing is lost. They come from elimination, which so is no part of the proof: with u_P(s) the
least cost of P and all below, and σ_P(s) >= 0 how far the best of the whole network through s is from the optimum,

    m_P = u_P - α_P σ_P                       α = 1/2 along a chain, shared among several parts below

leaves either side a share of σ, so that options of a separator far from the optimum are dear in both problems.
Equal problems, of equal layers, are solved once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import inf, isinf

import numpy as np

from ...formulation.network.network import INFINITE, Edge, Network, Switch, SwitchTables, Table, Variable
from ..elimination.factors import dense
from ..elimination.kernels import Floats
from ..elimination.order import TooWideError, compile_network
from ..elimination.tables import Tables
from .blocks import Part, split

_DOWN, _UP = 1 - 2.0**-40, 1 + 2.0**-40  # margins for the rounding of sums of products
_BEYOND = 4  # an impossible option of a separator costs so many times the dearest possible one


@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """A part's problem, without capacities; its optimum `least` by elimination; how many parts are equal to it."""

    network: Network
    least: int
    count: int


def priced(network: Network, price: Sequence[float]) -> Network:
    """The Lagrangian relaxation at a price per byte of each capacity, in integers: every total is rounded down."""
    if not any(price):
        return _without_use(network)
    network, prices = dense(network), np.array(price)
    known: dict[tuple[int, int], Table] = {}

    def table(cost: Table, use: Table | None) -> Table:
        if use is None:
            return cost
        key = id(cost), id(use)
        if key not in known:
            paid = np.floor(use @ prices * _DOWN).astype(np.int64)
            known[key] = np.where(cost >= INFINITE, INFINITE, cost + paid)
        return known[key]

    def of_switch(tables: SwitchTables) -> SwitchTables:
        return table(tables[0], tables[1]), None, None

    paid = float(prices @ np.array(network.capacities, np.float64)) * _UP
    return _without_use(
        replace(
            network,
            variables=tuple(replace(v, cost=table(v.cost, v.use)) for v in network.variables),
            edges=tuple(replace(e, cost=table(e.cost, e.use)) for e in network.edges),
            switches=tuple(s.with_tables(of_switch) for s in network.switches),
            constant=network.constant - int(np.ceil(paid)),
        )
    )


def _without_use(network: Network) -> Network:
    """The network without capacities and what is used of them."""
    switches = tuple(s.with_tables(lambda tables: (tables[0], None, None)) for s in network.switches)
    variables = tuple(Variable(v.name, v.cost, np.zeros((len(v.cost), 0), np.int64)) for v in network.variables)
    edges = tuple(Edge(e.u, e.v, e.cost) for e in network.edges)
    return replace(network, variables=variables, edges=edges, capacities=(), switches=switches)


def problems(network: Network, until: float = inf) -> list[Problem] | None:
    """The different problems of a network without capacities; None if some part admits nothing.

    Raises TooWideError if a message cannot be computed, OutOfTimeError after `until` (of perf_counter).
    """
    parts, kinds, numbers = split(network), dict[object, _Kind](), _Numbers()
    of_part: list[_Kind] = []
    for part, content in zip(parts, _contents(network, parts), strict=True):
        local = {v: n for n, v in enumerate(part.variables)}
        below = [(tuple(local[v] for v in parts[k].separator), of_part[k].up) for k in part.below]
        at = tuple(local[v] for v in part.separator)
        key = content.key(network, local), tuple((ends, up.number) for ends, up in below), at
        if key not in kinds:
            kind = _upward(content.network(network, part.variables), below, at, numbers, until)
            if kind is None:
                return None
            kinds[key] = kind
        of_part.append(kinds[key])
    free = numbers.of(np.zeros((), np.int64))
    down = {k: (free, Fraction(1, 2)) for k, part in enumerate(parts) if not part.separator}
    found: dict[object, tuple[Problem, list[tuple[_Message, Fraction]]]] = {}
    counts: dict[object, int] = {}
    for k in reversed(range(len(parts))):
        kind, (outside, alpha) = of_part[k], down[k]
        place = id(kind), outside.number, alpha
        if place not in found:
            found[place] = _downward(kind, outside, alpha, numbers, until)
        counts[place] = counts.get(place, 0) + 1
        down.update((b, given) for b, given in zip(parts[k].below, found[place][1], strict=True) if parts[b].separator)
    return [replace(problem, count=counts[place]) for place, (problem, _) in found.items()]


@dataclass(frozen=True, slots=True, eq=False)
class _Message:
    """Costs of a separator's options; equal ones share a number."""

    table: Table
    number: int


class _Numbers:
    """Numbers messages by their content."""

    def __init__(self) -> None:
        self.known: dict[tuple[tuple[int, ...], bytes], _Message] = {}

    def of(self, table: Table) -> _Message:
        key = table.shape, table.tobytes()
        return self.known.setdefault(key, _Message(table, len(self.known)))


@dataclass(frozen=True, slots=True, eq=False)
class _Kind:
    """Equal parts with equal parts below: their tables, with an edge of one more variable of one option, `none`;
    the separators of the parts `below` and their messages; the separator `at`; the least cost and the rest, `up`."""

    network: Network
    none: int
    below: list[tuple[tuple[int, ...], _Message]]
    at: tuple[int, ...]
    least: int
    up: _Message

    def with_tables(self, below: Sequence[Table], here: Table) -> Network:
        """The network with one table for every separator, the last for `at`; empty separators have none."""
        tables = [(ends, table) for (ends, _), table in zip(self.below, below, strict=True)]
        edges = (_edge(ends, self.none, table) for ends, table in [*tables, (self.at, here)] if ends)
        return replace(self.network, edges=(*self.network.edges, *edges))


@dataclass(frozen=True, slots=True)
class _Content:
    """The tables of a part: variables with their own cost, edges, switches, all by the network's numbers."""

    variables: list[int]
    edges: list[int]
    switches: list[Switch]

    def key(self, network: Network, local: dict[int, int]) -> object:
        """Equal for parts of equal tables in equal places."""
        sizes = tuple(len(network.variables[v].cost) for v in local)
        own = tuple((local[v], id(network.variables[v].cost)) for v in self.variables)
        edges = tuple((local[e.u], local[e.v], id(e.cost)) for e in (network.edges[k] for k in self.edges))
        place = {k: n for n, k in enumerate(self.edges)}
        switches = tuple(
            (
                local[s.variable],
                tuple((local[v], id(t[0])) for v, t in s.variables.items()),
                tuple((place[k], id(t[0])) for k, t in s.edges.items()),
            )
            for s in self.switches
        )
        return sizes, own, edges, switches

    def network(self, whole: Network, variables: Sequence[int]) -> Network:
        """The tables as a network of the part's variables, in this order."""
        local, own = {v: n for n, v in enumerate(variables)}, set(self.variables)
        place = {k: n for n, k in enumerate(self.edges)}
        mine = []
        for v in variables:
            variable = whole.variables[v]
            mine.append(variable if v in own else replace(variable, cost=np.zeros_like(variable.cost)))
        edges = (whole.edges[k] for k in self.edges)
        return Network(
            tuple(mine),
            tuple(replace(e, u=local[e.u], v=local[e.v]) for e in edges),
            switches=tuple(
                Switch(
                    local[s.variable],
                    {local[v]: t for v, t in s.variables.items()},
                    {place[k]: t for k, t in s.edges.items()},
                )
                for s in self.switches
            ),
        )


def _contents(network: Network, parts: Sequence[Part]) -> Iterator[_Content]:
    """The tables of each part; every table belongs to the first part that has all of its variables."""
    where: dict[int, list[int]] = {}
    for k, part in enumerate(parts):
        for v in part.variables:
            where.setdefault(v, []).append(k)
    found = [_Content([], [], []) for _ in parts]

    def home(scope: Sequence[int]) -> _Content:
        return found[min(set(where[scope[0]]).intersection(*(where[v] for v in scope[1:])))]

    decided = {v for s in network.switches for v in s.variables}
    of_edge = {k: s for s in network.switches for k in s.edges}
    for switch in network.switches:
        home(switch.scope(network.edges)).switches.append(switch)
    for v in range(len(network.variables)):
        if v not in decided:
            home((v,)).variables.append(v)
    for k, e in enumerate(network.edges):
        if k in of_edge:
            home(of_edge[k].scope(network.edges)).edges.append(k)
        else:
            home((e.u, e.v)).edges.append(k)
    yield from found


def _upward(
    network: Network,
    below: list[tuple[tuple[int, ...], _Message]],
    at: tuple[int, ...],
    numbers: _Numbers,
    until: float,
) -> _Kind | None:
    """A kind of parts, with the message from it and all below to its separator; None if it admits nothing."""
    none = Variable("", np.zeros(1, np.int64), np.zeros((1, 0), np.int64))
    count = len(network.variables)
    shape = tuple(len(network.variables[v].cost) for v in at)
    kind = _Kind(
        replace(network, variables=(*network.variables, none)), count, below, at, 0, _Message(np.zeros(0, np.int64), -1)
    )
    through = _through(kind.with_tables([m.table for _, m in below], np.zeros(shape, np.int64)), until)
    if isinf(through.least):
        return None
    up = _whole(through.of_edge(-1, shape), through.least) if at else np.zeros((), np.int64)
    return replace(kind, least=int(through.least), up=numbers.of(up))


def _downward(
    kind: _Kind, outside: _Message, alpha: Fraction, numbers: _Numbers, until: float
) -> tuple[Problem, list[tuple[_Message, Fraction]]]:
    """The problem of a kind under what the rest of the network costs, `outside`; what it and the rest cost parts below.

    With the α of each part below.
    """
    own = kind.up.table - _share(alpha, kind.up.table + outside.table)
    if not kind.below:
        return Problem(kind.with_tables([], -own), kind.least, 1), []
    through = _through(kind.with_tables([m.table for _, m in kind.below], outside.table), until)
    first = len(through.shapes) - sum(bool(ends) for ends, _ in kind.below) - bool(kind.at)
    alphas = alpha / max(1, sum(bool(ends) for ends, _ in kind.below))
    tables, given = [], []
    for ends, up in kind.below:
        if not ends:
            tables.append(up.table)
            given.append((up, alpha))
            continue
        above = _whole(through.of_edge(first, up.table.shape), through.least)
        first += 1
        tables.append(up.table - _share(alphas, above))
        given.append((numbers.of(above - up.table), alphas))
    return Problem(kind.with_tables(tables, -own), kind.least, 1), given


def _share(alpha: Fraction, table: Table) -> Table:
    shares: Table = table * alpha.numerator // alpha.denominator
    return shares


@dataclass(frozen=True, slots=True, eq=False)
class _Through:
    """The least total of a network, and of solutions through every entry of its tables, by elimination."""

    least: float
    tables: Tables
    first: int  # the table of the first edge
    shapes: list[tuple[int, ...]]

    def of_edge(self, k: int, shape: tuple[int, ...]) -> Floats:
        """The least totals through the entries of edge k."""
        at = self.first + (k if k >= 0 else len(self.shapes) + k)
        return self.tables[at].reshape(shape)


def _through(network: Network, until: float) -> _Through:
    circuit = compile_network(network)
    if not circuit.exact:
        raise TooWideError("totals of a part are not exact in floats")
    slots = circuit.forward(circuit.tables(1, ()), until)
    least, first = float(slots[-1]), len(network.variables)
    tables = Tables() if isinf(least) else circuit.backward(slots, until)
    return _Through(least, tables, first, [f.time.shape for f in circuit.factors[first:]])


def _whole(through: Floats, least: float) -> Table:
    """Totals less their least, in integers; an impossible one is a few times as large as the largest possible one."""
    above = through - least
    beyond = _BEYOND * (1 + float(above[above < np.inf].max()) + abs(least))
    return np.where(np.isinf(above), beyond, above).astype(np.int64)


def _edge(ends: tuple[int, ...], none: int, table: Table) -> Edge:
    """A table over one or two variables as an edge; `none` is a variable of one option."""
    return Edge(ends[0], ends[1], table) if len(ends) == 2 else Edge(ends[0], none, table[:, None])
