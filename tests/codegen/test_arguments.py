"""Arguments that PyTorch accepts are captured right, whatever the plan, or refused: none is ignored."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from partita import Machine, PartitaError, capture, optimize
from partita.codegen.plan.plan import Plan
from partita.codegen.verification.verify import verify

Force = Callable[..., Any]
Compute = Callable[["Scaled", Tensor], Tensor]
INF = float("inf")


class Scaled(nn.Module):
    """A function of the input times a weight; it may read a few numbers besides."""

    def __init__(self, compute: Compute, shape: tuple[int, ...], part: nn.Module | None = None) -> None:
        super().__init__()
        self.compute, self.part = compute, part
        self.weight = nn.Parameter(torch.zeros(shape))
        self.table = nn.Parameter(torch.zeros(7, 5))
        self.register_buffer("back", torch.tensor([-1, 0, -4]))
        self.register_buffer("mask", torch.tensor([True, False, True, True, False]))

    def forward(self, x: Tensor) -> Tensor:
        return self.compute(self, x * self.weight)


def read_back(s: Scaled, x: Tensor) -> Tensor:
    """Two index tensors, both of them negative."""
    steps = torch.arange(3)
    return x[:, s.back, steps - 2] + x[:, steps - 3, s.back]


RIGHT: dict[str, Compute] = {
    "average of places inside": lambda s, x: F.avg_pool1d(x, 3, 2, 1, True, False),
    "pad with -inf": lambda s, x: F.pad(x, (1, -1, 2, 0), value=-INF).exp(),
    "norm of a number": lambda s, x: x.sum().norm() + torch.linalg.vector_norm(x.sum(), 0) + x.sum(),
    "infinite norms": lambda s, x: x.norm(INF, -1) + torch.linalg.vector_norm(x, -INF, dim=-1),
    "variance": lambda s, x: x.var((0, -1), correction=2, keepdim=True) + x.std(dim=-2, keepdim=True),
    "logsumexp of a number": lambda s, x: x.sum().logsumexp(0) + x,
    "not of numbers": lambda s, x: x * torch.logical_not(x.relu()) + x * torch.logical_not((x > 0).sum(1, True)),
    "and, or": lambda s, x: x * ((x > 0) & s.mask | (x < -1)),
    "logical and": lambda s, x: x * torch.logical_and(x.relu(), s.mask) * torch.logical_or(x > 1, torch.tensor(True)),
    "powers of integers": lambda s, x: x[:, :, 2 ** torch.arange(3)] * (-2.0) ** torch.arange(3),
    "drop all": lambda s, x: F.dropout(x, 1.0) + x,
    "drop all attention": lambda s, x: F.scaled_dot_product_attention(x, x, x, None, 1.0) + x,
    "negative numbers of a buffer": lambda s, x: x[:, s.back],
    "negative numbers in pairs": read_back,
    "negative numbers computed": lambda s, x: x @ s.table[torch.arange(3) - 2].mT,
    "negative numbers of constants": lambda s, x: x[:, [-1, 0], [[-2], [1]]],
    "numbers of the flat tensor": lambda s, x: x.take(s.back * 20),
    "broadcast letters": lambda s, x: torch.einsum("...ij,kj->k...i", x, s.table[:1]),
    "norm without eps": lambda s, x: F.rms_norm(x, (5,), s.table[0]),
}


@pytest.mark.parametrize("name", RIGHT)
def test_right(name: str, force: Force, tmp_path: Path) -> None:
    """Forced at random, saved and read again."""
    rng = random.Random(name)
    module, inputs = Scaled(RIGHT[name], (4, 5)), (torch.zeros(6, 4, 5),)
    graph = capture(module, inputs, loss="projection")
    for sizes in ((2,), (2,), (3,), (2, 2)):
        plan = force(graph, sizes, rng, optimizer="sgd")
        plan.save(tmp_path / "plan.json")
        assert Plan.load(tmp_path / "plan.json").graph == graph
        verdict = verify(plan, module=module, inputs=inputs, steps=2)
        assert verdict["ok"], verdict["failure"]


def test_indices_that_are_not_negative_are_read_as_they_are() -> None:
    module = Scaled(lambda s, x: x[:, s.back.clamp(min=0) + torch.arange(3)], (4, 5))
    graph = capture(module, (torch.zeros(6, 4, 5),), loss="projection")
    assert graph.of("index") and not graph.of("where")


class Own(torch.autograd.Function):
    """Not its own derivative."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0] * 7


