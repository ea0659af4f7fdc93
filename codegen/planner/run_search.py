"""Run searches of several spaces, together or one after the other."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from ...formulation.network.network import INFINITE
from ...model.errors import PartitaError
from ...solvers.budget import Budget
from ...solvers.executors import DelayedProcesses, usable_cores
from ...solvers.protocol import Limits, Solver
from ...solvers.reduction.joint_search import search_placements
from ...solvers.search.planning_problem import PlanningProblem
from ...solvers.search.result import ConfigurationSpace, SearchResult
from ...solvers.search.search import Asked, search_together
from ...solvers.search.share_search import search_shares
from .wide_rewriting import with_wide_meshes

ANY_PLAN = 0.999
"""The gap of a search that may end with its first plan."""


@dataclass(frozen=True, slots=True)
class SearchOutcome:
    """The problem that was searched last, the result, and the tensors that were rewritten before the search."""

    problem: PlanningProblem
    found: SearchResult
    rewrites: list[dict[str, str]]


Wanted: TypeAlias = tuple[PlanningProblem, ConfigurationSpace | None]
"""A problem and the configurations to search; None: no pipelines."""
Outcome: TypeAlias = SearchOutcome | PartitaError
"""What a search found, or why there is nothing to find."""


def run_search(wanted: Sequence[Wanted], backend: Solver, limits: Limits, budget: Budget) -> list[Outcome]:
    """What is found in spaces that are searched together, or one after the other where some have no pipelines."""
    if any(space is not None and space.shares for _, space in wanted):
        return [_unequal(problem, space, backend, limits) for problem, space in wanted if space is not None]
    asked = [Asked(problem, space) for problem, space in wanted if space is not None]
    if len(asked) < len(wanted):
        return [
            _finished(problem, search_placements(problem, backend, limits), backend, limits) for problem, _ in wanted
        ]
    if budget.executor is not None:
        found = search_together(asked, backend, limits, budget.executor)
    else:
        with DelayedProcesses(budget.workers or usable_cores()) as executor:
            found = search_together(asked, backend, limits, executor)
    return [
        one if isinstance(one, PartitaError) else _finished(problem, one, backend, limits)
        for (problem, _), one in zip(wanted, found, strict=True)
    ]


def _unequal(problem: PlanningProblem, space: ConfigurationSpace, backend: Solver, limits: Limits) -> Outcome:
    try:
        return SearchOutcome(problem, search_shares(problem, space, backend, limits), [])
    except PartitaError as error:
        return error


def _finished(problem: PlanningProblem, found: SearchResult, backend: Solver, limits: Limits) -> SearchOutcome:
    return SearchOutcome(problem, *with_wide_meshes(problem, found, backend, limits))


def anything_fits(wanted: Sequence[Wanted], seconds: float, budget: Budget) -> bool:
    """True if a plan of some of these spaces is found in time, however slow it is."""
    found = run_search(wanted, budget.backend(), Limits(seconds, gap=ANY_PLAN), budget)
    return any(isinstance(one, SearchOutcome) and one.found.objective is not None for one in found)


def without_bundles(problem: PlanningProblem, budget: Budget, start: float) -> dict[str, Any]:
    """The best plan without parallel branches, found in the time left: their gain is the difference."""
    left = max(1.0, budget.seconds - (time.monotonic() - start))
    plain = replace(problem, space=replace(problem.space, bundles=False))
    found = search_placements(plain, budget.backend(), Limits(left, gap=budget.gap))
    bound = found.bound if found.bound < INFINITE else None
    return {"status": found.status.value, "objective_ns": found.objective, "bound_ns": bound}
