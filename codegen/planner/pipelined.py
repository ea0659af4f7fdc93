"""Plans that may be pipelines: which there are for a problem, and the plan of what the search found."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from ...formulation.pipeline.configuration import Configuration, rows
from ...formulation.pipeline.schedule import schedule_named
from ...formulation.pipeline.stage_transfers import transfer_price
from ...formulation.placement.placement import Placement, Row, distinct, placements, reordered
from ...formulation.search_space import SearchSpace
from ...model.errors import PartitaError
from ...model.graph.batch import with_batch
from ...model.graph.pcg import PCG
from ...model.graph.stages import boundaries, stage
from ...model.machine.machine import Machine, stage_machine
from ...solvers.budget import Budget
from ...solvers.executors import Later, usable_cores
from ...solvers.protocol import Limits, Solver, Status
from ...solvers.search.planning_problem import PlanningProblem, atom_sizes
from ...solvers.search.result import ConfigurationSpace, SearchResult, Solved
from ...solvers.search.search import search
from ..plan.pipeline_checks import check_stale
from ..plan.pipeline_plan import PipelinePlan
from ..plan.plan import Plan
from ..pricing.plan_price import plan_price
from ..pricing.stage_price import stage_price
from .decode import flops, report
from .rewritten import changes, decided

if TYPE_CHECKING:
    from torch import nn


def pipeline_space(problem: PlanningProblem, space: SearchSpace) -> ConfigurationSpace | None:
    """The pipelines to look at besides plans that have none; None where there are only these.

    PartitaError: more stages than the model can be cut into, or for no number of micro-batches; strategies that are
    fixed for what the model has not.
    """
    graph, machine = problem.pcg, problem.machine
    chunks = space.chunks
    if not looked_at(graph, space):
        if chunks > 1:
            raise PartitaError("--chunks needs a pipeline: add --stages N")
        return None
    found = _rows(problem, space, _cuts(graph))
    unknown = [name for name, _ in space.fix if name not in {node.name for node in graph.nodes}]
    if unknown:
        raise PartitaError(f"no node is named {unknown[0]!r}")
    sizes = atom_sizes(graph, problem.batch, (1,))
    inner = {row: reordered(_inner(machine, row, space.mesh), sizes) for row in found}
    none = {} if space.stages is not None else {(1,) * len(machine.hierarchy): problem.placements}
    return ConfigurationSpace(none | inner, schedule_named(space.schedule), chunks, step_ns)


def looked_at(graph: PCG, space: SearchSpace) -> bool:
    """Whether there may be pipelines: not with what is asked of plans without, nor where nothing can be cut."""
    if space.stages is not None:
        return space.stages != 1
    asked = space.fixes_axes or space.fix or space.rules
    return not asked and (_cuts(graph) > 1 or space.chunks > 1)


def _cuts(graph: PCG) -> int:
    return len(boundaries(graph)) - 1


def _rows(problem: PlanningProblem, space: SearchSpace, cuts: int) -> list[Row]:
    """The pipeline's factors on the levels, where the schedule can be run and the model cut."""
    chunks, schedule, counts = space.chunks, schedule_named(space.schedule), problem.micro_batches
    needed = space.stages is not None or chunks > 1
    found = [row for row in divisions(problem.machine, space.stages) if math.prod(row) * chunks <= cuts]
    if not found and needed:
        count = (space.stages or 2) * chunks
        raise PartitaError(f"{count} stages: the model can be cut into {cuts} at the most")
    found = [row for row in found if any(schedule.runs(math.prod(row), k) for k in counts)]
    if not found and needed:
        least = space.stages or 2
        raise PartitaError(
            f"{schedule} with {least} stages needs {schedule.needs} {least} micro-batches, "
            f"a batch of {problem.batch} has {', '.join(map(str, counts))} in this model"
        )
    if schedule.double_buffered and found:
        check_stale(problem.pcg, problem.training.dtype, bool(problem.space.offload))
    if schedule.splits_backward and found and space.recompute not in ("auto", "none"):
        raise PartitaError(
            f"{schedule} splits backwards, and would compute segments twice again: "
            f"recompute {space.recompute!r} is for other schedules"
        )
    return found


def divisions(machine: Machine, stages: int | None) -> list[Row]:
    """The ways to divide a machine for a pipeline of so many parts, or of any; PartitaError: there are none for it."""
    found = list(rows(machine.hierarchy, stages))
    if stages is not None and not found:
        known = sorted({math.prod(row) for row in rows(machine.hierarchy)})
        levels, others = "x".join(map(str, machine.hierarchy)), ", ".join(map(str, known))
        raise PartitaError(f"{stages} stages: {levels} devices can be divided for {others or 1} stages only")
    return found


def inside(machine: Machine, stages: int, mesh: tuple[int, ...] | None) -> tuple[Placement, ...]:
    """The meshes that a stage may have, wherever the pipeline lies."""
    return tuple(dict.fromkeys(p for row in divisions(machine, stages) for p in _inner(machine, row, mesh)))


