"""From a model to a plan: capture, search, decode. What `partita plan` and `partita.optimize` do."""

from __future__ import annotations

import gzip
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from ...formulation.encoding.encoding import Encoding
from ...formulation.network.network import INFINITE
from ...formulation.placement.mappings import mapped
from ...formulation.rewriting.rules import planner_rules
from ...formulation.rewriting.saturate import Rewritten, SaturationLimits, rewritings
from ...formulation.substitution.rule import Rule
from ...formulation.substitution.rule_file import load_rules
from ...model.files import write_atomically
from ...model.garbage_collection import seldom_collected
from ...model.graph.pcg import PCG
from ...model.machine.machine import Machine
from ...solvers.cache.cached_solver import Cached
from ...solvers.cache.store import Store, store_in
from ...solvers.protocol import Limits, Progress, Solver, Status
from ...solvers.protocol import solver as find_solver
from ...solvers.search.planning_problem import PlanningProblem, check_batch
from ...solvers.search.unpipelined import search
from ..plan.pipeline_plan import PipelinePlan
from ..plan.plan import Plan
from ..pricing.plan_price import priced
from .decode import report
from .pipelined import looked_at, pipelined, space
from .request import PlanRequest, check_gap, check_schedules, check_seconds, check_stages, machine_for
from .rewritten import decided
from .search_report import searched_outside, searched_space, without_plan
from .searches import searched
from .settings import Settings, planning_problem, without_stages
from .variants import Way, best_of, named

if TYPE_CHECKING:
    from torch import nn

Tell: TypeAlias = Callable[[str | Progress], None]
AnyPlan = TypeVar("AnyPlan", Plan, PipelinePlan)


@seldom_collected()
def plan(request: PlanRequest, progress: Tell | None = None) -> Plan | PipelinePlan:
    """Plan what the command line asked for.

    PartitaError: unknown names, or a model that fits no placement. NoPlanError: none was found in time.
    """
    from ...model.capture.capture import capture
    from ...model.capture.load import load_module
    from ...model.zoo import zoo
    from ...model.zoo.registry import entry

    start = time.monotonic()
    machine = machine_for(request.machine, request.nodes, request.hierarchy)
    known = entry(request.model) if request.model in zoo() else None
    batch = request.batch
    if batch is None:
        batch = 16 if known is None else known.default_batch(request.small, machine.devices)
    rules = _rules(request)
    dtypes = named(request.dtype or (known.dtype if known else "float32"))
    settings = Settings(
        batch,
        dtypes[0],
        request.optimizer or (known.optimizer if known else "adamw"),
        request.mesh,
        request.micro_batches,
        request.solver,
        request.time_limit,
        request.gap,
        request.fix,
        request.save_network,
        request.mapping,
        rules,
        SaturationLimits(*request.rewrite_limits),
        store_in(request.cache),
        check_stages(request.stages),
        workers=request.workers,
        recompute=request.recompute,
        offload=request.offload,
    )
    check_batch(batch, request.micro_batches)
    if request.mapping is not None:
        mapped(request.mapping, machine.hierarchy)
    find_solver(request.solver)
    _tell(progress, f"capturing {request.model}")
    module, inputs = load_module(request.model, small=request.small, sequence=request.sequence)
    graph = capture(
        module, inputs, batch=max(batch, 2), allow_unknown=request.allow_unknown, statistics=request.statistics
    )
    sequence = request.sequence
    if sequence is None and known is not None:
        sequence = known.small_sequence if request.small else known.sequence
    model = {"reference": request.model, "small": request.small, "sequence": sequence, "batch": batch}
    orders = check_schedules(request.schedule, request.chunks)
    return _best(dtypes, orders, graph, machine, settings, model, progress, start)


def _rules(request: PlanRequest) -> tuple[Rule, ...]:
    """By what a graph is rewritten."""
    if request.rules is not None:
        return load_rules(request.rules)
    return planner_rules() if request.rewrite else ()


