"""What a given configuration costs, in the words of training frameworks, beside the planner's own plan."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from ...formulation.parallelism import Parallelism
from ...formulation.search_space import SearchSpace
from ...model.errors import DoesNotFitError, PartitaError
from ...model.machine.machine import Machine
from ...model.machine.machine_choice import MachineChoice
from ...model.options import check_choice
from ...solvers.budget import Budget
from ..plan.plan import Plan
from ..pricing.plan_price import PlanPrice, plan_price
from .context import Tell
from .plan_graph import plan_graph
from .planner import prepared

BASELINES = ("dp", "zero1", "zero2", "fsdp", "hsdp", "megatron")
"""Names of configurations: `Parallelism` on a machine, see `baseline`."""


@dataclass(frozen=True)
class Priced:
    """A plan and its price; `fits` the device's memory."""

    plan: Plan
    price: PlanPrice
    fits: bool

    def to_json(self, capacity: int) -> dict[str, Any]:
        """ns of a step, bytes of the fullest rank, and the ns of every part of the busiest stage; `hidden` is less."""
        stage = max(self.price.stages, key=lambda stage: stage.objective_ns)
        waiting = self.price.objective_ns - stage.objective_ns
        parts = {**stage.ns, "hidden": -stage.hidden_ns, "host": stage.host_bound_ns, "pipeline": waiting}
        return {
            "step_ns": self.price.objective_ns,
            "memory_bytes": self.price.memory_bytes,
            "capacity_bytes": capacity,
            "fits": self.fits,
            "status": self.plan.report["status"],
            "bound_ns": self.plan.report["bound_ns"],
            "schedule": self.plan.schedule.name if self.plan.size > 1 else None,
            "stages": self.plan.size,
            "micro_batches": self.plan.micro_batches,
            "parts_ns": parts,
            "limit": max(parts, key=lambda part: parts[part]),
        }


def baseline(name: str, given: Parallelism, machine: Machine, stages: int) -> Parallelism:
    """A named configuration on a machine with `stages`; what is `given` replaces its sizes.

    dp, zero1, zero2 and fsdp: every rank has samples of its own, and weights are whole or in shards; hsdp: in shards
    within a node. megatron: matrices are split within a node, and what lies between them by positions.
    PartitaError: an unknown name.
    """
    check_choice("--baseline", name, BASELINES)
    devices = machine.devices // stages
    inner = machine.hierarchy[-1] if len(machine.hierarchy) > 1 else 1
    named = {
        "dp": Parallelism(dp=devices, zero=0),
        "zero1": Parallelism(dp=devices, zero=1),
        "zero2": Parallelism(dp=devices, zero=2),
        "fsdp": Parallelism(dp=devices, zero=3),
        "hsdp": Parallelism(dp=devices, dp_shard=inner, zero=3),
        "megatron": Parallelism(dp=devices // inner, tp=inner, zero=1, sequence_parallel=True),
    }[name]
    if given.tp is not None or given.cp is not None:
        named = replace(named, dp=devices // ((given.tp or named.tp or 1) * (given.cp or 1)))
    return replace(named, **given.given)


def completed(given: Parallelism, machine: Machine, stages: int) -> Parallelism:
    """The configuration, whose data-parallel ranks are those that its other sizes leave."""
    taken = stages * (given.tp or 1) * (given.cp or 1)
    if given.dp is None and machine.devices % taken:
        what = f"{given} with {stages} stages" if given.given else f"--pp {stages}"
        raise PartitaError(f"{what} does not divide {machine.devices} devices")
    dp = given.dp or machine.devices // taken
    if dp * taken != machine.devices:
        what = f"{replace(given, dp=dp)} with {stages} stages"
        raise PartitaError(f"{what} has {dp * taken} ranks, not {machine.devices}")
    return replace(given, dp=dp)


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceRequest:
    """What to price: a configuration of a model; `baseline` is one of `BASELINES`, `beside`: plan it freely as well."""

    model: str
    machine: MachineChoice
    training: Mapping[str, Any]
    parallelism: Parallelism
    space: SearchSpace
    budget: Budget
    small: bool = False
    baseline: str | None = None
    beside: bool = True


def price(request: PriceRequest, progress: Tell | None = None) -> dict[str, Any]:
    """Price a configuration, and the planner's own plan; what does not fit is priced as if it did.

    PartitaError: options that contradict each other.
    """
    parallelism, space, budget, name = request.parallelism, request.space, request.budget, request.baseline
    machine = request.machine.load()
    if space.unequal_stages:
        if name is not None:
            raise PartitaError(f"--unequal-stages: every stage has a mesh of its own; leave out --baseline {name}")
        fixed = replace(space, parallelism=parallelism)
        words = f"unequal stages{'' if space.stages is None else f' --pp {space.stages}'}"
    else:
        stages = space.stages or 1
        parallelism = parallelism if name is None else baseline(name, parallelism, machine, stages)
        fixed = replace(space, parallelism=completed(parallelism, machine, stages), stages=stages)
        words = f"{fixed.parallelism}{f' --pp {stages}' if stages > 1 else ''}"
    fixed = replace(fixed, offload=space.offload or False)
    fixed = replace(fixed, schedule=",".join(name for name, _ in fixed.schedules))  # and no other
    graph, training, context = prepared(
        request.model, machine, request.training, fixed, budget, small=request.small, progress=progress
    )
    context = replace(context, emits=False, explains=False)

    def best_of(among: SearchSpace) -> Priced:
        try:
            made, fits = plan_graph(graph, machine, training, among, budget, context), True
        except DoesNotFitError:
            without_limit = machine.without_memory_limit()
            made, fits = plan_graph(graph, without_limit, training, among, budget, context), False
        return Priced(made, plan_price(made), fits)

    capacity = machine.device.capacity_bytes
    result: dict[str, Any] = {
        "model": request.model,
        "machine": machine.name,
        "devices": prod(machine.hierarchy),
        "configuration": words,
        "baseline": name,
        "priced": best_of(fixed).to_json(capacity),
        "planned": None,
    }
    if request.beside:
        context.tell("planning without the configuration")
        kept = SearchSpace(
            offload=space.offload, recompute=space.recompute, overlap=space.overlap, compile=space.compile
        )
        free = best_of(kept)
        mesh = list(free.plan.placement.sizes) if free.plan.size == 1 else None
        result["planned"] = free.to_json(capacity) | {"mesh": mesh}
    return result
