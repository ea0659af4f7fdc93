"""The price of a plan: the prices of its stages, and the time of a step of its schedule."""

from dataclasses import dataclass

from ...formulation.pipeline.configuration import step_ns
from ..plan.plan import Plan
from .pipeline_runs import runs
from .price_items import StagePrice
from .stage_price import stage_price


@dataclass(frozen=True)
class PlanPrice:
    """The prices of all stages, in the model's order; ns of a whole step, bytes of the device that holds most.

    `shared`: the price of what all devices of an interlaced pipeline compute together.
    """

    stages: tuple[StagePrice, ...]
    objective_ns: int
    memory_bytes: int
    shared: StagePrice | None = None

    @property
    def everything(self) -> tuple[StagePrice, ...]:
        """The prices of all parts of a plan, as in `Plan.everything`."""
        return self.stages if self.shared is None else (*self.stages, self.shared)

    @property
    def busy_ns(self) -> tuple[int, ...]:
        """The busy time of every stage in a step."""
        return tuple(stage.objective_ns for stage in self.stages)


def plan_price(plan: Plan) -> PlanPrice:
    """The predicted time and memory: a device holds all its stages.

    The time of a step follows from the formula of the schedule, if it has one; otherwise it is the makespan of the
    slots, each started as early as possible. If steps overlap, it is the busy time of the slowest stage. The step of an
    interlaced pipeline is the longer of both, and operators of all devices take time and memory of each.
    """
    schedule, shape = plan.schedule, (plan.size, plan.chunks, plan.micro_batches)
    between = schedule.between_passes(plan.size, plan.micro_batches)
    counts = (
        (schedule.weight_versions(s), schedule.deferred_weight_gradients(*shape, s), between)
        for s in range(len(plan.parts))
    )
    stages = tuple(
        stage_price(part, *count, delays_messages=schedule.delays_messages, paired=schedule.pairs(plan.size))
        for part, count in zip(plan.parts, counts, strict=True)
    )
    held = [
        sum(stages[s].memory_bytes for s in schedule.stages_of(device, plan.size, len(stages)))
        for device in range(plan.size)
    ]
    busy_ns = [stage.objective_ns for stage in stages]
    if schedule.priced_by_slots:
        step = max(run.end_ns for run in runs(plan, stages))
    else:
        step = step_ns(plan.size, schedule.rounds(plan.chunks, plan.micro_batches), busy_ns)
    if plan.shared is None:
        return PlanPrice(stages, step, max(held))
    shared = stage_price(plan.shared, read_as_stored=True)
    slots = max(run.end_ns for run in runs(plan, stages, shared))
    return PlanPrice(stages, max(step + shared.objective_ns, slots), max(held) + shared.memory_bytes, shared)
