"""Data flow of one device: which instructions read and write a register, and which sums autograd computes itself."""

from collections import defaultdict
from collections.abc import Container, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from types import MappingProxyType
from typing import TypeAlias

from ....formulation.spacetime.dtypes import constants
from ....formulation.spacetime.graph import Graph
from ....formulation.spacetime.mask import GRADIENT, VALUE, VTensor
from ....formulation.spacetime.materialized import (
    Accumulate,
    Add,
    Collective,
    Instruction,
    Materialized,
    Receive,
    Register,
    Run,
    communicates,
    identities,
    reads,
    writes,
)
from ....formulation.spacetime.messages import Message
from ....formulation.spacetime.op import Cut, Op, Phase
from ....model.graph.pcg import PCG
from ..common.rolled_lines import mark

COMPUTING = (Phase.FORWARD, Phase.RECOMPUTE, Phase.OFFLOAD, Phase.RELOAD, Phase.BACKWARD, Phase.WEIGHT)
"""The phases that run inside segments."""


LOOP = "loop over "
"""How the labels of micro-batches begin that have a template."""

Lane: TypeAlias = tuple[tuple[str, int], ...]
"""Labels and numbers of the cuts whose parts run one after another on a device: the micro-batch."""

TEMPLATE = "template"
"""The role of numbers that are micro-batches of a template."""


def forward_of(op: Op) -> Op:
    return op.forward or op


def labels(op: Op) -> list[tuple[str, int]]:
    """The labels and numbers of an operator's cuts; a repeated label counts as another one."""
    return [
        (f"{LOOP if cut.of else ''}{label} {count + 1}/{cut.parts}", cut.number)
        for (label, count), cut in op.labels.items()
    ]


def varying(ops: Iterable[Op]) -> frozenset[str]:
    """The labels that have several numbers among some operators."""
    numbers: dict[str, set[int]] = defaultdict(set)
    for op in ops:
        for label, number in labels(op):
            numbers[label].add(number)
    return frozenset(label for label, found in numbers.items() if len(found) > 1)


def lane_of(op: Op, several: Container[str]) -> Lane:
    """The cuts of an operator that have one of these labels."""
    return tuple((label, number) for label, number in labels(op) if label in several)


def numbered(label: str, number: int) -> str:
    """The marked number of a cut with this label; of the micro-batches of a loop, that in the template."""
    return mark(TEMPLATE if label.startswith(LOOP) else "m", number)


def layer(op: Op) -> str:
    """The list entry that an operator is in; its own path outside lists."""
    return op.layer or op.of.path


def _own_copies(
    instructions: Sequence[Instruction], written: Mapping[Op, tuple[VTensor, ...]], pcg: PCG
) -> tuple[tuple[Instruction, ...], list[int], dict[int, int]]:
    """The instructions, but if several micro-batches compute the same value here each operator reads its own copy.

    Also their places before constants were moved, and by place of these, before which instruction they are now.
    """
    made: dict[tuple[Phase, VTensor], list[tuple[int, int]]] = defaultdict(list)
    makers: dict[Register, tuple[int, int]] = {}
    before_moving, ahead_of = _constants_near(instructions, pcg)
    result = [instructions[place] for place in before_moving]
    for place, run in enumerate(list(result)):
        if not isinstance(run, Run) or run.op.phase not in COMPUTING:
            continue
        own = set(labels(forward_of(run.op)))
        sources = []
        for register in run.reads:
            if register in makers:
                before, position = makers[register]
                earlier = _run(result[before]).op
                copies = made[earlier.phase, written[earlier][position]]
                if len(copies) > 1:
                    near = [len(own.intersection(labels(forward_of(_run(result[p]).op)))) for p, _ in copies]
                    best = max(range(len(copies)), key=lambda k: (near[k], copies[k] == (before, position)))
                    register = _written(result, *copies[best])
            sources.append(register)
        result[place] = replace(run, reads=tuple(sources))
        for position, (own_part, target) in enumerate(zip(written[run.op], run.writes, strict=True)):
            made[run.op.phase, own_part].append((place, position))
            if target is not None:
                makers[target] = place, position
    return tuple(result), before_moving, ahead_of