def hooked(s: Scaled, x: Tensor) -> Tensor:
    y = x.sin()
    y.register_hook(lambda gradient: gradient * 2)
    return y


def without(s: Scaled, x: Tensor) -> Tensor:
    with torch.inference_mode():
        y = x.sin()
    return x - y


def again(s: Scaled, x: Tensor) -> Tensor:
    y: Tensor = torch.utils.checkpoint.checkpoint(torch.sin, x, use_reentrant=True)
    return y + x


REFUSED: dict[str, tuple[Compute, str]] = {
    "bits": (lambda s, x: x * s.back[:1].view(torch.float64), "view.dtype"),
    "inverted integers": (lambda s, x: x * ~s.back[0:1], "the bits of integers"),
    "one value": (lambda s, x: x[:, :, :1].var(-1), "a variance of 1 values"),
    "a number": (lambda s, x: x.sum().var(correction=0) + x, "a variance of 1 values"),
    "as often": (
        lambda s, x: x[:, s.mask[:3].long().repeat_interleave(s.mask[:3].long(), output_size=2)],
        "by a tensor",
    ),
    "hook": (hooked, "registers a hook"),
    "inference": (without, "use torch.no_grad"),
    "reentrant": (again, "use_reentrant=False"),
    "no shape": (lambda s, x: x, "'part.weight' has no shape yet"),
    "backward hook": (lambda s, x: x, "'part' has a hook on its gradient"),
    "hook of a weight": (lambda s, x: x, "'part.weight' has a hook on its gradient"),
}


def part(name: str) -> nn.Module | None:
    """What the module holds besides, unused."""
    if name == "no shape":
        return nn.LazyLinear(3)
    linear = nn.Linear(2, 2)
    if name == "backward hook":
        linear.register_full_backward_hook(lambda module, before, after: None)
    if name == "hook of a weight":
        linear.weight.register_hook(lambda gradient: gradient * 2)
    return linear


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    compute, problem = REFUSED[name]
    with pytest.raises(PartitaError, match=problem.replace("(", r"\(")):
        capture(Scaled(compute, (4, 5), part(name)), (torch.zeros(6, 4, 5),), allow_unknown=False, loss="projection")


def test_refusals_leave_torch_as_it_was() -> None:
    with pytest.raises(PartitaError):
        capture(Scaled(lambda s, x: without(s, Own.apply(x)), (4, 5)), (torch.zeros(6, 4, 5),), loss="projection")
    x = torch.ones(2, requires_grad=True)
    y: Tensor = Own.apply(x)
    with torch.inference_mode():
        assert not x.sin().requires_grad
    y.sum().backward()
    assert x.grad is not None and x.grad.tolist() == [7, 7]


class Target(nn.Module):
    """One layer follows another one, which no gradient reaches."""

    def __init__(self, compared: bool) -> None:
        super().__init__()
        self.online, self.target, self.compared = nn.Linear(5, 5), nn.Linear(5, 5), compared

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.online(x)
        if self.compared:
            return y * (self.target(x) > 0)
        with torch.no_grad():
            wanted = self.target(x)
        return (y - wanted).square()


@pytest.mark.parametrize("compared", [False, True])
def test_weights_that_no_gradient_reaches_do_not_decay(compared: bool) -> None:
    module, inputs = Target(compared), (torch.zeros(12, 5),)
    plan = optimize(
        module, inputs, Machine.adhoc((2,)), mesh=(2,), dtype="float64", optimizer="adamw", loss="projection"
    )
    frozen = [n.name for n in plan.graph.nodes if n.op == "parameter" and not n.gradient]
    assert frozen == ["target.weight", "target.bias"]
    assert verify(plan, module=module, inputs=inputs)["ok"]


class Twice(nn.Module):
    """A pass without gradient that reads the input itself."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(5, 7), nn.Linear(7, 5)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            y = self.b(self.a(x).relu())
        z: Tensor = self.b(self.a(x).relu())
        return z * y


def test_an_input_read_without_gradient() -> None:
    module, inputs = Twice(), (torch.zeros(12, 5),)
    plan = optimize(module, inputs, Machine.adhoc((2, 2)), mesh=(2, 2), dtype="float64", loss="projection")
    assert verify(plan, module=module, inputs=inputs)["ok"]
