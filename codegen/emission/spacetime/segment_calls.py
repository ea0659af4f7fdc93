"""Calls of segment functions: forward, recomputation, backward, weight gradients, offload and reload."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence

from ....formulation.spacetime.mask import Addends
from ....formulation.spacetime.materialized import Accumulate, Register
from ....formulation.spacetime.op import Op, Phase
from ..common.text import tuple_text
from .data_flow import Flow
from .function_table import Functions
from .register_names import Registers
from .rolled_lines import Lines, mark, quoted
from .segment_functions import Code, Segments, Weight, merge
from .segments import Block, Segment


class Blocks(Registers):
    """Writes the segment calls of one device; `copies`: how often each part of the loss is computed."""

    def __init__(
        self, flow: Flow, functions: Functions, shapes: Mapping[Register, tuple[int, ...]], copies: Counter[Addends]
    ) -> None:
        super().__init__(flow, shapes)
        self.functions, self.copies = functions, copies
        self.code: dict[Segment, Code] = {}
        self.calls: dict[Segment, str] = {}
        self.merged: dict[Register, Register] = {}
        for segment in self.arranged.segments:
            merged = merge(flow, segment)
            self.merged |= merged
            self.code[segment] = Segments(flow, segment, merged, functions.used).write()
            functions.add(self.code[segment], _title(segment))
        self._tell_apart()
        self.find_lanes()

    def _tell_apart(self) -> None:
        """Number segments whose calls would be equal: layers without weights, passes over the same layers."""
        several = True
        while several:
            alike: dict[object, list[Segment]] = {}
            for segment, code in self.code.items():
                numbers = tuple(number for _, number in segment.lane)  # all that a call says of a lane
                alike.setdefault((self.functions.name(code), code.bases, numbers), []).append(segment)
            several = any(len(segments) > 1 for segments in alike.values())
            for segments in alike.values():
                for number, segment in enumerate(segments) if len(segments) > 1 else ():
                    segment.lane = (*segment.lane, ("again", number))

    def block(self, block: Block, out: Lines) -> None:
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
        """The function with its numbers and lane, which identify its saved state."""
        if segment not in self.calls:
            name = self.functions.name(code)
            moving = self.functions.moving(name)
            where = [mark("site" if base == "site" else "i", number) for base, number in code.bases if base in moving]
            lane = [mark("m", number) for _, number in segment.lane]
            call = f"{name}, {tuple_text(where)}, {tuple_text(lane)}"
            self.calls[segment] = call
        return self.calls[segment]

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
        parts = [f"{name}=({mark('m', cut.number)}, {cut.parts})" for name, cut in code.parts]
        options = [*texts, *parts, *(["swap=True"] if swapped and not recomputed else []), *given]
        if not recomputed:
            options += self._copied(segment, code, phase)
        call = f"run.{'compute' if recomputed else 'forward'}({', '.join([self._call(segment, code), *options])})"
        targets, loss = [], -1
        for place, result in enumerate(code.outs):
            if result.op.node == flow.pcg.loss and phase is Phase.FORWARD:
                loss = place
            register = flow.result(result.op, phase)
            live = register is not None and self._wanted(register, segment, phase)
            targets.append(self.put(register) if live and register is not None else "_")
        copies = self.copies[code.outs[loss].op.mask(None).addends] if loss >= 0 else 1
        share = f" / {copies}" if copies > 1 else ""
        if len(targets) == 1 and loss == 0:
            out.add(f"run.loss += {call}{share}")
        else:
            targets = ["loss" if place == loss else target for place, target in enumerate(targets)]
            self._assign(targets, call, out)
            if loss >= 0:
                out.add(f"run.loss += loss{share}")
        self._drop(code, out, phase, segment)

    def _recorded(self, code: Code) -> bool:
        """True if backward of a segment gives anything that is read."""
        return bool(code.values) or any(weight.gradient is not None for weight in code.weights)

    def _wanted(self, register: Register, segment: Segment, phase: Phase) -> bool:
        """True if anything but the segment itself reads a register."""
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
        """The argument for weights that are not stored under their own names."""
        found = []
        lane = "".join(f", {mark('m', number)}" for _, number in segment.lane)
        for weight in code.weights:
            register = weight.register
            if phase is Phase.RECOMPUTE:
                register = self._again(segment, weight.register, phase)
            name, plain = self.name(register), quoted(self.flow.pcg.nodes[register.tensor.node].name)
            hidden = self.is_kept(register) and {plain, plain + lane} & self.live["w"]
            if weight.text.endswith('"') and name in (plain, plain + lane) and not hidden:
                continue
            place = f"run.model.parts[{name}]" if hidden else f"w[{name}]"
            found.append(f"{_key(weight.text)}: {place}")
        return [f"weights={{{', '.join(found)}}}"] if found else []

    def _fetched_again(self, segment: Segment, code: Code) -> list[str]:
        """The argument for weights that backward reads again and that are not stored under their own names."""
        found = []
        lane = "".join(f", {mark('m', number)}" for _, number in segment.lane)
        again = {(r.tensor, r.mask): r for op in segment.ops for r in self.flow.again(op)}
        for weight in code.weights:
            register = again.get((weight.register.tensor, weight.register.mask))
            if register is None:
                continue
            name, plain = self.name(register), quoted(self.flow.pcg.nodes[register.tensor.node].name)
            hidden = name != plain + lane and plain + lane in self.live["w"]
            if not weight.text.endswith('"') or name not in (plain, plain + lane) or hidden:
                found.append(f"{_key(weight.text)}: {'run.model.parts' if self.is_kept(register) else 'w'}[{name}]")
        return [f"weights={{{', '.join(found)}}}"] if found else []

    def _copied(self, segment: Segment, code: Code, phase: Phase) -> list[str]:
        """The argument for weights copied out of stored ones: autograd saves them, since nothing fetches them again."""
        found = [w.text for w in code.weights if self.is_copied(self._again(segment, w.register, phase))]
        return [f"copied=[{', '.join(map(_key, found))}]"] if found and self.functions.fetches else []

    def _again(self, segment: Segment, register: Register, phase: Phase) -> Register:
        """The register of a weight in another phase."""
        for op in segment.ops:
            for operand, other in self.flow.operands(op).items():
                if other == register:
                    return self.flow.operands(op, phase)[operand]
        raise AssertionError(register)

    def _touched(self, code: Code, phase: Phase, segment: Segment) -> list[Register]:
        """The weights that a block reads and this device does not keep."""
        if phase is Phase.FORWARD:
            found = [w.register for w in code.weights]
        elif phase is Phase.RECOMPUTE:
            found = [self._again(segment, w.register, phase) for w in code.weights]
        else:
            found = [r for op in segment.ops for r in self.flow.again(op)]
        return [r for r in dict.fromkeys(found) if not self.is_kept(r)]

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
                given.append(self.sum_of(self.distinct(result.gradients)) if result.gradients else _seed(result.op))
        if not self._recorded(code):
            for text in given:
                if ".take" in text:
                    out.add(text)
            return
        targets = [self._put_gradient(self.flow.made[leaf]) for leaf in code.values]
        split = segment.ops[0].split and any(weight.gradient is not None for weight in code.weights)
        more, own = ([], []) if split else self._gradients(segment, code)
        options = [f"[{', '.join(given)}]", *own, *self._fetched_again(segment, code)]
        self._assign([*targets, *more], f"run.backward({', '.join([self._call(segment, code), *options])})", out)
        self._drop(code, out, phase, segment)

    def _weight(self, phase: Phase, segment: Segment, code: Code, out: Lines) -> None:
        if all(weight.gradient is None for weight in code.weights):
            return
        more, own = self._gradients(segment, code)
        self._assign(more, f"run.weight({', '.join([self._call(segment, code), *own])})", out)

    def _move(self, phase: Phase, segment: Segment, code: Code, out: Lines) -> None:
        if self._recorded(code):
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
            elif not self.is_total(weight):
                name = self.name(weight.gradient)
                if name != quoted(node.name) + lane or weight.text != f'"{node.name}"':
                    own.append(weight)
                elif lane:
                    apart.append(weight.text)
        trained = [w for w in code.weights if w.gradient is not None]
        options = {
            "apart": "True"
            if apart and len(apart) == len(trained)
            else f"[{', '.join(map(_key, apart))}]" * bool(apart),
            "own": f"[{', '.join(_key(w.text) for w in own)}]" * bool(own),
            "skip": f"[{', '.join(map(_key, skip))}]" * bool(skip),
        }
        targets = [self._put_gradient(w.gradient) for w in own if w.gradient is not None]
        return targets, [f"{name}={text}" for name, text in options.items() if text]

    def is_total(self, weight: Weight) -> bool:
        """True if a weight's gradient is added to the total that has the weight's own name."""
        register = weight.gradient
        readers = self.flow.readers[register] if register is not None else []
        found = self.flow.instructions[readers[0]] if len(readers) == 1 else None
        if register is None or not isinstance(found, Accumulate):
            return False
        name = self.flow.pcg.nodes[register.tensor.node].name
        return self.totals.get(register.tensor.node) == found.total and weight.text == f'"{name}"'

    def _put_gradient(self, register: Register) -> str:
        return self.put(self.merged.get(register, register))

    def distinct(self, registers: Sequence[Register]) -> list[Register]:
        """Each gradient once; those that autograd adds up are represented by the first."""
        found = [self.merged.get(r, r) for r in registers]
        return list(dict.fromkeys(found))

    def sum_of(self, registers: Sequence[Register]) -> str:
        """The sum of registers."""
        texts = [self.use(register) for register in registers]
        if len(texts) == 1:
            return texts[0]
        self.functions.used.helpers.add("added")
        return f"added({', '.join(texts)})"


def _seed(loss: Op) -> str:
    """The gradient of the loss: `None` for the whole, a fraction for one of several equal addends."""
    start, stop = loss.mask(None, gradient=True).addends
    return "None" if stop - start == 1 else str(1 / (stop - start))


def _title(segment: Segment) -> str:
    """A segment's title: the list that it is an entry of, else "stage"."""
    lists = {re.sub(r"(?:^|\.)\d+(\..*)?$", "", op.of.path) for op in segment.ops if re.search(r"\d", op.of.path)}
    layers: set[str] = {m[0] for op in segment.ops if (m := re.match(r".*?\.\d+(?=\.|$)", op.of.path))}
    inside = all(f"{op.of.path}.".startswith((".", *(f"{name}." for name in layers))) for op in segment.ops)
    if len(layers) == 1 and len(lists) == 1 and inside:
        word = re.sub(r"\W+", "_", min(lists)).strip("_")
        return re.sub(r"s$", "", word) or "layer"
    return "stage"


def _key(text: str) -> str:
    name, _, count = text[1:].partition('"')
    return f"({quoted(name)}{count})" if count else quoted(name)
