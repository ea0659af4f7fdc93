"""The plan in numbers, for JSON."""

from typing import Any

from ..plan.plan import Plan
from ..plan.table_spread import places
from ..pricing.plan_price import PlanPrice, plan_price
from .unsplit_work import opaque_calls
from .words import contents


def summary(plan: Plan) -> dict[str, Any]:
    """What `partita plan --json` prints; `program` is known where the plan is saved."""
    report = plan.report
    return {
        "model": plan.model.get("reference"),
        "machine": plan.machine.name,
        "devices": plan.ranks,
        "batch": plan.batch,
        "sequence": plan.model.get("sequence"),
        "dtype": plan.dtype,
        "optimizer": plan.optimizer,
        "loss": "projection" if plan.graph.of("projection") else plan.model.get("loss", "module"),
        "mode": plan.model.get("mode"),
        "micro_batches": plan.micro_batches,
        **{k: report.get(k) for k in ("status", "objective_ns", "bound_ns", "gap", "seconds")},
        "memory_bytes": report.get("memory_bytes"),
        "capacity_bytes": report.get("capacity_bytes", plan.machine.device.capacity_bytes),
        "mesh": _mesh(plan),
        "placement": [list(row) for row in plan.placement.matrix],
        "recompute": dict(plan.recompute),
        "strategies": _strategies(plan),
        "proof": report.get("proof"),
        "unsplit_flops": report.get("unsplit_flops"),
        "opaque": opaque_calls(plan),
        "space": report.get("space"),
        "bundles": report.get("bundles", []),
        "without_bundles": report.get("without_bundles"),
        "rewritten": report.get("rewritten", []),
        "program": None,
        **({"machines": report["machines"]} if "machines" in report else {}),
        **({"pipeline": _pipeline(plan)} if plan.size > 1 else {}),
    }


def _mesh(plan: Plan) -> dict[str, int]:
    return dict(zip(plan.axes, plan.placement.sizes, strict=True))


def _strategies(plan: Plan) -> list[dict[str, Any]]:
    """The layouts of every node's tensors; of a pipeline with the node's stage."""
    return [
        ({"stage": number} if plan.size > 1 else {}) | _strategy(part, index)
        for number, part in enumerate(plan.parts)
        for index in range(len(part.graph.nodes))
    ]


def _strategy(plan: Plan, index: int) -> dict[str, Any]:
    node, choice = plan.graph.nodes[index], plan.choices[index]
    inputs = (plan.layout_text(i, x) for i, x in zip(node.inputs, choice.inputs, strict=True))
    return {
        "name": node.name,
        "operator": node.op,
        "layouts": [*inputs, plan.layout_text(index, choice.output)],
        **({"tables": places(plan, index)} if choice.at else {}),
    }


def _pipeline(plan: Plan) -> dict[str, Any]:
    """The stages of a pipeline, with their work and memory."""
    cost = plan_price(plan)
    return {
        "stages": len(plan.stages),
        "bounds": list(plan.bounds),
        "contents": [contents(part.graph) for part in plan.stages],
        "schedule": plan.schedule.name,
        "chunks": plan.chunks,
        **({"shares": list(plan.shares), "meshes": [_mesh(part) for part in plan.stages]} if plan.shares else {}),
        **({"order": plan.report["order"]} if "order" in plan.report else {}),
        **({"on_all_devices": _shared(plan, cost)} if plan.shared else {}),
        "busy_ns": list(cost.busy_ns),
        "memory_bytes": [stage.memory_bytes for stage in cost.stages],
    }


def _shared(plan: Plan, cost: PlanPrice) -> dict[str, Any]:
    """What all devices of an interlaced pipeline compute together, with its work and memory on each."""
    assert plan.shared is not None and cost.shared is not None
    busy = {"busy_ns": cost.shared.objective_ns, "memory_bytes": cost.shared.memory_bytes}
    return {"contents": contents(plan.shared.graph), **busy}
