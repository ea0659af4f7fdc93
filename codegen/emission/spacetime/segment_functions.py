"""The function of a segment: plain code over its arguments, its weights by name, and the parts that it computes.

Numbers in the names of weights become arguments, so that layers and stages that are alike are one function.
"""

import re
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from ....formulation.spacetime.dtypes import PRECISE, constants, precise
from ....formulation.spacetime.graph import Graph
from ....formulation.spacetime.materialized import Accumulate, Add, Register
from ....formulation.spacetime.op import Cut, Op, Phase
from ....model.graph.dtypes import FLOATS
from ....model.graph.layout import P, S
from ....model.graph.pcg import PCG
from ....model.operators.operator import is_random, operator
from ..common.conversions import Used
from ..common.data import part_text
from ..common.expressions import expression
from ..common.losses import counted
from ..common.names import identifier, roles
from ..common.operator_calls import OperatorCall
from ..common.regathered_weights import PRODUCTS
from ..common.rolled_lines import COMMA, Number, Piece, line, mapped, mark, rolled
from ..common.statements import FunctionWriter, Statement
from ..common.text import enclosed
from .data_flow import Flow
from .segments import DeviceSegment

BASES = ("layer", "layer2", "layer3", "layer4")
_RESERVED = ("at", "i", "j", *BASES)


@dataclass(frozen=True, slots=True)
class Weight:
    """A weight of a segment: its name there, its first reader (operator and operand), its register, and that of its
    gradient if it is read."""

    text: str
    reader: tuple[Op, int]
    register: Register
    gradient: Register | None
    passed: bool = False  # backward goes through it all the same, since other devices wait there

    @property
    def goes_back(self) -> bool:
        """True if backward gives its gradient, read or not."""
        return self.gradient is not None or self.passed


@dataclass(frozen=True, slots=True)
class Out:
    """A result of a segment: its operator, and the terms of its gradient (None: no gradient)."""

    op: Op
    gradients: tuple[Register, ...] | None


@dataclass(slots=True)
class Code:
    """A segment's function, and the arguments of its call, by operator and operand.

    `name`: that of the function; segments that compute the same share one.
    """

    segment: DeviceSegment
    name: str = ""
    body: tuple[Piece, ...] = ()  # its numbers relative to the bases
    arguments: tuple[str, ...] = ()
    values: list[tuple[Op, int]] = field(default_factory=list)  # have gradients
    constants: list[tuple[Op, int]] = field(default_factory=list)
    weights: list[Weight] = field(default_factory=list)
    outs: list[Out] = field(default_factory=list)
    bases: tuple[tuple[str, int], ...] = ()  # the numbers that it is called with
    parts: tuple[tuple[str, Op, Cut], ...] = ()  # the names of parts there, and of which operator they are

    @property
    def has_gradients(self) -> bool:
        """True if backward of the segment gives anything that is read, or that others wait for."""
        return bool(self.values) or any(weight.goes_back for weight in self.weights)


