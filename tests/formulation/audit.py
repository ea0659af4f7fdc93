"""Audit of a materialized plan: it runs on symbols instead of numbers, on devices that wait for one another.

What a register holds is, for every cell of its box, which terms are added up there: a term is a vTensor that a task
writes. Nothing of how the program was made is used but its tasks.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import accumulate, pairwise, product
from typing import TypeAlias

from partita.formulation.spacetime.mask import ALL, Addends, Box, Mask, PTensor, VTensor, takes, within
from partita.formulation.spacetime.materialized import (
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
    Transfer,
    Zeros,
)
from partita.formulation.spacetime.op import Op
from partita.formulation.spacetime.tasks import Via, reads_of
from partita.model.graph.layout import S

Content: TypeAlias = "dict[Box, Counter[VTensor]]"
"""By cell the terms that are added up there."""


class FaultError(Exception):
    """What an instruction does wrong."""


def check(program: Materialized) -> tuple[str, ...]:
    """What is wrong with a program: the first fault that a run meets; nothing where every task reads what it should."""
    try:
        _Audit(program).run()
    except FaultError as fault:
        return (str(fault),)
    return ()


class _Audit:
    def __init__(self, program: Materialized) -> None:
        self.program = program
        self.reads = reads_of(program.tasks.ops)
        self.held: dict[int, Content] = {}
        self.mail: dict[int, tuple[Send, Content, int]] = {}
        self.arrived: dict[int, dict[int, Collective]] = defaultdict(dict)
        self.results: dict[int, dict[int, Content]] = {}
        self.edges: dict[PTensor, list[set[int]]] = {}
        self.shared: dict[object, list[tuple[Addends, int]]] = defaultdict(list)
        self.cells: dict[tuple[PTensor, Box], list[Box]] = {}
        self.writers: dict[PTensor, dict[Via, set[VTensor]]] = defaultdict(lambda: defaultdict(set))
        for register in program.shapes:
            self._note(register.tensor, register.mask.box)
        for op in program.tasks.ops:
            for written in op.writes:
                self.writers[written.tensor][written.via].add(written)
                self._note(written.tensor, written.mask.box)

    def run(self) -> None:
        """Each device goes on until it has to wait; all must come to the end."""
        self._numbered()
        devices = self.program.devices
        at = [0] * len(devices)
        while True:
            moved = False
            for device, instructions in enumerate(devices):
                while at[device] < len(instructions) and self._step(device, instructions[at[device]]):
                    at[device] += 1
                    moved = True
            if not moved:
                break
        for device, instructions in enumerate(devices):
            if at[device] < len(instructions):
                raise FaultError(f"device {device} deadlocks at {instructions[at[device]]}")
        if self.mail:
            raise FaultError(f"nobody receives {next(iter(self.mail.values()))[0]}")
        ran = Counter(i.op for instructions in devices for i in instructions if isinstance(i, Run))
        if ran != Counter(self.program.tasks.ops):
            raise FaultError("not every task runs once")
        for cell, readers in self.shared.items():
            if not _taken_once(readers):
                raise FaultError(f"of the readers of the addends of {cell} not one share takes each once: {readers}")

    def _numbered(self) -> None:
        """Places of events rise on every device, and are the keys of transfers."""
        for instructions, steps in zip(self.program.devices, self.program.steps, strict=True):
            if any(a >= b for a, b in pairwise(steps)):
                raise FaultError("the steps of a device do not rise")
            for instruction, step in zip(instructions, steps, strict=True):
                if isinstance(instruction, Transfer) and instruction.key != step:
                    raise FaultError(f"{instruction} stands at step {step}")

    # What instructions do

    def _step(self, device: int, instruction: Instruction) -> bool:
        """Run an instruction; False where it has to wait."""
        match instruction:
            case Run(op, reads, writes):
                self._run(device, op, reads, writes)
            case Zeros(target):
                self._write(device, target, {cell: Counter() for cell in self._cells(target.tensor, target.mask.box)})
            case Pad(target, source):
                zeros = {cell: Counter[VTensor]() for cell in self._cells(target.tensor, target.mask.box)}
                self._write(device, target, zeros | self._read(device, source))
            case Slice(target, source):
                self._write(device, target, self._cut(self._read(device, source), target.mask.box))
            case Join(target, sources):
                self._write(device, target, self._joined(target, sources, [self._read(device, s) for s in sources]))
            case Add(target, sources):
                self._write(device, target, self._sum(target, sources, [self._read(device, s) for s in sources]))
            case Accumulate(total, source, first):
                added = [source] if first else [total, source]
                content = self._sum(total, added, [self._read(device, register) for register in added])
                if not first:
                    del self.held[total.number]
                self._write(device, total, content)
            case Send(key, source, _):
                self.mail[key] = (instruction, self._read(device, source), device)
            case Receive(key, target, of):
                if key not in self.mail:
                    return False
                send, content, sender = self.mail.pop(key)
                if (send.to, sender, send.source.mask.box) != (device, of, target.mask.box):
                    raise FaultError(f"device {device} receives {target}, but device {sender} sends {send}")
                self._write(device, target, dict(content))
            case Collective():
                return self._collective(device, instruction)
        return True

    def _run(self, device: int, op: Op, reads: tuple[Register, ...], writes: tuple[Register | None, ...]) -> None:
        if op.device != device:
            raise FaultError(f"{op.name} runs on device {device}")
        if len(reads) != len(self.reads[op]) or len(writes) != len(op.writes):
            raise FaultError(f"{op.name} has {len(reads)} reads and {len(writes)} writes")
        for register, read in zip(reads, self.reads[op], strict=True):
            self._expect(op, read, register, self._read(device, register))
        for made, written in zip(writes, op.writes, strict=True):
            if made is not None:
                if made.mask != written.mask:
                    raise FaultError(f"{op.name} writes {written}, but its register is {made}")
                cells = self._cells(written.tensor, written.mask.box)
                self._write(device, made, {cell: Counter([written]) for cell in cells})

    def _collective(self, device: int, own: Collective) -> bool:
        """Arrive at a collective, and leave it with a result when all its members have arrived."""
        if device not in own.group or len(set(own.group)) < len(own.group):
            raise FaultError(f"device {device} is in no group of {own}")
        arrived = self.arrived[own.key]
        arrived[device] = own
        if len(arrived) < len(own.group):
            return False
        if own.key not in self.results:
            members = [arrived[member] for member in own.group if member in arrived]
            if {(m.kind, m.group, m.atoms, m.cuts) for m in members} != {(own.kind, own.group, own.atoms, own.cuts)}:
                raise FaultError(f"the members of {own} differ")
            self.results[own.key] = dict(zip(own.group, self._together(own, members), strict=True))
        content = self.results[own.key][device]
        if own.target is not own.source:
            self._write(device, own.target, dict(content))
        return True

    def _together(self, own: Collective, members: Sequence[Collective]) -> list[Content]:
        """What each member has after a collective."""
        sources = [m.source for m in members if m.source is not None]
        targets = [m.target for m in members]
        if own.kind == "broadcast":
            root = members[0].source
            if root is None or {t.mask.box for t in targets} != {root.mask.box}:
                raise FaultError(f"{own} has no one source of its boxes")
            return [self._read(own.group[0], root)] * len(members)
        if len(sources) < len(members):
            raise FaultError(f"a member of {own} has no source")
        before, after = [s.mask.box for s in sources], [t.mask.box for t in targets]
        contents = [self._read(member, source) for member, source in zip(own.group, sources, strict=True)]
        one_before, one_after = len(set(before)) == 1, len(set(after)) == 1
        fits = {
            "all_reduce": lambda: one_before and one_after and before[0] == after[0],
            "reduce": lambda: one_before and before[0] == after[0] and all(m.target is m.source for m in members[1:]),
            "all_gather": lambda: one_after and before == parts(after[0], own, 0),
            "reduce_scatter": lambda: one_before and after == parts(before[0], own, 0),
            "all_to_all": lambda: (
                len(before) > 1
                and (whole := _union(before, own.atoms[0])) == _union(after, own.atoms[1])
                and before == parts(whole, own, 0)
                and after == parts(whole, own, 1)
            ),
        }.get(own.kind)
        if fits is None or not fits():
            raise FaultError(f"{own} does not bring {before} to {after}")
        total: Content = {}
        for content in contents:
            for cell, terms in content.items():
                total[cell] = total.get(cell, Counter()) + terms
        return [self._cut(total, box) for box in after]

    # Registers

    def _read(self, device: int, register: Register) -> Content:
        if register.number not in self.held or register.device != device:
            raise FaultError(f"device {device} does not have {register}")
        return self.held[register.number]

    def _write(self, device: int, register: Register, content: Content) -> None:
        if register.number in self.held or register.device != device:
            raise FaultError(f"device {device} writes {register} twice, or it is another's")
        if content.keys() != set(self._cells(register.tensor, register.mask.box)):
            raise FaultError(f"{register} is not filled")
        self.held[register.number] = content

    def _sum(self, target: Register, sources: Sequence[Register], contents: Sequence[Content]) -> Content:
        if any(source.mask.box != target.mask.box or source.tensor != target.tensor for source in sources):
            raise FaultError(f"{target} is the sum of other boxes")
        return {cell: sum((content[cell] for content in contents), Counter()) for cell in contents[0]}

    def _joined(self, target: Register, sources: Sequence[Register], contents: Sequence[Content]) -> Content:
        boxes = [source.mask.box for source in sources]
        sides = [sorted({box[atom] for box in boxes}) for atom in range(len(target.mask.box))]
        tiles = all(
            side[0][0] == start and side[-1][1] == stop and all(a[1] == b[0] for a, b in pairwise(side))
            for side, (start, stop) in zip(sides, target.mask.box, strict=True)
        )
        if not tiles or list(product(*sides)) != boxes:
            raise FaultError(f"{target} is joined from {boxes}, which are no grid in order")
        return {cell: terms for content in contents for cell, terms in content.items()}

    def _cut(self, content: Content, box: Box) -> Content:
        return {cell: terms for cell, terms in content.items() if within(cell, box)}

    def _note(self, tensor: PTensor, box: Box) -> None:
        """Remember the borders of a box: no cell lies on both sides of one."""
        edges = self.edges.setdefault(tensor, [set() for _ in box])
        for known, (start, stop) in zip(edges, box, strict=True):
            known |= {start, stop}

    def _cells(self, tensor: PTensor, box: Box) -> Sequence[Box]:
        key = (tensor, box)
        if key not in self.cells:
            sides = [
                list(pairwise(sorted(edge for edge in known if start <= edge <= stop)))
                for known, (start, stop) in zip(self.edges[tensor], box, strict=True)
            ]
            self.cells[key] = list(product(*sides))
        return self.cells[key]

    def _expect(self, op: Op, read: VTensor, register: Register, content: Content) -> None:
        """A read is the sum over all that has a gradient's addends, each with all addends of the share, once."""
        if register.tensor != read.tensor or register.mask.box != read.mask.box:
            raise FaultError(f"{op.name} reads {register}, not {read}")
        for cell in self._cells(read.tensor, read.mask.box):
            found: dict[Via, list[Addends]] = defaultdict(list)
            for term, count in content[cell].items():
                found[term.via] += [term.mask.addends] * count
            for via, written in self.writers[read.tensor].items():
                shares = sorted(found.pop(via, []))
                there = {w.mask.addends for w in written if within(cell, w.mask.box)}
                if read.mask.partial:
                    for share in there:
                        self.shared[read.tensor, via, cell, share].append((read.mask.addends, shares.count(share)))
                    shares = [share for share in shares if share not in there]
                    there = set()
                wanted = sorted(share for share in there if takes(read.mask.addends, share))
                if shares != wanted and (read.mask.partial or not _complete(shares)):
                    raise FaultError(
                        f"{op.name} reads of {read} at {cell} through {via} the addends {shares}, not {wanted}"
                    )
            if found:
                raise FaultError(f"{op.name} reads at {cell} of {read} what nobody writes: {found}")


