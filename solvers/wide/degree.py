"""Elimination of variables that have at most two neighbours and use no capacity."""

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from ...formulation.network.network import INFINITE
from ..elimination.kernels import Bools, Ints, compiled
from .form import Flat, Pairs, offsets
from .substitution import Incidence, Reduced, Substitution, idle_edges, incidence, ragged, substituted

_WORK = 1 << 26  # additions per eliminated variable, at most
_GROWTH = 4  # growth of its tables, at most


class Elimination(NamedTuple):
    """Eliminated variables `taken` [T] with their `cost` (from `start` [T+1]) and neighbours `near` [T, 2], or -1.

    The table with neighbour s of the k-th one starts at at[k, s] of `table`, [options of the neighbour, own options].
    """

    rest: Ints
    taken: Ints
    start: Ints
    cost: Ints
    near: Ints
    at: Ints
    table: Ints

    def lift(self, choice: Ints) -> Ints:
        """The choice with the cheapest option of every eliminated variable."""
        full = np.zeros(len(self.rest) + len(self.taken), np.int64)
        full[self.rest] = choice
        _cheapest(self, full)
        return full


def eliminated(flat: Flat) -> Reduced | None:
    """Eliminate an independent set of variables of degree at most two without use; None if infeasible.

    One of degree 1 becomes a cost of its neighbour, one of degree 2 an edge between its neighbours.
    """
    around = incidence(flat)
    plain = np.ones(flat.variables, np.bool_)
    plain[flat.piece_of] = False
    plain[flat.ends[~idle_edges(flat)].ravel()] = False
    taken = np.empty(flat.variables, np.int64)
    taken = taken[: _independent(around, flat.pairs, plain, taken)]
    if not len(taken):
        return Reduced(flat)
    gone = np.zeros(flat.variables, np.bool_)
    gone[taken] = True
    out = _extracted(flat, taken, np.flatnonzero(~gone), around)
    cost = flat.cost.copy()
    pairs = np.flatnonzero(out.near[:, 1] >= 0)
    ends = out.near[pairs]
    at = offsets(flat.sizes[ends[:, 0]] * flat.sizes[ends[:, 1]])
    table = np.empty(at[-1], np.int64)
    constant = _eliminate(out, flat.start, cost, at, table)
    if constant >= INFINITE:
        return None
    keep = ~(gone[flat.ends[:, 0]] | gone[flat.ends[:, 1]])
    sizes = np.diff(flat.at)
    begin = int(sizes[keep].sum())
    tables = np.empty(begin + len(table), np.int64)
    _copy_kept(flat.at, keep, flat.table, tables)
    tables[begin:] = table
    uses = None
    if flat.pair_use is not None:
        uses = np.zeros((len(tables), flat.pair_use.shape[1]), np.int64)
        _copy_kept(flat.at, keep, flat.pair_use, uses)
    new = replace(
        flat,
        cost=cost,
        ends=np.concatenate([flat.ends[keep], ends]),
        at=offsets(np.concatenate([sizes[keep], np.diff(at)])),
        table=tables,
        pair_use=uses,
        constant=flat.constant + int(constant),
    )
    return Reduced(substituted(new, _without(new, gone)).flat, (out.lift,))


def _copy_kept(at: Ints, keep: Bools, values: Ints, out: Ints) -> None:
    """Copy the entries of these edges [E] to the beginning of `out`, with no array of their places between."""
    turns = np.flatnonzero(np.diff(keep, prepend=False, append=False)).reshape(-1, 2)
    end = 0
    for first, last in at[turns].tolist():
        begin, end = end, end + last - first
        out[begin:end] = values[first:last]


def _without(flat: Flat, gone: Bools) -> Substitution:
    """The substitution that removes these variables and keeps the others."""
    root = np.where(gone, -1, np.cumsum(~gone) - 1)
    _, options = ragged(flat.sizes)
    return Substitution(root, flat.start[:-1], options, offsets(flat.sizes[~gone]))


