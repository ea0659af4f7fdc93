"""Exact reduction: local steps to a smaller network of the same optimum, and the way back."""

import math
import time
from collections.abc import Callable

from .arcs import without_dead_options, without_sums
from .degree import eliminated
from .dominance import without_dominated
from .form import Flat
from .merging import merged
from .rows import tightened
from .substitution import Reduced

STEPS: tuple[Callable[[Flat], Reduced | None], ...] = (
    without_dead_options,
    without_sums,
    merged,
    tightened,
    eliminated,
    without_dominated,
)


def reduced(flat: Flat, until: float = math.inf) -> Reduced | None:
    """Apply all steps until none changes the network, or until `until` (of perf_counter); None if infeasible."""
    found = Reduced(flat)
    del flat  # only the last network is held
    quiet = 0  # consecutive steps without change
    while quiet < len(STEPS):
        for step in STEPS:
            if time.perf_counter() > until:
                return found
            after = step(found.flat)
            if after is None:
                return None
            quiet = quiet + 1 if after.flat is found.flat else 0
            found = Reduced(after.flat, found.lifts + after.lifts)
    return found
