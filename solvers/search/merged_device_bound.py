"""What no placement goes below: a stage whose devices compute, and keep, as one device that is as fast and as large.

On any mesh a device has at least its even share of all arithmetic, of all memory traffic and of every tensor that is
kept, launches every kernel, and sends something besides. So the plan of one device that is all devices of a stage at
once is a bound for every mesh and every placement, of which there is one network for each number of stages and of
micro-batches, with one option for most nodes. It knows of memory: where all placements have to compute segments again,
so has it to.
"""

from __future__ import annotations

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
from ...formulation.weights.fixed_memory import fixed_bytes
from ...model.machine.machine import merged_device
from ...model.machine.precision import precision
from .part_bounds import Answer, Query
from .part_networks import PartNetworks
from .pipeline_problem import PipelineProblem
from .shortest_cut import Times
from .state import Effort

_ONE = Placement((1,), ((1,),))


@dataclass
class MergedDeviceBound(PartNetworks):
    """The parts of a model on merged devices; of the configuration only the stages and the micro-batches count."""

    @property
    def merged(self) -> int:
        return self.pipeline.problem.machine.devices // self.configuration.devices

    @property
    def handed(self) -> Times:
        """[n]: the least over all places of the pipeline."""
        own, hierarchy = self.configuration, self.pipeline.problem.machine.hierarchy
        places = rows(hierarchy, own.devices)
        return reduce(np.minimum, (self.pipeline.handed(own.along(row)) for row in places))

    def solve(self, i: int, j: int, query: Query, effort: Effort) -> Answer:
        """What bounds the least time of a part: nothing is one solution for all placements."""
        return replace(super().solve(i, j, query, effort), objective=None, assignment=None)

    def encoding(self, i: int, j: int, in_flight: int) -> Encoding:
        own = self.configuration
        q, kept = self.pipeline.problem, in_flight or own.in_flight(0)
        modes = own.modes(q.space.modes if in_flight else q.fastest)
        stage = StageContext(
            kept, weight_versions=own.weight_versions, deferred_weight_gradients=own.deferred_weight_gradients
        )
        return _encoding(self.pipeline, self.merged, own.micro_batches, (i, j), modes, stage)


@lru_cache(maxsize=4)
def _encoding(
    pipeline: PipelineProblem,
    devices: int,
    micro_batches: int,
    part: tuple[int, int],
    modes: tuple[str, ...],
    stage: StageContext,
) -> Encoding:
    """The network of a part on so many devices merged. Branches that may run side by side launch nothing there."""
    q = pipeline.problem
    graph, form = pipeline.graph(*part, micro_batches), precision(q.training.dtype)
    machine = merged_device(q.machine, devices, launches=not (q.space.bundles and find_bundles(graph)))
    apart = devices * (q.machine.device.capacity_bytes - fixed_bytes(graph, form, devices, micro_batches))
    return encode(
        graph,
        machine,
        _ONE,
        micro_batches=micro_batches,
        dtype=q.training.dtype,
        optimizer=q.training.optimizer,
        options=EncodingOptions(
            recompute=modes,
            bundles=False,
            offload=bool(q.space.offload),
            capacity_bytes=apart + fixed_bytes(graph, form, 1, micro_batches),
        ),
        stage=replace(stage, shared=_tables(pipeline, devices, micro_batches)),
    )


@lru_cache(maxsize=2)
def _tables(pipeline: PipelineProblem, devices: int, micro_batches: int) -> SharedTables:
    """What the parts have in common."""
    return SharedTables()
