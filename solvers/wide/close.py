"""Close what reduction leaves of a network by the linear and the mixed-integer program, as a search sees it."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from ...formulation.network.network import INFINITE
from ..protocol import INEXACT, STOPPED, Search, Solution
from .form import fits, flattened, in_floats
from .integer import Exact, solve_exactly
from .reduce import reduced
from .substitution import Reduced

CUT = "large costs are known only as cut for floats"
"""The words of a solution that is proved best under cut costs, and costs more without (`in_floats`)."""


def reduction(search: Search) -> Reduced | Solution:
    """What reduction leaves of a search's network, its largest costs cut for floats (`in_floats`), the bound told.

    The search's end, where that is known then.
    """
    flat = flattened(search.network)
    if not fits(flat):
        return search.finish("totals beyond 2^60 do not add up in 64 bits")
    small = reduced(flat, search.until)
    if small is None or (low := small.flat.floor()) >= INFINITE:
        return search.finish("no solution, by reduction", infeasible=True)
    if small.flat.variables == 0 and not search.offer(tuple(small.lift(np.zeros(0, np.int64)).tolist())):
        return search.finish("no solution, by reduction", infeasible=True)
    search.raise_bound(low)
    if search.bound >= search.ceiling:
        return search.finish("proved by reduction")
    exact = in_floats(small.flat)
    if exact is small.flat:
        return small
    if in_floats(flat) is flat:  # as sums, costs may be larger
        return Reduced(flat)
    if exact is None:
        return search.finish(INEXACT)
    return replace(small, flat=exact, cut=True)


def close(search: Search, small: Reduced, until: float = math.inf) -> Solution:
    """The best assignment of a network by what reduction left of it, as far as the search or `until` gives it time."""
    offered = INFINITE

    def hear(state: Exact) -> None:
        nonlocal offered
        if state.choice is not None and state.cost < offered:
            offered = state.cost
            search.offer(tuple(small.lift(state.choice).tolist()))
        search.raise_bound(min(state.bound, search.ceiling))

    def ceiling(cost: int | None) -> int:
        return min(search.ceiling, search.limits.ceiling(cost))

    before = search.bound
    try:
        best = solve_exactly(small.flat, min(until, search.until), None, ceiling, hear)
    except (AssertionError, MemoryError, OSError) as error:  # a choice below what HiGHS had proved; no room for it
        search.bound = before
        return search.finish(f"HiGHS broke off ({type(error).__name__})")
    if search.assignment is None and best.bound >= INFINITE:
        return search.finish("no solution, by HiGHS", infeasible=True)
    if search.bound >= search.ceiling:
        return search.finish("proved by HiGHS")
    return search.finish(STOPPED if search.left <= 0 else "HiGHS cannot close it: too large, or priced too finely")
