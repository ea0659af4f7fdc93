"""A plan without a pipeline, or of one stage: for every node of a graph its layouts on a mesh of a machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...formulation.pipeline.schedule import ONE_F_ONE_B, Schedule
from ...model.graph.pcg import PCG
from .checks import check
from .delegation import PlanMethods, call
from .stage_plan import StagePlan

if TYPE_CHECKING:
    from ..parallel_graph.graph import ParallelGraph


@dataclass(frozen=True)
class Plan(StagePlan, PlanMethods):
    """One choice per node of `graph` (shapes at one micro-batch, global over ranks), checked: it can be run as it is.

    It is its own single stage (`stages`); `PipelinePlan` has several, each of them a `Plan`. `model` says how to build
    the module again: reference, small, sequence, batch. `report` holds what the search found: status, objective_ns,
    bound_ns, gap, seconds, memory_bytes, capacity_bytes, space, unsplit_flops. `module` is the module that was planned,
    with its example inputs, where the plan was made from one; it is not saved. `recompute` names the segments
    (`model.graph.segments`) whose forward runs once more before their backward: `full` or `selective`. `names` are
    those of the axes, where stages share them; not saved either. Of a stage of a pipeline, `in_flight` micro-batches
    are kept for backward at once, and `transfer` prices what is sent to the next stage.
    """

    def __post_init__(self) -> None:
        check(self)

    @property
    def size(self) -> int:
        """How many parts the devices are divided into: a pipeline has several."""
        return 1

    @property
    def schedule(self) -> Schedule:
        """That of a pipeline with one stage."""
        return ONE_F_ONE_B

    @property
    def chunks(self) -> int:
        """Stages that a device has."""
        return 1

    @property
    def stages(self) -> tuple[Plan, ...]:
        """Itself."""
        return (self,)

    @property
    def parts(self) -> tuple[Plan, ...]:
        """The stages, which share the names of their axes."""
        return (self,)

    def parallel_graph(self) -> ParallelGraph:
        """The PCG with parallelization as operators of its own, priced to the same step."""
        graph: ParallelGraph = call("parallel_graph", self)
        return graph

    @classmethod
    def from_json(cls, data: Any, graph: PCG | None = None) -> Plan:
        """Read what `to_json` gave; `graph` is the plan's where that is known.

        Raises PartitaError that says what is wrong and where.
        """
        plan: Plan = call("stage_from_json", data, graph)
        return plan
