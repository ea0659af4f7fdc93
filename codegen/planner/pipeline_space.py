"""The pipelines in the search space: rows of their axis, and the meshes of a stage."""

import math

from ...formulation.pipeline.configuration import rows
from ...formulation.pipeline.schedule import schedule_named
from ...formulation.pipeline.shares import share_row, shares_of, ways
from ...formulation.placement.placement import Placement, Row, distinct, innermost_last, placements, reordered
from ...formulation.search_space import SearchSpace
from ...model.errors import PartitaError
from ...model.graph.folded import passes
from ...model.graph.pcg import PCG
from ...model.graph.stages import boundaries, boundaries_at
from ...model.machine.machine import Machine, stage_machine
from ...model.options import times
from ...solvers.search.planning_problem import PlanningProblem, atom_sizes
from ...solvers.search.result import ConfigurationSpace
from ..plan.checks import check_stale
from .confirmed_plan import step_ns


def pipeline_space(problem: PlanningProblem, space: SearchSpace) -> ConfigurationSpace | None:
    """The configurations to search, plans without a pipeline included; None where there are only these.

    PartitaError: more stages than the model can be cut into; a schedule that admits no number of micro-batches.
    """
    graph, machine = problem.pcg, problem.machine
    chunks = space.chunks
    if space.unequal_stages:
        return _unequal_space(problem, space)
    boundaries_at(graph, space.stages_at)
    if not looked_at(graph, space):
        if chunks > 1:
            raise PartitaError("--chunks needs a pipeline: add --stages N")
        return None
    found = _rows(problem, space, _cuts(graph))
    sizes = atom_sizes(graph, problem.batch, (1,))
    inner = {row: _inner(machine, row, space) for row in found}
    if not space.fixes_placement:
        inner = {row: reordered(places, sizes) for row, places in inner.items()}
    schedule = schedule_named(space.schedule).with_passes(passes(problem.whole))
    alone = not schedule.by_operators and space.stages is None
    none = {(1,) * len(machine.hierarchy): problem.placements} if alone else {}
    return ConfigurationSpace(none | inner, schedule, chunks, step_ns)


MOST_WAYS = 1 << 14
"""Where there are more ways to divide the devices among unequal stages, stages of the fewest devices are left out."""


def few_shares(hierarchy: tuple[int, ...], stages: int | None) -> tuple[int, ...]:
    """The shares that unequal stages may have: as small ones as leave at most `MOST_WAYS`, but some way."""
    shares = shares_of(hierarchy)
    while ways(hierarchy, shares, stages) > MOST_WAYS and ways(hierarchy, shares[:-1], stages):
        shares = shares[:-1]
    return shares


def _unequal_space(problem: PlanningProblem, space: SearchSpace) -> ConfigurationSpace:
    """Pipelines whose stages have unequally many devices. PartitaError: the machine or the model has none."""
    machine, stages, cuts = problem.machine, space.stages, _cuts(problem.pcg)
    shares = few_shares(machine.hierarchy, stages)
    if not space.hides_messages(machine):
        raise PartitaError(
            f"--unequal-stages: messages on {machine.name} do not hide behind kernels, and are not priced"
        )
    if not ways(machine.hierarchy, shares, stages):
        levels, number = times(machine.hierarchy), "two or more" if stages is None else stages
        raise PartitaError(f"--unequal-stages: {levels} devices cannot be divided among {number} stages")
    if cuts < (stages or 2):
        raise PartitaError(_too_many(stages or 2, 1, cuts))
    rows_of = {share: share_row(machine.hierarchy, share) for share in shares}
    inner = {row: meshes(stage_machine(machine, row).hierarchy, space) for row in rows_of.values() if row is not None}
    counts = problem.micro_batches
    sizes = atom_sizes(problem.pcg, problem.batch, counts)
    found = {row: reordered(places, sizes) for row, places in inner.items()}
    schedule = schedule_named(space.schedule).with_unequal_stages()
    return ConfigurationSpace(found, schedule, 1, step_ns, shares)


