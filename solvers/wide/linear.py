"""The linear program over the local polytope (`polytope.py`), with capacities added as they are exceeded."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...formulation.network.network import INFINITE
from ..elimination.kernels import Floats
from .fixing import LowerBounds, lower_bounds, pieces
from .form import Flat
from .highs import End, Highs, Outcome
from .polytope import ActiveRows, Polytope, polytope, program

_ROWS = 40  # capacities added at a time
_TOLERANCE = 1e-7  # relative excess of a capacity that counts as feasible


@dataclass(frozen=True, slots=True, eq=False)
class Relaxation:
    """The bounds by a linear program, its point `x` [options], messages, prices [R], and capacities `rows`."""

    proved: LowerBounds
    x: Floats
    messages: Floats
    prices: Floats
    rows: tuple[int, ...]


def relaxed(
    flat: Flat, until: float = math.inf, rows: Sequence[int] = (), highs: Highs | None = None
) -> Relaxation | None:
    """The optimum of the linear program under all capacities, or those added before `until` (of perf_counter).

    Starts with the capacities `rows`. None if not even the first program is solved in time.
    """
    if highs is None:
        with Highs() as highs:
            return relaxed(flat, until, rows, highs)
    if not flat.variables:
        return _trivial(flat, 0.0)
    if not np.logical_or.reduceat(flat.cost < INFINITE, flat.start[:-1]).all():
        return _trivial(flat, math.inf)
    shape, held, found = polytope(flat), ActiveRows(list(rows)), None
    scale = scale_of(shape.cost)
    while True:
        now, unit = program(shape, held, scale)
        outcome = highs.solve(now, until - time.perf_counter())
        if outcome.end is End.INFEASIBLE:
            return _trivial(flat, math.inf)
        if outcome.point is None:
            return found
        found = _read(shape, held, outcome, scale, unit)
        more = worst(_loads(shape, outcome.point) / np.maximum(flat.limits, 1) - 1 - _TOLERANCE, held)
        if not more:
            return found
        held.rows += more


def scale_of(costs: Floats) -> float:
    """The unit (ns) of an objective: the mean cost, so that HiGHS's tolerances are small against it."""
    return float(np.abs(costs).mean()) if costs.any() else 1.0


def worst(over: Floats, held: ActiveRows) -> list[int]:
    """The capacities not held yet that are exceeded most: local peaks of the relative excess `over` [R]."""
    over = over.copy()
    over[held.rows] = 0.0
    around = np.concatenate([[0.0], over, [0.0]])
    peaks = np.flatnonzero((over > 0) & (over >= around[:-2]) & (over > around[2:]))
    largest: list[int] = peaks[np.argsort(-over[peaks], kind="stable")[:_ROWS]].tolist()
    return largest


def _loads(shape: Polytope, point: Floats) -> Floats:
    """[R]: the use of every capacity by a point of the polytope."""
    flat = shape.flat
    x = np.zeros(len(flat.cost))
    x[shape.option] = point[: len(shape.option)]
    used = np.add.reduceat(flat.use * x[pieces(flat)], flat.use_at[:-1]) if len(flat.use) else np.zeros(0)
    total = flat.row_sums(used)
    if flat.pair_use is not None:
        total = total + point[len(shape.option) :] @ flat.pair_use[shape.entry]
    return total


def _read(shape: Polytope, held: ActiveRows, outcome: Outcome, scale: float, unit: Floats) -> Relaxation:
    assert outcome.point is not None and outcome.equal is not None and outcome.below is not None
    flat = shape.flat
    messages = shape.messages(outcome.equal * scale)
    prices = np.zeros(len(flat.limits))
    np.add.at(prices, held.rows, outcome.below[: len(held.rows)] * scale / unit)
    x = np.zeros(len(flat.cost))
    x[shape.option] = outcome.point[: len(shape.option)]
    return Relaxation(lower_bounds(flat, messages, prices), x, messages, prices, tuple(held.rows))


def _trivial(flat: Flat, total: float) -> Relaxation:
    """The relaxation of a network that is empty or infeasible."""
    x, messages = np.zeros(len(flat.cost)), np.zeros(int(flat.sizes[flat.ends].sum()))
    proved = LowerBounds(total, np.full(len(flat.cost), total), np.full(len(flat.table), total))
    return Relaxation(proved, x, messages, np.zeros(len(flat.limits)), ())
