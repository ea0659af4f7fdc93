"""Passes without gradient: whatever is chosen, the network's cost and memory are those of the independent pricing."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor, nn

import partita
from partita.codegen.plan.plan import Plan
from partita.codegen.planner.decode import choices, report
from partita.codegen.pricing.stage_price import stage_price
from partita.formulation.encoding.encode import encode
from partita.formulation.network.network import evaluate
from partita.formulation.placement.placement import placements
from partita.model.graph.recycling import twins
from partita.model.machine.machine import Machine

from ..levels import some


class Recycled(nn.Module):
    """Two streams through two layers, three times; only the last pass has a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))
        self.across = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))
        self.norm = nn.LayerNorm(8)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        handed = torch.zeros_like(a)
        for cycle in range(3):
            with torch.set_grad_enabled(cycle == 2):
                x, z = a + self.norm(handed), b
                for up, across in zip(self.up, self.across, strict=True):
                    x = x + torch.relu(up(x)) * z.mean(1, keepdim=True)
                    z = z + across(z) * x.mean(1, keepdim=True)
                handed = x
        return (x.mean(1) * z.mean(1)).sum()


@pytest.mark.parametrize("hierarchy", some([(2,), (2, 2), (2, 3)], 2))
@pytest.mark.parametrize("dtype", ["float32", "mixed-bfloat16"])
def test_both_prices_agree(hierarchy: tuple[int, ...], dtype: str) -> None:
    graph = partita.capture(Recycled(), (torch.zeros(2, 4, 8), torch.zeros(2, 6, 8)), batch=8)
    assert len(twins(graph)) >= 20
    machine, rng = Machine.adhoc(hierarchy), random.Random(1)
    for placement in placements(hierarchy)[:3]:
        found = encode(graph, machine, placement, micro_batches=2, dtype=dtype, optimizer="adam")
        for _ in range(10):
            drawn = [rng.randrange(len(v.cost)) for v in found.network.variables]
            plan = Plan(
                graph, machine, placement, 2, choices(found, drawn), dtype, "adam", {}, report(found, drawn), None
            )
            again = stage_price(plan)
            assert again.objective_ns == evaluate(found.network, drawn).cost
            assert again.memory_bytes == plan.report["memory_bytes"]
