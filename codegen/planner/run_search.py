"""Run a search; if the model fits the devices in no way, once more with optimizer states in the host's memory.

Options that narrow the space do not add states on the host: else a narrower space could have a faster plan.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod
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
    """Search a space (None: no pipelines); if nothing fits, once more with states on the host, if the options admit it.

    A double-buffered schedule keeps no states on the host. `freed` is None if no option narrows the space.
    """
    first = _search_once(problem, space, backend, limits, budget)
    double_buffered = space is not None and space.schedule.double_buffered
    if double_buffered and space is not None and all(prod(row) > 1 for row in space.placements):
        return first
    if problem.space.offload is not None or not _lacks_memory(first, limits):
        return first
    if freed is not None:
        tell("nothing fits: searching for any plan without these options")
        left = Limits(limits.seconds - first.found.seconds, gap=ANY_PLAN)
        if _search_once(*freed(), backend, left, budget).found.objective is not None:
            return replace(first, fits_freely=True)
    tell("nothing fits: searching with optimizer states in the host's memory")
    left = replace(limits, seconds=limits.seconds - first.found.seconds)
    offloaded = replace(problem, space=replace(problem.space, offload=True))
    second = _search_once(offloaded, space, backend, left, budget)
    found = replace(
        second.found,
        seconds=first.found.seconds + second.found.seconds,
        solving=first.found.solving + second.found.solving,
        solved=first.found.solved + second.found.solved,
        kept=first.found.kept + second.found.kept,
    )
    return replace(second, found=found)


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
    """True if no plan below the cutoff fits the memory, and the device can use the host's."""
    cut = limits.cutoff is not None and first.found.missing_bytes is not None
    host = first.problem.machine.device.host_bandwidth
    return first.found.objective is None and host is not None and (cut or first.found.status is Status.INFEASIBLE)
