"""Reduce a search's network, and close the rest by linear and mixed-integer programs."""

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
"""Words of a solution optimal only for clipped costs (`in_floats`)."""


def reduction(search: Search) -> Reduced | Solution:
    """Reduce a search's network, raise its bound, and clip the largest costs for floats (`in_floats`).

    Returns the solution instead if reduction decides the search.
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
    if in_floats(flat) is flat:  # reduction may sum costs beyond the original ones
        return Reduced(flat)
    if exact is None:
        return search.finish(INEXACT)
    return replace(small, flat=exact, cut=True)


def close(search: Search, small: Reduced, until: float = math.inf) -> Solution:
    """Solve a search's network, reduced to `small`, until the search's deadline or `until`."""
    offered = INFINITE

    def report(state: Exact) -> None:
        nonlocal offered
        if state.choice is not None and state.cost < offered:
            offered = state.cost
            search.offer(tuple(small.lift(state.choice).tolist()))
        search.raise_bound(min(state.bound, search.ceiling))

    def ceiling(cost: int | None) -> int:
        return min(search.ceiling, search.limits.ceiling(cost))

    before = search.bound
    try:
        best = solve_exactly(small.flat, min(until, search.until), None, ceiling, report)
    except (AssertionError, MemoryError, OSError) as error:  # a choice below HiGHS's bound; out of memory; no process
        search.bound = before
        return search.finish(f"HiGHS broke off ({type(error).__name__})")
    if search.assignment is None and best.bound >= INFINITE:
        return search.finish("no solution, by HiGHS", infeasible=True)
    if search.bound >= search.ceiling:
        return search.finish("proved by HiGHS")
    return search.finish(
        STOPPED if search.left <= 0 else "HiGHS cannot close it: too large, or costs below its tolerances"
    )
