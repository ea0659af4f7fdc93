"""A cost network as a few arrays, which compiled loops read: the form of all that handles large networks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from ...formulation.network.network import INFINITE, Network
from ..elimination.kernels import Ints

_LARGEST = (1 << 63) - 1  # use or limit that 64 bits hold; sums that could come near are refused (`fits`)
_EXACT = 1 << 52  # below, floats add integers exactly
_CUT = INFINITE - 1  # where sums of parallel edges are cut


class Pairs(NamedTuple):
    """The options and edge tables of a `Flat`, as compiled loops read them."""

    start: Ints
    ends: Ints
    at: Ints
    table: Ints


@dataclass(frozen=True, slots=True, eq=False)
class Flat:
    """V variables, E edges with tables, P pieces of use, R capacities; all arrays are int64.

    `start` [V+1]: variable v has the options start[v] to start[v+1], of which `cost` [options] is the price; INFINITE
    or more is forbidden. `ends` [E, 2] with u < v, no pair twice; `at` [E+1]: edge e has the entries at[e] to at[e+1]
    of `table`, [n_u, n_v] row by row. `limits` [R]. Piece p belongs to the variable `piece_of` [P], counts on the
    capacities rows[p, 0] to rows[p, 1] (`rows` [P, 2], half-open) and uses `use[use_at[p] + option]` there (never
    negative). `pair_use` [entries, R] is what pairs use, or None for nothing.
    """

    start: Ints
    cost: Ints
    ends: Ints
    at: Ints
    table: Ints
    limits: Ints
    piece_of: Ints
    rows: Ints
    use_at: Ints
    use: Ints
    pair_use: Ints | None = None
    constant: int = 0

    @property
    def variables(self) -> int:
        return len(self.start) - 1

    @property
    def pairs(self) -> Pairs:
        return Pairs(self.start, self.ends, self.at, self.table)

    @property
    def sizes(self) -> Ints:
        """[V]: how many options every variable has."""
        return np.diff(self.start)

    def loads(self, choice: Ints) -> Ints:
        """[R]: what an option of every variable uses of every capacity."""
        steps = np.zeros(len(self.limits) + 1, np.int64)
        used = self.use[self.use_at[:-1] + choice[self.piece_of]]
        np.add.at(steps, self.rows[:, 0], used)
        np.subtract.at(steps, self.rows[:, 1], used)
        total: Ints = np.cumsum(steps)[:-1]
        if self.pair_use is not None:
            total += self.pair_use[self.entries(choice)].sum(axis=0)
        return total

    def entries(self, choice: Ints) -> Ints:
        """[E]: where every edge's entry for a choice is in `table`."""
        u, v = self.ends.T
        places: Ints = self.at[:-1] + choice[u] * self.sizes[v] + choice[v]
        return places

    def price(self, choice: Ints) -> int | None:
        """What an option of every variable costs; None where a cost is infinite or a capacity exceeded."""
        costs = np.concatenate([self.cost[self.start[:-1] + choice], self.table[self.entries(choice)]])
        if (costs >= INFINITE).any() or (self.loads(choice) > self.limits).any():
            return None
        return self.constant + int(costs.sum())

    def floor(self) -> int:
        """What no choice costs less than, the sum of the least of all tables; INFINITE where one forbids all."""
        least = _by_part(np.minimum, *_costs(self))
        return INFINITE if max(least, default=0) >= INFINITE else self.constant + sum(least)


def flattened(network: Network) -> Flat:
    """The same network, which has no switches; edges between the same two variables are one."""
    assert not network.switches
    variables = network.variables
    sizes = np.array([len(v.cost) for v in variables], np.int64)
    ends, tables, uses = _merged(network)
    pieces = [(v, row, use) for v, x in enumerate(variables) for row, use in _pieces(x.use, x.rows)]
    return Flat(
        start=_offsets(sizes),
        cost=_joined([np.minimum(x.cost, INFINITE) for x in variables]),
        ends=np.array(ends, np.int64).reshape(-1, 2),
        at=_offsets([t.size for t in tables]),
        table=_joined([t.ravel() for t in tables]),
        limits=np.array([min(limit, _LARGEST) for limit in network.capacities], np.int64),
        piece_of=np.array([v for v, _, _ in pieces], np.int64),
        rows=np.array([row for _, row, _ in pieces], np.int64).reshape(-1, 2),
        use_at=_offsets([len(use) for _, _, use in pieces]),
        use=_joined([use for _, _, use in pieces]),
        pair_use=uses,
        constant=int(network.constant),
    )


