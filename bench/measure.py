"""Measured memory and step time of a plan's program, on ranks in this process.

On the CPU every rank is a thread, and memory is counted by storages (`allocations`), the same in every run; kernels
keep what they keep on a GPU (`fused`), and what a program has on the host does not count. On a GPU the one rank that
there is runs there, and its allocator says what it held at most.
"""

from __future__ import annotations

import gc
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..codegen.plan.plan import Plan
from ..codegen.plan.spacetime_plan import SpaceTimePlan
from ..codegen.verification import reference
from ..codegen.verification.synthetic import synthetic
from ..codegen.verification.threads import run_threads
from ..codegen.verification.worker import load_program
from ..model.capture.load import model_of
from ..model.errors import PartitaError
from .allocations import Allocations
from .fused_kernels import fuse

if TYPE_CHECKING:
    from torch import nn

_THREAD = threading.local()
"""Of every thread that runs a rank on the CPU: `seen`, its Allocations."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One rank: the most bytes during a step, those between steps (weights, gradients, states), ns of a step.

    `kept_bytes`: what the forward of a micro-batch leaves for its backward, at most; of a plan without stages.
    """

    peak_bytes: int
    resting_bytes: int
    step_ns: int
    kept_bytes: int = 0


def measure(
    plan: Plan | SpaceTimePlan,
    module: tuple[nn.Module, Any] | None = None,
    *,
    steps: int = 3,
    device: str = "cpu",
    constants: Mapping[str, int] | None = None,
) -> list[Measured]:
    """Train the plan's program: a step to warm up, one whose memory is measured, `steps` that are timed (the median).

    `module` is the model with its example inputs where the plan does not have it. Every rank on the CPU is a thread,
    and one runs at a time, so a step takes as long as those of all ranks together.
    The batch of all ranks does not count, a rank's part of it does: the batch of a space-time plan is its ranks'.
    Raises PartitaError: several ranks on one GPU.
    """
    if device != "cpu" and plan.ranks > 1:
        raise PartitaError(f"a plan for {plan.ranks} ranks is measured on the CPU, not on one {device}")
    built = (module or plan.module or model_of(plan.model))[0]
    graph, batch = (plan.pcg, plan.pcg.batch) if isinstance(plan, SpaceTimePlan) else (plan.graph, plan.batch)
    wide = torch.float64 if plan.dtype == "float64" else torch.float32  # in which state and data are given
    state = {name: _as(t, wide) for name, t in reference.state_of(reference.materialize(built)).items()}
    data = {name: _as(t, wide) for name, t in synthetic(graph, batch, 0).items()}
    with tempfile.TemporaryDirectory(prefix="partita-measure-") as folder:
        path = Path(folder) / "program.py"
        plan.emit(path)
        program: Any = load_program(path)
        for name, value in (constants or {}).items():
            setattr(program, name, value)
        if device == "cpu":
            fuse(program)
            if hasattr(program, "to_host"):
                program.to_host = _elsewhere(program.to_host)
        if hasattr(program, "share"):  # a copy of its part, as on another device; no rank holds the whole batch
            share = program.share
            program.share = lambda *args: {name: part.clone() for name, part in share(*args).items()}
        rank = _on_cpu if device == "cpu" else _on_gpu
        return run_threads(lambda _: rank(program, state, data, steps, device), plan.ranks)


def _elsewhere(to_host: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Do not count what is copied to the host, which is the same memory here."""

    def copied(x: Tensor) -> Tensor:
        with _THREAD.seen.elsewhere() if hasattr(_THREAD, "seen") else nullcontext():
            return to_host(x)

    return copied


def _as(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    return tensor.to(dtype) if tensor.is_floating_point() else tensor


class _Rank:
    """A rank that is ready to train on `device`."""

    def __init__(self, program: Any, state: Mapping[str, Tensor], data: Mapping[str, Tensor], device: str) -> None:
        self.program, self.mesh, self.number = program, program.Mesh(device), 0
        self.model = program.Model(self.mesh)
        program.load(self.model, state, self.mesh)
        self.optimizer = program.make_optimizer(self.model, self.mesh)
        self.data = data if hasattr(program, "share") else {name: t.clone().to(device) for name, t in data.items()}

    def step(self) -> None:
        self.program.train_step(self.model, self.optimizer, self.data, self.mesh, self.number)
        self.number += 1

    def timed(self, steps: int, wait: Callable[[], None] = lambda: None) -> int:
        """ns of a step, the median."""
        times = []
        for _ in range(steps):
            wait()
            start = time.perf_counter_ns()
            self.step()
            wait()
            times.append(time.perf_counter_ns() - start)
        return int(median(times))


class _Kept:
    """Bytes that forwards leave behind, with their inputs."""

    def __init__(self, model: Any, seen: Allocations) -> None:
        self.seen, self.most_bytes, self.before = seen, 0, 0
        if isinstance(model, torch.nn.Module):
            model.register_forward_pre_hook(self.begin, with_kwargs=True)
            model.register_forward_hook(self.end)

    def begin(self, _: Any, args: Any, kwargs: Mapping[str, Any]) -> None:
        given = sum(x.nbytes for x in (*args, *kwargs.values()) if isinstance(x, Tensor))
        self.before = self.seen.now_bytes - given

    def end(self, *_: Any) -> None:
        self.most_bytes = max(self.most_bytes, self.seen.now_bytes - self.before)


def _on_cpu(program: Any, state: Any, data: Any, steps: int, device: str) -> Measured:
    with Allocations() as seen:
        _THREAD.seen = seen
        seen.leave_out([*state.values(), *data.values()])
        rank = _Rank(program, state, data, device)
        rank.step()
        gc.collect()
        resting, kept = seen.now_bytes, _Kept(rank.model, seen)
        seen.reset()
        rank.step()
        peak = seen.peak_bytes
    return Measured(peak, resting, rank.timed(steps) if steps else 0, kept.most_bytes)


def _on_gpu(program: Any, state: Any, data: Any, steps: int, device: str) -> Measured:
    rank = _Rank(program, state, data, device)
    rank.step()
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    resting = torch.cuda.memory_allocated()
    rank.step()
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated()
    return Measured(peak, resting, rank.timed(steps, torch.cuda.synchronize))
