"""What a search was given as fixed and what it left out: its optimum is the best of the plans that remain.

The `space` of a report has both, as lists of noun phrases: `fixed` and `outside`. Every text that says "optimal" is
made from them (`codegen/report/proof_text.py`). Whoever widens or narrows the search changes the phrases here.
"""

from collections.abc import Iterator, Sequence
from math import prod

from ...formulation.bundles.branch_selection import leaves_out
from ...formulation.bundles.bundles import find_bundles
from ...formulation.encoding.recomputable_segments import recomputable_segments
from ...formulation.parallelism import ANY_PARALLELISM
from ...formulation.pipeline.schedule import CHIMERA, INTERLACED_PIPELINE
from ...formulation.placement.placement import prime_factors
from ...formulation.rewriting.saturate import Rewritten
from ...formulation.search_space import SearchSpace
from ...formulation.special import special_strategy
from ...formulation.strategies.sample_parts import parted_segments
from ...formulation.strategies.strategy import rows
from ...formulation.strategies.tensor_classes import classes
from ...model.graph.joined_tables import table_rows
from ...model.graph.segments import IN_PARTS, segments
from ...model.graph.stages import boundaries
from ...model.options import times
from ...solvers.search.planning_problem import PlanningProblem
from ...solvers.search.result import ConfigurationSpace, SearchResult


def fixed(space: SearchSpace) -> list[str]:
    """What the options fix: `mesh 2x4`, `2 stages`."""
    nodes = len(space.fixed)
    phrases = {
        f"mesh {times(space.mesh or ())}": space.mesh is not None,
        f"mapping {space.mapping}": space.mapping is not None,
        str(space.parallelism): space.parallelism != ANY_PARALLELISM,
        f"stages at {', '.join(space.stages_at)}": bool(space.stages_at),
        "unequal stages": space.unequal_stages,
        f"{space.stages} stages": space.stages is not None and space.stages > 1,
        f"{space.micro_batches} micro-batch{'es' * (space.micro_batches != 1)}": space.micro_batches is not None,
        f"recomputation {space.recompute}": space.recompute not in ("auto", "all"),
        "communication that waits": not space.overlap,
        "compiled blocks": space.compile,
        f"the strategies of {nodes} node{'s' * (nodes != 1)}": nodes > 0,
        **space.decided.phrases,
    }
    return [phrase for phrase, holds in phrases.items() if holds]


def outside(
    problem: PlanningProblem,
    among: ConfigurationSpace | None,
    found: SearchResult,
    rewritten: Rewritten | None,
    schedules: Sequence[tuple[str, int]],
) -> list[str]:
    """What an option would add, or a limit cut off: `rewriting`, `meshes of more than 3 axes`.

    `among`: the configurations, None without pipelines. `schedules`: all that are compared, each with its chunks.
    """
    return [
        *_pipelines(problem, among, schedules),
        *_axes(problem, among, found),
        *_rest(problem, among, found, rewritten),
    ]


def _pipelines(
    problem: PlanningProblem, among: ConfigurationSpace | None, schedules: Sequence[tuple[str, int]]
) -> Iterator[str]:
    if among is not None and among.has_pipelines:
        names = (name if chunks == 1 else f"{name} with {chunks} chunks" for name, chunks in schedules)
        yield f"schedules other than {' and '.join(names)}"
        if among.shares:
            yield from _unequal(problem, among)
        elif among.schedule.by_operators:
            yield from _by_operators(problem, schedules)
    elif problem.machine.devices > 1 and len(boundaries(problem.plain or problem.pcg)) > 2:
        yield "pipelines"


def _unequal(problem: PlanningProblem, among: ConfigurationSpace) -> Iterator[str]:
    """What a search of unequal stages lacks."""
    if problem.space.stages is None:
        yield "plans without a pipeline"
    least = min(among.shares)
    if least > 1:
        yield f"stages of fewer than {least} devices"
    if any(len(problem.pcg.consumers[i]) > 1 for i in problem.pcg.of("parameter")):
        yield "stages that share weights"
    if sum(size > 1 for size in problem.machine.hierarchy) > 1:
        yield "stages of parts of several units"
    yield from _lacking(problem, "unequal")


