"""What `show` says of a pipelined plan: of every stage what it is and costs, of every kind of stage how it is split."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..pricing.pipeline_price import PipelinePriced, priced
from ..pricing.price_items import MEMORY
from .describe import pipeline_sentence
from .facts import Facts, optimum, summary, time_unit
from .facts import facts as facts_of_stage
from .tables import Table
from .words import bytes_text, contents, percent, ranges

if TYPE_CHECKING:
    from ..plan.pipeline_plan import PipelinePlan


@dataclass(frozen=True)
class PipelineFacts:
    """A pipelined plan's report; `stages` are those of its stages by themselves."""

    plan: PipelinePlan
    priced: PipelinePriced
    title: str
    summary: tuple[tuple[str, str], ...]
    tables: tuple[Table, ...]
    optimum: tuple[str, ...]
    stages: tuple[Facts, ...]


def facts(plan: PipelinePlan) -> PipelineFacts:
    """Everything there is to say about a plan. PartitaError: its report is malformed."""
    cost = priced(plan)
    name = plan.model.get("reference") or "a model"
    title = f"{name} on {plan.machine.name}, {plan.ranks} x {plan.machine.device.name}"
    stages = tuple(map(facts_of_stage, plan.parts, cost.stages))
    tables = [_stages_table(plan, cost), _handed_table(plan, cost)]
    for words, found in _kinds(stages):
        tables += [replace(table, title=f"{table.title} of {words}") for table in found.tables[:-1]]
    told = (*summary(plan, cost), ("stages", pipeline_sentence(plan)))
    return PipelineFacts(plan, cost, title, told, tuple(tables), optimum(plan, cost), stages)


def _stages_table(plan: PipelinePlan, cost: PipelinePriced) -> Table:
    """What every stage is, how long it works, what its devices hold."""
    unit, size = time_unit(cost)
    rows = []
    for number, (part, stage) in enumerate(zip(plan.stages, cost.stages, strict=True)):
        sizes = [bytes_text(stage.memory[kind]) for kind in MEMORY]
        rows.append(
            (
                str(number), f"pipeline {number % plan.size}", contents(part.graph),
                f"{stage.objective_ns / size:,.2f}", percent(stage.objective_ns, cost.objective_ns),
                str(part.in_flight), *sizes, bytes_text(stage.memory_bytes),
            )
        )  # fmt: skip
    return Table(
        "Stages",
        f"{unit} that a stage works in a step, and its share of the step; the rest it waits. Activations are those of "
        "all micro-batches that are kept at once.",
        ("stage", "devices", "what", unit, "share", "kept", *MEMORY, "memory"),
        tuple(rows),
        words=3,
    )


def _handed_table(plan: PipelinePlan, cost: PipelinePriced) -> Table:
    """What stages hand on, in which layout."""
    unit, size = time_unit(cost)
    rows = []
    for number, (part, stage) in enumerate(zip(plan.parts, cost.stages, strict=True)):
        for index in part.graph.of("send"):
            items = [item for item in stage.items if item.node == index and item.kind == "send"]
            spent = sum(item.total_ns for item in items)
            layout = part.layout_text(index, part.choices[index].output)
            name = part.graph.nodes[index]["peer"]
            largest = bytes_text(max((item.bytes for item in items), default=0))
            rows.append((f"{number} to {number + 1}", name, layout, largest, f"{spent / size:,.2f}"))
    return Table(
        "Handed on",
        f"Tensors that every device sends to its peer in the next stage, whose gradients come back the same way: bytes "
        f"of a message, {unit} of a step.",
        ("stages", "tensor", "layout", "message", unit),
        tuple(rows),
        words=3,
    )


def _kinds(stages: Sequence[Facts]) -> list[tuple[str, Facts]]:
    """The stages that are split differently, in words, each with the report of its first."""
    found: dict[object, list[int]] = {}
    for number, stage in enumerate(stages):
        rows = [[(re.sub(r"\d+", "", row[0]), *row[1:]) for row in table.rows] for table in stage.tables[:2]]
        found.setdefault(repr(rows), []).append(number)
    return [(f"stage{'s' * (len(numbers) > 1)} {ranges(numbers)}", stages[numbers[0]]) for numbers in found.values()]
