"""Times of a call that all ranks make at once."""

from __future__ import annotations

import time
from collections.abc import Callable
from math import ceil
from statistics import median
from typing import NamedTuple

import torch
import torch.distributed as dist

WINDOW_S = 0.02
"""Seconds of calls in a row, so that a scheduler's time slices even out."""
WINDOWS = 7
MAX_CALLS = 2000
SLOW_S = 0.2
"""Calls of more seconds are repeated less often."""


class Timing(NamedTuple):
    """ns of a call: the median over windows, the mean over ranks; `spread`: median absolute deviation / median."""

    ns: float
    spread: float


def timed(call: Callable[[], object], device: str = "cpu") -> Timing:
    """Time a call that every rank makes at the same time; ranks begin each window together."""
    wait: Callable[[], None] = torch.cuda.synchronize if device == "cuda" else lambda: None

    def window(calls: int) -> float:
        dist.barrier()
        start = time.perf_counter_ns()
        for _ in range(calls):
            call()
        wait()
        return (time.perf_counter_ns() - start) / calls

    once = _mean(window(1), device)  # also warms up
    once = once if once > SLOW_S * 1e9 else _mean(window(2), device)
    calls = min(max(ceil(WINDOW_S * 1e9 / once), 1), MAX_CALLS)
    found = [window(calls) for _ in range(WINDOWS if once < SLOW_S * 1e9 else 3)]
    middle = median(found)
    deviation = median(abs(x - middle) for x in found)
    return Timing(_mean(middle, device), deviation / middle)


def _mean(value: float, device: str) -> float:
    """The mean over the ranks, the same on all of them."""
    total = torch.tensor(value, dtype=torch.float64, device=device)
    dist.all_reduce(total)
    return float(total) / dist.get_world_size()
