"""What a pipelined plan costs: the prices of its stages' plans, and how long they wait for each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...formulation.outer import rounds, step_ns, versions
from ...model.cost import ITEMSIZE, precision
from ..items import Kept, Priced
from ..price import priced as priced_stage
from ..pricing.moves import Moves
from .runs import runs

if TYPE_CHECKING:
    from ..plan import Plan
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

    Where backwards are split, the step is the time of all slots, each as early as it can be; where steps do not wait
    for each other, it is what the slowest works.
    """
    stages = tuple(map(priced_stage, plan.parts))
    if plan.stale:
        older = [of_versions(part, versions(plan.schedule, number)) for number, part in enumerate(plan.parts)]
        stages = tuple(Priced(s.items, [*s.kept, *more]) for s, more in zip(stages, older, strict=True))
    held = [sum(stage.memory_bytes for stage in stages[device :: plan.size]) for device in range(plan.size)]
    busy_ns = [stage.objective_ns for stage in stages]
    if plan.schedule == "zero-bubble":
        step = max(run.end_ns for run in runs(plan, stages))
    else:
        step = step_ns(plan.size, rounds(plan.schedule, plan.chunks, plan.micro_batches), busy_ns)
    return PipelinePriced(stages, step, max(held))


def of_versions(part: Plan, count: int) -> list[Kept]:
    """What a stage keeps for so many versions of its weights besides, or of their gradients."""
    sizes, item = Moves(part), ITEMSIZE[precision(part.dtype).master]
    trained = (i for i in part.graph.of("parameter") if part.graph.nodes[i].gradient)
    return [Kept("states", i, count * item * sizes.numel(i, part.choices[i].output)) for i in trained] if count else []
