"""Fusion: the best choice that takes every option from one of several good ones.

Good choices of a network agree in most places. What remains, with two or three options a variable where they differ,
reduces to a small network, which is solved exactly: a crossover that inherits the best of all combinations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ...formulation.network import INFINITE
from ..kernels import Ints
from .form import Flat
from .integer import solve_exactly
from .reduce import reduced


def restricted(flat: Flat, choices: Sequence[Ints]) -> Flat:
    """The network with all options forbidden that none of the choices takes."""
    taken = np.zeros(len(flat.cost), np.bool_)
    for choice in choices:
        taken[flat.start[:-1] + choice] = True
    return replace(flat, cost=np.where(taken, flat.cost, INFINITE))


def fused(flat: Flat, choices: Sequence[Ints], until: float) -> Ints | None:
    """The best combination found until that time (of perf_counter); None if it costs no less than the best of them."""
    known = min((price for choice in choices if (price := flat.price(choice)) is not None), default=INFINITE)
    small = reduced(restricted(flat, choices), until)
    if small is None:
        return None
    exact = solve_exactly(small.flat, until, ceiling=lambda cost: known if cost is None else min(cost, known))
    return None if exact.choice is None or exact.cost >= known else small.lift(exact.choice)
