"""Lower bound over all placements: each stage runs on one device with the speed and memory of all its devices.

On any mesh, some device has at least its even share of all arithmetic, memory traffic and kept tensors, launches every
kernel, and communicates on top. So the plan of the merged device bounds every mesh and placement: one network for each
number of stages and micro-batches, with one option for most nodes. It includes memory: if every placement must
recompute, so must the merged device.
"""

from dataclasses import dataclass, replace
from functools import lru_cache, reduce

import numpy as np

from ...formulation.bundles.bundles import find_bundles
from ...formulation.encoding.encode import encode
from ...formulation.encoding.encoding import Encoding
from ...formulation.encoding.encoding_options import EncodingOptions, StageContext
from ...formulation.encoding.shared_tables import SharedTables
from ...formulation.pipeline.configuration import rows
from ...formulation.placement.placement import Placement
from ...formulation.strategies.node_floors import floors_ns
from ...formulation.weights.fixed_memory import fixed_bytes
from ...model.graph.batch import with_batch
from ...model.graph.interlaced import interlaced
from ...model.machine.merged_device import merged_device
from ...model.machine.precision import precision
from .part_bounds import PartAnswer, Query
from .part_encoding import View, in_view
from .part_networks import PartNetworks
from .pipeline_problem import PipelineProblem
from .shared_operators import NOTHING, Least
from .shortest_cut import Times
from .state import Effort

_ONE = Placement((1,), ((1,),))


@dataclass
class MergedDeviceBound(PartNetworks):
    """The parts of a model on merged devices; only the stages and micro-batches of the configuration matter."""

    @property
    def merged(self) -> int:
        return self.pipeline.problem.machine.devices // self.configuration.groups

    @property
    def beside(self) -> Least:
        """The kernels of shared operators, evenly spread over all devices."""
        return _beside(self.pipeline, self.configuration.micro_batches)

    @property
    def transfer_floors(self) -> Times:
        """[2, n]: the least over all pipeline rows of this size."""
        own, hierarchy = self.configuration, self.pipeline.problem.machine.hierarchy
        places = rows(hierarchy, own.devices)
        return reduce(np.minimum, (self.pipeline.transfer_floors(own.along(row)) for row in places))

    def solve(self, i: int, j: int, query: Query, effort: Effort) -> PartAnswer:
        """The bound of a part; its solution is none of a real placement."""
        return replace(super().solve(i, j, query, effort), objective=None, assignment=None)

    @property
    def messages(self) -> Times | None:
        """The least over all pipeline rows of this size."""
        own, hierarchy = self.configuration, self.pipeline.problem.machine.hierarchy
        floors = (self.pipeline.message_floors(own.along(row)) for row in rows(hierarchy, own.devices))
        return reduce(np.minimum, floors) if own.formula_bounds else None

    def encoding(self, i: int, j: int, in_flight: int, inside: bool = False, view: View = View.BOUND) -> Encoding:
        own = self.configuration
        q = self.pipeline.problem
        modes = own.modes(q.space.modes if in_flight else q.fastest)
        stage = replace(
            in_view(own, (i, j), self.pipeline.count - 1, in_flight, view),
            weight_versions=own.weight_versions,
            deferred_weight_gradients=own.deferred_weight_gradients,
            between_passes=own.between_passes,
            inside=inside,
        )
        return _encoding(self.pipeline, self.merged, own.micro_batches, (i, j), modes, stage)


@lru_cache(maxsize=512)
def _beside(pipeline: PipelineProblem, micro_batches: int) -> Least:
    q = pipeline.problem
    if q.interlaced is None:
        return NOTHING
    shared = interlaced(with_batch(q.interlaced, q.batch // micro_batches)).shared.graph
    floors = floors_ns(shared, q.machine, q.machine.devices, precision(q.training.dtype), q.space.compile)
    return Least(micro_batches * int(floors[0].sum()))


@lru_cache(maxsize=4)
def _encoding(
    pipeline: PipelineProblem,
    devices: int,
    micro_batches: int,
    part: tuple[int, int],
    modes: tuple[str, ...],
    stage: StageContext,
) -> Encoding:
    """The network of a part on merged devices; with parallel branches, without kernel launches."""
    q = pipeline.problem
    graph, form = pipeline.graph(*part, micro_batches), precision(q.training.dtype)
    machine = merged_device(q.machine, devices, launches=not (q.space.bundles and find_bundles(graph)))
    variable_bytes = devices * (q.machine.device.capacity_bytes - fixed_bytes(graph, form, devices, micro_batches))
    return encode(
        graph,
        machine,
        _ONE,
        micro_batches=micro_batches,
        dtype=q.training.dtype,
        optimizer=q.training.optimizer,
        options=EncodingOptions(
            replace(q.space, fix=(), bundles=False, decided=replace(q.space.decided, weights=())),
            modes,
            capacity_bytes=variable_bytes + fixed_bytes(graph, form, 1, micro_batches),
        ),
        stage=replace(stage, shared=_tables(pipeline, devices, micro_batches)),
    )


@lru_cache(maxsize=2)
def _tables(pipeline: PipelineProblem, devices: int, micro_batches: int) -> SharedTables:
    """Tables shared by the parts."""
    return SharedTables()
