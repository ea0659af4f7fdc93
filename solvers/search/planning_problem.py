"""The planning problem: a graph and a batch on a machine, and its bounds that need no network."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf

from ...formulation.encoding.encode import encode
from ...formulation.encoding.encoding import Encoding
from ...formulation.encoding.encoding_options import EncodingOptions, StageContext
from ...formulation.encoding.recomputable_segments import recomputable_segments
from ...formulation.encoding.shared_tables import SharedTables
from ...formulation.placement.placement import Placement
from ...formulation.search_space import SearchSpace
from ...formulation.strategies.alternatives import Alternatives
from ...formulation.strategies.tensor_classes import classes
from ...model.graph.atoms import atoms
from ...model.graph.batch import with_batch
from ...model.graph.constants import built_once
from ...model.graph.dtypes import ITEMSIZE
from ...model.graph.pcg import PCG, SOURCES
from ...model.machine.machine import Device, Machine
from ...model.machine.precision import precision
from ...model.machine.roofline import both_ways_flops
from ...model.operators.operator import operator
from ...model.training import Training
from ..backends.table_spread import balanced


@dataclass(frozen=True)
class PlanningProblem:
    """Train `pcg` over these placements and numbers of micro-batches.

    Placements with so many axes that one elimination takes more than `most_work` additions are left out. If `pcg` has
    alternatives, `plain` is the graph without them, used for placements with too many axes for the alternatives.
    `orders`: other orders of the placements' axes are searched too, if that is little work. `interlaced`: the whole
    graph where all devices share some operators (`model.graph.interlaced`); `pcg` are then its layers. `recycled`: the
    whole graph where micro-batches pass a pipeline several times (`model.graph.folded`); `pcg` is then folded.
    """

    pcg: PCG
    machine: Machine
    training: Training
    placements: tuple[Placement, ...]
    micro_batches: tuple[int, ...]
    space: SearchSpace
    most_work: float = inf
    plain: PCG | None = None
    orders: bool = False
    interlaced: PCG | None = None
    recycled: PCG | None = None

    @property
    def whole(self) -> PCG:
        """The graph of which `pcg` is cut into stages."""
        return self.interlaced or self.recycled or self.pcg

    @property
    def batch(self) -> int:
        """Samples in a step."""
        return self.training.batch

    @property
    def fastest(self) -> tuple[str, ...]:
        """Recomputation modes worth choosing if memory is ignored: none, unless another one is fixed or decided.

        Measured kernels may be faster in parts, which are then worth choosing too.
        """
        modes = self.space.modes
        by_parts = bool(self.machine.device.kernels) and self.space.in_parts
        decided = {*self.space.decided.modes} - {"none"}
        return ("none",) if "none" in modes and not by_parts and not decided else modes

    @property
    def captured(self) -> "PlanningProblem":
        """The problem of the graph without alternatives."""
        return self if self.plain is None else replace(self, pcg=self.plain, plain=None)

    def encoding(
        self, placement: Placement, k: int, fast: bool = False, shared: SharedTables | None = None
    ) -> Encoding:
        """The network of a placement with k micro-batches; `fast`: in the fastest recomputation modes only.

        `shared` holds the tables of other networks of the placement.
        """
        return encode(
            with_batch(self.pcg, self.batch // k),
            self.machine,
            placement,
            micro_batches=k,
            dtype=self.training.dtype,
            optimizer=self.training.optimizer,
            options=EncodingOptions(self.space, self.fastest if fast else self.space.modes, spread_tables=balanced),
            stage=StageContext(shared=shared),
        )

    def floor_ns(self) -> int:
        """Lower bound on the step: all arithmetic spread evenly at the devices' full rate."""
        rate = self.machine.device.flops(precision(self.training.dtype).compute) * self.machine.devices
        whole = with_batch(self.pcg, self.batch)
        needed, once = Alternatives(whole, classes(whole)).needed(), built_once(whole)
        device = self.machine.device
        work = sum(min(_work(whole, way, device) for way in ways) for ways in needed if once.isdisjoint(ways))
        return int(work / rate * 1e9 * (1 - 1e-9))

    def fits(self) -> tuple[int, ...]:
        """The numbers of micro-batches, without those that exceed the memory however tensors are split.

        Parameters and tensors kept for backward are held by at least one device each, so their total bounds the use. Of
        segments that may be recomputed only the inputs are sure to be kept.
        """
        whole, form = with_batch(self.pcg, self.batch), precision(self.training.dtype)
        grouped = classes(whole)
        kept: dict[int, int] = {}
        fixed = sum(whole.nodes[i].numel for i in whole.of("parameter") if i in whole.plain) * ITEMSIZE[form.parameters]
        again = recomputable_segments(whole, grouped) if self.space.modes != ("none",) else ()
        segment = {i: s.name for s in again for i in s.nodes}
        for index in (ways[0] for ways in Alternatives(whole, grouped).needed() if len(ways) == 1):
            node = whole.nodes[index]
            if not node.gradient or node.op in SOURCES:
                continue
            entry = operator(node.op)
            named = zip(entry.named(node), node.inputs, strict=True)
            for tensor in (*(i for name, i in named if name in entry.saved), *((index,) if "y" in entry.saved else ())):
                base = grouped.base[tensor]
                if index in segment and segment[index] == segment.get(base):
                    continue
                if whole.nodes[base].op not in ("parameter", "buffer") and not grouped.constant[base]:
                    kept[base] = whole.nodes[base].numel * form.itemsize(whole.nodes[base].dtype)
        known, devices = atoms(whole), self.machine.devices
        cut = sum(size for base, size in kept.items() if known[base].batch)
        fixed += sum(size for base, size in kept.items() if not known[base].batch)
        capacity = self.machine.device.capacity_bytes * devices
        return tuple(k for k in self.micro_batches if fixed + cut / k <= capacity)


def _work(pcg: PCG, index: int, device: Device) -> float:
    """FLOPs of a node, forward and backward, as `Device.work_factor` counts them."""
    op = pcg.nodes[index].op
    computes = op not in SOURCES and operator(op).passes
    return both_ways_flops(pcg, index) * device.work_factor(op) if computes else 0.0


def atom_sizes(pcg: PCG, batch: int, micro_batches: Sequence[int]) -> set[int]:
    """Sizes of all splittable dims at every number of micro-batches."""
    sizes: set[int] = set()
    for found in set(atoms(with_batch(pcg, batch))):
        for atom, size in enumerate(found.sizes):
            sizes |= {size // k for k in micro_batches if size % k == 0} if atom in found.batch else {size}
    return sizes
