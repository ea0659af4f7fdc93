"""Random calls draw on every rank its part of the module's numbers; writes in place change its part of a tensor."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import partita
from partita.model.capture.capture import capture


class Noisy(nn.Module):
    """A random call of each kind, some in place, of whole channels, of integers."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.channels, self.alpha, self.slope = nn.Dropout2d(0.3), nn.AlphaDropout(0.2), nn.RReLU()

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        y = self.channels(x.unflatten(-1, (2, 2, 2))).flatten(1)
        z = self.alpha(x) + self.slope(x) + torch.rand(len(x), 1) * x + torch.randn_like(x)
        z = z * x.new_empty(len(x), 1).bernoulli_() + F.gumbel_softmax(x, dim=-1) * torch.bernoulli(x.sigmoid())
        n = torch.normal(x * 0 + 2, 0.5) * torch.empty(8).uniform_(-1, 2)
        z = z * (torch.rand(len(x), 1) < 0.8)
        y = (y + z + n + F.dropout(x, 0.1)).gather(1, torch.randint(2, 8, (len(x), 3)))
        return y[:, torch.randperm(3)[:2]].square().mean()


def test_every_rank_draws_its_part() -> None:
    machine = partita.Machine.adhoc((2, 2))
    plan = partita.optimize(
        Noisy(), (torch.zeros(12, 8),), machine, batch=12, workers=1, stages=2, micro_batches=2
    )  # fmt: skip
    assert len([node for node in plan.graph.nodes if node.op in ("random", "dropout")]) == 14
    assert plan.verify()["ok"]


class Unread(nn.Module):
    """Makes a layer on its first call alone, keeps its old weights, and fills memory that nothing reads."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm, self.first = nn.Linear(8, 8), nn.BatchNorm1d(8), True

    def forward(self, x: Tensor) -> Tensor:
        if self.first:
            new = nn.Linear(8, 8)
            new.weight, new.bias = self.layer.weight, self.layer.bias
            self.layer, self.first = new, False
        torch.empty(3).uniform_().view(3, 1).mul_(2)
        factor = torch.empty(8).normal_()
        y = F.dropout(self.norm(self.layer(x)), 0.3) * (factor + 1)
        factor.uniform_()
        return (y + torch.rand(8)).square().mean()


@pytest.mark.parametrize("statistics", ["batch", "local"])
def test_numbers_that_nothing_reads_are_not_counted(statistics: str) -> None:
    plan = partita.optimize(
        Unread(), (torch.zeros(8, 8),), partita.Machine.adhoc((2,)), workers=1, statistics=statistics
    )  # fmt: skip
    assert [node["site"] for node in plan.graph.nodes if node.op in ("random", "dropout")] == [0, 1, 2]
    assert plan.verify()["ok"]


class Drawing(nn.Module):
    """Rows of a table by random ids, and shares of them by small probabilities."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.ones(1000))

    def forward(self, x: Tensor) -> Tensor:
        ids = torch.randint(0, 1000, (len(x), 16))
        rare = torch.rand(len(x), 16) < 0.999
        return (x * self.table[ids] * rare * torch.bernoulli(x * 0 + 0.001)).mean()


def test_narrow_floats_do_not_round_what_is_drawn() -> None:
    """Of bfloat16, whole numbers above 256 are even, and numbers below 1 are at least 0.002 apart."""
    graph = capture(Drawing(), (torch.zeros(4, 16),))
    drawn = {node["kind"]: node.dtype for node in graph.nodes if node.op == "random"}
    assert drawn == {"integers": "int64", "uniform": "float64"}
    plan = partita.optimize(Drawing(), (torch.zeros(4, 16),), partita.Machine.adhoc((2,)), workers=1, dtype="bfloat16")
    assert "numbers = integer_numbers(" in plan.emit() and plan.verify()["ok"]


class Written(nn.Module):
    """Writes through views, and calls that are made of others."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 6)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        left, turned = y[..., :3], y.transpose(0, 1)
        left *= 2
        turned[1, :, ::2] = y[:, 0, ::2].diff(dim=-1, append=y[:, :1, 0])
        y.masked_fill_(y > 1, 0.5)
        return torch.addcmul(turned, turned, turned, value=2).square().mean() + F.glu(left.mT).mean()


def test_ranks_write_their_parts(judge: Any, force: Any) -> None:
    rng = random.Random(0)
    graph = capture(Written(), (torch.zeros(6, 4, 4),))
    assert len(graph.of("cat")) >= 2 and not graph.of("opaque")
    for sizes in ((3,), (2, 2)):
        judge(force(graph, sizes, rng, None, 2, "adamw"))
    assert partita.optimize(Written(), (torch.zeros(6, 4, 4),), partita.Machine.adhoc((2,)), workers=1).verify()["ok"]
