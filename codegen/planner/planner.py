"""From a model to a plan: capture, rewrite, search, decode. What `partita plan` and `partita.optimize` do."""

from __future__ import annotations

import gzip
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from ...formulation.network.network import INFINITE
from ...formulation.network.network_file import network_json
from ...formulation.placement.mappings import mapped
from ...formulation.rewriting.rules import rules_for
from ...formulation.rewriting.saturate import Rewritten, rewritings
from ...formulation.rewriting.saturation_limits import SaturationLimits
from ...formulation.search_space import EVERYTHING, SearchSpace, parse_stages
from ...formulation.substitution.rule import Rule
from ...model.errors import PartitaError
from ...model.files import write_atomically
from ...model.garbage_collection import seldom_collected
from ...model.graph.pcg import PCG
from ...model.machine.machine import Machine
from ...model.machine.machine_choice import MachineChoice
from ...model.training import Training, dtype_names
from ...solvers.budget import UNLIMITED, Budget
from ...solvers.cache.cached_solver import Cached
from ...solvers.cache.store import Store, store_in
from ...solvers.protocol import Limits, Progress, Solver, Status
from ...solvers.protocol import solver as find_solver
from ...solvers.search.planning_problem import PlanningProblem
from ...solvers.search.search import search
from ..plan.pipeline_plan import PipelinePlan
from ..plan.plan import Plan
from ..pricing.stage_price import stage_price
from .decode import report
from .pipelined import looked_at, pipeline_space, pipelined
from .problem import problem_of
from .rewritten import decided
from .search_report import searched_space, without_plan
from .searches import Searched, searched
from .solved_order import with_solved_order
from .variants import Variant, best_of, variants

if TYPE_CHECKING:
    from torch import nn

Tell: TypeAlias = Callable[[str | Progress], None]
AnyPlan = TypeVar("AnyPlan", Plan, PipelinePlan)


@dataclass(frozen=True)
class Context:
    """What planning keeps and tells besides the problem.

    `model` describes the model in plan and report, `module` is the module itself with example inputs. Seconds count
    from `start`. `save_network`: the file in which the first placement's cost network is kept.
    """

    model: Mapping[str, Any] = field(default_factory=dict)
    module: tuple[nn.Module, Any] | None = None
    progress: Tell | None = None
    save_network: Path | None = None
    start: float = field(default_factory=time.monotonic)

    def tell(self, words: str) -> None:
        if self.progress is not None:
            self.progress(words)


