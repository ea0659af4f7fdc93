"""A node with its tensors' layouts on a mesh, and what prices it there."""

from dataclasses import dataclass
from functools import cached_property

from ...model.graph.pcg import Node
from ...model.machine.precision import Precision
from ...model.machine.roofline import Roofline
from .row import Row
from .transitions import Space, Transitions


@dataclass(frozen=True)
class MeshNode:
    """`sources` are the nodes that it reads, `spaces` the layouts of its inputs, then of its output.

    `fused`: the operands that the kernel before hands over (`fusion`).
    """

    node: Node
    sources: tuple[Node, ...]
    rows: tuple[Row, ...]
    spaces: tuple[Space, ...]
    transitions: Transitions
    roofline: Roofline
    precision: Precision
    fused: frozenset[int] = frozenset()

    @cached_property
    def itemsizes(self) -> tuple[int, ...]:
        """Bytes of an element of each input, then of the output."""
        return tuple(self.precision.itemsize(n.dtype) for n in (*self.sources, self.node))
