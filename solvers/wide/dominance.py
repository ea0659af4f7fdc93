"""Dominated options, and dominated pairs of options."""

from dataclasses import replace
from typing import NamedTuple, TypeAlias

import numpy as np

from ...formulation.network.network import INFINITE
from ..elimination.kernels import Bools, Ints, compiled
from .form import Flat, Pairs, offsets
from .substitution import Incidence, Reduced, incidence, kept_options

_Sides: TypeAlias = tuple[int, int, int, int]
_WORK = 1 << 30  # comparisons, at most: some seconds


class _Uses(NamedTuple):
    """Variable v has the pieces pieces[v] to pieces[v + 1], whose `use` begins at `at`; `pairs` use per table entry."""

    pieces: Ints
    at: Ints
    use: Ints
    pairs: Ints


def without_dominated(flat: Flat) -> Reduced:
    """Remove dominated options, and make dominated pairs infinite.

    Option a dominates b of the same variable if none of its pieces uses more and it costs no more in the worst case
    over the neighbours' options. A pair (b, y) is dominated if that holds given the neighbour's option y
    (neighbourhood substitutability).
    """
    order = np.argsort(flat.piece_of, kind="stable")
    pieces = offsets(np.bincount(flat.piece_of, minlength=flat.variables))
    table, keep = flat.table.copy(), np.ones(len(flat.cost), np.bool_)
    pair_use = np.zeros((0, 0), np.int64) if flat.pair_use is None else flat.pair_use
    uses = _Uses(pieces, flat.use_at[order], flat.use, pair_use)
    changed = _dominate(flat.pairs._replace(table=table), flat.cost, incidence(flat), uses, keep)
    if not changed:
        return Reduced(flat)
    new = replace(flat, table=table)
    return Reduced(new) if keep.all() else kept_options(new, keep)


@compiled
def _dominate(pairs: Pairs, cost: Ints, around: Incidence, uses: _Uses, keep: Bools) -> int:
    """Clear `keep` for dominated options and make dominated pairs infinite; returns the number of changes."""
    start, first = pairs.start, around.first
    worst = np.empty(1 + np.diff(first).max() if len(first) > 1 else 1, np.int64)
    changed, spent = 0, 0
    for v in range(start.shape[0] - 1):
        n = start[v + 1] - start[v]
        for b in range(n):
            if spent > _WORK:
                return changed
            for a in range(n):
                if a == b or not keep[start[v] + a] or cost[start[v] + a] >= INFINITE or _uses_more(uses, v, a, b):
                    continue
                total = cost[start[v] + a] - cost[start[v] + b]
                barred, bar = 0, 0  # edges on which b has a partner that a lacks; the last of them
                for k in range(first[v + 1] - first[v]):
                    sides = _sides(pairs, around.edges[first[v] + k], v, a, b)
                    worst[k] = _worst(pairs.table, uses.pairs, sides)
                    spent += sides[3]
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
                for k in range(first[v + 1] - first[v]):
                    if barred == 0 or k == bar:
                        rest = total if barred else total - worst[k]
                        sides = _sides(pairs, around.edges[first[v] + k], v, a, b)
                        changed += _bar(pairs.table, uses.pairs, sides, rest)
    return changed


@compiled
def _uses_more(uses: _Uses, v: int, a: int, b: int) -> bool:
    """True if some piece of v uses more with option a than with b."""
    more = False
    for p in range(uses.pieces[v], uses.pieces[v + 1]):
        more |= uses.use[uses.at[p] + a] > uses.use[uses.at[p] + b]
    return more


@compiled
def _sides(pairs: Pairs, e: int, v: int, a: int, b: int) -> _Sides:
    """The first entries of options a and b of v in edge e's table, the step to the next entry, and their number."""
    start, ends, at, _ = pairs
    u, w = ends[e, 0], ends[e, 1]
    width = start[w + 1] - start[w]
    if u == v:
        return at[e] + a * width, at[e] + b * width, 1, width
    return at[e] + a, at[e] + b, width, start[u + 1] - start[u]


@compiled
def _worst(table: Ints, pair_use: Ints, sides: _Sides) -> int:
    """The largest excess of the first option's entries over the second's finite ones; INFINITE if one uses more."""
    i, j, step, count = sides
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
def _bar(table: Ints, pair_use: Ints, sides: _Sides, rest: int) -> int:
    """Make the second option's entries infinite that the first's plus `rest` dominate; returns their number."""
    i, j, step, count = sides
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
