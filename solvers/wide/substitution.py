"""Substitution of variables in a `Flat`, shared by all reduction steps."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from ...formulation.network.network import INFINITE
from ..elimination.kernels import Bools, Ints, compiled
from .form import Flat, Pairs, offsets

_SUMS = 1 << 62  # in place of INFINITE for plain sums


@dataclass(frozen=True, slots=True, eq=False)
class Reduced:
    """A reduced network, and the maps of its choices back to the original; `cut` if `in_floats` clipped costs."""

    flat: Flat
    lifts: tuple[Callable[[Ints], Ints], ...] = ()
    cut: bool = False

    def lift(self, choice: Ints) -> Ints:
        """The original network's choice, of no greater cost, for one of `flat`."""
        for back in reversed(self.lifts):
            choice = back(choice)
        return choice

    def assignment(self, choice: Sequence[int] | Ints) -> tuple[int, ...]:
        """As `lift`, for any numbers, as plain integers."""
        return tuple(self.lift(np.asarray(choice, np.int64)).tolist())


class Substitution(NamedTuple):
    """Every old variable as a function of a new one.

    Old variable v takes the option `options[first[v] + x]` if the new variable `root[v]` takes x; if `root[v]` is -1,
    v is removed (no edge, no piece) and takes option 0. `start` holds the offsets of the new variables' options.
    """

    root: Ints
    first: Ints
    options: Ints
    start: Ints

    def lift(self, choice: Ints) -> Ints:
        live = self.root >= 0
        old = np.zeros(len(self.root), np.int64)
        old[live] = self.options[self.first[live] + choice[self.root[live]]]
        return old


class Incidence(NamedTuple):
    """`first` [V+1] and `edges` [2E]: variable v has the edges edges[first[v]] to edges[first[v+1]]."""

    first: Ints
    edges: Ints


def ragged(sizes: Ints) -> tuple[Ints, Ints]:
    """The part of every element and its index there, for consecutive parts of these sizes."""
    part = np.repeat(np.arange(len(sizes), dtype=np.int64), sizes)
    return part, np.arange(len(part), dtype=np.int64) - offsets(sizes)[part]


