"""Options, and pairs of options, that another of the same variable is never worse than."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ...formulation.network.network import INFINITE
from ..elimination.kernels import Bools, Ints, compiled
from .form import Flat
from .substitution import Reduced, incidence, kept_options, offsets

_WORK = 1 << 30  # comparisons, some seconds, after which the rest is left alone


def without_dominated(flat: Flat) -> Reduced:
    """Without options b that an a of the same variable may always replace, and with such pairs (b, y) infinite.

    a may replace b if no piece of it uses more and the worst case, over what the neighbours may take beside b, is no
    dearer. A pair (b, y) goes if that holds while the one neighbour takes y (neighbourhood substitutability).
    """
    first, edges = incidence(flat)
    order = np.argsort(flat.piece_of, kind="stable")
    pieces = offsets(np.bincount(flat.piece_of, minlength=flat.variables))
    table, keep = flat.table.copy(), np.ones(len(flat.cost), np.bool_)
    pair_use = np.zeros((0, 0), np.int64) if flat.pair_use is None else flat.pair_use
    worst = np.empty(1 + np.diff(first).max(initial=0), np.int64)
    changed = _dominate(
        flat.start, flat.cost, flat.ends, flat.at, table, first, edges,
        pieces, flat.use_at[order], flat.use, pair_use, _WORK, worst, keep,
    )  # fmt: skip
    if not changed:
        return Reduced(flat)
    new = replace(flat, table=table)
    return Reduced(new) if keep.all() else kept_options(new, keep)


@compiled
def _dominate(
    start: Ints, cost: Ints, ends: Ints, at: Ints, table: Ints, first: Ints, edges: Ints,
    pieces: Ints, use_at: Ints, use: Ints, pair_use: Ints, work: int, worst: Ints, keep: Bools,
) -> int:  # fmt: skip
    """Clear `keep` of dominated options and make dominated pairs infinite; how many there were."""
    changed, spent = 0, 0
    for v in range(start.shape[0] - 1):
        n, degree = start[v + 1] - start[v], first[v + 1] - first[v]
        for b in range(n):
            if spent > work:
                return changed
            for a in range(n):
                if a == b or not keep[start[v] + a] or cost[start[v] + a] >= INFINITE:
                    continue
                more = False
                for p in range(pieces[v], pieces[v + 1]):
                    if use[use_at[p] + a] > use[use_at[p] + b]:
                        more = True
                        break
                if more:
                    continue
                total = cost[start[v] + a] - cost[start[v] + b]
                barred, bar = 0, 0  # edges on which b has a partner that a has not, the last of them
                for k in range(degree):
                    i, j, step, count = _sides(start, ends, at, edges[first[v] + k], v, a, b)
                    worst[k] = _worst(table, pair_use, i, j, step, count)
                    spent += count
                    if worst[k] < INFINITE:
                        total += worst[k]
                        continue
                    barred, bar = barred + 1, k
                    if barred > 1:
                        break
                if barred > 1:
                    continue
                if barred == 0 and total <= 0:
                    keep[start[v] + b] = False
                    changed += 1
                    break
                for k in range(degree):
                    if barred == 0 or k == bar:
                        i, j, step, count = _sides(start, ends, at, edges[first[v] + k], v, a, b)
                        rest = total if barred else total - worst[k]
                        changed += _bar(table, pair_use, i, j, step, count, rest)
    return changed


@compiled
def _sides(start: Ints, ends: Ints, at: Ints, e: int, v: int, a: int, b: int) -> tuple[int, int, int, int]:
    """Where edge e keeps the first entries of options a and b of v, the step to the next entry, and their number."""
    u, w = ends[e, 0], ends[e, 1]
    width = start[w + 1] - start[w]
    if u == v:
        return at[e] + a * width, at[e] + b * width, 1, width
    return at[e] + a, at[e] + b, width, start[u + 1] - start[u]


@compiled
def _worst(table: Ints, pair_use: Ints, i: int, j: int, step: int, count: int) -> int:
    """The most that the entries from i on are above the finite ones from j on, or use more (INFINITE); 0 for none."""
    high = -INFINITE
    for _ in range(count):
        if table[j] < INFINITE:
            if table[i] >= INFINITE:
                return INFINITE
            for r in range(pair_use.shape[1]):
                if pair_use[i, r] > pair_use[j, r]:
                    return INFINITE
            high = max(high, table[i] - table[j])
        i, j = i + step, j + step
    return 0 if high == -INFINITE else high


@compiled
def _bar(table: Ints, pair_use: Ints, i: int, j: int, step: int, count: int, rest: int) -> int:
    """Make the entries from j on infinite that those from i on undercut by `rest` and use no more; how many."""
    barred = 0
    for _ in range(count):
        if table[i] < INFINITE and table[j] < INFINITE and rest + table[i] - table[j] <= 0:
            dear = False
            for r in range(pair_use.shape[1]):
                dear |= pair_use[i, r] > pair_use[j, r]
            if not dear:
                table[j] = INFINITE
                barred += 1
        i, j = i + step, j + step
    return barred
