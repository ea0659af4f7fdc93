"""The cheapest program per payload: what the planner prices and the emitted program runs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ...model.machine.collective_price import FREE, CollectivePrice
from ...model.machine.machine import Machine
from ..placement.placement import Placement
from .cost import step_price
from .optimal import envelope
from .program import Collective, Reduction, ReductionProgram, Step
from .statuses import Kind


@dataclass(frozen=True, slots=True)
class Schedule:
    """The cheapest programs of one collective and their prices, small payloads first.

    The payload is the whole buffer: the input of an all-reduce or reduce-scatter, the output of an all-gather.
    """

    prices: tuple[CollectivePrice, ...]
    programs: tuple[ReductionProgram, ...]

    def ns(self, size_bytes: int) -> int:
        """Time of the cheapest program, rounded up to ns."""
        return min(line.ns(size_bytes) for line in self.prices)

    def ns_array(self, sizes_bytes: NDArray[np.int64]) -> NDArray[np.int64]:
        """`ns` elementwise."""
        times: NDArray[np.int64] = np.minimum.reduce([line.ns_array(sizes_bytes) for line in self.prices])
        return times

    def at(self, size_bytes: int) -> CollectivePrice:
        """The price of the program that runs for a payload."""
        return self.prices[sum(start <= size_bytes for start in self.starts) - 1]

    @property
    def starts(self) -> tuple[int, ...]:
        """The payload in bytes from which each program is the cheapest; the first is 0."""
        crossings = (
            math.ceil((after.latency_ns - before.latency_ns) / (before.ns_per_byte - after.ns_per_byte))
            for before, after in pairwise(self.prices)
        )
        return (0, *crossings)

    @property
    def is_flat(self) -> bool:
        """True if every program has at most one step."""
        return all(len(program) <= 1 for program in self.programs)


@lru_cache(maxsize=4096)
def schedule(machine: Machine, placement: Placement, axes: tuple[int, ...], kind: Kind, flat: bool = False) -> Schedule:
    """The schedule of a collective over some axes; `flat`: a single step over the whole group."""
    reduction = Reduction(placement, axes)
    if not reduction.sizes:
        return Schedule((FREE,), ((),))
    if flat:
        step = Step(Collective(kind), 0, len(reduction.sizes) - 1)
        return Schedule((step_price(machine, reduction, step, 1.0),), ((step,),))
    prices, programs = zip(*envelope(machine, reduction, kind), strict=True)
    return Schedule(prices, programs)
