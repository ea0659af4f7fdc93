"""Run a search; if nothing fits, say whether anything does without the options that narrow the space."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from ...formulation.network.network import INFINITE
from ...solvers.budget import Budget
from ...solvers.executors import DelayedProcesses, usable_cores
from ...solvers.protocol import Limits, Solver, Status
from ...solvers.reduction.joint_search import search_placements
from ...solvers.search.planning_problem import PlanningProblem
from ...solvers.search.result import ConfigurationSpace, SearchResult
from ...solvers.search.search import search
from .wide_rewriting import with_wide_meshes

ANY_PLAN = 0.999
"""The gap of a search that may end with its first plan."""


@dataclass(frozen=True, slots=True)
class SearchOutcome:
    """The problem that was searched last, the result, and the tensors that were rewritten before the search.

    `fits_freely`: nothing fits, but a plan without the options that narrow the space does.
    """

    problem: PlanningProblem
    found: SearchResult
    rewrites: list[dict[str, str]]
    fits_freely: bool = False


Freed: TypeAlias = Callable[[], tuple[PlanningProblem, ConfigurationSpace | None]]
"""The problem and the configurations without the options that narrow the space."""


def run_search(
    problem: PlanningProblem,
    space: ConfigurationSpace | None,
    backend: Solver,
    limits: Limits,
    budget: Budget,
    *,
    tell: Callable[[str], None],
    freed: Freed | None = None,
) -> SearchOutcome:
    """Search a space (None: no pipelines); if nothing fits, find out whether anything fits without the options.

    `freed` is None if no option narrows the space.
    """
    first = _search_once(problem, space, backend, limits, budget)
    if freed is None or not _lacks_memory(first, limits):
        return first
    tell("nothing fits: searching for any plan without these options")
    left = Limits(limits.seconds - first.found.seconds, gap=ANY_PLAN)
    return replace(first, fits_freely=_search_once(*freed(), backend, left, budget).found.objective is not None)


def _search_once(
    problem: PlanningProblem, space: ConfigurationSpace | None, backend: Solver, limits: Limits, budget: Budget
) -> SearchOutcome:
    if space is None:
        found = search_placements(problem, backend, limits)
    elif budget.executor is not None:
        found = search(problem, backend, limits, space, budget.executor)
    else:
        with DelayedProcesses(budget.workers or usable_cores()) as executor:
            found = search(problem, backend, limits, space, executor)
    return SearchOutcome(problem, *with_wide_meshes(problem, found, backend, limits))


def without_bundles(problem: PlanningProblem, budget: Budget, start: float) -> dict[str, Any]:
    """The best plan without parallel branches, found in the time left: their gain is the difference."""
    left = max(1.0, budget.seconds - (time.monotonic() - start))
    plain = replace(problem, space=replace(problem.space, bundles=False))
    found = search_placements(plain, budget.backend(), Limits(left, gap=budget.gap))
    bound = found.bound if found.bound < INFINITE else None
    return {"status": found.status.value, "objective_ns": found.objective, "bound_ns": bound}


def _lacks_memory(first: SearchOutcome, limits: Limits) -> bool:
    """True if no plan below the cutoff fits the memory."""
    cut = limits.cutoff is not None and first.found.missing_bytes is not None
    return first.found.objective is None and (cut or first.found.status is Status.INFEASIBLE)
