"""Programs on one GPU: no step waits for the device, and what it computes is what a CPU computes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from math import isfinite
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import HashStore

from partita.codegen.planner.planner import optimize
from partita.codegen.profile.local import local, visible
from partita.codegen.verification.launch import torchrun
from partita.codegen.verification.reference import state_of
from partita.codegen.verification.worker import load_program
from partita.model.machine.machine import Machine
from partita.model.zoo.gpt import GPT
from partita.model.zoo.llama import Llama
from partita.model.zoo.swin import Swin

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

MODELS = {
    "gpt": lambda: GPT(64, 16, 2, 32, 4, 0.0),
    "gpt, dropout": lambda: GPT(64, 16, 2, 32, 4, 0.1),
    "llama": lambda: Llama(64, 2, 32, 4, 4, 48),
}
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "micro-batches": {"micro_batches": 4},
    "recomputed": {"recompute": "full"},
    "mixed": {"dtype": "mixed-bfloat16"},
}


@pytest.fixture
def alone() -> Iterator[torch.device]:
    """The first GPU, with a process group of this process on it."""
    device = torch.device("cuda", 0)
    torch.cuda.set_device(device)
    dist.init_process_group("cpu:gloo,cuda:nccl", store=HashStore(), rank=0, world_size=1)
    yield device
    torch.cuda.set_sync_debug_mode("default")
    dist.destroy_process_group()


def trained(path: Path, model: nn.Module, batch: dict[str, Tensor], device: torch.device, strict: bool) -> list[float]:
    """Losses of some steps; `strict`: a step that waits for the device raises an error."""
    program: Any = load_program(path)
    mesh = program.Mesh(device)
    with device:
        own = program.Model(mesh)
    program.load(own, state_of(model), mesh)
    optimizer = program.make_optimizer(own, mesh)
    losses = []
    for step in range(4):
        torch.cuda.set_sync_debug_mode("error" if strict and step > 1 else "default")
        losses.append(program.train_step(own, optimizer, batch, mesh, step))
    torch.cuda.set_sync_debug_mode("default")
    return [float(loss) for loss in losses]


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("name", MODELS)
def test_no_step_waits_for_the_device(name: str, options: str, alone: torch.device, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, ids = MODELS[name](), torch.randint(64, (8, 16))
    batch = {"ids": ids, "labels": ids.roll(1, 1)}
    plan = optimize(model, batch, Machine.load("cpu", nodes=1), cache="none", **{"micro_batches": 1} | OPTIONS[options])
    plan.emit(tmp_path / "program.py")
    on_gpu = trained(tmp_path / "program.py", model, {k: v.pin_memory() for k, v in batch.items()}, alone, strict=True)
    assert all(map(isfinite, on_gpu))
    if "dropout" not in name and options != "mixed":
        on_cpu = trained(tmp_path / "program.py", model, batch, torch.device("cpu"), strict=False)
        assert on_gpu == pytest.approx(on_cpu, rel=1e-3)


def test_constants_of_a_model_do_not_wait(alone: torch.device, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Swin(width=16, heads=2, depths=(2, 2), resolution=32, window=4, classes=10)
    batch = {"images": torch.randn(4, 3, 32, 32), "labels": torch.randint(10, (4,))}
    plan = optimize(model, batch, Machine.load("cpu", nodes=1), cache="none", micro_batches=1)
    plan.emit(tmp_path / "program.py")
    pinned = {k: v.pin_memory() for k, v in batch.items()}
    losses = trained(tmp_path / "program.py", model, pinned, alone, strict=True)
    assert all(map(isfinite, losses))


def test_torchrun_starts_a_program_on_nccl(tmp_path: Path) -> None:
    model, ids = GPT(64, 16, 2, 32, 4, 0.0), torch.zeros(8, 16, dtype=torch.int64)
    plan = optimize(
        model, {"ids": ids, "labels": ids}, Machine.load("cpu", nodes=1), cache="none", dtype="mixed-bfloat16"
    )
    plan.save(tmp_path / "plan")
    said = [torchrun(tmp_path / "plan" / "program.py", 1, environment=e) for e in (visible(local("cuda"), 1), None)]
    on_gpu, on_cpu = ([float(x) for x in re.findall(r"loss ([0-9.]+)", text)] for text in said)
    assert len(on_gpu) == 10 and on_gpu == pytest.approx(on_cpu, rel=0.02)