class Segments(FunctionWriter):
    """Writes the function of one segment."""

    def __init__(
        self,
        flow: Flow,
        segment: DeviceSegment,
        merged: Mapping[Register, Register],
        used: Used,
        narrow: bool,
    ) -> None:
        pcg = flow.pcg
        super().__init__(pcg, _RESERVED, _roles(pcg))
        self.flow, self.segment, self.merged, self.used, self.pcg = flow, segment, merged, used, pcg
        self.narrow = narrow
        self.inside = {flow.result(op): op for op in segment.ops if flow.result(op) is not None}
        self.made: dict[Any, int] = {}
        self.names: dict[tuple[Op, int], str] = {}
        self.recorded = any(flow.of(op, Phase.BACKWARD) is not None for op in segment.ops)
        self.code = Code(segment, outs=self._outs())
        self.cuts: dict[tuple[str, int, int, int], str] = {}

    def key(self) -> Hashable:
        """Equal for segments with one function: they differ in registers and in the numbers of parts alone.

        So do the micro-batches of a layer, and often the ranks that compute it.
        """
        numbers: dict[object, int | None] = {None: None}  # what has no gradient is unlike what has one

        def number(of: object) -> int | None:
            return numbers.setdefault(of, len(numbers))

        flow, found = self.flow, list[Hashable]()
        for op in self.segment.ops:
            operands = (
                (p, number(register), number(self._gradient(op, p))) for p, register in flow.operands(op).items()
            )
            cuts = (
                (cut.row, cut.label, cut.parts, cut.total, number(own))
                for cut, own in zip(op.cuts, _cut_keys(op), strict=True)
            )
            again = tuple(register.tensor.node for register in flow.again(op))
            kinds = op in flow.identities, op.split, op.computed_once, flow.of(op, Phase.BACKWARD) is None, again
            found.append((op.node, kinds, tuple(operands), number(flow.result(op)), tuple(cuts)))
        at = {op: place for place, op in enumerate(self.segment.ops)}
        return tuple(found), tuple(at[out.op] for out in self.code.outs)

    def like(self, other: Code) -> Code:
        """The code of the segment, from that of one with an equal key."""
        own = dict(zip(other.segment.ops, self.segment.ops, strict=True))

        def moved(leaf: tuple[Op, int]) -> tuple[Op, int]:
            return own[leaf[0]], leaf[1]

        def weight(of: Weight) -> Weight:
            op, operand = moved(of.reader)
            register, gradient = self.flow.operands(op)[operand], self._gradient(op, operand)
            return Weight(of.text, (op, operand), register, gradient, of.passed)

        return replace(
            other,
            segment=self.segment,
            values=list(map(moved, other.values)),
            constants=list(map(moved, other.constants)),
            weights=list(map(weight, other.weights)),
            outs=self.code.outs,
            parts=tuple((name, own[op], own[op].cuts[op.cuts.index(cut)]) for name, op, cut in other.parts),
        )

    def write(self) -> Code:
        """The code of the segment."""
        counts = counted(self.pcg)
        for op in self.segment.ops:
            self._operator(op, op.node in counts)
        results = [self.made[out.op] for out in self.code.outs]
        body = self.lines(results, 4, lambda texts: f"return {', '.join(texts) or '()'}")
        text = "\n".join(body)
        text = re.sub(r"\bself\.dtype\b", "at.dtype", re.sub(r"\bmesh\.device\b", "at.device", text))
        text = re.sub(r"(?<=, )mesh, ", "at, ", text)  # of dropout
        text = re.sub(r",\s+training=mesh\.training\b", "", text)  # of batch norms: there is only training
        text = re.sub(r"\b(mesh|self)\.training\b", "True", text)
        parts = {self._axis(op, cut): (op, cut) for op in self.segment.ops for cut in op.cuts}
        self.code.parts = tuple((name, *of) for name, of in parts.items() if re.search(rf"\bat\.{name}\b", text))
        self.code.body, self.code.bases = _body(text)
        self.code.arguments = tuple(self.names[leaf] for leaf in (*self.code.values, *self.code.constants))
        return self.code

    # Statements

    def _operator(self, op: Op, is_counted: bool) -> None:
        operands = []
        registers, zeros = self.flow.operands(op), self.flow.identities.get(op)
        for operand, source in enumerate(op.of.inputs):
            register = registers.get(operand)
            if register is not None and register is zeros:
                continue
            if register is None:
                operands.append(self._source(op, operand, source))
            elif register in self.inside and self.inside[register] in self.made:
                operands.append(self.made[self.inside[register]])
            else:
                operands.append(self._argument(op, operand, register))
        if zeros is not None:
            self.made[op] = self.add(Statement(_identity, tuple(operands), "view", self._value_name(op.node), op.node))
            return
        if is_counted:
            operands.append(self._leaf(("count", op.node), "weight", f'at.counts["{op.of.name}"]', op.node))
        operands = self._rounded(op, operands)
        call, node, entry = self._call(op), op.of, operator(op.of.op)
        weights = [p for p, i in enumerate(node.inputs) if self.pcg.nodes[i].op == "parameter"]
        deferred = op.split and any((op, p) in self.flow.made for p in weights)

        once, changing = op.computed_once, self._changing(op)

        def written(texts: Sequence[str]) -> str:
            return expression(call, texts).replace("running=(", f"running={changing}")

        def render(texts: Sequence[str]) -> str:
            if not deferred:
                text = self._in_dtype(op.node, written(texts))
                return f'at.once("{node.name}", lambda: {text})' if once else text
            names = [*entry.named(node), *(["count"] if is_counted else [])]
            values = [p for p in range(len(texts)) if p not in weights]
            given = ", ".join(names[p] for p in (*values, *weights))
            line = written(names)
            plain = line.partition("(")[0]
            function = plain if line == f"{plain}({given})" else f"(lambda {given}: {line})"
            lists = (", ".join(texts[p] for p in group) for group in (values, weights))
            return f"at.weighted({function}, {', '.join(f'[{text}]' for text in lists)})"

        view = entry.view or node.op in ("permute", "expand", "contiguous", "slice", "part", "detach")
        kind = "op" if deferred else "view" if view else "unary" if len(operands) == 1 else "op"
        statement = Statement(render, tuple(operands), kind, self._value_name(op.node), op.node)
        statement.without_gradient = self.recorded and self._unrecorded(op.node)
        self.made[op] = self.add(statement)

    # Precision: constants are computed in at least float32 and rounded at the end

    def _rounded(self, op: Op, operands: Sequence[int]) -> list[int]:
        """The operands, with those in the compute dtype that are constants in at least float32."""
        constant = constants(self.pcg)
        if not self.narrow or constant[op.node]:
            return [*operands]
        found = []
        for operand, source in zip(operands, op.of.inputs, strict=False):
            if constant[source] and source in precise(self.pcg):
                key = ("rounded", operand)
                if key not in self.made:
                    name = self._value_name(source)
                    self.made[key] = self.add(Statement(_in_compute_dtype, (operand,), "convert", name, source))
                operand = self.made[key]
            found.append(operand)
        return [*found, *operands[len(found) :]]

    def _in_dtype(self, node: int, text: str) -> str:
        """The text of a node, in the dtype of its register."""
        found, nodes = self.pcg.nodes[node], self.pcg.nodes
        if not self.narrow or found.dtype != "float32":
            return text
        wide = node in precise(self.pcg)
        if constants(self.pcg)[node]:
            exact = (text if wide else text.removesuffix(".to(self.dtype)")).replace("self.dtype", "at.precision")
            return exact if wide else f"{enclosed(exact)}.to(at.dtype)"
        if wide:
            mixes = found.op not in PRECISE and not all(i in precise(self.pcg) for i in found.inputs)
            return f"{enclosed(text)}.to(at.precision)" if mixes else text
        whole = bool(found.inputs) and not any(nodes[i].dtype in FLOATS for i in found.inputs)
        return f"{enclosed(text)}.to(at.dtype)" if whole and "self.dtype" not in text else text

    def _leaf(self, key: object, kind: str, text: str, node: int, name: str = "") -> int:
        """The statement of a text without operands, the same for the same key."""
        if key not in self.made:
            self.made[key] = self.add(Statement(lambda _: text, (), kind, name or text, node))
        return self.made[key]

    def _argument(self, op: Op, operand: int, register: Register) -> int:
        """A value from outside: a weight by its name, else an argument, one per gradient."""
        source = op.of.inputs[operand]
        node = self.pcg.nodes[source]
        gradient = self._gradient(op, operand)
        key = (register, gradient)
        if key in self.made:
            return self.made[key]
        # Backward of what exchanges data goes through on all devices or none, whoever reads its gradients.
        waited = bool(op.exchanges) and node.gradient and self.recorded
        if source in self.flow.graph.kept:
            again = sum(w.text.startswith(f'"{node.name}"') for w in self.code.weights)
            text = f'"{node.name}"' + (f", {again}" if again else "")
            passed = gradient is None and waited
            self.code.weights.append(Weight(text, (op, operand), register, gradient, passed))
            return self._leaf(key, "weight", f"at[{text}]", source)
        name = self.free(self._value_name(source), set(self.names.values()), set())
        (self.code.values if gradient is not None or waited else self.code.constants).append((op, operand))
        self.names[op, operand] = name
        return self._leaf(key, "argument", name, source)

    def _gradient(self, op: Op, operand: int) -> Register | None:
        """The register of an operand's gradient, if it is read."""
        gradient = self.flow.made.get((op, operand))
        return self.merged.get(gradient, gradient) if gradient is not None else None

    def _source(self, op: Op, operand: int, source: int) -> int:
        """The part of an input or buffer, which are whole on every device."""
        node = self.pcg.nodes[source]
        local = self._call(op).source(operand)
        text = f'at.inputs["{node.name}"]' if node.op == "input" else f'at["{node.name}"]'
        if node.op == "buffer" and self.narrow and constants(self.pcg)[op.node]:
            text = f'at.buffer("{node.name}")'
        text = part_text(text, local)
        if node.op == "input" and node.dtype in FLOATS:
            text = f"{text}.to(at.dtype)"
        if "cut(" in text:
            self.used.primitives.add("cut")
        for cut in op.cuts:
            if cut.row.inputs[operand] == P:  # of addends the first is the value, the others are zero
                text = f"{text}.mul(at.{self._axis(op, cut)}.index == 0)"
        if "cut(" in text or ".mul(" in text:
            return self._leaf((source, text), "view", text, source, identifier(node.name.rpartition(".")[2]))
        return self._leaf((source, text), "weight", text, source)

    def _call(self, op: Op) -> OperatorCall:
        """The call of an operator. A product must not copy the operands that are fetched again for backward."""
        again = {register.tensor.node for register in self.flow.again(op)} if op.of.op in PRODUCTS else set()
        return replace(
            operator_call(self.flow.graph, op.node, self.used, op.cuts, mixed=self.narrow),
            axes=tuple(f"at.{self._axis(op, cut)}" for cut in op.cuts),
            specials=[(place, cut.row) for place, cut in enumerate(op.cuts) if cut in op.exchanges],
            dropout_site=f"at.site_{op.of['site']}" if is_random(op.of) else "",
            regathered=frozenset(place for place, source in enumerate(op.of.inputs) if source in again),
        )

    def _changing(self, op: Op) -> str:
        """The call in which a batch norm has its running statistics.

        They change by the first of several micro-batches; by all of them if each has statistics of its own.
        """
        if op.of.op != "batch_norm":
            return "("
        sums = op.of.inputs[1]
        if self.pcg.nodes[sums].get("parts", 1) == 1:
            return "at.changed("
        own = S(self.flow.graph.atoms[sums].of_dim(1)[-1])
        (axis,) = (self._axis(op, cut) for cut in op.cuts if cut.row.inputs[1] == own)
        self.used.helpers.add("statistics")
        return f"at.statistics(at.{axis}.index, {op.of['momentum']!r}, "

    def _axis(self, op: Op, cut: Cut) -> str:
        """The name of a cut within the function."""
        key = _cut_keys(op)[op.cuts.index(cut)]
        if key not in self.cuts:
            name = cut.label if cut.label.isidentifier() and cut.label not in _TAKEN else "part"
            count = sum(re.sub(r"\d+$", "", other) == name for other in self.cuts.values())
            self.cuts[key] = f"{name}{count + 1}" if count else name
        return self.cuts[key]

    # Results

    def _outs(self) -> list[Out]:
        """The results that others read; those with gradients come first."""
        flow, inside = self.flow, set(self.segment.ops)
        outs = []
        for op in self.segment.ops:
            given = flow.gradient(op)
            back: tuple[Register, ...] | None = None
            if given is not None:
                leaves, _ = flow.leaves(given)
                own = [x for x in leaves if x in flow.makers and flow.makers[x][0] in inside]
                back = tuple(x for x in leaves if x not in own) or None
                if back is not None and not own:
                    back = (given,)  # which is added up outside
            elif op.node == self.pcg.loss and flow.of(op, Phase.BACKWARD) is not None:
                back = ()
            results = ((flow.result(op, phase), phase) for phase in (Phase.FORWARD, Phase.RECOMPUTE))
            if (
                back is not None
                or op.node == self.pcg.loss
                or any(result is not None and flow.read_outside(result, phase, inside) for result, phase in results)
            ):
                outs.append(Out(op, back))
        return sorted(outs, key=lambda out: out.gradients is None)


