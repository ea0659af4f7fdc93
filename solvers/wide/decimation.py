"""A first solution from messages: the clearest variables are settled, a few at a time, and the messages renewed."""

from __future__ import annotations

import math

import numpy as np

from ..elimination.kernels import Bools, Floats, Ints, compiled
from .deadline import NEVER, Deadline
from .messages import Messages
from .passes import Arcs

SHARE = 0.02  # of the variables still open, settled at once
DEARER = (1.0, 1.03, 1.1, 1.2, 1.4, 2.0, 4.0)  # prices tried, as multiples of the present ones
SWEEPS = 20  # after a change of prices


def first_solution(messages: Messages, share: float = SHARE, until: Deadline = NEVER) -> tuple[Ints, int | None]:
    """An option of every variable [V] and its cost; None with the last one tried where none is feasible.

    Prices rise until what decimation finds heeds the capacities; leaves the messages as they are.
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
    """An option of every variable [V]; leaves the messages as they are.

    Clear is what loses much by another option, times its edges: what many others depend on comes first. Infinite costs
    are avoided as far as arc consistency sees; where that fails, and after `until`, what is open takes what seems best.
    Capacities are heeded by their prices only.
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
    """[arcs]: which have infinite costs."""
    arcs, sizes = messages.arcs, messages.flat.sizes
    here = np.repeat(np.arange(len(sizes)), np.diff(arcs.first))
    forbidden = np.concatenate([[0], np.cumsum(np.isinf(messages.table))])
    binding: Bools = forbidden[arcs.at + sizes[here] * sizes[arcs.target]] > forbidden[arcs.at]
    return binding


@compiled
def settle(arcs: Arcs, table: Floats, binding: Bools, cost: Floats, best: Ints, which: Ints) -> bool:
    """Leave the variables `which` their option in `best`, or where that leaves another none, all but that one.

    Sets `cost` [options] to inf where an option is gone, by arc consistency too. False where one is left none.
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
    """Delete options without a partner since a variable lost some; the number gone, negated if one has none left.

    `log` lists the options that are gone with the costs that they had.
    """
    changed, count = lost_by
    gone, old = log
    start = arcs.start
    queue, waits = [changed], np.zeros(len(arcs.first) - 1, np.bool_)  # no set: numba's may search for ever in one
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
