"""When every instruction of a step runs: a device has streams that run one instruction at a time.

Of equal devices one runs. What is known of an instruction of the template before it runs are rows of arrays, so that
the loop over all events of a step is compiled.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from ...model.graph.constants import fills
from .equal_ranks import equal_events
from .lifetimes import Lifetimes
from .looped import FEW, Looped
from .materialized import (
    Accumulate,
    Add,
    Collective,
    Instruction,
    Join,
    Pad,
    Receive,
    Run,
    Send,
    Slice,
    Transfer,
    Zeros,
    follows_norm,
    identities,
    ready_after,
    waits_for,
)
from .moves import Moves
from .op import Phase
from .repetition import Numbers, Repeat
from .steady import TRIED, Again, Rows, State, shift_of
from .times import Times
from .weight_traffic import Window

COMPUTE, COLLECTIVES, WEIGHTS, HOST = "compute", "collectives", "weights", "host"
SENDS, RECEIVES = "sends", "receives"
STREAMS = (COMPUTE, COLLECTIVES, WEIGHTS, HOST, SENDS, RECEIVES)
_COMPUTE, _WEIGHTS, _COUNT = STREAMS.index(COMPUTE), STREAMS.index(WEIGHTS), len(STREAMS)
_OF_TRANSFERS = {Collective: COLLECTIVES, Send: SENDS, Receive: RECEIVES}
# Instead of a window: a collective that kernels wait for, an instruction that any window goes on over as over that one,
# and one that ends it.
_WAITED, _STAYS, _LEAVES = -3, -2, -1


class Streamed(NamedTuple):
    """What is known of an instruction before it runs: its stream, its time, and the bytes that it transfers."""

    stream: str
    ns: int
    size_bytes: int


class _Row(NamedTuple):
    """Where a register's time is kept: at `first`, plus the micro-batch of the instruction if it is of the same."""

    first: int
    moves: int


class _Entry(NamedTuple):
    """An instruction of the template on a first device.

    `window`: the number of the layer beside whose kernels weights travel, `_LEAVES`, `_STAYS` or `_WAITED`.
    """

    device: int
    place: int
    on: Streamed
    window: int
    waits: Sequence[_Row]
    readies: Sequence[_Row]


class _Entries(NamedTuple):
    """Entries by event, as arrays; the entries of an event `e` are `firsts[e]` to `firsts[e + 1]`, so are their rows.

    `devices`: numbers among those that are simulated. `waits` and `readies`: pairs of `_Row`.
    """

    firsts: Numbers
    devices: Numbers
    streams: Numbers
    windows: Numbers
    first_waits: Numbers
    waits: Numbers
    first_readies: Numbers
    readies: Numbers


class _Events(NamedTuple):
    """All events of a step in order: their numbers, micro-batches, times, and what these cost kernels beside them."""

    numbers: Numbers
    micros: Numbers
    ns: Numbers
    busy: Numbers


