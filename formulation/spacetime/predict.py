"""Simulation of a step of a program: the time of every instruction and the memory of every device.

A device runs its instructions in order on a compute stream; transfers run on a communication stream, offloads and
reloads on a host stream. Each stream runs one instruction at a time. A transfer starts once all its members have
reached it, its inputs are ready and their earlier transfers are done; only readers of its result wait for it. Groups
that move one tensor in the same way at the same time share links and are priced together.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import NamedTuple

from ...model.errors import PartitaError
from ...model.machine.machine import Machine
from .lifetimes import Lifetimes, Span, lifetimes
from .mask import PTensor
from .materialized import (
    Accumulate,
    Add,
    Collective,
    Instruction,
    Join,
    Materialized,
    Register,
    Run,
    Send,
    Slice,
    Transfer,
    Zeros,
    ready_after,
    waits_for,
)
from .op import Op, Phase
from .price import Prices

COMPUTE, COMMUNICATION, HOST = "compute", "communication", "host"
STREAMS = (COMPUTE, COMMUNICATION, HOST)
SEND = "send"


@dataclass(frozen=True, slots=True)
class Timed:
    """An instruction on a stream. `reached_ns`: when the device got to it; `size_bytes`: what it transfers."""

    instruction: Instruction
    stream: str
    reached_ns: int
    start_ns: int
    end_ns: int
    size_bytes: int = 0

    @property
    def ns(self) -> int:
        return self.end_ns - self.start_ns


@dataclass(frozen=True, slots=True)
class Usage:
    """Memory of a device: bytes by kind (`MEMORY`) at the peak, its time, and total bytes over time."""

    peak: Mapping[str, int]
    peak_ns: int
    over_time: tuple[tuple[int, int], ...]  # (from ns, bytes)

    @property
    def peak_bytes(self) -> int:
        return sum(self.peak.values())


@dataclass(frozen=True)
class Prediction:
    """A simulated step: per device its instructions in order (`devices`), its memory, and what lives in it."""

    program: Materialized
    machine: Machine
    devices: tuple[tuple[Timed, ...], ...]
    memory: tuple[Usage, ...]
    living: tuple[Lifetimes, ...]

    @cached_property
    def step_ns(self) -> int:
        """Duration of the step."""
        return max((timed.end_ns for own in self.devices for timed in own), default=0)

    @property
    def peak_bytes(self) -> tuple[int, ...]:
        return tuple(usage.peak_bytes for usage in self.memory)

    @property
    def too_full(self) -> tuple[int, ...]:
        """The devices that need more memory than the machine's have for a plan, the fullest first."""
        peaks, capacity = self.peak_bytes, self.machine.device.capacity_bytes
        return tuple(sorted((d for d, peak in enumerate(peaks) if peak > capacity), key=lambda d: (-peaks[d], d)))

    def alive(self, device: int) -> tuple[Span, ...]:
        """The allocations of a device at its peak; what lies in it for the whole step is in `living`."""
        living, now = self.living[device], set[int]()
        total = sum(living.always.values())
        for change in _changes(self.devices[device], living):
            if total == self.memory[device].peak_bytes:
                break
            total += change.size_bytes
            (now.discard if change.frees else now.add)(change.span)
        return tuple(living.spans[number] for number in sorted(now) if living.spans[number].size_bytes)

    @cached_property
    def busy_ns(self) -> tuple[int, ...]:
        """Compute time of every device."""
        return tuple(sum(timed.ns for timed in own if timed.stream == COMPUTE) for own in self.devices)

    @property
    def bubble(self) -> float:
        """The fraction of device time without computation."""
        whole = self.step_ns * len(self.devices)
        return 1 - sum(self.busy_ns) / whole if whole else 0.0