def _cut_keys(op: Op) -> list[tuple[str, int, int, int]]:
    """What cuts of several operators have in common that have one name within a function."""
    return [(label, count, cut.parts, cut.number) for (label, count), cut in op.labels.items()]


def _identity(texts: Sequence[str]) -> str:
    return f"{enclosed(texts[0])}[...]"


def _in_compute_dtype(texts: Sequence[str]) -> str:
    return f"{enclosed(texts[0])}.to(at.dtype)"


# fmt: off
_TAKEN = (  # attributes of `at`, and what its makers are called with
    "at", "dtype", "precision", "device", "step", "inputs", "counts", "run", "weighted", "lane", "site", "self",
    "once", "function", "where", "values", "constants", "swap", "weights", "copied", "given", "tape", "leaves",
    "fetched", "keep",
)
# fmt: on


def operator_call(
    graph: Graph, index: int, used: Used, cuts: Sequence[Cut] = (), *, mixed: bool = False
) -> OperatorCall:
    """The call of a part of a node; its axes have no names yet. `mixed`: activations have 16 bits."""
    node, known = graph.pcg.nodes[index], graph.atoms
    return OperatorCall(
        node=node,
        sources=tuple(graph.pcg.nodes[i] for i in node.inputs),
        known=known[index],
        source_atoms=tuple(known[i] for i in node.inputs),
        inputs=tuple(tuple(cut.row.inputs[p] for cut in cuts) for p in range(len(node.inputs))),
        layout=tuple(cut.row.output for cut in cuts),
        sizes=tuple(cut.total for cut in cuts),
        axes=(),
        micro_batches=1,
        mixed=mixed,
        used=used,
    )


