"""`--schedule solve`: the order of slots of a planned pipeline, found by the solver."""

from dataclasses import replace

from ...formulation.pipeline.schedule import with_orders
from ...solvers.gap import relative_gap
from ...solvers.protocol import Status
from ...solvers.schedule.cpsat import solve
from ..plan.plan import PipelinePlan
from ..pricing.pipeline_runs import slot_problem
from ..pricing.plan_price import plan_price

MOST_SECONDS = 30.0
"""Limit on the time for an order: CP-SAT seldom improves it later."""


def with_solved_order(plan: PipelinePlan, seconds: float) -> PipelinePlan:
    """The plan with the shortest order found within its stages' memory; never longer than the order it had.

    The report's `order` has the proof for these stages: of the whole step, with messages and updates.
    """
    schedule, shape, before = plan.schedule, (plan.size, plan.chunks, plan.micro_batches), plan_price(plan)
    room = tuple(schedule.in_flight(*shape, stage) for stage in range(plan.size))
    problem = slot_problem(plan, before.stages, room)
    answer = solve(problem, known=[plan.orders], seconds=min(seconds, MOST_SECONDS))
    made = replace(plan, schedule=with_orders(schedule, answer.orders, plan.micro_batches))
    cost, report = plan_price(made), dict(plan.report)
    assert cost.objective_ns == answer.objective_ns, (cost.objective_ns, answer.objective_ns)
    for part, stage in zip(made.stages, cost.stages, strict=True):
        part.report["memory_bytes"] = stage.memory_bytes
    step, bound = cost.objective_ns, report["bound_ns"]
    report |= {
        "objective_ns": step,
        "memory_bytes": cost.memory_bytes,
        "status": Status.OPTIMAL.value if step == bound else report["status"],
        "gap": relative_gap(step, bound),
        "order": {
            "status": answer.status.value,
            "step_ns": answer.objective_ns,
            "bound_ns": answer.bound_ns,
            "seconds": round(answer.seconds, 3),
        },
    }
    return replace(made, report=report)
