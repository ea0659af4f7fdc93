"""Branches side by side: what the best plan takes with them and without, for the models that have branches.

Four nodes of Summit (24 GPUs), from the batch of Unity's evaluation down to one sample a GPU and less.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..codegen.planner.context import Context
from ..codegen.planner.plan_graph import plan_graph
from ..formulation.search_space import SearchSpace
from ..model.capture.capture import capture
from ..model.machine.machine import Machine
from ..model.training import Training
from ..model.zoo import build
from ..model.zoo.registry import entry
from ..solvers.budget import Budget
from .cases import chosen

CASES = tuple((name, batch) for name in ("inception-v3", "candle-uno") for batch in (1536, 96, 24, 12))
SMALL = (("inception-v3", 24), ("candle-uno", 24))
NODES = 4
SECONDS = 240.0


def run(small: bool, only: Sequence[str], tell: Callable[[str], None]) -> list[dict[str, Any]]:
    """A row for every model and batch; `gain` is the share of the step that side by side saves, gaps are fractions."""
    cases = chosen(SMALL if small else CASES, only, lambda case: case[0])
    rows = []
    for number, (name, batch) in enumerate(cases, 1):
        tell(f"{number} of {len(cases)}: {name}, batch {batch}")
        rows.append(measure(name, batch, small))
    return rows


def measure(name: str, batch: int, small: bool) -> dict[str, Any]:
    """Plan one model for one batch, and again without branches side by side where they are."""
    known, machine = entry(name), Machine.load(entry(name).machine, nodes=NODES)
    module, inputs = build(name, small=small)
    graph = capture(module, inputs, batch=batch)
    training = Training(batch, known.dtype, known.optimizer)
    space = SearchSpace(stages=1)
    budget = Budget(time_limit=SECONDS)
    report = plan_graph(graph, machine, training, space, budget, Context({"reference": name, "batch": batch})).report
    step, without = report["objective_ns"], report.get("without_bundles") or {}
    other = without.get("objective_ns") if "bundles" in report else step
    bound = without.get("bound_ns") if "bundles" in report else report["bound_ns"]
    return {
        "model": f"{name}, batch {batch}",
        "gpus": machine.devices,
        "bundles": len(report.get("bundles", ())),
        "step_ms": step / 1e6,
        "without_ms": other and other / 1e6,
        "gain": other and 1 - step / other,
        "gap": report["gap"],
        "gap_without": 1 - bound / other if other and bound else None,
        "total_s": float(report["seconds"]["total"]),
    }
