"""The facts that every report of a plan shows: a summary, tables of splits and costs, the optimum."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...model.errors import PartitaError
from ...model.machine.precision import precision
from ...model.operators.operator import operator
from ...solvers.gap import relative_gap
from ..plan.plan import Plan
from ..pricing.plan_price import PlanPrice, plan_price
from ..pricing.price_items import StagePrice
from .cost_tables import (
    collectives_table,
    memory_table,
    modules_table,
    overlap_table,
    programs_table,
    sent_table,
    stages_table,
    time_unit,
)
from .describe import mesh_sentence, pipeline_sentence
from .proof_text import on_each_machine, proof_text, space_phrases, worst_of
from .sensitivity import sensitivity
from .strategy_tables import axes_table, operators_table, spread_table, weights_table
from .tables import Table
from .unsplit_work import unsplit_table
from .words import bytes_text, percent, ranges, recompute_text


@dataclass(frozen=True)
class Facts:
    """A plan's report: `summary` has (label, text) pairs; every number follows from `price` and `plan`."""

    plan: Plan
    price: PlanPrice
    title: str
    summary: tuple[tuple[str, str], ...]
    tables: tuple[Table, ...]
    optimum: tuple[str, ...]


def facts(plan: Plan) -> Facts:
    """All facts about a plan. Raises PartitaError if its report is malformed."""
    price = plan_price(plan)
    name = plan.model.get("reference") or "a model"
    title = f"{name} on {worst_of(plan.report) or plan.machine.name}, {plan.ranks} x {plan.machine.device.name}"
    further, told = sensitivity(plan, price)
    tables, optimum = (*_tables(plan, price), *further), (*_optimum(plan, price), *told)
    return Facts(plan, price, title, _summary(plan, price), tables, optimum)


def _tables(plan: Plan, price: PlanPrice) -> Iterator[Table]:
    """The tables of the only stage; or of a pipeline and its stages, equal ones once, without their memory."""
    found = [_stage_tables(part, own) for part, own in zip(plan.parts, price.stages, strict=True)]
    if plan.size == 1:
        yield from found[0]
        return
    yield stages_table(plan, price)
    yield sent_table(plan, price)
    for numbers in _equal_stages(found):
        words = f"stage{'s' * (len(numbers) > 1)} {ranges(numbers)}"
        words = "all devices" if numbers[0] == len(plan.stages) else words
        for table in found[numbers[0]][:-1]:
            yield replace(table, title=f"{table.title} of {words}")


def _stage_tables(plan: Plan, price: StagePrice) -> tuple[Table, ...]:
    tables = (axes_table(plan), operators_table(plan), weights_table(plan, price), modules_table(plan, price))
    optional = (
        overlap_table(price),
        unsplit_table(plan, price),
        collectives_table(plan, price),
        programs_table(plan),
        spread_table(plan),
    )
    return (*tables, *(table for table in optional if table.rows), memory_table(plan, price))


def _equal_stages(tables: Sequence[tuple[Table, ...]]) -> list[list[int]]:
    """The numbers of the stages, together where axes and operators are split alike, whatever the layers' numbers."""
    found: dict[str, list[int]] = {}
    for number, own in enumerate(tables):
        rows = [[(re.sub(r"\d+", "", row[0]), *row[1:]) for row in table.rows] for table in own[:2]]
        found.setdefault(repr(rows), []).append(number)
    return list(found.values())


def _summary(plan: Plan, price: PlanPrice) -> tuple[tuple[str, str], ...]:
    """(label, text) of time, memory, recomputation, mesh, batch and stages."""
    unit, size = time_unit(price)
    step = f"{price.objective_ns / size:,.2f} {unit} predicted"
    bound = _number(plan, "bound_ns")
    if bound is not None:
        step += f", {proof_text(plan.report, price.objective_ns, f'{bound / size:,.2f} {unit}')}"
    written = _number(plan, "objective_ns")
    if written is not None and written != price.objective_ns:
        step += f"; the plan file claims {written / size:,.2f} {unit}, which its layouts do not cost"
    samples = f"{plan.batch / (price.objective_ns / 1e9):,.1f} samples/s" if price.objective_ns else ""
    machines = on_each_machine(plan.report, lambda ns: f"{ns / size:,.2f} {unit}")
    batch = f"{plan.batch} samples"
    if plan.micro_batches > 1:
        batch += f" in {plan.micro_batches} micro-batches of {plan.graph.batch}"
    capacity = plan.machine.device.capacity_bytes
    memory = (
        f"{bytes_text(price.memory_bytes)} of {bytes_text(capacity)} a device ({percent(price.memory_bytes, capacity)})"
    )
    again = recompute_text(plan.recompute)
    if again and plan.size == 1:
        again += f"; {percent(price.stages[0].recompute_ns, price.objective_ns)} of the step"
    traffic = sum(overlap.traffic_ns for stage in price.stages for overlap in stage.overlaps)
    hidden, waited = (sum(ns) for ns in zip(*((s.hidden_ns, s.host_bound_ns) for s in price.stages), strict=True))
    return (
        ("step", f"{step}; {samples}" if samples else step),
        *((("machines", machines),) if machines else ()),
        *((("overlap", _overlap_text(hidden, traffic, unit, size)),) if traffic else ()),
        *((("host", f"devices wait {waited / size:,.2f} {unit} for it to issue calls"),) if waited else ()),
        ("memory", memory),
        *((("recompute", again),) if again else ()),
        ("mesh", mesh_sentence(plan)),
        ("batch", f"{batch}, {plan.dtype}, {plan.optimizer}"),
        *((("stages", pipeline_sentence(plan)),) if plan.size > 1 else ()),
    )


