"""Pipelines in the search space whose programs are written by operators: what they lack, and which are tried unasked.

Interlaced, repeated, unequal and two-way ones.

Their programs are those of space-time plans, operator by operator.
"""

from dataclasses import replace

from ...formulation.decisions import UNDECIDED
from ...formulation.pipeline.cut_graph import cut_graph
from ...formulation.pipeline.schedule import CHIMERA, INTERLACED_PIPELINE, REPEATED, Schedule, schedule_named
from ...formulation.search_space import SearchSpace
from ...formulation.spacetime.graph import Graph
from ...model.errors import PartitaError
from ...model.graph.dtypes import ITEMSIZE
from ...model.graph.folded import passes
from ...model.graph.interlaced import lookup_tables
from ...model.graph.pcg import PCG
from ...model.machine.machine import Machine
from ...model.machine.precision import precision
from ...model.optimizers import optimizer_states
from ...model.training import Training
from ..plan.plan import Plan
from .pipeline_space import divisions, looked_at

CROWDED = 0.1
"""Share of a device's memory from which on tables crowd the stage that has them."""
MOST_WRITTEN = 1 << 15
"""Most operators, of all micro-batches on the ranks of a stage, of a program that is written to see that it can be.

Larger ones take minutes where micro-batches differ in more than their number.
"""


def further_spaces(graph: PCG, machine: Machine, training: Training, space: SearchSpace) -> list[SearchSpace]:
    """The spaces of such pipelines that are searched too where a space leaves the schedule open."""
    if space.unequal_stages:
        return []
    found = (
        interlaced_too(graph, machine, training, space),
        repeated_too(graph, machine, space),
        both_ways_too(graph, machine, space),
    )
    return [other for other in found if other is not None]


def repeated_too(graph: PCG, machine: Machine, space: SearchSpace) -> SearchSpace | None:
    """The space of pipelines that a model passes several times (3F1B), if it recycles and no option excludes them."""
    if not space.leaves_schedule_open or machine.devices == 1 or passes(graph) == 1:
        return None
    other = replace(space, schedule=REPEATED.name, chunks=1)
    try:
        limited(other)
        return other if looked_at(layers(graph, REPEATED), other) else None
    except PartitaError:
        return None


def both_ways_too(graph: PCG, machine: Machine, space: SearchSpace) -> SearchSpace | None:
    """The space of pipelines in two directions (Chimera), if all schedules are wanted and no option excludes them."""
    if not space.wants_all_schedules or machine.devices == 1 or not looked_at(graph, space):
        return None
    other = replace(space, schedule=CHIMERA.name, chunks=1)
    try:
        limited(other)
        layers(graph, CHIMERA)
        return other if any(map(CHIMERA.fits, divisions(machine, other))) else None
    except PartitaError:
        return None


def interlaced_too(graph: PCG, machine: Machine, training: Training, space: SearchSpace) -> SearchSpace | None:
    """The space of interlaced pipelines, if they may pay where a space leaves the schedule open; else None.

    They may where tables, with their gradients and states, take so much of a device's memory that a stage with them is
    crowded, and where neither the model nor an option excludes them.
    """
    if not space.leaves_schedule_open or machine.devices == 1 or not looked_at(graph, space):
        return None
    try:
        limited(replace(space, schedule=INTERLACED_PIPELINE.name))
        layers(graph, INTERLACED_PIPELINE)
    except PartitaError:
        return None
    form, states = precision(training.dtype), optimizer_states(training.optimizer)
    each = ITEMSIZE[form.parameters] + ITEMSIZE[form.gradients] + (states + form.copied) * ITEMSIZE[form.master]
    held = each * sum(graph.nodes[table].numel for table in lookup_tables(graph))
    if held < CROWDED * machine.device.capacity_bytes:
        return None
    return replace(space, schedule=INTERLACED_PIPELINE.name, chunks=1)


def layers(graph: PCG, schedule: Schedule) -> PCG:
    """What becomes stages. PartitaError: the model has no such pipelines, or no program of them."""
    cut = cut_graph(graph, schedule).graph
    Graph(graph)  # refuses what programs of space-time plans cannot compute
    return cut


def limited(space: SearchSpace) -> SearchSpace:
    """The space of such pipelines. PartitaError: an option that their programs, of space-time plans, lack."""
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
        if space.unequal_stages:
            raise PartitaError(f"{given}: pipelines of unequal stages do not have that; leave out --unequal-stages")
        kind = schedule_named(space.schedule).name
        raise PartitaError(f"{given}: {kind} pipelines do not have that; plan with another --schedule")
    return replace(space, bundles=False, offload=False)


def try_to_write(plan: Plan) -> None:
    """PartitaError: a plan has no program. Large ones by operators are not written."""
    operators = len(plan.graph.nodes) * plan.parts[0].ranks * plan.micro_batches
    if not plan.schedule.by_operators or operators <= MOST_WRITTEN:
        plan.emit()
