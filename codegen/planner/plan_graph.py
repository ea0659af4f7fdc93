"""From a captured graph to a plan: rewrite, search, decode, confirm, for every dtype and schedule."""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any, TypeVar

from ...formulation.network.network import INFINITE
from ...formulation.search_space import EVERYTHING, SearchSpace
from ...model.errors import DoesNotFitError, PartitaError
from ...model.garbage_collection import seldom_collected
from ...model.graph.pcg import PCG
from ...model.machine.machine import Machine
from ...model.training import Training
from ...solvers.budget import UNLIMITED, Budget
from ...solvers.protocol import Limits
from ..plan.plan import PipelinePlan, Plan
from .by_operators import try_to_write
from .confirmed_plan import confirmed_plan
from .context import Context
from .graph_rewritings import credited
from .prepared import Prepared, freed, prepared
from .run_search import SearchOutcome, anything_fits, run_search, without_bundles
from .search_report import searched_space, without_plan
from .solved_order import with_solved_order
from .variants import Variant, best_with_rivals, variants

_T = TypeVar("_T")


@seldom_collected()
def plan_graph(
    graph: PCG,
    machine: Machine,
    training: Training,
    space: SearchSpace = EVERYTHING,
    budget: Budget = UNLIMITED,
    context: Context | None = None,
) -> Plan:
    """Plan a captured graph in the best dtype and schedule of those named; an interrupt keeps the best plan so far."""
    context = context or Context()
    tried = variants(graph, machine, training, space)

    def plan_some(
        together: Sequence[Variant], seconds: float | None, cutoff: int | None
    ) -> Sequence[Plan | PartitaError]:
        if len(tried) > 1:
            schedules = " and ".join(one.space.schedule for one in together)
            context.tell(f"planning in {together[0].training.dtype}, pipelines {schedules}")
        return plan_variants(graph, machine, together, replace(budget, time_limit=seconds), context, cutoff)

    began = time.monotonic()
    try:
        return best_with_rivals(tried, budget.time_limit, budget.gap, plan_some)
    except DoesNotFitError as error:
        free = freed(graph, machine, tried) if context.explains else None
        if free is None:
            raise
        context.tell("nothing fits: searching for any plan without the options that narrow the search")
        if not anything_fits(free(), budget.seconds - (time.monotonic() - began), budget):
            raise
        raise DoesNotFitError(f"{error}; it fits without the options that narrow the search") from error


def plan_variants(
    graph: PCG, machine: Machine, together: Sequence[Variant], budget: Budget, context: Context, cutoff: int | None
) -> Sequence[Plan | PartitaError]:
    """Plan a captured graph for a step of less than `cutoff` ns: the plan of each variant, or why it has none.

    They differ in their schedules alone, and are searched together.
    """
    given = [_attempt(partial(prepared, graph, machine, variant, context)) for variant in together]
    wanted = [(one.problem, one.among) for one in given if isinstance(one, Prepared)]
    limits = Limits(budget.seconds, cutoff, context.progress, budget.gap)
    found = run_search(wanted, budget.backend(), limits, budget) if wanted else []
    ended, outcomes = time.monotonic(), iter(found)
    steps = [one.found.objective for one in found if isinstance(one, SearchOutcome) and one.found.objective is not None]
    made: list[Plan | PartitaError] = []
    for own in given:
        outcome = own if isinstance(own, PartitaError) else next(outcomes)
        if isinstance(own, Prepared) and isinstance(outcome, SearchOutcome):
            emits = context.emits and outcome.found.objective == min(steps, default=None)
            shown = replace(context, emits=emits)
            made.append(_attempt(partial(_planned, own, outcome, budget, shown, ended)))
        elif isinstance(outcome, PartitaError):
            made.append(outcome)
    return made


def _attempt(make: Callable[[], _T]) -> _T | PartitaError:
    """What a function makes, or why it cannot."""
    try:
        return make()
    except PartitaError as error:
        return error


def _planned(own: Prepared, outcome: SearchOutcome, budget: Budget, context: Context, ended: float) -> Plan:
    """The plan of a search that ended at a time. PartitaError: it found none."""
    variant, rewritten = own.variant, own.rewritten
    problem, found = outcome.problem, outcome.found
    seconds = {
        **own.seconds,
        "formulate": round(own.seconds["formulate"] + found.seconds - found.solving, 3),
        "solve": round(found.solving, 3),
    }
    schedules = variant.schedules or variant.space.schedules
    facts: dict[str, Any] = {
        "status": found.status.value,
        "bound_ns": found.bound if found.bound < INFINITE else None,
        "space": searched_space(problem, own.among, found, rewritten, schedules),
        "seconds": seconds,
    }
    if found.configuration is None or found.objective is None:
        seconds["total"] = round(ended - context.start, 3)
        raise without_plan(outcome, dict(context.model), facts, budget.backend().name)
    facts |= {
        "objective_ns": found.objective,
        "gap": found.gap,
        "solver": found.source or budget.backend().name,
        "proof": None if found.proof is None else asdict(found.proof),
    }
    if rewritten:
        facts["rewritten"] = outcome.rewrites
    made = confirmed_plan(problem, found, facts, context)
    if rewritten and "rewritten" in made.report:
        made.report["rewritten"] = credited(made.report["rewritten"], rewritten)
    if isinstance(made, PipelinePlan) and made.schedule.limit is not None:
        context.tell("searching the order of the stages")
        made = with_solved_order(made, max(1.0, budget.seconds - (time.monotonic() - own.at)))
    if made.size == 1 and "bundles" in made.report and not found.interrupted:
        made.report["without_bundles"] = without_bundles(problem, budget, context.start)
    emitting = time.monotonic()
    seconds["confirm"] = round(emitting - ended, 3)
    if context.emits:
        try_to_write(made)
    seconds["emit"] = round(time.monotonic() - emitting, 3)
    seconds["total"] = round(time.monotonic() - context.start, 3)
    return made
