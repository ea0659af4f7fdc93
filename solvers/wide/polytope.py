"""The local polytope of a network, with active capacities, as a linear program.

    x[v,i] >= 0      variable v takes option i
    y[e,p,q] >= 0    edge e = (u,v) joins an option of u's class p to one of v's class q
    min  Σ c[v,i] x[v,i] + Σ c[e,p,q] y[e,p,q]                                     (ns)
    s.t. (1) Σ_i x[v,i] = 1                                         ∀ v
         (2) Σ_q y[e,p,q] = Σ_{i ∈ p} x[u,i]                        ∀ e, p
         (3) Σ_p y[e,p,q] = Σ_{j ∈ q} x[v,j]                        ∀ e, q
         (4) Σ m[v,i,r] x[v,i] + Σ m[e,p,q,r] y[e,p,q] ≤ M_r        ∀ active r (bytes)
         (5) Σ_{(v,i) ∈ C} x[v,i] ≤ |C's variables| - 1             ∀ active covers C

Rows of an edge's table that differ by a constant are one class, as are columns; the constants move to the options.
Forbidden x and y do not exist. Dual prices of (2) and (3) are messages, those of (4) prices of bytes (`fixing.py`).
A cover is a set of options that together exceed a capacity, which (4) admits within float tolerances.
"""

import math
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...formulation.network.network import INFINITE
from ..elimination.kernels import Floats, Ints
from .fixing import LowerBounds, lower_bounds
from .form import Flat, as_floats, joined
from .highs import End, Highs, HighsOutcome, LinearProgram

_ROWS = 40  # capacities added at a time
_TOLERANCE = 1e-7  # relative excess of a capacity that counts as feasible
_SPARE = 1e-9  # relative slack of capacities, so that rounding cuts off no feasible point


@dataclass(frozen=True, slots=True, eq=False)
class Polytope:
    """Columns, and rows (1) to (3).

    Column k is `option[k]` for k < len(option), then a pair of classes, with one of its table entries in `entry`.
    `column` [options] is -1 for forbidden options. Message m of the network is `offset[m]` plus the price of row
    `row[m]`, if that is not -1.
    """

    flat: Flat
    option: Ints
    column: Ints
    entry: Ints
    cost: Floats
    ends: tuple[Ints, Ints]  # row and column of every coefficient
    ones: Floats  # the coefficients
    right: Floats
    row: Ints
    offset: Floats

    def options_of(self, point: Floats) -> Floats:
        """[options]: the part of each option in a point."""
        x = np.zeros(len(self.column))
        x[self.option] = point[: len(self.option)]
        return x

    def choice(self, point: Floats) -> Ints:
        """[V]: the option of the largest value per variable."""
        x = self.options_of(point)
        whose = np.repeat(np.arange(self.flat.variables), self.flat.sizes)
        order = np.lexsort((-np.arange(len(x)), x, whose))  # the last of each variable is its largest
        return order[self.flat.start[1:] - 1] - self.flat.start[:-1]

    def messages(self, prices: Floats) -> Floats:
        """The messages given by the prices of the rows, in the order of `fixing.lower_bounds`."""
        priced = np.where(self.row < 0, 0.0, prices[self.row]) if len(prices) else np.zeros(len(self.row))
        return self.offset + priced


