"""What a search is given: a variant as a problem and a space, and the same without the options that narrow it."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from ...formulation.rewriting.saturate import Rewritten
from ...model.graph.pcg import PCG
from ...model.machine.machine import Machine
from ...solvers.search.planning_problem import PlanningProblem
from ...solvers.search.result import ConfigurationSpace
from .by_operators import interlaced_too
from .context import Context
from .graph_rewritings import all_rewritings
from .pipeline_space import pipeline_space
from .problem import problem_of, save_network
from .run_search import Wanted
from .variants import Variant


@dataclass(frozen=True)
class Prepared:
    """A variant as a problem and a space to search (None: no pipelines); the time until then, and its `seconds`."""

    variant: Variant
    problem: PlanningProblem
    among: ConfigurationSpace | None
    rewritten: Rewritten | None
    at: float
    seconds: Mapping[str, float]


def prepared(graph: PCG, machine: Machine, variant: Variant, context: Context) -> Prepared:
    """A variant as a problem and a space to search. PartitaError: there is nothing to search."""
    training, space, captured = variant.training, variant.space, time.monotonic()
    rewritten = all_rewritings(graph, machine, training, space, context.tell) if space.rules else None
    rewrote = time.monotonic()
    problem = problem_of(rewritten.graph if rewritten else graph, machine, training, space, graph)
    if context.save_network is not None:
        save_network(problem, context.save_network)
    meshes = {place.sizes for place in problem.placements}
    context.tell(f"searching {len(problem.placements)} placements of {len(meshes)} meshes")
    began = time.monotonic()
    seconds = {
        "capture": round(captured - context.start, 3),
        **({"rewrite": round(rewrote - captured, 3)} if rewritten else {}),
        "formulate": began - rewrote,
    }
    return Prepared(variant, problem, pipeline_space(problem, space), rewritten, captured, seconds)


def freed(graph: PCG, machine: Machine, tried: Sequence[Variant]) -> Callable[[], Sequence[Wanted]] | None:
    """The problems without the options that narrow the spaces of these variants; None: none does.

    Interlaced pipelines are among them, if they may pay.
    """
    first, training = tried[0].space, tried[0].training
    spaces = [] if replace(first, rules=(), saturation=first.free.saturation) == first.free else [first.free]
    too = interlaced_too(graph, machine, training, replace(first.free, schedule="auto"))
    if too is not None and all(replace(one.space, rules=()) != too for one in tried):
        spaces.append(too)
    if not spaces:
        return None

    def problems() -> Sequence[Wanted]:
        made = [(problem_of(graph, machine, training, space), space) for space in spaces]
        return [(problem, pipeline_space(problem, space)) for problem, space in made]

    return problems