def _pieces(use: Ints, rows: Ints | None) -> list[tuple[tuple[int, int], Ints]]:
    """The columns of a variable's use that are not all 0, with the capacities that they count on."""
    columns = np.flatnonzero(use.any(axis=0)).tolist()
    return [((r, r + 1) if rows is None else (int(rows[r, 0]), int(rows[r, 1])), use[:, r]) for r in columns]


def _merged(network: Network) -> tuple[list[tuple[int, int]], list[Ints], Ints | None]:
    """Ends, tables and uses of the edges, the smaller variable first, parallel ones added up."""
    tables: dict[tuple[int, int], Ints] = {}
    uses: dict[tuple[int, int], Ints] = {}
    for e in network.edges:
        key = min(e.u, e.v), max(e.u, e.v)
        cost = np.minimum(e.cost if e.u < e.v else e.cost.T, INFINITE)
        tables[key] = _sum(tables[key], cost) if key in tables else cost
        if e.use is not None:
            use = e.use if e.u < e.v else e.use.transpose(1, 0, 2)
            uses[key] = _use_sum(uses[key], use) if key in uses else use
    if not uses:
        return list(tables), list(tables.values()), None
    none = len(network.capacities)
    every = [
        uses[k].reshape(t.size, none) if k in uses else np.zeros((t.size, none), np.int64) for k, t in tables.items()
    ]
    return list(tables), list(tables.values()), np.concatenate(every)


def _sum(a: Ints, b: Ints) -> Ints:
    """The sum of two tables; what is infinite in one of them stays so, and nothing else becomes so.

    What comes near is cut and stays cut, whatever is added to it: that is too large for `fits`.
    """
    total = np.clip(a + b, -_CUT, _CUT)
    total = np.where(np.abs(a) >= _CUT, a, np.where(np.abs(b) >= _CUT, b, total))
    return np.where(np.maximum(a, b) >= INFINITE, INFINITE, total)


def _use_sum(a: Ints, b: Ints) -> Ints:
    """The sum of two uses, or `_LARGEST` where it is more."""
    return np.where(a > _LARGEST - b, _LARGEST, a + b)


def fits(flat: Flat) -> bool:
    """True if reduction can add up costs and uses in 64 bits, without ever coming to INFINITE.

    No number in there is more than the largest costs of all tables, each above the least one there, add up to.
    """
    finite = [(np.where(values < INFINITE, values, 0), at) for values, at in _costs(flat)]
    above, below = (sum(_by_part(np.maximum, *((np.maximum(sign * x, 0), at) for x, at in finite))) for sign in (1, -1))
    uses = [(flat.use, flat.use_at)] + (
        [] if flat.pair_use is None else [(flat.pair_use.max(axis=1, initial=0), flat.at)]
    )
    return above + 2 * below + abs(flat.constant) < _CUT and sum(_by_part(np.maximum, *uses)) < 1 << 62


def in_floats(flat: Flat) -> Flat | None:
    """The same with costs so large cut to a level that what a choice costs at most adds up exactly in floats.

    No choice costs less than it does there, so that bounds hold; one without a cost of that level costs the same. So
    the best one there is the best where it costs less than the level above `floor`. None where that is in vain.
    """
    costs = [(np.where(x < INFINITE, np.abs(x), 0), at) for x, at in _costs(flat)]
    most, room = _by_part(np.maximum, *costs), _EXACT - 1 - abs(flat.constant)
    if sum(most) <= room:
        return flat
    level = _level(most, room)
    negative = min(flat.cost.min(initial=0), flat.table.min(initial=0)) < 0  # reduction leaves none if it has time
    if level <= 0 or negative:
        return None
    cost, table = (np.where(x < INFINITE, np.minimum(x, level), x) for x in (flat.cost, flat.table))
    return replace(flat, cost=cost, table=table)


def _level(amounts: list[int], room: int) -> int:
    """The largest number such that amounts that are more than `room` add up to that at most once cut to it."""
    left = len(amounts)
    for amount in sorted(amounts):
        if amount * left > room:
            return room // left
        room, left = room - amount, left - 1
    return room


def _costs(flat: Flat) -> list[tuple[Ints, Ints]]:
    """The costs of options and of pairs, and where the part of every variable and edge begins and ends."""
    return [(flat.cost, flat.start), (flat.table, flat.at)]


def _by_part(which: np.ufunc, *parts: tuple[Ints, Ints]) -> list[int]:
    """The least or largest number of each part of some arrays, which begin and end at the second ones."""
    return [number for x, at in parts if len(x) for number in which.reduceat(x, at[:-1]).tolist()]


def _offsets(sizes: Sequence[int] | Ints) -> Ints:
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)


def _joined(parts: Sequence[Ints]) -> Ints:
    return np.concatenate(parts).astype(np.int64) if len(parts) else np.zeros(0, np.int64)
