"""Every model of the zoo on the machine of its paper: planned within two minutes, or rejected.

Four nodes: 24 GPUs of Summit, 32 elsewhere. A model that does not fit at any split is rejected, and the row says how
much memory is missing. The search runs until the gap is 0 or the time is up.
"""

import time
from collections.abc import Sequence

from ..formulation.search_space import SearchSpace
from ..model.capture.capture import capture
from ..model.errors import PartitaError
from ..model.machine.machine import Machine
from ..model.training import Training
from ..model.zoo import build, entry, zoo
from ..solvers.budget import Budget
from .cases import GIB, Row, Tell, measured, plan_of_one_stage, seconds_of

NODES = 4
LONG = dict.fromkeys(("gpt3-1.3b", "gpt3-2.6b", "gpt3-6.7b", "gpt3-15b"), 16384)
"""Tokens of SuperScaler's GPT-3s, which are planned at the zoo's shorter sequence too."""
SECONDS = 120.0
AFTER = 0.25
"""The share of the time that is kept for what follows the search: the plan is priced again and emitted."""


def run(small: bool, only: Sequence[str], tell: Tell) -> list[Row]:
    """Plan every model; seconds are wall time, `gap` a fraction."""
    every = [*((name, None) for name in zoo()), *(() if small else LONG.items())]
    return measured(every, only, tell, lambda case: measure(case[0], small, case[1]), lambda case: case[0], "model")


def measure(name: str, small: bool, sequence: int | None = None) -> Row:
    """Plan one model, with its own batch, number format and optimizer, and its own sequence where none is given."""
    known, start = entry(name), time.monotonic()
    machine = Machine.load(known.machine, nodes=NODES)
    module, inputs = build(name, small=small, sequence=sequence)
    batch = known.default_batch(small, machine.devices)
    row: Row = {
        "model": name if sequence is None else f"{name}, {sequence:,} tokens",
        "parameters_m": sum(p.numel() for p in module.parameters()) / 1e6,
        "machine": f"{machine.devices} {machine.name}",
    }
    empty = dict.fromkeys(("nodes", "capture_s", "solve_s", "total_s", "gap", "step_ms", "mesh", "k", "memory_gib"))
    try:
        graph = capture(module, inputs, batch=max(batch, 2))
        left = SECONDS * (1 - AFTER) - (time.monotonic() - start)
        training = Training(batch, known.dtype, known.optimizer)
        budget = Budget(time_limit=max(1.0, left))
        made = plan_of_one_stage(graph, machine, training, SearchSpace(stages=1), budget, start)
    except PartitaError as refusal:
        return row | empty | {"total_s": time.monotonic() - start, "status": str(refusal)}
    report = made.report
    return row | {
        "nodes": len(made.graph.nodes),
        **seconds_of(report, "capture", "solve", "total"),
        "gap": report["gap"],
        "step_ms": report["objective_ns"] / 1e6,
        "mesh": "x".join(map(str, made.placement.sizes)),
        "k": made.micro_batches,
        "memory_gib": report["memory_bytes"] / GIB,
        "status": report["status"],
    }
