"""Strategies and op-trans as rules: an operator equals the combination of its parts.

SuperScaler's op-trans splits an operator into parts: it states how each input is split and how the results combine
(§3.1). A row of a strategy states the same in letters, for one mesh axis. Both become the rule

    y = op(x, ..)  =>  y = combine(op(partition(x), replicate(w), ..))

which is proved like any other. Partial sums (`P`) are tensors of d replicas that the source reduces.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ...model.errors import PartitaError
from ...model.graph.atoms import atoms
from ...model.graph.layout import B, P, R, atom_of
from ...model.graph.notation import WHOLE, accesses
from ...model.graph.pcg import PCG, SOURCES, Attribute, Node
from ...model.operators.convolution import CONVOLUTIONS
from ...model.operators.operator import operator
from ..strategies.row import Row
from .rule import Apply, Rule, Tensor, Value

Cut: TypeAlias = "int | str"  # the dim that is split, "whole", or "addends" (partial sums)
WHOLE_CUT, ADDENDS = "whole", "addends"


@dataclass(frozen=True, slots=True)
class OpTrans:
    """An operator in `degree` parts.

    `inputs`, one per tensor: the dim that is split, "whole" (each part has a copy), or "addends" (each part has a
    partial sum). `output`: how the results combine, likewise. Tensors are those of the unsplit operator; for "addends"
    `rule` adds the replicas.
    """

    name: str
    op: str
    tensors: tuple[Tensor, ...]
    inputs: tuple[Cut, ...]
    output: Cut
    attributes: tuple[tuple[str, Value], ...] = ()
    degree: str | int = "d"

    def rule(self) -> Rule:
        """The rule that the combined parts equal the operator. Raises PartitaError for an invalid cut."""
        if len(self.inputs) != len(self.tensors):
            raise PartitaError(f"op-trans {self.name!r}: {len(self.inputs)} cuts for {len(self.tensors)} tensors")
        tensors, whole, parts = list[Tensor](), list[Apply](), list[Apply]()
        read, cut = list[str](), list[str]()
        for tensor, how in zip(self.tensors, self.inputs, strict=True):
            name = tensor.name
            if how == ADDENDS:
                tensors.append(Tensor(name, tensor.dims, tensor.degrees, self.degree))
                whole.append(Apply("reduce", (name,), (f"{name}_sum",), (("degree", self.degree),)))
                read.append(f"{name}_sum")
                cut.append(name)
                continue
            tensors.append(tensor)
            read.append(name)
            cut.append(f"{name}_part")
            parts.append(self._move(how, ("partition", "replicate"), name, f"{name}_part"))
        whole.append(Apply(self.op, tuple(read), ("y",), self.attributes))
        parts.append(Apply(self.op, tuple(cut), ("y_part",), self.attributes))
        outputs = (("y", "y"),)
        if self.output == WHOLE_CUT:
            whole.append(Apply("replicate", ("y",), ("y_all",), (("degree", self.degree),)))
            outputs = (("y_all", "y_part"),)
        elif self.output == ADDENDS:
            parts.append(Apply("reduce", ("y_part",), ("y",), (("degree", self.degree),)))
        else:
            parts.append(self._move(self.output, ("combine", ""), "y_part", "y"))
        return Rule(self.name, tuple(tensors), tuple(whole), tuple(parts), outputs, note="op-trans")

    def _move(self, how: Cut, ops: tuple[str, str], source: str, target: str) -> Apply:
        if how == WHOLE_CUT:
            return Apply(ops[1], (source,), (target,), (("degree", self.degree),))
        if not isinstance(how, int):
            raise PartitaError(f"op-trans {self.name!r}: a cut is a dim, 'whole' or 'addends', not {how!r}")
        return Apply(ops[0], (source,), (target,), (("dim", how), ("degree", self.degree)))


def row_rule(pcg: PCG, index: int, row: Row, name: str = "") -> Rule | None:
    """The rule of a strategy's row, for all sizes of the node's indices.

    None if the row does not split dims into blocks: sources, constants, special rows, and strided splits (of an inner
    atom of a dim).
    """
    node = pcg.nodes[index]
    if node.op in SOURCES or operator(node.op).creates or operator(node.op).view or row.special or not node.inputs:
        return None
    if node.op == "expand":  # its size is the node's, not an attribute
        return None
    known = atoms(pcg)
    cuts: list[Cut] = []
    for letter, at in zip((*row.inputs, row.output), (*node.inputs, index), strict=True):
        if letter in (R, B):
            cuts.append(WHOLE_CUT)
        elif letter == P:
            cuts.append(ADDENDS)
        else:
            found = [
                d for d in range(len(known[at].dims)) if known[at].of_dim(d)[:1] == range(a := atom_of(letter), a + 1)
            ]
            if not found:
                return None
            cuts.append(found[0])
    tensors = _tensors(node, [pcg.nodes[i] for i in node.inputs])
    title = name or f"{node.op} {row.index[0] if row.index else 'whole'}"
    attributes = tuple((key, _value(value)) for key, value in node.attributes if value is not None)
    return OpTrans(title, node.op, tensors, tuple(cuts[:-1]), cuts[-1], attributes).rule()


def _value(value: Attribute) -> Value:
    """A node's attribute as a rule states it; None is left out."""
    if isinstance(value, tuple):
        return tuple(_value(v) for v in value if v is not None)
    assert value is not None
    return value


def _tensors(node: Node, inputs: Sequence[Node]) -> tuple[Tensor, ...]:
    """The inputs, sized by the letters of the notation; dims that must stay whole have names of their own."""
    entry = operator(node.op)
    line = entry.semantics(node, tuple(inputs))
    indices: dict[str, tuple[str, ...]] = {}
    for term in line.terms:
        for access in accesses(term):
            indices.setdefault(access.operand, access.indices)
            for _, inner in access.gathers:
                indices.setdefault(inner.operand, inner.indices)
    tensors = []
    for number, (operand, source) in enumerate(zip(entry.named(node), inputs, strict=True)):
        dims = [_size(i, f"{operand}{d}", source.shape[d]) for d, i in enumerate(indices.get(operand, ()))]
        if node.op in CONVOLUTIONS and operand == "w":  # padding and halos depend on the window
            dims[2:] = map(str, source.shape[2:])
        tensors.append(Tensor(f"x{number}", tuple(dims)))
    return tuple(tensors)


def _size(index: str, own: str, size: int) -> str:
    """The size of a dim: the symbol of its index, a product of several, or the number if it is no index."""
    if index == "1" or (index == WHOLE and size == 1):
        return str(size)
    if WHOLE in index.split() or index.startswith("@"):
        return f"n_{own}"
    return "*".join("n_" + re.sub(r"\W", "_", factor) for factor in index.split())
