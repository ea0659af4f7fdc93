"""Unity's examples (OSDI 2022, Figures 10, 11 and 16) are what a search finds, at sizes at which they pay."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import partita
from partita.codegen.plan.plan import Plan
from partita.model.machine.machine import Machine


def machine(slower: float) -> Machine:
    """Four devices whose kernels take no launch, and whose arithmetic is so much slower."""
    found = Machine.adhoc((4,))
    device = found.device
    peak = {dtype: rate / slower for dtype, rate in device.peak.items()}
    return replace(found, device=replace(device, peak=peak, launch_ns=0))


class Transformer(nn.Module):
    """Attention and a perceptron, without biases, on one sample that is too short to split."""

    def __init__(self, width: int = 64, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        b, t, d = x.shape
        q, k, v = (f(x).view(b, t, self.heads, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        y = self.o(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, d))
        return self.down(torch.relu(self.up(y))).square().mean()


class Perceptron(nn.Module):
    def __init__(self, inner: int, outer: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(inner, outer, bias=False), nn.Linear(outer, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.relu(self.first(x))).square().mean()


class Joined(nn.Module):
    """A linear of two tensors side by side, which are scaled elementwise."""

    def __init__(self, inner: int, outer: int) -> None:
        super().__init__()
        self.left, self.right = nn.Parameter(torch.ones(inner)), nn.Parameter(torch.ones(inner))
        self.top = nn.Linear(2 * inner, outer, bias=False)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.top(torch.cat([x * self.left, y * self.right], 1)).square().mean()


def planned(module: nn.Module, inputs: tuple[Tensor, ...], slower: float, rewrite: bool | str = False) -> Plan:
    plan = partita.optimize(
        module,
        inputs,
        machine(slower),
        mesh=(4,),
        micro_batches=1,
        rewrite=rewrite,
        cache="none",
        optimizer="sgd",
        recompute="none",
    )
    assert plan.report["status"] == "optimal"
    return plan


def layouts(plan: Plan) -> dict[str, list[str]]:
    """The split of every node's operands and its result: `S(1.0)`, or `P` for addends."""
    rows = plan.summary()["strategies"]
    return {row["name"]: [text.rpartition(":")[2] for text in row["layouts"]] for row in rows}


def test_figure_10_heads_and_columns() -> None:
    """Columns of queries, keys and values by heads, rows of what follows: a sum; the same for the perceptron."""
    found = layouts(planned(Transformer(), (torch.zeros(1, 2, 64),), 100_000))
    for name in ("q", "k", "v", "up"):
        x, weight, y = found[name]
        assert x in ("R", "B") and weight.startswith("S(0") and y.startswith("S(2"), name
    assert {text[:3] for text in found["attention"]} == {"S(1"}
    assert {text[:3] for text in found["relu"]} == {"S(2"}  # Figure 11a
    for name in ("o", "down"):
        assert found[name][1].startswith("S(1") and found[name][2] == "P", name


@pytest.mark.parametrize(("inner", "fused"), [(1 << 16, False), (16, True)])
def test_figure_16a_a_sum_is_split_only_without_fusion(inner: int, fused: bool) -> None:
    """Where the summed dim is the long one, its split pays, and the planner leaves ReLU alone."""
    plan = planned(Perceptron(inner, 2), (torch.zeros(2, inner),), 1000, rewrite=True)
    assert bool(plan.report["rewritten"]) == fused
    if not fused:
        assert layouts(plan)["first"][2] == "P"


def test_figure_16b_a_concatenation_becomes_a_sum() -> None:
    """By the hand-written rule; how its products are split is free."""
    plan = planned(Joined(1 << 16, 2), (torch.zeros(2, 1 << 16), torch.zeros(2, 1 << 16)), 100, rewrite=True)
    assert [change["rule"] for change in plan.report["rewritten"]] == ["linear of two concatenated"]
