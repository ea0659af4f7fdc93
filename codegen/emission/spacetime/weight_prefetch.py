"""Fetching the weights of a layer from other devices at once, before its first operator.

Materialization fetches them one by one, just before each use. Their transfers depend on nothing but what is kept, so
all devices can have them earlier, in an order that is the same everywhere.
"""

from collections.abc import Hashable, Sequence
from dataclasses import replace

import numpy as np

from ....formulation.spacetime.equal_ranks import numbered
from ....formulation.spacetime.graph import Graph
from ....formulation.spacetime.looped import Looped
from ....formulation.spacetime.materialized import Instruction, Materialized, Register, Run, Transfer, reads, writes
from ....formulation.spacetime.repetition import Numbers, Order, Repeat
from .data_flow import COMPUTING, forward_of, labels, layer

ALIKE = 16
"""Most repetitions of a schedule between which a place for others is sought."""


def by_layer(looped: Looped) -> Looped:
    """The program with transfers of weights, and what prepares and follows them, at the start of their layers."""
    program, earlier = looped.program, _earlier(looped.program, looped.events)
    if all(step == place for step, place in earlier.items()):
        return looped
    order = sorted(range(len(looped.events)), key=lambda step: (earlier.get(step, step), step not in earlier, step))
    number = np.argsort(order)
    moves = (np.argsort(number[list(own)]).tobytes() for own in program.steps)
    target = np.array([earlier.get(step, step) for step in range(len(order))])
    found = _moved(looped, target)
    return replace(
        looped,
        program=_renumbered(program, number.tolist()),
        order=replace(found, steps=number[found.steps]),
        of=[looped.of[step] for step in order] if looped.of else (),
        alike=numbered(zip(looped.same_instructions, moves, strict=True)),
    )


def _moved(looped: Looped, target: Numbers) -> Order:
    """The order with every event moved before its `target`; one that stays is its own target."""
    short, repeat = looped.short, looped.order.repeat
    steps, micros, every = short.steps, short.micros, np.arange(len(short.steps))
    stays = target[steps] == steps
    place = np.zeros(len(steps), dtype=np.int64)  # by number of an event
    place[short.offsets[steps] + micros] = every
    moving, staying = np.flatnonzero(~stays), np.flatnonzero(stays)
    own = steps[moving]
    before = place[short.offsets[target[own]] + short.micro(target[own], own, micros[moving])]
    ranked = np.lexsort((own, before))
    inserted = np.searchsorted(staying, before[ranked])
    moved = np.insert(staying, inserted, moving[ranked])
    if repeat is not None:
        cut = _between(repeat, repeat.alike(steps, micros, ALIKE), moving, before)
        if cut is None:
            return _moved(looped.longer(repeat.times), target)
        start, stop = (
            int(at + np.searchsorted(inserted, at))
            for at in np.searchsorted(staying, (cut - (repeat.stop - repeat.start), cut))
        )
        repeat = replace(repeat, start=start, stop=stop)
    return Order(steps[moved], micros[moved], repeat)


def _between(repeat: Repeat, count: int, moving: Numbers, before: Numbers) -> int | None:
    """The place between `count` equal repetitions where more can be inserted, whose events move alike; None: nowhere.

    Around it events move by less than the repetitions on either side, and none from after all of them to before it.
    """
    size = repeat.stop - repeat.start
    first = repeat.stop - count * size
    cut = first + (count + 1) // 2 * size
    inside = (moving >= first) & (moving < repeat.stop)
    farthest = int((moving - before)[inside].max(initial=0))
    later = int(before[moving >= repeat.stop].min(initial=cut))
    return cut if farthest < min(repeat.stop - cut, cut - size - first) and later >= cut else None


def _earlier(program: Materialized, events: Sequence[Sequence[tuple[int, int]]]) -> dict[int, int]:
    """Events that bring weights, and before which other they can be."""
    graph, devices = program.tasks.graph, program.devices
    bringing = [
        step
        for step, members in enumerate(events)
        if all(_brings_weight(graph, devices[device][place]) for device, place in members)
    ]
    if not bringing:
        return {}
    readers: dict[Register, list[tuple[int, Instruction]]] = {
        register: []
        for step in bringing
        for device, place in events[step]
        for register in writes(devices[device][place])
    }
    starts: dict[Hashable, int] = {}
    brought = {device for step in bringing for device, _ in events[step]}
    for device in sorted(brought):
        for step, instruction in zip(program.steps[device], devices[device], strict=True):
            for register in reads(instruction):
                if register in readers:
                    readers[register].append((step, instruction))
            if isinstance(instruction, Run) and instruction.op.phase in COMPUTING:
                starts.setdefault(_block(device, instruction), step)
    earlier: dict[int, int] = {}
    for step in reversed(bringing):
        wanted = [step]
        for device, at in events[step]:
            for register in writes(devices[device][at]):
                for place, reader in readers[register]:
                    if isinstance(reader, Run):
                        wanted.append(starts.get(_block(device, reader), step))
                    else:
                        wanted.append(earlier.get(place, place))
        earlier[step] = min(wanted)
    return earlier


def _renumbered(program: Materialized, number: Sequence[int]) -> Materialized:
    """The program with its events in another order; `number`: their new numbers."""
    devices: list[tuple[Instruction, ...]] = []
    places: list[tuple[int, ...]] = []
    for instructions, old in zip(program.devices, program.steps, strict=True):
        moved = sorted(zip((number[step] for step in old), instructions, strict=True), key=lambda pair: pair[0])
        devices.append(tuple(_with_key(instruction, place) for place, instruction in moved))
        places.append(tuple(place for place, _ in moved))
    return replace(program, devices=tuple(devices), steps=tuple(places))


def _block(device: int, run: Run) -> Hashable:
    """The key of what is fetched at once: a layer in one phase of one micro-batch on one device."""
    return device, run.op.phase, tuple(labels(forward_of(run.op))), layer(run.op)


def _brings_weight(graph: Graph, instruction: Instruction) -> bool:
    """True if an instruction moves or prepares a weight, and does nothing else."""
    if isinstance(instruction, Run):
        return False
    return all(graph.of_parameter(register.tensor) for register in (*reads(instruction), *writes(instruction)))


def _with_key(instruction: Instruction, key: int) -> Instruction:
    return replace(instruction, key=key) if isinstance(instruction, Transfer) else instruction
