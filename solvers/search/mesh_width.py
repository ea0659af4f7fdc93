"""The number of mesh axes at which formulating and eliminating a network becomes too much work."""

from collections.abc import Mapping
from dataclasses import replace
from math import inf

from ...formulation.placement.placement import Placement, divisors
from ..elimination.order import TooWideError, compile_network
from .planning_problem import PlanningProblem


def elimination_work(problem: PlanningProblem) -> dict[int, float]:
    """Additions to formulate and eliminate a network once, by number of mesh axes.

    Estimated from the shortest axis, which has the most splits; 0 if the problem does not limit the work.
    """
    most = max(len(p.sizes) for p in problem.placements)
    if most == 1 or problem.most_work == inf:
        return dict.fromkeys(range(1, most + 1), 0.0)
    hierarchy = problem.machine.hierarchy
    size, level = min((d, i) for i, n in enumerate(hierarchy) for d in divisors(n) if d > 1)
    narrow = Placement((size,), (tuple(size if i == level else 1 for i in range(len(hierarchy))),))
    free = replace(problem, space=replace(problem.space, fix=()))  # strategies are fixed for more axes than one
    try:
        encoding = free.encoding(narrow, min(problem.micro_batches), fast=True)
        circuit = compile_network(encoding.network)
    except TooWideError:
        return {1: 0.0} | dict.fromkeys(range(2, most + 1), inf)
    layouts = [len(table.codes) for table in {id(t): t for t in encoding.tables.values()}.values()]
    # A table's closure is cubic.
    return {n: circuit.work(n) + sum(float(x) ** (3 * n) for x in layouts) for n in range(1, most + 1)}


def quick_axes(problem: PlanningProblem, work: Mapping[int, float]) -> int:
    """Most mesh axes for which one network stays within the work limit."""
    return max((n for n in work if work[n] <= problem.most_work), default=1)
