"""A first solution from messages: decimation fixes the clearest variables, a few at a time, and renews the messages."""

from __future__ import annotations

import math

import numpy as np

from ..elimination.kernels import Bools, Floats, Ints, compiled
from .deadline import NEVER, Deadline
from .messages import Messages
from .passes import Arcs

SHARE = 0.02  # of the open variables, fixed at once
DEARER = (1.0, 1.03, 1.1, 1.2, 1.4, 2.0, 4.0)  # multiples of the current prices to try
SWEEPS = 20  # after a change of prices


def first_solution(messages: Messages, share: float = SHARE, until: Deadline = NEVER) -> tuple[Ints, int | None]:
    """A choice [V] by decimation and its cost; cost None with the last choice tried if none is feasible.

    Prices rise until the choice fits the capacities. Does not change `messages`.
    """
    choice, _ = messages.choice()
    for factor in DEARER if messages.prices.any() else DEARER[:1]:
        work = messages.copy()
        if factor > 1:
            work.reprice(messages.prices * factor)
            work.sweep(SWEEPS)
        choice = decimated(work, share, until)
        cost = messages.flat.price(choice)
        if cost is not None or until.past:
            return choice, cost
    return choice, None


def decimated(messages: Messages, share: float = SHARE, until: Deadline = NEVER) -> Ints:
    """A choice [V] by decimation. Does not change `messages`.

    Variables are fixed in the order of the margin of their best option times their degree. Arc consistency avoids
    infinite costs; if it fails, and after `until`, open variables take their best option. Capacities count only by
    their prices.
    """
    work = messages.copy()
    work.sweep()
    binding, edges = _binding(work), np.diff(work.arcs.first)
    best, gap = work.choice()
    while (gap < np.inf).any() and not until.past:
        open_ = np.flatnonzero(gap < np.inf)
        clear = open_[np.argsort(-(gap * (1 + edges))[open_], kind="stable")[: math.ceil(share * len(open_))]]
        if not settle(work.arcs, work.table, binding, work.cost, best, clear):
            break
        work.delete(~(work.cost < np.inf))
        if math.isinf(work.sweep()):
            break
        best, gap = work.choice()
    return best


def _binding(messages: Messages) -> Bools:
    """[arcs]: True if the arc's table has infinite costs."""
    arcs, sizes = messages.arcs, messages.flat.sizes
    here = np.repeat(np.arange(len(sizes)), np.diff(arcs.first))
    forbidden = np.concatenate([[0], np.cumsum(np.isinf(messages.table))])
    binding: Bools = forbidden[arcs.at + sizes[here] * sizes[arcs.target]] > forbidden[arcs.at]
    return binding


@compiled
def settle(arcs: Arcs, table: Floats, binding: Bools, cost: Floats, best: Ints, which: Ints) -> bool:
    """Fix the variables `which` to their option in `best`; if that leaves a variable none, exclude that option instead.

    Sets `cost` [options] of removed options to inf, by arc consistency too. False if a variable has none left.
    """
    gone, old = np.empty(cost.shape[0], np.int64), np.empty(cost.shape[0])
    for v in which:
        low, high = arcs.start[v], arcs.start[v + 1]
        x = low + best[v]
        if cost[x] == np.inf:
            continue
        count = 0
        for y in range(low, high):
            if y != x and cost[y] < np.inf:
                gone[count], old[count] = y, cost[y]
                cost[y] = np.inf
                count += 1
        if count == 0:
            continue
        count = _propagate(arcs, table, binding, cost, (v, count), (gone, old))
        if count < 0:
            for k in range(-count):
                cost[gone[k]] = old[k]
            gone[0], old[0] = x, cost[x]
            cost[x] = np.inf
            if _propagate(arcs, table, binding, cost, (v, 1), (gone, old)) < 0:
                return False
    return True


@compiled
def _propagate(
    arcs: Arcs, table: Floats, binding: Bools, cost: Floats, lost_by: tuple[int, int], log: tuple[Ints, Floats]
) -> int:
    """Remove options without a partner after a variable lost some; returns the count, negated if one has none left.

    `log` records the removed options and their costs.
    """
    changed, count = lost_by
    gone, old = log
    start = arcs.start
    queue, waits = [changed], np.zeros(len(arcs.first) - 1, np.bool_)  # not a set: numba's may loop forever
    while len(queue):
        v = queue.pop()
        waits[v] = False
        for a in range(arcs.first[v], arcs.first[v + 1]):
            if not binding[a]:
                continue
            w = arcs.target[a]
            n, lost, left = start[w + 1] - start[w], 0, 0
            for y in range(n):
                if cost[start[w] + y] == np.inf:
                    continue
                found = False
                for x in range(start[v + 1] - start[v]):
                    if cost[start[v] + x] < np.inf and table[arcs.at[a] + x * n + y] < np.inf:
                        found = True
                        break
                if found:
                    left += 1
                else:
                    gone[count], old[count] = start[w] + y, cost[start[w] + y]
                    cost[start[w] + y] = np.inf
                    count += 1
                    lost += 1
            if left == 0:
                return -count
            if lost and not waits[w]:
                waits[w] = True
                queue.append(w)
    return count
