"""The work of a search on one configuration: a task that any process can do."""

import time
from dataclasses import replace
from itertools import pairwise
from math import ceil
from typing import NamedTuple

from ...formulation.network.network import INFINITE
from ...formulation.pipeline.configuration import Configuration
from ...model.garbage_collection import seldom_collected
from ..protocol import Limits, Solver
from .cut_search import search_cuts
from .merged_device_bound import MergedDeviceBound
from .part_encoding import View
from .part_networks import PartNetworks
from .pipeline_problem import PipelineProblem
from .result import Solved, StepNs
from .shared_operators import beside
from .single_stage import solve_single_stage
from .state import BOUNDS, Effort, Level, Proved, Stages

_NEAR_BEST = 5e-3
"""Share of the best step within which a bound suffices, and no other plan is sought."""


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
    formula_target: int


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
            stages = _priced(task, parts, solve_single_stage(parts, state, task.target, effort))
        elif configuration.formula_bounds and task.step_ns and effort.level not in BOUNDS:
            stages = _best_of_both(task, parts, state, effort)
        else:
            stages = _priced(task, parts, search_cuts(parts, configuration, state, task.target, effort))
        if stages is not None:
            break
    state.kept += getattr(solver, "kept", 0) - before
    state.seconds += time.monotonic() - began
    state.solving += parts.solving
    state.options = max(state.options, parts.options)
    state.refused += parts.refused
    state.solver_words = parts.solver_words or state.solver_words
    return state, stages


def _best_of_both(task: Task, parts: PartNetworks, state: Proved, effort: Effort) -> Stages | None:
    """The better plan of two: of the least bound by slots, and of the least step by the formula, priced by slots too.

    The formula counts updates and messages of all stages in full; slots leave most of them out of the bound. Its plan
    is sought if the bound is neither within the gap of the best plan so far, nor close to it.
    """
    began, before, configuration = time.monotonic(), state.solved, task.configuration
    close = ceil((effort.cutoff or INFINITE) * (1 - _NEAR_BEST))
    if state.bound >= task.target or (state.is_near and effort.level is Level.CLOSED and state.bound >= close):
        return None
    if state.by_formula is None:
        state.by_formula = Proved(known=state.known.with_less_room(0))  # which counts no less
    own, found = state.by_formula, list[Stages]()
    parts.in_full = own.known

    def left() -> Effort:
        cutoff = min([effort.cutoff or INFINITE, *(made.objective for made in found)])
        return replace(
            effort,
            seconds=effort.seconds - (time.monotonic() - began),
            networks=effort.networks - (state.solved - before),
            cutoff=cutoff if cutoff < INFINITE else None,
        )

    def target() -> int:
        return min([task.target, *(Limits(gap=effort.gap).ceiling(made.objective) for made in found)])

    def price(stages: Stages | None) -> None:
        if stages is not None and (stages.bounds, stages.answers) not in [(x.bounds, x.answers) for x in found]:
            found.extend(made for made in [_priced(task, parts, stages)] if made is not None)

    price(search_cuts(parts, configuration, state, target(), left()))
    best_of_all = min([effort.cutoff or INFINITE, *(made.objective for made in found)])
    if state.bound >= min(target(), ceil(best_of_all * (1 - _NEAR_BEST))):
        return replace(found[0], formula_step=INFINITE) if found else None
    whole = PartNetworks(task.pipeline, configuration.by_formula, parts.solver)
    solved = own.solved
    first = search_cuts(whole, whole.configuration, own, task.formula_target, replace(left(), cutoff=None))
    parts.add_work(whole)
    state.solved += own.solved - solved
    if first is not None:
        ends = list(pairwise(first.bounds))
        answers = tuple(parts.in_slots(*between, answer) for between, answer in zip(ends, first.answers, strict=True))
        price(replace(first, objective=0, answers=answers))
    best = min(found, key=lambda stages: stages.objective, default=None)
    return None if best is None else replace(best, formula_step=INFINITE if first is None else first.objective)


def _priced(task: Task, parts: PartNetworks, stages: Stages | None) -> Stages | None:
    """The plan with its step as it is priced; None if what all devices share does not fit beside its stages."""
    if stages is None or task.step_ns is None:
        return stages
    problem, configuration = task.pipeline.problem, task.configuration
    slots = configuration.formula_bounds  # these networks are at hand, and plans are priced by themselves
    solved = _decoded(parts, stages, View.BOUND if slots else View.PRICED)
    exact = None if solved is None else task.step_ns(problem, configuration, stages.bounds, solved)
    may_be_less = problem.pcg.alternatives or configuration != configuration.whole  # or stages leave a larger share
    assert exact is None or exact >= stages.objective or may_be_less, (exact, stages.objective)
    return None if exact is None else replace(stages, objective=exact)


def _decoded(parts: PartNetworks, stages: Stages, view: View = View.PRICED) -> tuple[Solved, ...] | None:
    """The networks and assignments of the stages; an answer that ignored memory belongs to the network that does.

    After them that of what all devices share, if any; None: it does not fit beside these stages.
    """
    configuration = parts.configuration
    flights = (configuration.in_flight(s) if a.in_flight else 0 for s, a in enumerate(stages.answers))
    ends = pairwise(stages.bounds)
    solved = tuple(
        parts.decoded(i, j, flight, answer, view)
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
