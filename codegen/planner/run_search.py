"""Run searches; if nothing fits, say whether anything does without the options that narrow the space."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from ...formulation.network.network import INFINITE
from ...model.errors import PartitaError
from ...solvers.budget import Budget
from ...solvers.executors import DelayedProcesses, usable_cores
from ...solvers.protocol import Limits, Solver, Status
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
    """The problem that was searched last, the result, and the tensors that were rewritten before the search.

    `fits_freely`: nothing fits, but a plan without the options that narrow the space does.
    """

    problem: PlanningProblem
    found: SearchResult
    rewrites: list[dict[str, str]]
    fits_freely: bool = False


Wanted: TypeAlias = tuple[PlanningProblem, ConfigurationSpace | None]
"""A problem and the configurations to search; None: no pipelines."""
Outcome: TypeAlias = SearchOutcome | PartitaError
"""What a search found, or why there is nothing to find."""


def run_search(
    wanted: Sequence[Wanted],
    backend: Solver,
    limits: Limits,
    budget: Budget,
    *,
    tell: Callable[[str], None],
    freed: Callable[[], Sequence[Wanted]] | None = None,
) -> list[Outcome]:
    """Search one or two spaces together; if nothing fits, find out whether anything fits without the options.

    `freed` are the spaces without the options that narrow these; None if no option does.
    """
    first = _search_once(wanted, backend, limits, budget)
    found = [one.found for one in first if isinstance(one, SearchOutcome)]
    if freed is None or not found or not all(_lacks_memory(one, limits) for one in found):
        return first
    tell("nothing fits: searching for any plan without these options")
    left = Limits(limits.seconds - max(one.seconds for one in found), gap=ANY_PLAN)
    fits = any(_has_plan(one) for one in _search_once(freed(), backend, left, budget))
    return [replace(one, fits_freely=fits) if isinstance(one, SearchOutcome) else one for one in first]


def _search_once(wanted: Sequence[Wanted], backend: Solver, limits: Limits, budget: Budget) -> list[Outcome]:
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


def _has_plan(outcome: Outcome) -> bool:
    return isinstance(outcome, SearchOutcome) and outcome.found.objective is not None


def without_bundles(problem: PlanningProblem, budget: Budget, start: float) -> dict[str, Any]:
    """The best plan without parallel branches, found in the time left: their gain is the difference."""
    left = max(1.0, budget.seconds - (time.monotonic() - start))
    plain = replace(problem, space=replace(problem.space, bundles=False))
    found = search_placements(plain, budget.backend(), Limits(left, gap=budget.gap))
    bound = found.bound if found.bound < INFINITE else None
    return {"status": found.status.value, "objective_ns": found.objective, "bound_ns": bound}


def _lacks_memory(found: SearchResult, limits: Limits) -> bool:
    """True if no plan below the cutoff fits the memory."""
    cut = limits.cutoff is not None and found.missing_bytes is not None
    return found.objective is None and (cut or found.status is Status.INFEASIBLE)
