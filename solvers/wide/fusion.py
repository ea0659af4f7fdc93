"""Fusion: the best choice that takes each option from one of several good ones.

Good choices of a network mostly agree. Where they differ, two or three options per variable remain: a network that
reduces to a small one, which is solved exactly. A crossover that finds the best of all combinations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ...formulation.network.network import INFINITE
from ..elimination.kernels import Ints
from .deadline import Deadline
from .form import Flat
from .highs import Highs
from .integer import solve_exactly
from .reduce import reduced


def restricted(flat: Flat, choices: Sequence[Ints]) -> Flat:
    """The network with all options forbidden that no choice takes."""
    taken = np.zeros(len(flat.cost), np.bool_)
    for choice in choices:
        taken[flat.start[:-1] + choice] = True
    return replace(flat, cost=np.where(taken, flat.cost, INFINITE))


def fused(flat: Flat, choices: Sequence[Ints], until: Deadline, highs: Highs | None = None) -> Ints | None:
    """The best combination found by the deadline; None unless it beats all given choices. `highs` allows cancelling."""
    known = min((price for choice in choices if (price := flat.price(choice)) is not None), default=INFINITE)
    small = reduced(restricted(flat, choices), until.at)
    if small is None:
        return None

    def ceiling(cost: int | None) -> int:
        return -INFINITE if until.past else known if cost is None else min(cost, known)

    exact = solve_exactly(small.flat, until.at, ceiling=ceiling, highs=highs)
    return None if exact.choice is None or exact.cost >= known else small.lift(exact.choice)
