"""What a pipelined plan costs: the prices of its stages' plans, and how long they wait for each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..items import Phase, Priced
from ..price import priced as priced_stage
from .schedules import step_ns

if TYPE_CHECKING:
    from .plan import PipelinePlan


@dataclass(frozen=True)
class PipelinePriced:
    """The prices of all stages, in the model's order; ns of a whole step, bytes of the device that holds most."""

    stages: tuple[Priced, ...]
    objective_ns: int
    memory_bytes: int

    @property
    def busy_ns(self) -> tuple[int, ...]:
        """How long every stage works in a step."""
        return tuple(stage.objective_ns for stage in self.stages)

    def phase_ns(self, stage: int, phase: Phase) -> int:
        """How long a stage works in one phase, of all micro-batches."""
        return sum(item.total_ns for item in self.stages[stage].items if item.phase == phase)


def priced(plan: PipelinePlan) -> PipelinePriced:
    """The predicted time and memory: a device holds all its stages."""
    stages = tuple(map(priced_stage, plan.parts))
    busy_ns = [stage.objective_ns for stage in stages]
    held = [sum(stage.memory_bytes for stage in stages[device :: plan.size]) for device in range(plan.size)]
    return PipelinePriced(stages, step_ns(plan.size, plan.chunks, plan.micro_batches, busy_ns), max(held))
