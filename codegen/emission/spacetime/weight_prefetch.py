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
from ....formulation.spacetime.repetition import Order
from .data_flow import COMPUTING, forward_of, labels, layer


def by_layer(looped: Looped) -> Looped:
    """The program with transfers of weights, and what prepares and follows them, at the start of their layers."""
    program, earlier = looped.program, _earlier(looped.program, looped.events)
    if all(step == place for step, place in earlier.items()):
        return looped
    order = sorted(range(len(looped.events)), key=lambda step: (earlier.get(step, step), step not in earlier, step))
    number = np.argsort(order)
    moves = (np.argsort(number[list(own)]).tobytes() for own in program.steps)
    steps, micros = looped.steps, looped.micros  # of all micro-batches
    stays = np.array([step not in earlier for step in range(len(order))])[steps]
    place = np.zeros(len(steps), dtype=np.int64)  # by number of an event
    place[looped.offsets[steps] + micros] = np.arange(len(steps))
    moving = np.flatnonzero(~stays)
    own = steps[moving]
    target = np.array([earlier.get(s, s) for s in range(len(order))])[own]
    before = place[looped.offsets[target] + looped.micro(target, own, micros[moving])]
    ranked = np.lexsort((own, before))
    staying = np.flatnonzero(stays)
    moved = np.insert(staying, np.searchsorted(staying, before[ranked]), moving[ranked])
    return replace(
        looped,
        program=_renumbered(program, number.tolist()),
        order=Order(number[steps][moved], micros[moved]),
        of=[looped.of[step] for step in order] if looped.of else (),
        alike=numbered(zip(looped.same_instructions, moves, strict=True)),
    )


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
