"""What depends on no input is computed once, as the model is built, and costs nothing in a step."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import partita
from partita.codegen.pricing.stage_price import stage_price
from partita.codegen.verification.worker import load_program
from partita.model.capture.capture import capture
from partita.model.graph.constants import built_once, held


class Block(nn.Module):
    """Attention with slopes of ALiBi and a causal mask, which every block computes for itself."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.first, self.last = nn.LayerNorm(8), nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (y.unflatten(-1, (2, 4)).transpose(1, 2) for y in self.first(self.norm(x)).chunk(3, -1))
        places = torch.arange(x.shape[1])
        distances = (places - places[:, None]).float() * torch.tensor([0.5, 0.25])[:, None, None]
        distances = distances.expand(len(x), -1, -1, -1)
        bias = distances.masked_fill(places > places[:, None], -torch.inf)
        mixed = (q @ k.mT / 2 + bias).softmax(-1) @ v
        return x + self.last(mixed.transpose(1, 2).flatten(2))


class Sloped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks, self.scores = nn.ModuleList(Block() for _ in range(4)), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self.scores(x).square().mean()


INPUTS = (torch.zeros(8, 6, 8),)


@pytest.mark.parametrize(
    "options", [{"stages": 1, "mesh": (2, 2), "recompute": "full"}, {"stages": 2, "micro_batches": 2}]
)
def test_equal_blocks_read_one_tensor(options: dict[str, Any]) -> None:
    plan = partita.optimize(Sloped(), INPUTS, partita.Machine.adhoc((2, 2)), workers=1, overlap=False, **options)
    text = plan.emit()
    assert text.count("def constants(self):") == options["stages"]
    assert options["stages"] == 2 or "for i in range(4))" in text
    assert "masked_fill" not in text.partition("def forward(self, x, ")[2].partition("class ")[0]
    assert plan.verify()["ok"]


def test_they_cost_memory_but_no_time() -> None:
    graph = capture(Sloped(), INPUTS)
    (mask,) = held(graph)
    assert graph.nodes[mask].shape == (2, 6, 6) and len(graph.consumers[mask]) == 4
    plan = partita.optimize(Sloped(), INPUTS, partita.Machine.adhoc((2,)), workers=1, stages=1)
    price = stage_price(plan)
    assert not [item for item in price.items if item.node in built_once(plan.graph)]
    assert [kept.bytes for kept in price.kept if kept.node == mask] == [4 * 2 * 6 * 6]


def test_narrow_floats_are_rounded_at_the_end() -> None:
    plan = partita.optimize(Sloped(), INPUTS, partita.Machine.adhoc((2,)), workers=1, dtype="bfloat16", stages=1)
    lines = plan.emit().partition("def constants(self):")[2].partition("def forward")[0]
    assert "dtype=precision" in lines and lines.count("self.dtype") == 2  # what precision is, and the result


def test_one_line_is_rounded_at_its_end_too() -> None:
    class Ramp(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            return (self.linear(x) * (torch.arange(8).float() / 3).cos()).mean()

    plan = partita.optimize(Ramp(), (torch.zeros(4, 8),), partita.Machine.adhoc((1,)), workers=1, dtype="bfloat16")
    text = plan.emit()
    assert "torch.cos(torch.arange(8, device=mesh.device).to(precision) / 3).to(self.dtype)" in text
    assert "        precision = torch.promote_types(self.dtype, torch.float32)\n" in text


def test_buffers_are_read_in_every_step() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)
            self.register_buffer("scale", torch.ones(4))

        def forward(self, x: Tensor) -> Tensor:
            return (self.linear(x) * self.scale.exp()).mean()

    graph = capture(Scaled(), (torch.zeros(4, 4),))
    assert not built_once(graph)


class Rotary(nn.Module):
    """Angles of positions, from frequencies that no checkpoint has."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("frequencies", 0.1 ** torch.arange(4), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        angles = torch.arange(x.shape[1]).float()[:, None] * self.frequencies
        return (self.linear(x) * angles.sin()).square().mean()


def test_angles_of_far_positions_are_right_in_bfloat16(tmp_path: Path) -> None:
    module, x = Rotary(), torch.zeros(2, 300, 4)
    plan = partita.optimize(module, (x,), partita.Machine.adhoc((1,)), workers=1, dtype="bfloat16", stages=1)
    plan.save(tmp_path)
    program, mesh = load_program(tmp_path / "program.py"), SimpleNamespace(device=torch.device("cpu"))
    table = program.Model.constants(SimpleNamespace(mesh=mesh, dtype=torch.bfloat16))
    expected = (torch.arange(300.0)[:, None] * module.frequencies).sin()
    assert table.dtype == torch.bfloat16 and (table - expected).abs().max() < 2**-8