class Timeline:
    """The times of the devices of `living`, one of each class of equal ones, and of all transfers between them.

    `first`: by device, the one of `living` that is equal to it; `repeat`: events that stand for some left out.
    """

    def __init__(
        self,
        looped: Looped,
        moves: Moves,
        living: Mapping[int, Lifetimes],
        first: Sequence[int],
        repeat: Repeat | None = None,
    ) -> None:
        self.looped, self.program, self.prices, self.living = looped, looped.program, moves.prices, living
        self.moves, self.weights, self.repeat = moves, moves.weights, repeat
        self.rows: dict[object, int] = {}  # of registers, and of reloads by forward operator: where they begin
        self.size = 0  # of all rows
        self.between: list[int] = []  # where rows of all micro-batches between the first and the last begin
        self.fills = fills(self.program.tasks.graph.pcg)
        self.windows: dict[Window, int] = {}
        self.updating = {  # what updates read: parts of weights and gradients that are kept
            register
            for device in living
            for x in self.program.devices[device]
            if isinstance(x, Run) and x.op.phase is Phase.UPDATE
            for register in x.reads
        }
        self.identities = {op for device in living for op in identities(self.program.devices[device])}
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

    # Entries

    def _entry(self, device: int, place: int, micro: int | None) -> _Entry:
        instruction, known = self.program.devices[device][place], self.looped.register
        waits = [self._row(register, known.get(register), micro) for register in waits_for(instruction)]
        readies = [self._row(register, known.get(register), micro) for register in ready_after(instruction)]
        if isinstance(instruction, Run) and instruction.op.forward is not None:
            key = ("reload", instruction.op.forward)
            if instruction.op.phase is Phase.RELOAD:
                readies.append(self._row(key, micro, micro))
            elif key in self.rows:
                waits.append(self._row(key, micro, micro))
        window, on = self.weights.window(device, place), self._on(device, place, instruction)
        number = _STAYS
        if window is not None:
            number = self.windows.setdefault(window, len(self.windows))
        elif on.stream == WEIGHTS or (isinstance(instruction, Run) and on.stream == COMPUTE):
            number = _LEAVES
        elif isinstance(instruction, Collective) and instruction.waits:
            number = _WAITED
        return _Entry(device, place, on, number, waits, readies)

    def _row(self, key: object, micro: int | None, reader: int | None) -> _Row:
        """Where the time of a register of a micro-batch of the template is kept for an instruction of `reader`."""
        loop = self.looped.loop
        own = range(1) if micro is None or loop is None else loop.stands_for(micro)
        if key not in self.rows:
            self.rows[key] = self.size - own.start
            if micro == 1:
                self.between.append(self.size)
            self.size += len(own)
        if micro is None or loop is None:
            return _Row(self.rows[key], 0)
        return _Row(self.rows[key], 1) if micro == reader else _Row(self.rows[key] + loop.shown[micro], 0)

    def _on(self, device: int, place: int, instruction: Instruction) -> Streamed:
        weights = self.weights.moves(instruction)
        if isinstance(instruction, Transfer):
            stream = WEIGHTS if weights else _OF_TRANSFERS[type(instruction)]
            return Streamed(stream, 0, self.moves.size_bytes(instruction.key))
        if not isinstance(instruction, Run):
            return Streamed(WEIGHTS if weights else COMPUTE, self._local_ns(instruction), 0)
        if instruction.op.phase in (Phase.OFFLOAD, Phase.RELOAD):
            size = self.living[device].moved.get(place, 0)
            return Streamed(HOST, self.prices.host_ns(size), size)
        if (instruction.op.forward or instruction.op) in self.identities:
            return Streamed(COMPUTE, 0, 0)
        ns = self.prices.task_ns(instruction.op) + self.weights.of_task_ns(instruction, device)
        exchanged = self.moves.size_bytes(self.program.steps[device][place]) if instruction.meeting else 0
        return Streamed(COMPUTE, ns, exchanged)

    def _local_ns(self, instruction: Instruction) -> int:
        size = self.prices.register_bytes
        match instruction:
            case Zeros(omitted=True):
                return 0
            case Zeros(target) | Slice(target) if target.tensor.node in self.fills:
                return 0
            case Zeros(target):
                return self.prices.copy_ns((), size(target))
            case Slice(target, copied=False) if target in self.updating:
                return 0  # a view
            case Pad(target) | Slice(target):
                return self.prices.copy_ns([size(target)], size(target))
            case Add(sources=sources) if len({source.via for source in sources}) == len(sources):
                return 0  # autograd adds up the gradients of several readers, which the planner does not price either
            case Join(target, sources) | Add(target, sources):
                return self.prices.copy_ns([size(source) for source in sources], size(target))
            case Accumulate():
                return 0  # `WeightTraffic.of_task_ns` has it
        raise AssertionError(instruction)

    # Time

    def run(self) -> tuple[dict[int, Times], Again | None]:
        """Run all events in order. Every device reaches its part of a transfer once it has got to it.

        Also what comes again, if repetitions are left out; None, too, if the devices do not come to repeat themselves.
        """
        events, entries, at = self._events(), self._arrays(), self.first
        counts = np.repeat(np.bincount(events.numbers, minlength=len(self.entries)), np.diff(entries.firsts))
        sizes = np.bincount(entries.devices, weights=counts, minlength=len(self.living)).astype(np.int64)
        stops = np.cumsum(sizes)
        made = np.zeros((3, int(sizes.sum())), dtype=np.int64)
        run = _run if len(events.numbers) > FEW else _run.py_func
        devices = len(self.living)
        state = State(
            free=np.zeros((devices, _COUNT), dtype=np.int64),
            began=np.zeros(devices, dtype=np.int64),
            inside=np.full(devices, _LEAVES, dtype=np.int64),
            ready=np.zeros(self.size, dtype=np.int64),
            heads=stops - sizes,
        )
        cuts, states = self._cuts(), list[State]()
        for start, stop in pairwise((0, *np.searchsorted(at[: self.clipped], cuts).tolist(), self.clipped)):
            run(_Events(*(own[start:stop] for own in events)), entries, state, made)
            states.append(state.copy() if len(states) < len(cuts) else state)
        state.free[:], state.inside[:] = state.free.max(), _LEAVES  # for the norm all devices wait for each other
        run(_Events(*(own[self.clipped :] for own in events)), entries, state, made)
        found = {}
        for device, stop, size in zip(self.living, stops.tolist(), sizes.tolist(), strict=True):
            own, places = self.looped.instructions(device)
            times = np.empty((3, size), dtype=np.int64)
            times[:, np.argsort(self.late[self.looped.steps[own]], kind="stable")] = made[:, stop - size : stop]
            found[device] = Times(places, self.looped.micros[own], *times)
        return found, self._again(states[:-1], (stops - sizes).tolist())

    def _cuts(self) -> list[int]:
        """The places between the last repetitions that are alike, at which states of the simulation are compared."""
        repeat = self.repeat
        if repeat is None or not self.moves.repeats(repeat):
            return []
        size = repeat.stop - repeat.start
        count = repeat.alike(self.looped.steps, self.looped.micros, TRIED + 2)
        ns = self.moves.ns[repeat.stop - count * size : repeat.stop].reshape(count, size)
        alike = 1 + int((ns[::-1] == ns[-1]).all(axis=1).cumprod()[1:].sum())
        return [repeat.stop - number * size for number in range(alike)][::-1]

    def _again(self, states: Sequence[State], begins: Sequence[int]) -> Again | None:
        """What comes again between two of the states after repetitions; None if they are not alike."""
        repeat, loop = self.repeat, self.looped.loop
        if repeat is None or loop is None or not states:
            return None
        between = np.array(self.between, dtype=np.int64)[:, None] + np.arange(loop.count - 2)
        single = np.ones(self.size, dtype=bool)
        single[between.ravel()] = False
        rows = Rows(between, np.flatnonzero(single))
        after = self.looped.steps[repeat.stop :]
        inner = np.array([own == 1 for own in self.looped.of])[after]
        since = int(self.looped.micros[repeat.stop :][inner].min(initial=loop.count - 1)) - 1
        for turns in range(1, len(states)):
            if repeat.times % turns:
                continue
            micros, earlier, now = turns * repeat.micros, states[-1 - turns], states[-1]
            ns = shift_of(earlier, now, rows, micros, since, (_COMPUTE, _WEIGHTS))
            if ns:
                places = zip(self.living, (earlier.heads - begins).tolist(), (now.heads - begins).tolist(), strict=True)
                return Again({device: (x, y) for device, x, y in places}, ns, micros, repeat.times // turns)
        return None

    def _events(self) -> _Events:
        """The first of equal events (`first`)."""
        steps, micros = self.looped.steps, self.looped.micros
        numbers = self.number[steps]
        at = self.first
        local = np.array([max(entry.on.ns for entry in members) for members in self.entries], dtype=np.int64)
        ns = self.moves.ns[at] + local[numbers[at]]  # what meets computes, too; a transfer itself takes 0
        return _Events(numbers[at], micros[at], ns, self.prices.machine.busy_ns(ns))

    @cached_property
    def late(self) -> NDArray[np.bool_]:
        """By step of the program, whether it waits for the norm of all gradients, which clips updates."""
        devices = self.program.devices
        return np.array(
            [any(follows_norm(devices[device][place]) for device, place in own) for own in self.looped.events],
            dtype=np.bool_,
        )

    @cached_property
    def clipped(self) -> int:
        """How many of `first` run before the norm of all gradients is known."""
        return int((~self.late[self.looped.steps[self.first]]).sum())

    @cached_property
    def first(self) -> Numbers:
        """Where the first of equal events are in the order of all; those that wait for the norm come last."""
        steps, micros = self.looped.steps, self.looped.micros
        every, one = np.arange(len(steps)), np.unique(self.number, return_index=True)[1]  # a step of each number
        equal = self.looped.offsets[one][self.number[steps]] + micros
        first = np.zeros(len(steps), dtype=np.int64)
        first[equal[::-1]] = every[::-1]
        found = np.flatnonzero(first[equal] == every)
        return found[np.argsort(self.late[steps[found]], kind="stable")]

    def _arrays(self) -> _Entries:
        number = {device: at for at, device in enumerate(self.living)}
        entries = [entry for members in self.entries for entry in members]
        return _Entries(
            firsts=_begins(self.entries),
            devices=_numbers([number[entry.device] for entry in entries]),
            streams=_numbers([STREAMS.index(entry.on.stream) for entry in entries]),
            windows=_numbers([entry.window for entry in entries]),
            first_waits=_begins([entry.waits for entry in entries]),
            waits=_numbers([row for entry in entries for row in entry.waits], 2),
            first_readies=_begins([entry.readies for entry in entries]),
            readies=_numbers([row for entry in entries for row in entry.readies], 2),
        )


def _numbers(found: Sequence[Any], columns: int = 0) -> Numbers:
    made = np.array(found, dtype=np.int64)
    return made.reshape(-1, columns) if columns else made


def _begins(groups: Iterable[Sequence[object]]) -> Numbers:
    """Where each of consecutive groups begins, and where the last one ends."""
    return np.cumsum([0, *map(len, groups)], dtype=np.int64)


@njit(cache=True, nogil=True)
def _run(events: _Events, entries: _Entries, state: State, made: Numbers) -> None:
    """Run events from a state, which becomes that after them.

    `made`: by device and instruction when it was reached, started and ended.
    """
    free, began, inside, ready, heads = state
    for event in range(len(events.numbers)):
        number, micro, ns = events.numbers[event], events.micros[event], events.ns[event]
        start = 0
        for entry in range(entries.firsts[number], entries.firsts[number + 1]):
            device, stream, window = entries.devices[entry], entries.streams[entry], entries.windows[entry]
            if window >= _LEAVES and window != inside[device]:
                if inside[device] >= 0:  # it ends with its kernels and its traffic
                    free[device, _COMPUTE] = max(free[device, _COMPUTE], free[device, _WEIGHTS])
                inside[device] = window
                began[device] = free[device, _COMPUTE]
                free[device, _WEIGHTS] = max(free[device, _WEIGHTS], began[device])
            start = max(start, free[device, stream])
            if stream == _WEIGHTS and window >= 0:
                continue
            start = max(start, free[device, _COMPUTE])
            for at in range(entries.first_waits[entry], entries.first_waits[entry + 1]):
                start = max(start, ready[entries.waits[at, 0] + entries.waits[at, 1] * micro])
        end = start + ns
        for entry in range(entries.firsts[number], entries.firsts[number + 1]):
            device, stream, window = entries.devices[entry], entries.streams[entry], entries.windows[entry]
            head = heads[device]
            made[0, head], made[1, head], made[2, head] = free[device, _COMPUTE], start, end
            heads[device] = head + 1
            free[device, stream] = end
            ready_at = end
            if stream == _WEIGHTS and window >= 0:
                free[device, _COMPUTE] += events.busy[event]
                ready_at = began[device]  # what a window brings stands for what the one before it brought
            elif stream == _WEIGHTS or window == _WAITED:
                free[device, _COMPUTE] = end
            for at in range(entries.first_readies[entry], entries.first_readies[entry + 1]):
                ready[entries.readies[at, 0] + entries.readies[at, 1] * micro] = ready_at
