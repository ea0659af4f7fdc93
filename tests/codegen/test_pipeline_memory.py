"""Predicted memory of stages against what autograd really keeps of all micro-batches in flight, counted by storage."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import torch
from torch import Tensor

from partita.bench.fused_kernels import fuse
from partita.codegen.plan.plan import PipelinePlan
from partita.codegen.pricing.stage_price import stage_price
from partita.codegen.verification import reference
from partita.codegen.verification.synthetic import synthetic
from partita.codegen.verification.threads import run_threads
from partita.codegen.verification.worker import load_program
from partita.model.capture.load import load_module

from .pipelines import captured, piped


class Kept:
    """Bytes that autograd keeps now, and at the most; weights are not counted."""

    def __init__(self, weights: set[int]) -> None:
        self.weights, self.counts, self.sizes = weights, Counter[int](), dict[int, int]()
        self.now = self.most = 0

    def pack(self, x: Tensor) -> Tensor | _Handle:
        storage = x.untyped_storage()
        if storage.data_ptr() in self.weights or not storage.nbytes():
            return x
        return _Handle(self, x)

    def add(self, place: int, size: int, count: int) -> None:
        before, self.counts[place] = self.counts[place], self.counts[place] + count
        if not before:
            self.sizes[place] = size
        if not (before and self.counts[place]):
            self.now += count * self.sizes[place]
            self.most = max(self.most, self.now)


class _Handle:
    def __init__(self, kept: Kept, x: Tensor) -> None:
        self.kept, self.x = kept, x.detach()  # not itself, which would make a circle
        storage = x.untyped_storage()
        self.place, self.size = storage.data_ptr(), storage.nbytes()
        kept.add(self.place, self.size, 1)

    def __del__(self) -> None:
        self.kept.add(self.place, self.size, -1)


def kept_bytes(plan: PipelinePlan, name: str, folder: Path) -> list[int]:
    """What each stage keeps for backward at the most in a step, of the rank that keeps most."""
    path = folder / "program.py"
    plan.emit(path)
    program = load_program(path)
    fuse(program)
    module = reference.materialize(load_module(name, small=True, device="cpu")[0])
    state = {k: t.float() if t.is_floating_point() else t for k, t in reference.state_of(module).items()}
    batch = synthetic(plan.graph, plan.batch, 0)

    def train(_: int) -> tuple[int, int]:
        mesh = program.Mesh()
        model = program.Model(mesh, dtype=torch.float32)
        program.load(model, state, mesh)
        optimizer = program.make_optimizer(model, mesh)
        kept = Kept({p.untyped_storage().data_ptr() for p in model.parameters()})
        with torch.autograd.graph.saved_tensors_hooks(kept.pack, lambda t: t.x if isinstance(t, _Handle) else t):
            program.train_step(model, optimizer, batch, mesh, 0)
        assert not kept.now, "all is let go"
        return mesh.pipeline.index, kept.most

    found = run_threads(train, plan.ranks)
    return [max(most for place, most in found if place == device) for device in range(plan.size)]


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "zero-bubble"])
@pytest.mark.parametrize("name", ["gpt2", "llama-7b"])
def test_what_is_in_flight_is_what_is_predicted(name: str, schedule: str, tmp_path: Path) -> None:
    """The last stage's loss needs more for a moment, which autograd does not keep."""
    plan = piped(captured(name, 24), (6,), (3,), 6, schedule=schedule)
    memory = [stage_price(part).memory for part in plan.parts]
    measured = kept_bytes(plan, name, tmp_path)
    for held, real in zip(memory, measured, strict=True):
        # One number a query or a row, of attention and norms, is not counted.
        assert 0.98 * (real - IDS) <= held["activations"] + held["weights"]
    for held, real in list(zip(memory, measured, strict=True))[:-1]:
        assert held["activations"] + held["weights"] <= 1.08 * real


IDS = 1024  # bytes of inputs, which are views of the whole batch here
