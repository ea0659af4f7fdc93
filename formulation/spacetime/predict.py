"""Simulation of a step of a program: the time of every instruction and the memory of every device.

A device runs its instructions in order on a compute stream; transfers run on a communication stream, offloads and
reloads on a host stream. Each stream runs one instruction at a time. A transfer starts once all its members have
reached it, its inputs are ready and their earlier transfers are done; only readers of its result wait for it. Groups
that move one tensor in the same way at the same time share links and are priced together.

Weights and their gradients travel as the planner prices them (`weight_traffic`): in a stream of their own, beside the
kernels of their layer, which ends with the longer of both; elsewhere devices wait for them.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ...model.errors import PartitaError
from ...model.garbage_collection import seldom_collected
from ...model.machine.machine import Machine
from .equal_ranks import equal_events
from .lifetimes import Lifetimes, Span, lifetimes
from .looped import Looped, once
from .mask import PTensor
from .materialized import (
    Accumulate,
    Add,
    Collective,
    Instruction,
    Join,
    Materialized,
    Run,
    Send,
    Slice,
    Transfer,
    Zeros,
    ready_after,
    waits_for,
)
from .messages import Message
from .op import Phase
from .price import Prices
from .weight_traffic import WeightTraffic, Window

COMPUTE, COMMUNICATION, WEIGHTS, HOST = "compute", "communication", "weights", "host"
STREAMS = (COMPUTE, COMMUNICATION, WEIGHTS, HOST)
SEND = "send"

Numbers: TypeAlias = NDArray[np.int64]


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


class Streamed(NamedTuple):
    """What is known of an instruction before it runs: its stream, its time, and the bytes that it transfers."""

    stream: str
    ns: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Times:
    """The instructions of a device in order: places in the program, micro-batches; when reached, started, ended."""

    places: Numbers
    micros: Numbers
    reached: Numbers
    starts: Numbers
    ends: Numbers


@dataclass(frozen=True, slots=True)
class Usage:
    """Memory of a device: bytes by kind (`MEMORY`) at the peak, its time, and total bytes over time."""

    peak: Mapping[str, int]
    peak_ns: int
    times: Numbers
    totals: Numbers  # from each of the times on

    @property
    def over_time(self) -> tuple[tuple[int, int], ...]:
        """(from ns, bytes)."""
        return tuple(zip(self.times.tolist(), self.totals.tolist(), strict=True))

    @property
    def peak_bytes(self) -> int:
        return sum(self.peak.values())


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
        changes = _changes(self.looped, device, self.times[device], living)
        total = sum(living.always.values())
        for size, frees, span in zip(
            changes.sizes.tolist(), changes.frees.tolist(), changes.spans.tolist(), strict=True
        ):
            if total == self.memory[device].peak_bytes:
                break
            total += size
            (now.discard if frees else now.add)(span)
        held = (Held(living.spans[changes.numbers[span]], changes.micros[span]) for span in sorted(now))
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


@seldom_collected()
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
    moves = _Moves(given, prices, WeightTraffic(program, prices))
    first = given.equal_ranks([moves.ns[given.instructions(rank)[0]].tobytes() for rank in range(len(program.devices))])
    living = {device: lifetimes(program, device, prices, given.pcg) for device in sorted({*first})}
    timeline = _Timeline(given, moves, living, first)
    times, streams = timeline.run(), timeline.streams()
    memory = {device: _usage(given, device, times[device], alive) for device, alive in living.items()}
    return Prediction(
        given,
        machine,
        times=tuple(times[device] for device in first),
        memory=tuple(memory[device] for device in first),
        living=tuple(living[device] for device in first),
        streams=tuple(streams[device] for device in first),
    )


# Time


@dataclass(slots=True)
class _Entry:
    """An instruction of the template, as the timeline runs it.

    `waits` and `readies`: rows of registers, each with the micro-batch, or -1 for that of the instruction. `window`:
    the layer beside whose kernels weights travel; `alone`: no window goes on over it.
    """

    device: int
    place: int
    on: Streamed
    waits: tuple[tuple[int, int], ...]
    readies: tuple[tuple[int, int], ...]
    window: Window | None
    alone: bool


@dataclass(slots=True)
class _Device:
    """How far a device is: when each stream is free, and the window it is in, with that of which micro-batch.

    `began`: when the window did.
    """

    free: dict[str, int]
    window: tuple[Window, int] | None = None
    began: int = 0

    def enter(self, window: tuple[Window, int] | None) -> None:
        """Begin a window; the one before ends with its kernels and its traffic."""
        if window == self.window:
            return
        if self.window is not None:
            self.free[COMPUTE] = max(self.free[COMPUTE], self.free[WEIGHTS])
        self.window, self.began = window, self.free[COMPUTE]
        self.free[WEIGHTS] = max(self.free[WEIGHTS], self.began)


class _Timeline:
    """The times of the devices of `living`, one of each class of equal ones, and of all transfers between them.

    `first`: by device, the one of `living` that is equal to it.
    """

    def __init__(self, looped: Looped, moves: _Moves, living: Mapping[int, Lifetimes], first: Sequence[int]) -> None:
        self.looped, self.program, self.prices, self.living = looped, looped.program, moves.prices, living
        self.rows: dict[object, int] = {}  # of registers, and of reloads by forward operator
        self.updating = {  # what updates read: parts of weights and gradients that are kept
            register
            for device in living
            for x in self.program.devices[device]
            if isinstance(x, Run) and x.op.phase is Phase.UPDATE
            for register in x.reads
        }
        self.moves, self.weights = moves, moves.weights
        numbers, events = equal_events(looped.events, first)
        self.number = np.array(numbers, dtype=np.int64)  # by step of the program, that of its event here
        micros = dict(zip(numbers, looped.of, strict=True)) if looped.of else {}
        self.entries = [
            [self._entry(device, place, micros.get(number)) for device, place in members]
            for number, members in enumerate(events)
        ]

    def streams(self) -> dict[int, tuple[Streamed, ...]]:
        """By device and place."""
        found: dict[int, dict[int, Streamed]] = {device: {} for device in self.living}
        for members in self.entries:
            for entry in members:
                found[entry.device][entry.place] = entry.on
        return {device: tuple(own[place] for place in range(len(own))) for device, own in found.items()}

    def _entry(self, device: int, place: int, micro: int | None) -> _Entry:
        instruction = self.program.devices[device][place]
        waits = [self._row(register, self.looped.register.get(register), micro) for register in waits_for(instruction)]
        readies = [
            self._row(register, self.looped.register.get(register), micro) for register in ready_after(instruction)
        ]
        if isinstance(instruction, Run) and instruction.op.forward is not None:
            key = ("reload", instruction.op.forward)
            if instruction.op.phase is Phase.RELOAD:
                readies.append(self._row(key, micro, micro))
            elif key in self.rows:
                waits.append(self._row(key, micro, micro))
        window, on = self.weights.window(device, place), self._on(device, place, instruction)
        alone = window is None and (on.stream == WEIGHTS or (isinstance(instruction, Run) and on.stream == COMPUTE))
        return _Entry(device, place, on, tuple(waits), tuple(readies), window=window, alone=alone)

    def _row(self, key: object, micro: int | None, reader: int | None) -> tuple[int, int]:
        """The row of a register of a micro-batch of the template, and the micro-batch that one of `reader` reads."""
        row = self.rows.setdefault(key, len(self.rows))
        if micro is None or self.looped.loop is None:
            return row, 0
        return row, -1 if micro == reader else self.looped.loop.shown[micro]

    def _on(self, device: int, place: int, instruction: Instruction) -> Streamed:
        weights = self.weights.moves(instruction)
        if isinstance(instruction, Transfer):
            return Streamed(WEIGHTS if weights else COMMUNICATION, 0, self.moves.size_bytes(instruction.key))
        if not isinstance(instruction, Run):
            return Streamed(WEIGHTS if weights else COMPUTE, self._local_ns(instruction), 0)
        if instruction.op.phase in (Phase.OFFLOAD, Phase.RELOAD):
            size = self.living[device].moved.get(place, 0)
            return Streamed(HOST, self.prices.host_ns(size), size)
        ns = self.prices.task_ns(instruction.op) + self.weights.of_task_ns(instruction, device)
        return Streamed(COMPUTE, ns, 0)

    def run(self) -> dict[int, Times]:
        """Run all events in order. Every device reaches its part of a transfer once it has got to it."""
        count = self.looped.count
        devices = {device: _Device(dict.fromkeys(STREAMS, 0)) for device in self.living}
        ready: list[dict[int, int]] = [{} for _ in self.rows]
        made = {device: (array("q"), array("q"), array("q")) for device in self.living}
        numbers = self.number[self.looped.steps]
        at = np.sort(np.unique(numbers * count + self.looped.micros, return_index=True)[1])  # the first of equal ones
        transfers = self.moves.transfers[self.looped.steps[at]]
        events = (own[at].tolist() for own in (numbers, self.looped.micros, self.moves.ns))
        for number, micro, moved, transfer in zip(*events, transfers.tolist(), strict=True):
            members = self.entries[number]
            start = self._start(members, micro, devices, ready)
            ns = moved if transfer else members[0].on.ns
            end = start + ns
            for entry in members:
                own, stream = devices[entry.device], entry.on.stream
                reached, starts, ends = made[entry.device]
                reached.append(own.free[COMPUTE])
                starts.append(start)
                ends.append(end)
                own.free[stream] = end
                if stream == WEIGHTS and entry.window is None:
                    own.free[COMPUTE] = end
                elif stream == WEIGHTS:
                    own.free[COMPUTE] += self.prices.machine.busy_ns(ns)
                # What a window brings stands for what the one before it brought.
                end_of = own.began if stream == WEIGHTS and entry.window is not None else end
                for row, which in entry.readies:
                    ready[row][micro if which < 0 else which] = end_of
        for own in devices.values():
            own.enter(None)
        assert count, "a loop has micro-batches"
        return {
            device: self._times(device, *(np.array(x, dtype=np.int64) for x in own)) for device, own in made.items()
        }

    def _times(self, device: int, reached: Numbers, starts: Numbers, ends: Numbers) -> Times:
        at, places = self.looped.instructions(device)
        return Times(places, self.looped.micros[at], reached, starts, ends)

    def _start(
        self, members: Sequence[_Entry], micro: int, devices: Mapping[int, _Device], ready: Sequence[Mapping[int, int]]
    ) -> int:
        """When all members can begin."""
        start = 0
        for entry in members:
            own = devices[entry.device]
            if entry.window is not None:
                own.enter((entry.window, micro))
            elif entry.alone:
                own.enter(None)
            start = max(start, own.free[entry.on.stream])
            if entry.on.stream == WEIGHTS and entry.window is not None:
                continue
            start = max(start, own.free[COMPUTE])
            for row, which in entry.waits:
                start = max(start, ready[row][micro if which < 0 else which])
        return start

    def _local_ns(self, instruction: Instruction) -> int:
        size = self.prices.register_bytes
        match instruction:
            case Zeros(target):
                return self.prices.copy_ns((), size(target))
            case Slice(target) if target in self.updating:
                return 0  # a view
            case Slice(target):
                return self.prices.copy_ns([size(target)], size(target))
            case Add(sources=sources) if len({source.via for source in sources}) == len(sources):
                return 0  # autograd adds up the gradients of several readers, which the planner does not price either
            case Join(target, sources) | Add(target, sources):
                return self.prices.copy_ns([size(source) for source in sources], size(target))
            case Accumulate():
                return 0  # `WeightTraffic.of_task_ns` has it
        raise AssertionError(instruction)


class _Move(NamedTuple):
    """A transfer: its ordered ranks, the bytes per member, and with what it travels."""

    kind: str
    tensor: PTensor
    size_bytes: int
    message: Message
    group: tuple[int, ...]


class _Moves:
    """The times of all transfers in order: equal consecutive transfers of one tensor share the links."""

    def __init__(self, looped: Looped, prices: Prices, weights: WeightTraffic) -> None:
        self.looped, self.prices, self.weights = looped, prices, weights
        self.moves = dict(_moves(looped.program, prices, weights))
        self.known: dict[tuple[str, int, Message, float, tuple[tuple[int, ...], ...]], int] = {}

    @cached_property
    def transfers(self) -> NDArray[np.bool_]:
        """By step of the program, whether it is a transfer."""
        found = np.zeros(len(self.looped.events), dtype=bool)
        found[list(self.moves)] = True
        return found

    def size_bytes(self, key: int) -> int:
        return self.moves[key].size_bytes

    @cached_property
    def ns(self) -> Numbers:
        """The time of every event that is a transfer, in the order of all; 0 for the others."""
        here = self.transfers[self.looped.steps]
        found = np.zeros(len(here), dtype=np.int64)
        found[here] = list(self._times(self.looped.steps[here].tolist()))
        return found

    def _times(self, steps: Sequence[int]) -> Iterator[int]:
        """The times of consecutive transfers."""
        moves = map(self.moves.__getitem__, steps)
        for _, similar in groupby(moves, key=lambda move: (move[:4], len(move.group))):
            for run in _disjoint(similar):
                ns = self._ns(run[0], tuple(move.group for move in run))
                yield from (ns for _ in run)

    def _ns(self, move: _Move, groups: tuple[tuple[int, ...], ...]) -> int:
        kind, size, message, prices = move.kind, move.size_bytes, move.message, self.prices
        share = self.weights.share(move.tensor) if message is Message.LAYER else 1.0
        key = kind, size, message, share, groups
        if key not in self.known:
            if kind == SEND:
                ns = prices.sends_ns([(group[0], group[1]) for group in groups], size)
            elif message in (Message.GRADIENTS, Message.UPDATED):
                ns = self.weights.bucketed_ns(
                    kind, groups, size // prices.item(move.tensor), message is Message.UPDATED
                )
            else:
                ns = prices.collective_ns(kind, groups, size, share)
            self.known[key] = ns
        return self.known[key]


def _moves(program: Materialized, prices: Prices, weights: WeightTraffic) -> Iterator[tuple[int, _Move]]:
    for device, own in enumerate(program.devices):
        for x in own:
            if isinstance(x, Send):
                yield (
                    x.key,
                    _Move(SEND, x.source.tensor, prices.register_bytes(x.source), Message.ALONE, (device, x.to)),
                )
            elif isinstance(x, Collective) and device == x.group[0]:
                whole = x.target if x.kind == "all_gather" or x.source is None else x.source
                size, message = prices.register_bytes(whole), weights.messages.of(x, device)
                yield x.key, _Move(x.kind, whole.tensor, size, message, x.group)


def _disjoint(moves: Iterable[_Move]) -> Iterator[list[_Move]]:
    """Split moves into runs in which no device takes part twice."""
    run: list[_Move] = []
    busy: set[int] = set()
    for move in moves:
        if not busy.isdisjoint(move.group):
            yield run
            run, busy = [], set()
        run.append(move)
        busy.update(move.group)
    yield run


# Memory


class _Changes(NamedTuple):
    """Allocations and frees in order: times, bytes (negative if freed), and which of the allocations of a loop.

    At equal times they follow instruction order; within one, allocations precede frees. `numbers`: by allocation, its
    span in the template; `micros`: its micro-batch, if it belongs to one.
    """

    times: Numbers
    sizes: Numbers
    frees: Numbers
    spans: Numbers
    numbers: Sequence[int]
    micros: Sequence[int | None]


def _changes(looped: Looped, device: int, times: Times, living: Lifetimes) -> _Changes:
    at = np.full((len(looped.program.devices[device]), looped.count), -1, dtype=np.int64)
    at[times.places, times.micros] = np.arange(len(times.places))
    of = [looped.of[step] if looped.of else None for step in looped.program.steps[device]]
    firsts, lasts, sizes, numbers, micros = [], [], [], list[int](), list[int | None]()
    for number, span in enumerate(living.spans):
        touched = list(dict.fromkeys(span.touched))
        first, last, own = _ends(looped, at, times, [(place, of[place]) for place in touched])
        firsts.append(first)
        lasts.append(last)
        sizes.append(np.full(len(first), span.size_bytes))
        numbers += [number] * len(first)
        micros += own
    none = np.zeros(0, dtype=np.int64)
    first, last, size = (np.concatenate(x) if x else none for x in (firsts, lasts, sizes))
    allocation = np.arange(len(first))
    begins = np.minimum(times.reached[first], times.starts[first])  # weights travel before the device gets to them
    ns = np.concatenate((begins, times.ends[last]))
    place, frees = np.concatenate((np.minimum(first, last), last)), np.repeat((0, 1), len(first))
    size, allocation = np.concatenate((size, -size)), np.concatenate((allocation, allocation))
    order = np.lexsort((allocation, size, frees, place, ns))
    return _Changes(ns[order], size[order], frees[order], allocation[order], numbers, micros)


def _ends(
    looped: Looped, at: Numbers, times: Times, touched: Sequence[tuple[int, int | None]]
) -> tuple[Numbers, Numbers, Sequence[int | None]]:
    """The first and last instructions that touch an allocation: of every micro-batch, if it belongs to one.

    Also these micro-batches. `touched`: places in the template with their micro-batches there.
    """
    micros = {micro for _, micro in touched}
    which: Sequence[int | None] = (None,)
    if len(micros) == 1 and looped.loop is not None and (micro := micros.pop()) is not None:
        numbers = looped.loop.stands_for(micro)
        own = np.array([at[place, numbers.start : numbers.stop] for place, _ in touched])
        which = numbers
    else:
        parts = []
        for place, micro in touched:
            numbers = range(1) if micro is None or looped.loop is None else looped.loop.stands_for(micro)
            parts.append(at[place, numbers.start : numbers.stop])
        own = np.concatenate(parts)[:, None]
    ends = times.ends[own]
    last = np.where(ends == ends.max(axis=0), own, -1).max(axis=0)
    return own[0], last, which


def _usage(looped: Looped, device: int, times: Times, living: Lifetimes) -> Usage:
    """Memory over time."""
    changes, now = _changes(looped, device, times, living), dict(living.always)
    start = sum(now.values())
    totals = start + np.cumsum(changes.sizes)
    peak, peak_ns = dict(now), 0
    if totals.size and totals.max() > start:
        top = int(totals.argmax())
        kinds = list(now)
        code = np.array([kinds.index(living.spans[number].kind) for number in changes.numbers])[
            changes.spans[: top + 1]
        ]
        held = np.bincount(code, weights=changes.sizes[: top + 1], minlength=len(kinds))
        peak = {kind: now[kind] + int(more) for kind, more in zip(kinds, held, strict=True)}
        peak_ns = int(changes.times[top])
    ns = np.concatenate(([0], changes.times))
    kept = np.append(ns[1:] != ns[:-1], True)  # the last of several changes at one time
    return Usage(peak, peak_ns, ns[kept], np.concatenate(([start], totals))[kept])
