"""Loops over blocks that hand on several values, that read an encoder's output, or that run more than once."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from partita.codegen.plan.choice import Choice
from partita.codegen.plan.plan import Plan
from partita.codegen.planner.plan_graph import plan_graph
from partita.codegen.verification.verify import verify
from partita.formulation.search_space import SearchSpace
from partita.model.capture.capture import capture
from partita.model.graph.layout import R
from partita.model.machine.machine import Level, Machine
from partita.model.training import Training

from ..levels import some

Force = Callable[..., Plan]
BATCH, PLACES, WIDTH = 4, 6, 8


def slow(sizes: tuple[int, ...]) -> Machine:
    """Devices so slow that it pays to split."""
    device = Machine.adhoc((1,)).device
    device = replace(
        device, peak=dict.fromkeys(device.peak, 1e9), memory_bandwidth=1e9, launch_ns=100, reserved_bytes=0
    )
    return Machine("slow", tuple(Level(f"level{k}", n, 8e10, 100) for k, n in enumerate(sizes)), device)


def planned(module: nn.Module, inputs: tuple[Tensor, ...], mesh: tuple[int, ...] = (2, 2)) -> Plan:
    """Without overlap: the first layer, which hides nothing, may be planned otherwise than its equals."""
    space = SearchSpace(mesh=mesh, stages=1, overlap=False)
    return plan_graph(capture(module, inputs), slow(mesh), Training(BATCH, "float64", "adamw"), space)


def copies(plan: Plan) -> Plan:
    """The same plan with everything whole on every rank, so that equal layers are computed alike."""
    return replace(plan, choices=tuple(Choice(((R,),) * len(node.inputs), (R,)) for node in plan.graph.nodes))


def verified(plan: Plan, module: nn.Module, inputs: tuple[Tensor, ...]) -> str:
    """The plan's program, after its check beside the module."""
    verdict = verify(plan, module=module, inputs=inputs)
    assert verdict["ok"], f"{verdict['failure']}\n{plan}"
    return plan.emit()


class Perceptron(nn.Module):
    def __init__(self, dropout: float = 0.0, width: int = WIDTH) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.down(torch.relu(self.up(self.norm(x))))
        return self.dropout(y)


class Pair(nn.Module):
    """Two streams that read each other."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.left, self.right = Perceptron(dropout), Perceptron()
        self.mix = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        a = a + self.left(a + self.mix(b))
        b = b + self.right(a)
        return a, b


class Streams(nn.Module):
    """Pairs in a row, run `passes` times; all passes but the last without gradient where `recycling`.

    `both`: the head reads both streams; `hand_on`: a pass hands both to the next one.
    """

    def __init__(
        self,
        layers: int = 3,
        passes: int = 1,
        recycling: bool = False,
        both: bool = True,
        hand_on: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.passes, self.recycling, self.both, self.hand_on = passes, recycling, both, hand_on
        self.left, self.right = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.layers = nn.ModuleList(Pair(dropout) for _ in range(layers))
        self.head = nn.Linear(WIDTH, WIDTH)

    def forward(self, given: Tensor) -> Tensor:
        a0, b0 = self.left(given), self.right(given)
        last, b = torch.zeros_like(a0), torch.zeros_like(b0)
        for i in range(self.passes):
            with torch.set_grad_enabled(i == self.passes - 1 or not self.recycling):
                a, b = a0 + self.norm(last), b0 + b if self.hand_on else b0
                for layer in self.layers:
                    a, b = layer(a, b)
                last = a
        return (self.head(a + b if self.both else a) ** 2).mean()


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.own = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        x = x + self.own(x)
        scores = self.query(x) @ self.key(memory).mT
        return x + scores.softmax(-1) @ memory


class EncoderDecoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.ModuleDict({"layers": nn.ModuleList(Perceptron() for _ in range(3))})
        self.decoder = nn.ModuleDict({"layers": nn.ModuleList(Decoder() for _ in range(3))})

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        for layer in self.encoder["layers"]:
            x = layer(x)
        for layer in self.decoder["layers"]:
            y = layer(y, x)
        return (y**2).mean()


class Stages(nn.Module):
    """Two stages of different width, each of equal blocks: lists in a list."""

    def __init__(self) -> None:
        super().__init__()
        self.stages = nn.ModuleList()
        for width in (WIDTH, 2 * WIDTH):
            blocks = [Perceptron(width=width) for _ in range(3)]
            self.stages.append(nn.Sequential(*blocks, nn.Linear(width, 2 * WIDTH)))

    def forward(self, x: Tensor) -> Tensor:
        for stage in self.stages:
            x = stage(x)
        return (x**2).mean()


X = torch.zeros(BATCH, PLACES, WIDTH)
MESHES = ((2,), (2, 2))


def forward_of(text: str) -> str:
    """The forward of the whole model, without its head."""
    return text.partition("class Model(")[2].partition("def forward(")[2].partition("# Weights, under")[0]


def loop(turn: str, indent: int = 8) -> str:
    return f"{' ' * indent}for layer in self.layers:\n{' ' * indent}    {turn}\n"


@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_blocks_hand_on_two_values(mesh: tuple[int, ...]) -> None:
    module = Streams()
    text = verified(planned(module, (X,), mesh), module, (X,))
    assert loop("x, y = layer(x, y)") in text
    assert text.count("class Layer") == 1 and "layers.0 to 2 of the model" in text
    assert len(text.splitlines()) == len(planned(Streams(layers=5), (X,), mesh).emit().splitlines())


def test_a_value_that_nobody_reads_is_handed_on_as_it_is() -> None:
    """The second stream's last update is not computed, since the head reads the first only."""
    module = Streams(both=False)
    text = verified(planned(module, (X,)), module, (X,))
    assert loop("x, y = layer(x, y)") in text
    last = text.partition("class LastLayer")[2].partition("class Model")[0]
    assert "layers.2 of the model" in last and "right" not in last and ", y\n" in last


