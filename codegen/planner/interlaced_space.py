"""Interlaced pipelines in the search space: what they lack, and whether they are tried where no schedule is named."""

from dataclasses import replace

from ...formulation.decisions import UNDECIDED
from ...formulation.pipeline.schedule import INTERLACED_PIPELINE
from ...formulation.search_space import SearchSpace
from ...formulation.spacetime.graph import Graph
from ...model.errors import PartitaError
from ...model.graph.dtypes import ITEMSIZE
from ...model.graph.interlaced import interlaced, lookup_tables
from ...model.graph.pcg import PCG
from ...model.machine.machine import Machine
from ...model.machine.precision import precision
from ...model.optimizers import optimizer_states
from ...model.training import Training
from .pipeline_space import looked_at

CROWDED = 0.1
"""Share of a device's memory from which on tables crowd the stage that has them."""


def interlaced_too(graph: PCG, machine: Machine, training: Training, space: SearchSpace) -> SearchSpace | None:
    """The space of interlaced pipelines, if they may pay where a space leaves the schedule open; else None.

    They may where tables, with their gradients and states, take so much of a device's memory that a stage with them is
    crowded, and where neither the model nor an option excludes them.
    """
    if not space.leaves_schedule_open or machine.devices == 1 or not looked_at(graph, space):
        return None
    try:
        interlaced_space(space)
        interlaced_layers(graph)
    except PartitaError:
        return None
    form, states = precision(training.dtype), optimizer_states(training.optimizer)
    each = ITEMSIZE[form.parameters] + ITEMSIZE[form.gradients] + (states + form.copied) * ITEMSIZE[form.master]
    held = each * sum(graph.nodes[table].numel for table in lookup_tables(graph))
    if held < CROWDED * machine.device.capacity_bytes:
        return None
    return replace(space, schedule=INTERLACED_PIPELINE.name, chunks=1)


def interlaced_layers(graph: PCG) -> PCG:
    """The layers of a model that become stages. PartitaError: it has no interlaced pipelines, or no program of them."""
    Graph(graph)  # refuses what programs of interlaced pipelines cannot compute
    return interlaced(graph).layers.graph


def interlaced_space(space: SearchSpace) -> SearchSpace:
    """The space of interlaced pipelines. PartitaError: an option that their programs, of space-time plans, lack."""
    lacks = {
        "--fix": space.fix,
        "--start": space.decided != UNDECIDED,
        "--rewrite": space.rules,
        "--stages-at": space.stages_at,
        "--compile": space.compile,
        "--no-overlap": not space.overlap,
        "--offload": space.offload,
        f"--recompute {space.recompute}": space.recompute in ("selective", "parts"),
    }
    given = next((option for option, wanted in lacks.items() if wanted), None)
    if given is not None:
        raise PartitaError(f"{given}: interlaced pipelines do not have that; plan with another --schedule")
    return replace(space, bundles=False, offload=False)
