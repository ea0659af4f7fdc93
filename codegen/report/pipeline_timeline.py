"""When the stages of a pipeline run which micro-batch: the predicted step, slot by slot, as a timeline for Perfetto."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..pricing.pipeline_price import PipelinePriced
from ..pricing.pipeline_runs import runs
from .words import contents

if TYPE_CHECKING:
    from ..plan.pipeline_plan import PipelinePlan


def timeline(plan: PipelinePlan, cost: PipelinePriced, title: str) -> dict[str, Any]:
    """The trace's JSON: a track for every coordinate of the pipeline; `ts` and `dur` in us."""
    events: list[dict[str, Any]] = [{"name": "process_name", "ph": "M", "pid": 0, "tid": 0, "args": {"name": title}}]
    for device in range(plan.size):
        own = ", ".join(contents(plan.stages[stage].graph) for stage in range(device, len(plan.stages), plan.size))
        words = {"name": f"pipeline {device}: {own}"}
        events.append({"name": "thread_name", "ph": "M", "pid": 0, "tid": device, "args": words})
    for run in runs(plan, cost.stages):
        if not run.length_ns:
            continue
        what = {"stage": run.stage, "micro_batch": run.micro_batch} if run.micro_batch >= 0 else {"stage": run.stage}
        events.append(
            {
                "name": f"{run.kind} {run.micro_batch}" if run.micro_batch >= 0 else run.kind,
                "cat": run.kind,
                "ph": "X",
                "pid": 0,
                "tid": run.device,
                "ts": run.start_ns / 1e3,
                "dur": run.length_ns / 1e3,
                "args": what,
            }
        )
    return {"displayTimeUnit": "ms", "traceEvents": events}
