"""Lower bounds for large networks: sequential tree-reweighted messages (TRW-S, Kolmogorov 2006) and capacity prices.

A message moves cost between an edge and the options at its end without changing the cost of any choice; the sum of the
variables' minima is a bound. A pass visits the variables forward or backward: each sums its messages, and shares the
sum equally among the edges ahead. Capacities are priced: use pays, limits are refunded (Lagrangian relaxation). All
numbers are multiples of a `grain`, a power of two, and below 2^50 grains: floats add exactly.
"""

from __future__ import annotations

import copy
import math

import numpy as np

from ...formulation.network.network import INFINITE
from ..elimination.kernels import Bools, Floats, Ints
from .fixing import LowerBounds, Places, lower_bounds
from .form import Flat
from .passes import PassState, arcs_of, extrapolate, floats, margins, on_grid, origins, send
from .shared_state import NEVER, Deadline
from .substitution import ragged

_FINEST = -20  # no grain is smaller than 2^-20
_EXACT = 2.0**50  # grains that add without rounding
_BELOW = 1 - 2.0**-40  # times a sum of rounded products: a lower bound on the exact sum
MOMENTUM = 0.8  # of messages: without it three times as many passes; 0.95 oscillates
INERTIA = 0.85  # of prices
FIRST = 10  # sweeps before the first prices
PEAKS = 5  # further capacities priced per step
AIM = 0.02  # relative distance above the bound that a step aims at without a solution
PACE, FASTER = 0.01, 1.05  # the first share of Polyak's step; its growth until the bound first stalls
PATIENCE, SLOWER = 20, 1.5  # passes without a better bound before returning to the best; slowdown then


