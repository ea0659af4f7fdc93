"""The statements of one device: blocks are calls of segment functions, every other instruction is a line."""

from __future__ import annotations

from ....formulation.spacetime.mask import GRADIENT, UPDATED
from ....formulation.spacetime.materialized import (
    Accumulate,
    Add,
    Collective,
    Instruction,
    Join,
    Receive,
    Register,
    Run,
    Send,
    Slice,
    Zeros,
    reads,
    writes,
)
from ....formulation.spacetime.op import Phase
from ....model.errors import PartitaError
from ..common.text import shape_text
from .rolled_lines import Lines, mark
from .segment_calls import Blocks
from .segment_functions import sum_of
from .segments import Block


class Device(Blocks):
    """Writes the statements of one device."""

    def lines(self) -> Lines:
        """All statements of the device, in order."""
        self.left = None
        self.write()  # which counts how often every register is read
        self.left = self.reads
        return self.write()

    def write(self) -> Lines:
        """All statements. The last read of a register is known once `left` has the number of its reads."""
        self.forget_all()
        self.name_totals()
        self.updated: set[str] = set()  # what several operators update alike is updated once
        out = Lines()
        steps = self._updates_last()
        updated = False
        for step in steps:
            if isinstance(step, Block):
                self.block(step, out)
                continue
            instruction = self.flow.instructions[step]
            if not updated and self._is_late(step):
                out.add("run.step()")
                updated = True
            if step not in self.arranged.absorbed:
                self._single(step, instruction, out)
        if not updated:
            out.add("run.step()")
        return out

    def _updates_last(self) -> list[Block | int]:
        """Move what reads updated weights behind everything else: the optimizer has a single step."""
        early = [s for s in self.arranged.steps if isinstance(s, Block) or not self._is_late(s)]
        return early + [s for s in self.arranged.steps if not isinstance(s, Block) and self._is_late(s)]

    def _is_late(self, place: int) -> bool:
        instruction = self.flow.instructions[place]
        if isinstance(instruction, Run):
            return instruction.op.phase is Phase.KEEP
        return any(r.tensor.kind == UPDATED for r in (*reads(instruction), *writes(instruction)))

    # Single instructions

    def _single(self, place: int, instruction: Instruction, out: Lines) -> None:
        match instruction:
            case Run():
                self._run(instruction, out)
            case Zeros():
                self._zeros(instruction, out)
            case Slice() if self.for_update(instruction.target):
                pass  # the piece is a view of what is kept
            case Slice():
                source = self.use(instruction.source)
                out.add(f"{self.put(instruction.target)} = {self._sliced(source, instruction)}")
            case Join():
                self._join(instruction, out)
            case Add():
                self._add(instruction, out)
            case Accumulate():
                self._accumulate(instruction, out)
            case Collective():
                self._collective(instruction, out)
            case Send():
                out.add(f"run.send({self.use(instruction.source)}, {mark('to', instruction.to)})")
            case Receive():
                shape = shape_text(self.shapes[instruction.target])
                dtype = self._dtype(instruction.target)
                out.add(f"{self.put(instruction.target)} = run.receive({shape}, {mark('of', instruction.of)}{dtype})")

    def _is_weight(self, register: Register) -> bool:
        """True if a register is the gradient of a parameter: a tensor of its own."""
        return register.tensor.kind == GRADIENT and self.flow.pcg.nodes[register.tensor.node].op == "parameter"

    def _dtype(self, register: Register) -> str:
        dtype = self.flow.pcg.nodes[register.tensor.node].dtype
        return "" if dtype == "float32" else f", torch.{dtype}"

    def _run(self, run: Run, out: Lines) -> None:
        if run.op.phase is Phase.UPDATE:
            gradient, value = run.reads
            if self.from_store(value) is None:
                raise PartitaError(f"{run.op.name} on device {run.op.device}: a parameter is updated where it is kept")
            text, name = self.use(gradient), self.box_name(run.op.node, run.op.mask(None).box)
            if name not in self.updated:
                out.add(f"run.update({name}, {text})")
            elif ".take" in text:
                out.add(text)
            self.updated.add(name)
        elif run.op.phase is Phase.KEEP:
            (value,) = run.reads
            if self.is_kept(value) and value.mask.box in self.boxes[run.op.node]:
                return  # updated in place
            text = self.use(value)
            out.add(f"run.keep({self.box_name(run.op.node, run.op.mask(None).box)}, {text})")

    def _zeros(self, zeros: Zeros, out: Lines) -> None:
        out.add(
            f"{self.put(zeros.target)} = run.zeros({shape_text(self.shapes[zeros.target])}{self._dtype(zeros.target)})"
        )

    def _add(self, add: Add, out: Lines) -> None:
        """A sum. If autograd computes a part of it, the rest is added when its last term is there."""
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
        text = self.sum_of(found)
        out.add(f"{self.put(target)} = {text}")

    def _accumulate(self, accumulate: Accumulate, out: Lines) -> None:
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
        out.add(f"run.add(g, {self.use(source)}, {self.name(accumulate.total)})")

    # Parts of tensors, and collectives

    def _sliced(self, text: str, instruction: Slice) -> str:
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
                start, size = inner[a][0] - outer[a][0], inner[a][1] - inner[a][0]
                where = dim + shift + (a - numbers.start)
                text += f".narrow({where}, {mark('start', start)}, {size})"
            if len(numbers) > 1:
                undo.append((dim + shift, dim + shift + len(numbers) - 1))
                shift += len(numbers) - 1
        for first, last in reversed(undo):
            text += f".flatten({first}, {last})"
        return text

    def _join(self, join: Join, out: Lines) -> None:
        """Concatenate parts that lie along one dim; copy others to their places."""
        target = join.target
        known = self.flow.graph.atoms[target.tensor.node]
        box = target.mask.box
        split = {a for source in join.sources for a, edge in enumerate(source.mask.box) if edge != box[a]}
        dims = {known.dim_of(a) for a in split}
        texts = [self.use(source) for source in join.sources]
        outermost = len(dims) == 1 and all(
            box[a][1] - box[a][0] == 1 for a in known.of_dim(min(dims)[0]) if a < min(split)
        )
        if outermost:
            out.add(f"{self.put(target)} = torch.cat([{', '.join(texts)}], {min(dims)[0]})")
            return
        sizes = tuple(stop - start for start, stop in box)
        stops = [
            shape_text([stop - first for (_, stop), (first, _) in zip(source.mask.box, box, strict=True)])
            for source in join.sources
        ]
        starts = [
            shape_text([start - first for (start, _), (first, _) in zip(source.mask.box, box, strict=True)])
            for source in join.sources
        ]
        pairs = ", ".join(f"({x}, {a}, {b})" for x, a, b in zip(texts, starts, stops, strict=True))
        self.functions.used.helpers.add("join")
        out.add(f"{self.put(target)} = join({shape_text(sizes)}, {shape_text(self.shapes[target])}, [{pairs}])")

    def _collective(self, collective: Collective, out: Lines) -> None:
        target = collective.target
        known = self.flow.graph.atoms[target.tensor.node]
        ranks = sorted(collective.group) if collective.kind in ("broadcast", "all_reduce") else collective.group
        group = f"run.groups[⟨{','.join(map(str, ranks))}⟩]"
        source = "None" if collective.source is None else self.use(collective.source)
        shape = shape_text(self.shapes[target])
        if collective.kind == "broadcast":
            root = mark("of", collective.group[0])
            made = "" if collective.source == target else f"{self.put(target)} = "
            out.add(f"{made}run.broadcast({source}, {shape}, {root}, {group}{self._dtype(target)})")
            return
        if collective.kind == "all_reduce" and not (self._is_weight(target) and ".take(" in source):
            source += ".clone()"  # it is in place, and autograd may need what it was
        arguments = [source]
        view = ""
        if collective.kind != "all_reduce":
            assert collective.source is not None
            held = collective.source.mask.box
            inner = any(known.dim_of(a)[1] > 0 for a in collective.atoms)
            inner = inner or len({known.dim_of(a)[0] for a in collective.atoms}) < len(collective.atoms)
            if inner:
                view = f", view={shape_text([stop - start for start, stop in held])}, shape={shape}"
                arguments += [str(a) for a in collective.atoms]
            else:
                arguments += [str(known.dim_of(a)[0]) for a in collective.atoms]
        out.add(f"{self.put(target)} = run.{collective.kind}({', '.join([*arguments, group])}{view})")
