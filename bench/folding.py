"""Hand-written plans of growing micro-batches, layers and ranks: built, predicted and emitted; time and memory.

GPT-3 and LLaMA in stages of tensor-parallel ranks, 1F1B, with loops of micro-batches. `built_s` is validation, order
and communication, `predicted_s` the simulated step, `emitted_s` the program's text: CPU time. Capturing the model and
writing the plan are `written_s`. `distinct`: classes of equal ranks. `gb` is the largest memory so far: run one case
alone, with `--only`, for its own.
"""

import resource
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..codegen.plan.spacetime_plan import graph, space_time
from ..formulation.pipeline.orders import one_f_one_b
from ..formulation.spacetime.dtypes import constants
from ..formulation.spacetime.graph import Graph
from ..formulation.spacetime.primitives import op_assign, op_trans
from ..formulation.spacetime.stages import in_order, stages
from ..formulation.spacetime.transformation import micro_batches, replicate, split
from ..model.machine.machine import Machine
from ..model.zoo import build
from .cases import Row, Tell, measured


@dataclass(frozen=True, slots=True)
class Case:
    """A model in `stages` of `tensor` ranks. `layers`: None for its own."""

    name: str
    model: str
    stages: int
    tensor: int
    micros: int
    layers: int | None = None
    small: bool = False


CASES = (
    *(Case(f"gpt3-15b {n} micro-batches", "gpt3-15b", 8, 4, n) for n in (4, 64, 256, 1024, 4096)),
    *(Case(f"gpt3-15b {n} layers", "gpt3-15b", 8, 4, 64, layers=n) for n in (24, 96)),
    *(Case(f"gpt3-15b 8x{n} ranks", "gpt3-15b", 8, n, 64) for n in (2, 8)),
    Case("llama-70b 8x8 ranks", "llama-70b", 8, 8, 256),
)
SMALL = (
    *(Case(f"gpt3 small {n} micro-batches", "gpt3-1.3b", 2, 2, n, 2, small=True) for n in (4, 16)),
    Case("llama small", "llama-7b", 2, 2, 8, 2, small=True),
)


def run(small: bool, only: Sequence[str], tell: Tell) -> list[Row]:
    """Plan every case."""
    return measured(SMALL if small else CASES, only, tell, measure)


def measure(case: Case) -> Row:
    """Plan one case; seconds are CPU time."""
    clock = [time.process_time()]

    def passed() -> float:
        clock.append(time.process_time())
        return clock[-1] - clock[-2]

    sizes: dict[str, Any] = {} if case.layers is None else {"layers": case.layers}
    written = graph(*build(case.model, small=case.small, sizes=sizes), batch=case.micros)
    write(written, case)
    found: Row = {"case": case.name, "ranks": case.stages * case.tensor, "written_s": passed()}
    machine = Machine.load("dgx-a100", nodes=max(1, case.stages * case.tensor // 8)).without_memory_limit()
    plan = space_time(written, machine)
    found |= {"tasks": plan.looped.tasks, "built_s": passed(), "step_ms": plan.prediction.step_ns / 1e6}
    found |= {"predicted_s": passed(), "program_kb": len(plan.source()) / 1e3, "emitted_s": passed()}
    found["distinct"] = len({*plan.looped.equal_ranks([0] * plan.ranks)})
    return found | {"gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9}


def write(plan: Graph, case: Case) -> None:
    """Heads, hidden units and vocabulary in parts, in stages, 1F1B; LLaMA's tables of positions in every stage."""
    llama = case.model.startswith("llama")
    heads = ("layers.*.attention.query.weight", 0, 0) if llama else ("layers.*.attention.qkv.weight", 0, 1)
    vocabulary = ("scores.weight" if llama else "token_embedding.weight", 0)
    tables = {op.node for op in plan.forward if llama and constants(plan.pcg)[op.node]}
    for op in plan.forward:
        for micro in op_trans(op, micro_batches(case.micros)):
            for part in op_trans(micro, replicate(case.stages, label="stage")) if op.node in tables else (micro,):
                op_trans(part, split([heads, ("layers.*.up.weight", 0), vocabulary], case.tensor, "tensor"))
    parts = stages(plan, case.stages, [op for op in plan.forward if op.node not in tables])
    for stage, ops in enumerate(parts):
        ops += [op for op in plan.forward if op.node in tables and op.coordinate("stage") == stage]
        for op in ops:
            op_assign(op, stage * case.tensor + op.coordinate("tensor"))
    in_order(one_f_one_b(case.stages, case.micros), parts)
