"""Opaque operators in whole modules: random plans compute what the module does."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from partita.model.capture.capture import capture
from partita.model.capture.decompositions import Decompositions

Judge = Callable[..., dict[str, Any]]
Force = Callable[..., Any]

CALLS: dict[str, Callable[[Tensor], Tensor]] = {
    "cdist": lambda x: torch.cdist(x, 2 * x[:, :3] + 1),
    "solve": lambda x: torch.linalg.solve(x @ x.mT + torch.eye(5), x),
    "cholesky": lambda x: torch.linalg.cholesky(x @ x.mT + torch.eye(5)),
    "svdvals": lambda x: torch.linalg.svdvals(x),
    "grid_sample": lambda x: nn.functional.grid_sample(
        x.unflatten(2, (2, 3)).transpose(1, 2), x[..., None, :2].tanh(), align_corners=False
    ),
    "logcumsumexp": lambda x: torch.logcumsumexp(x, 1),
    "renorm": lambda x: torch.renorm(x, 2, 2, 0.5),
    "ndtri": lambda x: torch.special.ndtri(x.sigmoid()),
    "nansum": lambda x: torch.nansum(x, 1),
    "unfold": lambda x: x.unfold(1, 3, 2),
}


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
