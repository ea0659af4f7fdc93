"""Operators of a space-time plan: the forward, backward and update tasks that op-trans, op-assign and op-order act on.

An `Op` is one task: it computes a part of a node, on one device, at one time.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from ...model.errors import PartitaError
from ...model.graph.constants import built_once
from ...model.graph.layout import atom_of, dual, is_split
from ...model.graph.pcg import PCG, Node
from ...model.graph.segments import gives_product
from ...model.operators.operator import operator
from ..strategies.row import Row
from .mask import GRADIENT, RECOMPUTED, UPDATED, VALUE, Mask, PTensor, VTensor, whole
from .names import layer_in
from .site import Site
from .transformation import Dim, candidates

if TYPE_CHECKING:
    from .graph import Graph


class Phase(Enum):
    """What an operator does with its node."""

    __hash__ = object.__hash__  # an enumeration's own hashes the name, in Python

    FORWARD = "forward"
    BACKWARD = "backward"  # gradients of all inputs; if the backward is split, of all but the parameters
    WEIGHT = "weight gradient"  # of a split backward: gradients of the parameters
    RECOMPUTE = "recompute"  # repeats the forward before the backward
    OFFLOAD = "offload"  # moves saved tensors to the host
    RELOAD = "reload"  # and back
    UPDATE = "update"  # optimizer step of a parameter
    STORE = "store"  # holds a parameter between steps
    KEEP = "keep"  # writes the updated parameter back to its store


COMPUTES = frozenset({Phase.FORWARD, Phase.RECOMPUTE, Phase.BACKWARD, Phase.WEIGHT})


@dataclass(frozen=True, slots=True)
class Cut:
    """One applied op-trans: part `number` of `parts` along `row`; `label` is the user's name for it.

    `loop`: the operator stands for all parts, which it computes one after another. `of`: how many micro-batches the
    plan has, where a graph has only some of them (`loop.template`).
    """

    row: Row
    parts: int
    number: int
    label: str
    loop: bool = False
    of: int = 0

    @property
    def total(self) -> int:
        """The parts of the plan."""
        return self.of or self.parts

    def __str__(self) -> str:
        if self.loop:
            return f"{self.label} 1 to {self.parts}"
        return self.numbered(self.total - 1 if self.number == self.parts - 1 else self.number)

    def numbered(self, number: int) -> str:
        """Its words for part `number` of the plan."""
        return f"{self.label} {number + 1}/{self.total}"


class Op:
    """One operator of a space-time plan; compared by identity.

    `node`: its node in the graph's PCG (for an update or a store, the parameter). `cuts`: the applied transformations,
    outermost first. `forward`: the forward operator of a backward, recomputation, offload or reload. `number`: order of
    creation within the graph. `into`: what replaced it, its parts or what it was joined into; empty if it is current.
    """

    # fmt: off
    __slots__ = (
        "_device", "_masks", "assigned", "cuts", "forward", "graph", "group", "into", "made", "node", "number", "phase",
        "region", "split", "swapped",
    )
    # fmt: on

    def __init__(self, graph: Graph, node: int, phase: Phase, cuts: tuple[Cut, ...] = (), forward: Op | None = None):
        self.graph, self.node, self.phase, self.cuts, self.forward = graph, node, phase, cuts, forward
        self._device: int | None = None
        self._masks: dict[tuple[int | None, bool], Mask] | None = None  # those of its graph, once it has read them
        self.number = graph.count()
        self.into: tuple[Op, ...] = ()
        self.made: Site | None = None  # the call that made this part
        self.assigned: Site | None = None  # the last call that assigned it to its device
        self.split = False  # forward operators: the backward is two operators
        self.swapped: int | None = None  # forward operators, updates: the group whose tensors are on the host
        self.region: Mask | None = None  # the mask of an update, store or keep created without cuts
        self.group: int | None = None  # forward operators: the recomputation group

    # Public attributes

    @property
    def device(self) -> int | None:
        """Its rank; derived operators run on the device of their forward operator."""
        return self._device if self.forward is None else self.forward._device

    @device.setter
    def device(self, rank: int) -> None:
        if isinstance(rank, bool) or not isinstance(rank, int) or rank < 0:
            number = re.search(r"\d+$", str(rank))
            hint = f"; did you mean {int(number[0])}?" if isinstance(rank, str) and number else ""
            raise PartitaError(f"a device is a rank from 0 on, not {rank!r}{hint}")
        if self.forward is not None:
            raise PartitaError(f"{self.name} runs where its forward operator does: assign that one")
        self._device = rank

    @property
    def where(self) -> Site | None:
        """The call of the plan that made it, or else assigned it (of a derived operator: its forward operator).

        A recomputation, an offload and a reload are made by the call that asks for them; of an update that is only
        swapped, it is that call. None without such a call.
        """
        own = self.forward or self
        group = {Phase.RECOMPUTE: own.group, Phase.OFFLOAD: own.swapped, Phase.RELOAD: own.swapped}.get(self.phase)
        if self.phase is Phase.UPDATE and not (own.made or own.assigned):
            group = own.swapped
        return own.made or own.assigned if group is None else self.graph.groups[group - 1]

    @property
    def of(self) -> Node:
        """The node of the captured graph: its operator, name, path, shape."""
        return self.graph.pcg.nodes[self.node]

    @property
    def name(self) -> str:
        """Name for messages: `layers.0.up forward (batch 2/4)`."""
        return self.named(self.cuts)

    def named(self, cuts: Iterable[object]) -> str:
        """Its name with these words for its cuts."""
        parts = ", ".join(map(str, cuts))
        return f"{self.of.name} {self.phase.value}{f' ({parts})' if parts else ''}"

    @property
    def is_forward(self) -> bool:
        """True for a forward operator, False for an update or a derived operator."""
        return self.phase is Phase.FORWARD

    @property
    def layer(self) -> str:
        """The layer (`encoder.3`; for an update, that of the parameter), see `layer_in`; empty outside of lists."""
        return layer_in(self.graph.pcg, self.of.path)

    def has(self, dim: Dim) -> bool:
        """True if it can be split along `dim`."""
        return bool(candidates(self.graph, self.node, dim))

    @property
    def loop(self) -> Cut | None:
        """The cut whose parts it, or its forward operator, computes one after another; None without."""
        return next((cut for cut in self.cuts if cut.loop), None)

    @property
    def exchanges(self) -> tuple[Cut, ...]:
        """Its cuts, or those of its forward operator, along which the parts exchange data (`meetings`)."""
        if self.phase not in COMPUTES:
            return ()
        return tuple(cut for cut in (self.forward or self).cuts if cut.row.special and cut.parts > 1)

    @property
    def labels(self) -> dict[tuple[str, int], Cut]:
        """Its cuts by label and occurrence of the label."""
        found: dict[tuple[str, int], Cut] = {}
        count: dict[str, int] = {}
        for cut in self.cuts:
            before = count.get(cut.label, 0)
            found[cut.label, before], count[cut.label] = cut, before + 1
        return found

    def coordinate(self, label: str) -> int:
        """The part number along the transformation `label`; 0 if it was not applied."""
        return next((cut.number for cut in self.cuts if cut.label == label), 0)

    @property
    def backward(self) -> Op | None:
        """The backward of a forward operator; None if no gradient flows."""
        return self.graph.derived(self, Phase.BACKWARD)

    @property
    def weight(self) -> Op | None:
        """The weight-gradient half of a split backward; None otherwise."""
        return self.graph.derived(self, Phase.WEIGHT)

    @property
    def recomputed(self) -> Op | None:
        """The recomputation of a forward operator; None if it is not recomputed."""
        return self.graph.derived(self, Phase.RECOMPUTE)

    @property
    def is_kept(self) -> bool:
        """True if its group keeps its result, as of a product in which devices exchange no data: it runs once."""
        own = self.forward or self
        return own.group in self.graph.selective and gives_product(self.graph.pcg, self.node) and not own.exchanges

    @property
    def gone(self) -> bool:
        """True if other operators replaced it."""
        return bool(self.into)

    @property
    def replaced(self) -> bool:
        """True if other operators replaced it, or its forward operator."""
        return self.gone or (self.forward is not None and self.forward.gone)

    @property
    def current(self) -> Iterator[Op]:
        """The operators that it has become: itself, or those that replaced it; of a derived one those of its phase."""
        own = self.forward or self
        if not own.gone:
            yield self
        for op in own.into:
            for now in op.current:
                derived = now if self.forward is None else self.graph.derived(now, self.phase)
                yield from () if derived is None else (derived,)

    def __repr__(self) -> str:
        return f"<{self.name}{'' if self.device is None else f' on {self.device}'}>"

    # vTensors read and written

    def mask(self, operand: int | None, gradient: bool = False) -> Mask:
        """The mask of an operand (None: the output); a gradient is cut by the dual letters."""
        if self.region is not None:
            return self.region
        if self._masks is None:
            self._masks = self.graph.masks(self.node, self.cuts)
        found = self._masks.get((operand, gradient))
        if found is None:
            found = self._masks[operand, gradient] = self._mask(operand, gradient)
        return found

    def _mask(self, operand: int | None, gradient: bool) -> Mask:
        pcg = self.graph.pcg
        index = self.node if operand is None else pcg.nodes[self.node].inputs[operand]
        mask = whole(self.graph.atoms[index].sizes)
        for cut in self.cuts:
            letter = cut.row.output if operand is None else cut.row.inputs[operand]
            mask = mask.cut(dual(letter) if gradient else letter, cut.parts, cut.number)
        return mask

    @property
    def even(self) -> bool:
        """True if its transformations cut every tensor into parts of one size."""
        return self._even(self.cuts)

    @property
    def computed_once(self) -> bool:
        """True for a constant that its device computes whole, in the first step alone."""
        entry = operator(self.of.op)
        if self.node not in built_once(self.graph.pcg) or entry.view or not entry.passes:
            return False
        return self.mask(None) == whole(self.graph.atoms[self.node].sizes)

    @property
    def alike(self) -> bool:
        """True if the micro-batches for which it stands have one size, or it stands for none."""
        return self.loop is None or self._even(self.cuts[: self.cuts.index(self.loop) + 1])

    def _even(self, cuts: tuple[Cut, ...]) -> bool:
        for operand, source in enumerate((*self.of.inputs, self.node)):
            sizes = list(self.graph.atoms[source].sizes)
            for cut in cuts:
                letter = cut.row.output if source == self.node else cut.row.inputs[operand]
                if is_split(letter):
                    size, left = divmod(sizes[atom_of(letter)], cut.parts)
                    if left:
                        return False
                    sizes[atom_of(letter)] = size
        return True

    @property
    def reads(self) -> tuple[VTensor, ...]:
        """Input vTensors, except those that are on every device (`Graph.given`) and saved ones (already on its own)."""
        pcg, nodes = self.graph.pcg, self.graph.pcg.nodes
        if self.phase in (Phase.FORWARD, Phase.RECOMPUTE):
            return tuple(
                self.graph.part(PTensor(self._source(source), source), self.mask(p))
                for p, source in enumerate(nodes[self.node].inputs)
                if source not in self.graph.given
            )
        if self.phase in (Phase.BACKWARD, Phase.WEIGHT):
            if self.node == pcg.loss:
                return ()
            return (self.graph.part(PTensor(GRADIENT, self.node), self.mask(None, gradient=True)),)
        if self.phase is Phase.UPDATE:
            mask = self.mask(None)
            return self.graph.part(PTensor(GRADIENT, self.node), mask), self.graph.part(PTensor(VALUE, self.node), mask)
        if self.phase is Phase.KEEP:
            return (self.graph.part(PTensor(UPDATED, self.node), self.mask(None)),)
        return ()

    def _source(self, node: int) -> str:
        """The kind of an operand: recomputed within the same group, else the forward value."""
        if self.phase is Phase.RECOMPUTE:
            assert self.forward is not None
            if self.graph.recomputes(node, self.forward.group):
                return RECOMPUTED
        return VALUE

    @property
    def writes(self) -> tuple[VTensor, ...]:
        """Output vTensors."""
        nodes = self.graph.pcg.nodes
        if self.phase in (Phase.FORWARD, Phase.STORE):
            return (self.graph.part(PTensor(VALUE, self.node), self.mask(None)),)
        if self.phase is Phase.RECOMPUTE:
            return (self.graph.part(PTensor(RECOMPUTED, self.node), self.mask(None)),)
        if self.phase is Phase.UPDATE:
            return (self.graph.part(PTensor(UPDATED, self.node), self.mask(None)),)
        if self.phase not in (Phase.BACKWARD, Phase.WEIGHT):
            return ()
        split = self.forward is not None and self.forward.split
        return tuple(
            self.graph.part(PTensor(GRADIENT, source), self.mask(p, gradient=True), (self.node, p))
            for p, source in enumerate(nodes[self.node].inputs)
            if nodes[source].gradient
            and (not split or (nodes[source].op == "parameter") == (self.phase is Phase.WEIGHT))
        )


def differentiable(pcg: PCG, node: int) -> bool:
    """True if a gradient flows from the node to one of its inputs."""
    return pcg.nodes[node].gradient and any(pcg.nodes[i].gradient for i in pcg.nodes[node].inputs)
