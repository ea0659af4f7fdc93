"""The schedules by which pipelines run, by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
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


@cache
def in_flight(schedule: str, devices: int, chunks: int, micro_batches: int, stage: int) -> int:
    """Of how many micro-batches a stage keeps activations at once, at the most: until all its gradients are known."""
    found, now, most = orders(schedule, devices, chunks, micro_batches), 0, 0
    last = "W" if any(slot.kind == "W" for slot in found[0]) else "B"
    for slot in found[stage % devices]:
        if slot.stage == stage and slot.kind in ("F", last):
            now += 1 if slot.kind == "F" else -1
            most = max(most, now)
    return most


def step_ns(devices: int, chunks: int, micro_batches: int, busy_ns: Sequence[int]) -> int:
    """The predicted step of stages that are busy so long, in the model's order: stage s lies on device s mod p."""
    loads = [sum(busy_ns[device::devices]) for device in range(devices)]
    longest = max(loads)
    return longest + -(-(sum(loads) - longest) // (micro_batches * chunks))
