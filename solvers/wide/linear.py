"""The linear program over the local polytope (`polytope.py`), its capacities added as they are exceeded."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...formulation.network.network import INFINITE
from ..elimination.kernels import Floats
from .fixing import Least, least, pieces
from .form import Flat
from .highs import End, Highs, Outcome
from .polytope import Held, Polytope, polytope, program

_ROWS = 40  # capacities added at a time
_TOLERANCE = 1e-7  # of a capacity, by which the linear program may exceed it


@dataclass(frozen=True, slots=True, eq=False)
class Relaxation:
    """What the linear program proves, its point `x` [options], messages and prices [R], the capacities it holds."""

    proved: Least
    x: Floats
    messages: Floats
    prices: Floats
    rows: tuple[int, ...]


def relaxed(
    flat: Flat, until: float = math.inf, rows: Sequence[int] = (), highs: Highs | None = None
) -> Relaxation | None:
    """The linear program's optimum, or of as many capacities as the time `until` (of perf_counter) suffices for.

    It starts with the capacities `rows`. None where the time does not suffice for any.
    """
    if highs is None:
        with Highs() as highs:
            return relaxed(flat, until, rows, highs)
    if not flat.variables:
        return _trivial(flat, 0.0)
    if not np.logical_or.reduceat(flat.cost < INFINITE, flat.start[:-1]).all():
        return _trivial(flat, math.inf)
    shape, held, found = polytope(flat), Held(list(rows)), None
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
    """The ns that are 1 in an objective: a usual cost, so that HiGHS's tolerances are small shares of one."""
    return float(np.abs(costs).mean()) if costs.any() else 1.0


def worst(over: Floats, held: Held) -> list[int]:
    """The capacities that are exceeded most, by [R] shares of them, and apart from each other, that are not held."""
    over = over.copy()
    over[held.rows] = 0.0
    around = np.concatenate([[0.0], over, [0.0]])
    peaks = np.flatnonzero((over > 0) & (over >= around[:-2]) & (over > around[2:]))
    first: list[int] = peaks[np.argsort(-over[peaks], kind="stable")[:_ROWS]].tolist()
    return first


def _loads(shape: Polytope, point: Floats) -> Floats:
    """[R]: what a point of the polytope uses of every capacity."""
    flat = shape.flat
    x = np.zeros(len(flat.cost))
    x[shape.option] = point[: len(shape.option)]
    steps = np.zeros(len(flat.limits) + 1)
    if len(flat.use):
        used = np.add.reduceat(flat.use * x[pieces(flat)], flat.use_at[:-1])
        np.add.at(steps, flat.rows[:, 0], used)
        np.subtract.at(steps, flat.rows[:, 1], used)
    total: Floats = np.cumsum(steps)[:-1]
    if flat.pair_use is not None:
        total = total + point[len(shape.option) :] @ flat.pair_use[shape.entry]
    return total


def _read(shape: Polytope, held: Held, outcome: Outcome, scale: float, unit: Floats) -> Relaxation:
    assert outcome.point is not None and outcome.equal is not None and outcome.below is not None
    flat = shape.flat
    messages = shape.messages(outcome.equal * scale)
    prices = np.zeros(len(flat.limits))
    np.add.at(prices, held.rows, outcome.below[: len(held.rows)] * scale / unit)
    x = np.zeros(len(flat.cost))
    x[shape.option] = outcome.point[: len(shape.option)]
    return Relaxation(least(flat, messages, prices), x, messages, prices, tuple(held.rows))


def _trivial(flat: Flat, total: float) -> Relaxation:
    """What is proved where there is nothing to solve, or nothing that solves it."""
    x, messages = np.zeros(len(flat.cost)), np.zeros(int(flat.sizes[flat.ends].sum()))
    proved = Least(total, np.full(len(flat.cost), total), np.full(len(flat.table), total))
    return Relaxation(proved, x, messages, np.zeros(len(flat.limits)), ())
