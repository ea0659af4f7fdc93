"""What a pipelined plan costs: the prices of its stages' plans, and how long they wait for each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...formulation.pipeline.configuration import later, rounds, step_ns, versions
from .pipeline_runs import runs
from .plan_price import priced as priced_stage
from .price_items import Priced

if TYPE_CHECKING:
    from ..plan.pipeline_plan import PipelinePlan


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

    Where backwards are split, the step is the time of all slots, each as early as it can be; where steps do not wait
    for each other, it is what the slowest works.
    """
    name, micros = plan.schedule, plan.micro_batches
    stages = tuple(priced_stage(p, versions(name, s), later(name, micros, s)) for s, p in enumerate(plan.parts))
    held = [sum(stage.memory_bytes for stage in stages[device :: plan.size]) for device in range(plan.size)]
    busy_ns = [stage.objective_ns for stage in stages]
    if plan.split:
        step = max(run.end_ns for run in runs(plan, stages))
    else:
        step = step_ns(plan.size, rounds(name, plan.chunks, micros), busy_ns)
    return PipelinePriced(stages, step, max(held))
