"""Exact reduction: a network of the same optimum, as small as local reasoning makes it, with the way back."""

from __future__ import annotations

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
    """The network after all steps, in turn until none changes it or the time `until` (of perf_counter) has come.

    None where a step proves that there is no feasible choice.
    """
    found = Reduced(flat)
    quiet = 0  # how many steps in a row changed nothing
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
