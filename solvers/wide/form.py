"""Cost networks as a few arrays for compiled loops: the form of all code for large networks."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from ...formulation.network.network import INFINITE, Network
from ..elimination.kernels import Ints, compiled

_Number = TypeVar("_Number", np.int64, np.float64)

_LARGEST = (1 << 63) - 1  # use or limit; `fits` rejects sums near it
_EXACT = 1 << 52  # floats add smaller integers exactly
_CUT = INFINITE - 1  # clips sums of parallel edges


class Pairs(NamedTuple):
    """The options and edge tables of a `Flat`, as compiled loops read them."""

    start: Ints
    ends: Ints
    at: Ints
    table: Ints


@dataclass(frozen=True, slots=True, eq=False)
class Flat:
    """V variables, E edges with tables, P pieces of use, R capacities; all arrays are int64.

    `start` [V+1]: variable v has the options start[v] to start[v+1], of `cost` [options]; INFINITE or more is
    forbidden. `ends` [E, 2] with u < v, no pair twice; `at` [E+1]: edge e has the entries at[e] to at[e+1]
    of `table`, [n_u, n_v] row by row. `limits` [R]. Piece p belongs to the variable `piece_of` [P], counts on the
    capacities rows[p, 0] to rows[p, 1] (`rows` [P, 2], half-open) and uses `use[use_at[p] + option]` there (never
    negative). `pair_use` [entries, R] is the use of pairs, None for none.
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
        """[V]: the number of options of every variable."""
        return np.diff(self.start)

    def loads(self, choice: Ints) -> Ints:
        """[R]: the use of every capacity by a choice [V]."""
        total = self.row_sums(self.use[self.use_at[:-1] + choice[self.piece_of]])
        if self.pair_use is not None:
            total += self.pair_use[self.entries(choice)].sum(axis=0)
        return total

    @property
    def use_options(self) -> Ints:
        """[use]: the option of each use."""
        first = self.start[self.piece_of] - self.use_at[:-1]
        return np.repeat(first, np.diff(self.use_at)) + np.arange(len(self.use))

    def row_sums(self, amounts: npt.NDArray[_Number]) -> npt.NDArray[_Number]:
        """[R]: per capacity, the sum of the amounts [P] of the pieces that count on it."""
        steps = np.zeros(len(self.limits) + 1, amounts.dtype)
        np.add.at(steps, self.rows[:, 0], amounts)
        np.subtract.at(steps, self.rows[:, 1], amounts)
        total: npt.NDArray[_Number] = np.cumsum(steps)[:-1]
        return total

    def entries(self, choice: Ints) -> Ints:
        """[E]: the entry of `table` of every edge under a choice."""
        u, v = self.ends.T
        places: Ints = self.at[:-1] + choice[u] * self.sizes[v] + choice[v]
        return places

    def price(self, choice: Ints) -> int | None:
        """The cost of a choice [V]; None if it is forbidden or exceeds a capacity."""
        costs = np.concatenate([self.cost[self.start[:-1] + choice], self.table[self.entries(choice)]])
        if (costs >= INFINITE).any() or (self.loads(choice) > self.limits).any():
            return None
        return self.constant + int(costs.sum())

    def floor(self) -> int:
        """Lower bound on every choice: the sum of the minima of all tables; INFINITE if one forbids all."""
        least = _by_part(np.minimum, *_costs(self))
        return INFINITE if max(least, default=0) >= INFINITE else self.constant + sum(least)


def flattened(network: Network) -> Flat:
    """The arrays of a network without switches; parallel edges are summed."""
    assert not network.switches and not network.windows
    variables = network.variables
    sizes = np.array([len(v.cost) for v in variables], np.int64)
    ends, tables, uses = _merged(network)
    pieces = [(v, row, use) for v, x in enumerate(variables) for row, use in _pieces(x.use, x.rows)]
    return Flat(
        start=offsets(sizes),
        cost=joined([np.minimum(x.cost, INFINITE) for x in variables]),
        ends=np.array(ends, np.int64).reshape(-1, 2),
        at=offsets([t.size for t in tables]),
        table=_in_a_row(tables),
        limits=np.array([min(limit, _LARGEST) for limit in network.capacities], np.int64),
        piece_of=np.array([v for v, _, _ in pieces], np.int64),
        rows=np.array([row for _, row, _ in pieces], np.int64).reshape(-1, 2),
        use_at=offsets([len(use) for _, _, use in pieces]),
        use=joined([use for _, _, use in pieces]),
        pair_use=uses,
        constant=int(network.constant),
    )


def _pieces(use: Ints, rows: Ints | None) -> list[tuple[tuple[int, int], Ints]]:
    """The nonzero columns of a variable's use, with the capacities that they count on."""
    columns = np.flatnonzero(use.any(axis=0)).tolist()
    return [((r, r + 1) if rows is None else (int(rows[r, 0]), int(rows[r, 1])), use[:, r]) for r in columns]


