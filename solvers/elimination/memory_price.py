"""The Lagrangian bound, by prices per byte of each capacity.

    L(λ) = min_x cost(x) + Σ_r λ_r (use_r(x) - M_r)  ≤  the optimum, for every λ ≥ 0

L is concave and piecewise linear; every solution x is a cut  L(λ) ≤ cost(x) + Σ_r λ_r (use_r(x) - M_r).  Kelley's
method maximises the minimum of the cuts, evaluates L there by elimination, and adds the cut that it finds; for one
capacity this is the secant method. Prices start small, so that a sufficient bound is found early.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, fsum, inf

import numpy as np

from ...formulation.network.network import Network
from ..protocol import STOPPED, Search, Solution, TooManyError
from ..work import LINEAR_PROGRAM, spend
from .circuit import Circuit
from .crossover import crossed
from .factors import dense
from .kernels import Floats
from .tables import Tables

LP_SECONDS = 10.0  # for a linear program, which takes milliseconds unless HiGHS cycles
_ROUNDS = 80
_FIRST, _GROWTH = 0.1, 8.0  # the first price adds at most a tenth of the cost
_SHARE = 40  # of one variable's time: the inverse of the first slack


@dataclass(frozen=True, slots=True, eq=False)
class Price:
    """A price per byte of each capacity, the circuit's tables at it, and the bound (ns) that they prove.

    `total` is min cost + Σ λ use without the constant, `rounding` the bound on its float error.
    """

    price: tuple[float, ...]
    slots: Tables
    total: float
    rounding: float
    value: float
    bound: int

    def max_total(self, circuit: Circuit, cost: int) -> float:
        """Upper bound on cost + Σ λ use of a feasible solution of at most this cost."""
        paid = fsum(p * c for p, c in zip(self.price, circuit.network.capacities, strict=True))
        return cost - circuit.network.constant + paid + 8 * self.rounding


def at_price(circuit: Circuit, price: Sequence[float], until: float = inf) -> Price:
    """Eliminate at one price, rounded; the total is +inf if the costs alone are infeasible."""
    price = circuit.exact_price(price)
    slots = circuit.forward(circuit.tables(1, price), until)
    total = float(slots[-1])
    paid = fsum(p * c for p, c in zip(price, circuit.network.capacities, strict=True))
    rounding = circuit.rounding(price, abs(total) + paid)
    if total == np.inf:
        return Price(tuple(price), slots, total, 0.0, total, 0)
    value = total - paid
    return Price(tuple(price), slots, total, rounding, value, circuit.network.constant + ceil(value - rounding))


def sweep(circuit: Circuit, search: Search) -> Price | None:
    """Raise the bound of `search` by pricing and offer the solutions found; the best price, or None if infeasible.

    Ends at the dual optimum or when the search is done; OutOfTimeError at the deadline within an elimination.
    """
    network, capacities = circuit.network, np.array(circuit.network.capacities, np.float64)
    given = search.limits.prices
    starts = [given] if len(given) == len(capacities) and any(given) else []
    cuts: list[tuple[int, ...]] = []
    sides: dict[bool, Price] = {}  # by whether its solution fits: the last price
    best = None
    for start in (*starts, (0.0,) * len(capacities)):
        now = at_price(circuit, start, search.until)
        if now.total == np.inf:
            return None
        search.raise_bound(now.bound)
        best = now if best is None or now.value > best.value else best
        search.prices = best.price
        if search.limits.cutoff is not None and now.bound >= search.limits.cutoff:  # no solution is needed
            return best
        cost, use = _offer(circuit, now, search)
        cuts.append((cost, *use))
        sides[_fits(use, network)] = now
        if search.done:
            return best
    assert best is not None
    box = np.maximum(_FIRST * max(1.0, abs(now.total)) / np.maximum(1.0, use), 2 * np.array(best.price))
    # One elimination of the use alone detects infeasibility before prices are raised in vain.
    if any(least_use_of(circuit, r, search.until) > c for r, c in enumerate(network.capacities) if use[r] > c):
        return None
    for _ in range(_ROUNDS if len(capacities) else 0):
        if search.done:
            break
        price, upper = highest_prices(np.array(cuts, np.float64), capacities, box)
        now = at_price(circuit, price, search.until)
        cost, use = _offer(circuit, now, search)
        sides[_fits(use, network)] = now
        search.raise_bound(now.bound)
        best = now if now.value > best.value else best
        search.prices = best.price
        if now.bound > circuit.max_cost:
            return None
        cut = (cost, *use)
        at_edge = (np.array(price) >= box) & (np.array(use) > capacities)
        if at_edge.any():
            box[at_edge] *= _GROWTH
        elif cut in cuts or upper - now.value <= 1e-12 * abs(upper) + now.rounding:
            break
        cuts.append(cut)
    if len(sides) > 1 and not search.done:
        ends = [circuit.decode(side.slots) for side in sides.values()]
        for before, after in (ends, ends[::-1]):
            mixed = crossed(dense(search.network), before, after)
            if mixed is not None and search.better(mixed[0]):
                search.offer(mixed[1])
    return best


def first_slack(best: Price, network: Network) -> int:
    """The first slack above a bound: a small share of one variable's time."""
    return max(1, int(abs(best.total) / (_SHARE * len(network.variables) + 1)))