def _extracted(flat: Flat, taken: Ints, rest: Ints, around: Incidence) -> Elimination:
    """The data that eliminating and lifting these variables needs."""
    first, edges = around
    degree = first[taken + 1] - first[taken]
    near, edge = np.full((len(taken), 2), -1, np.int64), np.full((len(taken), 2), -1, np.int64)
    for side in range(2):
        has = np.flatnonzero(degree > side)
        edge[has, side] = edges[first[taken[has]] + side]
        near[has, side] = flat.ends[edge[has, side]].sum(axis=1) - taken[has]
    swap = (degree == 2) & (near[:, 0] > near[:, 1])
    near[swap], edge[swap] = near[swap][:, ::-1], edge[swap][:, ::-1]
    sizes = np.where(near >= 0, flat.sizes[taken][:, None] * flat.sizes[near], 0)
    at = offsets(sizes.ravel())
    table = np.empty(at[-1], np.int64)
    _gather(flat.pairs, taken, edge, at, table)
    owner, x = ragged(flat.sizes[taken])
    cost = flat.cost[flat.start[taken[owner]] + x]
    start, at = offsets(flat.sizes[taken]), at[:-1].reshape(-1, 2)
    return Elimination(rest, taken, start, cost, near=near, at=at, table=table)


@compiled
def _independent(around: Incidence, pairs: Pairs, open_: Bools, taken: Ints) -> int:
    """Fill `taken` with open variables of degree at most 2, no two adjacent; returns their number."""
    first, edges = around
    start, ends = pairs.start, pairs.ends
    found = 0
    for v in range(open_.shape[0]):
        if not open_[v] or first[v + 1] - first[v] > 2:
            continue
        n, product, total = start[v + 1] - start[v], 1, 0
        for k in range(first[v], first[v + 1]):
            w = ends[edges[k], 0] + ends[edges[k], 1] - v
            product *= start[w + 1] - start[w]
            total += start[w + 1] - start[w]
        if n * product > _WORK or product > _GROWTH * n * max(1, total):
            continue
        taken[found] = v
        found += 1
        for k in range(first[v], first[v + 1]):
            open_[ends[edges[k], 0] + ends[edges[k], 1] - v] = False
    return found


@compiled
def _gather(pairs: Pairs, taken: Ints, edge: Ints, new_at: Ints, out: Ints) -> None:
    """Copy the tables of the taken variables, their own options last."""
    start, ends, at, table = pairs
    for k in range(taken.shape[0]):
        for side in range(2):
            e = edge[k, side]
            if e < 0:
                continue
            v, w = taken[k], ends[e, 0] + ends[e, 1] - taken[k]
            own, other = start[v + 1] - start[v], start[w + 1] - start[w]
            step, across = (other, 1) if v < w else (1, own)
            for y in range(other):
                for x in range(own):
                    out[new_at[2 * k + side] + y * own + x] = table[at[e] + x * step + y * across]


@compiled
def _eliminate(gone: Elimination, start: Ints, cost: Ints, new_at: Ints, out: Ints) -> int:
    """Add the minimum of every taken variable, per options of its neighbours, to `cost` or `out`.

    Returns the sum over those without neighbours, or INFINITE.
    """
    own_start, own_cost, near, at, table = gone.start, gone.cost, gone.near, gone.at, gone.table
    row = np.empty(np.diff(own_start).max(), np.int64)
    constant, pair = 0, 0
    for k in range(near.shape[0]):
        first, n = own_start[k], own_start[k + 1] - own_start[k]
        a, b = near[k, 0], near[k, 1]
        if a < 0:
            least = INFINITE
            for x in range(n):
                least = min(least, own_cost[first + x])
            constant = INFINITE if least >= INFINITE or constant >= INFINITE else constant + least
            continue
        for i in range(start[a + 1] - start[a]):
            least = INFINITE
            for x in range(n):
                more = table[at[k, 0] + i * n + x]
                price = own_cost[first + x]
                row[x] = INFINITE if more >= INFINITE or price >= INFINITE else price + more
                least = min(least, row[x])
            if b < 0:
                j = start[a] + i
                cost[j] = INFINITE if least >= INFINITE or cost[j] >= INFINITE else cost[j] + least
                continue
            width = start[b + 1] - start[b]
            for j in range(width):
                least = INFINITE
                base = at[k, 1] + j * n
                for x in range(n):
                    more = table[base + x]
                    least = min(least, row[x] + more if row[x] < INFINITE and more < INFINITE else INFINITE)
                out[new_at[pair] + i * width + j] = least
        pair += b >= 0
    return constant


@compiled
def _cheapest(gone: Elimination, choice: Ints) -> None:
    """Set the cheapest option of every taken variable given the others."""
    _, taken, start, cost, near, at, table = gone
    for k in range(taken.shape[0]):
        n = start[k + 1] - start[k]
        least, best = INFINITE, 0
        for x in range(n):
            total = cost[start[k] + x]
            for side in range(2):
                if near[k, side] >= 0 and total < INFINITE:
                    more = table[at[k, side] + choice[near[k, side]] * n + x]
                    total = INFINITE if more >= INFINITE else total + more
            if total < least:
                least, best = total, x
        choice[taken[k]] = best
