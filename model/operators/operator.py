"""The registry of operators: each is one entry, from which capture, verification, planning and emission follow.

An entry gives the index notation, what is saved for backward, the work beyond the notation's products, and the
PyTorch expression that computes it. Strategies, their backward communication and their legality are derived
(`formulation.strategy`), never listed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import TypeAlias

from ..graph.notation import Access, Notation, accesses, instantiate, names_of
from ..graph.pcg import Node
from ..registry import Registry

NodeNotation: TypeAlias = str | Callable[[Node, tuple[Node, ...]], str]


@dataclass(frozen=True, slots=True, eq=False)
class Operator:
    """One operator.

    `operands` names the inputs in order as the notation does; those in `optional` may be missing at the end (or are
    selected by the attribute `operands`). `view`: the output is the input's elements in row-major order under another
    shape, so layouts pass through and nothing is computed. `saved` lists what autograd keeps: operand names, `y`,
    `mask`, a byte for every element of the first operand, `noise`, and `indices`, an int64 for every element of the
    output; `saved_for` pairs such an operand with the one without whose gradient it is not kept after all.
    `emit` is PyTorch source with operand names and attributes in braces, or a function that returns it. `creates`: a
    constant made from the attributes alone, whole on every rank. `passes`: bytes moved relative to reading the inputs
    and writing the output once (0: a view of memory). `scratch`: elements that the backward writes and reads
    besides. `masked`: the operator ends with an activation, whose backward is a kernel of its own. `split` says what it
    costs that a rank has a `part` (0 to 1) of an index: by how much its work is more than that share of it, and
    elements that it makes and keeps for backward. `transfer`: it hands a tensor on to another stage of a pipeline, or
    takes it from there. `updates` lists operands that are buffers and changed in place.
    `captures` names the library's operator that capture takes for this one (`aten::atan`): its tensors are the operands
    in order, `attributes` those of its other arguments (numbers) that matter.
    """

    name: str
    operands: tuple[str, ...]
    notation: NodeNotation = ""
    emit: str | Callable[[Node, Sequence[str]], str] = ""
    saved: tuple[str, ...] = ()
    saved_for: tuple[tuple[str, str], ...] = ()
    flops: Callable[[Node, tuple[Node, ...]], int] | None = None
    scratch: Callable[[Node, tuple[Node, ...]], int] | None = None
    split: Callable[[Node, tuple[Node, ...], str, float], tuple[float, int]] | None = None
    passes: float = 1.0
    masked: bool = False
    view: bool = False
    creates: bool = False
    matmul: bool = False
    variadic: bool = False
    transfer: bool = False
    updates: tuple[str, ...] = ()
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

    def kept(self, node: Node, inputs: tuple[Node, ...]) -> tuple[str, ...]:
        """What of `saved` autograd keeps of a node, whose inputs have gradients or not."""
        if not node.gradient:
            return ()
        given = {name for name, source in zip(self.named(node), inputs, strict=True) if source.gradient}
        needless = {name for name, other in self.saved_for if other not in given}
        return tuple(name for name in self.saved if name not in needless)

    def semantics(self, node: Node, inputs: tuple[Node, ...]) -> Notation:
        """The notation of this node, instantiated to its shapes. Raises ValueError where shapes do not fit."""
        text = self.notation if isinstance(self.notation, str) else self.notation(node, inputs)
        shapes = {name: source.shape for name, source in zip(self.named(node), inputs, strict=True)}
        return instantiate(text, shapes, node.shape)

    def looked_up(self, node: Node, inputs: tuple[Node, ...]) -> tuple[int, int] | None:
        """(input that is indexed by another, elements that are read of it), for an operator that looks something up."""
        if self.view or self.creates:
            return None
        notation = self.semantics(node, inputs)
        for access in (a for term in notation.terms for a in accesses(term)):
            for place, ids in access.gathers:
                names = {*names_of(access.indices), *names_of(ids.indices)} - {access.indices[place], "1"}
                return self.named(node).index(access.operand), prod(notation.sizes[i] for i in names)
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
        """Floating point operations forward, of the whole tensor: 2 for every multiply-add of a product."""
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


_REGISTRY = Registry[Operator]("operator", "partita.operators", __package__)


def register(entry: Operator) -> Operator:
    """Add an operator; a second one of the same name is a mistake (ValueError)."""
    return _REGISTRY.add(entry)


def operator(name: str) -> Operator:
    """The entry of an operator. Raises PartitaError that lists the known ones."""
    return _REGISTRY.find(name)


def operators() -> tuple[Operator, ...]:
    """All registered operators, by name."""
    return _REGISTRY.every()


def capturing(name: str) -> Operator | None:
    """The entry that says itself that it captures the library's operator `name`, such as `aten::atan`."""
    return next((entry for entry in operators() if entry.captures == name), None)
