"""Segments: the entries of lists of layers that can run twice, and those that cannot."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest
import torch
from torch import Tensor, nn

from partita.model.capture.capture import capture
from partita.model.capture.load import load_module
from partita.model.graph.batch import with_batch
from partita.model.graph.pcg import PCG
from partita.model.graph.recycling import twins
from partita.model.graph.segments import segments

from ..levels import some

SWIN = [f"stages.0.blocks.{i}" for i in range(2)] + ["merges.0"] + [f"stages.1.blocks.{i}" for i in range(4)]


@cache
def twin_of(name: str) -> PCG:
    module, inputs = load_module(name, small=True)
    return capture(module, inputs, batch=4)


def names(graph: PCG) -> list[str]:
    return [segment.name for segment in segments(graph)]


@pytest.mark.parametrize(
    ("model", "found"),
    some(
        [
            ("gpt2", ["layers.0", "layers.1", "layers.2"]),
            ("mbart-4.7b", ["encoder.0", "encoder.1", "decoder.0", "decoder.1"]),
            # A stage only holds blocks, so these are the segments.
            ("swin-1.8b", SWIN),
            ("alphafold2-87m", ["layers.0", "layers.1"]),
            ("resnext-50", []),  # running statistics
            ("mlp", []),  # a linear keeps what it reads, which a neighbour gives
            ("dlrm", []),
        ]
    ),
)
def test_segments_of_the_zoo(model: str, found: list[str]) -> None:
    graph = twin_of(model)
    assert names(graph) == found
    assert segments(with_batch(graph, 8)) == segments(graph)
    nodes = [i for segment in segments(graph) for i in segment.nodes]
    assert len(nodes) == len(set(nodes)) and twins(graph).keys().isdisjoint(nodes)


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.down(torch.tanh(self.up(x)))
        return y


class Model(nn.Module):
    def __init__(self, run: Callable[[nn.ModuleList, Tensor], Tensor], *others: nn.Module) -> None:
        super().__init__()
        self.layers, self.run = nn.ModuleList([Layer(), Layer(), *others]), run

    def forward(self, x: Tensor) -> Tensor:
        return self.run(self.layers, x).square().mean()


def chain(layers: nn.ModuleList, x: Tensor) -> Tensor:
    for layer in layers:
        x = torch.relu(layer(x))
    return x


def twice(layers: nn.ModuleList, x: Tensor) -> Tensor:
    return chain(layers, chain(layers, x))


def across(layers: nn.ModuleList, x: Tensor) -> Tensor:
    """What the first layer computes leads through the second one back into it."""
    up: nn.Module = layers[0].up  # type: ignore[assignment]
    down: nn.Module = layers[0].down  # type: ignore[assignment]
    y: Tensor = down(layers[1](up(x)[:, :8])[:, :1] + up(x))
    return y


def tied(layers: nn.ModuleList, x: Tensor) -> Tensor:
    weight: Tensor = layers[1].up.weight  # type: ignore[union-attr, assignment]
    return chain(layers, x) @ weight.T


def without_gradient(layers: nn.ModuleList, x: Tensor) -> Tensor:
    with torch.no_grad():
        x = layers[0](x)
    return torch.relu(layers[1](x))


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.norm = nn.Linear(8, 8), nn.BatchNorm1d(8)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.norm(self.up(x)))


@pytest.mark.parametrize(
    ("run", "others", "found"),
    [
        (chain, (), ["layers.0", "layers.1"]),
        (chain, (nn.Linear(8, 8), nn.Tanh(), Normed()), ["layers.0", "layers.1"]),
        (twice, (), []),
        (across, (), ["layers.1"]),
        (tied, (), ["layers.0"]),
        (without_gradient, (), ["layers.1"]),
    ],
)
def test_what_cannot_run_twice(
    run: Callable[[nn.ModuleList, Tensor], Tensor], others: tuple[nn.Module, ...], found: list[str]
) -> None:
    graph = capture(Model(run, *others), (torch.zeros(4, 8),))
    assert names(graph) == found


def test_glue_belongs_to_the_entry_before() -> None:
    """The relu between two layers runs with the former; after the last one there is no next entry."""
    graph = capture(Model(chain), (torch.zeros(4, 8),))
    assert [[graph.nodes[i].op for i in segment.nodes] for segment in segments(graph)] == [
        ["linear", "tanh", "linear", "relu"],
        ["linear", "tanh", "linear"],
    ]
