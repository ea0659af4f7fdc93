"""Gradients in buckets, summed over the ranks while backward goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

import partita
from partita.codegen.plan.plan import Plan
from partita.codegen.verification.meeting import Hub
from partita.codegen.verification.threads import run_threads
from partita.codegen.verification.verify import verify
from partita.codegen.verification.worker import load_program

from ..levels import some


class Net(nn.Module):
    """Weights of several readers, and of none."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(8, 9), nn.GELU(), nn.Linear(9, 8)) for _ in range(4))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x = self.first(x)
        for layer in self.layers:
            x = x + layer(x)
        return functional.mse_loss(self.first(x), y)


def planned(ranks: tuple[int, ...], **options: Any) -> Plan:
    torch.manual_seed(0)
    batch = {"x": torch.randn(4096, 8), "y": torch.randn(4096, 8)}
    machine = partita.Machine.adhoc(ranks)
    return partita.optimize(Net(), batch, machine, recompute="none", workers=1, cache="none", **options)


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every layer has a bucket, and ranks take turns in a random order."""
    monkeypatch.setattr("partita.codegen.emission.spmd.features._least_bytes", lambda e: 1)
    monkeypatch.setattr("partita.codegen.verification.threads.Hub", lambda ranks, _: Hub(ranks, shuffled=True))


@pytest.mark.parametrize(
    "options",
    some(
        [
            {"mesh": (4,), "micro_batches": 2},
            {"mesh": (4,), "dtype": "mixed-bfloat16-fp32grad", "micro_batches": 4},
            {"stages": 2, "micro_batches": 4},
            {"stages": 2, "micro_batches": 4, "schedule": "zero-bubble", "dtype": "mixed-bfloat16"},
            {"stages": 2, "micro_batches": 4, "schedule": "interleaved", "chunks": 2, "optimizer": "sgd"},
            {"mesh": (4,), "micro_batches": 2, "overlap": False},
        ],
        2,
    ),
)
def test_programs_train_as_the_module(options: dict[str, Any]) -> None:
    plan = planned((2, 2), **options) if "stages" in options else planned((4,), stages=1, **options)
    assert ("class Reductions" in plan.emit()) == options.get("overlap", True)
    assert verify(plan)["ok"]


def test_buckets_are_summed_in_one_order_before_backward_ends(tmp_path: Path) -> None:
    plan = planned((3,), stages=1, mesh=(3,))
    plan.emit(tmp_path / "program.py")
    program = load_program(tmp_path / "program.py")

    def rank(_: int) -> tuple[list[str], int]:
        mesh, model, optimizer = program.build(Net().state_dict())
        names, during = [], []
        for bucket in optimizer.buckets:

            def noted(bucket: Any = bucket, reduce: Any = bucket.reduce) -> None:
                names.append(bucket.weights[0].original)
                reduce()

            bucket.reduce = noted
        finish = optimizer.reductions.finish
        optimizer.reductions.finish = lambda: during.append(len(names)) or finish()  # type: ignore[func-returns-value]
        batch = {"x": torch.randn(4096, 8), "y": torch.randn(4096, 8)}
        loss = program.train_step(model, optimizer, batch, mesh, 0)
        assert isinstance(loss, Tensor)
        assert not loss.dim()
        summed = [bucket for bucket in optimizer.buckets if bucket.axis is not None]  # not those of split weights
        assert len({w.grad.untyped_storage().data_ptr() for b in summed for w in b.weights}) == len(summed) > 1
        late = summed[0].weights[0]
        with pytest.raises(RuntimeError, match="after it was summed"):
            next(iter(late._post_accumulate_grad_hooks.values()))(late)
        return names, during[0]

    (names, during), *others = run_threads(rank, 3)
    assert [name for name, _ in others] == [names] * 2
    assert len(names) >= 4
    assert during == len(names)
    assert names[0].startswith("layers.3")
    assert names[-1].startswith("first")


def test_each_group_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planned((2, 2), stages=1, mesh=(2, 2)).emit(tmp_path / "program.py")
    program, made, new_group = load_program(tmp_path / "program.py"), list[tuple[int, ...]](), dist.new_group

    def noted(ranks: Any, **options: Any) -> Any:
        if dist.get_rank() == 0:
            made.append(tuple(ranks))
        return new_group(ranks, **options)

    monkeypatch.setattr(dist, "new_group", noted)
    run_threads(lambda _: program.Mesh() and None, 4)
    assert made
    assert len({*made, (0, 1, 2, 3)}) == len(made) + 1
