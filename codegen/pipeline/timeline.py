"""When the stages of a pipeline run which micro-batch: the predicted step, slot by slot, as a timeline for Perfetto."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ...formulation.pipeline.evaluate import evaluate
from ...formulation.pipeline.problem import Stage, chunked
from ..items import Phase
from .price import PipelinePriced
from .report import contents

if TYPE_CHECKING:
    from .plan import PipelinePlan


class Run(NamedTuple):
    """A slot of the schedule on the devices of one coordinate; micro-batch -1: the update, once a step."""

    device: int
    kind: str
    stage: int
    micro_batch: int
    start_ns: int
    length_ns: int


_KINDS: dict[str, Phase] = {"F": "forward", "B": "backward"}


def runs(plan: PipelinePlan, cost: PipelinePriced) -> tuple[Run, ...]:
    """All slots: each begins as soon as its devices are free and what it waits for is there.

    Transfers are part of the slots at both ends. This ends no later than the step that is predicted of whole stages.
    """
    lengths = [
        {phase: cost.phase_ns(stage, phase) // plan.micro_batches for phase in ("forward", "backward")}
        for stage in range(len(plan.stages))
    ]
    stages = [Stage(max(1, found["forward"]), max(1, found["backward"])) for found in lengths]
    problem = chunked(stages, plan.size, plan.micro_batches)
    found = evaluate(problem, plan.orders)
    made = [
        Run(task.devices[0], _KINDS[task.kind], task.stage, task.micro, start, task.duration_ns)
        for task, start in zip(problem.tasks, found.starts_ns, strict=True)
    ]
    ends = [max(run.start_ns + run.length_ns for run in made if run.device == d) for d in range(plan.size)]
    for stage in range(len(plan.stages)):
        length = cost.phase_ns(stage, "update")
        made.append(Run(stage % plan.size, "update", stage, -1, ends[stage % plan.size], length))
        ends[stage % plan.size] += length
    return tuple(made)


def timeline(plan: PipelinePlan, cost: PipelinePriced, title: str) -> dict[str, Any]:
    """The trace's JSON: a track for every coordinate of the pipeline; `ts` and `dur` in us."""
    events: list[dict[str, Any]] = [{"name": "process_name", "ph": "M", "pid": 0, "tid": 0, "args": {"name": title}}]
    for device in range(plan.size):
        own = ", ".join(contents(plan.stages[stage].graph) for stage in range(device, len(plan.stages), plan.size))
        words = {"name": f"pipeline {device}: {own}"}
        events.append({"name": "thread_name", "ph": "M", "pid": 0, "tid": device, "args": words})
    for run in runs(plan, cost):
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