def optimize(
    module: nn.Module,
    inputs: Any,
    machine: Machine | str,
    *,
    batch: int | None = None,
    dtype: str | Sequence[str] = "float32",
    optimizer: str = "adamw",
    mesh: Sequence[int] | None = None,
    mapping: str | None = None,
    micro_batches: int | None = None,
    solver: str = "auto",
    time_limit: float | None = None,
    gap: float = 0.0,
    fix: Mapping[str, str] | None = None,
    allow_unknown: bool = False,
    statistics: str = "batch",
    rewrite: bool | Sequence[Rule] = False,
    saturation: SaturationLimits | None = None,
    cache: Store | Path | str | None = None,
    stages: int | str = "auto",
    schedule: str | Sequence[str] = "auto",
    chunks: int = 1,
    executor: Executor | None = None,
    workers: int | None = None,
    recompute: str = "auto",
    offload: bool | None = None,
    progress: Tell | bool | None = None,
) -> Plan | PipelinePlan:
    """Plan the training of a module.

    `inputs` are example inputs (a tuple, or a dict of keywords) whose dim 0 counts samples; `batch` is the global batch
    of a step (default: the example's). `dtype`: one of `model.precision.PRECISIONS`, or several, of which the fastest
    is taken. `mesh` fixes the axes' sizes, `mapping` names a placement (`formulation.mappings`). A plan proved within
    the share `gap` of the optimum ends the search. `statistics`: over what batch norms in training normalize (see
    `capture`). `rewrite`: choose among all rewritings of the graph too, by the planner's rules, or by those given if
    they are proved; `saturation` says when looking for them ends. `cache`: the folder where networks that were solved
    are kept, "none", or None for the usual one (`PARTITA_CACHE`). `stages`: of a pipeline, "auto" for whatever is best,
    1 for none; each device has `chunks` of them, run in the order of `schedule`: one, or several,
    of which the fastest is taken; `auto` is 1F1B or, with chunks, interleaved, `all` both and zero-bubble (2bw trains
    with gradients that are a step old). Parts of the search go to `executor`,
    or to as many processes as `workers` (None: one for every core). `recompute`: what layers compute again in backward:
    `none`, `full`, `selective`, or `auto`, the best of these for each. `offload`: optimizer states may be in the host's
    memory wherever that is faster; None: only where nothing fits without.
    `progress`: True prints to standard error, or a function that takes words and `Progress`.
    Raises PartitaError for what cannot be captured or fits no placement, NoPlanError where the time or an interrupt
    ended the search before any plan was found.
    """
    from ...model.capture.capture import capture

    start = time.monotonic()
    tell = _printer if progress is True else progress or None
    machine = machine if isinstance(machine, Machine) else Machine.load(machine)
    samples = None if batch is None else max(batch, 2)
    graph = capture(module, inputs, batch=samples, allow_unknown=allow_unknown, statistics=statistics)
    dtypes = named(dtype)
    orders = check_schedules(schedule if isinstance(schedule, str) else ",".join(schedule), chunks)
    settings = Settings(
        batch or graph.batch,
        dtypes[0],
        optimizer,
        tuple(mesh) if mesh is not None else None,
        micro_batches,
        solver,
        check_seconds(time_limit),
        check_gap(gap),
        tuple((fix or {}).items()),
        mapping=mapping,
        rules=planner_rules() if rewrite is True else tuple(rewrite or ()),
        saturation=saturation,
        store=store_in(cache),
        stages=check_stages(stages),
        workers=workers,
        executor=executor,
        recompute=recompute,
        offload=offload,
    )
    model = {"reference": None, "batch": settings.batch}
    return _best(dtypes, orders, graph, machine, settings, model, tell, start, (module, inputs))


