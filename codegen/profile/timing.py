"""Times of a call that all ranks make at once."""

from __future__ import annotations

import time
from collections.abc import Callable
from math import ceil
from statistics import median
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

WINDOW_S = 0.03
"""Seconds of calls in a row, if they are so many: a scheduler's time slices even out."""
WINDOWS = 3
"""Of a round: what is measured takes turns, so that no time depends on what one moment of the machine was like."""
MAX_CALLS = 2000
SLOW_S = 0.2
"""Calls of more seconds are repeated less often."""
QUEUED_CALLS = 32
"""Of a window on a GPU, whose queue holds about 1,000 kernels."""
HOLD_CYCLES = 1 << 23, 1 << 31
"""Clock cycles for which a GPU is held back before a window, at first and at most."""


class Timing(NamedTuple):
    """ns of a call in each window."""

    windows: tuple[float, ...]

    @property
    def ns(self) -> float:
        """The median of the windows."""
        return median(self.windows)

    @property
    def spread(self) -> float:
        """Median absolute deviation / median."""
        return median(abs(ns - self.ns) for ns in self.windows) / self.ns


def timed(call: Callable[[], object], device: str = "cpu") -> Timing:
    """Time a call that every rank makes at the same time; ranks begin each window together.

    A window ends when the last rank is done: ranks that share cores run one before the other, and a step waits for all.
    On a GPU it is the kernels' own time: all calls are queued before the first begins.
    """
    queued = device == "cuda"

    def windows(count: int, calls: int) -> list[float]:
        ends = torch.empty(2, count, dtype=torch.float64)
        for number in range(count):
            dist.barrier()
            ends[:, number] = torch.tensor((_queued if queued else _watched)(call, calls))
        last = ends.to(device)
        dist.all_reduce(last, dist.ReduceOp.MAX)
        found: list[float] = (last.sum(0) / calls).tolist()
        return found

    (once,) = windows(1, 1)  # also warms up
    once = once if once > SLOW_S * 1e9 else windows(1, 2)[0]
    calls = min(max(ceil(WINDOW_S * 1e9 / once), 1), QUEUED_CALLS if queued else MAX_CALLS)
    return Timing(tuple(windows(WINDOWS if once < SLOW_S * 1e9 else 1, calls)))


def _watched(call: Callable[[], object], calls: int) -> tuple[float, float]:
    """When calls on a CPU began, negative, and when they ended: ns by the computer's clock, which all ranks share."""
    start = time.perf_counter_ns()
    for _ in range(calls):
        call()
    return -start, time.perf_counter_ns()


def _queued(call: Callable[[], object], calls: int) -> tuple[float, float]:
    """0, and ns of calls on a GPU, which is held back until all are queued, so that it never waits for the host."""
    cycles, most = HOLD_CYCLES
    while True:
        start: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        end: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        torch.cuda._sleep(cycles)  # type: ignore[no-untyped-call]
        start.record()
        for _ in range(calls):
            call()
        begun = bool(start.query())
        end.record()
        torch.cuda.synchronize()
        late = torch.tensor(float(begun), device="cuda")
        dist.all_reduce(late, dist.ReduceOp.MAX)  # all ranks repeat a window, or none
        if not late or cycles >= most:
            return 0.0, float(start.elapsed_time(end)) * 1e6
        cycles *= 4
