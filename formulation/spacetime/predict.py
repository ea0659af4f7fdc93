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

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from ...model.errors import PartitaError
from ...model.garbage_collection import without_collection
from ...model.graph.pcg import PCG
from ...model.machine.machine import Machine
from .lifetimes import Lifetimes, Span, lifetimes
from .looped import Looped, once
from .materialized import Instruction, Materialized
from .moves import Moves
from .price import Prices
from .steady import Again
from .timeline import COMPUTE, Streamed, Timeline
from .times import Times
from .usage import Usage, changes, usage
from .weight_traffic import WeightTraffic

MORE = 3
"""Where repetitions that are simulated do not suffice, so many times more micro-batches are."""


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


class Simulated(NamedTuple):
    """Times and memory by device of a program that may leave repetitions out: what comes `again` comes more often."""

    looped: Looped
    times: tuple[Times, ...]
    memory: tuple[Usage, ...]
    again: Again | None = None


@dataclass(frozen=True)
class Prediction:
    """A simulated step: the times of every device's instructions, its memory, and what lives in it.

    `first`: by device, the one that was simulated for it.
    """

    looped: Looped
    machine: Machine
    simulated: Simulated
    living: tuple[Lifetimes, ...]
    streams: tuple[tuple[Streamed, ...], ...]  # by device and place
    first: tuple[int, ...]

    @property
    def program(self) -> Materialized:
        """The program; of a plan with a loop, that of its template."""
        return self.looped.program

    @cached_property
    def times(self) -> tuple[Times, ...]:
        """Per device the times of all instructions."""
        again, found = self.simulated.again, dict[int, Times]()
        if again is None:
            return self.simulated.times
        for device in {*self.first}:
            steps = self.program.steps[device]
            between = np.array([(self.looped.of[step] or 0) > 0 for step in steps], dtype=bool)
            found[device] = again.expanded(device, self.simulated.times[device], between)
        return tuple(found[device] for device in self.first)

    @cached_property
    def memory(self) -> tuple[Usage, ...]:
        """Per device its memory over all of the step."""
        if self.simulated.again is None:
            return self.simulated.memory
        found = {d: usage(self.looped, d, self.times[d], self.living[d]) for d in {*self.first}}
        return tuple(found[device] for device in self.first)

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
        again, ends = self.simulated.again, (times.ends for times in self.simulated.times)
        found = max((int(own.max()) for own in ends if own.size), default=0)
        return found + (again.times * again.ns if again else 0)

    @property
    def peaks(self) -> tuple[Mapping[str, int], ...]:
        """Per device its bytes by kind (`MEMORY`) at the peak."""
        return tuple(usage.peak for usage in self.simulated.memory)

    @property
    def peak_bytes(self) -> tuple[int, ...]:
        return tuple(usage.peak_bytes for usage in self.simulated.memory)

    @property
    def too_full(self) -> tuple[int, ...]:
        """The devices that need more memory than the machine's have for a plan, the fullest first."""
        peaks, capacity = self.peak_bytes, self.machine.device.capacity_bytes
        return tuple(sorted((d for d, peak in enumerate(peaks) if peak > capacity), key=lambda d: (-peaks[d], d)))

    def alive(self, device: int) -> tuple[Held, ...]:
        """The allocations of a device at its peak; what lies in it for the whole step is in `living`."""
        looped, times, _, again = self.simulated
        living, now, at = self.living[device], set[int](), 0
        change = changes(looped, device, times[device], living)
        total = sum(living.always.values())
        for ns, size, frees, span in zip(*(own.tolist() for own in change[:4]), strict=True):
            if total == self.peak_bytes[device]:
                break
            total, at = total + size, ns
            (now.discard if frees else now.add)(span)
        late = again.late(self.first[device], times[device], at) if again else 0
        held = (Held(living.spans[change.numbers[span]], change.micros[span]) for span in sorted(now))
        return tuple(
            own._replace(micro=own.micro + late if own.micro else own.micro) for own in held if own.span.size_bytes
        )

    @cached_property
    def busy_ns(self) -> tuple[int, ...]:
        """Compute time of every device."""
        again, found = self.simulated.again, dict[int, int]()
        for device in {*self.first}:
            times, computes = self.simulated.times[device], [on.stream == COMPUTE for on in self.streams[device]]
            busy = np.where(np.array(computes, dtype=bool)[times.places], times.ends - times.starts, 0)
            more = again.times * int(busy[slice(*again.places[device])].sum()) if again else 0
            found[device] = int(busy.sum()) + more
        return tuple(found[device] for device in self.first)

    @property
    def bubble(self) -> float:
        """The fraction of device time without computation."""
        whole = self.step_ns * len(self.first)
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
    kept, weights = given, WeightTraffic(program, prices)
    while True:
        found = _simulated(kept, Moves(kept.short, prices, weights), given.pcg)
        repeat = kept.order.repeat
        if repeat is None or found.simulated.again is not None:
            return replace(found, looped=given)
        kept = kept.longer(min(repeat.times, MORE * kept.short.count // repeat.micros))


def _simulated(given: Looped, moves: Moves, whole: PCG) -> Prediction:
    """A step without repetitions that are left out; `whole`: the graph of all samples."""
    program, short, prices = given.program, given.short, moves.prices
    first = short.equal_ranks([moves.ns[short.instructions(rank)[0]].tobytes() for rank in range(len(program.devices))])
    living = {device: lifetimes(program, device, prices, whole) for device in sorted({*first})}
    timeline = Timeline(short, moves, living, first, given.order.repeat)
    (times, again), streams = timeline.run(), timeline.streams()
    memory = {device: usage(short, device, times[device], alive) for device, alive in living.items()}
    return Prediction(
        given,
        prices.machine,
        Simulated(short, tuple(times[device] for device in first), tuple(memory[device] for device in first), again),
        living=tuple(living[device] for device in first),
        streams=tuple(streams[device] for device in first),
        first=first,
    )
