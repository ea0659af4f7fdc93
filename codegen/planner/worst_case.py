"""The plan with the least worst step on several machines: all plans found for each of them are priced on every one.

No plan's worst step is below what is proved of one machine: the bound is the largest of their bounds. If a gap remains,
the plans found for a blend of the machines are tried too.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from math import inf
from typing import Any

from ...formulation.search_space import SearchSpace
from ...model.errors import NoPlanError, PartitaError
from ...model.graph.pcg import PCG
from ...model.machine.machine import Machine
from ...model.machine.machine_numbers import blended
from ...model.machine.precision import precision
from ...model.options import times
from ...model.training import Training, dtype_names
from ...solvers.budget import Budget
from ...solvers.gap import relative_gap
from ...solvers.protocol import Limits, Status
from ..plan.plan import PipelinePlan, Plan
from ..pricing.on_machine import on_machine, step_on
from ..pricing.plan_price import plan_price
from ..pricing.price_items import StagePrice
from .by_operators import try_to_write
from .context import Context
from .plan_graph import plan_graph


@dataclass
class _Searches:
    """The machines, and what was found: plans with their steps on each, a report of every search, errors.

    The searches are those for the machines, in their order, and then perhaps that for the blend.
    """

    machines: Sequence[Machine]
    plans: list[tuple[Plan, Mapping[str, Any], list[int]]] = field(default_factory=list)
    reports: list[Mapping[str, Any]] = field(default_factory=list)
    failures: list[NoPlanError] = field(default_factory=list)

    @property
    def bounds(self) -> list[int]:
        """What is proved of the steps on every machine.

        0: nothing, or of another space than that of all plans: without what a faster plan of another search does (how
        tables are spread depends on the machine). States are on the host in no plan that runs on all machines unless
        all can have them there.
        """
        known = [r["bound_ns"] for r in self.reports]
        known += [0] * (len(self.machines) - len(known))
        fastest = [min((steps[m] for _, _, steps in self.plans), default=inf) for m in range(len(self.machines))]
        return [bound if bound and bound <= least else 0 for bound, least in zip(known, fastest, strict=False)]

    @property
    def interrupted(self) -> bool:
        return any("interrupt" in report["space"]["limits_hit"] for report in self.reports)

    def add(self, plan: Plan, report: Mapping[str, Any]) -> None:
        """Keep a plan that runs on all machines; `report` is that of its search."""
        steps = [step for machine in self.machines if (step := step_on(plan, machine)) is not None]
        if len(steps) == len(self.machines):
            self.plans.append((plan, report, steps))

    def best(self) -> tuple[Plan, Mapping[str, Any], list[int]]:
        """The plan with the least worst step. PartitaError: there is none."""
        if not self.plans:
            names = ", ".join(machine.name for machine in self.machines)
            raise self.failures[0] if self.failures else PartitaError(f"no plan was found that runs on all of {names}")
        return min(self.plans, key=lambda found: (max(found[2]), sum(found[2])))


def plan_for_all(
    graph: PCG, machines: Sequence[Machine], training: Training, space: SearchSpace, budget: Budget, context: Context
) -> Plan:
    """Plan a captured graph for the worst of several machines, or for the only one; it fits the memory of each.

    The plan's machine is that on which it takes longest. The searches share the time. PartitaError: the machines differ
    in their levels' sizes, or share a name; NoPlanError: none was found in time.
    """
    if len(machines) == 1:
        return plan_graph(graph, machines[0], training, space, budget, context)
    check_comparable(machines)
    for machine, dtype in product(machines, dtype_names(training.dtype).split(",")):
        machine.device.flops(precision(dtype).compute)  # refuses a dtype that the device lacks
    least, start = min(machine.device.capacity_bytes for machine in machines), time.monotonic()
    searches, quiet = _Searches([_with_capacity(machine, least) for machine in machines]), replace(context, emits=False)

    def search(machine: Machine, share: int) -> None:
        context.tell(f"planning for {machine.name}")
        left = None if budget.time_limit is None else (budget.time_limit - (time.monotonic() - start)) / share
        own = replace(budget, time_limit=left if left is None else max(left, 0.1))
        try:
            made = plan_graph(graph, machine, training, space, own, quiet)
        except NoPlanError as none:
            searches.failures.append(none)
            searches.reports.append(none.summary)
            return
        searches.reports.append(made.report)
        for plan in (made, *made.rivals):
            searches.add(plan, made.report)

    for number, machine in enumerate(searches.machines):
        search(machine, len(machines) + 1 - number)
        quiet = replace(quiet, save_network=None)
        if searches.interrupted:
            break
    blend = blended(searches.machines)
    target = Limits(gap=budget.gap).ceiling(max(searches.best()[2])) if searches.plans else 0
    if blend is not None and not searches.interrupted and max(searches.bounds) < target:
        search(_with_capacity(replace(blend, name="the blend of all machines"), least), 1)
    plan, report, steps = searches.best()
    made = on_machine(plan, machines[steps.index(max(steps))])
    made = _reported(made, dict(_facts(searches, plan, report, steps)))
    emitting = time.monotonic()
    if context.emits:
        try_to_write(made)
    made.report["seconds"] = _seconds(searches.reports, emitting - context.start, time.monotonic() - emitting)
    return made


def _seconds(reports: Sequence[Mapping[str, Any]], before: float, emit: float) -> dict[str, float]:
    """The seconds of all searches by part; what is left before the program was emitted went into prices."""
    each = [report["seconds"] for report in reports]
    parts = [part for part in ("rewrite", "formulate", "solve") if part in each[0]]
    known = {"capture": each[0]["capture"], **{part: sum(spent.get(part, 0) for spent in each) for part in parts}}
    known |= {"confirm": max(0.0, before - sum(known.values())), "emit": emit, "total": before + emit}
    return {part: round(spent, 3) for part, spent in known.items()}


def check_comparable(machines: Sequence[Machine]) -> None:
    """PartitaError: a plan for one of the machines is none for another, or they cannot be told apart."""
    first = machines[0]
    for second in machines[1:]:
        if first.hierarchy != second.hierarchy:
            raise PartitaError(
                f"{first.name} has {times(first.hierarchy)} devices, {second.name} {times(second.hierarchy)}: "
                "a plan for several machines needs levels of the same sizes"
            )
    names = [machine.name for machine in machines]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise PartitaError(f"two machines are named {twice}: give each a name of its own")


def _with_capacity(machine: Machine, capacity: int) -> Machine:
    device = machine.device
    return replace(machine, device=replace(device, memory_bytes=device.reserved_bytes + capacity))


def _facts(
    searches: _Searches, plan: Plan, report: Mapping[str, Any], steps: Sequence[int]
) -> Iterator[tuple[str, Any]]:
    """The report of the plan: its worst step, what is proved of it, and its step on every machine."""
    objective, bounds = max(steps), searches.bounds
    bound = max(bounds)
    limits = {limit for each in searches.reports for limit in each["space"]["limits_hit"]}
    if bound == objective:
        limits -= {"gap", "bound", "refused", "time"}
    else:
        limits = limits or {"bound"}
    spaces = [each["space"] for each in searches.reports]
    yield "status", (Status.OPTIMAL if bound == objective else Status.FEASIBLE).value
    yield from {"objective_ns": objective, "bound_ns": bound, "gap": relative_gap(objective, bound)}.items()
    yield "solver", report["solver"]
    yield from {
        key: plan.report[key] for key in ("unsplit_flops", "bundles", "rewritten") if key in plan.report
    }.items()
    yield "capacity_bytes", min(machine.device.capacity_bytes for machine in searches.machines)
    outside = dict.fromkeys(words for space in spaces for words in space["outside"])
    counts = {key: sum(space[key] for space in spaces) for key in ("networks_solved", "networks_kept")}
    yield "space", {**report["space"], **counts, "outside": list(outside), "limits_hit": sorted(limits)}
    yield (
        "machines",
        [
            {"name": machine.name, "objective_ns": step, "bound_ns": own}
            for machine, step, own in zip(searches.machines, steps, bounds, strict=True)
        ],
    )


def _reported(plan: Plan, report: dict[str, Any]) -> Plan:
    """The plan with its report, and that of every stage, priced on the plan's machine."""
    price = plan_price(plan)
    report |= {"memory_bytes": price.memory_bytes}
    if not isinstance(plan, PipelinePlan):
        stage = price.stages[0]
        again = {"recompute_ns": stage.recompute_ns} if plan.recompute else {}
        return replace(plan, report=report | _spent(stage) | again)
    stages = tuple(
        replace(part, report={"memory_bytes": own.memory_bytes, **_spent(own)})
        for part, own in zip(plan.stages, price.stages, strict=True)
    )
    return replace(plan, stages=stages, report=report)


def _spent(stage: StagePrice) -> dict[str, Any]:
    return {"parts_ns": dict(stage.ns), "hidden_ns": stage.hidden_ns, "host_bound_ns": stage.host_bound_ns}