@pytest.mark.parametrize("dropout", [0.0, 0.2])
@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_recycling(mesh: tuple[int, ...], dropout: float) -> None:
    """Three passes over the same blocks, two of them without gradient."""
    module = Streams(passes=3, recycling=True, hand_on=True, dropout=dropout)
    text = forward_of(verified(planned(module, (X,), mesh), module, (X,)))
    calls = [line.strip() for line in text.splitlines() if "layer(" in line]
    starts = ["", "", ""] if not dropout else [", 0", ", 3", ", 6"]
    assert calls == [f"x, y = layer(x, y{start})" for start in starts]
    assert text.count("with torch.no_grad():") == 1
    inside = text.partition("with torch.no_grad():\n")[2].split("\n        norm")[0]
    assert inside.count("for layer in self.layers") == 2 and "F.layer_norm" in inside


def test_passes_that_differ_have_methods_of_their_own() -> None:
    """Without gradient the last block's second stream is not computed."""
    module = Streams(passes=2, recycling=True)
    text = verified(planned(module, (X,)), module, (X,))
    assert "layer.pass1(x, y2)" in text and loop("x, y = layer(x, y)") in text
    assert text.count("    pass1 = forward\n") == 1 and text.count("def pass1(self, x, y)") == 1


@pytest.mark.parametrize("seed", some(range(6), 5))
@pytest.mark.parametrize("passes", [1, 3])
def test_any_layouts(force: Force, seed: int, passes: int) -> None:
    """Strategies at random, different in every block and every pass."""
    module = Streams(2, passes, recycling=True, hand_on=seed % 2 == 0, dropout=0.1 * (seed % 3))
    graph = capture(module, (X,))
    verified(force(graph, ((2,), (2, 2), (3,))[seed % 3], random.Random(seed)), module, (X,))


def test_passes_with_gradient(force: Force) -> None:
    """Where no weight is converted every pass is a loop; else the plan converts them once for all, before any loop."""
    module = Streams(2, passes=2, hand_on=True)
    drawn = force(capture(module, (X,)), (2,), random.Random(1))
    assert verified(copies(drawn), module, (X,)).count("for layer in self.layers:") == 2
    assert "for layer in" not in verified(drawn, module, (X,))


def test_encoder_and_decoder() -> None:
    module = EncoderDecoder()
    text = verified(planned(module, (X, X)), module, (X, X))
    assert [name in text for name in ("class EncoderLayer(", "class DecoderLayer(")] == [True, True]
    assert "            y = layer(y, x)\n" in text and "def forward(self, x, encoder):" in text


def test_lists_in_a_list() -> None:
    module = Stages()
    text = verified(copies(planned(module, (X,), (2,))), module, (X,))
    assert "for stage_0 in self.stages_0:" in text and "for stage_1 in self.stages_1:" in text