def _inner(machine: Machine, row: Row, mesh: tuple[int, ...] | None) -> tuple[Placement, ...]:
    return distinct(placements(stage_machine(machine, row).hierarchy, mesh=mesh))


def search_all(
    problem: PlanningProblem, among: ConfigurationSpace, backend: Solver, limits: Limits, budget: Budget
) -> SearchResult:
    """Search plans with and without pipelines, on processes of its own unless an executor is given."""
    if budget.executor is not None:
        return search(problem, backend, limits, among, budget.executor)
    with Later(budget.workers or usable_cores()) as own:
        return search(problem, backend, limits, among, own)


def pipelined(
    problem: PlanningProblem,
    found: SearchResult,
    model: dict[str, Any],
    told: dict[str, Any],
    module: tuple[nn.Module, Any] | None,
) -> PipelinePlan:
    """The plan of the pipeline that was found; priced once more, which shares nothing of the search."""
    best = found.configuration
    assert best is not None and found.objective is not None
    made = replace(_decoded(problem, best, found.bounds, found.stages), model=model, report=dict(told), module=module)
    reports, rewritten = [part.report for part in made.stages], bool(problem.pcg.alternatives)
    _confirm(made, found.objective, rewritten, best)
    work = [flops(encoding, assignment) for encoding, assignment in found.stages]
    unsplit, total = (sum(part) for part in zip(*work, strict=True))
    bundles = [told for own in reports for told in own.get("bundles", [])]
    if rewritten:
        solved = _own(problem, best, found.bounds, found.stages)
        made.report["rewritten"] = [told for each in solved for told in changes(*each)]
    made.report.update(
        capacity_bytes=made.machine.device.capacity_bytes,
        unsplit_flops=unsplit / total if total and made.stages[0].machine.devices > 1 else 0.0,
        **({"bundles": bundles} if bundles else {}),
    )
    return made


def step_ns(problem: PlanningProblem, best: Configuration, bounds: tuple[int, ...], stages: Sequence[Solved]) -> int:
    """The predicted step of stages as they were solved."""
    return plan_price(_decoded(problem, best, bounds, stages, told=False)).objective_ns


def _decoded(
    problem: PlanningProblem, best: Configuration, bounds: tuple[int, ...], stages: Sequence[Solved], told: bool = True
) -> PipelinePlan:
    """The plan that the assignments of all stages mean; `told`: with what is reported of each."""
    machine, samples = problem.machine, problem.batch // best.micro_batches
    part, transfer = stage_machine(machine, best.row), transfer_price(machine, best.row)
    made = tuple(
        Plan(
            taken, part, best.placement, best.micro_batches, chosen, problem.training.dtype, problem.training.optimizer,
            report=report(encoding, assignment) if told else {}, recompute=encoding.recomputed(assignment),
            in_flight=best.in_flight(s), transfer=transfer,
        )
        for s, (encoding, assignment) in enumerate(_own(problem, best, bounds, stages))
        for taken, chosen in [decided(encoding, assignment)]
    )  # fmt: skip
    plain = with_batch(problem.plain or problem.pcg, samples)
    return PipelinePlan(plain, machine, best.row, bounds, made, best.schedule, best.chunks)


def _own(
    problem: PlanningProblem, best: Configuration, bounds: Sequence[int], stages: Sequence[Solved]
) -> list[Solved]:
    """The networks of stages, that equal ones have in common, each with its own part of the graph."""
    graph = with_batch(problem.pcg, problem.batch // best.micro_batches)
    cut = [stage(graph, *ends).graph for ends in pairwise(bounds)]
    return [(replace(e, pcg=own), assignment) for own, (e, assignment) in zip(cut, stages, strict=True)]


def _confirm(made: PipelinePlan, objective_ns: int, rewritten: bool, best: Configuration) -> None:
    """Price a plan once more; one that is rewritten may take and hold less than its networks, as in `run`.

    Every stage was planned for what the last one keeps besides.
    """
    confirmed, said = plan_price(made), made.report

    def agree(now: int, before: int) -> bool:
        return now == before or (rewritten and now < before)

    most = best.weight_versions, best.deferred_weight_gradients
    schedule, shape = best.schedule, (best.devices, best.chunks, best.micro_batches)
    for number, (own, given, part) in enumerate(zip(confirmed.stages, made.parts, made.stages, strict=True)):
        least = schedule.weight_versions(number), schedule.deferred_weight_gradients(*shape, number)
        planned, told = own if least == most else stage_price(given, *most), part.report
        assert agree(own.objective_ns, sum(told["parts_ns"].values())), (own.ns, told["parts_ns"])
        assert agree(planned.memory_bytes, told["memory_bytes"]), (planned.memory, told["memory_bytes"])
        told["memory_bytes"] = own.memory_bytes
    took = confirmed.objective_ns
    assert agree(took, objective_ns), (confirmed.busy_ns, objective_ns)
    said |= {"objective_ns": took, "memory_bytes": confirmed.memory_bytes}
    if took < objective_ns:
        assert said["status"] != Status.OPTIMAL.value, (confirmed.busy_ns, objective_ns)
        said["gap"] = (took - said["bound_ns"]) / took