def _constants_near(instructions: Sequence[Instruction], pcg: PCG) -> tuple[list[int], dict[int, int]]:
    """The places of the instructions, but constants of a micro-batch come just before its first other operator.

    So they do in all micro-batches alike, whether a device waits for its messages or has them already; but not before
    what they read, and not after what reads them. Also before which instruction each of them is then.
    """
    known = constants(pcg)
    runs = [
        (place, run.op.phase, run.op)
        for place, run in enumerate(instructions)
        if isinstance(run, Run) and run.op.phase in (Phase.FORWARD, Phase.RECOMPUTE)
    ]
    several = varying(forward_of(op) for *_, op in runs)
    keys = {place: (phase, lane_of(forward_of(op), several)) for place, phase, op in runs}
    begins: dict[Hashable, int] = {}
    for constant in (False, True):
        for place, _, op in runs:
            if known[op.node] == constant:
                begins.setdefault(keys[place], place)
    readers: dict[Register, list[int]] = defaultdict(list)
    made: dict[Register, int] = {}  # by register: before which place it can be
    for place, instruction in enumerate(instructions):
        for register in reads(instruction):
            readers[register].append(place)
        made.update(dict.fromkeys(writes(instruction), place + 1))
    moved = [*range(len(instructions))]
    first = dict.fromkeys((place for place, _, op in runs if known[op.node]), 0)  # where a constant can be at first
    for place in first:
        own = instructions[place]
        first[place] = max((made[register] for register in reads(own)), default=0)
        made.update(dict.fromkeys(writes(own), first[place]))
    for place in reversed(first):
        read = (moved[reader] for register in writes(instructions[place]) for reader in readers[register])
        moved[place] = max(first[place], min([begins[keys[place]], *read]))
    order = sorted(range(len(moved)), key=lambda place: (moved[place], place not in first, place))
    now = {place: at for at, place in enumerate(order)}
    return order, {now[place]: now[moved[place]] for place, _, _ in runs if moved[place] != place}


def _run(instruction: Instruction) -> Run:
    assert isinstance(instruction, Run)
    return instruction


def _written(instructions: list[Instruction], place: int, position: int) -> Register:
    """The register of a run's result, made here if nothing has read it so far."""
    run = _run(instructions[place])
    known = run.writes[position]
    if known is None:
        written = run.op.writes[position]
        assert run.op.device is not None
        known = Register(-1 - 64 * run.op.number - position, run.op.device, written.tensor, written.mask, written.via)
        writes = (*run.writes[:position], known, *run.writes[position + 1 :])
        instructions[place] = replace(run, writes=writes)
    return known


