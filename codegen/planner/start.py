"""`--start`: the search space of the plans that complete a partial one.

What the plan decides is fixed as options would fix it; what options cannot say is in `SearchSpace.decided`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from ...formulation.decisions import Decisions
from ...formulation.parallelism import ANY_PARALLELISM
from ...formulation.search_space import RECOMPUTE, SearchSpace, Start
from ...formulation.spacetime.graph import Graph
from ...formulation.spacetime.site import told
from ...formulation.strategies.named_rows import exact_fixes
from ...formulation.strategies.strategy import ANY
from ...model.errors import PartitaError
from ...model.graph.pcg import PCG
from ...model.graph.stages import boundaries
from ...model.machine.machine import Machine
from ...model.options import times
from ...model.training import Training
from ...model.wording import did_you_mean
from ..plan.plan import Plan
from ..plan.plan_file import load_any
from ..plan.spacetime_plan import graph as operators_of
from .check_plan import write_plan
from .graph_decisions import decisions_in
from .partial_plan import Openness, PartialPlan, decisions_of


def started(space: SearchSpace, graph: PCG, machine: Machine, training: Training) -> SearchSpace:
    """The space with what its partial plan decides fixed; without one, itself.

    PartitaError: decisions that no plan of the planner has, or that options contradict; another model's plan.
    """
    if space.start is None:
        return space
    if space.start.plan is None:
        raise PartitaError(f"--loosen {','.join(space.start.loosen)} needs a plan: add --start FILE")
    if space.rules:
        raise PartitaError("--start: a partial plan is of the graph as captured; leave out --rewrite")
    openness = Openness(graph, space.start.loosen)
    plan = _read(space.start, graph, machine, training)
    if isinstance(plan, Graph):
        _check_names(graph, (node.name for node in plan.pcg.nodes))
        found = decisions_in(plan, machine, space.stages, openness)
    else:
        _check_names(graph, (node.name for node in plan.graph.nodes if node.op != "parameter" or node.gradient))
        if plan.machine.hierarchy != machine.hierarchy:
            planned, given = times(plan.machine.hierarchy), times(machine.hierarchy)
            raise PartitaError(f"--start: the plan is for a machine of levels {planned}, this one has {given}")
        found = decisions_of(plan, openness)
    _check_options(space, found)
    _check_recomputation(space, found)
    _check_hosts(space, machine, found)
    stages = space.stages if found.stages is None else found.stages
    places = (stages or 1) * found.chunks
    return replace(
        space,
        start=None,
        mesh=space.mesh if found.mesh is None else found.mesh,
        stages=stages,
        chunks=found.chunks if found.chunks > 1 else space.chunks,
        schedule=space.schedule if found.schedule is None or _among(space.schedule, found) else found.schedule,
        micro_batches=found.micro_batches or space.micro_batches,
        fix=_fixes(graph, space, found),
        bundles=False,
        decided=Decisions(
            found.row,
            found.placement,
            tuple(found.weights.items()),
            tuple(found.layers.items()),
            cuts=_cuts(graph, found, places) if places > 1 and found.stage_of and not space.stages_at else (),
        ),
    )


def _read(start: Start, graph: PCG, machine: Machine, training: Training) -> Graph | Plan:
    """The partial plan: a value as it is, a hand-written file run on the graph, or a saved plan."""
    if isinstance(start.plan, Graph | Plan):
        return start.plan
    if not isinstance(start.plan, str | Path) or not str(start.plan):
        given = repr(start.plan) if isinstance(start.plan, str) else type(start.plan).__name__
        raise PartitaError(f"--start {given}: the file of a plan is needed, a planner's plan, or a graph")
    path = Path(start.plan)
    if path.suffix != ".py":
        plan = load_any(path)
        if isinstance(plan, Plan):
            return plan
        path /= "plan.py"  # what `partita check` kept of a hand-written plan
        if not path.is_file():
            raise PartitaError(
                f"{start.plan}: a space-time plan without its plan.py: give the file that it was made of"
            )
    made = operators_of(graph, batch=training.batch)
    write_plan(path, made, machine.devices)
    return made


def _check_names(graph: PCG, names: Iterable[str]) -> None:
    known = {node.name for node in graph.nodes}
    missing = next((name for name in names if name not in known), None)
    if missing is not None:
        raise PartitaError(f"--start: the plan has {missing!r}, which the model does not{did_you_mean(missing, known)}")


def _check_options(space: SearchSpace, found: PartialPlan) -> None:
    """PartitaError: an option that says otherwise than the plan, or what it says in other words."""
    sizes = None if found.mesh is None else times(found.mesh)
    for option, given, decided in (
        ("--mesh", space.mesh and times(space.mesh), sizes),
        ("--mapping", space.mapping, sizes),
        ("--joint", ",".join(space.joint), sizes),
        (str(space.parallelism), space.parallelism != ANY_PARALLELISM, sizes),
        ("--stages", space.stages, found.stages),
        ("--stages-at", ",".join(space.stages_at), found.stages),
        ("--micro-batches", space.micro_batches, found.micro_batches),
        (
            "--schedule",
            None if space.schedule == "auto" or _among(space.schedule, found) else space.schedule,
            found.schedule,
        ),
        ("--chunks", None if space.chunks == 1 else space.chunks, found.stages and found.chunks),
    ):
        if given and decided is not None and given != decided:
            what = option if given is True else f"{option} {given}"
            raise PartitaError(
                f"{what}, but the --start plan decides {_decided(option, found, decided)}: leave one out"
            )


def _among(schedule: str, found: PartialPlan) -> bool:
    """True if a schedule is among those that have the plan's orders."""
    return found.schedule is not None and schedule in found.schedule.split(",")


