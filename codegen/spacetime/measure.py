"""What a space-time plan really takes: its program's peak memory and the time of a step, on ranks in this process.

On the CPU every rank is a thread, and memory is counted by storages (`allocations`), the same in every run. On a GPU
the one rank that there is runs there, and its allocator says what it held at most.
"""

from __future__ import annotations

import gc
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import torch

from ...model.cost import precision
from ...model.errors import PartitaError
from ...model.load import module_of
from ..verification import reference
from ..verification.synthetic import synthetic
from ..verification.threads import run_threads
from ..verification.worker import load_program
from .allocations import Allocations
from .plan import SpaceTimePlan

if TYPE_CHECKING:
    from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class Measured:
    """One rank: the most bytes during a step, those between steps (weights, states, the batch), ns of a step."""

    peak_bytes: int
    resting_bytes: int
    step_ns: int


def measure(
    plan: SpaceTimePlan, module: tuple[nn.Module, Any] | None = None, *, steps: int = 3, device: str = "cpu"
) -> list[Measured]:
    """Train the plan's program: a step to warm up, one whose memory is measured, `steps` that are timed (the median).

    `module` is the model with its example inputs where the plan does not have it. Every rank on the CPU is a thread,
    with one thread of torch; ranks that share cores slow each other down, so time is that of a plan for one rank.
    Raises PartitaError: mixed precision, several ranks on one GPU.
    """
    if precision(plan.dtype).narrow:
        raise PartitaError(f"programs of space-time plans run in float32 or float64, not in {plan.dtype}")
    if device != "cpu" and plan.ranks > 1:
        raise PartitaError(f"a plan for {plan.ranks} ranks is measured on the CPU, not on one {device}")
    built, _ = module or plan.module or module_of(plan.model)
    dtype: torch.dtype = getattr(torch, plan.dtype)
    state = {name: _as(t, dtype) for name, t in reference.state_of(reference.materialize(built)).items()}
    batch = {name: _as(t, dtype) for name, t in synthetic(plan.pcg, plan.pcg.batch, 0).items()}
    with tempfile.TemporaryDirectory(prefix="partita-measure-") as folder:
        path = Path(folder) / "program.py"
        plan.emit(path)
        program = load_program(path)
        rank = _on_cpu if device == "cpu" else _on_gpu
        return run_threads(lambda _: rank(program, state, batch, dtype, steps, device), plan.ranks)


def _as(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    return tensor.to(dtype) if tensor.is_floating_point() else tensor


class _Rank:
    """A rank that is ready to train; `device` is where."""

    def __init__(
        self, program: Any, state: dict[str, Tensor], batch: dict[str, Tensor], dtype: torch.dtype, device: str
    ):
        self.program, self.mesh, self.number = program, program.Mesh(device), 0
        self.model = program.Model(self.mesh, dtype=dtype)
        program.load(self.model, state, self.mesh)
        self.optimizer = program.make_optimizer(self.model, self.mesh)
        self.batch = {name: t.to(device) for name, t in batch.items()}

    def step(self) -> None:
        self.program.train_step(self.model, self.optimizer, self.batch, self.mesh, self.number)
        self.number += 1

    def timed(self, steps: int, wait: Any = lambda: None) -> int:
        """ns of a step, the median."""
        times = []
        for _ in range(steps):
            wait()
            start = time.perf_counter_ns()
            self.step()
            wait()
            times.append(time.perf_counter_ns() - start)
        return int(median(times))


def _on_cpu(program: Any, state: Any, batch: Any, dtype: torch.dtype, steps: int, device: str) -> Measured:
    with Allocations() as seen:
        seen.leave_out(state.values())
        rank = _Rank(program, state, {name: t.clone() for name, t in batch.items()}, dtype, device)
        rank.step()
        gc.collect()
        resting = seen.now_bytes
        seen.reset()
        rank.step()
        peak = seen.peak_bytes
    return Measured(peak, resting, rank.timed(steps))


def _on_gpu(program: Any, state: Any, batch: Any, dtype: torch.dtype, steps: int, device: str) -> Measured:
    rank = _Rank(program, state, batch, dtype, device)
    rank.step()
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    resting = torch.cuda.memory_allocated()
    rank.step()
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated()
    return Measured(peak, resting, rank.timed(steps, torch.cuda.synchronize))
