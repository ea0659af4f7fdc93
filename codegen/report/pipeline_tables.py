"""Tables of a pipeline: its stages, and what they send."""

from __future__ import annotations

from ..plan.plan import Plan
from ..pricing.plan_price import PlanPrice
from ..pricing.price_items import MEMORY
from .cost_tables import time_unit
from .tables import Table
from .words import bytes_text, contents, percent


def stages_table(plan: Plan, price: PlanPrice) -> Table:
    """What every stage is, how long it works, what its devices hold."""
    unit, size = time_unit(price)
    rows = []
    for number, (part, stage) in enumerate(zip(plan.stages, price.stages, strict=True)):
        sizes = [bytes_text(stage.memory[kind]) for kind in MEMORY]
        rows.append(
            (
                str(number), f"pipeline {number % plan.size}", contents(part.graph),
                f"{stage.objective_ns / size:,.2f}", percent(stage.objective_ns, price.objective_ns),
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


def sent_table(plan: Plan, price: PlanPrice) -> Table:
    """What stages send to the next one, in which layout."""
    unit, size = time_unit(price)
    rows = []
    for number, (part, stage) in enumerate(zip(plan.parts, price.stages, strict=True)):
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
