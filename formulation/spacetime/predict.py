"""Simulation of a step of a program: the time of every instruction and the memory of every device.

A device runs its instructions in order on a compute stream. Collectives run on one of their own, so do messages that
it sends, messages that it receives, and copies to and from the host. Each stream runs one instruction at a time. A
transfer starts once all its members have reached it, its inputs are ready and their earlier transfers are done; only
readers of its result wait for it. Groups that move one tensor in the same way at the same time share links and are
priced together.

Weights and their gradients travel as the planner prices them (`weight_traffic`): in a stream of their own, beside the
kernels of their layer, which ends with the longer of both; elsewhere devices wait for them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from ...model.errors import PartitaError
from ...model.garbage_collection import without_collection
from ...model.machine.machine import Machine
from .lifetimes import Lifetimes, Span, lifetimes
from .looped import Looped, once
from .materialized import Instruction, Materialized
from .moves import Moves
from .price import Prices
from .timeline import COMPUTE, Streamed, Timeline, Times
from .usage import Usage, changes, usage
from .weight_traffic import WeightTraffic


@dataclass(frozen=True, slots=True)
class Timed:
    """An instruction on a stream. `reached_ns`: when the device got to it; `size_bytes`: what it transfers.

    `micro`: for which micro-batch of a loop.
    """

    instruction: Instruction
    stream: str
    reached_ns: int
    start_ns: int
    end_ns: int
    size_bytes: int = 0
    micro: int = 0

    @property
    def ns(self) -> int:
        return self.end_ns - self.start_ns


class Held(NamedTuple):
    """An allocation, and the micro-batch of a loop that it belongs to, if it is one's."""

    span: Span
    micro: int | None


@dataclass(frozen=True)
class Prediction:
    """A simulated step: the times of every device's instructions, its memory, and what lives in it."""

    looped: Looped
    machine: Machine
    times: tuple[Times, ...]
    memory: tuple[Usage, ...]
    living: tuple[Lifetimes, ...]
    streams: tuple[tuple[Streamed, ...], ...]  # by device and place

    @property
    def program(self) -> Materialized:
        """The program; of a plan with a loop, that of its template."""
        return self.looped.program

    @cached_property
    def devices(self) -> tuple[tuple[Timed, ...], ...]:
        """Per device its instructions in order."""
        return tuple(
            tuple(
                Timed(own[place], on[place].stream, reached, start, end, on[place].size_bytes, micro=micro)
                for place, micro, reached, start, end in zip(
                    *(x.tolist() for x in (times.places, times.micros, times.reached, times.starts, times.ends)),
                    strict=True,
                )
            )
            for own, times, on in zip(self.program.devices, self.times, self.streams, strict=True)
        )

    @cached_property
    def step_ns(self) -> int:
        """Duration of the step."""
        return max((int(times.ends.max()) for times in self.times if times.ends.size), default=0)

    @property
    def peak_bytes(self) -> tuple[int, ...]:
        return tuple(usage.peak_bytes for usage in self.memory)

    @property
    def too_full(self) -> tuple[int, ...]:
        """The devices that need more memory than the machine's have for a plan, the fullest first."""
        peaks, capacity = self.peak_bytes, self.machine.device.capacity_bytes
        return tuple(sorted((d for d, peak in enumerate(peaks) if peak > capacity), key=lambda d: (-peaks[d], d)))

    def alive(self, device: int) -> tuple[Held, ...]:
        """The allocations of a device at its peak; what lies in it for the whole step is in `living`."""
        living, now = self.living[device], set[int]()
        change = changes(self.looped, device, self.times[device], living)
        total = sum(living.always.values())
        for size, frees, span in zip(change.sizes.tolist(), change.frees.tolist(), change.spans.tolist(), strict=True):
            if total == self.memory[device].peak_bytes:
                break
            total += size
            (now.discard if frees else now.add)(span)
        held = (Held(living.spans[change.numbers[span]], change.micros[span]) for span in sorted(now))
        return tuple(own for own in held if own.span.size_bytes)

    @cached_property
    def busy_ns(self) -> tuple[int, ...]:
        """Compute time of every device."""
        computes = (np.array([one.stream == COMPUTE for one in own], dtype=bool) for own in self.streams)
        return tuple(
            int((times.ends - times.starts)[here[times.places]].sum())
            for times, here in zip(self.times, computes, strict=True)
        )

    @property
    def bubble(self) -> float:
        """The fraction of device time without computation."""
        whole = self.step_ns * len(self.times)
        return 1 - sum(self.busy_ns) / whole if whole else 0.0


@without_collection()
def predict(
    program: Materialized | Looped, machine: Machine, dtype: str = "float32", optimizer: str = "adamw"
) -> Prediction:
    """Time and memory of a step.

    Raises PartitaError for an unknown dtype, optimizer or operator, more devices than the machine has, or a swap on a
    machine without `host_bandwidth`.
    """
    given = once(program) if isinstance(program, Materialized) else program
    program = given.program
    if len(program.devices) > machine.devices:
        raise PartitaError(f"the plan is for {len(program.devices)} devices, {machine.name} has {machine.devices}")
    prices = Prices(program.tasks.graph, machine, dtype, optimizer)
    moves = Moves(given, prices, WeightTraffic(program, prices))
    first = given.equal_ranks([moves.ns[given.instructions(rank)[0]].tobytes() for rank in range(len(program.devices))])
    living = {device: lifetimes(program, device, prices, given.pcg) for device in sorted({*first})}
    timeline = Timeline(given, moves, living, first)
    times, streams = timeline.run(), timeline.streams()
    memory = {device: usage(given, device, times[device], alive) for device, alive in living.items()}
    return Prediction(
        given,
        machine,
        times=tuple(times[device] for device in first),
        memory=tuple(memory[device] for device in first),
        living=tuple(living[device] for device in first),
        streams=tuple(streams[device] for device in first),
    )