def _best(
    dtypes: Sequence[str],
    orders: Sequence[tuple[str, int]],
    graph: PCG,
    machine: Machine,
    settings: Settings,
    model: dict[str, Any],
    progress: Tell | None,
    start: float,
    module: tuple[nn.Module, Any] | None = None,
) -> Plan | PipelinePlan:
    """Plan a captured graph in the best of some dtypes and schedules; one schedule where no pipeline is looked at."""
    if len(orders) > 1 and not looked_at(graph, settings):
        orders = [("1f1b", 1)]
    ways = [Way(dtype, *order) for dtype in dtypes for order in orders]
    fits: set[str] = set()  # dtypes with plans that need nothing on the host, nor do other schedules then

    def planned(way: Way, seconds: float | None, cutoff: int | None) -> Plan | PipelinePlan:
        if len(ways) > 1:
            _tell(progress, f"planning in {way.dtype}, pipelines {way.schedule}")
        offload = False if settings.offload is None and way.dtype in fits else settings.offload
        asked = replace(settings, time_limit=seconds, offload=offload, **way._asdict())
        made = plan_graph(graph, machine, asked, model, progress, start, module, cutoff)
        fits.update([] if made.report["space"].get("offload") else [way.dtype])
        return made

    return best_of(ways, settings.time_limit, settings.gap, planned)


@seldom_collected()
def plan_graph(
    graph: PCG,
    machine: Machine,
    settings: Settings,
    model: dict[str, Any],
    progress: Tell | None = None,
    start: float | None = None,
    module: tuple[nn.Module, Any] | None = None,
    cutoff: int | None = None,
) -> Plan | PipelinePlan:
    """Plan a captured graph; `model` and `module` are kept in the plan. An interrupt keeps the best plan so far.

    `cutoff`: only a plan of fewer ns is of use.
    """
    start = time.monotonic() if start is None else start
    captured = time.monotonic()
    rules = _proved(settings.rules, graph) if settings.rules else ()
    rewritten = rewritings(graph, rules, settings.saturation, _kept(graph, settings)) if settings.rules else None
    plain, graph = graph, rewritten.graph if rewritten else graph
    rewrote = time.monotonic()
    problem = planning_problem(graph, machine, settings, plain)
    if settings.save_network:
        without_stages("--save-network", settings)
        _save_network(problem, settings.save_network)
    meshes = {place.sizes for place in problem.placements}
    _tell(progress, f"searching {len(problem.placements)} placements of {len(meshes)} meshes")
    limits = Limits(settings.time_limit or float("inf"), cutoff, progress, settings.gap)
    began = time.monotonic()
    backend, among = _backend(settings), space(problem, settings)
    over = searched(problem, among, backend, limits, settings, lambda words: _tell(progress, words))
    problem, found, outside = over.problem, over.found, over.outside
    ended = time.monotonic()
    seconds = {
        "capture": round(captured - start, 3),
        **({"rewrite": round(rewrote - captured, 3)} if rewritten else {}),
        "formulate": round(began - rewrote + found.seconds - found.solving, 3),
        "solve": round(found.solving, 3),
    }
    result: dict[str, Any] = {
        "status": found.status.value,
        "bound_ns": found.bound if found.bound < INFINITE else None,
        "space": searched_space(problem, found, rewritten, getattr(backend, "kept", 0))
        if among is None or outside is None
        else searched_outside(problem, among, outside),
        "seconds": seconds,
    }
    if outside is not None and outside.configuration is not None and outside.configuration.devices > 1:
        assert outside.objective is not None
        gap = (outside.objective - found.bound) / outside.objective
        result |= {"objective_ns": outside.objective, "gap": gap, "solver": backend.name}
        return _emitted(pipelined(problem, outside, model, result, module), seconds, start, ended)
    if found.encoding is None or found.solution is None:
        seconds["total"] = round(ended - start, 3)
        raise without_plan(problem, found, model, result)
    best, solution = found.encoding, found.solution
    assert solution.assignment is not None and solution.objective is not None
    gap = (solution.objective - found.bound) / solution.objective
    told: dict[str, Any] = {**result, "objective_ns": solution.objective, "gap": gap, "solver": solution.source}
    if rewritten:
        told["rewritten"] = over.rewrites
    taken, chosen = decided(best, solution.assignment)
    made = Plan(
        taken, machine, best.placement, best.micro_batches, chosen, settings.dtype,
        settings.optimizer, model, report(best, solution.assignment) | told, module,
        recompute=best.recomputed(solution.assignment),
    )  # fmt: skip
    _confirm(made, rewritten)
    if "bundles" in made.report and not found.interrupted:
        made.report["without_bundles"] = _without_bundles(problem, settings, start)
    return _emitted(made, seconds, start, ended)


