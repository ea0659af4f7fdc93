"""The registry of operators: each is one entry, from which capture, planning, rules, emission and verification follow.

An entry gives the index notation, what is saved for backward, the work beyond the notation's products, the PyTorch
expression that computes it, and what rules know of it. Strategies, their backward communication and legality are
derived (`formulation/strategies/strategy.py`), never listed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from ..graph.notation import Access, Notation, accesses, instantiate, names_of
from ..graph.pcg import SOURCES, Node
from ..registry import Registry
from .algebra import Algebra, Rewriting
from .keywords import literal

if TYPE_CHECKING:
    from torch import Tensor

NodeNotation: TypeAlias = str | Callable[[Node, tuple[Node, ...]], str]


class LookUp(NamedTuple):
    """The operand whose entries ids name, how many elements are read, and its last dims, which are read together."""

    operand: int
    elements: int
    row: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Operator:
    """One operator.

    `operands` names the inputs in order as the notation does; the last ones may be missing (or the
    attribute `operands` selects them). `view`: the output has the input's elements in row-major order under another
    shape, so layouts pass through and nothing is computed. `saved` lists what autograd keeps: operand names, `y`,
    `mask`, a byte for every element of the first operand, `noise`, `indices`, an int64 for every element of the
    output, and `gate`, a tensor of the output's size, or as many as `gates` says; `saved_for` pairs such an operand
    with the one without whose gradient it is not kept after all. `emit` is
    PyTorch source with operand names and attributes in braces, or a function that returns it. `creates`: a constant
    made from the attributes alone, whole on every rank. `passes`: bytes moved relative to reading the inputs and
    writing the output once (0: a view of memory). `scratch`: further elements that the backward writes and reads.
    `random` names the attribute that only nodes which draw random numbers have; their attribute `site` counts the
    calls. The numbers are functions of seed, step, site and element, or of nodes with the attribute `native` torch's
    own, which takes `native_passes`.
    `launches`: kernels one after another, forward and again backward, where they are more than one. `called_back`: what
    backward calls of PyTorch, where that is not as many kernels as forward has. `fuses`: `torch.compile` makes one
    kernel of it and of others next to it that fuse. `masked`: the operator ends with an activation, whose backward is a
    kernel of its own. `split` gives the cost of having a `part` (0 to 1) of an index: the factor by which a rank's work
    exceeds that share, and the elements that it makes and keeps for backward. `transfer`: it hands a tensor to another
    pipeline stage or has it from there; `message`: and takes part in the message. `updates`
    lists operands that are buffers and change in place. `reference` computes the whole tensor in PyTorch where `emit`
    is not an expression that does. `algebra` says what rules know of the operator, `rewriting` how planning rewrites it
    (None: never). `captures` names the library's operator that capture takes for this one (`aten::atan`): its tensors
    are the operands in order, `attributes` its other relevant arguments (numbers).
    """

    name: str
    operands: tuple[str, ...]
    notation: NodeNotation = ""
    emit: str | Callable[[Node, Sequence[str]], str] = ""
    saved: tuple[str, ...] = ()
    saved_for: tuple[tuple[str, str], ...] = ()
    gates: Callable[[Node, tuple[Node, ...]], int] | None = None
    flops: Callable[[Node, tuple[Node, ...]], int] | None = None
    scratch: Callable[[Node, tuple[Node, ...]], int] | None = None
    split: Callable[[Node, tuple[Node, ...], str, float], tuple[float, int]] | None = None
    passes: float = 1.0
    native_passes: float | None = None
    fuses: bool = False
    masked: bool = False
    random: str = ""
    view: bool = False
    creates: bool = False
    launches: Callable[[Node, tuple[Node, ...]], int] | None = None
    called_back: Callable[[Node, tuple[Node, ...]], int] | None = None
    matmul: bool = False
    variadic: bool = False
    transfer: bool = False
    message: bool = False
    updates: tuple[str, ...] = ()
    reference: Callable[[Node, Sequence[Tensor]], Tensor] | None = None
    algebra: Algebra = field(default_factory=Algebra)
    rewriting: Rewriting | None = None
    captures: str = ""
    attributes: tuple[str, ...] = ()

    def named(self, node: Node) -> tuple[str, ...]:
        """The operand names of a node's inputs, in order."""
        if self.variadic:
            return tuple(f"x{i}" for i in range(len(node.inputs)))
        names: tuple[str, ...] = node.get("operands") or self.operands[: len(node.inputs)]
        if len(names) != len(node.inputs):
            raise ValueError(f"{self.name} takes {len(self.operands)} inputs, not {len(node.inputs)}")
        return names

    def expression(self, node: Node, names: Sequence[str], dtype: str) -> str:
        """PyTorch source that computes a node from operands of these names, `dtype` being the text of its dtype."""
        if callable(self.emit):
            return self.emit(node, names)
        values = {"shape": repr(node.shape), **{key: literal(key, value) for key, value in node.attributes}}
        return self.emit.format(**dict(zip(self.named(node), names, strict=True)), **values | {"dtype": dtype})

    def kept(self, node: Node, inputs: tuple[Node, ...]) -> tuple[str, ...]:
        """The entries of `saved` that autograd keeps, given which inputs have gradients."""
        if not node.gradient:
            return ()
        given = {name for name, source in zip(self.named(node), inputs, strict=True) if source.gradient}
        needless = {name for name, other in self.saved_for if other not in given}
        return tuple(name for name in self.saved if name not in needless)

    def gate_count(self, node: Node, inputs: tuple[Node, ...]) -> int:
        """The tensors of the output's size that an entry `gate` of `saved` stands for."""
        return 1 if self.gates is None else self.gates(node, inputs)

    def semantics(self, node: Node, inputs: tuple[Node, ...]) -> Notation:
        """The notation instantiated to this node's shapes. Raises ValueError if they do not fit."""
        text = self.notation if isinstance(self.notation, str) else self.notation(node, inputs)
        shapes = {name: source.shape for name, source in zip(self.named(node), inputs, strict=True)}
        return instantiate(text, shapes, node.shape)

    def moved(self, node: Node) -> float:
        """`passes` of a node: bytes that it moves relative to reading its inputs and writing its output once."""
        native = self.native_passes if node.get("native") else None
        return self.passes if native is None else native

    def kernels(self, node: Node, inputs: tuple[Node, ...]) -> int:
        """Kernels that run one after another, in forward and again in backward."""
        return 1 if self.launches is None else self.launches(node, inputs)

    def calls(self, node: Node, inputs: tuple[Node, ...]) -> tuple[int, int]:
        """Calls of PyTorch in forward, and in backward: one a kernel, unless `called_back` says how many."""
        forward = self.kernels(node, inputs) if self.passes else 0
        if not node.gradient or not forward:
            return forward, 0
        return forward, forward if self.called_back is None else self.called_back(node, inputs)

    def looked_up(self, node: Node, inputs: tuple[Node, ...]) -> LookUp | None:
        """What a look-up reads, otherwise None."""
        if self.view or self.creates:
            return None
        notation = self.semantics(node, inputs)
        for access in (a for term in notation.terms for a in accesses(term)):
            for place, ids in access.gathers:
                names = {*names_of(access.indices), *names_of(ids.indices)} - {access.indices[place], "1"}
                elements, own = prod(notation.sizes[i] for i in names), {*names_of(ids.indices)}
                dims = range(place + 1, len(access.indices))
                apart = max((d for d in dims if access.indices[d] in own), default=place)
                return LookUp(self.named(node).index(access.operand), elements, tuple(dims[apart - place :]))
        return None

    def check(self, node: Node, inputs: tuple[Node, ...]) -> None:
        """Raise ValueError unless the node's shapes fit its operator."""
        if self.creates:
            if inputs:
                raise ValueError(f"{self.name} takes no inputs, not {len(inputs)}")
        elif self.view:
            if len(inputs) != 1 or inputs[0].numel != node.numel:
                raise ValueError(f"a view of {[i.shape for i in inputs]} cannot have shape {node.shape}")
        else:
            self.semantics(node, inputs)

    def work(self, node: Node, inputs: tuple[Node, ...]) -> int:
        """Forward floating-point operations of the whole tensor: 2 per multiply-add."""
        if self.flops is not None:
            return self.flops(node, inputs)
        if self.view or self.creates:
            return 0
        notation = self.semantics(node, inputs)
        total = node.numel
        for term in notation.terms:
            products = [f for f in term.factors if isinstance(f, Access) and not f.gathers]
            if len(products) > 1 and term.sums:
                indices = {i for f in products for i in names_of(f.indices)} - {"1"}
                total += 2 * prod(notation.sizes[i] for i in indices)
        return total


