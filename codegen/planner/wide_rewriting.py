"""Placements that are too wide for all rewritings at once, searched with graphs that are rewritten beforehand.

The search has asked them for the graph as it was captured. Two others stand in for all rewritings: the one that is best
on a single device with its share of the batch, as rewriting before parallelizing would choose it (TASO, SOSP 2019), and
the one of the best plan so far. So no plan is worse than that of either order.
"""

from __future__ import annotations

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
from ...solvers.search.planning_problem import PlanningProblem
from ...solvers.search.result import SearchResult
from ...solvers.search.search import search
from .rewritten_graph import changes, decided

Change: TypeAlias = dict[str, str]
AMPLE = 2**50
"""Bytes of a device that hold any model."""


def with_wide_meshes(
    problem: PlanningProblem, found: SearchResult, backend: Solver, limits: Limits
) -> tuple[SearchResult, list[Change]]:
    """The better of what was found and of what the wide placements have for graphs rewritten beforehand.

    With it the tensors that its graph computes otherwise than the one that was captured, by being rewritten beforehand.
    """
    told: list[Change] = []
    if not found.unrewritten or problem.space.fix or found.interrupted:
        return found, told
    start = time.monotonic()
    for graph, rewritten in _graphs(problem, found, backend, limits):
        left = limits.seconds - found.seconds - (time.monotonic() - start)
        if left <= 0:
            break
        asked = replace(problem, pcg=graph, plain=None, placements=found.unrewritten)
        other = search(asked, backend, replace(limits, seconds=left, cutoff=found.objective))
        if other.objective is not None:
            told = rewritten
        found = _both(found, other, limits)
    return found, told


def alone(machine: Machine) -> Machine:
    """One device of a machine, with memory for anything: what is best on it does not depend on what would fit."""
    levels = tuple(replace(level, size=1) for level in machine.levels)
    return replace(machine, levels=levels, device=replace(machine.device, memory_bytes=AMPLE))


def _graphs(
    problem: PlanningProblem, found: SearchResult, backend: Solver, limits: Limits
) -> Iterator[tuple[PCG, list[Change]]]:
    """Graphs that stand in, each with what it computes otherwise than the graph that was captured."""
    machine, share = alone(problem.machine), max(1, problem.batch // problem.machine.devices)
    places = distinct(placements(machine.hierarchy))
    training, space = replace(problem.training, batch=share), replace(problem.space, bundles=False)
    one = replace(problem, machine=machine, training=training, placements=places, micro_batches=(1,), space=space)
    seen: list[PCG] = []
    for answer in (_found(one, backend, limits), found):
        if answer is None or answer.encoding is None or not answer.encoding.pcg.alternatives:
            continue
        assert answer.assignment is not None
        graph = with_batch(decided(answer.encoding, answer.assignment)[0], problem.pcg.batch)
        if graph not in seen:
            seen.append(graph)
            yield graph, changes(answer.encoding, answer.assignment)


def _found(problem: PlanningProblem, backend: Solver, limits: Limits) -> SearchResult | None:
    """The answer for one device; None where the batch of a single one cannot be cut out."""
    try:
        return search(problem, backend, replace(limits, progress=None))
    except PartitaError:
        return None


def _both(one: SearchResult, other: SearchResult, limits: Limits) -> SearchResult:
    """What two searches found together; the second one wanted only what is better."""
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
        bound=bound,
        seconds=one.seconds + other.seconds,
        solving=one.solving + other.solving,
        solved=one.solved + other.solved,
        kept=one.kept + other.kept,
        options=max(one.options, other.options),
        interrupted=one.interrupted or other.interrupted,
        near=bound >= limits.ceiling(best.objective),
    )
