"""Buffers that forward changes: programs change them as the module does."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm

from partita import Machine, PartitaError, capture, optimize
from partita.codegen.emission.spmd.micro_batches import divided

Judge = Callable[..., dict[str, Any]]
Force = Callable[..., Any]

X = torch.zeros(6, 5, 6)


class Counting(nn.Module):
    """A counter that is assigned, a moving average of which the old value is read, another of the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.first = spectral_norm(nn.Linear(6, 6))
        self.register_buffer("steps", torch.tensor(3))
        self.register_buffer("average", torch.ones(6))
        self.register_buffer("losses", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.steps = self.steps + 1
        y = self.first(x)
        centred = y - self.average / self.steps
        with torch.no_grad():
            self.average.mul_(0.9).add_(y.mean((0, 1)), alpha=0.1)
        loss = (centred * self.average).square().mean()
        self.losses.lerp_(loss.detach(), 0.5)
        return loss


def test_buffers_change(judge: Judge, force: Force) -> None:
    rng = random.Random(0)
    module = Counting()
    graph = capture(module, (X,))
    (store,) = (graph.nodes[i] for i in graph.of("store"))
    assert len(store.inputs) == 1 + 2 * 5  # also the two vectors of the spectral norm
    for sizes in ((3,), (2, 2)):
        judge(force(graph, sizes, rng, None, 1, "adamw"))
    plan = optimize(module, (X,), Machine.adhoc((2,)), batch=6)
    assert plan.verify()["ok"] and plan.micro_batches == 1


def test_what_changes_needs_the_whole_batch() -> None:
    with pytest.raises(PartitaError, match="needs the whole batch at once"):
        divided([capture(Counting(), (X,))], 2)


class Changing(nn.Module):
    def __init__(self, change: Callable[[Any, Tensor], None]) -> None:
        super().__init__()
        self.change, self.first = change, nn.Linear(6, 6)
        self.register_buffer("kept", torch.zeros(2))

    def forward(self, x: Tensor) -> Tensor:
        self.change(self, x)
        return self.first(x).square().mean()


def test_refused() -> None:
    def parameter(module: Changing, x: Tensor) -> None:
        with torch.no_grad():
            module.first.weight.mul_(0.5)

    def shape(module: Changing, x: Tensor) -> None:
        module.kept = torch.zeros(3)

    changes = {"to a tensor with a gradient": parameter, "another shape": shape, "its inputs": lambda m, x: x.mul_(2)}
    for problem, change in changes.items():
        with pytest.raises(PartitaError, match=problem):
            capture(Changing(change), (X,))