def looked_at(graph: PCG, space: SearchSpace) -> bool:
    """True if the space may have pipelines: no option excludes them, and the graph can be cut."""
    if space.stages is not None:
        return space.stages != 1
    unpipelined = space.fixes_axes or space.fix or space.joint
    return not unpipelined and (_cuts(graph) > 1 or space.chunks > 1)


def _cuts(graph: PCG) -> int:
    return len(boundaries(graph)) - 1


def _rows(problem: PlanningProblem, space: SearchSpace, cuts: int) -> list[Row]:
    """The pipeline's factors on the levels for which the schedule runs and the model can be cut."""
    chunks, schedule, counts = space.chunks, schedule_named(space.schedule), problem.micro_batches
    needed = space.stages is not None or chunks > 1
    every = divisions(problem.machine, space)
    found = [row for row in every if math.prod(row) * chunks <= cuts]
    if not found and needed:
        raise PartitaError(_too_many(min(map(math.prod, every), default=1), chunks, cuts))
    found = [row for row in found if any(schedule.runs(math.prod(row), k) for k in counts)]
    if not found and needed:
        least = space.stages or 2
        raise PartitaError(
            f"{schedule} with {least} stages needs {schedule.needs} {least} micro-batches, "
            f"a batch of {problem.batch} has {', '.join(map(str, counts))} in this model"
        )
    paired = [row for row in found if schedule.fits(row)]
    if found and not paired and schedule.directions > 1:
        schedule.direction_row(found[0])  # raises
    found = paired
    if schedule.double_buffered and found:
        check_stale(problem.pcg, problem.training.dtype, bool(problem.space.offload))
    again = [mode for mode in space.decided.modes if mode != "none"]
    if schedule.splits_backward and found and (again or "none" not in space.modes):
        mode = again[0] if again else space.recompute
        raise PartitaError(
            f"{schedule} splits backwards, and would recompute segments twice: "
            f"recompute {mode!r} needs another schedule"
        )
    return found


def _too_many(stages: int, chunks: int, cuts: int) -> str:
    """Why the shortest pipeline of a machine, of this many stages, is none of the model."""
    if stages == 1:
        return f"--chunks {chunks} needs a pipeline, and one device has none"
    parts = f"{stages} stages"
    if chunks > 1:
        parts = f"{stages} pipeline stages of {chunks} chunks each are {stages * chunks} virtual stages"
    return f"{parts}: the model can be cut into at most {cuts}"


def divisions(machine: Machine, space: SearchSpace) -> list[Row]:
    """The rows of a pipeline with this number of stages (None: any) on a machine. PartitaError: there are none.

    With sizes of parallelism stages lie outermost, where transfers cost least.
    """
    stages = space.stages
    found = list(rows(machine.hierarchy, stages))
    if space.decided.row is not None:
        found = [row for row in found if row == space.decided.row]
    if space.parallelism.fixes_axes:
        found = [max(found)] if stages is not None and found else found
    if stages is not None and not found:
        known = sorted({math.prod(row) for row in rows(machine.hierarchy)})
        levels, others = "x".join(map(str, machine.hierarchy)), ", ".join(map(str, known))
        raise PartitaError(f"{stages} stages: {levels} devices can be divided for {others or 1} stages only")
    return found


def inside(machine: Machine, space: SearchSpace) -> tuple[Placement, ...]:
    """The meshes that a stage may have, on any row of the pipeline."""
    return tuple(dict.fromkeys(p for row in divisions(machine, space) for p in _inner(machine, row, space)))


def _inner(machine: Machine, row: Row, space: SearchSpace) -> tuple[Placement, ...]:
    return meshes(stage_machine(machine, row).hierarchy, space)


def meshes(hierarchy: tuple[int, ...], space: SearchSpace) -> tuple[Placement, ...]:
    """The meshes of a stage on these levels; with sizes of parallelism the one with tensor ranks innermost."""
    if space.decided.placement is not None:
        return (space.decided.placement,)
    sizes = space.sizes(math.prod(hierarchy))
    if space.parallelism.fixes_axes and sizes is not None:
        return (innermost_last(hierarchy, sizes),)
    return distinct(placements(hierarchy, mesh=sizes))
