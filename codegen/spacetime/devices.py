"""What one device does as statements: blocks as calls of their functions, all else as a line each."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ...formulation.spacetime.mask import GRADIENT, UPDATED, VALUE, Box
from ...formulation.spacetime.op import Op, Phase
from ...formulation.spacetime.program import (
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
)
from ...model.errors import PartitaError
from ..program.moves import Used
from ..program.text import shape_text, wrap
from .flow import Flow, reads, writes
from .functions import Code, Segments, Weight, merge
from .lines import Lines, Number, mark, numbers, quoted, with_numbers, written
from .segments import Arranged, Block, Lane, Segment, arrange

STORES = {VALUE: "v", GRADIENT: "g", UPDATED: "u"}


@dataclass
class Functions:
    """The functions of all segments of a program: equal ones are one. `bases`: the numbers that each is called with."""

    used: Used
    known: dict[object, str] = field(default_factory=dict)
    codes: dict[str, Code] = field(default_factory=dict)
    bases: dict[str, dict[str, set[int]]] = field(default_factory=dict)

    def add(self, code: Code, title: str) -> None:
        key = (code.body, code.arguments)
        if key not in self.known:
            count = Counter(re.sub(r"_\d+$", "", name) for name in self.codes)[title]
            self.known[key] = f"{title}_{count + 1}" if count else title
            self.codes[self.known[key]] = code
        numbers = self.bases.setdefault(self.known[key], {})
        for base, number in code.bases:
            numbers.setdefault(base, set()).add(number)

    def name(self, code: Code) -> str:
        return self.known[code.body, code.arguments]

    def moving(self, name: str) -> tuple[str, ...]:
        """The numbers in which calls of a function differ."""
        return tuple(base for base, numbers in self.bases[name].items() if len(numbers) > 1)

    def text(self, name: str) -> str:
        """The definition."""
        code, moving = self.codes[name], self.moving(name)
        fixed = {base: min(found) for base, found in self.bases[name].items() if base not in moving}

        def settled(number: Number) -> Number:
            constant = number.constant + sum(by * fixed.get(base, 0) for base, by in number.terms)
            return Number(constant, tuple(term for term in number.terms if term[0] not in fixed))

        body = [with_numbers(piece, iter([settled(n) for _, n in numbers(piece)])) for piece in code.body]
        head = f"def {name}({', '.join(['at', *moving, *code.arguments])}):"
        return "\n".join([*wrap(head, 0), *written(body)])


class Device:
    """Writes the statements of one device.

    A register has its name while it is live: what is read for the last time is taken out of its store.
    """

    def __init__(self, flow: Flow, functions: Functions, shapes: Mapping[Register, tuple[int, ...]], copies: int) -> None:
        self.flow, self.functions, self.shapes, self.copies = flow, functions, shapes, copies
        self.arranged: Arranged = arrange(flow)
        self.code: dict[Segment, Code] = {}
        self.titles: dict[Segment, str] = {}
        self.calls: dict[Segment, str] = {}
        self.merged: dict[Register, Register] = {}
        for segment in self.arranged.segments:
            merged = merge(flow, segment)
            self.merged |= merged
            self.code[segment] = Segments(flow, segment, merged, functions.used).write()
            functions.add(self.code[segment], self._title(segment))
        self._tell_apart()
        self.totals: dict[int, Register] = {}  # of every parameter the first
        for instruction in flow.instructions:
            if isinstance(instruction, Accumulate):
                self.totals.setdefault(instruction.total.tensor.node, instruction.total)
        self.boxes: dict[int, list[Box]] = {}
        self.left: Counter[Register] | None = None
        self.lane: dict[Register, Lane] = {}
        self._lanes()
        self._stored()

    def lines(self) -> Lines:
        """All statements of the device, in order."""
        self.left = None
        self.write()  # which counts how often every register is read
        self.left = self.reads
        return self.write()

    def _tell_apart(self) -> None:
        """Segments that would be called alike (layers without weights, passes over the same layers) are numbered."""
        alike: dict[object, list[Segment]] = {}
        for segment, code in self.code.items():
            alike.setdefault((self.functions.name(code), code.bases, segment.lane), []).append(segment)
        for segments in alike.values():
            if len(segments) > 1:
                for number, segment in enumerate(segments):
                    segment.lane = (*segment.lane, ("again", number))

    # Names

    def _lanes(self) -> None:
        """Registers go with who makes them, or else with who reads them."""
        flow = self.flow
        of = {op: segment.lane for segment in self.arranged.segments for op in segment.ops}
        for place, instruction in enumerate(flow.instructions):
            if flow.phase(place) is not None:
                self.lane.update(dict.fromkeys(writes(instruction), of[flow.op(place)]))
            elif isinstance(instruction, Run | Accumulate):
                self.lane.update(dict.fromkeys(writes(instruction), ()))
        for place in reversed(range(len(flow.instructions))):
            for register in reads(flow.instructions[place]):
                if register in self.lane:
                    continue
                if flow.phase(place) is not None:
                    self.lane[register] = of[flow.op(place)]
                else:
                    made = [self.lane[r] for r in writes(flow.instructions[place]) if r in self.lane]
                    if made:
                        self.lane[register] = made[0]
        for instruction in flow.instructions:
            known = [self.lane[r] for r in reads(instruction) if r in self.lane]
            for register in writes(instruction):
                self.lane.setdefault(register, known[0] if known else ())

    def _stored(self) -> None:
        """The boxes of parameters in the order in which they are counted: those that are kept here come first."""
        runs = [i for i in self.flow.instructions if isinstance(i, Run)]
        for run in sorted(runs, key=lambda run: run.op.phase is Phase.UPDATE):
            if run.op.phase in (Phase.STORE, Phase.UPDATE):
                known, box = self.boxes.setdefault(run.op.node, []), run.op.mask(None).box
                if box not in known:
                    known.append(box)

    def name(self, register: Register) -> str:
        """The key of a register in its store, which is its own until it is read for the last time."""
        if register not in self.named:
            node = self.flow.pcg.nodes[register.tensor.node]
            lane = "".join(f", {mark('m', number)}" for _, number in self.lane[register])
            store = self.store(register)
            count = 0
            if store in ("w", "u"):
                boxes = self.boxes.setdefault(register.tensor.node, [])
                if register.mask.box not in boxes:
                    boxes.append(register.mask.box)
                count = boxes.index(register.mask.box)
            kept = store == "w" and self._is_kept(register)
            lane = "" if kept else lane
            while (key := quoted(node.name + (f" {count + 1}" if count else "")) + lane) in self.live[store]:
                if kept:
                    break
                count += 1
            self.live[store].add(key)
            self.named[register] = key
        return self.named[register]

    def store(self, register: Register) -> str:
        """Weights have a store of their own."""
        kind = register.tensor.kind
        if kind == VALUE and self.flow.pcg.nodes[register.tensor.node].op == "parameter":
            return "w"
        return STORES.get(kind, "v")

    def _is_kept(self, register: Register) -> bool:
        makers = [self.flow.instructions[p] for p in self.flow.writers[register]]
        return any(isinstance(m, Run) and m.op.phase in (Phase.STORE, Phase.UPDATE) for m in makers)

    def put(self, register: Register) -> str:
        """The place where a register is written."""
        return f"{self.store(register)}[{self.name(register)}]"

    def use(self, register: Register) -> str:
        """A register as it is read; the last time it leaves its store."""
        register = self.alias.get(register, register)
        self.reads[register] += 1
        store, name = self.store(register), self.name(register)
        if self.left is not None:
            self.left[register] -= 1
        if self._is_kept(register) or self.left is None or self.left[register] > 0:
            return f"{store}[{name}]"
        self.forget(register)
        return f"{store}.take({name})"

    def forget(self, register: Register) -> None:
        self.live[self.store(register)].discard(self.named.pop(register))

    # Statements

    def write(self) -> Lines:
        """All statements; what is read for the last time is known where `left` says how often all is read."""
        self.named: dict[Register, str] = {}
        self.live: dict[str, set[str]] = {store: set() for store in "vgwu"}
        self.alias: dict[Register, Register] = {}
        self.reads: Counter[Register] = Counter()
        out = Lines()
        for total in self.totals.values():
            self.name(total)
        steps = self._updates_last()
        updated = False
        for step in steps:
            if isinstance(step, Block):
                self._block(step, out)
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
        """What needs a new weight comes after everything else, for the step of the optimizer is one."""
        early = [s for s in self.arranged.steps if isinstance(s, Block) or not self._is_late(s)]
        return early + [s for s in self.arranged.steps if not isinstance(s, Block) and self._is_late(s)]

    def _is_late(self, place: int) -> bool:
        instruction = self.flow.instructions[place]
        if isinstance(instruction, Run):
            return instruction.op.phase is Phase.KEEP
        return any(r.tensor.kind == UPDATED for r in (*reads(instruction), *writes(instruction)))

    # Blocks

    def _block(self, block: Block, out: Lines) -> None:
        segment = block.segment
        assert segment is not None
        code = self.code[segment]
        method = {
            Phase.FORWARD: self._forward,
            Phase.RECOMPUTE: self._forward,
            Phase.BACKWARD: self._backward,
            Phase.WEIGHT: self._weight,
            Phase.OFFLOAD: self._move,
            Phase.RELOAD: self._move,
        }[block.phase]
        method(block.phase, segment, code, out)

    def _call(self, segment: Segment, code: Code) -> str:
        """The function with its numbers and the lane, by which its state is found again."""
        if segment not in self.calls:
            name = self.functions.name(code)
            moving = self.functions.moving(name)
            where = [mark("site" if base == "site" else "i", number) for base, number in code.bases if base in moving]
            lane = [mark("m", number) for _, number in segment.lane]
            call = f"{name}, {_tuple(where)}, {_tuple(lane)}"
            self.calls[segment] = call
        return self.calls[segment]

    def _title(self, segment: Segment) -> str:
        lists = {re.sub(r"(?:^|\.)\d+(\..*)?$", "", op.of.path) for op in segment.ops if re.search(r"\d", op.of.path)}
        layers: set[str] = {m[0] for op in segment.ops if (m := re.match(r".*?\.\d+(?=\.|$)", op.of.path))}
        inside = all(f"{op.of.path}.".startswith((".", *(f"{name}." for name in layers))) for op in segment.ops)
        if len(layers) == 1 and len(lists) == 1 and inside:
            word = re.sub(r"\W+", "_", min(lists)).strip("_")
            return re.sub(r"s$", "", word) or "layer"
        return "stage"

    def _forward(self, phase: Phase, segment: Segment, code: Code, out: Lines) -> None:
        flow = self.flow
        recomputed = phase is Phase.FORWARD and flow.of(segment.ops[0], Phase.RECOMPUTE) is not None
        recomputed |= not self._recorded(code)
        swapped = segment.ops[0].swapped
        given = self._weights(segment, code, phase)
        texts = [
            f"[{', '.join(self.use(flow.operands(op, phase)[operand]) for op, operand in leaves)}]"
            for leaves in (code.values, code.constants)
        ]
        while texts and texts[-1] == "[]":
            texts.pop()
        parts = [f"{name}=({mark(_role(name), cut.number)}, {cut.parts})" for name, cut in code.parts]
        options = [*texts, *parts, *(["swap=True"] if swapped and not recomputed else []), *given]
        call = f"run.{'compute' if recomputed else 'forward'}({', '.join([self._call(segment, code), *options])})"
        targets, loss = [], -1
        for place, result in enumerate(code.outs):
            if result.op.node == flow.pcg.loss and phase is Phase.FORWARD:
                loss = place
            register = flow.result(result.op, phase)
            live = register is not None and self._wanted(register, segment, phase)
            targets.append(self.put(register) if live and register is not None else "_")
        if loss >= 0:
            targets[loss] = "loss"
        self._assign(targets, call, out)
        if loss >= 0:
            out.add(f"run.loss += loss{f' / {self.copies}' if self.copies > 1 else ''}")
        self._drop(code, out, phase, segment)

    def _recorded(self, code: Code) -> bool:
        """Whether backward of a segment gives anything that is read."""
        return bool(code.values) or any(weight.gradient is not None for weight in code.weights)

    def _wanted(self, register: Register, segment: Segment, phase: Phase) -> bool:
        """Whether anything but the segment itself reads a register."""
        flow, inside = self.flow, set(segment.ops)
        return any(flow.phase(p) is not phase or flow.op(p) not in inside for p in flow.readers[register])

    @staticmethod
    def _assign(targets: Sequence[str], call: str, out: Lines) -> None:
        if not targets or set(targets) == {"_"}:
            out.add(call)
        elif len(targets) == 1:
            out.add(f"{targets[0]} = {call}")
        else:
            out.add(f"{', '.join(targets)} = {call}")

    def _weights(self, segment: Segment, code: Code, phase: Phase) -> list[str]:
        """The weights that the function would not find under their names."""
        found = []
        lane = "".join(f", {mark('m', number)}" for _, number in segment.lane)
        for weight in code.weights:
            register = weight.register
            if phase is Phase.RECOMPUTE:
                register = self._again(segment, weight.register, phase)
            name, plain = self.name(register), quoted(self.flow.pcg.nodes[register.tensor.node].name)
            if weight.text.count('"') and ", " in weight.text or name not in (plain, plain + lane):
                key = quoted(weight.text.split('"')[1]) + weight.text.split('"')[2]
                found.append(f"({key}): w[{name}]" if "," in key else f"{key}: w[{name}]")
        return [f"weights={{{', '.join(found)}}}"] if found else []

    def _again(self, segment: Segment, register: Register, phase: Phase) -> Register:
        """The register from which a weight is read again."""
        for op in segment.ops:
            for operand, other in self.flow.operands(op).items():
                if other == register:
                    return self.flow.operands(op, phase)[operand]
        raise AssertionError(register)

    def _touched(self, code: Code, phase: Phase, segment: Segment) -> list[Register]:
        """The weights that a block reads and that are not kept."""
        if phase is Phase.FORWARD:
            found = [w.register for w in code.weights]
        elif phase is Phase.RECOMPUTE:
            found = [self._again(segment, w.register, phase) for w in code.weights]
        else:
            found = [r for op in segment.ops for r in self.flow.again(op)]
        return [r for r in dict.fromkeys(found) if not self._is_kept(r)]

    def _drop(self, code: Code, out: Lines, phase: Phase, segment: Segment) -> None:
        for register in self._touched(code, phase, segment):
            name = self.name(register)
            self.reads[register] += 1
            if self.left is None:
                continue
            self.left[register] -= 1
            if self.left[register] == 0:
                out.add(f"w.take({name})")
                self.forget(register)

    def _backward(self, phase: Phase, segment: Segment, code: Code, out: Lines) -> None:
        given = []
        for result in code.outs:
            if result.gradients is not None:
                given.append(self._sum(self._distinct(result.gradients)))
        if not self._recorded(code):
            for text in given:
                if ".take" in text:
                    out.add(text)
            return
        targets = [self._put_gradient(self.flow.made[leaf]) for leaf in code.values]
        split = segment.ops[0].split
        more, own = ([], []) if split else self._gradients(segment, code)
        options = [f"[{', '.join(given)}]", *own]
        self._assign([*targets, *more], f"run.backward({', '.join([self._call(segment, code), *options])})", out)
        self._drop(code, out, phase, segment)

    def _weight(self, phase: Phase, segment: Segment, code: Code, out: Lines) -> None:
        more, own = self._gradients(segment, code)
        self._assign(more, f"run.weight({', '.join([self._call(segment, code), *own])})", out)

    def _move(self, phase: Phase, segment: Segment, code: Code, out: Lines) -> None:
        out.add(f"run.{'offload' if phase is Phase.OFFLOAD else 'reload'}({self._call(segment, code)})")

    def _gradients(self, segment: Segment, code: Code) -> tuple[list[str], list[str]]:
        """Where gradients of weights go: targets of those that have no place of their own name, and the options.

        Without an option a gradient is added to what g has under the weight's name.
        """
        lane = "".join(f", {mark('m', number)}" for _, number in segment.lane)
        own: list[Weight] = []
        apart: list[str] = []
        skip: list[str] = []
        for weight in code.weights:
            node = self.flow.pcg.nodes[weight.register.tensor.node]
            if weight.gradient is None:
                skip += [weight.text] if node.gradient else []
            elif not self._is_total(weight):
                name = self.name(weight.gradient)
                if name != quoted(node.name) + lane or weight.text != f'"{node.name}"':
                    own.append(weight)
                elif lane:
                    apart.append(weight.text)
        trained = [w for w in code.weights if w.gradient is not None]
        options = {
            "apart": "True" if apart and len(apart) == len(trained) else f"[{', '.join(map(_key, apart))}]" * bool(apart),
            "own": f"[{', '.join(_key(w.text) for w in own)}]" * bool(own),
            "skip": f"[{', '.join(map(_key, skip))}]" * bool(skip),
        }
        targets = [self._put_gradient(w.gradient) for w in own if w.gradient is not None]
        return targets, [f"{name}={text}" for name, text in options.items() if text]

    def _is_total(self, weight: Weight) -> bool:
        """Whether a weight's gradient is added to the total that has the weight's own name."""
        register = weight.gradient
        readers = self.flow.readers[register] if register is not None else []
        found = self.flow.instructions[readers[0]] if len(readers) == 1 else None
        if register is None or not isinstance(found, Accumulate):
            return False
        name = self.flow.pcg.nodes[register.tensor.node].name
        return self.totals.get(register.tensor.node) == found.total and weight.text == f'"{name}"'

    def _put_gradient(self, register: Register) -> str:
        return self.put(self.merged.get(register, register))

    def _distinct(self, registers: Sequence[Register]) -> list[Register]:
        """Each gradient once, of those that autograd adds up the first."""
        found = [self.merged.get(r, r) for r in registers]
        return list(dict.fromkeys(found))

    # Single instructions

    def _single(self, place: int, instruction: Instruction, out: Lines) -> None:
        match instruction:
            case Run():
                self._run(instruction, out)
            case Zeros():
                self._zeros(instruction, out)
            case Slice() if self._for_update(instruction.target):
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

    def _dtype(self, register: Register) -> str:
        dtype = self.flow.pcg.nodes[register.tensor.node].dtype
        return "" if dtype == "float32" else f", torch.{dtype}"

    def _run(self, run: Run, out: Lines) -> None:
        if run.op.phase is Phase.UPDATE:
            gradient, value = run.reads
            if self._from_store(value) is None:
                raise PartitaError(f"{run.op.name} on device {run.op.device}: a parameter is updated where it is kept")
            out.add(f"run.update({self.piece(run.op)}, {self.use(gradient)})")
        elif run.op.phase is Phase.KEEP:
            (value,) = run.reads
            if self._is_kept(value) and value.mask.box in self.boxes[run.op.node]:
                return  # updated in place
            text = self.use(value)
            out.add(f"run.keep({self.piece(run.op)}, {text})")

    def piece(self, op: Op) -> str:
        """The name of the part of a parameter that an update or a store has."""
        boxes = self.boxes.setdefault(op.node, [])
        box = op.mask(None).box
        if box not in boxes:
            boxes.append(box)
        count = boxes.index(box)
        return quoted(op.of.name + (f" {count + 1}" if count else ""))

    def _from_store(self, register: Register) -> Register | None:
        """The stored parameter of which a register is a part."""
        makers = [self.flow.instructions[p] for p in self.flow.writers[register]]
        match makers:
            case [Run()]:
                return register
            case [Slice(source=source)]:
                return self._from_store(source)
        return None

    def _for_update(self, register: Register) -> bool:
        """Whether only an update reads a register."""
        readers = [self.flow.instructions[p] for p in self.flow.readers[register]]
        return bool(readers) and all(isinstance(r, Run) and r.op.phase is Phase.UPDATE for r in readers) and (
            register.tensor.kind == VALUE
        )

    def _zeros(self, zeros: Zeros, out: Lines) -> None:
        out.add(f"{self.put(zeros.target)} = run.zeros({shape_text(self.shapes[zeros.target])}{self._dtype(zeros.target)})")

    def _add(self, add: Add, out: Lines) -> None:
        """A sum; where autograd has summed up a part of it, the sum of the rest where the last is there."""
        target = add.target
        leaves, adding = self.flow.leaves(target)
        if adding and any(self.merged.get(leaf, leaf) != leaf for leaf in leaves):
            readers = self.flow.readers[target]
            if len(readers) == 1 and isinstance(self.flow.instructions[readers[0]], Add):
                return
            found = self._distinct(leaves)
            if len(found) == 1:
                self.alias[target] = found[0]
                return
        else:
            found = list(add.sources)
        out.add(f"{self.put(target)} = {self._sum(found)}")

    def _sum(self, registers: Sequence[Register]) -> str:
        """The sum of registers; of none `None`, which is the gradient of the loss."""
        texts = [self.use(register) for register in registers]
        if len(texts) < 2:
            return texts[0] if texts else "None"
        self.functions.used.helpers.add("added")
        return f"added({', '.join(texts)})"

    def _accumulate(self, accumulate: Accumulate, out: Lines) -> None:
        """Autograd's own sums are added up in backward."""
        source = accumulate.source
        if self.merged.get(source, source) != source:
            return
        maker = self.flow.makers.get(source)
        if maker is not None:
            for segment in self.arranged.segments:
                for weight in self.code[segment].weights if maker[0] in segment.ops else ():
                    if weight.gradient == source and self._is_total(weight):
                        return
        out.add(f"run.add(g, {self.use(source)}, {self.name(accumulate.total)})")

    # Parts of tensors

    def _sliced(self, text: str, instruction: Slice) -> str:
        """The part of a tensor by which the target's box lies in the source's."""
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
        """A concatenation where the parts lie along one dim; else they are put in their places."""
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

    # Collectives

    def _collective(self, collective: Collective, out: Lines) -> None:
        target = collective.target
        known = self.flow.graph.atoms[target.tensor.node]
        ranks = sorted(collective.group) if collective.kind in ("broadcast", "all_reduce") else collective.group
        group = f"run.groups[⟨{','.join(map(str, ranks))}⟩]"
        source = "None" if collective.source is None else self.use(collective.source)
        shape = shape_text(self.shapes[target])
        if collective.kind == "broadcast":
            root = mark("of", collective.group[0])
            out.add(f"{self.put(target)} = run.broadcast({source}, {shape}, {root}, {group}{self._dtype(target)})")
            return
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


def _role(name: str) -> str:
    """A part's number is the micro-batch, as far as loops go."""
    return "m"


def _key(text: str) -> str:
    name, _, count = text[1:].partition('"')
    return f"({quoted(name)}{count})" if count else quoted(name)


def _tuple(parts: Sequence[str]) -> str:
    return f"({', '.join(parts)}{',' if len(parts) == 1 else ''})"
