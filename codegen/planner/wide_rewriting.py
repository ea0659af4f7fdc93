"""Placements whose networks are too wide for all rewritings at once: searched with graphs rewritten beforehand.

The main search plans these placements for the captured graph. Two more graphs are tried: the best one for a single
device with its share of the batch, as a rewriting before parallelization chooses it (TASO, SOSP 2019), and that of the
best plan so far. So no plan is worse than that of either order.
"""

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import TypeAlias

from ...formulation.placement.placement import distinct, placements
from ...model.errors import PartitaError
from ...model.graph.batch import with_batch
from ...model.graph.pcg import PCG
from ...model.machine.machine import Machine
from ...solvers.protocol import Limits, Solver, Status
from ...solvers.reduction.joint_search import search_placements
from ...solvers.search.planning_problem import PlanningProblem
from ...solvers.search.result import SearchResult
from .rewritten_graph import changes, decided

Change: TypeAlias = dict[str, str]
AMPLE = 2**50
"""Bytes of a device that hold any model."""


def with_wide_meshes(
    problem: PlanningProblem, found: SearchResult, backend: Solver, limits: Limits
) -> tuple[SearchResult, list[Change]]:
    """The better of `found` and the best plan of a wide placement, with the changes made to its graph beforehand.

    Stages of pipelines on wide placements are not planned again: they keep the graph as captured.
    """
    changed: list[Change] = []
    places = tuple(place for place in found.unrewritten if place.devices == problem.machine.devices)
    if not places or problem.space.fix or found.interrupted:
        return found, changed
    start = time.monotonic()
    for graph, rewritten in _graphs(problem, found, backend, limits):
        left = limits.seconds - found.seconds - (time.monotonic() - start)
        if left <= 0:
            break
        wide = replace(problem, pcg=graph, plain=None, placements=places)
        other = search_placements(wide, backend, replace(limits, seconds=left, cutoff=_cutoff(found, limits)))
        if other.objective is not None:
            changed = rewritten
        found = _merged(found, other, limits)
    return found, changed


def _cutoff(found: SearchResult, limits: Limits) -> int | None:
    """The step to beat: that of the best plan so far, also of another search."""
    return limits.cutoff if found.objective is None else found.objective


def alone(machine: Machine) -> Machine:
    """One device of a machine, with memory for any model."""
    levels = tuple(replace(level, size=1) for level in machine.levels)
    return replace(machine, levels=levels, device=replace(machine.device, memory_bytes=AMPLE))


def _graphs(
    problem: PlanningProblem, found: SearchResult, backend: Solver, limits: Limits
) -> Iterator[tuple[PCG, list[Change]]]:
    """The graphs to try, each with its changes to the captured graph."""
    machine, share = alone(problem.machine), max(1, problem.batch // problem.machine.devices)
    places = distinct(placements(machine.hierarchy))
    training, space = replace(problem.training, batch=share), replace(problem.space, bundles=False)
    one = replace(problem, machine=machine, training=training, placements=places, micro_batches=(1,), space=space)
    seen: list[PCG] = []
    for answer in (_single_device(one, backend, limits), found):
        if answer is None or answer.encoding is None or not answer.encoding.pcg.alternatives:
            continue
        assert answer.assignment is not None
        graph = with_batch(decided(answer.encoding, answer.assignment)[0], problem.pcg.batch)
        if graph not in seen:
            seen.append(graph)
            yield graph, changes(answer.encoding, answer.assignment)


def _single_device(problem: PlanningProblem, backend: Solver, limits: Limits) -> SearchResult | None:
    """The result for one device; None if the graph does not admit its share of the batch."""
    try:
        return search_placements(problem, backend, replace(limits, progress=None))
    except PartitaError:
        return None


def _merged(one: SearchResult, other: SearchResult, limits: Limits) -> SearchResult:
    """The result of two searches, the second with the first one's objective as its cutoff."""
    best = one if other.objective is None else other
    bound = min(one.bound, other.bound)
    status = one.status
    if best.objective is not None:
        status = Status.OPTIMAL if bound >= best.objective else Status.FEASIBLE
    return replace(
        one,
        status=status,
        configuration=best.configuration,
        objective=best.objective,
        bounds=best.bounds,
        stages=best.stages,
        source=best.source,
        proof=best.proof,
        bound=bound,
        seconds=one.seconds + other.seconds,
        solving=one.solving + other.solving,
        solved=one.solved + other.solved,
        kept=one.kept + other.kept,
        options=max(one.options, other.options),
        interrupted=one.interrupted or other.interrupted,
        near=bound >= limits.ceiling(best.objective),
    )
