"""The work of a search on one configuration: a task that any process can do."""

import time
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

from ...formulation.pipeline.configuration import Configuration
from ...model.garbage_collection import seldom_collected
from ..protocol import Solver
from .cut_search import search_cuts
from .merged_device_bound import MergedDeviceBound
from .part_networks import PartNetworks
from .pipeline_problem import PipelineProblem
from .result import Solved, StepNs
from .shared_operators import beside
from .single_stage import solve_single_stage
from .state import Effort, Proved, Stages


class Task(NamedTuple):
    """The arguments of one executor call."""

    pipeline: PipelineProblem
    configuration: Configuration
    merged: bool
    state: Proved
    target: int
    efforts: tuple[Effort, ...]
    solver: Solver
    step_ns: StepNs | None


@seldom_collected()
def advance(task: Task) -> tuple[Proved, Stages | None]:
    """Advance a configuration; runs in any process."""
    configuration, solver = task.configuration, task.solver
    state = task.state.copy()  # results count once recorded, in every process alike
    before, began = getattr(solver, "kept", 0), time.monotonic()
    parts = (MergedDeviceBound if task.merged else PartNetworks)(task.pipeline, configuration, solver)
    stages = None
    at_first = state.solved
    for wanted in task.efforts:
        effort = replace(wanted, networks=wanted.networks - (state.solved - at_first))
        if configuration.devices == 1 and not task.merged:
            stages = solve_single_stage(parts, state, task.target, effort)
        else:
            stages = search_cuts(parts, configuration, state, task.target, effort)
        if stages is not None:
            break
    if stages is not None and task.step_ns is not None:
        problem = task.pipeline.problem
        solved = _decoded(parts, stages)
        exact = None if solved is None else task.step_ns(problem, configuration, stages.bounds, solved)
        may_be_less = problem.pcg.alternatives or configuration != configuration.whole  # or stages leave a larger share
        assert exact is None or exact >= stages.objective or may_be_less, (exact, stages.objective)
        stages = None if exact is None else replace(stages, objective=exact)
    state.kept += getattr(solver, "kept", 0) - before
    state.seconds += time.monotonic() - began
    state.solving += parts.solving
    state.options = max(state.options, parts.options)
    state.refused += parts.refused
    state.solver_words = parts.solver_words or state.solver_words
    return state, stages


def _decoded(parts: PartNetworks, stages: Stages) -> tuple[Solved, ...] | None:
    """The networks and assignments of the stages; an answer that ignored memory belongs to the network that does.

    After them that of what all devices share, if any; None: it does not fit beside these stages.
    """
    configuration = parts.configuration
    flights = (configuration.in_flight(s) if a.in_flight else 0 for s, a in enumerate(stages.answers))
    ends = pairwise(stages.bounds)
    solved = tuple(
        parts.decoded(i, j, flight, answer)
        for (i, j), flight, answer in zip(ends, flights, stages.answers, strict=True)
    )
    if not configuration.schedule.interlaced:
        return solved
    shared = beside(parts.pipeline.problem, configuration, parts.solver, solved)
    return None if shared is None else (*solved, shared)


def kept(parts: PartNetworks, stages: Stages) -> tuple[Solved, ...]:
    """The networks and assignments of a plan that was found."""
    solved = _decoded(parts, stages)
    assert solved is not None
    return solved
