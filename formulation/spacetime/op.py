"""Operators of a space-time plan: what a captured operator, its backward or its update is, after op-trans.

An `Op` is one task: it computes its part of a node for its part of the batch, on one device, at one time.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from ...model.errors import PartitaError
from ...model.graph.layout import B, P, dual
from ...model.graph.pcg import PCG, Node
from ..strategies.row import Row
from .mask import GRADIENT, RECOMPUTED, UPDATED, VALUE, Mask, PTensor, VTensor, whole
from .transformation import Dim, candidates

if TYPE_CHECKING:
    from .graph import Graph


class Phase(Enum):
    """What an operator does with its node."""

    FORWARD = "forward"
    BACKWARD = "backward"  # gradients of all inputs, or of those that are no parameters where the backward is split
    WEIGHT = "weight gradient"  # the other half of a split backward
    RECOMPUTE = "recompute"  # the forward again, for what backward needs
    OFFLOAD = "offload"  # what backward needs goes to the host
    RELOAD = "reload"  # and comes back
    UPDATE = "update"  # of a parameter, by the optimizer
    STORE = "store"  # where a parameter is between steps
    KEEP = "keep"  # the store takes the parameter's new value


@dataclass(frozen=True, slots=True)
class Cut:
    """One op-trans: part `number` of `parts` along `row`, which the user called `label`."""

    row: Row
    parts: int
    number: int
    label: str

    def __str__(self) -> str:
        return f"{self.label} {self.number + 1}/{self.parts}"


class Op:
    """One operator of a space-time plan. Equality is identity; plans refer to operators as Python objects.

    `node` is a node of the graph's PCG (of an update and a store the parameter), `cuts` the transformations that led
    here, outermost first; `forward` the operator whose backward, recomputation or transfer to the host this is.
    `number` counts the operators of a graph in the order of creation. `gone`: it was replaced by its parts.
    """

    # fmt: off
    __slots__ = (
        "_device", "cuts", "forward", "gone", "graph", "group", "node", "number", "phase", "region", "split", "swapped"
    )
    # fmt: on

    def __init__(self, graph: Graph, node: int, phase: Phase, cuts: tuple[Cut, ...] = (), forward: Op | None = None):
        self.graph, self.node, self.phase, self.cuts, self.forward = graph, node, phase, cuts, forward
        self._device: int | None = None
        self.number = graph.count()
        self.gone = False
        self.split = False  # of a forward operator: its backward is two operators
        self.swapped: int | None = None  # of a forward operator: the group with which what it keeps waits on the host
        self.region: Mask | None = None  # of an update, store or keep that no cuts led to
        self.group: int | None = None  # of a forward operator: the number of the group that is recomputed with it

    # What users ask

    @property
    def device(self) -> int | None:
        """The rank that it runs on; what follows from a forward operator runs where that does."""
        return self._device if self.forward is None else self.forward.device

    @device.setter
    def device(self, rank: int) -> None:
        if isinstance(rank, bool) or not isinstance(rank, int) or rank < 0:
            raise PartitaError(f"a device is a rank from 0 on, not {rank!r}")
        if self.forward is not None:
            raise PartitaError(f"{self.name} runs where its forward operator does: assign that one")
        self._device = rank

    @property
    def of(self) -> Node:
        """The node of the captured graph: its operator, name, path, shape."""
        return self.graph.pcg.nodes[self.node]

    @property
    def name(self) -> str:
        """As messages name it: `layers.0.up forward (batch 2/4)`."""
        parts = f" ({', '.join(map(str, self.cuts))})" if self.cuts else ""
        return f"{self.of.name} {self.phase.value}{parts}"

    @property
    def is_forward(self) -> bool:
        """True if it computes forward; else it updates a parameter, or follows from a forward operator."""
        return self.phase is Phase.FORWARD

    @property
    def layer(self) -> str:
        """The module of a list that it is in (`encoder.3`), of an update its parameter; empty outside of lists."""
        return layer_of(self.of.path)

    def has(self, dim: Dim) -> bool:
        """True if it can be split along a dimension of the graph."""
        return bool(candidates(self.graph, self.node, dim))

    def coordinate(self, label: str) -> int:
        """The number of this part along a transformation; 0 where the operator has none of that label."""
        return next((cut.number for cut in self.cuts if cut.label == label), 0)

    @property
    def backward(self) -> Op | None:
        """The backward of a forward operator; None where no gradient flows."""
        return self.graph.derived(self, Phase.BACKWARD)

    @property
    def weight(self) -> Op | None:
        """The weight gradient of a forward operator whose backward is split; None otherwise."""
        return self.graph.derived(self, Phase.WEIGHT)

    @property
    def recomputed(self) -> Op | None:
        """The recomputation of a forward operator, None where there is none."""
        return self.graph.derived(self, Phase.RECOMPUTE)

    @property
    def replaced(self) -> bool:
        """True if it, or the forward operator that it follows from, has become parts: it is in no plan any more."""
        return self.gone or (self.forward is not None and self.forward.gone)

    def __repr__(self) -> str:
        return f"<{self.name}{'' if self.device is None else f' on {self.device}'}>"

    # What it reads and writes

    def mask(self, operand: int | None, gradient: bool = False) -> Mask:
        """The mask of an operand, None for the output; of a gradient its letters are the duals."""
        if self.region is not None:
            return self.region
        pcg, known = self.graph.pcg, self.graph.atoms
        index = self.node if operand is None else pcg.nodes[self.node].inputs[operand]
        mask = whole(known[index].sizes)
        for cut in self.cuts:
            letter = cut.row.output if operand is None else cut.row.inputs[operand]
            mask = mask.cut(dual(letter) if gradient else letter, cut.parts, cut.number)
        return mask

    @property
    def reads(self) -> tuple[VTensor, ...]:
        """vTensors that must be on its device before it runs; inputs of the graph are everywhere, saved ones here."""
        pcg, nodes = self.graph.pcg, self.graph.pcg.nodes
        if self.phase in (Phase.FORWARD, Phase.RECOMPUTE):
            return tuple(
                VTensor(PTensor(self._source(source), source), self.mask(p))
                for p, source in enumerate(nodes[self.node].inputs)
                if nodes[source].op not in ("input", "buffer")
            )
        if self.phase in (Phase.BACKWARD, Phase.WEIGHT):
            if self.node == pcg.loss:
                return ()
            return (VTensor(PTensor(GRADIENT, self.node), self.mask(None, gradient=True)),)
        if self.phase is Phase.UPDATE:
            mask = self.mask(None)
            return VTensor(PTensor(GRADIENT, self.node), mask), VTensor(PTensor(VALUE, self.node), mask)
        if self.phase is Phase.KEEP:
            return (VTensor(PTensor(UPDATED, self.node), self.mask(None)),)
        return ()

    def _source(self, node: int) -> str:
        """Recomputation takes what is recomputed with it, and all else as forward left it."""
        if self.phase is Phase.RECOMPUTE:
            assert self.forward is not None
            if self.graph.recomputes(node, self.forward.group):
                return RECOMPUTED
        return VALUE

    @property
    def writes(self) -> tuple[VTensor, ...]:
        """vTensors that it makes."""
        nodes = self.graph.pcg.nodes
        if self.phase in (Phase.FORWARD, Phase.STORE):
            return (VTensor(PTensor(VALUE, self.node), self.mask(None)),)
        if self.phase is Phase.RECOMPUTE:
            return (VTensor(PTensor(RECOMPUTED, self.node), self.mask(None)),)
        if self.phase is Phase.UPDATE:
            return (VTensor(PTensor(UPDATED, self.node), self.mask(None)),)
        if self.phase not in (Phase.BACKWARD, Phase.WEIGHT):
            return ()
        split = self.forward is not None and self.forward.split
        return tuple(
            VTensor(PTensor(GRADIENT, source), self.mask(p, gradient=True), (self.node, p))
            for p, source in enumerate(nodes[self.node].inputs)
            if nodes[source].gradient
            and (not split or (nodes[source].op == "parameter") == (self.phase is Phase.WEIGHT))
        )


def layer_of(path: str) -> str:
    """`encoder.3` of `encoder.3.attention`; nothing outside of lists."""
    names = path.split(".")
    number = next((at for at, name in enumerate(names) if name.isdigit()), None)
    return "" if number is None else ".".join(names[: number + 1])


def differentiable(pcg: PCG, node: int) -> bool:
    """True if a node has a backward: a gradient flows from it to an input."""
    return pcg.nodes[node].gradient and any(pcg.nodes[i].gradient for i in pcg.nodes[node].inputs)


def addends(cut: Cut) -> bool:
    """True if the parts of a cut compute alike and share out the gradient, or the value."""
    return cut.row.output in (B, P)
