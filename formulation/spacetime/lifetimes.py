"""Lifetimes of the tensors of a program on its devices.

A tensor lives from the instruction that creates it to its last reader; saved tensors (`Operator.saved`) until the
backward has run. A recomputed operator saves nothing but a result that its group keeps; its recomputation does. A
swapped tensor is freed by its offload and allocated anew by its reload, once for all operators that save it. States on
the host are allocated for their update. Parameter gradients live until the last update. Views and in-place results
share the memory of their source; a parameter gradient that nothing else reads is summed over devices in place.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ...model.graph.pcg import PCG
from ...model.operators.operator import operator
from .mask import GRADIENT, RECOMPUTED, SAVED, STATES, VALUE, PTensor
from .materialized import (
    Accumulate,
    Collective,
    Instruction,
    Materialized,
    Register,
    Run,
    Slice,
    Zeros,
    waits_for,
    writes,
)
from .op import Op, Phase
from .price import Prices

MEMORY = ("inputs", "weights", "states", "gradients", "activations", "transients")
"""Kinds of memory: batch and buffers, parameters, optimizer states, parameter gradients, tensors saved for backward,
and all other tensors, such as gradients of activations and communication buffers."""

_AFTER_FORWARD = (Phase.RECOMPUTE, Phase.BACKWARD, Phase.WEIGHT)
_ROOM = {"all_reduce": 0, "reduce": 0, "all_gather": 1, "reduce_scatter": 1, "all_to_all": 2}
"""Contiguous staging copies, in units of the larger of input and output, while a collective runs."""

_SAME_GRADIENT = {"view", "permute", "expand", "contiguous", "detach", "add"}
"""Operators whose backward passes the gradient on unchanged if its size stays."""


@dataclass(slots=True)
class Span:
    """An allocation that lives from the start of the first instruction that touches it to the end of the last.

    `tensor`: what lies in it; of kind SAVED it is what an operator keeps besides its operands and result, of a
    transfer (`staging`) a copy while it runs.
    """

    size_bytes: int
    kind: str
    tensor: PTensor
    touched: list[int] = field(default_factory=list)  # instruction indices
    staging: bool = False


@dataclass(frozen=True, slots=True)
class Lifetimes:
    """Memory of one device: permanent bytes by kind, and spans. `moved`: bytes of every offload and reload."""

    always: Mapping[str, int]
    spans: tuple[Span, ...]
    moved: Mapping[int, int]


def lifetimes(program: Materialized, device: int, prices: Prices, whole: PCG) -> Lifetimes:
    """The memory of one device of a program; `whole`: the graph of all samples of a step."""
    return _Device(program.devices[device], prices, whole).run()


class _Device:
    def __init__(self, instructions: Sequence[Instruction], prices: Prices, whole: PCG) -> None:
        self.instructions, self.prices, self.pcg = instructions, prices, prices.graph.pcg
        self.spans: list[Span] = []
        self.of: dict[Register, Span] = {}
        self.held: dict[Op, list[Span]] = {}  # by forward operator
        self.kept: dict[Op, Span] = {}  # results that selective recomputation keeps, by forward operator
        self.host: dict[int, Span | None] = {}  # by id of the offloaded span: its reloaded span
        self.moved: dict[int, int] = {}
        self.updating: list[Span] = []  # gradients, alive until the last update at `updated`: they are clipped together
        self.updated = 0
        self.rows: dict[int, list[Span]] = {}  # sparse gradients that were added to one, by id of its span
        self.last_read = {register: at for at, x in enumerate(instructions) for register in waits_for(x)}
        self.always = dict.fromkeys(MEMORY, 0)
        self.always["inputs"] = sum(whole.nodes[i].numel * self._item(i) for i in prices.graph.given)

    def run(self) -> Lifetimes:
        for index, instruction in enumerate(self.instructions):
            for register in waits_for(instruction):
                self.of[register].touched.append(index)
            match instruction:
                case Run(op):
                    self._task(index, op, instruction)
                case Zeros(target, omitted=True):
                    self.of[target] = self._new(0, "transients", index, target.tensor)
                case Slice(target, source, False) | Accumulate(target, source, True):
                    self.of[target] = self.of[source]
                case Accumulate(target, source) if target.tensor.node in self.prices.rows.tables:
                    self.rows.setdefault(id(self.of[target]), []).append(self.of[source])
                case Collective(kind="broadcast", source=Register() as source, target=target):
                    self.of[target] = self.of[source]
                case Collective(kind="all_reduce" | "reduce", source=Register() as source, target=target) if (
                    self.prices.graph.of_parameter(target.tensor, GRADIENT) and self.last_read[source] == index
                ):
                    self.of[target] = self.of[source]
                case Collective(kind="reduce", source=Register() as source, target=target) if source == target:
                    self._new(self.prices.register_bytes(source), "transients", index, target.tensor)  # its copy
                case Collective(kind=kind, source=Register() as source, target=target):
                    room = max(map(self.prices.register_bytes, (source, target)))
                    self._new(_ROOM[kind] * room, "transients", index, target.tensor).staging = True
            for register in writes(instruction):
                if register not in self.of:
                    lasting = self.prices.graph.of_parameter(register.tensor, GRADIENT)
                    kind = "gradients" if lasting else "transients"
                    self.of[register] = self._new(self.prices.register_bytes(register), kind, index, register.tensor)
        for span in self.updating:
            span.touched.append(self.updated)
        return Lifetimes(self.always, tuple(self.spans), self.moved)

    def _task(self, index: int, op: Op, run: Run) -> None:
        match op.phase:
            case Phase.STORE:
                self.always["weights"] += self.prices.stored_bytes(op)
                self.of |= {w: Span(0, "weights", w.tensor) for w in run.writes if w is not None}
            case Phase.FORWARD | Phase.RECOMPUTE:
                self._forward(index, op, run)
            case Phase.BACKWARD | Phase.WEIGHT:
                self._backward(index, op, run)
            case Phase.OFFLOAD | Phase.RELOAD:
                self._swap(index, op)
            case Phase.UPDATE:
                if op.swapped is None:
                    self.always["states"] += self.prices.states_bytes(op)
                else:
                    self._new(self.prices.states_bytes(op), "states", index, PTensor(STATES, op.node))
                self.of |= {w: self.of[run.reads[1]] for w in run.writes if w is not None}  # in place
                gradient = self.of[run.reads[0]]
                self.updating += [gradient, *self.rows.get(id(gradient), ())]
                self.updated = index
        if op.phase in _AFTER_FORWARD:
            for register in run.reads:
                if register.tensor.kind in (VALUE, RECOMPUTED):
                    self.of[register].kind = "activations"

    def _forward(self, index: int, op: Op, run: Run) -> None:
        nodes, entry, (write,) = self.pcg.nodes, operator(op.of.op), run.writes
        moved = [p for p, source in enumerate(op.of.inputs) if source not in self.prices.graph.given]
        read = {p: self.of[r] for p, r in zip(moved, run.reads, strict=True)}
        result = PTensor(RECOMPUTED if op.phase is Phase.RECOMPUTE else VALUE, op.node)
        if not entry.passes and len(op.of.inputs) == 1:
            own = read.get(0) or Span(0, "inputs", result)
        elif op.forward is not None and op.forward in self.kept:
            own = self.kept[op.forward]
            own.kind = "activations"
            own.touched.append(index)
        else:
            own = self._new(op.mask(None).numel * self._item(op.node), "transients", index, result)
        if write is not None:
            self.of[write] = own
        if op.is_kept and op.forward is None:
            self.kept[op] = own
        if op.group is None or op.phase is Phase.RECOMPUTE:
            weights = [span for p, span in read.items() if nodes[op.of.inputs[p]].op == "parameter"]
            saved = self.prices.saved(op, stored=all(span.kind == "weights" for span in weights))
            held = [read[p] for p in saved.operands if p in read] + ([own] if saved.output else [])
            held += [read[p] for p in self.prices.retained(op) if p in read]
            if saved.own_bytes:
                held.append(self._new(saved.own_bytes, "transients", index, PTensor(SAVED, op.node)))
            self.held[op.forward or op] = list({id(span): span for span in held if span.size_bytes}.values())

    def _backward(self, index: int, op: Op, run: Run) -> None:
        assert op.forward is not None
        for span in self.held.get(op.forward, ()):
            span.kind = "activations"
            span.touched.append(index)
        for (_, operand), write in zip((w.via or (0, 0) for w in op.writes), run.writes, strict=True):
            if write is not None and write.tensor.node in self.prices.rows.tables:
                size = self.prices.rows.gradient_bytes(op.forward)
                self.of[write] = self._new(size, "gradients", index, write.tensor)
            if write is None or not run.reads:
                continue
            same = op.of.op in _SAME_GRADIENT and write.mask.numel == run.reads[0].mask.numel
            if same or op.of.op == "cat" or (op.of.op == "sub" and not operand):
                self.of[write] = self.of[run.reads[0]]

    def _swap(self, index: int, op: Op) -> None:
        """Offload spans not yet on the host, or reload those not yet back."""
        assert op.forward is not None
        out, moved = op.phase is Phase.OFFLOAD, 0
        held = self.held.get(op.forward, [])
        for number, span in enumerate(held):
            if out:
                span.kind = "activations"
                span.touched.append(index)
                moved += 0 if id(span) in self.host else span.size_bytes
                self.host.setdefault(id(span), None)
                continue
            back = self.host[id(span)]
            if back is None:
                back = self.host[id(span)] = self._new(span.size_bytes, "activations", index, span.tensor)
                moved += span.size_bytes
            back.touched.append(index)
            held[number] = back
        self.moved[index] = moved

    def _new(self, size_bytes: int, kind: str, index: int, tensor: PTensor) -> Span:
        self.spans.append(Span(size_bytes, kind, tensor, [index]))
        return self.spans[-1]

    def _item(self, node: int) -> int:
        return self.prices.item(PTensor(VALUE, node))
