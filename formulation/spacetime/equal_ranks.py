"""Ranks whose programs differ in their numbers alone: what one of them does stands for what all of them do.

The tensor-parallel ranks of a stage, or data-parallel replicas, run the same instructions on other parts of the same
tensors. `equal_ranks` finds them in the finished program, whatever plan made it: two ranks are equal if their
instructions agree place by place in everything but the positions of boxes and shares, the numbers of parts of which a
rank has one only, and the ranks that they talk to; and if their transfers join equal ranks at equal places. Times,
memory and statements of equal ranks follow from those of the first of them, since equal ranks begin equal events at the
same time.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from .mask import ALL, Box, Mask, PTensor, VTensor
from .materialized import (
    Accumulate,
    Add,
    Collective,
    Instruction,
    Join,
    Materialized,
    Pad,
    Receive,
    Register,
    Run,
    Send,
    Slice,
    Zeros,
    communicates,
    reads,
)
from .op import Op, Phase

_KEPT = (Phase.STORE, Phase.UPDATE, Phase.KEEP)


Members: TypeAlias = Sequence[Sequence[tuple[int, int]]]
"""By event of a program: the (rank, place) of its instructions."""


def likeness(program: Materialized, micro: Mapping[Register, int | None]) -> list[int]:
    """By rank, the first of those that differ from it in their numbers alone; `micro`: the micro-batch of registers.

    Transfers between them are not compared.
    """
    shared = _Shared()
    numbers: dict[Hashable, int] = {}  # those of instructions, as they are compared with each other

    def key(own: Sequence[Instruction]) -> Hashable:
        return tuple([numbers.setdefault(one, len(numbers)) for one in _Rank(own, program, micro, shared).compared()])

    return numbered(map(key, program.devices))


def equal_ranks(program: Materialized, members: Members, keys: Sequence[Hashable]) -> tuple[int, ...]:
    """By rank, the first of those that are equal to it, itself if there are none before; `keys` differ elsewhere."""
    transfers = [
        [(place, steps[place]) for place, found in enumerate(own) if communicates(found)]
        for own, steps in zip(program.devices, program.steps, strict=True)
    ]
    shared = {step for own in transfers for _, step in own}
    first = numbered(keys)
    while True:
        joins = {step: tuple(sorted((first[rank], at) for rank, at in members[step])) for step in shared}
        partners = [tuple((place, joins[step]) for place, step in own) for own in transfers]
        finer = numbered(zip(first, partners, strict=True))
        if finer == first:
            return tuple(first)
        first = finer


def equal_events(members: Members, first: Sequence[int]) -> tuple[list[int], Members]:
    """By event, the number of those that are equal to it; and their instructions, on first ranks instead of equal ones.

    Of several equal events of all ranks, as broadcasts each to some of them, first ranks may take part in different
    ones. As equal ranks reach them in the same order, the first of each are in an order that all first ranks have.
    """
    numbers: dict[tuple[tuple[int, int], ...], int] = {}
    keys = (tuple(sorted({(first[rank], place) for rank, place in own})) for own in members)
    return [numbers.setdefault(key, len(numbers)) for key in keys], list(numbers)


def numbered(keys: Iterable[Hashable]) -> list[int]:
    """By place, the first one with the same key."""
    first: dict[Hashable, int] = {}
    return [first.setdefault(key, place) for place, key in enumerate(keys)]


class _Kind(NamedTuple):
    """A node with the rows by which it was cut: a number of its own, and whether its parts have one size."""

    number: int
    even: bool


class _Shared:
    """What is found once for all ranks.

    `kinds`: by node and cuts; `masks`: by id, a number that equal masks share, that of their box, and what equal ranks
    have alike of it.
    """

    def __init__(self) -> None:
        self.kinds: dict[object, _Kind] = {}
        self._masks: dict[int, tuple[int, int, Hashable]] = {}
        self._numbers: dict[Hashable, int] = {}

    def mask(self, mask: Mask) -> tuple[int, int, Hashable]:
        found = self._masks.get(id(mask))
        if found is None:
            number, box = (self._numbers.setdefault(key, len(self._numbers)) for key in (mask, mask.box))
            start, stop = mask.addends
            alike = mask.sizes, None if mask.addends is ALL else stop - start
            found = self._masks[id(mask)] = number, box, alike
        return found


class _Rank:
    """What a rank does, without what may differ between equal ranks.

    Registers, vTensors, operators and boxes have the numbers of their first appearance.
    """

    def __init__(
        self,
        instructions: Sequence[Instruction],
        program: Materialized,
        micro: Mapping[Register, int | None],
        shared: _Shared,
    ) -> None:
        self.instructions, self.micro, self.shared = instructions, micro, shared
        self.writes = program.tasks.writes
        self.registers: dict[Register, int] = {}
        self.ops: dict[Op, int] = {}
        self.groups: dict[tuple[str, int], int] = {}
        self.parts: dict[tuple[PTensor, int], int] = {}
        self.written: dict[VTensor, int] = {}
        self.origin: dict[int, Box] = {}  # by parameter: the first box that is kept here
        self.numbers: dict[tuple[str, int, int], set[int]] = {}
        for own in dict.fromkeys(i.op.forward or i.op for i in instructions if isinstance(i, Run)):
            for (label, count), cut in own.labels.items():
                self.numbers.setdefault((label, count, cut.parts), set()).add(cut.number)

    def compared(self) -> Iterable[Hashable]:
        """By instruction, what equal ranks have alike."""
        return map(self._instruction, self.instructions)

    def _instruction(self, instruction: Instruction) -> Hashable:
        kind, read = type(instruction), tuple([self._register(register) for register in reads(instruction)])
        match instruction:
            case Run(op, _, writes):
                return self._op(op), read, tuple(None if w is None else self._register(w) for w in writes)
            case Accumulate(total, _, first):
                return kind, read, self._register(total), first
            case Send(more=more):
                return kind, read, more
            case Collective(_, name, group, source, target, atoms, cuts):
                return kind, name, len(group), source is None, read, self._register(target), atoms, cuts
            case Receive(_, target, _, more):
                return kind, self._register(target), more
            case Slice(target, source) | Pad(target, source):
                moved = tuple(a != b for a, b in zip(source.mask.box, target.mask.box, strict=True))
                return kind, read, self._register(target), moved
            case Join(target, sources):
                starts = tuple(_relative(source.mask.box, target.mask.box) for source in sources)
                return kind, read, self._register(target), starts
            case Zeros(target, omitted):
                return kind, self._register(target), omitted
            case Add(target, _):
                return kind, read, self._register(target)
            case _:
                return kind, self._register(instruction.target)

    def _register(self, register: Register) -> Hashable:
        """The number of a register; at first with what it holds."""
        known = self.registers.get(register)
        if known is not None:
            return known
        self.registers[register] = len(self.registers)
        part = self._part(register.tensor, register.mask)
        return register.tensor, register.via, part, self.micro.get(register)

    def _part(self, of: PTensor, mask: Mask) -> Hashable:
        """The number of a part of a tensor; at first with its sizes."""
        number, box, alike = self.shared.mask(mask)
        known = self.parts.get((of, number))
        if known is not None:
            return known
        self.parts[of, number] = len(self.parts)
        return alike, self.parts.setdefault((of, box), len(self.parts))

    def _op(self, op: Op) -> Hashable:
        own = op.forward or op
        if own in self.ops:
            return self.ops[own], op.phase, self._written(op)
        self.ops[own] = len(self.ops)
        rows = op.node, tuple((cut.row, cut.parts) for cut in own.cuts)
        known = self.shared.kinds.get(rows)
        if known is None:
            known = self.shared.kinds[rows] = _Kind(len(self.shared.kinds), own.even)
        kind = known.number
        cuts = tuple(
            (cut.label, cut.of, self._cut_number(label, count, cut.parts, cut.number))
            for (label, count), cut in own.labels.items()
        )
        uneven = () if known.even else tuple(cut.number for cut in own.cuts)
        region = None
        if op.phase in _KEPT:
            box = op.mask(None).box
            region = _relative(box, self.origin.setdefault(op.node, box)), op.mask(None).sizes
        selective = op.graph.selective
        groups = tuple(
            None if group is None else (self.groups.setdefault((kind, group), len(self.groups)), group in selective)
            for kind, group in (("again", own.group), ("swap", own.swapped))
        )
        return kind, op.phase, cuts, uneven, own.split, groups, region, self._written(op)

    def _cut_number(self, label: str, count: int, parts: int, number: int) -> int | None:
        """The number of a part; None if the rank has no others."""
        return number if len(self.numbers.get((label, count, parts), (0, 0))) > 1 else None

    def _written(self, op: Op) -> Hashable:
        return tuple([self._vtensor(w) for w in self.writes[op]])

    def _vtensor(self, written: VTensor) -> Hashable:
        """The number of a vTensor; at first with what it is."""
        known = self.written.get(written)
        if known is not None:
            return known
        self.written[written] = len(self.written)
        return written.tensor, written.via, self._part(written.tensor, written.mask)


def _relative(box: Box, to: Box) -> Box:
    """A box from where another one begins."""
    return tuple((start - first, stop - first) for (start, stop), (first, _) in zip(box, to, strict=True))
