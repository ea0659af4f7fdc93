"""A pipelined plan in words and numbers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import groupby
from typing import TYPE_CHECKING, Any

from ...model.graph.pcg import PCG, SOURCES
from ..plan.plan import Plan
from ..plan.plan import summary as summary_of
from ..pricing.pipeline_price import priced
from .describe import (
    batch_sentence,
    head,
    headed,
    layouts,
    mesh_sentence,
    predicted,
    programs_sentence,
    weights_sentence,
)
from .words import recompute_text

if TYPE_CHECKING:
    from ..plan.pipeline_plan import PipelinePlan

_ENTRY = re.compile(r"^(.*?)(?:^|\.)(\d+)(?:\.|$)")


def contents(graph: PCG) -> str:
    """What of the user's module a stage is: `wte, h.0 to 5`."""
    found: list[str] = []
    for prefix, group in groupby(dict.fromkeys(_places(graph)), key=lambda place: place[0]):
        numbers = [number for _, number in group if number >= 0]
        if numbers:
            span = str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}"
            found.append(f"{prefix}.{span}".lstrip("."))
        else:
            found.append(prefix)
    words = ", ".join(dict.fromkeys(found))
    return words if len(words) < 90 else f"{found[0]} to {found[-1]}"


def _places(graph: PCG) -> Iterator[tuple[str, int]]:
    """Entries of outermost lists, and modules outside of lists (-1) that have weights, in order."""
    for node in graph.nodes:
        if node.op in SOURCES or not node.path:
            continue
        match = _ENTRY.match(node.path)
        if match:
            yield match[1], int(match[2])
        elif any(graph.nodes[i].op == "parameter" for i in node.inputs):
            yield node.path, -1


def docstring(plan: PipelinePlan) -> str:
    """What stands on top of the emitted program."""
    rows = [("mesh", mesh_sentence(plan)), ("pipeline", pipeline_sentence(plan)), *predicted(plan, "the fullest rank")]
    rows += [(f"stage {number}", _stage(part)) for number, part in enumerate(plan.stages)]
    if programs := programs_sentence(plan):
        rows.append(("programs", programs))
    if plan.recompute:
        rows.append(("recompute", recompute_text(plan.recompute)))
    return headed(plan, [*rows, ("batch", batch_sentence(plan)), ("weights", weights_sentence(plan.parts))])


def pipeline_sentence(plan: PipelinePlan) -> str:
    """How many stages, and in which order they work."""
    chunks = f", {plan.chunks} on every rank" if plan.chunks > 1 else ""
    return f"{len(plan.stages)} stages{chunks}, {WORDS[plan.schedule]} over {plan.micro_batches} micro-batches"


WORDS = {
    "1f1b": "1F1B",
    "gpipe": "GPipe",
    "interleaved": "interleaved 1F1B",
    "zero-bubble": "zero-bubble (ZB-H1)",
    "2bw": "PipeDream-2BW",
}


def _stage(part: Plan) -> str:
    return contents(part.graph)


def describe(plan: PipelinePlan) -> str:
    """The docstring's words, then a block for every stage: a line for every tensor that is planned."""
    lines = [head(docstring(plan))]
    for number, part in enumerate(plan.parts):
        lines += ["", f"Stage {number}: {contents(part.graph)}", *layouts(part)]
    return "\n".join(lines)


def summary(plan: PipelinePlan) -> dict[str, Any]:
    """What `partita plan --json` prints: as of a plan without a pipeline, and `pipeline`."""
    cost = priced(plan)
    strategies = [{"stage": number, **told} for number, part in enumerate(plan.parts) for told in part.strategies()]
    told = summary_of(plan, strategies)
    told["pipeline"] = {
        "stages": len(plan.stages),
        "bounds": list(plan.bounds),
        "contents": [contents(part.graph) for part in plan.stages],
        "schedule": plan.schedule,
        "chunks": plan.chunks,
        "busy_ns": list(cost.busy_ns),
        "memory_bytes": [stage.memory_bytes for stage in cost.stages],
    }
    return told
