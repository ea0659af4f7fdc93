"""A problem searched with or without pipelines, and once more where nothing fits: with the host's memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod

from ...solvers.budget import Budget
from ...solvers.protocol import Limits, Solver, Status
from ...solvers.search.planning_problem import PlanningProblem
from ...solvers.search.result import ConfigurationSpace, SearchResult
from ...solvers.search.search import search
from .pipelined import search_all
from .stand_ins import with_stand_ins


@dataclass(frozen=True, slots=True)
class Searched:
    """The problem that was searched last, what was found, and the tensors that its plan rewrites."""

    problem: PlanningProblem
    found: SearchResult
    rewrites: list[dict[str, str]]


def searched(
    problem: PlanningProblem,
    among: ConfigurationSpace | None,
    backend: Solver,
    limits: Limits,
    budget: Budget,
    tell: Callable[[str], None],
) -> Searched:
    """Search plans; with optimizer states on the host where these are asked for, or where nothing fits without."""
    first = _once(problem, among, backend, limits, budget)
    stale = among is not None and among.schedule.double_buffered and all(prod(row) > 1 for row in among.placements)
    if problem.space.offload is not None or stale or not _full(first, limits):  # 2bw has nothing elsewhere
        return first
    tell("nothing fits: searching with optimizer states in the host's memory")
    left = replace(limits, seconds=limits.seconds - first.found.seconds)
    again = _once(replace(problem, space=replace(problem.space, offload=True)), among, backend, left, budget)
    found = replace(
        again.found,
        seconds=first.found.seconds + again.found.seconds,
        solving=first.found.solving + again.found.solving,
        solved=first.found.solved + again.found.solved,
        kept=first.found.kept + again.found.kept,
    )
    return replace(again, found=found)


def _once(
    problem: PlanningProblem, among: ConfigurationSpace | None, backend: Solver, limits: Limits, budget: Budget
) -> Searched:
    if among is not None:
        return Searched(problem, search_all(problem, among, backend, limits, budget), [])
    return Searched(problem, *with_stand_ins(problem, search(problem, backend, limits), backend, limits))


def _full(first: Searched, limits: Limits) -> bool:
    """Whether no plan fits the memory, or none that is good enough, and the host's may take some of it."""
    cut = limits.cutoff is not None and first.found.missing_bytes is not None
    host = first.problem.machine.device.host_bandwidth
    return first.found.objective is None and host is not None and (cut or first.found.status is Status.INFEASIBLE)
