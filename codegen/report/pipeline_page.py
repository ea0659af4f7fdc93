"""The page of a pipelined plan: what its stages work and hold, and when they run which micro-batch."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..emission.templates import environment
from ..pricing.pipeline_runs import runs
from .facts import time_unit
from .page import Bar, common, memory, step
from .pipeline_facts import PipelineFacts

_COLORS = {"forward": "compute", "backward": "weights", "weights": "states", "update": "gradients"}
MOST_SLOTS = 4000  # that are drawn, the first of them


@dataclass(frozen=True, slots=True)
class Slot:
    """A slot of the schedule: `start` and `length` in percent of the drawing, `color` the name of a style."""

    row: int
    start: float
    length: float
    color: str
    words: str


def page(facts: PipelineFacts) -> str:
    """The HTML of a report."""
    held, slots = [memory(stage) for stage in facts.stages], _slots(facts)
    return (
        environment(html=True)
        .get_template("show_pipeline.html")
        .render(
            steps=_steps(facts),
            slots=slots,
            split=any(slot.color == _COLORS["weights"] for slot in slots),
            rows=facts.plan.size,
            memory=[replace(bar, name=f"stage {number}") for number, bar in enumerate(held)],
            kinds=max(held, key=lambda bar: len(bar.segments)).segments,
            **common(facts),
        )
    )


def _steps(facts: PipelineFacts) -> list[Bar]:
    unit, size = time_unit(facts.priced)
    bars = [step(stage, facts.priced.objective_ns) for stage in facts.stages]
    return [
        replace(bar, name=f"stage {number}", words=f"{busy / size:,.2f} {unit}")
        for number, (bar, busy) in enumerate(zip(bars, facts.priced.busy_ns, strict=True))
    ]


def _slots(facts: PipelineFacts) -> list[Slot]:
    found = runs(facts.plan, facts.priced.stages)
    whole = max(run.end_ns for run in found)
    made = []
    for run in sorted(found, key=lambda run: run.start_ns)[:MOST_SLOTS]:
        what = f", micro-batch {run.micro_batch}" if run.micro_batch >= 0 else ""
        words = f"{run.kind} of stage {run.stage}{what}"
        start, length = 100 * run.start_ns / whole, 100 * run.length_ns / whole
        made.append(Slot(run.device, start, length, _COLORS[run.kind], words))
    return made
