"""Lower bounds from messages and prices: on every choice, on those with an option, on those with a pair of options.

For messages m_e,i of an edge e to the option i at one of its ends, and prices μ_r >= 0 per byte of a capacity,

    Σ_v min_i (c_i + Σ_r μ_r use_ri + Σ_e m_e,i) + Σ_e min_ij (c_ij - m_e,i - m_e,j) - Σ_r μ_r M_r

is a lower bound on every choice within the capacities, for any messages and prices (Lagrangian and local-polytope
duality). Options whose bound reaches the cost of a known choice are deleted: reduced-cost fixing. All numbers are put
on a grid of a power of two, on which float64 adds exactly; products are rounded to the safe side.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from ...formulation.network.network import INFINITE
from ..elimination.kernels import Floats, Ints
from .form import Flat, as_floats, offsets
from .substitution import Reduced, kept_options

_BITS = 50  # per sum, so that no addition rounds
_UP, _DOWN = 1 + 2.0**-40, 1 - 2.0**-40  # margins for the rounding of a sum of products, and of one product


@dataclass(frozen=True, slots=True, eq=False)
class LowerBounds:
    """Lower bounds on any choice, on those with an option (`options` [options]) or a pair (`entries` [entries]).

    Without the network's constant; +inf if infeasible.
    """

    total: float
    options: Floats
    entries: Floats

    def bound(self, flat: Flat) -> int:
        """The integer lower bound, constant included; INFINITE if infeasible."""
        return INFINITE if math.isinf(self.total) else flat.constant + math.ceil(self.total)


@dataclass(frozen=True, slots=True, eq=False)
class Places:
    """Index arrays of a `Flat`: `side` [E, 2] is the first message of each end of each edge.

    `edge` [entries] and `options` [2, entries] are the edge and options of every table entry, `end` [messages] is the
    option of every message.
    """

    side: Ints
    end: Ints
    edge: Ints
    options: Ints

    @staticmethod
    def of(flat: Flat) -> Places:
        sizes = flat.sizes[flat.ends]
        stop = np.cumsum(sizes).reshape(-1, 2)
        side = stop - sizes
        count = int(stop[-1, 1]) if len(stop) else 0
        whose = np.repeat(np.arange(sizes.size), sizes.ravel())
        end = flat.start[flat.ends.ravel()[whose]] + np.arange(count) - side.ravel()[whose]
        edge = np.repeat(np.arange(len(flat.ends)), np.diff(flat.at))
        i, j = np.divmod(np.arange(len(flat.table)) - flat.at[edge], sizes[edge, 1])
        return Places(side, end, edge, np.stack([i, j]) + flat.start[flat.ends[edge].T])

    def messages(self, flat: Flat, k: int) -> Ints:
        """[entries]: the message to end k (0, 1) of every entry."""
        at: Ints = self.options[k] + (self.side[:, k] - flat.start[flat.ends[:, k]])[self.edge]
        return at


def lower_bounds(flat: Flat, messages: Floats, prices: Floats, places: Places | None = None) -> LowerBounds:
    """The bounds by messages [to u of edge 0, to v of edge 0, to u of edge 1, ...] and prices [R]."""
    places = places or Places.of(flat)
    prices, messages = (np.where(np.isfinite(x), x, 0.0) for x in (np.maximum(prices, 0.0), messages))
    shares, paid = _priced(flat, prices)
    cost, table = as_floats(flat.cost), as_floats(flat.table)
    pairs = np.zeros(len(table)) if flat.pair_use is None else flat.pair_use @ prices * _DOWN
    grid = _grid(flat, cost, table, messages, [shares, pairs], paid)
    cost, table, shares, pairs = (np.floor(x / grid) * grid for x in (cost, table, shares, pairs))
    messages = np.round(messages / grid) * grid
    alone = cost
    np.add.at(alone, flat.use_options, shares)
    np.add.at(alone, places.end, messages)
    to = [places.messages(flat, k) for k in (0, 1)]
    pairs = table + pairs - messages[to[0]] - messages[to[1]]
    best = np.full(len(messages), np.inf)  # per message: the minimum of its row or column
    for k in (0, 1):
        np.minimum.at(best, to[k], pairs)
    low = _minima(alone, flat.start), _minima(pairs, flat.at)
    total = low[0].sum() + low[1].sum() - math.ceil(paid / grid) * grid
    if not np.isfinite(total):
        return LowerBounds(math.inf, np.full(len(cost), np.inf), np.full(len(table), np.inf))
    more = alone - np.repeat(low[0], flat.sizes)
    extra = best - np.repeat(low[1], flat.sizes[flat.ends].sum(axis=1))  # excess of each row's minimum
    np.add.at(more, places.end, extra)
    with np.errstate(invalid="ignore"):  # inf - inf: a removed option
        both = sum(more[places.options[k]] - extra[to[k]] for k in (0, 1)) + (pairs - low[1][places.edge])
    return LowerBounds(float(total), total + more, np.where(np.isnan(both), np.inf, total + both))


def fixed(flat: Flat, proved: LowerBounds, ceiling: int) -> Reduced | None:
    """Delete options and pairs whose lower bound is `ceiling` or more; capacities keep their indices.

    None if no choice of cost below `ceiling` is left.
    """
    reach = ceiling - 1 - flat.constant
    keep = proved.options <= reach
    if proved.total > reach or not np.logical_or.reduceat(keep, flat.start[:-1]).all():
        return None
    table = np.where(proved.entries <= reach, flat.table, INFINITE)
    return kept_options(replace(flat, table=table), keep)


def _priced(flat: Flat, prices: Floats) -> tuple[Floats, float]:
    """Lower bounds on the price of every use [use], and an upper bound on the price of all limits."""
    worth = math.fsum((prices * flat.limits).tolist()) * _UP
    if not prices.any():
        return np.zeros(len(flat.use)), 0.0
    unit = 2.0 ** (math.ceil(math.log2(prices.sum())) - _BITS)  # prefix sums are exact
    prices = np.floor(prices / unit) * unit
    until = np.concatenate([[0.0], np.cumsum(prices)])
    each = until[flat.rows[:, 1]] - until[flat.rows[:, 0]]
    return flat.use * np.repeat(each, np.diff(flat.use_at)) * _DOWN, worth


def _grid(flat: Flat, cost: Floats, table: Floats, messages: Floats, priced: list[Floats], paid: float) -> float:
    """A power of two large enough that the sums of multiples here are exact."""
    sizes = offsets(flat.sizes[flat.ends].ravel())
    parts = [(cost, flat.start), (table, flat.at), (messages, sizes), (messages, sizes)]
    parts += zip(priced, (flat.use_at, flat.at), strict=True)
    most = paid + math.fsum(_most(values, starts) for values, starts in parts)
    return 2.0 ** (math.ceil(math.log2(most + 1)) - _BITS)


def _most(values: Floats, starts: Ints) -> float:
    """The sum over parts of the largest finite magnitude in each."""
    sizes = np.where(np.isfinite(values), np.abs(values), 0.0)
    return math.fsum(np.maximum.reduceat(sizes, starts[:-1]).tolist()) if len(values) else 0.0


def _minima(values: Floats, starts: Ints) -> Floats:
    return np.minimum.reduceat(values, starts[:-1]) if len(values) else np.zeros(0)
