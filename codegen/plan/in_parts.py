"""Segments that a plan computes in parts of their samples: which nodes, and what a part is of the plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...model.graph.batch import with_batch
from ...model.graph.segments import IN_PARTS, segments
from .memo import once_per_plan, varied

if TYPE_CHECKING:
    from .plan import Plan


@once_per_plan
def parts_of_nodes(plan: Plan) -> dict[int, int]:
    """The nodes that are computed in parts, each with how many."""
    modes = {name: IN_PARTS[mode] for name, mode in plan.recompute.items() if mode in IN_PARTS}
    return {i: modes[s.name] for s in (segments(plan.graph) if modes else ()) if s.name in modes for i in s.nodes}


@once_per_plan
def plans_of_parts(plan: Plan) -> dict[int, Plan]:
    """The same choices for the samples of a part, by the number of parts; the micro-batches are those of the plan."""
    return {parts: _of_part(plan, parts) for parts in sorted({*parts_of_nodes(plan).values()})}


def _of_part(plan: Plan, parts: int) -> Plan:
    return varied(plan, graph=with_batch(plan.graph, plan.graph.batch // parts))
