"""What the weights of a space-time plan cost, as the planner prices them (docs/cost-model.md, Overlap).

Weights of a layer, or between two, are gathered in one message, and gradients are summed in buckets: each weight pays
its share of the latency. In every layer but a device's first this traffic runs beside the kernels of the layer, which
stand for those of the layer before. All other traffic of weights is waited for, as are weights that are exchanged,
sliced, or zero on this rank (`Table.waits`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from ...model.graph.dtypes import ITEMSIZE
from ..encoding.overlap import hiding_layers, latency_shares, weights_together
from ..search_space import EVERYTHING
from ..strategies.tensor_classes import classes
from ..weights.buckets import bucketed
from .mask import GRADIENT, UPDATED, VALUE, Box, PTensor, meet
from .materialized import (
    Accumulate,
    Collective,
    Instruction,
    Materialized,
    Pad,
    Register,
    Run,
    Slice,
    Transfer,
    Zeros,
    reads,
    writes,
)
from .messages import Messages
from .op import Op, Phase
from .price import Prices
from .supplies import volume

_WAYS = {Phase.FORWARD: "forward"} | dict.fromkeys((Phase.RECOMPUTE, Phase.BACKWARD, Phase.WEIGHT), "backward")
_KINDS = {VALUE, GRADIENT, UPDATED}


class Window(NamedTuple):
    """A layer on its way forward, or backward with what is recomputed for it."""

    layer: str
    way: str


class _Layers(NamedTuple):
    """By node the layer that hides the traffic of its weights; by weight the share that it pays of a message."""

    of: Mapping[int, str]
    shares: Mapping[int, float]


class WeightTraffic:
    """Of a program which instructions move weights, in which windows they are, and what they cost."""

    def __init__(self, program: Materialized, prices: Prices) -> None:
        self.graph, self.prices, self.pcg = program.tasks.graph, prices, program.tasks.graph.pcg
        self.messages = Messages(program)
        self._layers: dict[frozenset[int], _Layers] = {}  # by the nodes that a device computes
        self._of: dict[int, _Layers] = {}  # by device
        self._devices = program.devices
        self._windows: dict[int, dict[int, Window | None]] = {}  # by device that was asked for, as are the next
        self._kept_sums: dict[int, dict[int, int]] = {}  # elements of the sum of gradients, by weight
        self._first: dict[int, dict[PTensor, int]] = {}  # of a weight or its gradient, the first operator

    def _layers_of(self, device: int) -> _Layers:
        """The layers of a device, as of a stage: branches that are all on other devices do not matter."""
        if device not in self._of:
            nodes = frozenset(i.op.node for i in self._devices[device] if isinstance(i, Run) and i.op.phase in _WAYS)
            if nodes not in self._layers:
                self._layers[nodes] = self._layers_with(nodes)
            self._of[device] = self._layers[nodes]
        return self._of[device]

    def _layers_with(self, nodes: frozenset[int]) -> _Layers:
        known, item = classes(self.pcg), self.prices.precision.itemsize("float32")
        together = weights_together(self.pcg, known, EVERYTHING, item, part=nodes)
        layer_of = {
            i: segment.name
            for segment in hiding_layers(self.pcg, together, inside=True)
            for i in segment.nodes
            if not known.constant[i]
        }
        return _Layers(layer_of, latency_shares(self.pcg, together))

    def _weight(self, node: int) -> bool:
        return self.pcg.nodes[node].op == "parameter"

    def moves(self, instruction: Instruction) -> bool:
        """True if an instruction moves or prepares a weight or its gradient, and computes nothing."""
        if isinstance(instruction, Run):
            return False
        touched = (*reads(instruction), *writes(instruction))
        return all(register.tensor.kind in _KINDS and self._weight(register.tensor.node) for register in touched)

    # Windows

    def window(self, device: int, place: int) -> Window | None:
        """The window that an instruction is in."""
        if device not in self._windows:
            self._windows[device] = self._of_device(self._devices[device], self._layers_of(device).of)
        return self._windows[device].get(place)

    def _of_device(self, instructions: Sequence[Instruction], layer_of: Mapping[int, str]) -> dict[int, Window | None]:
        """The windows of the instructions of a device, by place; all layers but the first have some."""
        found: dict[int, Window | None] = {}
        readers: dict[Register, list[int]] = defaultdict(list)
        layers: dict[str, None] = {}
        for place, instruction in enumerate(instructions):
            for register in reads(instruction):
                readers[register].append(place)
            if isinstance(instruction, Run) and (layer := layer_of.get(instruction.op.node)) is not None:
                layers.setdefault(layer)
                if layer != next(iter(layers)) and instruction.op.phase in _WAYS:
                    found[place] = Window(layer, _WAYS[instruction.op.phase])
        for place in reversed(range(len(instructions))):
            if not self.moves(instructions[place]):
                continue
            (*_, register) = (*reads(instructions[place]), *writes(instructions[place]))
            if register.tensor.kind == VALUE:
                after = (found.get(reader) for written in writes(instructions[place]) for reader in readers[written])
                found[place] = next(after, None)
            elif register.tensor.kind == GRADIENT:
                layer = layer_of.get(classes(self.pcg).uses[register.tensor.node][0].node)
                inside = layer in layers and layer != next(iter(layers))
                found[place] = Window(layer, "backward") if layer is not None and inside else None
        self._wait_for_others(instructions, found)
        return found

    def _wait_for_others(self, instructions: Sequence[Instruction], found: dict[int, Window | None]) -> None:
        """Take exchanges, slices, zeros and padding of weights out of their windows, and what moves these further."""
        waited: set[Register] = set()
        for place, instruction in enumerate(instructions):
            exchanges = isinstance(instruction, Collective) and instruction.kind == "all_to_all"
            further = not waited.isdisjoint(reads(instruction))
            if not (exchanges or further or isinstance(instruction, Pad | Slice | Zeros)) or not self.moves(
                instruction
            ):
                continue
            if all(written.tensor.kind == VALUE for written in writes(instruction)):
                found[place] = None
                waited.update(writes(instruction))

    # Prices

    def share(self, tensor: PTensor, device: int) -> float:
        """The share of the latency of its message that a weight pays."""
        return self._layers_of(device).shares.get(tensor.node, 1.0)

    def bucketed_ns(self, kind: str, groups: Sequence[tuple[int, ...]], numel: int, updated: bool = False) -> int:
        """The part of a bucket's collective that a gradient of `numel` elements pays, in all groups at once.

        `updated`: the weight is gathered whose gradient was reduced by a reduce-scatter.
        """
        precision, ranks = self.prices.precision, np.array(groups)
        line, gradients = self.prices.links.collective(kind, ranks), ITEMSIZE[precision.gradients]
        if not updated:
            return bucketed(numel, (line, gradients))
        summed = self.prices.links.collective("reduce_scatter", ranks), gradients
        return bucketed(numel, summed, (line, ITEMSIZE[precision.parameters])) - bucketed(numel, summed)

    def of_task_ns(self, run: Run, device: int) -> int:
        """Casts of the weights that a task reads, and accumulation of the gradients that it gives.

        Each is counted once a micro-batch, where the weight is read first, and as far as the device keeps it. Tables
        with sparse gradients are read as they are stored, and their gradients joined as they are updated.
        """
        op, total = run.op, 0
        if op.phase not in _WAYS:
            return 0
        again = {register.tensor for register in run.reads} if op.phase is Phase.BACKWARD else set[PTensor]()
        for operand, node in enumerate(op.of.inputs):
            if not self._weight(node) or node in op.of.inputs[:operand] or node in self.prices.rows.tables:
                continue
            kept = self._kept(op.mask(operand).box, self.messages.stored[node, device])
            if op.phase in (Phase.FORWARD, Phase.RECOMPUTE) or PTensor(VALUE, node) in again:
                total += self._cast_ns(node, kept) if self._is_first(op, node, VALUE, device) else 0
            gives = any(written.tensor == PTensor(GRADIENT, node) for written in op.writes)
            if gives and self._is_first(op, node, GRADIENT, device):
                again_added = self._scattered(device, node) if kept == volume(op.mask(operand).box) else 0
                total += self.prices.accumulate_ns(PTensor(GRADIENT, node), kept, again_added)
        return total

    def _scattered(self, device: int, weight: int) -> int:
        """How many elements of a weight's gradient, summed over ranks in every micro-batch, a device adds up."""
        if weight not in self.graph.scattered:
            return 0
        if device not in self._kept_sums:
            own = self._devices[device]
            summed = {r for i in own if isinstance(i, Transfer) for r in writes(i)}
            sums = (i.total for i in own if isinstance(i, Accumulate) and i.source in summed)
            self._kept_sums[device] = {total.tensor.node: volume(total.mask.box) for total in sums}
        return self._kept_sums[device].get(weight, 0)

    def _is_first(self, op: Op, weight: int, kind: str, device: int) -> bool:
        """True if of all operators on a device this one reads a weight first, or gives a gradient of it."""
        if device not in self._first:
            found = self._first[device] = dict[PTensor, int]()
            for own in (i.op for i in self._devices[device] if isinstance(i, Run)):
                read = (PTensor(VALUE, node) for node in filter(self._weight, own.of.inputs))
                given = (written.tensor for written in own.writes if written.tensor.kind == GRADIENT)
                for tensor in (*read, *given):
                    found[tensor] = min(own.node, found.get(tensor, own.node))
        return self._first[device][PTensor(kind, weight)] == op.node

    def _cast_ns(self, node: int, numel: int) -> int:
        precision = self.prices.precision
        item = ITEMSIZE[precision.parameters] + precision.itemsize(self.pcg.nodes[node].dtype)
        return self.prices.stream_ns(numel * float(item)) if precision.mixed else 0

    @staticmethod
    def _kept(box: Box, stored: Iterable[Box]) -> int:
        """How many elements of a box are stored; all of a box of which nothing is."""
        shared = [volume(inner) for kept in stored if (inner := meet(box, kept)) is not None]
        return sum(shared) or volume(box)