def _by_operators(problem: PlanningProblem, schedules: Sequence[tuple[str, int]]) -> Iterator[str]:
    """What a search of pipelines by operators lacks that none of the schedules compared with it has."""
    own = problem.space.schedule
    if problem.space.stages is None and all(name == own for name, _ in schedules):
        yield "plans without a pipeline"
    if own == CHIMERA.name:
        yield "chimera pipelines whose two stages share a device's memory unevenly, or with weights in shards each way"
    if own == INTERLACED_PIPELINE.name:
        yield "operators on all devices other than tables, scores and the loss, or with special strategies"
    yield from _lacking(problem, own)


def _lacking(problem: PlanningProblem, kind: str) -> Iterator[str]:
    """What pipelines lack whose programs are those of space-time plans."""
    lacking = {
        "selective recomputation": "selective" in problem.space.modes,
        "offload": problem.machine.device.host_bandwidth is not None,
        "parallel branches": bool(find_bundles(problem.pcg)),
    }
    yield from (f"{what} in {kind} pipelines" for what, lacks in lacking.items() if lacks)


def _axes(problem: PlanningProblem, among: ConfigurationSpace | None, found: SearchResult) -> Iterator[str]:
    """The most axes of a mesh, where the machine, or what a pipeline leaves of it, has placements of more."""
    if found.orders_left_out:
        yield "other orders of a mesh's axes"
    if problem.space.fixes_axes or problem.space.fix:
        return
    whole = {(1,) * len(problem.machine.hierarchy): problem.placements}
    limits = []
    for row, places in (whole if among is None else among.placements).items():
        searched = max((len(p.sizes) for p in places if len(p.sizes) <= found.axes), default=0)
        if searched < len(prime_factors(problem.machine.devices // prod(row))):
            limits.append(searched)
    if limits:
        yield f"meshes of more than {min(limits)} {'axis' if min(limits) == 1 else 'axes'}"


def _rest(
    problem: PlanningProblem, among: ConfigurationSpace | None, found: SearchResult, rewritten: Rewritten | None
) -> Iterator[str]:
    if rewritten is None:
        yield "rewriting"
    elif rewritten.limits_hit:
        yield "rewritings beyond the limits of saturation"
    if found.unrewritten:
        yield f"rewritings on meshes of {min(len(p.sizes) for p in found.unrewritten)} or more axes"
    alone = among is None or not among.schedule.by_operators  # else said of these pipelines
    if alone and problem.space.offload is False and problem.machine.device.host_bandwidth is not None:
        yield "offload"
    yield from _unoffered(problem, among)
    if problem.machine.devices > 1 and any(table_rows(problem.pcg.nodes[i]) for i in problem.pcg.of("parameter")):
        yield "other spreads of tables"
    if alone and not problem.space.bundles:
        yield "parallel branches"
    elif alone and rewritten is not None and problem.machine.devices > 1 and leaves_out(problem.pcg):
        yield "some parallel branches of rewritten graphs"
    if problem.space.compile and problem.space.recompute in ("auto", "all"):
        yield "selective recomputation"
    if not problem.space.in_parts and "full" in problem.space.modes and _has_parts(problem):
        yield "recomputation in parts"
    if problem.space.modes != ("none",) and _has_rewritten_segments(problem):
        yield "recomputation of rewritten layers"


def _has_parts(problem: PlanningProblem) -> bool:
    """True if layers could be computed in parts of the samples of a micro-batch."""
    samples = (problem.batch // k for k in problem.micro_batches)
    return any(n % parts == 0 for n in samples for parts in IN_PARTS.values()) and bool(parted_segments(problem.pcg))


def _has_rewritten_segments(problem: PlanningProblem) -> bool:
    """True if the captured graph has segments that alternatives keep from being recomputed."""
    graph = problem.pcg
    recomputed = recomputable_segments(graph, classes(graph))
    return problem.plain is not None and len(recomputed) < len(segments(problem.plain))


def _unoffered(problem: PlanningProblem, among: ConfigurationSpace | None) -> Iterator[str]:
    """Special strategies of the graph that are offered only if a node is fixed to them, at some size of a stage."""
    pipelines = [(1,)] if among is None else among.placements
    stages = {problem.machine.devices // prod(row) for row in pipelines} - {1}
    sizes = [(problem.batch // k, devices) for k in problem.micro_batches for devices in stages]
    graph = problem.plain or problem.pcg
    names = {row.special for node in range(len(graph.nodes)) for row in rows(graph, node) if row.special}
    for strategy in map(special_strategy, sorted(names)):
        if not all(strategy.offered(*size) for size in sizes):
            yield strategy.unoffered
