"""Operator calls: a node with everything that its line depends on, and text that such lines share.

`whole_text` locates a rank's elements in the whole; numbers and dtypes become Python source.
"""

import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ....formulation.special import Splits
from ....model.graph.atoms import Atoms
from ....model.graph.dtypes import FLOATS
from ....model.graph.layout import Layout
from ....model.graph.pcg import Node
from ....model.operators.operator import operator
from .conversions import Local, Used
from .text import WIDTH, shape_text, tuple_text

LONGEST_LIST = 80
"""Characters of a list of numbers that is written where it is used."""


@dataclass(frozen=True)
class OperatorCall:
    """One node with everything that its line depends on."""

    node: Node
    sources: tuple[Node, ...]
    known: Atoms
    source_atoms: tuple[Atoms, ...]
    inputs: tuple[Layout, ...]
    layout: Layout
    sizes: tuple[int, ...]
    axes: tuple[str, ...]
    micro_batches: int
    mixed: bool
    used: Used
    dropout_site: str = ""  # the number by which masks differ, an expression in a loop
    specials: Splits = ()
    own: Callable[[Node, Sequence[str]], str] | None = None  # of a special strategy: the operator's own line
    regathered: frozenset[int] = frozenset()  # operands that are weights which backward gathers again, or show them

    @property
    def local(self) -> Local:
        return Local(self.known, self.layout, self.sizes, self.axes)

    def source(self, i: int) -> Local:
        return Local(self.source_atoms[i], self.inputs[i], self.sizes, self.axes)


Rule: TypeAlias = Callable[[OperatorCall, Sequence[str]], str]


def registered(call: OperatorCall, names: Sequence[str]) -> str:
    """The expression with which the operator is registered."""
    return operator(call.node.op).expression(call.node, names, dtype_text(call.node.dtype))


def numbers_text(name: str, values: Sequence[object], used: Used) -> str:
    """A list of numbers; a long one is a constant of the program, under the `name` of its node."""
    text = str(list(values))
    if len(text) <= LONGEST_LIST:
        return text
    used.values[name] = values
    return f'VALUES["{name}"]'


def value_lines(used: Used) -> list[str]:
    """Long lists of numbers by the names of their nodes, filled into lines."""
    if not used.values:
        return []
    lines = ["", "VALUES = {"]
    for name, values in used.values.items():
        filled = textwrap.fill(", ".join(map(repr, values)), WIDTH - 8)
        lines += [f'    "{name}": [', textwrap.indent(filled, " " * 8), "    ],"]
    return [*lines, "}  # fmt: skip"]


def dtype_text(dtype: str) -> str:
    """The dtype as source: float32 stands for the precision of the plan, other dtypes are literal."""
    return "self.dtype" if dtype == "float32" else f"torch.{dtype}"


def whole_text(local: Local, dims: Sequence[int], micro_batches: int = 1, more: Sequence[int] = ()) -> tuple[str, str]:
    """Arguments of the program's `positions`: the whole shape by the atoms that are split, and {entry: axes}.

    `more`: the sizes of further dims, which are whole.
    """
    known = local.known
    shape: list[int] = []
    cuts: dict[int, list[str]] = {}
    free = False  # True if the last entry may be merged with the next atom
    for dim in dims:
        free = False
        if not known.dims[dim]:
            continue
        for a in known.of_dim(dim):
            size = known.sizes[a]
            axes = [local.axes[i] for i in local.splits(a)]
            if micro_batches > 1 and a in known.batch:
                axes, size = ["mesh.micro", *axes], size * micro_batches
            if axes:
                cuts[len(shape)] = axes
                shape.append(size)
                free = False
            elif free:
                shape[-1] *= size
            else:
                shape.append(size)
                free = True
    text = ", ".join(f"{i}: {tuple_text(axes)}" for i, axes in cuts.items())
    return shape_text([*shape, *more]), f"{{{text}}}"


def full_precision(call: OperatorCall, x: str, operand: int = 0) -> str:
    """An operand in at least float32 where activations are narrower."""
    if not call.mixed or call.sources[operand].dtype not in FLOATS:
        return x
    call.used.helpers.add("precise")
    return f"precise({x})"