def incidence(flat: Flat, forbidding: bool = False) -> Incidence:
    """The edges of every variable; with `forbidding`, only those of which some entry is infinite."""
    edges = np.arange(len(flat.ends))
    if forbidding and len(edges):
        edges = edges[np.logical_or.reduceat(flat.table >= INFINITE, flat.at[:-1])]
    ends = flat.ends[edges].ravel()
    order = np.argsort(ends, kind="stable")
    return Incidence(offsets(np.bincount(ends, minlength=flat.variables)), edges[order // 2])


def pair_columns(flat: Flat) -> range:
    """The capacities that edges may use."""
    return range(0 if flat.pair_use is None else flat.pair_use.shape[1])


def idle_edges(flat: Flat) -> Bools:
    """[E]: True if an edge uses no capacity."""
    if flat.pair_use is None or not len(flat.ends):
        return np.ones(len(flat.ends), np.bool_)
    return ~np.logical_or.reduceat(flat.pair_use.any(axis=1), flat.at[:-1])


def kept_options(flat: Flat, keep: Bools) -> Reduced:
    """Keep only these options [options], at least one per variable."""
    counts = np.add.reduceat(keep, flat.start[:-1], dtype=np.int64)
    start, everyone = offsets(counts), np.arange(flat.variables, dtype=np.int64)
    _, options = ragged(flat.sizes)
    return substituted(flat, Substitution(everyone, start[:-1], options[keep], start))


def kept_edges(flat: Flat, keep: Bools) -> Flat:
    """Keep only these edges [E]."""
    if keep.all():
        return flat
    sizes = np.diff(flat.at)
    entries = np.repeat(keep, sizes)
    uses = None if flat.pair_use is None else flat.pair_use[entries]
    return replace(flat, ends=flat.ends[keep], at=offsets(sizes[keep]), table=flat.table[entries], pair_use=uses)


def substituted(flat: Flat, by: Substitution) -> Reduced:
    """The network over the new variables; edges within one become its cost and pieces, parallel ones are summed."""
    fresh = len(by.start) - 1
    sizes = np.diff(by.start)
    ends = by.root[flat.ends]
    low, high = ends.min(axis=1, initial=fresh), ends.max(axis=1, initial=-1)
    inner = low == high
    keys, group = np.unique(low[~inner] * fresh + high[~inner], return_inverse=True)
    of = np.full(len(ends), -1, np.int64)
    of[~inner] = group
    new_ends = np.stack([keys // fresh, keys % fresh], axis=1) if len(keys) else np.zeros((0, 2), np.int64)
    at = offsets(sizes[new_ends[:, 0]] * sizes[new_ends[:, 1]])

    def summed(table: Ints, unary: Ints, most: int) -> Ints:
        sums = _Sums(of, at, np.zeros(at[-1], np.int64), unary)
        _add_tables(Pairs(flat.start, flat.ends, flat.at, table), by, sums, most)
        return sums.table

    cost = _costs(flat, by)
    table = summed(flat.table, cost, INFINITE)
    piece, x = ragged(sizes[by.root[flat.piece_of]])
    use = flat.use[flat.use_at[piece] + by.options[by.first[flat.piece_of[piece]] + x]]
    pieces = [(by.root[flat.piece_of], flat.rows, use)]
    uses = None
    if flat.pair_use is not None:
        columns = list[Ints]()
        for r in pair_columns(flat):
            own = np.zeros(by.start[-1], np.int64)
            columns.append(summed(np.ascontiguousarray(flat.pair_use[:, r]), own, _SUMS))
            users = np.unique(by.root[flat.ends[inner, 0]])
            where = ragged(sizes[users])
            pieces.append((users, np.tile([r, r + 1], (len(users), 1)), own[by.start[users][where[0]] + where[1]]))
        if len(columns) == 1:  # mostly; not copied
            uses = columns[0][:, None]
        else:
            uses = np.empty((at[-1], len(columns)), np.int64)
            for r, column in enumerate(columns):
                uses[:, r] = column
    piece_of, rows, use_at, use = _joined(pieces, sizes)
    new = Flat(
        start=by.start, cost=cost, ends=new_ends, at=at, table=table, limits=flat.limits, piece_of=piece_of,
        rows=rows, use_at=use_at, use=use, pair_use=uses, constant=flat.constant,
    )  # fmt: skip
    return Reduced(new, (by.lift,))


def _costs(flat: Flat, by: Substitution) -> Ints:
    """The costs of the new variables' options: sums over the old variables."""
    live = np.flatnonzero(by.root >= 0)
    part, x = ragged(np.diff(by.start)[by.root[live]])
    v = live[part]
    price, option = flat.cost[flat.start[v] + by.options[by.first[v] + x]], by.start[by.root[v]] + x
    total = np.zeros(by.start[-1], np.int64)
    np.add.at(total, option, np.where(price < INFINITE, price, 0))
    total[option[price >= INFINITE]] = INFINITE
    return total


def _joined(parts: list[tuple[Ints, Ints, Ints]], sizes: Ints) -> tuple[Ints, Ints, Ints, Ints]:
    """`piece_of`, `rows`, `use_at` and `use` of these pieces; those of one variable and equal rows are summed."""
    owner, rows = np.concatenate([p[0] for p in parts]), np.concatenate([p[1] for p in parts])
    use = np.concatenate([p[2] for p in parts])
    width = int(rows.max(initial=0)) + 1
    _, firsts, group = np.unique(
        (owner * width + rows[:, 0]) * width + rows[:, 1], return_index=True, return_inverse=True
    )
    piece, x = ragged(sizes[owner])
    use_at = offsets(sizes[owner[firsts]])
    total = np.zeros(use_at[-1], np.int64)
    np.add.at(total, use_at[group[piece]] + x, use)
    return owner[firsts], rows[firsts], use_at, total


class _Sums(NamedTuple):
    """Targets of old tables: edge e adds to the entries from at[of[e]] of `table`, or, if of[e] = -1, to `unary`."""

    of: Ints
    at: Ints
    table: Ints
    unary: Ints


@compiled
def _add_tables(old: Pairs, by: Substitution, sums: _Sums, most: int) -> None:
    """Add every old edge's table to its new edge's, or, within one new variable, to the costs of its options."""
    start, ends, at, table = old
    root, first, options, new_start = by
    of, new_at, out, unary = sums
    for e in range(ends.shape[0]):
        u, v = ends[e, 0], ends[e, 1]
        a, b = root[u], root[v]
        width = start[v + 1] - start[v]
        rows, columns = new_start[a + 1] - new_start[a], new_start[b + 1] - new_start[b]
        if a == b:
            for x in range(rows):
                more = table[at[e] + options[first[u] + x] * width + options[first[v] + x]]
                i = new_start[a] + x
                unary[i] = most if more >= most or unary[i] >= most else min(most, unary[i] + more)
            continue
        step_x, step_y = (columns, 1) if a < b else (1, rows)
        for x in range(rows):
            source = at[e] + options[first[u] + x] * width
            target = new_at[of[e]] + x * step_x
            for y in range(columns):
                more = table[source + options[first[v] + y]]
                i = target + y * step_y
                out[i] = most if more >= most or out[i] >= most else min(most, out[i] + more)
