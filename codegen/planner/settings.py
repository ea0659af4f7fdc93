"""How to plan, and what is asked then: placements of a machine, micro-batches of a graph, strategies that are fixed."""

from __future__ import annotations

import math
from concurrent.futures import Executor
from dataclasses import dataclass

from ...formulation.placement.mappings import mapped, without_ones
from ...formulation.placement.placement import Placement, distinct, placements, reordered
from ...formulation.rewriting.saturate import SaturationLimits
from ...formulation.substitution.rule import Rule
from ...model.errors import PartitaError
from ...model.graph.batch import with_batch
from ...model.graph.pcg import PCG
from ...model.machine.machine import Machine
from ...solvers.cache.store import Store
from ...solvers.search.planning_problem import PlanningProblem, atom_sizes, check_batch
from ..emission.spmd.micro import divided
from .pipelined import inside
from .request import check_recompute

MOST_WORK = 2.0**32
"""Additions of formulating and of one elimination: meshes of so many axes that they take more are left out.

That is some seconds, and a search does it some dozens of times. A mesh that is asked for is never left out.
"""


@dataclass(frozen=True, slots=True)
class Settings:
    """How to plan: everything but the model and the machine."""

    batch: int
    dtype: str
    optimizer: str
    mesh: tuple[int, ...] | None = None
    micro_batches: int | None = None
    solver: str = "auto"
    time_limit: float | None = None
    gap: float = 0.0
    fix: tuple[tuple[str, str], ...] = ()
    save_network: str | None = None
    mapping: str | None = None
    rules: tuple[Rule, ...] = ()
    saturation: SaturationLimits | None = None
    store: Store | None = None
    stages: int | None = 1  # None: whatever is best
    schedule: str = "1f1b"
    chunks: int = 1
    workers: int | None = None  # None: a process for every core
    executor: Executor | None = None
    recompute: str = "auto"
    offload: bool | None = None  # None: where nothing fits without


def planning_problem(graph: PCG, machine: Machine, settings: Settings, plain: PCG | None = None) -> PlanningProblem:
    """What is asked of a graph; where it has several ways to compute nodes, `plain` is the one without.

    PartitaError: what is asked for cannot be meant.
    """
    counts, places = _micro_batches(graph, settings), _placements(machine, settings)
    asked = settings.mesh is not None or settings.mapping is not None
    if not asked and not settings.fix:
        places = reordered(places, atom_sizes(graph, settings.batch, counts))
    return PlanningProblem(
        graph, machine, settings.batch, places, counts,
        settings.dtype, settings.optimizer, _fixed(settings.fix, places), math.inf if asked else MOST_WORK,
        plain=plain if graph.alternatives else None, recompute=check_recompute(settings.recompute),
        offload=bool(settings.offload),
    )  # fmt: skip


def _placements(machine: Machine, settings: Settings) -> tuple[Placement, ...]:
    if settings.mapping is not None:
        if settings.mesh is not None:
            raise PartitaError("a mesh and a machine mapping both fix the axes; give one of them")
        without_stages("--mapping", settings)
        places: tuple[Placement, ...] = (without_ones(mapped(settings.mapping, machine.hierarchy)),)
    elif settings.stages is not None and settings.stages > 1:
        places = inside(machine, settings.stages, settings.mesh)
    else:
        places = distinct(placements(machine.hierarchy, mesh=settings.mesh))
    counts = {s.count(",") + 1 for _, s in settings.fix if "," in s}
    if len(counts) > 1:
        raise PartitaError("--fix names strategies for different numbers of axes")
    if counts:
        places = tuple(p for p in places if len(p.sizes) in counts)
        if not places:
            raise PartitaError(f"--fix names {counts.pop()} axes, which no mesh of this machine has")
    return places


def _micro_batches(graph: PCG, settings: Settings) -> tuple[int, ...]:
    """The numbers of micro-batches that the model allows; PartitaError if it allows none, or not the one asked for."""
    admitted: list[int] = []
    refusal: PartitaError | None = None
    for k in check_batch(settings.batch, settings.micro_batches):
        try:
            # Whether the model can be cut does not depend on k, but for single samples, whose graph is a special one.
            if admitted in ([], [1]) or settings.batch == k:
                part = with_batch(graph, settings.batch // k)
                divided(part, k)
        except PartitaError as error:
            refusal = error
        else:
            admitted.append(k)
    if not admitted:
        assert refusal is not None
        raise refusal
    return tuple(admitted)


def _fixed(fix: tuple[tuple[str, str], ...], places: tuple[Placement, ...]) -> dict[str, tuple[str, ...]]:
    """Row names an axis; a single name without commas holds for every axis of a mesh of one axis."""
    axes = {len(p.sizes) for p in places}
    wishes = {name: tuple(part.strip() for part in text.split(",")) for name, text in fix}
    if wishes and axes != {len(next(iter(wishes.values())))}:
        raise PartitaError(
            f"--fix gives {len(next(iter(wishes.values())))} strategies, one an axis of the mesh: fix that too (--mesh)"
        )
    return wishes


def without_stages(option: str, settings: Settings) -> None:
    """PartitaError: the option has no meaning for the stages that are asked for."""
    if settings.stages is not None and settings.stages > 1:
        raise PartitaError(f"{option} is of plans without a pipeline; leave out --stages {settings.stages}")