def _merged(network: Network) -> tuple[list[tuple[int, int]], list[Ints], Ints | None]:
    """Ends, tables and uses of the edges, the smaller variable first; parallel edges are summed.

    Tables are those of the network where they can be: equal edges share them, and all in a row are large.
    """
    tables: dict[tuple[int, int], Ints] = {}
    uses: dict[tuple[int, int], Ints] = {}
    for e in network.edges:
        key = min(e.u, e.v), max(e.u, e.v)
        cost = e.cost if e.u < e.v else e.cost.T
        tables[key] = _sum(tables[key], cost) if key in tables else cost
        if e.use is not None:
            use = e.use if e.u < e.v else e.use.transpose(1, 0, 2)
            uses[key] = _use_sum(uses[key], use) if key in uses else use
    if not uses:
        return list(tables), list(tables.values()), None
    together, end = np.zeros((sum(t.size for t in tables.values()), len(network.capacities)), np.int64), 0
    for key, table in tables.items():
        begin, end = end, end + table.size
        if key in uses:
            together[begin:end] = uses[key].reshape(table.size, -1)
    return list(tables), list(tables.values()), together


def _in_a_row(tables: Sequence[Ints]) -> Ints:
    """The entries of all tables, at most INFINITE, row by row."""
    together, end = np.empty(sum(t.size for t in tables), np.int64), 0
    for table in tables:
        begin, end = end, end + table.size
        np.minimum(table, INFINITE, out=together[begin:end].reshape(table.shape))
    return together


def _sum(a: Ints, b: Ints) -> Ints:
    """The sum of two tables; infinite exactly where one of them is.

    Other sums are clipped, and stay clipped when added to; `fits` rejects them.
    """
    a, b = np.minimum(a, INFINITE), np.minimum(b, INFINITE)
    total = np.clip(a + b, -_CUT, _CUT)
    total = np.where(np.abs(a) >= _CUT, a, np.where(np.abs(b) >= _CUT, b, total))
    return np.where(np.maximum(a, b) >= INFINITE, INFINITE, total)


def _use_sum(a: Ints, b: Ints) -> Ints:
    """The sum of two uses, at most `_LARGEST`."""
    return np.where(a > _LARGEST - b, _LARGEST, a + b)


def fits(flat: Flat) -> bool:
    """True if reduction can sum costs and uses in 64 bits, below INFINITE.

    No number in reduction exceeds the sum over tables of the largest cost less the least one.
    """
    least, largest = _finite_range(*_costs(flat))
    uses = [(flat.use, flat.use_at)]
    if flat.pair_use is not None:
        uses.append((flat.pair_use.reshape(-1), flat.at * flat.pair_use.shape[1]))
    costs = sum(largest) - 2 * sum(least) + abs(flat.constant)
    return costs < _CUT and sum(_by_part(np.maximum, *uses)) < 1 << 62


def in_floats(flat: Flat) -> Flat | None:
    """The network with large costs clipped to a level at which every total is exact in floats.

    Clipping only lowers costs, so bounds stay valid; choices without clipped costs keep their cost. An optimum there
    that costs less than `floor` plus the level is optimal. None if clipping cannot help.
    """
    least, most = _finite_range(*_costs(flat))
    largest, room = [max(-a, b) for a, b in zip(least, most, strict=True)], _EXACT - 1 - abs(flat.constant)
    if sum(largest) <= room:
        return flat
    level = _level(largest, room)
    negative = min(least, default=0) < 0  # only if reduction ran out of time
    if level <= 0 or negative:
        return None
    cost, table = (np.where(x < INFINITE, np.minimum(x, level), x) for x in (flat.cost, flat.table))
    return replace(flat, cost=cost, table=table)


def _level(amounts: list[int], room: int) -> int:
    """The largest level such that the amounts, clipped to it, sum to at most `room`."""
    left = len(amounts)
    for amount in sorted(amounts):
        if amount * left > room:
            return room // left
        room, left = room - amount, left - 1
    return room


def _costs(flat: Flat) -> list[tuple[Ints, Ints]]:
    """The costs of options and of pairs, with the offsets of every variable's and edge's part."""
    return [(flat.cost, flat.start), (flat.table, flat.at)]


def _by_part(which: np.ufunc, *parts: tuple[Ints, Ints]) -> list[int]:
    """The minimum or maximum of each part of some arrays, given the parts' offsets."""
    return [number for x, at in parts if len(x) for number in which.reduceat(x, at[:-1]).tolist()]


def _finite_range(*parts: tuple[Ints, Ints]) -> tuple[list[int], list[int]]:
    """The least number, or 0, and the largest finite one, or 0, of each part of some arrays, given its offsets."""
    least, largest = list[int](), list[int]()
    for values, at in parts:
        low, high = np.zeros((2, len(at) - 1), np.int64)
        _finite_ranges(values, at, low, high)
        least += low.tolist()
        largest += high.tolist()
    return least, largest


@compiled
def _finite_ranges(values: Ints, at: Ints, low: Ints, high: Ints) -> None:
    """Fill in `low` and `high` of every part; the arrays are too large for copies."""
    for p in range(low.shape[0]):
        for i in range(at[p], at[p + 1]):
            low[p] = min(low[p], values[i])
            if values[i] < INFINITE:
                high[p] = max(high[p], values[i])


def as_floats(costs: Ints) -> npt.NDArray[np.float64]:
    """Costs as floats, +inf where forbidden."""
    return np.where(costs >= INFINITE, np.inf, costs.astype(np.float64))


def offsets(sizes: Sequence[int] | Ints) -> Ints:
    """[n + 1]: the offsets of consecutive parts of these sizes."""
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)


def joined(parts: Sequence[Ints]) -> Ints:
    """The parts in one array, also if there are none."""
    return np.concatenate(parts).astype(np.int64) if len(parts) else np.zeros(0, np.int64)
