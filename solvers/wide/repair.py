"""Repair: descent under prices that rise while capacities are exceeded."""

from __future__ import annotations

import numpy as np

from ..elimination.kernels import Floats, Ints, compiled
from .blocks import Net, Scratch, changed_load, clear, grow, random, solve_tree, sum_prices, take


@compiled
def relax(
    net: Net, room: Scratch, choice: Ints, load: Ints, prices: Floats, blocks: int, most: int, state: Ints
) -> None:
    """Solve blocks under fixed prices, ignoring capacities."""
    sum_prices(prices, room.prefix)
    for _ in range(blocks):
        count = grow(net, room, random(state, choice.shape[0]), most, state)
        solve_tree(net, room, count, choice, 0.0, state)
        changed_load(net, room, count, choice)
        clear(net, room, count)
        take(room, count, choice, load)


def risen(prices: Floats, load: Ints, limits: Ints, share: float, unit: float) -> Floats:
    """Raise prices in proportion to the excess of each row, at most by a share of the largest price (or `unit`)."""
    excess = np.maximum(load - limits, 0).astype(np.float64)
    step = share * max(prices.max(initial=0.0), unit)
    raised: Floats = prices + step * excess / max(excess.max(initial=0.0), 1.0)
    return raised
