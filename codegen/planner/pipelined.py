"""The plan of a pipeline that the search found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from ...formulation.pipeline.configuration import Configuration
from ...formulation.pipeline.stage_transfers import transfer_price
from ...model.graph.batch import with_batch
from ...model.graph.stages import stage
from ...model.machine.machine import stage_machine
from ...solvers.protocol import Status
from ...solvers.search.planning_problem import PlanningProblem
from ...solvers.search.result import SearchResult, Solved
from ..plan.pipeline_plan import PipelinePlan
from ..plan.plan import Plan
from ..pricing.plan_price import plan_price
from ..pricing.stage_price import stage_price
from .decode import flops, report
from .rewritten_graph import changes, decided

if TYPE_CHECKING:
    from torch import nn


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