def predict(program: Materialized, machine: Machine, dtype: str = "float32", optimizer: str = "adamw") -> Prediction:
    """Time and memory of a step.

    Raises PartitaError for an unknown dtype, optimizer or operator, more devices than the machine has, or a swap on a
    machine without `host_bandwidth`.
    """
    if len(program.devices) > machine.devices:
        raise PartitaError(f"the plan is for {len(program.devices)} devices, {machine.name} has {machine.devices}")
    prices = Prices(program.tasks.graph, machine, dtype, optimizer)
    living = [lifetimes(program, device, prices) for device in range(len(program.devices))]
    timeline = _Timeline(program, prices, living).run()
    memory = (_usage(own, alive) for own, alive in zip(timeline, living, strict=True))
    return Prediction(program, machine, timeline, tuple(memory), tuple(living))


# Time


class _Timeline:
    def __init__(self, program: Materialized, prices: Prices, living: list[Lifetimes]) -> None:
        self.program, self.prices, self.living = program, prices, living
        self.free = [dict.fromkeys(STREAMS, 0) for _ in program.devices]
        self.ready: dict[Register, int] = {}
        self.reloaded: dict[Op, int] = {}  # by forward operator
        self.updated: set[Register] = set()  # updated parameters on the device of their update
        self.timed: list[list[Timed | None]] = [[None] * len(own) for own in program.devices]
        self.arrived: dict[int, list[tuple[int, int, int]]] = defaultdict(list)  # by key: (device, place, when)
        self.transfer_ns = dict(_transfers(program, prices))

    def run(self) -> tuple[tuple[Timed, ...], ...]:
        order = sorted(
            (step, device, place) for device, steps in enumerate(self.program.steps) for place, step in enumerate(steps)
        )
        for _, device, place in order:
            instruction = self.program.devices[device][place]
            if isinstance(instruction, Transfer):
                self._transfer(device, place, instruction)
            else:
                self._alone(device, place, instruction)
        done = tuple(tuple(timed for timed in own if timed is not None) for own in self.timed)
        assert list(map(len, done)) == list(map(len, self.program.devices)), "a transfer lacks a member"
        return done

    def _alone(self, device: int, place: int, instruction: Instruction) -> None:
        reached, size = self.free[device][COMPUTE], self.living[device].moved.get(place, 0)
        start = max((reached, *(self.ready[r] for r in waits_for(instruction))))
        op = instruction.op if isinstance(instruction, Run) else None
        if op is not None and op.phase in (Phase.OFFLOAD, Phase.RELOAD):
            timed = self._put((device, place), HOST, (reached, start), self.prices.host_ns(size), size)
            if op.phase is Phase.RELOAD and op.forward is not None:
                self.reloaded[op.forward] = timed.end_ns
            return
        if op is not None and op.forward is not None:
            start = max(start, self.reloaded.get(op.forward, 0))
        ns = self._task_ns(instruction) if isinstance(instruction, Run) else self._local_ns(instruction)
        self._put((device, place), COMPUTE, (reached, start), ns, 0)

    def _task_ns(self, run: Run) -> int:
        if run.op.phase is Phase.UPDATE:
            self.updated.update(filter(None, run.writes))
        elif run.op.phase is Phase.KEEP and run.reads[0] not in self.updated:  # else updated in place
            size = self.prices.register_bytes(run.reads[0])
            return self.prices.copy_ns([size], size)
        return self.prices.task_ns(run.op)

    def _local_ns(self, instruction: Instruction) -> int:
        size = self.prices.register_bytes
        match instruction:
            case Zeros(target):
                return self.prices.copy_ns((), size(target))
            case Slice(target, source):
                return self.prices.copy_ns([size(target)], size(target))
            case Join(target, sources) | Add(target, sources):
                return self.prices.copy_ns([size(source) for source in sources], size(target))
            case Accumulate(total, source, first):
                return 0 if first else self.prices.accumulate_ns(total.tensor, source.mask.numel)
        raise AssertionError(instruction)

    def _transfer(self, device: int, place: int, instruction: Transfer) -> None:
        """Record an arriving member; the last one starts the transfer."""
        members = self.arrived[instruction.key]
        members.append((device, place, self.free[device][COMPUTE]))
        if len(members) < (len(instruction.group) if isinstance(instruction, Collective) else 2):
            return
        start = 0
        for d, p, reached in members:
            awaited = waits_for(self.program.devices[d][p])
            start = max(start, reached, self.free[d][COMMUNICATION], *(self.ready[r] for r in awaited))
        ns, size = self.transfer_ns[instruction.key]
        for d, p, reached in members:
            self._put((d, p), COMMUNICATION, (reached, start), ns, size)

    def _put(self, at: tuple[int, int], stream: str, when: tuple[int, int], ns: int, size: int) -> Timed:
        """Run the instruction `at` (device, place) on a stream; `when`: (reached, earliest start)."""
        (device, place), (reached, start) = at, when
        start = max(start, self.free[device][stream])
        timed = Timed(self.program.devices[device][place], stream, reached, start, start + ns, size)
        self.timed[device][place], self.free[device][stream] = timed, timed.end_ns
        self.ready |= dict.fromkeys(ready_after(timed.instruction), timed.end_ns)
        return timed


