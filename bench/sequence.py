"""Long sequences: attention with keys gathered, as a ring, with heads exchanged for positions, and free.

GPT-3 1.3B on eight V100 of 32 GB, one sample, one axis; every attention is fixed to the same row, or none (free).
"""

from collections.abc import Sequence

from ..formulation.search_space import SearchSpace
from ..formulation.strategies.strategy import row_names
from ..model.errors import PartitaError
from ..model.graph.pcg import PCG
from ..model.machine.machine import Machine
from ..model.training import Training
from ..model.zoo import entry
from ..solvers.budget import Budget
from .cases import GIB, Row, Tell, captured, chosen, plan_of_one_stage

MODEL, SECONDS = "gpt3-1.3b", 120.0
TOKENS, SMALL = (4096, 16384, 65536), (64,)
ROWS = {"gathered keys": "s", "ring": "ring", "heads": "b.0", "free": ""}


def run(small: bool, only: Sequence[str], tell: Tell) -> list[Row]:
    """A row for every number of tokens and kind of attention; step in ms, memory in GiB of a device."""
    rows, kinds = [], chosen(ROWS, only, str, "kind of attention")
    machine = Machine.load(entry(MODEL).machine, nodes=1)
    for tokens in SMALL if small else TOKENS:
        graph, training = captured(MODEL, machine, small=small, batch=1, sequence=tokens)
        for kind in kinds:
            tell(f"{tokens:,} tokens, {kind}")
            rows.append({"tokens": tokens, "attention": kind} | measure(graph, machine, training, ROWS[kind]))
    return rows


def measure(graph: PCG, machine: Machine, training: Training, row: str) -> Row:
    """Plan one sample, with every attention fixed to a row."""
    names = [graph.nodes[i].name for i in graph.of("attention")]
    if row:
        assert all(row in row_names(graph, i) for i in graph.of("attention"))
    space = SearchSpace(
        mesh=(machine.devices,) if row else None,
        micro_batches=1,
        fix=tuple((name, row) for name in names) if row else (),
        stages=1,
    )
    try:
        report = plan_of_one_stage(graph, machine, training, space, Budget(time_limit=SECONDS)).report
    except PartitaError as refusal:
        return {"step_ms": None, "memory_gib": None, "gap": None, "status": str(refusal).partition(":")[2][:60].strip()}
    return {
        "step_ms": report["objective_ns"] / 1e6,
        "memory_gib": report["memory_bytes"] / GIB,
        "gap": report["gap"],
        "status": report["status"],
    }
