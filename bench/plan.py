"""From model to proven plan: capture, formulate and solve, each timed.

Full-sized models on the machines of the papers, LLaMA on fixed meshes with memory that binds and memory that does not,
and the same layers more and more often: equal layers are solved once, so that depth should cost little.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from ..formulation.search_space import SearchSpace
from ..model.graph.pcg import PCG
from ..model.machine.machine import Machine
from ..model.training import Training
from .cases import GIB, Row, Tell, captured, each, plan_of_one_stage, seconds_of
from .random_modules import with_memory

AMPLE = 2**40


@dataclass(frozen=True, slots=True)
class Case:
    """One row. `memory` is what a plan may use of a device, in bytes; None: the machine's own.

    `layers`: the model at another depth. `batch` None: the model's own. `micro_batches` None: searched.
    """

    name: str
    model: str
    machine: str
    nodes: int
    mesh: tuple[int, ...] | None = None
    batch: int | None = None
    micro_batches: int | None = None
    memory: int | None = None
    layers: int | None = None
    small: bool = False


_LLAMA = ("llama-7b", "dgx-h100", 8)
CASES = (
    Case("bert-large 96 V100", "bert-large", "summit", 16),
    Case("gpt3-15b 32 A100", "gpt3-15b", "dgx-a100", 4),
    Case("llama-7b 64 H100", *_LLAMA),
    *(
        Case(f"llama-7b {'x'.join(map(str, mesh))} {words}", *_LLAMA, mesh, 64, 1, memory)
        for mesh in ((8, 8), (4, 4, 4))
        for words, memory in (("1 TiB", AMPLE), ("40 GiB", 40 * GIB), ("28 GiB", 28 * GIB))
    ),
    # Memory grows with the layers, and binds in each row.
    *(Case(f"llama {n} layers 8x8", *_LLAMA, (8, 8), 64, 1, (n + 2) * GIB, layers=n) for n in (12, 24, 48, 96)),
)
SMALL = (
    Case("mlp small", "mlp", "dgx-a100", 1, (8,), small=True),
    Case("gpt2 small 4x2", "gpt2", "dgx-a100", 1, (4, 2), micro_batches=1, memory=AMPLE, small=True),
    Case("llama small 4 layers", "llama-7b", "dgx-a100", 1, (2, 4), batch=12, micro_batches=1, layers=4, small=True),
)


def run(small: bool, only: Sequence[str], tell: Tell) -> list[Row]:
    """Plan every case; seconds are wall time, `gap` a fraction."""
    return [measure(case) for case in each(SMALL if small else CASES, only, tell)]


def measure(case: Case) -> Row:
    """Plan one case."""
    start = time.monotonic()
    graph, machine, training = prepared(case)
    space = SearchSpace(mesh=case.mesh, micro_batches=case.micro_batches, stages=1)
    made = plan_of_one_stage(graph, machine, training, space, start=start)
    report = made.report
    return {
        "case": case.name,
        "nodes": len(made.graph.nodes),
        "placements": report["space"]["placements"],
        "options": report["space"]["options"],
        **seconds_of(report, "capture", "formulate", "solve", "total"),
        "status": report["status"],
        "gap": report["gap"],
        "step_ms": report["objective_ns"] / 1e6,
        "micro_batches": made.micro_batches,
        "memory_gib": report["memory_bytes"] / GIB,
        "of_gib": report["capacity_bytes"] / GIB,
    }


def prepared(case: Case) -> tuple[PCG, Machine, Training]:
    """The captured graph of a case, the machine with the memory that it may use, and the training."""
    machine = Machine.load(case.machine, nodes=case.nodes)
    machine = machine if case.memory is None else with_available(machine, case.memory)
    graph, training = captured(case.model, machine, small=case.small, batch=case.batch, layers=case.layers)
    return graph, machine, training


def with_available(machine: Machine, available: int) -> Machine:
    """The machine whose devices have so many bytes for a plan, beside what is reserved."""
    return with_memory(machine, available + machine.device.reserved_bytes)
