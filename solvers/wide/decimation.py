"""A first solution from messages: decimation fixes the clearest variables, a few at a time, and renews the messages."""

import math

import numpy as np

from ..elimination.kernels import Bools, Ints, compiled
from .arcs import propagate
from .form import Flat, Pairs
from .messages import Messages
from .shared_state import NEVER, Deadline
from .substitution import Incidence, incidence

SHARE = 0.02  # of the open variables, fixed at once
DEARER = (1.0, 1.03, 1.1, 1.2, 1.4, 2.0, 4.0)  # multiples of the current prices to try
SWEEPS = 20  # after a change of prices
_RISES = 12  # of prices, fourfold each, until a choice fits the capacities


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


def any_solution(flat: Flat) -> Ints | None:
    """A feasible choice [V] within some passes over the tables, of any cost; None if none is found.

    All variables are fixed at once, first without prices of the capacities, then at rising ones.
    """
    messages = Messages(flat)
    prices = max(messages.value, 1.0) / np.maximum(flat.limits, 1)
    for rise in range(1 + _RISES if flat.limits.size else 1):
        if rise:
            messages.reprice(prices * 4 ** (rise - 1))
        choice = decimated(messages, share=1.0)
        if flat.price(choice) is not None:
            return choice
    return None


def decimated(messages: Messages, share: float = SHARE, until: Deadline = NEVER) -> Ints:
    """A choice [V] by decimation. Does not change `messages`.

    Variables are fixed in the order of the margin of their best option times their degree. Arc consistency avoids
    infinite costs; if it fails, and after `until`, open variables take their best option. Capacities count only by
    their prices.
    """
    work = messages.copy()
    work.sweep()
    around, edges = incidence(work.flat, forbidding=True), np.diff(work.arcs.first)
    best, gap = work.choice()
    while (gap < np.inf).any() and not until.past:
        open_ = np.flatnonzero(gap < np.inf)
        clear = open_[np.argsort(-(gap * (1 + edges))[open_], kind="stable")[: math.ceil(share * len(open_))]]
        alive = work.cost < np.inf
        if not settle(work.flat.pairs, around, alive, best, clear):
            break
        work.delete(~alive)
        if math.isinf(work.sweep()):
            break
        best, gap = work.choice()
    return best


@compiled
def settle(pairs: Pairs, around: Incidence, alive: Bools, best: Ints, which: Ints) -> bool:
    """Fix the variables `which` to their option in `best`; if that leaves a variable none, exclude that option instead.

    Clears `alive` [options] for removed options, by arc consistency too. False if a variable has none left.
    """
    start, log = pairs.start, np.empty(alive.shape[0], np.int64)
    for v in which:
        x = start[v] + best[v]
        if not alive[x]:
            continue
        count = 0
        for y in range(start[v], start[v + 1]):
            if y != x and alive[y]:
                alive[y] = False
                log[count] = y
                count += 1
        if count == 0:
            continue
        changed = np.full(1, v)
        count = propagate(pairs, around, alive, changed, log, count)
        if count < 0:
            alive[log[:-count]] = True
            alive[x] = False
            if propagate(pairs, around, alive, changed, log, 0) < 0:
                return False
    return True
