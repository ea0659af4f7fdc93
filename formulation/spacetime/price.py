"""Prices of space-time tasks on a machine: the planner's cost model (docs/cost-model.md) applied to their masks.

    forward, recompute   max(F / FLOP/s, bytes / memory bandwidth) + launch, as the planner prices an operator;
                         to recompute a product whose result is kept takes no time
    backward             the planner's backward; where it is split, half of a product's is its weight gradient
    update               the planner's, of the n elements of its part; states on the host come and go before and after
    offload, reload      bytes / host bandwidth + launch

F of a part is the operator's times the fractions left by its cuts; its bytes are those of its masks. Views, stores and
keeps on the updating device are free. What parts exchange while they run comes on top, once for all of them.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from math import ceil, prod

import numpy as np

from ...model.errors import PartitaError
from ...model.graph.dtypes import ITEMSIZE
from ...model.graph.pcg import Node
from ...model.machine.collective_price import ROUNDING_NS, CollectivePrice
from ...model.machine.machine import Machine
from ...model.machine.precision import precision
from ...model.machine.roofline import Roofline, backward_factor
from ...model.operators.operator import LookUp, operator
from ...model.optimizers import optimizer_states
from ..rvd.prices import prices_on
from ..strategies.option_costs import LOSS_TRANSIENTS
from .dtypes import constants, item_bytes, stored_dtype
from .graph import Graph
from .mask import GRADIENT, PTensor
from .materialized import Register
from .op import Op, Phase
from .row_price import RowPrices
from .shares import shares
from .site import told
from .special_price import SpecialPrices

FUSED_DIMS = 4
"""Tensor rank for which PyTorch's attention is fused; for other ranks it materializes and saves the scores."""


@dataclass(frozen=True, slots=True)
class Saved:
    """Saved tensors of a forward operator: inputs (by operand), its output, and other bytes."""

    operands: tuple[int, ...]
    output: bool
    own_bytes: int


