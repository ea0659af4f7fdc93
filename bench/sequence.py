"""Long sequences: attention with keys gathered, as a ring, with heads exchanged for positions, and free.

GPT-3 1.3B on eight V100 of 32 GB, one sample, one axis; every attention is fixed to the same row, or none (free).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..codegen.planner.context import Context
from ..codegen.planner.plan_graph import plan_graph
from ..formulation.search_space import SearchSpace
from ..formulation.strategies.strategy import row_names
from ..model.capture.capture import capture
from ..model.errors import PartitaError
from ..model.graph.pcg import PCG
from ..model.machine.machine import Machine
from ..model.training import Training
from ..model.zoo import build
from ..model.zoo.registry import entry
from ..solvers.budget import Budget
from .cases import chosen

MODEL, GIB, SECONDS = "gpt3-1.3b", 2**30, 120.0
TOKENS, SMALL = (4096, 16384, 65536), (64,)
ROWS = {"gathered keys": "s", "ring": "ring", "heads": "b.0", "free": ""}


def run(small: bool, only: Sequence[str], tell: Callable[[str], None]) -> list[dict[str, Any]]:
    """A row for every number of tokens and kind of attention; step in ms, memory in GiB of a device."""
    rows, kinds = [], chosen(ROWS, only, str, "kind of attention")
    for tokens in SMALL if small else TOKENS:
        module, inputs = build(MODEL, small=small, sequence=tokens)
        graph = capture(module, inputs, batch=2)
        for kind in kinds:
            tell(f"{tokens:,} tokens, {kind}")
            rows.append({"tokens": tokens, "attention": kind} | measure(graph, ROWS[kind]))
    return rows


def measure(graph: PCG, row: str) -> dict[str, Any]:
    """Plan one sample, with every attention in a row."""
    known, machine = entry(MODEL), Machine.load(entry(MODEL).machine, nodes=1)
    names = [graph.nodes[i].name for i in graph.of("attention")]
    if row:
        assert all(row in row_names(graph, i) for i in graph.of("attention"))
    training = Training(1, known.dtype, known.optimizer)
    space = SearchSpace(
        mesh=(machine.devices,) if row else None,
        micro_batches=1,
        fix=tuple((name, row) for name in names) if row else (),
        stages=1,
    )
    budget = Budget(time_limit=SECONDS)
    try:
        report = plan_graph(graph, machine, training, space, budget, Context({"reference": MODEL, "batch": 1})).report
    except PartitaError as refusal:
        return {"step_ms": None, "memory_gib": None, "gap": None, "status": str(refusal).partition(":")[2][:60].strip()}
    return {
        "step_ms": report["objective_ns"] / 1e6,
        "memory_gib": report["memory_bytes"] / GIB,
        "gap": report["gap"],
        "status": report["status"],
    }
