"""The plan of a search result, of one stage or several, confirmed by a pricer that shares nothing with the search."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from ...formulation.pipeline.configuration import Configuration
from ...formulation.pipeline.cut_graph import cut_graph
from ...formulation.pipeline.stage_transfers import broadcast_price, stage_transfers
from ...formulation.placement.placement import of_rows
from ...model.graph.batch import with_batch
from ...model.graph.interlaced import interlaced
from ...model.graph.pcg import PCG
from ...model.graph.stages import stage
from ...model.machine.machine import stage_machine
from ...solvers.gap import relative_gap
from ...solvers.protocol import Status
from ...solvers.search.planning_problem import PlanningProblem
from ...solvers.search.result import SearchResult, Solved
from ..plan.plan import PipelinePlan, Plan
from ..pricing.plan_price import plan_price
from ..pricing.stage_price import stage_price
from .context import Context
from .decode import report, unsplit_flops
from .rewritten_graph import changes, decided
from .rivals import rivals

WITHOUT_CONTEXT = Context()


def confirmed_plan(
    problem: PlanningProblem,
    found: SearchResult,
    facts: Mapping[str, Any],
    context: Context = WITHOUT_CONTEXT,
) -> Plan:
    """The plan that a search found, with its rivals; `facts` go into its report.

    AssertionError: the second pricer computes another step or memory than the search.
    """
    best = found.configuration
    assert best is not None and found.objective is not None
    whole, problem = problem, _searched(problem, found, best)
    stages = _own_graphs(problem, best, found.bounds, found.stages)
    reports = [report(*solved) for solved in stages]
    made = _decoded(problem, best, found.bounds, stages, reports, context)
    made.report.update(facts)
    if problem.pcg.alternatives:
        made.report["rewritten"] = [
            *facts.get("rewritten", ()),
            *(each for solved in stages for each in changes(*solved)),
        ]
    _confirm(made, best, found.objective, rewritten=bool(problem.pcg.alternatives))
    return made if found.interrupted else replace(made, rivals=rivals(made, _others(whole, found, context)))


def _others(problem: PlanningProblem, found: SearchResult, context: Context) -> Iterator[Plan]:
    """The other plans that a search found, the fastest first, without those whose order is yet to be found."""
    for other in found.others:
        configuration = other.configuration
        if configuration.devices > 1 and configuration.schedule.limit is not None:
            continue
        own = _searched(problem, found, configuration)
        stages = _own_graphs(own, configuration, other.bounds, other.decode())
        made = _decoded(own, configuration, other.bounds, stages, [report(*solved) for solved in stages], context)
        made.report["objective_ns"] = other.objective
        yield made


def _searched(problem: PlanningProblem, found: SearchResult, best: Configuration) -> PlanningProblem:
    """The problem in which a configuration was searched: of the captured graph, if its mesh is too wide for others."""
    wide = best.devices > 1 and best.placement in found.unrewritten
    return problem.captured if wide else problem


def step_ns(problem: PlanningProblem, best: Configuration, bounds: tuple[int, ...], stages: Sequence[Solved]) -> int:
    """The predicted step of stages as they were solved."""
    return plan_price(_decoded(problem, best, bounds, _own_graphs(problem, best, bounds, stages))).objective_ns


def _own_graphs(
    problem: PlanningProblem, best: Configuration, bounds: Sequence[int], stages: Sequence[Solved]
) -> Sequence[Solved]:
    """The networks of the stages, which equal stages share, each with its own part of the graph."""
    if best.devices == 1:
        return stages
    graph = with_batch(problem.whole, problem.batch // best.micro_batches)
    made = cut_graph(graph, best.schedule).graph
    cut = [stage(made, *ends).graph for ends in pairwise(bounds)]
    cut += [] if problem.interlaced is None else [interlaced(graph).shared.graph]
    return [(replace(e, pcg=own), assignment) for own, (e, assignment) in zip(cut, stages, strict=True)]


def _decoded(
    problem: PlanningProblem,
    best: Configuration,
    bounds: tuple[int, ...],
    stages: Sequence[Solved],
    reports: Sequence[dict[str, Any]] = (),
    context: Context = WITHOUT_CONTEXT,
) -> Plan:
    """The plan that the assignments of all stages encode; `reports` are those of the stages."""
    machine, pipelined = problem.machine, best.devices > 1
    count = len(bounds) - 1 if pipelined else 1
    stage_context = WITHOUT_CONTEXT if pipelined else context
    transfers = stage_transfers(machine, best.row, best.shares, count) if pipelined else (None,)
    plans = []
    for s, (encoding, assignment) in enumerate(stages):
        graph, chosen = decided(encoding, assignment)
        plan = Plan(
            graph,
            stage_machine(machine, best.of(s).stage_row) if s < count else machine,
            best.of(s).placement if s < count else of_rows((best.row, *best.matrix)),
            best.micro_batches,
            choices=chosen,
            dtype=problem.training.dtype,
            optimizer=problem.training.optimizer,
            model=dict(stage_context.model),
            report=reports[s] if reports else {},
            module=stage_context.module,
            initial=stage_context.initial,
            recompute=encoding.recomputed(assignment),
            in_flight=best.in_flight(s) if s < count else 1,
            transfer=transfers[s] if s < count else broadcast_price(machine, best.row),
            overlap=problem.space.overlap,
            together=encoding.together,
            compile=problem.space.compile,
        )
        plans.append(plan)
    if not pipelined:
        return plans[0]
    return PipelinePlan(
        _whole(problem, best),
        machine,
        () if best.meshes else best.row,
        bounds,
        stages=tuple(plans[:count]),
        shared=plans[count] if len(plans) > count else None,
        shares=best.shares,
        schedule=best.schedule,
        chunks=best.chunks,
        model=dict(context.model),
        report=_pipeline_report(stages, reports) if reports else {},
        module=context.module,
        initial=context.initial,
    )


def _whole(problem: PlanningProblem, best: Configuration) -> PCG:
    """The graph of a whole model, for a micro-batch."""
    return with_batch(problem.plain or problem.whole, problem.batch // best.micro_batches)


def _pipeline_report(stages: Sequence[Solved], reports: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """A pipeline's report, as far as it sums up its stages'."""
    bundles = [bundle for each in reports for bundle in each.get("bundles", [])]
    return {
        "capacity_bytes": reports[0]["capacity_bytes"],
        "unsplit_flops": unsplit_flops(stages),
        **({"bundles": bundles} if bundles else {}),
    }


def _confirm(made: Plan, best: Configuration, objective_ns: int, rewritten: bool) -> None:
    """Assert that the second pricer agrees on step and memory, and report its numbers.

    With alternatives its numbers may be lower: the network reserves memory for the largest weights that any alternative
    gathers, and a plan that is not optimal may hold tensors that nothing reads. Every stage was planned for as many
    weight versions and deferred weight gradients as the stage with the most has.
    """
    price, report = plan_price(made), made.report

    def agree(priced: int, planned: int) -> bool:
        return priced == planned or (rewritten and priced < planned)

    most = best.weight_versions, best.deferred_weight_gradients
    schedule, shape = best.schedule, (best.devices, best.chunks, best.micro_batches)
    if made.shared is not None and price.shared is not None:
        assert price.shared.objective_ns == _reported(made.shared), (price.shared.ns, made.shared.report["parts_ns"])
        assert price.shared.memory_bytes == made.shared.report["memory_bytes"], price.shared.memory
    for number, (own, given, part) in enumerate(zip(price.stages, made.parts, made.stages, strict=True)):
        least = schedule.weight_versions(number), schedule.deferred_weight_gradients(*shape, number)
        planned, stage_report = own if least == most else stage_price(given, *most), part.report
        assert agree(own.objective_ns, _reported(part)), (own.ns, stage_report["parts_ns"])
        assert agree(planned.memory_bytes, stage_report["memory_bytes"]), (planned.memory, stage_report["memory_bytes"])
        stage_report["memory_bytes"] = own.memory_bytes
    took = price.objective_ns
    assert agree(took, objective_ns), (price.busy_ns, objective_ns)
    report |= {"objective_ns": took, "memory_bytes": price.memory_bytes}
    if took < objective_ns:
        assert report["status"] != Status.OPTIMAL.value, (price.busy_ns, objective_ns)
        report["gap"] = relative_gap(took, report["bound_ns"])
    if best.devices == 1 and made.recompute:
        report["recompute_ns"] = price.stages[0].recompute_ns


def _reported(plan: Plan) -> int:
    """The time of a stage by the report of its network."""
    report = plan.report
    return int(sum(report["parts_ns"].values()) - report["hidden_ns"] + report["host_bound_ns"])
