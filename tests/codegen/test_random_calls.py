"""Random calls: every rank draws its part of the numbers that the unsharded module draws."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import partita


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
        z = z * x.new_empty(len(x), 1).bernoulli_(0.7) + F.gumbel_softmax(x, dim=-1) * torch.bernoulli(x.sigmoid())
        n = torch.normal(x * 0 + 2, 0.5) * torch.empty(8).uniform_(-1, 2)
        return (y + z + n + F.dropout(x, 0.1)).gather(1, torch.randint(2, 8, (len(x), 3))).square().mean()


@pytest.mark.parametrize(("sizes", "options"), [((3,), {}), ((2, 2), {"stages": 2, "micro_batches": 2})])
def test_every_rank_draws_its_part(sizes: tuple[int, ...], options: dict[str, Any]) -> None:
    machine = partita.Machine.adhoc(sizes)
    plan = partita.optimize(Noisy(), (torch.zeros(12, 8),), machine, batch=12, workers=1, **options)
    assert len([node for node in plan.graph.nodes if node.op in ("random", "dropout")]) == 12
    assert plan.verify()["ok"]