def _emitted(made: AnyPlan, seconds: dict[str, float], start: float, ended: float) -> AnyPlan:
    """A plan that can be emitted, as any must, with the times that this took; the search has `ended` before."""
    emitting = time.monotonic()
    seconds["confirm"] = round(emitting - ended, 3)
    made.emit()
    seconds["emit"] = round(time.monotonic() - emitting, 3)
    seconds["total"] = round(time.monotonic() - start, 3)
    return made


def _proved(rules: tuple[Rule, ...], graph: PCG) -> tuple[Rule, ...]:
    from ...solvers.proof.commands import proved_instances  # a prover, which few plans need

    return proved_instances(rules, graph)


def _kept(graph: PCG, settings: Settings) -> set[str]:
    """What no rewriting changes: nodes with fixed strategies, unless ways to rewrite them are given some as well."""
    fixed = {name for name, _ in settings.fix}
    return fixed if fixed <= {node.name for node in graph.nodes} else set()


def _confirm(made: Plan, rewritten: Rewritten | None) -> None:
    """Price a plan once more, which shares nothing of the encoding.

    Where weights can be joined, room is kept for the largest that any rewriting gathers; and a plan that is not optimal
    may hold what nothing reads. The plan's own price and memory are the lower ones.
    """
    confirmed, report = priced(made), made.report
    if made.recompute:
        report["recompute_ns"] = confirmed.again_ns
    if rewritten is None or not rewritten.ways:
        assert confirmed.objective_ns == report["objective_ns"], (confirmed.ns, report["objective_ns"])
        assert confirmed.memory_bytes == report["memory_bytes"], (confirmed.memory, report["memory_bytes"])
        return
    optimal = report["status"] == Status.OPTIMAL.value
    assert confirmed.objective_ns <= report["objective_ns"], (confirmed.ns, report["objective_ns"])
    assert confirmed.objective_ns == report["objective_ns"] or not optimal, (confirmed.ns, report["objective_ns"])
    assert confirmed.memory_bytes <= report["memory_bytes"], (confirmed.memory, report["memory_bytes"])
    report["objective_ns"], report["memory_bytes"] = confirmed.objective_ns, confirmed.memory_bytes
    report["gap"] = (confirmed.objective_ns - report["bound_ns"]) / confirmed.objective_ns


def _backend(settings: Settings) -> Solver:
    """The solver, with what is kept of its answers."""
    found = find_solver(settings.solver)
    return found if settings.store is None else Cached(found, settings.store)


def _without_bundles(problem: PlanningProblem, settings: Settings, start: float) -> dict[str, Any]:
    """The best plan in which no branches run side by side, in the time left: what they gain is the difference."""
    left = max(1.0, (settings.time_limit or math.inf) - (time.monotonic() - start))
    found = search(replace(problem, bundles=False), _backend(settings), Limits(left, gap=settings.gap))
    bound = found.bound if found.bound < INFINITE else None
    return {"status": found.status.value, "objective_ns": found.objective, "bound_ns": bound}


def _save_network(problem: PlanningProblem, path: str) -> None:
    """Keep the network of the first placement, with the fewest micro-batches; gzipped if the name ends in `.gz`."""
    first: Encoding = problem.encoding(problem.placements[0], min(problem.micro_batches), fast=True)
    raw = json.dumps(first.network.to_json()).encode()
    write_atomically(path, gzip.compress(raw, mtime=0) if path.endswith(".gz") else raw)


def _tell(progress: Tell | None, words: str) -> None:
    if progress is not None:
        progress(words)


def _printer(news: str | Progress) -> None:
    import sys

    if isinstance(news, str):
        print(news, file=sys.stderr)
    elif news.incumbent is not None:
        gap = (news.incumbent - news.bound) / max(news.incumbent, 1)
        print(f"{news.seconds:6.1f} s  best {news.incumbent / 1e6:.3f} ms  gap {gap:.2%}", file=sys.stderr)
