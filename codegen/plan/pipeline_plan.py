"""A plan with a pipeline: contiguous stages of a model, each with its own devices, and a schedule."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ...formulation.pipeline.orders import Orders
from ...formulation.pipeline.schedule import ONE_F_ONE_B, Schedule, schedule_named
from ...formulation.placement.placement import Placement, of_rows
from ...model.graph.pcg import PCG
from ...model.machine.machine import Machine
from .axis_names import axis_names
from .delegation import PlanMethods, call
from .pipeline_checks import check
from .plan import Plan

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class PipelinePlan(PlanMethods):
    """A plan for every stage of a pipeline, checked: they fit each other and the machine, and can be run as they are.

    `graph` is the whole (shapes at one micro-batch); stage i is what lies between boundaries `bounds[i]` and
    `bounds[i + 1]` (`model.stages`), counted in the order of the model. `row` is the pipeline's factor on every level
    of the machine: with p = prod(row), stage i runs on the devices of coordinate i % p, planned as a machine of their
    own (`stage_machine`). `schedule` is the order of their work (a name is looked up), `chunks` the number
    of stages a device has. `model`, `report` and `module` are those of a `Plan`.
    """

    graph: PCG
    machine: Machine
    row: tuple[int, ...]
    bounds: tuple[int, ...]
    stages: tuple[Plan, ...]
    schedule: Schedule = ONE_F_ONE_B
    chunks: int = 1
    model: dict[str, Any] = field(default_factory=dict)
    report: dict[str, Any] = field(default_factory=dict)
    module: tuple[nn.Module, Any] | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        if isinstance(self.schedule, str):
            object.__setattr__(self, "schedule", schedule_named(self.schedule))
        check(self)

    @property
    def size(self) -> int:
        """How many parts the devices are divided into."""
        return math.prod(self.row)

    @property
    def ranks(self) -> int:
        return self.placement.devices

    @property
    def micro_batches(self) -> int:
        return self.stages[0].micro_batches

    @property
    def batch(self) -> int:
        """Samples in one step: over all ranks and micro-batches."""
        return self.graph.batch * self.micro_batches

    @property
    def dtype(self) -> str:
        return self.stages[0].dtype

    @property
    def optimizer(self) -> str:
        return self.stages[0].optimizer

    @property
    def recompute(self) -> dict[str, str]:
        """The recomputed segments of all stages, with their modes."""
        return {name: mode for part in self.stages for name, mode in part.recompute.items()}

    @cached_property
    def placement(self) -> Placement:
        """The mesh of all ranks: the pipeline's axis, outermost, and those that all stages share."""
        return of_rows((self.row, *self.stages[0].placement.matrix))

    @cached_property
    def axes(self) -> tuple[str, ...]:
        """A name for every axis of the whole mesh."""
        stages = [(stage.graph, stage.choices) for stage in self.stages]
        return ("pipeline", *axis_names(len(self.stages[0].placement.sizes), stages))

    @cached_property
    def parts(self) -> tuple[Plan, ...]:
        """The stages, with common names of their axes."""
        return tuple(replace(plan, names=self.axes[1:]) for plan in self.stages)

    @cached_property
    def orders(self) -> Orders:
        """For every coordinate of the pipeline its slots in order."""
        return self.schedule.orders(self.size, self.chunks, self.micro_batches)

    @classmethod
    def from_json(cls, data: Any) -> PipelinePlan:
        """Read what `to_json` gave. Raises PartitaError that says what is wrong and where."""
        plan: PipelinePlan = call("pipeline_from_json", data)
        return plan
