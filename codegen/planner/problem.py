"""The planning problem of a graph: placements, numbers of micro-batches and fixed strategies of a search space."""

import gzip
import json
import math
from dataclasses import replace
from pathlib import Path

from ...formulation.network.network_file import network_json
from ...formulation.pipeline.schedule import CHIMERA, INTERLACED_PIPELINE, REPEATED, schedule_named
from ...formulation.placement.mappings import mapped, without_ones
from ...formulation.placement.placement import Placement, reordered
from ...formulation.search_space import SearchSpace
from ...model.errors import PartitaError
from ...model.files import write_atomically
from ...model.graph.batch import with_batch
from ...model.graph.pcg import PCG
from ...model.machine.machine import Machine
from ...model.training import Training
from ...solvers.search.planning_problem import PlanningProblem, atom_sizes
from ..emission.spmd.micro_batches import divided
from .by_operators import layers, limited
from .pipeline_space import inside, looked_at, meshes

MOST_WORK = 2.0**32
"""Limit on the additions of formulating and of one elimination, a few seconds; a search repeats them dozens of times.

Meshes with enough axes to exceed it are left out, unless the mesh is fixed.
"""


def check_early(machine: Machine, training: Training, space: SearchSpace) -> None:
    """Reject options that contradict each other or the machine, before anything slow begins: PartitaError."""
    space.counts(training.batch)
    space.check_devices(machine.devices)
    if space.mapping is not None:
        mapped(space.mapping, machine.hierarchy)


def problem_of(
    graph: PCG, machine: Machine, training: Training, space: SearchSpace, plain: PCG | None = None
) -> PlanningProblem:
    """The planning problem of a graph; where it has alternatives for some nodes, `plain` is the graph without them.

    PartitaError: the options contradict each other, or the model.
    """
    by_operators = (INTERLACED_PIPELINE, REPEATED, CHIMERA)
    whole, schedule = graph, next((s for s in by_operators if s.name == space.schedule), None)
    if schedule is not None and space.stages != 1 and (schedule is REPEATED or looked_at(graph, space)):
        space, graph = limited(space), layers(whole, schedule)
    if space.unequal_stages:
        space, graph = limited(space), layers(whole, schedule_named(space.schedule))
    counts, places = _micro_batches(whole, training, space), _placements(machine, space)
    if not space.fixes_axes and not space.fix:
        places = reordered(places, atom_sizes(graph, training.batch, counts))
    _check_fix(space, places)
    most_work = math.inf if space.fixes_axes else MOST_WORK
    plain = plain if graph.alternatives else None
    applied = replace(space, rules=())  # the graph is rewritten; workers need no rules
    orders = space.mapping is None and not (space.fixes_placement or space.unequal_stages)
    return PlanningProblem(
        graph, machine, training, places, counts, applied,
        most_work=most_work, plain=plain, orders=orders,
        interlaced=whole if graph is not whole and schedule == INTERLACED_PIPELINE else None,
        recycled=whole if graph is not whole and schedule == REPEATED else None,
    )  # fmt: skip


def _placements(machine: Machine, space: SearchSpace) -> tuple[Placement, ...]:
    if space.mapping is not None:
        places: tuple[Placement, ...] = (without_ones(mapped(space.mapping, machine.hierarchy)),)
    elif space.stages is not None and space.stages > 1 and not space.unequal_stages:
        places = inside(machine, space)
    else:
        places = meshes(machine.hierarchy, space)
    counts = {strategy.count(",") + 1 for _, strategy in space.fix if "," in strategy}
    if len(counts) > 1:
        raise PartitaError("--fix names strategies for different numbers of axes")
    if counts:
        places = tuple(p for p in places if len(p.sizes) in counts)
        if not places:
            raise PartitaError(f"--fix names {counts.pop()} axes, which no mesh of this machine has")
    return places


def _micro_batches(graph: PCG, training: Training, space: SearchSpace) -> tuple[int, ...]:
    """The numbers of micro-batches that the model admits; PartitaError if it admits none of the space's."""
    admitted: list[int] = []
    refusal: PartitaError | None = None
    for k in space.counts(training.batch):
        try:
            # Whether the batch can be divided does not depend on k, except for single samples, whose graph is special.
            if admitted in ([], [1]) or training.batch == k:
                divided([with_batch(graph, training.batch // k)], k)
        except PartitaError as error:
            refusal = error
        else:
            admitted.append(k)
    if not admitted:
        assert refusal is not None
        raise refusal
    return tuple(admitted)


def _check_fix(space: SearchSpace, places: tuple[Placement, ...]) -> None:
    """PartitaError: strategies are fixed for more or fewer axes than the meshes have."""
    axes = {len(p.sizes) for p in places}
    given = next((len(rows) for rows in space.fixed.values()), None)
    if given is not None and axes != {given}:
        raise PartitaError(f"--fix gives {given} strategies, one per mesh axis: fix the mesh too (--mesh)")


def save_network(problem: PlanningProblem, path: Path) -> None:
    """Save the network of the first placement, with the fewest micro-batches; gzipped if the name ends in `.gz`."""
    problem.space.check_unpipelined("--save-network")
    first = problem.encoding(problem.placements[0], min(problem.micro_batches), fast=True)
    raw = json.dumps(network_json(first.network)).encode()
    write_atomically(path, gzip.compress(raw, mtime=0) if path.suffix == ".gz" else raw)