class Messages:
    """The messages of a network under prices of its capacities, and the bounds that they prove.

    `bound` is valid at any time, for solutions without deleted options; INFINITE if there is none. `value` is the bound
    by the current messages. `hat` [options] is the min-marginal of an option at its variable, `least` [options] a lower
    bound on solutions that take it. `prices` [R] are per unit of every capacity.
    """

    def __init__(self, flat: Flat) -> None:
        self.flat = flat
        self.arcs, self.source = arcs_of(flat)
        self.messages = np.zeros(int(flat.sizes[flat.ends].sum()))
        self.rest = np.zeros(flat.variables)
        self.alive = flat.cost < INFINITE
        self.hat, self.proved = np.zeros(len(flat.cost)), np.zeros(len(flat.cost))
        self.least = np.full(len(flat.cost), -np.inf)
        self.prices = np.zeros(len(flat.limits))
        self.value, self.bound = -math.inf, -INFINITE
        self.forward, self.rest_valid = True, False  # the next pass's direction; `rest` is valid at these prices
        self.pace, self.stale, self.rising = PACE, 0, True
        self.piece = np.repeat(np.arange(len(flat.piece_of)), np.diff(flat.use_at))
        self.option = flat.use_options
        largest = max((int(np.abs(x[x < INFINITE]).max(initial=0)) for x in (flat.cost, flat.table)), default=0)
        self.grain = 2.0 ** max(_FINEST, largest.bit_length() + 6 - 50)
        self.table = np.zeros(0)
        self._load()

    def copy(self) -> Messages:
        """An independent copy of the state."""
        other = copy.copy(self)
        for name in ("messages", "rest", "alive", "hat", "proved", "least", "cost"):
            setattr(other, name, getattr(self, name).copy())
        return other

    def sweep(self, times: int = 1) -> float:
        """Forward and backward passes; returns the bound at these prices, which never decreases."""
        for _ in range(2 * times):
            self._step()
        return self.value

    def climb(self, passes: int, target: float | None = None, until: Deadline = NEVER) -> float:
        """Alternate passes with ascent steps of messages and prices; ends at the best bound and returns it.

        `target`: the cost of the incumbent, if any. Another thread may read `bound` meanwhile.
        """
        for _ in range(1 if self.rest_valid else FIRST):
            self.sweep()
            if until.past:
                return self.value
        best, prices, messages = self.value, self.prices, self.messages.copy()
        before, speed = np.full(len(messages), np.inf), np.zeros(len(prices))
        for _ in range(passes):
            if self.bound >= INFINITE or until.past:
                break
            if len(prices):
                goal = self.value + AIM * abs(self.value) + 1 if target is None else target
                speed = INERTIA * speed + self._uphill(goal)
                self.reprice(self.prices + speed)
            extrapolate(self.messages, before, MOMENTUM, self.grain)
            self.rest_valid = False
            self._step()
            self.stale = 0 if self.value > best + 1e-5 * abs(best) else self.stale + 1
            if self.value > best:
                self.pace *= FASTER if self.rising else 1.0
                best, prices, messages = self.value, self.prices, self.messages.copy()
            elif self.stale >= PATIENCE:
                self.pace, self.stale, self.rising = self.pace / SLOWER, 0, False
                self._return(prices, messages)
                before[:], speed[:] = np.inf, 0.0
        self._return(prices, messages)
        return self.value

    def reprice(self, prices: Floats) -> None:
        """Set the prices (negative ones to 0), rounded so that their sums are exact."""
        prices = np.maximum(prices, 0.0)
        total = float(prices.sum())
        step = 2.0 ** (math.frexp(total)[1] - 50) if total > 0 else 1.0
        self.prices = np.round(prices / step) * step
        self._load()

    def delete(self, options: Bools) -> None:
        """Delete these options ([options])."""
        self.alive &= ~options
        self.cost[options] = np.inf

    def fix(self, cost: float) -> Bools:
        """[options]: True if no solution of at most this cost takes the option."""
        above: Bools = self.least > cost
        return above

    def choice(self) -> tuple[Ints, Floats]:
        """The best option of every variable by `hat`, and the margin to the next (inf: there is none)."""
        best, gap = np.zeros(self.flat.variables, np.int64), np.zeros(self.flat.variables)
        margins(self.flat.start, self.hat, best, gap)
        return best, gap

    def shares(self) -> tuple[Floats, Floats]:
        """A subgradient: the weight [options] of each option in the bound, of sum 1 per variable, and their use [R]."""
        flat, weight = self.flat, np.zeros(len(self.hat))
        pairs = np.zeros(0 if flat.pair_use is None else len(self.table))
        last = not self.forward, self.arcs, self.table, self._state(), self.grain
        origins(*last, weight, pairs)
        used = np.bincount(self.piece, weight[self.option] * flat.use, len(flat.piece_of))
        rows = len(flat.limits) + 1
        loads = np.cumsum(np.bincount(flat.rows[:, 0], used, rows) - np.bincount(flat.rows[:, 1], used, rows))[:-1]
        if flat.pair_use is not None:
            loads = loads + pairs @ flat.pair_use[self.source]
        return weight, loads

    def lower_bounds(self) -> LowerBounds:
        """The bounds on options and pairs by the current messages and prices.

        What is left at the variables is shared equally among their edges: the total is about the same, and the bounds
        of pairs become tighter.
        """
        flat, places = self.flat, Places.of(self.flat)
        by_edge = self._by_edge(places)
        left = self.cost.copy()
        np.add.at(left, places.end, by_edge)
        degree = np.maximum(np.bincount(flat.ends.ravel(), minlength=flat.variables), 1)
        shares = np.where(np.isfinite(left), left, 0.0) / np.repeat(degree, flat.sizes)
        return lower_bounds(flat, by_edge - shares[places.end], self.prices, places)

    def moved(self, places: Places) -> Floats:
        """What messages take from each edge to the options at its ends, in the order of `fixing.lower_bounds`.

        After the last pass: each variable has shared its minimum among the edges ahead, so the minima of all variables
        and edges add up to `value`.
        """
        flat, moved, end = self.flat, self._by_edge(places), int(self.forward)  # the end that sent in the last pass
        ahead, behind = (np.bincount(flat.ends[:, k], minlength=flat.variables) for k in (end, 1 - end))
        part = self.grain * np.maximum(np.maximum(ahead, behind), 1)
        hat = np.where(np.isfinite(self.hat), self.hat, 0.0)
        share = np.floor(hat / np.repeat(part, flat.sizes)) * self.grain
        edge, x = ragged(flat.sizes[flat.ends[:, end]])
        moved[places.side[edge, end] + x] -= share[flat.start[flat.ends[edge, end]] + x]
        return moved

    def _by_edge(self, places: Places) -> Floats:
        """The messages in the order of `fixing.lower_bounds`; 0 for deleted options."""
        flat, found = self.flat, np.empty(len(self.messages))
        for end, arcs in enumerate(self.arcs.of_edge.reshape(2, -1)):
            edge, x = ragged(flat.sizes[flat.ends[:, end]])
            found[places.side[edge, end] + x] = self.messages[self.arcs.inbox[arcs][edge] + x]
        return np.where(np.isfinite(found), found, 0.0)

    def _uphill(self, goal: float) -> Floats:
        """[R]: a step of the prices by Polyak's rule, over priced capacities and peaks of excess."""
        excess = self.shares()[1] - self.flat.limits
        steps = np.where(self.prices > 0, excess, 0.0)
        peaks = _peaks(excess)
        steps[peaks] = excess[peaks]
        norm = float(steps @ steps)
        return steps * (self.pace * max(goal - self.value, 1e-4 * abs(goal)) / norm) if norm > 0 else steps

    def _return(self, prices: Floats, messages: Floats) -> None:
        """Restore these prices and messages, rounded to the current grain."""
        self.messages[:] = on_grid(messages, self.grain)
        self.reprice(prices)
        self.sweep()

    def _load(self) -> None:
        """Recompute costs and tables for the current prices and grain."""
        flat, grain = self.flat, self.grain
        sums = np.concatenate([[0.0], np.cumsum(self.prices)])
        price = sums[flat.rows[:, 1]] - sums[flat.rows[:, 0]]
        paid = on_grid(price[self.piece] * flat.use * _BELOW, grain)
        cost = floats(flat.cost, grain) + np.bincount(self.option, paid, len(flat.cost))
        self.cost = np.where(self.alive, cost, np.inf)
        if flat.pair_use is not None:
            paid = flat.pair_use[self.source] @ self.prices * _BELOW
            self.table = on_grid(floats(flat.table[self.source], grain) + paid, grain)
        elif not len(self.table) or grain > 1:
            self.table = floats(flat.table[self.source], grain)
        self.refund = math.fsum((self.prices * flat.limits).tolist()) / _BELOW
        self.rest_valid = False

    def _state(self) -> PassState:
        return PassState(self.cost, self.messages, self.hat, self.rest, self.proved)

    def _step(self) -> None:
        """One pass; repeated with a coarser grain if numbers grow too large."""
        if self.bound >= INFINITE:
            return
        while True:
            largest = send(self.forward, self.arcs, self.table, self._state(), self.grain)
            if largest <= _EXACT * self.grain:
                break
            if math.isinf(largest):
                self.value, self.bound = math.inf, INFINITE
                return
            self.grain *= 64
            self.messages[:] = on_grid(self.messages, self.grain)
            self._load()
        if self.rest_valid:
            paid = math.nextafter(self.flat.constant - self.refund, -math.inf)
            np.maximum(self.least, np.nextafter(self.proved + paid, -np.inf), out=self.least)
        self.rest_valid, self.forward = True, not self.forward
        self.value = self.flat.constant + math.fsum(self.rest) - self.refund
        self.bound = max(self.bound, math.ceil(math.nextafter(self.value, -math.inf)))


def _peaks(excess: Floats) -> Ints:
    """The largest of every run of exceeded capacities, at most `PEAKS`, the largest first."""
    over = np.concatenate([[False], excess > 0, [False]])
    first, last = np.flatnonzero(over[1:] & ~over[:-1]), np.flatnonzero(~over[1:] & over[:-1])
    peaks = np.array([a + int(np.argmax(excess[a:b])) for a, b in zip(first, last, strict=True)], np.int64)
    return peaks[np.argsort(-excess[peaks], kind="stable")[:PEAKS]]
