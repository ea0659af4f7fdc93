"""The statements of one device: blocks are calls of segment functions, every other instruction is a line."""

from math import prod
from typing import NamedTuple

from ....formulation.spacetime.dtypes import dtype_of
from ....formulation.spacetime.mask import GRADIENT
from ....formulation.spacetime.materialized import (
    Accumulate,
    Add,
    Collective,
    Instruction,
    Join,
    Pad,
    Receive,
    Register,
    Run,
    Send,
    Slice,
    Zeros,
    uses_updates,
)
from ....formulation.spacetime.op import Phase
from ....formulation.spacetime.site import told
from ....model.errors import PartitaError
from ..common.rolled_lines import Piece, mark
from ..common.text import shape_text
from .program_tables import group_of
from .segment_calls import Blocks
from .segment_functions import sum_of
from .segments import SegmentPhase


def _other(instruction: Instruction) -> int:
    """The rank to or of which an instruction moves something."""
    match instruction:
        case Send(to=rank) | Receive(of=rank) | Collective(group=(rank, *_)):
            return rank
    raise AssertionError(instruction)


def _start(instruction: Instruction, atom: int) -> int:
    """Where a slice begins in its source, or what is padded in its target."""
    assert isinstance(instruction, Slice | Pad)
    return abs(instruction.target.mask.box[atom][0] - instruction.source.mask.box[atom][0])


def _waits(collective: Collective) -> str:
    """Takes the result of a collective at once, if the device waits for it."""
    return ".wait()" if collective.waits else ""


def _more(message: Send | Receive) -> str:
    """Says that others follow in the same message."""
    return ", more=True" if message.more else ""


class Written(NamedTuple):
    """The statements of a block or of the instruction at a place; without either, those after all others."""

    step: SegmentPhase | int | None
    pieces: list[Piece]