_REGISTRY = Registry[Operator]("operator", "partita.operators", f"{__package__}.families")


def register(entry: Operator) -> Operator:
    """Register an operator. Raises ValueError if the name is taken."""
    return _REGISTRY.add(entry)


def operator(name: str) -> Operator:
    """The entry of an operator. Raises PartitaError that lists the known ones."""
    return _REGISTRY.find(name)


def find_operator(name: str) -> Operator | None:
    """The entry of an operator, None for an unknown one."""
    _REGISTRY.load()
    return _REGISTRY.get(name)


def is_random(node: Node) -> bool:
    """True if a node draws random numbers at a call site that is counted."""
    name = "" if node.op in SOURCES else operator(node.op).random
    return bool(name) and node.get(name) is not None


def is_native(node: Node) -> bool:
    """True if torch's own generator draws a node's random numbers."""
    return is_random(node) and bool(node.get("native"))


def along(node: Node, dims: Sequence[int], function: str) -> str:
    """The notation of `function` that needs `dims` whole, in a result of the operands' rank; other dims are free."""
    names = [f"d{i}" for i in range(len(node.shape))]
    inside = ", ".join(":" if d in dims else name for d, name in enumerate(names))
    arguments = ", ".join(f"{x}[{inside}]" for x in operator(node.op).named(node))
    return f"y[{', '.join(names)}] = {function}({arguments})[{', '.join(names[d] for d in dims)}]"


def along_dim(function: str) -> Callable[[Node, tuple[Node, ...]], str]:
    """As `along`, for the attribute `dim`."""
    return lambda node, inputs: along(node, (node["dim"],), function)


def algebra_of(name: str) -> Algebra:
    """What rules know of an operator; the default for operators that only rules have."""
    entry = find_operator(name)
    return entry.algebra if entry is not None else _UNKNOWN


_UNKNOWN = Algebra()


def rewriting_of(name: str) -> Rewriting | None:
    """How an operator is rewritten; None if it is not."""
    entry = find_operator(name)
    return entry.rewriting if entry is not None else None


def operators() -> tuple[Operator, ...]:
    """All registered operators, by name."""
    return _REGISTRY.every()


def capturing(name: str) -> Operator | None:
    """The entry whose `captures` is the library's operator `name`, such as `aten::atan`."""
    return next((entry for entry in operators() if entry.captures == name), None)