def _overlap_text(hidden_ns: int, traffic_ns: int, unit: str, size: int) -> str:
    """How much of the weight traffic of layers hides behind their kernels."""
    return (
        f"{hidden_ns / size:,.2f} of {traffic_ns / size:,.2f} {unit} of the layers' weight traffic hides behind kernels"
    )


def _number(plan: Plan, *keys: str) -> float | None:
    """A number of the plan's report; None if it is not there."""
    value: Any = plan.report
    for key in keys:
        if not isinstance(value, dict):
            raise PartitaError(f"the plan's report: {'.'.join(keys)} cannot be read")
        value = value.get(key)
        if value is None:
            return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise PartitaError(f"the plan's report: {'.'.join(keys)} is {value!r:.60}, not a number")
    return value


def _optimum(plan: Plan, price: PlanPrice) -> tuple[str, ...]:
    """The proof of optimality, and the space in which it holds."""
    unit, size = time_unit(price)
    status, bound = plan.report.get("status"), _number(plan, "bound_ns")
    if status is None or bound is None:
        return ("The plan is not the result of a search: nothing is known about better ones.",)
    lines = [
        f"Status {status}: objective {price.objective_ns / size:,.3f} {unit}, bound {bound / size:,.3f} {unit}, "
        f"gap {100 * relative_gap(price.objective_ns, bound):.3f} %."
    ]
    counts = {k: _number(plan, "space", k) for k in ("placements", "meshes", "options", "networks_solved")}
    searched = any(v is not None for v in counts.values())
    micro, modes = (plan.report["space"].get(key) if searched else None for key in ("micro_batches", "recompute"))
    if all(v is not None for v in counts.values()):
        lines.append(
            f"Space: {counts['placements']:,} placements of {counts['meshes']:,} meshes"
            + (f", micro-batches {', '.join(map(str, micro))}" if isinstance(micro, list) else "")
            + (f", recomputation {', '.join(map(str, modes))}" if isinstance(modes, list) else "")
            + f"; up to {counts['options']:,} options in one network (strategies from the operators' index notation, "
            f"one shared conversion a tensor, storage of weights); {counts['networks_solved']:,} networks solved."
        )
    seconds = _number(plan, "seconds", "total")
    if seconds is not None:
        lines.append(f"Solver {plan.report.get('solver') or 'unknown'}, {seconds:,.1f} s from model to program.")
    if (plan.report.get("space") or {}).get("refused"):
        lines.append(f"The solver gave no answer for {plan.report['space']['refused']}.")
    lines += [f"{words}: {', '.join(phrases)}." for words, phrases in space_phrases(plan.report).items() if phrases]
    hides = "weight traffic of layers hides behind" if any(s.layer_of for s in price.stages) else "nothing hides behind"
    lines.append(f"Cost model: {_kernels(plan)} and alpha-beta collectives; {hides} kernels (docs/cost-model.md).")
    return tuple(lines)


def _kernels(plan: Plan) -> str:
    """What prices kernels: the roofline, or measured times of the operators that have them."""
    priced = {node.op for part in plan.parts for node in part.graph.nodes if node.inputs and operator(node.op).passes}
    measured = {times.op for times in plan.machine.device.kernels if times.dtype == precision(plan.dtype).compute}
    if not priced & measured:
        return "roofline"
    rest = sorted(priced - measured)
    return "measured kernels" + (f" (by the roofline: {', '.join(rest)})" if rest else "")
