"""Calls of segment functions: forward, recomputation, backward, weight gradients, offload and reload."""

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from ....formulation.spacetime.mask import Addends
from ....formulation.spacetime.materialized import Accumulate, Register
from ....formulation.spacetime.op import Cut, Op, Phase
from ..common.rolled_lines import Piece, line, mark, quoted
from ..common.statements import reserved
from ..common.text import tuple_text
from ..templates import defined
from .data_flow import TEMPLATE, Flow, Lane, numbered
from .function_table import Functions
from .register_names import Registers, lane_text
from .segment_functions import Code, Segments, Weight, merge
from .segments import DeviceSegment, SegmentPhase, keeps


class Blocks(Registers):
    """Writes the segment calls of one device; `copies`: how often each part of the loss is computed."""

    def __init__(
        self,
        flow: Flow,
        functions: Functions,
        shapes: Mapping[Register, tuple[int, ...]],
        copies: Counter[Addends],
    ) -> None:
        super().__init__(flow, shapes)
        self.functions, self.copies = functions, copies
        self.pieces: list[Piece] = []
        self.code: dict[DeviceSegment, Code] = {}
        self.merged: dict[Register, Register] = {}
        for segment in self.arranged.segments:
            merged = merge(flow, segment)
            self.merged |= merged
            code = functions.code(Segments(flow, segment, merged, functions.used, functions.precision.narrow))
            if not code.name:
                functions.add(code, _title(segment))
            self.code[segment] = code
        self._number_equal_calls()
        self.find_lanes()
        self._find_handed()

    def add(self, statement: str) -> None:
        self.pieces.append(line(statement))
        dropped, self.dropped = self.dropped, []
        self.drop(dropped)

    def drop(self, registers: Sequence[Register]) -> None:
        """Take registers out of their stores."""
        for register in registers:
            self.pieces.append(line(f"{self.store(register)}.take({self.name(register)})"))
            self.forget(register)

    def _find_handed(self) -> None:
        """Find the values that several calls of a function read. All calls, the last too, leave them in their store.

        So all calls are alike. The values are dropped after the last call, or after all micro-batches if several read
        them.
        """
        calls: Counter[tuple[Register, str, Phase]] = Counter()
        lanes: dict[Register, set[Lane]] = defaultdict(set)
        for step in self.arranged.steps:
            if isinstance(step, SegmentPhase) and step.segment and step.phase in (Phase.FORWARD, Phase.RECOMPUTE):
                code = self.code[step.segment]
                for op, operand in (*code.values, *code.constants):
                    register = self.flow.operands(op, step.phase)[operand]
                    calls[register, code.name, step.phase] += 1
                    lanes[register].add(step.segment.lane)
        found = {register for (register, *_), count in calls.items() if count > 2}
        self.handed = {register: len(lanes[register]) > 1 for register in found}

    def _number_equal_calls(self) -> None:
        """Number segments whose calls would be equal: layers without weights, passes over the same layers."""
        several = True
        while several:
            alike: dict[object, list[DeviceSegment]] = {}
            for segment, code in self.code.items():
                numbers = tuple(number for _, number in segment.lane)  # a call names no labels
                alike.setdefault((code.name, code.bases, numbers), []).append(segment)
            several = any(len(segments) > 1 for segments in alike.values())
            for segments in alike.values():
                for number, segment in enumerate(segments) if len(segments) > 1 else ():
                    segment.lane = (*segment.lane, ("again", number))

    def block(self, block: SegmentPhase) -> None:
        """Write one phase of a segment."""
        assert block.segment is not None
        code = self.code[block.segment]
        match block.phase:
            case Phase.FORWARD | Phase.RECOMPUTE:
                self._forward(code, block.phase)
            case Phase.BACKWARD:
                self._backward(code)
            case Phase.WEIGHT if any(weight.goes_back for weight in code.weights):
                targets, options = self._gradients(code)
                self._assign(targets, f"run.weight({', '.join([self._call(code), *options])})")
            case Phase.OFFLOAD | Phase.RELOAD if code.has_gradients:
                self.add(f"run.{block.phase.value}({self._call(code)})")

    def _call(self, code: Code) -> str:
        """The function with its numbers and lane, which identify its saved state."""
        moving = self.functions.moving(code.name)
        where = [mark("site" if base == "site" else "i", number) for base, number in code.bases if base in moving]
        return f"{code.name}, {tuple_text(where)}, {tuple_text([numbered(*own) for own in code.segment.lane])}"

    def _assign(self, targets: Sequence[str], call: str) -> None:
        self.add(f"{', '.join(targets)} = {call}" if {*targets} - {"_"} else call)

    def _forward(self, code: Code, phase: Phase) -> None:
        flow, first, inside = self.flow, code.segment.ops[0], {*code.segment.ops}
        again = flow.of(first, Phase.RECOMPUTE) is not None
        keep = phase is Phase.FORWARD and keeps(first) and any(op.is_kept for op in inside)
        recorded = code.has_gradients and (phase is Phase.RECOMPUTE or not again or keep)
        weights = self._weights(code, phase)
        texts = [
            f"[{', '.join(self.use(flow.operands(op, phase)[operand]) for op, operand in leaves)}]"
            for leaves in (code.values, code.constants)
        ]
        while texts and texts[-1] == "[]":
            texts.pop()
        parts = [
            f"{name}=({mark(TEMPLATE if cut.of else 'm', *flow.numbers(op, cut))}, {cut.total}{self._group(op, cut)})"
            for name, op, cut in code.parts
        ]
        options = [
            *texts,
            *parts,
            *(["keep=True"] if keep else []),
            *(["swap=True"] if first.swapped and recorded else []),
            *weights,
        ]
        if recorded:
            options += self._copied(code, phase)
        call = f"run.{'forward' if recorded else 'compute'}({', '.join([self._call(code), *options])})"
        targets, share = [], ""
        for result in code.outs:
            register = flow.result(result.op, phase)
            if result.op.node == flow.pcg.loss and phase is Phase.FORWARD:
                copies = self.copies[result.op.mask(None).addends]
                share = f" / {copies}" if copies > 1 else ""
                targets.append("loss")
            elif register is not None and flow.read_outside(register, phase, inside):
                targets.append(self.put(register))
            else:
                targets.append("_")
        if targets == ["loss"]:
            self.add(f"run.loss += {call}{share}")
        else:
            self._assign(targets, call)
            if "loss" in targets:
                self.add(f"run.loss += loss{share}")
        self._release([self._in_phase(weight, phase) for weight in code.weights])

    def _group(self, op: Op, cut: Cut) -> str:
        """The argument for the group of ranks with which an operator exchanges data along a cut."""
        run = self.flow.of(op, Phase.FORWARD)
        if run is None or run.meeting is None or cut not in op.exchanges:
            return ""
        group = run.meeting.group(op, op.exchanges.index(cut))
        return f", run.groups[⟨{','.join(map(str, group))}⟩]"

    def _backward(self, code: Code) -> None:
        given = []
        for result in code.outs:
            if result.gradients is not None:
                given.append(self.sum_of(self.distinct(result.gradients)) if result.gradients else _seed(result.op))
        if not code.has_gradients:
            for text in given:
                if ".take" in text:
                    self.add(text)
            return
        made = self.flow.made
        targets = [self._put_gradient(made[leaf]) if leaf in made else "_" for leaf in code.values]
        split = code.segment.ops[0].split and any(weight.goes_back for weight in code.weights)
        more, own = ([], []) if split else self._gradients(code)
        options = [f"[{', '.join(given)}]", *own, *self._fetched_again(code)]
        self._assign([*targets, *more], f"run.backward({', '.join([self._call(code), *options])})")
        self._release([register for op in code.segment.ops for register in self.flow.again(op)])

    # Weights

    def _in_phase(self, weight: Weight, phase: Phase) -> Register:
        """The register of a weight in another phase."""
        op, operand = weight.reader
        return self.flow.operands(op, phase)[operand]

    def _weights(self, code: Code, phase: Phase) -> list[str]:
        """The argument for weights that are not stored under their own names."""
        found, lane = [], lane_text(code.segment.lane)
        for weight in code.weights:
            register = self._in_phase(weight, phase)
            name, plain = self.name(register), quoted(self.flow.pcg.nodes[register.tensor.node].name)
            kept, live = self.is_kept(register), self.live["w"]
            hidden = (name != plain + lane and plain + lane in live) or (kept and plain in live)
            if hidden or not weight.text.endswith('"') or name not in (plain, plain + lane):
                found.append(f"{_key(weight.text)}: {'run.model.parts' if hidden and kept else 'w'}[{name}]")
        return [f"weights={{{', '.join(found)}}}"] if found else []

    def _fetched_again(self, code: Code) -> list[str]:
        """The argument for weights that backward reads again and that are not stored under their own names."""
        found, lane = [], lane_text(code.segment.lane)
        again = {(r.tensor, r.mask): r for op in code.segment.ops for r in self.flow.again(op)}
        for weight in code.weights:
            register = again.get((weight.register.tensor, weight.register.mask))
            if register is None:
                continue
            name, plain = self.name(register), quoted(self.flow.pcg.nodes[register.tensor.node].name)
            hidden = name != plain + lane and plain + lane in self.live["w"]
            if hidden or not weight.text.endswith('"') or name not in (plain, plain + lane):
                found.append(f"{_key(weight.text)}: {'run.model.parts' if self.is_kept(register) else 'w'}[{name}]")
        return [f"weights={{{', '.join(found)}}}"] if found else []

    def _copied(self, code: Code, phase: Phase) -> list[str]:
        """The argument for weights copied out of stored ones: autograd saves them, since nothing fetches them again."""
        found = [weight.text for weight in code.weights if self.is_copied(self._in_phase(weight, phase))]
        return [f"copied=[{', '.join(map(_key, found))}]"] if found and self.functions.fetches else []

    def _release(self, weights: Sequence[Register]) -> None:
        """Drop the weights that this device does not keep and that a block is the last to read."""
        for register in dict.fromkeys(weights):
            if not self.is_kept(register):
                name = self.name(register)
                if self.is_last_read(register):
                    self.add(f"w.take({name})")
                    self.forget(register)

    def _gradients(self, code: Code) -> tuple[list[str], list[str]]:
        """Where gradients of weights go: targets of those without a place under their own names, and the options.

        Without an option a gradient is added to that under the weight's name in g.
        """
        lane = lane_text(code.segment.lane)
        returned: list[Weight] = []
        separate: list[str] = []
        skip: list[str] = []
        for weight in code.weights:
            node = self.flow.pcg.nodes[weight.register.tensor.node]
            if weight.passed:
                returned.append(weight)
            elif weight.gradient is None:
                skip += [weight.text] if node.gradient else []
            elif not self.is_total(weight):
                if self.name(weight.gradient) != quoted(node.name) + lane or weight.text != f'"{node.name}"':
                    returned.append(weight)
                elif lane:
                    separate.append(weight.text)
        named = {"separate": separate, "returned": [weight.text for weight in returned], "skip": skip}
        options = [f"{option}=[{', '.join(map(_key, texts))}]" for option, texts in named.items() if texts]
        if separate and len(separate) == sum(weight.gradient is not None for weight in code.weights):
            options[0] = "separate=True"
        targets = ["_" if weight.gradient is None else self._put_gradient(weight.gradient) for weight in returned]
        return targets, options

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
        return list(dict.fromkeys(self.merged.get(r, r) for r in registers))

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


def _title(segment: DeviceSegment) -> str:
    """A segment's title: the list that it is an entry of, else "stage"."""
    lists = {re.sub(r"(?:^|\.)\d+(\..*)?$", "", op.of.path) for op in segment.ops if re.search(r"\d", op.of.path)}
    layers: set[str] = {m[0] for op in segment.ops if (m := re.match(r".*?\.\d+(?=\.|$)", op.of.path))}
    inside = all(f"{op.of.path}.".startswith((".", *(f"{name}." for name in layers))) for op in segment.ops)
    if len(layers) == 1 and len(lists) == 1 and inside:
        word = re.sub(r"s$", "", re.sub(r"\W+", "_", min(lists)).strip("_")) or "layer"
        return f"{word}_layer" if word in {*defined(), *reserved(), "device"} else word
    return "stage"


def _key(text: str) -> str:
    name, _, count = text[1:].partition('"')
    return f"({quoted(name)}{count})" if count else quoted(name)