def merge(flow: Flow, segment: DeviceSegment) -> dict[Register, Register]:
    """Map gradients of one value that are only added up to the first of them: autograd adds them up itself."""
    first: dict[object, Register] = {}
    found: dict[Register, Register] = {}
    for op in segment.ops:
        for operand, register in flow.operands(op).items():
            gradient = flow.made.get((op, operand))
            readers = flow.readers[gradient] if gradient is not None else []
            if gradient is None or len(readers) != 1:
                continue
            sums = flow.instructions[readers[0]]
            match sums:
                case Add():
                    key: object = sums.target
                    while (far := sum_of(flow, key)) is not None:  # type: ignore[arg-type]
                        key = far
                case Accumulate():
                    key = sums.total
                case _:
                    continue
            found[gradient] = first.setdefault((register, key, flow.pcg.nodes[op.of.inputs[operand]].op), gradient)
    return found


def sum_of(flow: Flow, register: Register) -> Register | None:
    """The sum that is the only reader of a register."""
    readers = flow.readers[register]
    further = flow.instructions[readers[0]] if len(readers) == 1 else None
    return further.target if isinstance(further, Add) else None


@lru_cache(maxsize=8)
def _roles(pcg: PCG) -> Mapping[int, str]:
    return roles(pcg)


_NAMES = re.compile(r'at\["([^"]*)"')
_LAMBDA = re.compile(r"\blambda [\w, ]+:")
_SITE = re.compile(r"at\.site_(\d+)")


