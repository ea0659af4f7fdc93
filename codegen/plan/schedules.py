"""The schedules by which pipelines run, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from ...formulation.pipeline.orders import Orders, gpipe, interleaved, one_f_one_b, zero_bubble
from ...model.errors import PartitaError

Schedule: TypeAlias = Callable[[int, int, int], Orders]
"""Parts of the devices, stages that each has, micro-batches -> the orders."""

SCHEDULES: dict[str, Schedule] = {
    "1f1b": lambda devices, chunks, micros: one_f_one_b(devices, micros),
    "2bw": lambda devices, chunks, micros: one_f_one_b(devices, micros),  # of one step; the next one begins meanwhile
    "gpipe": lambda devices, chunks, micros: gpipe(devices, micros),
    "zero-bubble": lambda devices, chunks, micros: zero_bubble(devices, micros),
    "interleaved": lambda devices, chunks, micros: interleaved(devices, micros, chunks),
}


def orders(schedule: str, devices: int, chunks: int, micro_batches: int) -> Orders:
    """What every part of the devices runs. PartitaError: unknown, or not for so many chunks or micro-batches."""
    if schedule not in SCHEDULES:
        raise PartitaError(f"schedule {schedule!r:.60}: choose from {', '.join(SCHEDULES)}")
    if (schedule == "interleaved") != (chunks > 1):
        raise PartitaError(f"{schedule} with {chunks} stages a device: interleaved is for several, the others for one")
    return SCHEDULES[schedule](devices, chunks, micro_batches)