def parts(box: Box, of: Collective, number: int) -> list[Box]:
    """The parts of a box along an atom of a collective: equal ones, or of the sizes that it says."""
    atom, count = of.atoms[number], len(of.group)
    if not of.cuts:
        return [Mask(box).cut(S(atom), count, part).box for part in range(count)]
    borders = [*accumulate(of.cuts[number], initial=box[atom][0])]
    return [(*box[:atom], side, *box[atom + 1 :]) for side in pairwise(borders)]


def _union(boxes: Sequence[Box], atom: int) -> Box:
    """From the first box to the last along an atom."""
    return (*boxes[0][:atom], (boxes[0][atom][0], boxes[-1][atom][1]), *boxes[0][atom + 1 :])


def _taken_once(readers: Sequence[tuple[Addends, int]]) -> bool:
    """True if those that take an addend, once, are those whose shares have some one point: of any partition one."""
    edges = {edge for share, _ in readers for edge in share} - {ALL[1]}
    return any(all((start <= edge < stop) == taken for (start, stop), taken in readers) for edge in edges)


def _complete(shares: Sequence[Addends]) -> bool:
    """True if sorted shares are all addends, each once."""
    edges = [ALL[0], *(stop for _, stop in shares)]
    return bool(shares) and edges[-1] == ALL[1] and [start for start, _ in shares] == edges[:-1]
