"""Tightening of capacities: redundant pieces of use and rows are removed."""

from dataclasses import replace

import numpy as np

from ...formulation.network.network import INFINITE
from ..elimination.kernels import Bools, Ints, compiled
from .form import Flat, offsets
from .substitution import Reduced, pair_columns, ragged


def tightened(flat: Flat) -> Reduced | None:
    """Remove redundant uses and capacities, and forbid options that exceed a limit on their own; None if infeasible.

    Afterwards pieces of one variable are disjoint; the least use of each is subtracted from the limits; capacities that
    cannot be exceeded, or only together with another kept one, are gone.
    """
    if not len(flat.limits):
        return Reduced(flat)
    new = _drained(_disjoint(_drained(flat)))  # constant pieces first, often the majority
    if (new.limits < 0).any():
        return None
    new = _within(new)
    keep = _needed(new)
    uses = None if new.pair_use is None else np.ascontiguousarray(new.pair_use[:, keep])
    left = np.concatenate([[0], np.cumsum(keep)]).astype(np.int64)
    new = _fused(_pieces(replace(new, limits=new.limits[keep], pair_use=uses, rows=left[new.rows])))
    unchanged = np.array_equal(new.limits, flat.limits) and np.array_equal(new.cost, flat.cost)
    return Reduced(flat if unchanged and len(new.use) == len(flat.use) else new)


def _disjoint(flat: Flat) -> Flat:
    """Split pieces so that those of one variable share no row."""
    if not len(flat.piece_of):
        return flat
    width = len(flat.limits) + 1
    ends = flat.piece_of[:, None] * width + flat.rows
    points, where = np.unique(ends, return_inverse=True)
    owner = points // width
    sizes = flat.sizes[owner]
    at = offsets(sizes)
    use = np.zeros(at[-1], np.int64)
    _sweep(flat.use_at, flat.use, where.reshape(-1, 2), owner, at, use)
    inside = np.flatnonzero(owner[1:] == owner[:-1])  # each segment lies between two points of one variable
    part, x = ragged(sizes[inside])
    return replace(
        flat,
        piece_of=owner[inside],
        rows=np.stack([points[inside] % width, points[inside + 1] % width], axis=1),
        use_at=offsets(sizes[inside]),
        use=use[at[inside[part]] + x],
    )


def _drained(flat: Flat) -> Flat:
    """Subtract the least use of every piece, over allowed options, from its limits."""
    if not len(flat.piece_of):
        return flat
    open_ = flat.cost[flat.use_options] < INFINITE
    least = np.minimum.reduceat(np.where(open_, flat.use, INFINITE), flat.use_at[:-1])
    least[least >= INFINITE] = 0  # no allowed option: other steps detect infeasibility
    use = np.where(open_, flat.use - np.repeat(least, np.diff(flat.use_at)), 0)
    return _pieces(replace(flat, limits=flat.limits - flat.row_sums(least), use=use))


def _pieces(flat: Flat) -> Flat:
    """Drop pieces without use or rows."""
    if not len(flat.piece_of):
        return flat
    keep = (flat.rows[:, 0] < flat.rows[:, 1]) & (np.maximum.reduceat(flat.use, flat.use_at[:-1]) > 0)
    if keep.all():
        return flat
    sizes = np.diff(flat.use_at)
    use = flat.use[np.repeat(keep, sizes)]
    return replace(flat, piece_of=flat.piece_of[keep], rows=flat.rows[keep], use_at=offsets(sizes[keep]), use=use)


def _within(flat: Flat) -> Flat:
    """Forbid options that exceed a limit even if all others use their least."""
    if not len(flat.piece_of):
        return flat
    levels = [flat.limits]  # levels[k][r]: the least limit of 2^k rows from r on
    while 2 ** len(levels) <= len(flat.limits):
        half = 2 ** (len(levels) - 1)
        levels.append(np.minimum(levels[-1][:-half], levels[-1][half:]))
    low, high = flat.rows.T
    k = np.log2(high - low).astype(np.int64)
    flat_levels = np.concatenate(levels)
    at = offsets(np.array([len(x) for x in levels]))[k]
    room = np.minimum(flat_levels[at + low], flat_levels[at + high - 2**k])
    over = flat.use > np.repeat(room, np.diff(flat.use_at))
    if not over.any():
        return flat
    cost = flat.cost.copy()
    cost[flat.use_options[over]] = INFINITE
    return replace(flat, cost=cost)