@seldom_collected()
def plan(
    reference: str,
    choice: MachineChoice,
    given: Mapping[str, Any],
    space: SearchSpace,
    budget: Budget,
    *,
    small: bool = False,
    save_network: Path | None = None,
    progress: Tell | None = None,
) -> Plan | PipelinePlan:
    """Plan a model by its name or `file.py:factory`; `given` are the fields of `Training` that are not the model's own.

    PartitaError: unknown names, or a model that fits no placement. NoPlanError: none was found in time.
    """
    from ...model.capture.capture import capture
    from ...model.capture.load import load_module
    from ...model.zoo import zoo
    from ...model.zoo.registry import entry

    start = time.monotonic()
    if not reference.strip():
        raise PartitaError("the model's name is empty")
    machine = choice.load()
    known = entry(reference) if reference in zoo() else None
    own: dict[str, Any] = {"batch": 16}
    if known is not None:
        batch = known.default_batch(small, machine.devices)
        own = {"batch": batch, "dtype": known.dtype, "optimizer": known.optimizer}
    training = Training(**(own | dict(given)))
    space.counts(training.batch)
    space.check_devices(machine.devices)
    if space.mapping is not None:
        mapped(space.mapping, machine.hierarchy)
    find_solver(budget.solver)
    context = Context({}, None, progress, save_network, start)
    context.tell(f"capturing {reference}")
    module, inputs = load_module(reference, small=small, sequence=training.sequence)
    graph = capture(
        module,
        inputs,
        batch=max(training.batch, 2),
        allow_unknown=training.allow_unknown,
        statistics=training.statistics,
    )
    sequence = training.sequence
    if sequence is None and known is not None:
        sequence = known.small_sequence if small else known.sequence
    model = {"reference": reference, "small": small, "sequence": sequence, "batch": training.batch}
    return plan_graph(graph, machine, training, space, budget, replace(context, model=model))


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
    of a step (default: the example's). The other keywords are the fields of `Training`, `SearchSpace` and `Budget`, as
    the command line takes them: `dtype` and `schedule` may name several, of which the fastest is taken; `stages` is a
    number or "auto". `rewrite`: choose among all rewritings of the graph too, by the planner's rules, or by those given
    if they are proved. `cache`: the folder where solved networks are kept, "none", or None for the usual one
    (`PARTITA_CACHE`). `progress`: True prints to standard error, or a function that takes words and `Progress`.
    Raises PartitaError for what cannot be captured or fits no placement, NoPlanError where the time or an interrupt
    ended the search before any plan was found.
    """
    from ...model.capture.capture import capture

    start = time.monotonic()
    tell = _print if progress is True else progress or None
    machine = machine if isinstance(machine, Machine) else Machine.load(machine)
    samples = None if batch is None else max(batch, 2)
    graph = capture(module, inputs, batch=samples, allow_unknown=allow_unknown, statistics=statistics)
    training = Training(
        batch or graph.batch,
        dtype_names(dtype),
        optimizer,
        statistics=statistics,
        allow_unknown=allow_unknown,
    )
    space = SearchSpace(
        mesh=None if mesh is None else tuple(mesh),
        mapping=mapping,
        offload=offload,
        fix=tuple((fix or {}).items()),
        micro_batches=micro_batches,
        stages=parse_stages(stages),
        schedule=schedule if isinstance(schedule, str) else ",".join(schedule),
        chunks=chunks,
        recompute=recompute,
        rules=rules_for(rewrite),
        saturation=saturation or SaturationLimits(),
    )
    budget = Budget(
        solver=solver, time_limit=time_limit, gap=gap, workers=workers, executor=executor, store=store_in(cache)
    )
    model = {"reference": None, "batch": training.batch}
    return plan_graph(graph, machine, training, space, budget, Context(model, (module, inputs), tell, start=start))


@seldom_collected()
def plan_graph(
    graph: PCG,
    machine: Machine,
    training: Training,
    space: SearchSpace = EVERYTHING,
    budget: Budget = UNLIMITED,
    context: Context | None = None,
) -> Plan | PipelinePlan:
    """Plan a captured graph in the best dtype and schedule of those named; an interrupt keeps the best plan so far."""
    context = context or Context()
    if len(space.schedules) > 1 and not looked_at(graph, space):
        space = replace(space, schedule="auto", chunks=1)
    tried = variants(training, space)
    fits: set[str] = set()  # dtypes with plans that need nothing on the host: other schedules do not either

    def plan_one(variant: Variant, seconds: float | None, cutoff: int | None) -> Plan | PipelinePlan:
        if len(tried) > 1:
            context.tell(f"planning in {variant.training.dtype}, pipelines {variant.space.schedule}")
        if variant.space.offload is None and variant.training.dtype in fits:
            variant = replace(variant, space=replace(variant.space, offload=False))
        made = plan_variant(graph, machine, variant, replace(budget, time_limit=seconds), context, cutoff)
        fits.update([] if made.report["space"].get("offload") else [variant.training.dtype])
        return made

    return best_of(tried, budget.time_limit, budget.gap, plan_one)


def plan_variant(
    graph: PCG, machine: Machine, variant: Variant, budget: Budget, context: Context, cutoff: int | None
) -> Plan | PipelinePlan:
    """Plan a captured graph in one dtype and schedule, for a step of less than `cutoff` ns."""
    training, space, captured = variant.training, variant.space, time.monotonic()
    rewritten = _rewritings(graph, space) if space.rules else None
    rewrote = time.monotonic()
    problem = problem_of(rewritten.graph if rewritten else graph, machine, training, space, graph)
    if context.save_network is not None:
        space.check_unpipelined("--save-network")
        _save_network(problem, context.save_network)
    meshes = {place.sizes for place in problem.placements}
    context.tell(f"searching {len(problem.placements)} placements of {len(meshes)} meshes")
    limits = Limits(budget.seconds, cutoff, context.progress, budget.gap)
    began = time.monotonic()
    backend, among = _backend(budget), pipeline_space(problem, space)
    result = searched(problem, among, backend, limits, budget, space.offload, context.tell)
    problem, found = result.problem, result.found
    ended = time.monotonic()
    seconds = {
        "capture": round(captured - context.start, 3),
        **({"rewrite": round(rewrote - captured, 3)} if rewritten else {}),
        "formulate": round(began - rewrote + found.seconds - found.solving, 3),
        "solve": round(found.solving, 3),
    }
    facts: dict[str, Any] = {
        "status": found.status.value,
        "bound_ns": found.bound if found.bound < INFINITE else None,
        "space": searched_space(problem, among, found, rewritten),
        "seconds": seconds,
    }
    if found.configuration is None or found.objective is None:
        seconds["total"] = round(ended - context.start, 3)
        raise without_plan(problem, found, dict(context.model), facts)
    gap = (found.objective - found.bound) / found.objective
    facts |= {"objective_ns": found.objective, "gap": gap, "solver": found.source or backend.name}
    made: Plan | PipelinePlan
    if found.configuration.devices > 1:
        made = pipelined(problem, found, dict(context.model), facts, context.module)
        if made.schedule.limit is not None:
            context.tell("searching the order of the stages")
            made = with_solved_order(made, max(1.0, budget.seconds - (time.monotonic() - captured)))
    else:
        made = _unpipelined(result, rewritten, context, facts)
        if "bundles" in made.report and not found.interrupted:
            made.report["without_bundles"] = _without_bundles(problem, budget, context.start)
    emitting = time.monotonic()
    seconds["confirm"] = round(emitting - ended, 3)
    made.emit()  # any plan can be emitted
    seconds["emit"] = round(time.monotonic() - emitting, 3)
    seconds["total"] = round(time.monotonic() - context.start, 3)
    return made


def _rewritings(graph: PCG, space: SearchSpace) -> Rewritten:
    """All rewritings of a graph by the space's rules, which are proved first; what `fix` names is left alone.

    If it names alternatives, which rewriting makes, nothing is left alone.
    """
    from ...solvers.proof.commands import proved_instances  # a prover, which few plans need

    fixed = {name for name, _ in space.fix}
    kept = fixed if fixed <= {node.name for node in graph.nodes} else set()
    return rewritings(graph, proved_instances(space.rules, graph), space.saturation, kept)


def _unpipelined(result: Searched, rewritten: Rewritten | None, context: Context, facts: dict[str, Any]) -> Plan:
    """The plan that the search found without a pipeline, confirmed."""
    problem, ((best, assignment),) = result.problem, result.found.stages
    if rewritten:
        facts = {**facts, "rewritten": result.rewrites}
    taken, chosen = decided(best, assignment)
    made = Plan(
        taken, problem.machine, best.placement, best.micro_batches, chosen, problem.dtype, problem.optimizer,
        dict(context.model), report(best, assignment) | facts, context.module,
        recompute=best.recomputed(assignment),
    )  # fmt: skip
    _confirm(made, rewritten)
    return made


def _confirm(made: Plan, rewritten: Rewritten | None) -> None:
    """Assert the price and memory of a plan by the second pricer, which shares nothing with the encoding.

    With rewritings both may be lower: room is kept for the largest weights that any rewriting gathers, and a plan that
    is not optimal may hold what nothing reads. The report then has the plan's own.
    """
    confirmed, report = stage_price(made), made.report
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


def _backend(budget: Budget) -> Solver:
    """The solver, with its answers kept if there is a store."""
    found = find_solver(budget.solver)
    return found if budget.store is None else Cached(found, budget.store)


def _without_bundles(problem: PlanningProblem, budget: Budget, start: float) -> dict[str, Any]:
    """The best plan in which no branches run side by side, in the time left: their gain is the difference."""
    left = max(1.0, budget.seconds - (time.monotonic() - start))
    found = search(replace(problem, bundles=False), _backend(budget), Limits(left, gap=budget.gap))
    bound = found.bound if found.bound < INFINITE else None
    return {"status": found.status.value, "objective_ns": found.objective, "bound_ns": bound}


def _save_network(problem: PlanningProblem, path: Path) -> None:
    """Save the network of the first placement, with the fewest micro-batches; gzipped if the name ends in `.gz`."""
    first = problem.encoding(problem.placements[0], min(problem.micro_batches), fast=True)
    raw = json.dumps(network_json(first.network)).encode()
    write_atomically(path, gzip.compress(raw, mtime=0) if path.suffix == ".gz" else raw)


def _print(news: str | Progress) -> None:
    if isinstance(news, str):
        print(news, file=sys.stderr)
    elif news.incumbent is not None:
        gap = (news.incumbent - news.bound) / max(news.incumbent, 1)
        print(f"{news.seconds:6.1f} s  best {news.incumbent / 1e6:.3f} ms  gap {gap:.2%}", file=sys.stderr)
