"""Opaque operators in whole modules: random plans compute what the module does."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import Function

from partita import Machine, PartitaError, optimize
from partita.codegen.report.facts import facts
from partita.codegen.report.summary import summary
from partita.codegen.report.text import text
from partita.model.capture.capture import capture
from partita.model.capture.decompositions import Decompositions

Judge = Callable[..., dict[str, Any]]
Force = Callable[..., Any]

CALLS: dict[str, Callable[[Tensor], Tensor]] = {
    "cdist": lambda x: torch.cdist(x, 2 * x[:, :3] + 1),
    "rotation": lambda x: torch.view_as_real(torch.fft.rfft(x) * torch.view_as_complex(x[..., :2])[..., None]),
    "renorm": lambda x: torch.renorm(x, 2, 2, 0.5),
    "nansum": lambda x: torch.nansum(x, 1),
}


class Scaled(Function):
    """Its backward keeps what forward computes, and adds up over all dims but one."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor, sharpness: float) -> Tensor:
        gate = torch.sigmoid(sharpness * x)
        ctx.save_for_backward(x, scale, gate)
        ctx.sharpness = sharpness
        return x.clone().mul_(gate) * scale

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        x, scale, gate = ctx.saved_tensors
        own = (grad * x * gate).reshape(-1, x.shape[-1]).sum(0)
        return grad * scale * gate * (1 + ctx.sharpness * x * (1 - gate)), own, None


class Clipped(Function):
    """Not linear in the gradient: addends of it must be added up first."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad.clamp(-0.01, 0.01)


class Waves(Function):
    """Two results."""

    @staticmethod
    def forward(x: Tensor) -> tuple[Tensor, Tensor]:
        return x.sin(), x.cos()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: tuple[Tensor, Tensor]) -> None:
        ctx.save_for_backward(*output)

    @staticmethod
    def backward(ctx: Any, first: Tensor, second: Tensor) -> Tensor:
        sin, cos = ctx.saved_tensors
        return first * cos - second * sin


class Noisy(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x + torch.rand_like(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad


class Functions(nn.Module):
    """Calls of user-defined functions, one of them by equal layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))
        self.scale = nn.Parameter(torch.ones(6))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = Clipped.apply(layer(x))
        return sum(Waves.apply(Scaled.apply(x, self.scale, 1.5)))


def test_custom_functions(judge: Judge, force: Force) -> None:
    rng = random.Random(0)
    graph = capture(Functions(), (torch.zeros(6, 5, 6),), loss="projection")
    titles = {graph.nodes[i]["title"]: graph.nodes[i]["linear"] for i in graph.of("function")}
    assert titles == {"Clipped": False, "Scaled": True, "Waves": True}
    judge(force(graph, (3, 2), rng, None, rng.choice((1, 2)), "adamw"))
    plan = optimize(Functions(), (torch.zeros(6, 5, 6),), Machine.adhoc((2,)), batch=6, loss="projection")
    assert plan.verify()["ok"] and "class Scaled(torch.autograd.Function):" in plan.emit()


def test_reports_name_opaque_operators() -> None:
    """With their share of the work, also in JSON."""
    plan = optimize(
        Calls(torch.linalg.svdvals), (torch.zeros(4, 5, 6),), Machine.adhoc((2,)), batch=4, loss="projection"
    )
    (call,) = summary(plan)["opaque"]
    assert call["call"] == "aten.linalg_svdvals.default" and 0 < call["flops"] < 1
    assert "opaque      aten.linalg_svdvals: no rule is known" in str(plan)
    assert "OPAQUE AND UNSPLIT OPERATORS" in text(facts(plan))


def test_random_function_is_refused() -> None:
    """Also where `apply` was bound before."""
    with pytest.raises(PartitaError, match=r"Noisy .*test_opaque.py.*rand_like.default is random"):
        capture(Calls(Noisy.apply), (torch.zeros(6, 5, 6),), loss="projection")


class Calls(nn.Module):
    def __init__(self, call: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.call, self.first = call, nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.call(self.first(x))


@pytest.mark.parametrize("name", CALLS)
def test_random_plans(name: str, judge: Judge, force: Force, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Decompositions, "of", lambda *call: None)
    rng = random.Random(name)
    graph = capture(Calls(CALLS[name]), (torch.zeros(6, 5, 6),), loss="projection")
    assert graph.of("opaque")
    whole_batch = name == "renorm"  # a column of all samples has one norm
    for sizes in ((3,), (2, 2)):
        judge(force(graph, sizes, rng, None, 1 if whole_batch else rng.choice((1, 2)), "adamw"))
