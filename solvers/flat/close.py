"""Close what reduction leaves of a network by the linear and the mixed-integer program, as a search sees it."""

from __future__ import annotations

import math

from ...formulation.network import INFINITE
from ..protocol import STOPPED, Search, Solution
from .integer import Exact, solve_exactly
from .substitution import Reduced


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

    best = solve_exactly(small.flat, min(until, search.until), None, ceiling, hear)
    if search.assignment is None and best.bound >= INFINITE:
        return search.finish("no solution, by HiGHS", infeasible=True)
    if search.bound >= search.ceiling:
        return search.finish("proved by HiGHS")
    return search.finish(STOPPED if search.left <= 0 else "HiGHS cannot close it: too large, or priced too finely")