def polytope(flat: Flat) -> Polytope:
    """The local polytope of a network."""
    live = flat.cost < INFINITE
    option = np.flatnonzero(live)
    column = np.where(live, np.cumsum(live) - 1, -1)
    sizes = flat.sizes
    cost = flat.cost.astype(np.float64)
    rows, columns, signs = (
        [np.repeat(np.arange(flat.variables), sizes)[option]],
        [column[option]],
        [np.ones(len(option))],
    )
    entries, costs, row, offset = [], [], [], []
    below, right = flat.variables, len(option)  # the next row, the next column
    for e, (u, v) in enumerate(flat.ends.tolist()):
        at = [np.flatnonzero(live[flat.start[w] : flat.start[w + 1]]) for w in (u, v)]
        classes = _classes(flat, e, at)
        here = [np.full(sizes[w], -1) for w in (u, v)]
        for k, w in enumerate((u, v)):
            move = np.zeros(sizes[w])
            move[at[k]] = classes.offsets[k]
            offset.append(move)
            cost[flat.start[w] : flat.start[w + 1]] += move
            row.append(here[k])
        if classes.separable:
            continue
        p, q = classes.cells
        for k, (of, c) in enumerate(zip(classes.of, (p, q), strict=True)):
            here[k][at[k]] = below + of
            rows += [below + c, below + of]
            columns += [right + np.arange(len(c)), column[flat.start[(u, v)[k]] + at[k]]]
            signs += [np.ones(len(c)), -np.ones(len(of))]
            below += classes.count[k]
        entries.append(flat.at[e] + at[0][classes.first[0][p]] * sizes[v] + at[1][classes.first[1][q]])
        costs.append(classes.cost)
        right += len(p)
    return Polytope(
        flat=flat,
        option=option,
        column=column,
        entry=joined(entries),
        cost=np.concatenate([cost[option], *costs]),
        ends=(np.concatenate(rows), np.concatenate(columns)),
        ones=np.concatenate(signs),
        right=(np.arange(below) < flat.variables).astype(np.float64),
        row=joined(row),
        offset=np.concatenate([np.zeros(0), *offset]),
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Classes:
    """Classes of one edge: class `of` every option at each end, `count`, `first` member; allowed `cells` and their
    cost; `offsets` moved to the options. `separable`: neither cost nor use is left between the ends."""

    of: tuple[Ints, Ints]
    count: tuple[int, int]
    first: tuple[Ints, Ints]
    cells: tuple[Ints, Ints]
    cost: Floats
    offsets: tuple[Floats, Floats]
    separable: bool


def _classes(flat: Flat, e: int, at: list[Ints]) -> _Classes:
    u, v = flat.ends[e]
    shape = flat.sizes[u], flat.sizes[v]
    span = slice(flat.at[e], flat.at[e + 1])
    table = flat.table[span].reshape(shape)[np.ix_(*at)]
    table = as_floats(table)
    offsets = []
    for axis in (1, 0):
        least = table.min(axis=axis, initial=np.inf)
        offsets.append(np.where(np.isinf(least), 0.0, least))
        table = table - np.expand_dims(offsets[-1], axis)
    both = table[..., None]
    if flat.pair_use is not None:
        use = flat.pair_use[span].reshape(*shape, -1)[np.ix_(*at)]
        both = np.concatenate([both, np.where(np.isinf(both), 0.0, use)], axis=2)
    both, first_u, of_u = np.unique(both, axis=0, return_index=True, return_inverse=True)
    both, first_v, of_v = np.unique(both, axis=1, return_index=True, return_inverse=True)
    p, q = np.nonzero(both[..., 0] < np.inf)
    return _Classes(
        of=(of_u.ravel(), of_v.ravel()),
        count=both.shape[:2],
        first=(first_u, first_v),
        cells=(p, q),
        cost=both[p, q, 0],
        offsets=(offsets[0], offsets[1]),
        separable=both.shape[:2] == (1, 1) and len(p) == 1 and not both[..., 1:].any(),
    )


@dataclass(slots=True, eq=False)
class ActiveRows:
    """The capacities (4), then covers (5), in a program; a cover: options, and how many may be taken."""

    rows: list[int] = field(default_factory=list)
    covers: list[tuple[Ints, int]] = field(default_factory=list)


def program(shape: Polytope, held: ActiveRows, scale: float, whole: bool = False) -> tuple[LinearProgram, Floats]:
    """The linear program of the active rows, in units of `scale` ns, and the unit (bytes) of every row (4)."""
    from scipy.sparse import csr_array, vstack

    width = len(shape.cost)
    uses = _uses(shape, held.rows)
    limits = shape.flat.limits[held.rows].astype(np.float64)
    unit = np.maximum(np.maximum(limits, uses.max(axis=1).toarray().ravel() if len(limits) else limits), 1.0)
    at = [shape.column[options] for options, _ in held.covers]
    covers = csr_array(
        (np.ones(sum(map(len, at))), (np.repeat(np.arange(len(at)), list(map(len, at))), joined(at))),
        shape=(len(at), width),
    )
    equal = csr_array((shape.ones, shape.ends), shape=(len(shape.right), width))
    below = vstack([uses.multiply(1 / unit[:, None]), covers], format="csr")
    bounds = np.concatenate([limits / unit * (1 + _SPARE), [float(count) for _, count in held.covers]])
    return LinearProgram(shape.cost / scale, equal, shape.right, below, bounds, len(shape.option) if whole else 0), unit


def _uses(shape: Polytope, rows: list[int]) -> Any:
    """[rows, columns]: the use of these capacities by every column, sparse."""
    from scipy.sparse import csr_array

    flat, whose = shape.flat, np.repeat(np.arange(len(shape.flat.piece_of)), np.diff(shape.flat.use_at))
    column = shape.column[flat.use_options]
    used = np.flatnonzero((flat.use > 0) & (column >= 0))
    at: list[Ints] = []
    columns: list[Ints] = []
    amounts: list[Ints] = []
    for k, r in enumerate(rows):
        here = used[(flat.rows[whose[used], 0] <= r) & (r < flat.rows[whose[used], 1])]
        at.append(np.full(len(here), k))
        columns.append(column[here])
        amounts.append(flat.use[here])
        if flat.pair_use is not None:
            pairs = flat.pair_use[shape.entry, r]
            here = np.flatnonzero(pairs)
            at.append(np.full(len(here), k))
            columns.append(len(shape.option) + here)
            amounts.append(pairs[here])
    places = joined(at), joined(columns)
    return csr_array((joined(amounts).astype(np.float64), places), shape=(len(rows), len(shape.cost)))


def cover(flat: Flat, choice: Ints, row: int) -> tuple[Ints, int]:
    """A cover cut for a choice that exceeds the capacity `row`: options, and how many a feasible choice may take.

    An extended minimal cover (Balas 1975); if pairs use capacities, the chosen options of all variables involved. The
    number is -1 if the capacity is infeasible.
    """
    counts = (flat.rows[:, 0] <= row) & (row < flat.rows[:, 1])
    if flat.pair_use is not None:
        users = flat.piece_of[counts]
        pairs = flat.ends[np.flatnonzero(flat.pair_use[flat.entries(choice), row])]
        members = np.union1d(users, pairs.ravel())
        return flat.start[members] + choice[members], len(members) - 1
    use = np.zeros(len(flat.cost), np.int64)
    on = np.repeat(counts, np.diff(flat.use_at))
    np.add.at(use, flat.use_options[on], flat.use[on])
    least = np.minimum.reduceat(use, flat.start[:-1])
    above = use[flat.start[:-1] + choice] - least
    room = int(flat.limits[row] - least.sum())
    order = np.argsort(-above, kind="stable")
    count = int(np.searchsorted(np.cumsum(above[order]), room, side="right")) + 1 if room >= 0 else 0
    members = order[:count]  # a minimal cover
    variable = np.repeat(np.arange(flat.variables), flat.sizes)
    inside = np.isin(variable, members) & (use - least[variable] >= above[variable])
    return np.flatnonzero(inside), count - 1


@dataclass(frozen=True, slots=True, eq=False)
class Relaxation:
    """The bounds by a linear program, its point `x` [options], prices [R], and capacities `rows`."""

    proved: LowerBounds
    x: Floats
    prices: Floats
    rows: tuple[int, ...]


def relaxed(flat: Flat, until: float = math.inf, highs: Highs | None = None) -> Relaxation | None:
    """The optimum of the linear program under all capacities, or those added before `until` (of perf_counter).

    Capacities are added as they are exceeded. None if not even the first program is solved in time.
    """
    if highs is None:
        with Highs() as highs:
            return relaxed(flat, until, highs)
    if not flat.variables:
        return _trivial(flat, 0.0)
    if not np.logical_or.reduceat(flat.cost < INFINITE, flat.start[:-1]).all():
        return _trivial(flat, math.inf)
    shape, held, found = polytope(flat), ActiveRows(), None
    # The unit (ns): the mean cost, so that HiGHS's tolerances are small against it.
    scale = float(np.abs(shape.cost).mean()) if shape.cost.any() else 1.0
    while True:
        now, unit = program(shape, held, scale)
        outcome = highs.solve(now, until - time.perf_counter())
        if outcome.end is End.INFEASIBLE:
            return _trivial(flat, math.inf)
        if outcome.point is None:
            return found
        found = _read(shape, held, outcome, scale, unit)
        more = worst(_loads(shape, outcome.point) / np.maximum(flat.limits, 1) - 1 - _TOLERANCE, held)
        if not more:
            return found
        held.rows += more


def worst(over: Floats, held: ActiveRows) -> list[int]:
    """The capacities not held yet that are exceeded most: local peaks of the relative excess `over` [R]."""
    over = over.copy()
    over[held.rows] = 0.0
    around = np.concatenate([[0.0], over, [0.0]])
    peaks = np.flatnonzero((over > 0) & (over >= around[:-2]) & (over > around[2:]))
    largest: list[int] = peaks[np.argsort(-over[peaks], kind="stable")[:_ROWS]].tolist()
    return largest


def _loads(shape: Polytope, point: Floats) -> Floats:
    """[R]: the use of every capacity by a point of the polytope."""
    flat, x = shape.flat, shape.options_of(point)
    used = np.add.reduceat(flat.use * x[flat.use_options], flat.use_at[:-1]) if len(flat.use) else np.zeros(0)
    total = flat.row_sums(used)
    if flat.pair_use is not None:
        total = total + point[len(shape.option) :] @ flat.pair_use[shape.entry]
    return total


def _read(shape: Polytope, held: ActiveRows, outcome: HighsOutcome, scale: float, unit: Floats) -> Relaxation:
    assert outcome.point is not None and outcome.equal is not None and outcome.below is not None
    flat = shape.flat
    prices = np.zeros(len(flat.limits))
    np.add.at(prices, held.rows, outcome.below[: len(held.rows)] * scale / unit)
    proved = lower_bounds(flat, shape.messages(outcome.equal * scale), prices)
    return Relaxation(proved, shape.options_of(outcome.point), prices, tuple(held.rows))


def _trivial(flat: Flat, total: float) -> Relaxation:
    """The relaxation of a network that is empty or infeasible."""
    proved = LowerBounds(total, np.full(len(flat.cost), total), np.full(len(flat.table), total))
    return Relaxation(proved, np.zeros(len(flat.cost)), np.zeros(len(flat.limits)), ())