def _needed(flat: Flat) -> Bools:
    """[R]: True for rows that can be exceeded while no other kept row is."""
    most = np.maximum.reduceat(flat.use, flat.use_at[:-1]) if len(flat.piece_of) else np.zeros(0, np.int64)
    load = flat.row_sums(most)
    for r in pair_columns(flat):
        column = flat.pair_use[:, r] if flat.pair_use is not None else load
        load[r] += np.maximum.reduceat(column, flat.at[:-1]).sum() if len(flat.ends) else 0
    keep: Bools = load > flat.limits
    if flat.pair_use is not None:
        return keep
    up, down = _changes(flat, most)
    up, down = flat.limits - np.cumsum(up), flat.limits + np.cumsum(down)
    kept: list[int] = []
    for r in np.flatnonzero(keep).tolist():
        if kept and up[kept[-1]] <= up[r]:  # within the last kept row's limit, this one is not exceeded
            keep[r] = False
            continue
        while kept and down[r] <= down[kept[-1]]:
            keep[kept.pop()] = False
        kept.append(r)
    return keep


def _fused(flat: Flat) -> Flat:
    """Merge adjacent pieces of a variable that use the same."""
    before, after, change, at = _steps(flat)
    if not len(before):
        return flat
    same = ~np.logical_or.reduceat(change != 0, at)
    order = np.lexsort((flat.rows[:, 0], flat.piece_of))
    goes_on = np.zeros(len(order), np.bool_)
    goes_on[after[same]] = True
    firsts = np.flatnonzero(~goes_on[order])
    lasts = np.append(firsts[1:], len(order)) - 1
    pieces = order[firsts]
    sizes = flat.sizes[flat.piece_of[pieces]]
    part, x = ragged(sizes)
    return replace(
        flat,
        piece_of=flat.piece_of[pieces],
        rows=np.stack([flat.rows[pieces, 0], flat.rows[order[lasts], 1]], axis=1),
        use_at=offsets(sizes),
        use=flat.use[flat.use_at[pieces[part]] + x],
    )


def _steps(flat: Flat) -> tuple[Ints, Ints, Ints, Ints]:
    """Pieces, their successors on the next row, and the change of every option's use from at[k] on."""
    order = np.lexsort((flat.rows[:, 0], flat.piece_of))
    before, after = order[:-1], order[1:]
    touch = (flat.piece_of[before] == flat.piece_of[after]) & (flat.rows[before, 1] == flat.rows[after, 0])
    before, after = before[touch], after[touch]
    sizes = flat.sizes[flat.piece_of[before]]
    part, x = ragged(sizes)
    change = flat.use[flat.use_at[after[part]] + x] - flat.use[flat.use_at[before[part]] + x]
    return before, after, change, offsets(sizes)[:-1]


def _changes(flat: Flat, most: Ints) -> tuple[Ints, Ints]:
    """[R], [R]: the most by which the load of row r can exceed, or fall below, that of row r - 1."""
    up, down = np.zeros(len(flat.limits) + 1, np.int64), np.zeros(len(flat.limits) + 1, np.int64)
    np.add.at(up, flat.rows[:, 0], most)
    np.add.at(down, flat.rows[:, 1], most)
    before, after, change, at = _steps(flat)
    if len(before):
        row = flat.rows[after, 0]
        np.add.at(up, row, np.maximum.reduceat(change, at) - most[after])
        np.add.at(down, row, np.maximum.reduceat(-change, at) - most[before])
    return up[:-1], down[:-1]


@compiled
def _sweep(use_at: Ints, use: Ints, where: Ints, owner: Ints, at: Ints, total: Ints) -> None:
    """Add each variable's use from each of its points on to `total`; piece p lies between the points where[p]."""
    for p in range(where.shape[0]):
        for x in range(use_at[p + 1] - use_at[p]):
            total[at[where[p, 0]] + x] += use[use_at[p] + x]
            total[at[where[p, 1]] + x] -= use[use_at[p] + x]
    for k in range(1, owner.shape[0]):
        if owner[k] == owner[k - 1]:
            for x in range(at[k + 1] - at[k]):
                total[at[k] + x] += total[at[k - 1] + x]