def search_within(
    circuit: Circuit, best: Price, search: Search, enumerate_to: Callable[[Tables, int], bool], by: tuple[str, str]
) -> Solution:
    """Search within a growing slack above the bound until the incumbent is proved optimal.

    `enumerate_to(through, reach)` offers the best solution of cost up to `reach`, given the best total through every
    entry, and returns True if it was complete. `by` names the method in the words of proved and infeasible solutions.
    """
    max_cost = circuit.max_cost
    slack = max(first_slack(best, search.network), search.bound - best.bound)
    through = circuit.backward(best.slots, search.until)
    while not search.done:
        reach = min(best.bound + slack, search.ceiling - 1, max_cost)
        try:
            if not enumerate_to(through, reach):
                break
        except TooManyError as error:
            return search.finish(f"too many assignments of one copy within {slack} ns of the bound: {error}")
        if reach == max_cost and search.objective is None:
            return search.finish(f"no solution, by {by[1]}", infeasible=True)
        search.raise_bound(min(reach + 1, search.ceiling))  # nothing above the ceiling was enumerated
        slack *= 3
    return search.finish(f"proved by {by[0]}" if search.bound >= search.ceiling else STOPPED)


def _fits(use: Sequence[int], network: Network) -> bool:
    return all(u <= c for u, c in zip(use, network.capacities, strict=True))


def _offer(circuit: Circuit, now: Price, search: Search) -> tuple[int, tuple[int, ...]]:
    """Cost (without the constant) and use of the best assignment at a price; offered if it is better."""
    cost, use = circuit.totals(now.slots)
    if _fits(use, circuit.network) and search.better(cost + search.network.constant):
        search.offer(circuit.decode(now.slots))
    return cost, use


def least_use_of(circuit: Circuit, r: int, until: float = inf) -> float:
    """The least use of capacity r, exact (integers below 2^53); +inf if the costs alone are infeasible."""
    price = [float(k == r) for k in range(len(circuit.network.capacities))]
    return float(circuit.forward(circuit.tables(0, price), until)[-1])


def highest_prices(cuts: Floats, capacities: Floats, box: Floats) -> tuple[tuple[float, ...], float]:
    """The prices within the box that maximise the minimum of the cuts, and that maximum."""
    base, slope = cuts[:, 0], cuts[:, 1:] - capacities
    if len(capacities) > 1:
        from scipy.optimize import linprog

        spend(LINEAR_PROGRAM)
        scale = np.maximum(1.0, np.abs(base).max())
        rows = np.hstack([np.ones((len(base), 1)), -slope * box / scale])
        bounds = [(None, None), *[(0.0, 1.0)] * len(box)]
        answer = linprog(
            [-1.0] + [0.0] * len(box),
            A_ub=rows,
            b_ub=base / scale,
            bounds=bounds,
            method="highs",
            options={"time_limit": LP_SECONDS},
        )
        inside = np.full(len(box), 0.5) if answer.x is None else np.clip(answer.x[1:], 0.0, 1.0)  # HiGHS may give up
        price = inside * box
    else:
        over = slope[:, 0]
        with np.errstate(divide="ignore", invalid="ignore"):
            meet = (base[None, :] - base[:, None]) / (over[:, None] - over[None, :])
        at = np.concatenate([[0.0, box[0]], meet[(meet > 0) & (meet < box[0])]])
        price = at[[np.argmax((base[:, None] + over[:, None] * at).min(axis=0))]]
    return tuple(float(p) for p in price), float((base + slope @ price).min())