def _check_recomputation(space: SearchSpace, found: PartialPlan) -> None:
    """PartitaError: a layer's mode is none that the options allow."""
    for name, mode in found.layers.items():
        if space.recompute != "auto" and mode not in RECOMPUTE[space.recompute]:
            option = f"--recompute {space.recompute}"
        elif space.compile and mode == "selective":
            option = "--compile recomputes layers whole"
        else:
            continue
        raise PartitaError(
            f"{option}, but the --start plan decides recomputation {mode} for {name}: leave it out, or --loosen {name}"
        )


def _check_hosts(space: SearchSpace, machine: Machine, found: PartialPlan) -> None:
    """PartitaError: states are on a host, and the options or the machine have none there."""
    name = next((name for name, stored in found.weights.items() if stored.offloaded), None)
    if name is None or space.offloads(machine):
        return
    what = "--no-offload" if space.offload is False else f"machine {machine.name} has no device.host_bandwidth"
    raise PartitaError(f"{what}, but the --start plan has the states of {name!r} on the host: swap() no updates there")


def _decided(option: str, found: PartialPlan, decided: object) -> str:
    words = {"--stages": "stage", "--stages-at": "stage", "--micro-batches": "micro-batch", "--chunks": "chunk"}
    if option in words:
        plural = "es" if option == "--micro-batches" else "s"
        return f"{decided} {words[option]}{plural * (decided != 1)}"
    return str(decided if option == "--schedule" else f"mesh {decided}")


def _fixes(graph: PCG, space: SearchSpace, found: PartialPlan) -> tuple[tuple[str, str], ...]:
    """The rows of options and of the plan; PartitaError where both name an operator and differ."""
    own = dict(exact_fixes(graph, space.fix))
    return tuple((own | {name: _agreed(name, own.get(name), rows) for name, rows in found.rows.items()}).items())


def _agreed(name: str, fixed: str | None, decided: Sequence[str]) -> str:
    """An operator's row on every axis; `ANY` agrees with every row. PartitaError: an option names another one."""
    given = [ANY] * len(decided) if fixed is None else fixed.split(",")
    both = [two if one == ANY else one for one, two in zip(given, decided, strict=False)]
    if len(given) != len(decided) or any(two not in (ANY, one) for one, two in zip(both, decided, strict=True)):
        rows = ",".join(decided)
        raise PartitaError(
            f"--fix {name}={fixed}, but the --start plan decides {rows}: leave it out, or --loosen {name}"
        )
    return ",".join(both)


def _cuts(graph: PCG, found: PartialPlan, stages: int) -> tuple[tuple[int, int], ...]:
    """For every stage after the first, the boundaries at which it may begin: after what the stages before it have.

    PartitaError: a stage of which nothing is decided, or that begins where the planner does not cut.
    """
    cuts = [_cut(graph, found, stage) for stage in range(1, stages)]
    for stage, ((_, last), (first, _)) in enumerate(pairwise(cuts), 1):
        if first <= last:
            raise PartitaError(
                f"--start: the plan assigns no operator to stage {stage} of stages 0 to {stages - 1}: assign one, or "
                "leave all stages open"
            )
    return tuple(cuts)


def _cut(graph: PCG, found: PartialPlan, stage: int) -> tuple[int, int]:
    """The first and the last boundary at which a stage may begin."""
    index, every = {node.name: i for i, node in enumerate(graph.nodes)}, boundaries(graph)
    before = max((index[name] for name, own in found.stage_of.items() if own < stage), default=-1)
    after = min((index[name] for name, own in found.stage_of.items() if own >= stage), default=len(graph.nodes))
    fitting = [number for number, b in enumerate(every[1:-1], 1) if before < b.position <= after]
    if fitting:
        return fitting[0], fitting[-1]
    places = ", ".join(graph.nodes[b.position].name for b in every[1:-1])
    name = graph.nodes[min(after, len(graph.nodes) - 1)].name
    raise PartitaError(
        told(
            found.sites.get(name),
            f"--start: stage {stage} begins at {name!r}, where the planner does not cut: it can begin at {places}",
        )
    )
