"""Models of look-ups, grouped attention and losses, planned and trained beside the user's module."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from partita import Machine, optimize
from partita.codegen.plan.plan import Plan
from partita.codegen.pricing.stage_price import stage_price
from partita.codegen.verification.reference import loss_of
from partita.codegen.verification.threads import run_threads
from partita.codegen.verification.verify import verify
from partita.codegen.verification.worker import load_program, train
from partita.model.capture.objective import objective

MESHES = ((2,), (2, 2), (6,), (2, 3))


class Clicks(nn.Module):
    """Bags of ids, one of them weighted; products of all pairs of features; a binary loss with weights."""

    def __init__(self) -> None:
        super().__init__()
        self.viewed = nn.EmbeddingBag(40, 8)
        self.bought = nn.EmbeddingBag(30, 8, mode="sum")
        self.scales = nn.Parameter(torch.zeros(12))
        self.user = nn.Embedding(50, 8)
        self.top = nn.Linear(3, 4)
        rows, columns = torch.tril_indices(3, 3, -1)
        self.register_buffer("rows", rows)
        self.register_buffer("columns", columns)

    def forward(self, viewed: Tensor, bought: Tensor, user: Tensor, clicks: Tensor) -> Tensor:
        weights = self.scales[bought.clamp(max=11)].exp()
        features = (self.viewed(viewed), self.bought(bought, per_sample_weights=weights), self.user(user))
        z = torch.stack(features, 1)
        pairs = torch.einsum("bik,bjk->bij", z, z)[:, self.rows, self.columns]
        return F.binary_cross_entropy_with_logits(self.top(pairs), clicks, pos_weight=self.scales[:4].exp().detach())


class Window(nn.Module):
    """Attention of grouped heads in a window that is shifted, with a learned bias by relative position."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(8, 32)
        self.bias = nn.Parameter(torch.zeros(11, 4))
        self.out = nn.Linear(16, 10)
        places = torch.arange(6)
        self.register_buffer("distance", places[:, None] - places[None] + 5)

    def forward(self, x: Tensor, labels: Tensor, teacher: Tensor) -> Tensor:
        x = F.pad(x.roll(2, 1), (0, 0, 1, 1), mode="circular")
        q, k, v = self.qkv(x).unflatten(-1, (8, 4)).transpose(1, 2).split((4, 2, 2), 1)
        y = F.scaled_dot_product_attention(q, k, v, self.bias[self.distance].permute(2, 0, 1), enable_gqa=True)
        scores = self.out(y.transpose(1, 2).flatten(2)).flip(1)[:, 1:5]
        loss = F.cross_entropy(scores.mT, labels, label_smoothing=0.1)
        return loss + 0.5 * F.kl_div(scores.log_softmax(-1), teacher.softmax(-1), reduction="batchmean")


def ids(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.int64)


MODELS: dict[str, tuple[type[nn.Module], tuple[Tensor, ...]]] = {
    "clicks": (Clicks, (ids(12, 3), ids(12, 2), ids(12), torch.zeros(12, 4))),
    "window": (Window, (torch.zeros(12, 4, 8), ids(12, 4), torch.zeros(12, 4, 10))),
}


def planned(name: str, mesh: tuple[int, ...], **options: Any) -> tuple[Plan, nn.Module, tuple[Tensor, ...]]:
    kind, inputs = MODELS[name]
    machine = Machine.adhoc(mesh)
    device = replace(machine.device, peak=dict.fromkeys(machine.device.peak, 1e9), memory_bandwidth=1e9, launch_ns=100)
    module = kind()
    return optimize(module, inputs, replace(machine, device=device), mesh=mesh, **options), module, inputs


@pytest.mark.parametrize("mesh", MESHES, ids=lambda mesh: "x".join(map(str, mesh)))
@pytest.mark.parametrize("name", MODELS)
def test_the_optimum(name: str, mesh: tuple[int, ...]) -> None:
    plan, module, inputs = planned(name, mesh, dtype="float64")
    found = stage_price(plan)
    assert (found.objective_ns, found.memory_bytes) == (plan.report["objective_ns"], plan.report["memory_bytes"])
    assert verify(plan, module=module, inputs=inputs)["ok"]


@pytest.mark.parametrize("name", MODELS)
def test_micro_batches(name: str) -> None:
    plan, module, inputs = planned(name, (2,), dtype="float64", micro_batches=3)
    assert verify(plan, module=module, inputs=inputs)["ok"]


@pytest.mark.parametrize("name", MODELS)
def test_mixed_precision(name: str) -> None:
    plan, module, inputs = planned(name, (2,), dtype="mixed-bfloat16")
    assert verify(plan, module=module, inputs=inputs)["ok"]


@pytest.mark.parametrize("dtype", ["mixed-bfloat16", "float64"])
def test_data_come_in_float32(dtype: str, tmp_path: Path) -> None:
    """Float inputs are read in the dtype that the plan computes in."""
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))
    plan = optimize(
        model, (torch.zeros(4, 4),), Machine.adhoc((2,)), batch=4, dtype=dtype, mesh=(2,), loss="projection"
    )
    plan.emit(tmp_path / "program.py")
    program = load_program(tmp_path / "program.py")
    state = {name: p.detach() for name, p in model.named_parameters()}
    batches = [{"input": torch.ones(4, 4)}]
    outcome = run_threads(lambda _: train(program, state, batches, state, program.DTYPE), 2)[0]
    result = model.double()(torch.ones(4, 4).double())
    whole = loss_of(objective(result, "projection", model), program.SEED)
    assert outcome is not None and outcome.losses[0] == pytest.approx(whole.item(), abs=0.02)
