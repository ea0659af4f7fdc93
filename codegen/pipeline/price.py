"""What a pipelined plan costs: the prices of its stages' plans, and how long they wait for each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..items import Priced
from ..price import priced as priced_stage
from .runs import runs
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


def priced(plan: PipelinePlan) -> PipelinePriced:
    """The predicted time and memory: a device holds all its stages.

    Where backwards are split, the step is the time of all slots, each as early as it can be.
    """
    stages = tuple(map(priced_stage, plan.parts))
    held = [sum(stage.memory_bytes for stage in stages[device :: plan.size]) for device in range(plan.size)]
    if plan.schedule == "zero-bubble":
        step = max(run.end_ns for run in runs(plan, stages))
    else:
        busy_ns = [stage.objective_ns for stage in stages]
        step = step_ns(plan.size, plan.chunks, plan.micro_batches, busy_ns)
    return PipelinePriced(stages, step, max(held))
