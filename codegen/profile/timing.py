"""Times of a call that all ranks make at once."""

from __future__ import annotations

import time
from collections.abc import Callable
from math import ceil
from statistics import median
from typing import NamedTuple

import torch
import torch.distributed as dist

WINDOW_S = 0.03
"""Seconds of calls in a row, if they are so many: a scheduler's time slices even out."""
WINDOWS = 7
MAX_CALLS = 2000
SLOW_S = 0.2
"""Calls of more seconds are repeated less often."""


class Timing(NamedTuple):
    """ns of a call, the median over windows; `spread`: median absolute deviation / median."""

    ns: float
    spread: float


def timed(call: Callable[[], object], device: str = "cpu") -> Timing:
    """Time a call that every rank makes at the same time; ranks begin each window together.

    A window ends when the last rank is done: ranks that share cores run one before the other, and a step waits for all.
    """
    wait: Callable[[], None] = torch.cuda.synchronize if device == "cuda" else lambda: None

    def windows(count: int, calls: int) -> list[float]:
        ends = torch.empty(2, count, dtype=torch.float64)  # the clock is that of the computer
        for number in range(count):
            dist.barrier()
            ends[0, number] = -time.perf_counter_ns()
            for _ in range(calls):
                call()
            wait()
            ends[1, number] = time.perf_counter_ns()
        last = ends.to(device)
        dist.all_reduce(last, dist.ReduceOp.MAX)
        found: list[float] = (last.sum(0) / calls).tolist()
        return found

    (once,) = windows(1, 1)  # also warms up
    once = once if once > SLOW_S * 1e9 else windows(1, 2)[0]
    calls = min(max(ceil(WINDOW_S * 1e9 / once), 1), MAX_CALLS)
    found = windows(WINDOWS if once < SLOW_S * 1e9 else 3, calls)
    middle = median(found)
    return Timing(middle, median(abs(x - middle) for x in found) / middle)
