"""From a captured graph to a plan: rewrite, search, decode, confirm, for every dtype and schedule."""

import time
from dataclasses import asdict, replace
from typing import Any

from ...formulation.network.network import INFINITE
from ...formulation.search_space import EVERYTHING, SearchSpace
from ...model.garbage_collection import seldom_collected
from ...model.graph.pcg import PCG
from ...model.machine.machine import Machine
from ...model.training import Training
from ...solvers.budget import UNLIMITED, Budget
from ...solvers.protocol import Limits
from ...solvers.search.planning_problem import PlanningProblem
from ...solvers.search.result import ConfigurationSpace
from ..plan.plan import PipelinePlan, Plan
from .confirmed_plan import confirmed_plan
from .context import Context
from .graph_rewritings import all_rewritings, credited
from .pipeline_space import pipeline_space
from .problem import problem_of, save_network
from .run_search import run_search, without_bundles
from .search_report import searched_space, without_plan
from .solved_order import with_solved_order
from .variants import Variant, best_with_rivals, variants


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

    def plan_one(variant: Variant, seconds: float | None, cutoff: int | None) -> Plan:
        if len(tried) > 1:
            context.tell(f"planning in {variant.training.dtype}, pipelines {variant.space.schedule}")
        return plan_variant(graph, machine, variant, replace(budget, time_limit=seconds), context, cutoff)

    return best_with_rivals(tried, budget.time_limit, budget.gap, plan_one)


def plan_variant(
    graph: PCG, machine: Machine, variant: Variant, budget: Budget, context: Context, cutoff: int | None
) -> Plan:
    """Plan a captured graph in one dtype and schedule, for a step of less than `cutoff` ns."""
    training, space, captured = variant.training, variant.space, time.monotonic()
    rewritten = all_rewritings(graph, machine, training, space, context.tell) if space.rules else None
    rewrote = time.monotonic()
    problem = problem_of(rewritten.graph if rewritten else graph, machine, training, space, graph)
    if context.save_network is not None:
        save_network(problem, context.save_network)
    meshes = {place.sizes for place in problem.placements}
    context.tell(f"searching {len(problem.placements)} placements of {len(meshes)} meshes")
    limits = Limits(budget.seconds, cutoff, context.progress, budget.gap)
    began = time.monotonic()
    backend, among = budget.backend(), pipeline_space(problem, space)

    def freed() -> tuple[PlanningProblem, ConfigurationSpace | None]:
        whole = problem_of(graph, machine, training, space.free)
        return whole, pipeline_space(whole, space.free)

    alone = cutoff is None and not variant.added  # else what is planned freely was searched before
    narrowed = alone and replace(space, rules=(), saturation=space.free.saturation) != space.free
    result = run_search(problem, among, backend, limits, budget, tell=context.tell, freed=freed if narrowed else None)
    problem, found = result.problem, result.found
    ended = time.monotonic()
    seconds = {
        "capture": round(captured - context.start, 3),
        **({"rewrite": round(rewrote - captured, 3)} if rewritten else {}),
        "formulate": round(began - rewrote + found.seconds - found.solving, 3),
        "solve": round(found.solving, 3),
    }
    facts: dict[str, Any] = {
        "status": found.status.value,
        "bound_ns": found.bound if found.bound < INFINITE else None,
        "space": searched_space(problem, among, found, rewritten, variant.schedules or space.schedules),
        "seconds": seconds,
    }
    if found.configuration is None or found.objective is None:
        seconds["total"] = round(ended - context.start, 3)
        raise without_plan(result, dict(context.model), facts, backend.name)
    facts |= {
        "objective_ns": found.objective,
        "gap": found.gap,
        "solver": found.source or backend.name,
        "proof": None if found.proof is None else asdict(found.proof),
    }
    if rewritten:
        facts["rewritten"] = result.rewrites
    made = confirmed_plan(problem, found, facts, context)
    if rewritten and "rewritten" in made.report:
        made.report["rewritten"] = credited(made.report["rewritten"], rewritten)
    if isinstance(made, PipelinePlan) and made.schedule.limit is not None:
        context.tell("searching the order of the stages")
        made = with_solved_order(made, max(1.0, budget.seconds - (time.monotonic() - captured)))
    if made.size == 1 and "bundles" in made.report and not found.interrupted:
        made.report["without_bundles"] = without_bundles(problem, budget, context.start)
    emitting = time.monotonic()
    seconds["confirm"] = round(emitting - ended, 3)
    if context.emits:
        made.emit()  # any plan can be emitted
    seconds["emit"] = round(time.monotonic() - emitting, 3)
    seconds["total"] = round(time.monotonic() - context.start, 3)
    return made