def _body(text: str) -> tuple[tuple[Piece, ...], tuple[tuple[str, int], ...]]:
    """Statements in loops over layers; list numbers and dropout call sites are relative to the smallest."""
    least: dict[str, int] = {}
    for name in _NAMES.findall(text):
        for prefix, part in _parts(name):
            if part.isdigit():
                least[prefix] = min(int(part), least.get(prefix, int(part)))
    lists = dict(zip(least, BASES, strict=False))
    bases = {lists[prefix]: number for prefix, number in least.items() if prefix in lists}
    sites = [int(site) for site in _SITE.findall(text)]
    bases |= {"site": min(sites)} if sites else {}

    def named(match: re.Match[str]) -> str:
        parts = (
            mark(lists[prefix], int(part)) if part.isdigit() and prefix in lists else part
            for prefix, part in _parts(match[1])
        )
        return f"at[⟪{'.'.join(parts)}⟫"

    marked = _SITE.sub(lambda m: mark("site", int(m[1])), _NAMES.sub(named, text))
    pieces: list[Piece] = []
    for statement in _statements(marked):
        one = line(_LAMBDA.sub(lambda m: m[0].replace(", ", COMMA), statement))
        pieces.append(mapped(one, lambda n: Number(n.role, n.constant - bases[n.role], ((n.role, 1),))))
    return tuple(rolled(pieces, names=False)), tuple(bases.items())


def _statements(text: str) -> list[str]:
    """Join statements that were broken into lines."""
    found: list[str] = []
    depth = 0
    for one in text.split("\n"):
        one = one[4:]
        if depth:  # a statement that was broken
            closing = one.lstrip()[:1] in (")", "]", "}")
            before = found[-1].removesuffix(",") if closing else found[-1] + (" " if found[-1].endswith(",") else "")
            found[-1] = before + one.strip()
        else:
            found.append(one)
        depth += sum(one.count(sign) for sign in "([{") - sum(one.count(sign) for sign in ")]}")
    return found


def _parts(name: str) -> Iterator[tuple[str, str]]:
    """The parts of a name between dots, each after the text before it without numbers."""
    prefix = ""
    for part in name.split("."):
        yield f"{prefix}.", part
        prefix += ".#" if part.isdigit() else f".{part}"