class Flow:
    """The instructions of one device, named by place, with the writers and readers of every register.

    `graph`: that of all samples of a step; `places`: those of the instructions in the program; `ahead_of`: by place
    of constants that were moved, that of what they are before now; `ranks`: the device and those that are equal to it
    (`equal_ranks`), for which its statements stand too; `messages`: by key, with what a collective travels, and which
    of them sends the message (`formulation.spacetime.messages.joined`).
    """

    def __init__(
        self,
        program: Materialized,
        device: int,
        graph: Graph,
        ranks: Sequence[int] = (),
        messages: Mapping[int, tuple[Message, int]] = MappingProxyType({}),
    ) -> None:
        self.program, self.graph, self.device, self.ranks = program, graph, device, ranks or (device,)
        self.messages = messages
        self.pcg: PCG = self.graph.pcg
        self.instructions, self.places, self.ahead_of = _own_copies(
            program.devices[device], program.tasks.writes, self.pcg
        )
        self.writers: dict[Register, list[int]] = defaultdict(list)
        self.readers: dict[Register, list[int]] = defaultdict(list)
        self.run: dict[tuple[Op, Phase], int] = {}  # by forward operator
        self._operands: dict[tuple[Op, Phase], dict[int, Register]] = {}
        self._phases: list[Phase | None] = []  # by place, as are the next
        self._ops: list[Op | None] = []
        self._transfers: list[bool] = []
        self.identities = identities(self.instructions)
        for place, instruction in enumerate(self.instructions):
            for register in writes(instruction):
                self.writers[register].append(place)
            for register in reads(instruction):
                self.readers[register].append(place)
            self._transfers.append(communicates(instruction))
            op = instruction.op if isinstance(instruction, Run) else None
            self._phases.append(op.phase if op is not None and op.phase in COMPUTING else None)
            self._ops.append(forward_of(op) if op is not None else None)
            if op is not None:
                self.run[forward_of(op), op.phase] = place

    def phase(self, place: int) -> Phase | None:
        """The phase of an instruction that runs inside a segment; None for others."""
        return self._phases[place]

    def everywhere(self, place: int) -> Iterator[Instruction]:
        """The instruction at a place, as each of `ranks` has it."""
        for rank in self.ranks:
            yield self.program.devices[rank][self.places[place]]

    def numbers(self, op: Op, cut: Cut) -> list[int]:
        """The number of a cut of a forward operator on each of `ranks`."""
        at = op.cuts.index(cut)
        return [forward_of(_run(own).op).cuts[at].number for own in self.everywhere(self.run[op, Phase.FORWARD])]

    def transfers(self, place: int) -> bool:
        """True if other devices take part in an instruction."""
        return self._transfers[place]

    def op(self, place: int) -> Op:
        """The forward operator of a run."""
        found = self._ops[place]
        assert found is not None
        return found

    def of(self, op: Op, phase: Phase) -> Run | None:
        """The run of a forward operator, or of its recomputation, backward, …, on this device."""
        place = self.run.get((op, phase))
        return None if place is None else _run(self.instructions[place])

    # Operands

    def operands(self, op: Op, phase: Phase = Phase.FORWARD) -> Mapping[int, Register]:
        """The register of every operand that is not an input or buffer of the graph."""
        found = self._operands.get((op, phase))
        if found is None:
            run = self.of(op, phase)
            assert run is not None
            places = [p for p, i in enumerate(op.of.inputs) if i not in self.graph.given]
            found = self._operands[op, phase] = dict(zip(places, run.reads, strict=True))
        return found

    def result(self, op: Op, phase: Phase = Phase.FORWARD) -> Register | None:
        run = self.of(op, phase)
        return run.writes[0] if run is not None and run.writes else None

    def read_outside(self, register: Register, phase: Phase, inside: Container[Op]) -> bool:
        """True if anything but one phase of some operators reads a register."""
        return any(self.phase(p) is not phase or self.op(p) not in inside for p in self.readers[register])

    def gradient(self, op: Op) -> Register | None:
        """The output gradient that backward of an operator reads."""
        run = self.of(op, Phase.BACKWARD) or self.of(op, Phase.WEIGHT)
        return next((r for r in run.reads if r.tensor.kind == GRADIENT), None) if run else None

    def again(self, op: Op) -> list[Register]:
        """The weights that backward reads again."""
        run = self.of(op, Phase.BACKWARD)
        return [r for r in run.reads if r.tensor.kind == VALUE] if run else []

    @cached_property
    def made(self) -> Mapping[tuple[Op, int], Register]:
        """The gradients that are read on this device, by forward operator and operand."""
        found = {}
        for op, phase in self.run:
            run = self.of(op, phase)
            if phase in (Phase.BACKWARD, Phase.WEIGHT) and run is not None:
                for written, register in zip(self.program.tasks.writes[run.op], run.writes, strict=True):
                    if register is not None and self.readers[register] and written.via is not None:
                        found[op, written.via[1]] = register
        return found

    # Sums of gradients that autograd forms

    def leaves(self, register: Register) -> tuple[list[Register], list[int]]:
        """The terms of a gradient and the instructions that add them up, if nothing else reads the partial sums."""
        places = self.writers.get(register, [])
        parts = [self.instructions[p] for p in places]
        if not parts or not all(isinstance(p, Add | Accumulate) for p in parts) or len(self._readers(register)) > 1:
            return [register], []
        found: list[Register] = []
        adding = list(places)
        for part in parts:
            for source in reads(part):
                inner, more = self.leaves(source)
                found += inner
                adding += more
        return found, adding

    def _readers(self, register: Register) -> list[int]:
        """The readers of a gradient; the halves of a split backward count as one."""
        return [p for p in self.readers[register] if self.phase(p) is not Phase.WEIGHT]

    def terms(self, register: Register) -> list[Register]:
        """The terms of a sum, however often it is read; a gradient accumulated in place is one term."""
        parts = [self.instructions[p] for p in self.writers.get(register, ())]
        if not parts or not all(isinstance(part, Add) for part in parts):
            return [register]
        sources = [source for part in parts for source in reads(part)]
        return [t for x in sources for t in (self.terms(x) if len(self.readers[x]) == 1 else [x])]

    @cached_property
    def makers(self) -> Mapping[Register, tuple[Op, int]]:
        """The operator and operand of every gradient that backward computes."""
        return {register: key for key, register in self.made.items()}

    def inner(self, maker: Op, reader: Op, operand: int) -> bool:
        """True if autograd can pass a gradient from a reader to its maker: no other reader has a part in it.

        Also true if there is no gradient.
        """
        if self.of(maker, Phase.BACKWARD) is None or self.of(reader, Phase.BACKWARD) is None:
            return True
        register, given = self.made.get((reader, operand)), self.gradient(maker)
        if register is None or given is None or len(self._readers(register)) > 1:
            return False
        return register in self.leaves(given)[0]

    # Dependencies

    @cached_property
    def needs(self) -> Sequence[frozenset[int]]:
        """The instructions on which each one depends: what it reads, adds to, or follows from.

        What reads a tensor that travels with others depends on the last of these, too, which sends the message.
        """
        last: dict[Register, int] = {}
        collectives = ((at, own) for at, own in enumerate(self.instructions) if isinstance(own, Collective))
        place_of = {own.key: at for at, own in collectives}
        found = []
        before = {
            Phase.OFFLOAD: (Phase.FORWARD,),
            Phase.RELOAD: (Phase.OFFLOAD,),
            Phase.RECOMPUTE: (Phase.FORWARD,),
            Phase.BACKWARD: (Phase.RELOAD, Phase.RECOMPUTE, Phase.FORWARD),
            Phase.WEIGHT: (Phase.BACKWARD,),
        }
        for place, instruction in enumerate(self.instructions):
            registers = (*reads(instruction), *writes(instruction))
            own = {last[r] for r in registers if r in last}
            own |= {sender for at in own if (sender := self._sender(at, place_of)) < place}
            phase = self.phase(place)
            if phase is not None:
                keys = ((self.op(place), earlier) for earlier in before.get(phase, ()))
                own.update(self.run[key] for key in keys if key in self.run)
            found.append(frozenset(own))
            last.update(dict.fromkeys(writes(instruction), place))
        return found

    def _sender(self, place: int, place_of: Mapping[int, int]) -> int:
        """The place of the transfer that sends the message of one at a place; of anything else the place itself."""
        instruction = self.instructions[place]
        if isinstance(instruction, Receive):
            while instruction.more:
                place += 1
                other = self.instructions[place]
                instruction = other if isinstance(other, Receive) and other.of == instruction.of else instruction
            return place
        if not isinstance(instruction, Collective) or instruction.key not in self.messages:
            return place
        return place_of[self.messages[instruction.key][1]]
