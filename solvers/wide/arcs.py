"""Irrelevant options and edges: arc consistency under infinite costs, and separable tables."""

from __future__ import annotations

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
    stack, waiting = np.arange(len(flat.ends)), np.ones(len(flat.ends), np.bool_)
    if not _propagate(flat.pairs, incidence(flat), stack, waiting, alive):
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
def _propagate(pairs: Pairs, incidence: Incidence, stack: Ints, waiting: Bools, alive: Bools) -> bool:
    """Mark options without support dead, edge by edge from a stack; False if a variable loses all."""
    start, ends, at, table = pairs
    first, edges = incidence
    top = stack.shape[0]
    while top:
        top -= 1
        e = stack[top]
        waiting[e] = False
        u, v = ends[e, 0], ends[e, 1]
        width = start[v + 1] - start[v]
        for side in range(2):
            own, other = (u, v) if side == 0 else (v, u)
            step, across = (width, 1) if side == 0 else (1, width)
            lost, left = False, False
            for x in range(start[own + 1] - start[own]):
                if not alive[start[own] + x]:
                    continue
                found = False
                for y in range(start[other + 1] - start[other]):
                    if table[at[e] + x * step + y * across] < INFINITE and alive[start[other] + y]:
                        found = True
                        break
                alive[start[own] + x] = found
                lost |= not found
                left |= found
            if not left:
                return False
            if lost:
                for k in range(first[own], first[own + 1]):
                    if not waiting[edges[k]]:
                        waiting[edges[k]] = True
                        stack[top] = edges[k]
                        top += 1
    return True


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