class Prices:
    """Prices of the tasks of one graph on a machine, cached for tasks with equal cuts."""

    def __init__(self, graph: Graph, machine: Machine, dtype: str = "float32", optimizer: str = "adamw") -> None:
        self.graph, self.machine, self.precision = graph, machine, precision(dtype)
        self.states = optimizer_states(optimizer)
        self.links = prices_on(machine)
        self._roofline = Roofline(machine, self.precision.compute)
        self._constant = constants(graph.pcg)
        self._tasks: dict[object, int] = {}
        self._even: dict[object, bool] = {}
        self._saved: dict[object, Saved] = {}
        self.special = SpecialPrices(graph, self.precision)
        self.rows = RowPrices(graph, self.precision, self._roofline)

    # Sizes

    def item(self, tensor: PTensor) -> int:
        """`item_bytes` of a tensor."""
        return item_bytes(self.graph.pcg, tensor, self.precision)

    def stored_bytes(self, op: Op) -> int:
        """Bytes of the part of a parameter that a store keeps."""
        return op.mask(None).numel * ITEMSIZE[stored_dtype(self.graph.pcg, op.node, self.precision)]

    def states_bytes(self, op: Op) -> int:
        """Bytes that the optimizer keeps for an update: states, and the master copy if there is one."""
        copies = self.precision.copied and op.node not in self.rows.tables
        return op.mask(None).numel * ITEMSIZE[self.precision.master] * (self.states + copies)

    def register_bytes(self, register: Register) -> int:
        return register.mask.numel * self.item(register.tensor)

    def saved(self, op: Op, stored: bool = True) -> Saved:
        """The saved tensors of a forward operator or its recomputation, without parameters.

        `stored`: the device keeps the parameters, so in mixed precision the operator saves its casts of them.
        """
        key = self._alike(op), stored
        if key not in self._saved:
            self._saved[key] = self._saved_by(op, stored)
        return self._saved[key]

    def retained(self, op: Op) -> list[int]:
        """The operands that are `retained` weights, if backward needs them."""
        if self.graph.retained.isdisjoint(op.of.inputs):
            return []
        names = operator(op.of.op).named(op.of)
        kept = operator(op.of.op).kept(op.of, self._sources(op))
        return [p for p, i in enumerate(op.of.inputs) if i in self.graph.retained and names[p] in kept]

    def _saved_by(self, op: Op, stored: bool) -> Saved:
        node, sources, entry = op.of, self._sources(op), operator(op.of.op)
        copied = self.special.copied(op)
        saved = [name for name in entry.kept(node, sources) if name not in copied]
        kept: list[int] = []
        output, own, first = False, 0, 0
        if sources:
            first = op.mask(0).numel * self._item(sources[0])
        for place, (name, source) in enumerate(zip(entry.named(node), sources, strict=True)):
            size = op.mask(place).numel
            if name not in saved:
                continue
            if source.op == "parameter":
                own += size * self._item(source) if self.precision.mixed and stored else 0
            elif node.op in LOSS_TRANSIENTS and self._item(source) < ITEMSIZE["float32"]:
                own += size * ITEMSIZE["float32"]  # losses compute in float32 at least, and keep that copy
            else:
                kept.append(place)
        for name in saved:
            output |= name == "y"
            own += first if name == "noise" else 0
            if name == "gate":
                own += op.mask(None).numel * self._item(node) * entry.gate_count(node, sources)
            own += op.mask(0).numel * ITEMSIZE["bool"] if name == "mask" else 0
            own += op.mask(None).numel * ITEMSIZE["int64"] if name == "indices" else 0
        if node.op in LOSS_TRANSIENTS:
            wide = op.mask(0).numel * max(ITEMSIZE["float32"], self._item(sources[0]))
            own += LOSS_TRANSIENTS[node.op] * (wide + (first if self.precision.narrow else 0))
        if node.op == "attention" and len(node.shape) != FUSED_DIMS:
            scores = node.numel // node.shape[-1] * sources[1].shape[-2]
            own += scores * op.mask(None).numel // node.numel * self._item(node)
        for index, part in shares(op).items():
            own += entry.split(node, sources, index, part)[1] * self._item(sources[0]) if entry.split else 0
        own += self.special.kept_bytes(op)
        return Saved(tuple(kept), output, own)

    def _item(self, node: Node) -> int:
        """Bytes of an element in the compute dtype."""
        return self.precision.itemsize(node.dtype)

    def _sources(self, op: Op) -> tuple[Node, ...]:
        return tuple(self.graph.pcg.nodes[i] for i in op.of.inputs)

    # Tasks

    def task_ns(self, op: Op) -> int:
        """Time of a task. PartitaError: an unknown operator, a missing host link."""
        split = op.forward is not None and op.forward.split
        looking = op.device if op.node in self.rows.tables else None  # an update of what the device has looked up
        away = op.phase is Phase.UPDATE and op.swapped is not None
        kept = op.phase is Phase.RECOMPUTE and op.is_kept
        key = self._alike(op), op.phase, split, op.region and op.region.sizes, looking, away, kept
        if key not in self._tasks:
            self._tasks[key] = self._task_ns(op)
        return self._tasks[key]

    def _alike(self, op: Op) -> Hashable:
        """Equal for operators of a node that have parts of one size, as micro-batches and ranks have."""
        cuts = tuple([(cut.row, cut.parts) for cut in op.cuts])
        even = self._even.get((op.node, cuts))
        if even is None:
            even = self._even[op.node, cuts] = op.even
        return op.node, cuts, () if even else tuple(cut.number for cut in op.cuts)

    def _task_ns(self, op: Op) -> int:
        match op.phase:
            case Phase.STORE | Phase.KEEP:
                return 0
            case Phase.UPDATE if op.node in self.rows.tables:
                return self.rows.update_ns(op)
            case Phase.UPDATE:
                update = self.stream_ns(op.mask(None).numel * self.precision.update_traffic(self.states))
                return update if op.swapped is None else update + self._visit_ns(op)
            case Phase.RECOMPUTE if op.is_kept:
                return 0
            case Phase.FORWARD | Phase.RECOMPUTE:
                return self._forward_ns(op)
            case Phase.BACKWARD | Phase.WEIGHT:
                return self._backward_ns(op)
            case Phase.OFFLOAD | Phase.RELOAD:
                assert op.forward is not None
                return self.host_ns(self.saved_bytes(op.forward))

    def _visit_ns(self, op: Op) -> int:
        """Time in which the states of an update come from the host and go back."""
        return ceil(2 * self.states_bytes(op) / self._host_bandwidth * 1e9)

    def saved_bytes(self, op: Op) -> int:
        """Bytes of all saved tensors of a forward operator."""
        saved, sources = self.saved(op), self._sources(op)
        kept = sum(op.mask(p).numel * self._item(sources[p]) for p in saved.operands)
        return kept + saved.own_bytes + saved.output * op.mask(None).numel * self._item(op.of)

    def _forward_ns(self, op: Op) -> int:
        node, sources, entry = op.of, self._sources(op), operator(op.of.op)
        if is_free(op):
            return 0
        work, own = self._work(node, sources) * self._share(op), op.mask(None).numel * self._item(node)
        if self._constant[op.node]:
            return self.kernel_ns(work, 2.0 * own)
        return self.kernel_ns(
            work, self._traffic(op) * entry.moved(node), entry.kernels(node, sources), (node, "forward")
        )

    def _work(self, node: Node, sources: tuple[Node, ...]) -> float:
        return operator(node.op).work(node, sources) * self.machine.device.work_factor(node.op)

    def _backward_ns(self, op: Op) -> int:
        """The time of a backward, or of the half of one that is split: as the planner defers half of a product's."""
        if is_free(op):
            return 0
        whole = self._whole_backward_ns(op)
        if op.forward is None or not op.forward.split:
            return whole
        later = whole * deferred_halves(op) // 2
        return later if op.phase is Phase.WEIGHT else whole - later

    def _whole_backward_ns(self, op: Op) -> int:
        node, sources, entry = op.of, self._sources(op), operator(op.of.op)
        share = self._share(op)
        work = self._work(node, sources) * share * backward_factor(node, sources, entry.matmul)
        moved = 2 * self._traffic(op) * entry.moved(node)
        if entry.scratch is not None:
            moved += 2 * entry.scratch(node, sources) * share * self._item(node)
        total = self.kernel_ns(work, moved, entry.kernels(node, sources), (node, "backward"))
        if entry.masked:
            count = op.mask(None).numel
            total += self.kernel_ns(count, 4.0 * count * self._item(node))
        looked_up = entry.looked_up(node, sources)
        if looked_up and sources[looked_up[0]].gradient and not node.get("sparse"):
            place = looked_up[0]
            total += self.stream_ns(op.mask(place).numel * self._item(sources[place]))
        return total

    def _traffic(self, op: Op) -> float:
        """Bytes of inputs and output; of a look-up table only the rows that are read."""
        sources, entry = self._sources(op), operator(op.of.op)
        looked_up = entry.looked_up(op.of, sources)
        total: float = op.mask(None).numel * self._item(op.of)
        for place, source in enumerate(sources):
            read: float = op.mask(place).numel * self._item(source)
            if looked_up and place == looked_up.operand:
                # The rows of a sparse table are cast after the look-up: they are read, written and read again before.
                cast = bool(op.of.get("sparse")) and self.precision.compute != self.precision.master
                item = ITEMSIZE[self.precision.master] if cast else self._item(source)
                rows, row = looked_up.elements * self._share(op) * item, self._row(op, looked_up) * item
                whole = op.mask(place).numel * item
                read = max(rows, min(rows * (self.machine.device.touched(row) / row), whole)) + 2 * rows * cast
            total += read
        return total

    def _row(self, op: Op, looked_up: LookUp) -> int:
        """Elements that a look-up reads together: a part of the table's last dims."""
        known, sizes = self.graph.atoms[op.of.inputs[looked_up.operand]], op.mask(looked_up.operand).sizes
        return prod(sizes[a] for dim in looked_up.row for a in known.of_dim(dim))

    def _share(self, op: Op) -> float:
        """The fraction of its operator's work in a part."""
        split = operator(op.of.op).split
        more = (split(op.of, self._sources(op), i, part)[0] if split else 1.0 for i, part in shares(op).items())
        return prod(shares(op).values()) * prod(more) * self.special.work(op)

    # Kernels and transfers

    def kernel_ns(self, flops: float, size_bytes: float, kernels: int = 1, of: tuple[Node, str] | None = None) -> int:
        """Time of a kernel, or of several that are launched one after another; `of`: of which node, in which phase."""
        work, moved = (np.array(x, dtype=np.float64) for x in (flops, size_bytes))
        return int(self._roofline.ns(work, moved, kernels, None if of is None else self._roofline.measured(*of)))

    def stream_ns(self, size_bytes: float) -> int:
        """Memory traffic within a shared kernel, without a launch."""
        return int(self._roofline.memory_ns(np.array(size_bytes, dtype=np.float64)))

    def copy_ns(self, read: Sequence[int], written: int) -> int:
        """A copy kernel: bytes of the tensors read and of the one written."""
        return self.kernel_ns(0.0, float(sum(read) + written))

    def accumulate_ns(self, tensor: PTensor, numel: int, scattered: int = 0) -> int:
        """In-place accumulation: reads the gradient in its compute dtype, reads and writes the sum.

        `scattered`: elements that the device keeps of the sum over ranks, and adds to those of earlier micro-batches.
        """
        node, item = self.graph.pcg.nodes[tensor.node], self.item(tensor)
        made = self._item(node) if tensor.kind == GRADIENT else item
        return self.stream_ns(numel * (made + 2.0 * item) + scattered * 3.0 * item)

    def host_ns(self, size_bytes: int) -> int:
        """A transfer to or from the host. PartitaError: the machine has no host_bandwidth."""
        bandwidth = self._host_bandwidth
        if not size_bytes:
            return 0
        return ceil(size_bytes / bandwidth * 1e9 + self.machine.device.launch_ns - ROUNDING_NS)

    @property
    def _host_bandwidth(self) -> float:
        """PartitaError: the machine has none."""
        bandwidth = self.machine.device.host_bandwidth
        if bandwidth is None:
            swapped = (op.swapped for op in self.graph.ops if op.swapped is not None)
            words = (
                f"the plan swaps, but machine {self.machine.name} has no host_bandwidth: name the bytes/s between a "
                "device and the host's memory in its file, device.host_bandwidth"
            )
            raise PartitaError(told(next((self.graph.groups[group - 1] for group in swapped), None), words))
        return bandwidth

    def collective_ns(self, kind: str, groups: Sequence[tuple[int, ...]], size_bytes: int, share: float = 1.0) -> int:
        """A collective in all groups at once; bytes per member before it (all-gather: after it).

        `share`: of the latency, if other tensors are in the message.
        """
        line = self.links.collective(kind, np.array(groups))
        return CollectivePrice(line.latency_ns * share, line.ns_per_byte).ns(size_bytes)

    def ring_ns(self, groups: Sequence[tuple[int, ...]], size_bytes: int) -> int:
        """A sum of what stages have of one tensor, as the planner prices it: one message to the next around a ring."""
        pairs = [pair for group in groups for pair in zip(group, (*group[1:], group[0]), strict=True)]
        most = max(map(len, groups))
        return self.sends_ns(pairs, [-(-2 * (most - 1) * size_bytes // most)] * len(pairs))

    def sends_ns(self, pairs: Sequence[tuple[int, int]], sizes_bytes: Sequence[int], share: float = 1.0) -> int:
        """Simultaneous messages between (sender, receiver) pairs; `share`: of the latency, as in `collective_ns`."""
        senders, receivers = zip(*pairs, strict=True)
        return self.links.sends(senders, receivers, sizes_bytes, share=share)


def is_free(op: Op) -> bool:
    """True for views, fills, and constants that are computed in the first step alone."""
    entry = operator(op.of.op)
    return entry.view or not entry.passes or op.computed_once


def deferred_halves(op: Op) -> int:
    """How many halves of a backward that is split are left to the weight gradient, as the planner defers them."""
    nodes = op.graph.pcg.nodes
    trained = {nodes[i].op == "parameter" for i in op.of.inputs if nodes[i].gradient}
    if trained == {True, False}:
        return 1 if operator(op.of.op).matmul else 0
    return 2 if trained == {True} else 0
