"""Close what reduction leaves of a network by the linear and the mixed-integer program, as a search sees it."""

from __future__ import annotations

import math

from ...formulation.network import INFINITE
from ..protocol import STOPPED, Search, Solution
from .form import flattened
from .integer import Exact, fits, solve_exactly
from .reduce import reduced
from .substitution import Reduced


def reduction(search: Search) -> Reduced | Solution:
    """What reduction leaves of a search's network; its end, where that is known then."""
    flat = flattened(search.network)
    if not fits(flat):
        return search.finish("totals beyond 2^52 are not exact in floats")
    return reduced(flat, search.until) or search.finish("no solution, by reduction", infeasible=True)


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