class DeviceWriter(Blocks):
    """Writes the statements of one device."""

    def lines(self) -> list[Written]:
        """All statements of the device, in order, by what they do."""
        self._write()  # which counts how often every register is read
        self.left = self.reads
        self._write()
        return self.written

    def _write(self) -> None:
        """Write all statements. The last read of a register is known once `left` has the number of its reads."""
        self.forget_all()
        for total in self.totals.values():
            self.name(total)
        self.written: list[Written] = []
        self.updated: set[str] = set()  # equal updates of several operators are one
        after_step: list[int] = []  # the optimizer has a single step
        for step in self.arranged.steps:
            self.pieces = []
            if isinstance(step, SegmentPhase):
                self.block(step)
            elif step not in self.arranged.absorbed:
                instruction = self.flow.instructions[step]
                if uses_updates(instruction):
                    after_step.append(step)
                    continue
                self._single(step)
            self.written.append(Written(step, self.pieces))
        self.pieces = []
        self.drop(self.dropped_last)
        self.add("run.step()")
        for step in after_step:
            self._single(step)
        self.written.append(Written(None, self.pieces))

    # Single instructions

    def _single(self, place: int) -> None:
        match instruction := self.flow.instructions[place]:
            case Run():
                self._run(instruction)
            case Zeros(omitted=True):
                pass
            case Zeros():
                shape, dtype = shape_text(self.shapes[instruction.target]), self._dtype(instruction.target)
                self._define(instruction.target, f"run.zeros({shape}{dtype})")
            case Pad():
                self._define(instruction.target, self._padded(instruction, place))
            case Slice() if self.for_update(instruction.target):
                pass  # a view of a kept part
            case Slice():
                text = self._sliced(self.use(instruction.source), instruction, place)
                copies = instruction.copied and ".flatten(" not in text
                self._define(instruction.target, f"{text}.clone()" if copies else text)
            case Join():
                self._join(instruction)
            case Add():
                self._add(instruction)
            case Accumulate():
                self._accumulate(instruction)
            case Collective():
                self._collective(instruction, place)
            case Send():
                self.add(f"run.send({self._sent(instruction.source)}, {self._rank('to', place)}{_more(instruction)})")
            case Receive():
                shape, dtype = shape_text(self.shapes[instruction.target]), self._dtype(instruction.target)
                self._define(
                    instruction.target, f"run.receive({shape}, {self._rank('of', place)}{dtype}{_more(instruction)})"
                )

    def _rank(self, role: str, place: int) -> str:
        """The rank to or of which an instruction moves something."""
        return mark(role, *map(_other, self.flow.everywhere(place)))

    def _define(self, target: Register, text: str) -> None:
        self.add(f"{self.put(target)} = {text}")

    def _dtype(self, register: Register) -> str:
        """The argument for the dtype of a new tensor, unless it is the compute dtype."""
        pcg, of = self.flow.pcg, self.functions.precision
        dtype, declared = dtype_of(pcg, register.tensor, of), pcg.nodes[register.tensor.node].dtype
        if declared != "float32":
            return f", torch.{declared}"
        return "" if dtype == of.compute else ", run.precision"

    def _sent(self, register: Register) -> str:
        """A tensor in the dtype in which it travels: stored weights are cast first."""
        stored = self.functions.precision.mixed and self.from_store(register) is not None
        weight = stored and self.flow.graph.of_parameter(register.tensor)
        return f"{self.use(register)}.to(run.dtype)" if weight else self.use(register)

    def _run(self, run: Run) -> None:
        if run.op.phase is Phase.UPDATE:
            gradient, value = run.reads
            if self.from_store(value) is None:
                words = f"{run.op.name} on device {run.op.device}: a parameter is updated where it is kept"
                raise PartitaError(told(run.op.assigned, words))
            text, name = self.use(gradient), self.box_name(run.op.node, run.op.mask(None).box)
            if name not in self.updated:
                self.add(f"run.update({name}, {text})")
            elif ".take" in text:
                self.add(text)
            self.updated.add(name)
        elif run.op.phase is Phase.KEEP:
            (value,) = run.reads
            if self.is_kept(value) and value.mask.box in self.boxes[run.op.node]:
                return  # updated in place
            text = self.use(value)
            self.add(f"run.keep({self.box_name(run.op.node, run.op.mask(None).box)}, {text})")

    def _add(self, add: Add) -> None:
        """A sum. If autograd computes a part of it, the rest is added once its last term is ready."""
        target, whole = add.target, add.target
        while (further := sum_of(self.flow, whole)) is not None:
            whole = further
        leaves = self.flow.terms(whole)
        if any(self.merged.get(leaf, leaf) != leaf for leaf in leaves):
            if target != whole:
                return
            found = self.distinct(leaves)
            if len(found) == 1:
                self.alias[target] = found[0]
                return
        else:
            found = list(add.sources)
        self._define(target, self.sum_of(found))

    def _accumulate(self, accumulate: Accumulate) -> None:
        """Accumulate a gradient, unless `backward` of its segment does so."""
        source = accumulate.source
        if self.merged.get(source, source) != source:
            return
        maker = self.flow.makers.get(source)
        if maker is not None:
            for segment in self.arranged.segments:
                for weight in self.code[segment].weights if maker[0] in segment.ops else ():
                    if weight.gradient == source and self.is_total(weight):
                        return
        self.add(f"run.add(g, {self.use(source)}, {self.name(accumulate.total)})")

    # Parts of tensors, and collectives

    def _sliced(self, text: str, instruction: Slice, place: int) -> str:
        """The slice of a tensor where the target's box lies in the source's."""
        node = instruction.target.tensor.node
        known = self.flow.graph.atoms[node]
        outer, inner = instruction.source.mask.box, instruction.target.mask.box
        shift = 0
        undo: list[tuple[int, int]] = []
        for dim in range(len(known.dims)):
            numbers = known.of_dim(dim)
            moved = [a for a in numbers if outer[a] != inner[a]]
            if not moved:
                continue
            if len(numbers) > 1:
                sizes = [outer[a][1] - outer[a][0] for a in numbers]
                text += f".unflatten({dim + shift}, {shape_text(sizes)})"
            for a in moved:
                starts = (_start(own, a) for own in self.flow.everywhere(place))
                where = dim + shift + (a - numbers.start)
                text += f".narrow({where}, {mark('start', *starts)}, {inner[a][1] - inner[a][0]})"
            if len(numbers) > 1:
                undo.append((dim + shift, dim + shift + len(numbers) - 1))
                shift += len(numbers) - 1
        for first, last in reversed(undo):
            text += f".flatten({first}, {last})"
        return text

    def _padded(self, pad: Pad, place: int) -> str:
        """A part among zeros; where a dim has several factors that are cut, it is placed among these."""
        known, outer, inner = self.flow.graph.atoms[pad.target.tensor.node], pad.target.mask, pad.source.mask
        moved = [a for a in range(len(outer.box)) if outer.box[a] != inner.box[a]]
        shape = shape_text(self.shapes[pad.target])
        by_factors = any(len(known.of_dim(known.dim_of(a)[0])) > 1 for a in moved)
        places = []
        for a in moved:
            start = mark("start", *(_start(own, a) for own in self.flow.everywhere(place)))
            places.append(f"({a if by_factors else known.dim_of(a)[0]}, {start}, {inner.sizes[a]})")
        self.functions.used.helpers.add("padded")
        sizes = shape_text(outer.sizes) if by_factors else shape
        text = f"padded({self._sent(pad.source)}, {sizes}, {', '.join(places)})"
        return f"{text}.reshape({shape})" if by_factors else text

    def _join(self, join: Join) -> None:
        """Concatenate parts that lie along one dim; copy others to their places."""
        target = join.target
        known = self.flow.graph.atoms[target.tensor.node]
        box = target.mask.box
        split = {a for source in join.sources for a, edge in enumerate(source.mask.box) if edge != box[a]}
        dims = {known.dim_of(a) for a in split}
        texts = [self._sent(source) for source in join.sources]
        outermost = len(dims) == 1 and all(
            box[a][1] - box[a][0] == 1 for a in known.of_dim(min(dims)[0]) if a < min(split)
        )
        if outermost:
            self._define(target, f"torch.cat([{', '.join(texts)}], {min(dims)[0]})")
            return
        parts = []
        for text, source in zip(texts, join.sources, strict=True):
            inner = [
                (start - first, stop - first) for (start, stop), (first, _) in zip(source.mask.box, box, strict=True)
            ]
            starts, stops = (shape_text(edges) for edges in zip(*inner, strict=True))
            parts.append(f"({text}, {starts}, {stops})")
        self.functions.used.helpers.add("join")
        shapes = f"{shape_text(target.mask.sizes)}, {shape_text(self.shapes[target])}"
        self._define(target, f"join({shapes}, [{', '.join(parts)}])")

    def _collective(self, collective: Collective, place: int) -> None:
        target = collective.target
        known = self.flow.graph.atoms[target.tensor.node]
        group = f"run.groups[⟨{','.join(map(str, group_of(collective)))}⟩]"
        source = "None" if collective.source is None else self._sent(collective.source)
        shape = shape_text(self.shapes[target])
        if collective.kind == "broadcast":
            root = self._rank("of", place)
            text = f"run.broadcast({source}, {shape}, {root}, {group}{self._dtype(target)}){_waits(collective)}"
            if collective.source == target:
                self.add(text)
            else:
                self._define(target, text)
            return
        if not collective.atoms and not (self.flow.graph.of_parameter(target.tensor, GRADIENT) and ".take(" in source):
            source += ".clone()"  # in place, and autograd may need the input
        if collective.kind == "reduce":
            text = f"run.reduce({source}, {self._rank('to', place)}, {group}){_waits(collective)}"
            if collective.source == target:
                self.add(text)
            else:
                self._define(target, text)
            return
        places, view = [known.dim_of(a)[0] for a in collective.atoms], ""
        if len({*places}) < len(places) or any(known.dim_of(a)[1] > 0 for a in collective.atoms):  # within a dim
            assert collective.source is not None
            places, view = [*collective.atoms], f", view={shape_text(collective.source.mask.sizes)}, shape={shape}"
        cuts = self._cuts(collective, bool(view))
        arguments = ", ".join([source, *map(str, places), group])
        message, sends = self.flow.messages.get(collective.key, (None, None))
        into = f', into="{message.value}"' + (", last=True" if sends == collective.key else "") if message else ""
        self._define(target, f"run.{collective.kind}({arguments}{view}{cuts}{into}){_waits(collective)}")

    def _cuts(self, collective: Collective, by_atom: bool) -> str:
        """The argument with the sizes of unequal parts, along an atom or along the dim in which it is outermost."""
        if not collective.cuts:
            return ""
        known, sizes = self.flow.graph.atoms[collective.target.tensor.node], collective.target.mask.sizes
        texts = []
        for atom, cuts in zip(collective.atoms, collective.cuts, strict=True):
            inner = () if by_atom else known.of_dim(known.dim_of(atom)[0])
            each = prod(sizes[other] for other in inner if other != atom)
            texts.append(shape_text([size * each for size in cuts]))
        return f", cuts={texts[0]}" if len(texts) == 1 else f", cuts=({', '.join(texts)})"
