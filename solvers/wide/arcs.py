"""Irrelevant options and edges: arc consistency under infinite costs, and separable tables."""

from dataclasses import replace

import numpy as np

from ...formulation.network.network import INFINITE
from ..elimination.kernels import Bools, Ints, compiled
from .form import Flat, Pairs
from .substitution import Incidence, Reduced, idle_edges, incidence, kept_edges, kept_options


def without_dead_options(flat: Flat) -> Reduced | None:
    """Remove options of infinite cost, or without a finite partner on some edge (AC-3); None if infeasible."""
    alive = flat.cost < INFINITE
    if not np.logical_or.reduceat(alive, flat.start[:-1]).all():
        return None
    around, log = incidence(flat, forbidding=True), np.empty(len(alive), np.int64)
    if propagate(flat.pairs, around, alive, np.arange(flat.variables), log, 0) < 0:
        return None
    return Reduced(flat) if alive.all() else kept_options(flat, alive)


def without_sums(flat: Flat) -> Reduced | None:
    """Move the minimum of every row, then column, of a table to the options' costs, and drop tables of zeros.

    A table that is the sum of a cost of either end becomes 0. The least cost of a variable moves to the constant. None
    if a variable has no finite cost.
    """
    table, cost = flat.table.copy(), flat.cost.copy()
    needed = np.zeros(len(flat.ends), np.bool_)
    moved = _normalise(flat.start, flat.ends, flat.at, table, cost, needed)
    needed |= ~idle_edges(flat)
    least = np.minimum.reduceat(cost, flat.start[:-1]) if flat.variables else np.zeros(0, np.int64)
    if (least >= INFINITE).any():
        return None
    if needed.all() and not moved and not least.any():
        return Reduced(flat)
    cost = np.where(cost >= INFINITE, INFINITE, cost - np.repeat(least, flat.sizes))
    new = replace(flat, cost=cost, table=table, constant=flat.constant + int(least.sum()))
    return Reduced(kept_edges(new, needed))


@compiled
def propagate(pairs: Pairs, around: Incidence, alive: Bools, changed: Ints, log: Ints, count: int) -> int:
    """Clear `alive` for options that have no partner left at a neighbour, after the variables `changed` lost options.

    Appends these options to `log`, which holds `count` already; returns the new count, negated if a variable has no
    option left.
    """
    start, ends, at, table = pairs
    first, edges = around
    stack, waiting = np.empty(len(first) - 1, np.int64), np.zeros(len(first) - 1, np.bool_)
    top = len(changed)
    stack[:top] = changed
    waiting[changed] = True
    while top:
        top -= 1
        v = stack[top]
        waiting[v] = False
        for k in range(first[v], first[v + 1]):
            e = edges[k]
            w = ends[e, 0] + ends[e, 1] - v
            step, across = (start[w + 1] - start[w], 1) if v < w else (1, start[v + 1] - start[v])
            lost, left = False, False
            for y in range(start[w + 1] - start[w]):
                if not alive[start[w] + y]:
                    continue
                found = False
                for x in range(start[v + 1] - start[v]):
                    if alive[start[v] + x] and table[at[e] + x * step + y * across] < INFINITE:
                        found = True
                        break
                if not found:
                    alive[start[w] + y] = False
                    log[count] = start[w] + y
                    count += 1
                lost |= not found
                left |= found
            if not left:
                return -count
            if lost and not waiting[w]:
                waiting[w] = True
                stack[top] = w
                top += 1
    return count


@compiled
def _normalise(start: Ints, ends: Ints, at: Ints, table: Ints, cost: Ints, needed: Bools) -> bool:
    """Move the minima of rows and columns from `table` to `cost`; True if any moved. Marks the edges left nonzero."""
    moved = False
    for e in range(ends.shape[0]):
        u, v = ends[e, 0], ends[e, 1]
        rows, columns = start[u + 1] - start[u], start[v + 1] - start[v]
        for side in range(2):
            own, count, others = (u, rows, columns) if side == 0 else (v, columns, rows)
            step, across = (columns, 1) if side == 0 else (1, columns)
            for x in range(count):
                base = at[e] + x * step
                least = table[base]
                for y in range(others):
                    least = min(least, table[base + y * across])
                if least == 0 or least >= INFINITE:
                    continue
                moved = True
                for y in range(others):
                    if table[base + y * across] < INFINITE:
                        table[base + y * across] -= least
                if cost[start[own] + x] < INFINITE:
                    cost[start[own] + x] += least
        for i in range(at[e], at[e + 1]):
            if table[i] != 0:
                needed[e] = True
                break
    return moved
