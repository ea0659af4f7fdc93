"""The plan of a search result without a pipeline, confirmed by the second pricer."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from ...formulation.network.network import INFINITE
from ...formulation.rewriting.saturate import Rewritten
from ...solvers.budget import Budget
from ...solvers.protocol import Limits, Status
from ...solvers.search.planning_problem import PlanningProblem
from ...solvers.search.search import search
from ..plan.plan import Plan
from ..pricing.stage_price import stage_price
from .context import Context
from .decode import report
from .rewritten_graph import decided
from .run_search import SearchOutcome


def unpipelined(result: SearchOutcome, rewritten: Rewritten | None, context: Context, facts: dict[str, Any]) -> Plan:
    """The plan that the search found without a pipeline, confirmed."""
    problem, ((best, assignment),) = result.problem, result.found.stages
    if rewritten:
        facts = {**facts, "rewritten": result.rewrites}
    (taken, chosen), training = decided(best, assignment), problem.training
    made = Plan(
        taken, problem.machine, best.placement, best.micro_batches, chosen, training.dtype, training.optimizer,
        dict(context.model), report(best, assignment) | facts, context.module,
        recompute=best.recomputed(assignment),
    )  # fmt: skip
    _confirm(made, rewritten)
    return made


def _confirm(made: Plan, rewritten: Rewritten | None) -> None:
    """Assert the price and memory of a plan by the second pricer, which shares nothing with the encoding.

    With rewritings both may be lower: room is kept for the largest weights that any rewriting gathers, and a plan that
    is not optimal may hold what nothing reads. The report then has the plan's own.
    """
    confirmed, report = stage_price(made), made.report
    if made.recompute:
        report["recompute_ns"] = confirmed.recompute_ns
    if rewritten is None or not rewritten.ways:
        assert confirmed.objective_ns == report["objective_ns"], (confirmed.ns, report["objective_ns"])
        assert confirmed.memory_bytes == report["memory_bytes"], (confirmed.memory, report["memory_bytes"])
        return
    optimal = report["status"] == Status.OPTIMAL.value
    assert confirmed.objective_ns <= report["objective_ns"], (confirmed.ns, report["objective_ns"])
    assert confirmed.objective_ns == report["objective_ns"] or not optimal, (confirmed.ns, report["objective_ns"])
    assert confirmed.memory_bytes <= report["memory_bytes"], (confirmed.memory, report["memory_bytes"])
    report["objective_ns"], report["memory_bytes"] = confirmed.objective_ns, confirmed.memory_bytes
    report["gap"] = (confirmed.objective_ns - report["bound_ns"]) / confirmed.objective_ns


def without_bundles(problem: PlanningProblem, budget: Budget, start: float) -> dict[str, Any]:
    """The best plan in which no branches run side by side, in the time left: their gain is the difference."""
    left = max(1.0, budget.seconds - (time.monotonic() - start))
    found = search(
        replace(problem, space=replace(problem.space, bundles=False)), budget.backend(), Limits(left, gap=budget.gap)
    )
    bound = found.bound if found.bound < INFINITE else None
    return {"status": found.status.value, "objective_ns": found.objective, "bound_ns": bound}