class _Move(NamedTuple):
    """A transfer: its ordered ranks and the bytes per member."""

    kind: str
    tensor: PTensor
    size_bytes: int
    group: tuple[int, ...]


def _transfers(program: Materialized, prices: Prices) -> Iterator[tuple[int, tuple[int, int]]]:
    """(key, (ns, bytes)) of every transfer; equal consecutive transfers of one tensor share the links."""
    found = dict(sorted(_moves(program, prices)))
    for _, similar in groupby(found.items(), key=lambda item: (item[1][:3], len(item[1].group))):
        for run in _disjoint(similar):
            kind, _, size, _ = run[0][1]
            groups = [move.group for _, move in run]
            if kind == SEND:
                ns = prices.sends_ns([(group[0], group[1]) for group in groups], size)
            else:
                ns = prices.collective_ns(kind, groups, size)
            yield from ((key, (ns, size)) for key, _ in run)


def _moves(program: Materialized, prices: Prices) -> Iterator[tuple[int, _Move]]:
    for device, own in enumerate(program.devices):
        for x in own:
            if isinstance(x, Send):
                yield x.key, _Move(SEND, x.source.tensor, prices.register_bytes(x.source), (device, x.to))
            elif isinstance(x, Collective) and device == x.group[0]:
                whole = x.target if x.kind == "all_gather" or x.source is None else x.source
                yield x.key, _Move(x.kind, whole.tensor, prices.register_bytes(whole), x.group)


def _disjoint(moves: Iterable[tuple[int, _Move]]) -> Iterator[list[tuple[int, _Move]]]:
    """Split moves into runs in which no device takes part twice."""
    run: list[tuple[int, _Move]] = []
    busy: set[int] = set()
    for key, move in moves:
        if not busy.isdisjoint(move.group):
            yield run
            run, busy = [], set()
        run.append((key, move))
        busy.update(move.group)
    yield run


# Memory


class _Change(NamedTuple):
    """A span is allocated or freed, at a time, by the instruction at `place`."""

    ns: int
    place: int
    frees: bool
    size_bytes: int
    span: int


def _changes(timed: Sequence[Timed], living: Lifetimes) -> list[_Change]:
    """At equal times they follow instruction order; within one, allocations precede frees."""
    changes: list[_Change] = []
    for number, span in enumerate(living.spans):
        first, last = span.touched[0], max(span.touched, key=lambda place: (timed[place].end_ns, place))
        changes.append(_Change(timed[first].reached_ns, first, False, span.size_bytes, number))
        changes.append(_Change(timed[last].end_ns, last, True, -span.size_bytes, number))
    return sorted(changes)


def _usage(timed: Sequence[Timed], living: Lifetimes) -> Usage:
    """Memory over time."""
    now = dict(living.always)
    total = most = sum(now.values())
    peak, peak_ns = dict(now), 0
    over_time: dict[int, int] = {0: total}
    for ns, _, _, size, span in _changes(timed, living):
        now[living.spans[span].kind] += size
        total += size
        over_time[ns] = total
        if total > most:
            most, peak, peak_ns = total, dict(now), ns
    return Usage(peak, peak_ns, tuple(over_time.items()))
