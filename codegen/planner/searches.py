"""A problem searched with or without pipelines, and once more where nothing fits: with the host's memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod

from ...solvers.budget import Budget
from ...solvers.protocol import Limits, Solver, Status
from ...solvers.search.planning_problem import PlanningProblem
from ...solvers.search.search import SearchResult, Space
from ...solvers.search.unpipelined import Found, search
from .pipelined import alone, search_all
from .stand_ins import with_stand_ins


@dataclass(frozen=True, slots=True)
class Searched:
    """What was asked last, what was found, by which rewritings; `outside` where pipelines were looked at."""

    problem: PlanningProblem
    found: Found
    rewrites: list[dict[str, str]]
    outside: SearchResult | None


def searched(
    problem: PlanningProblem,
    among: Space | None,
    backend: Solver,
    limits: Limits,
    budget: Budget,
    offload: bool | None,
    tell: Callable[[str], None],
) -> Searched:
    """Search plans; with optimizer states on the host where these are asked for, or where nothing fits without."""
    first = _once(problem, among, backend, limits, budget)
    stale = among is not None and among.schedule.double_buffered and all(prod(row) > 1 for row in among.placements)
    if offload is not None or stale or not _full(first, limits):  # 2bw has nothing elsewhere
        return first
    tell("nothing fits: searching with optimizer states in the host's memory")
    left = replace(limits, seconds=limits.seconds - first.found.seconds)
    again = _once(replace(problem, offload=True), among, backend, left, budget)
    found = replace(
        again.found,
        seconds=first.found.seconds + again.found.seconds,
        solving=first.found.solving + again.found.solving,
        solved=first.found.solved + again.found.solved,
    )
    return replace(again, found=found)


def _once(problem: PlanningProblem, among: Space | None, backend: Solver, limits: Limits, budget: Budget) -> Searched:
    if among is not None:
        outside = search_all(problem, among, backend, limits, budget)
        return Searched(problem, alone(outside), [], outside)
    return Searched(problem, *with_stand_ins(problem, search(problem, backend, limits), backend, limits), None)


def _full(first: Searched, limits: Limits) -> bool:
    """Whether no plan fits the memory, or none that is good enough, and the host's may take some of it."""
    none = (first.found if first.outside is None else first.outside).objective is None
    cut = limits.cutoff is not None and first.found.missing_bytes is not None
    host = first.problem.machine.device.host_bandwidth
    return none and host is not None and (cut or first.found.status is Status.INFEASIBLE)
