"""Capture of what vision models are made of: convolutions, pooling, group norms, resampling, activations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from partita.model.capture.capture import capture
from partita.model.errors import PartitaError
from partita.model.graph.pcg import PCG, Node

IMAGE = torch.zeros(4, 6, 7, 8)
LINE = torch.zeros(4, 6, 9)
SOLID = torch.zeros(4, 6, 4, 5, 6)


class Then(nn.Module):
    """A weight for every channel, then any function, with the modules that it needs."""

    def __init__(self, function: Callable[..., Any], *modules: nn.Module) -> None:
        super().__init__()
        self.channels = nn.Parameter(torch.ones(6))
        self.inner = nn.ModuleList(modules)
        self.function = function

    def forward(self, x: Tensor) -> Any:
        return self.function(x * self.channels.view(-1, *(1 for _ in x.shape[2:])), *self.inner)


def through(module: nn.Module) -> Then:
    return Then(lambda x, inner: inner(x), module)


def of(graph: PCG, op: str) -> Node:
    (index,) = graph.of(op)
    return graph.nodes[index]


CONVOLUTIONS: list[tuple[nn.Module, Tensor]] = [
    (nn.Conv2d(6, 4, 3), IMAGE),
    (nn.Conv2d(6, 4, (3, 2), stride=(1, 2), padding=1, dilation=(2, 1), groups=2, bias=False), IMAGE),
    (nn.Conv2d(6, 12, 3, padding="same", groups=6), IMAGE),
    (nn.Conv2d(6, 6, 2, padding="same"), IMAGE),
    (nn.Conv1d(6, 4, 3, padding="valid", stride=2), LINE),
    (nn.Conv3d(6, 4, (1, 2, 3), padding=(0, 1, 1), groups=2), SOLID),
    (nn.ConvTranspose2d(6, 4, 3, stride=2, padding=1, output_padding=1, groups=2), IMAGE),
    (nn.ConvTranspose1d(6, 4, 2, dilation=2, bias=False), LINE),
    (nn.ConvTranspose3d(6, 3, 2, groups=3), SOLID),
]


@pytest.mark.parametrize(("module", "x"), CONVOLUTIONS)
def test_convolutions(module: nn.Module, x: Tensor, agrees: Any) -> None:
    graph = agrees(through(module), (x,))
    transposed = "Transpose" in type(module).__name__
    node = of(graph, "conv_transpose" if transposed else "conv")
    assert (node.name, node["groups"]) == ("inner.0", module.groups)


def test_one_sample_without_its_dim(agrees: Any) -> None:
    class Single(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Conv2d(6, 4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x[0]) + self.inner(x[1])

    graph = agrees(Single(), (IMAGE,))
    assert {graph.nodes[i].shape for i in graph.of("conv")} == {(1, 4, 5, 6)}


POOLS: list[tuple[nn.Module, Tensor, str]] = [
    (nn.MaxPool2d(3, 2, 1), IMAGE, "max_pool"),
    (nn.MaxPool2d((2, 3), dilation=2, ceil_mode=True), IMAGE, "max_pool"),
    (nn.MaxPool1d(2), LINE, "max_pool"),
    (nn.MaxPool3d(2, padding=1), SOLID, "max_pool"),
    (nn.AvgPool2d(3, 2, 1, ceil_mode=True, count_include_pad=False), IMAGE, "avg_pool"),
    (nn.AvgPool2d(2, divisor_override=3), IMAGE, "avg_pool"),
    (nn.AvgPool1d(3, 1), LINE, "avg_pool"),
    (nn.AvgPool3d(2), SOLID, "avg_pool"),
    (nn.AdaptiveAvgPool2d((3, None)), IMAGE, "adaptive_avg_pool"),
    (nn.AdaptiveAvgPool1d(4), LINE, "adaptive_avg_pool"),
    (nn.AdaptiveAvgPool2d(1), IMAGE, "mean"),
    (nn.AdaptiveAvgPool3d(1), SOLID, "mean"),
    (nn.AdaptiveMaxPool2d(3), IMAGE, "adaptive_max_pool"),
    (nn.AdaptiveMaxPool1d(1), LINE, "adaptive_max_pool"),
]


@pytest.mark.parametrize(("module", "x", "op"), POOLS)
def test_pools(module: nn.Module, x: Tensor, op: str, agrees: Any) -> None:
    assert of(agrees(through(module), (x,)), op).name == "inner.0"


def test_indices_of_a_maximum(agrees: Any) -> None:
    """Unread they do not matter; read they are refused."""
    pool = nn.MaxPool2d(2, return_indices=True)
    agrees(Then(lambda x, inner: inner(x), pool), (IMAGE,))
    with pytest.raises(PartitaError, match=r"output 1 of operator aten.max_pool2d_with_indices.* in module"):
        capture(Then(lambda x, inner: inner(x)[0] * inner(x)[1], pool), (IMAGE,), loss="projection")


NORMS: list[tuple[nn.Module, Tensor, int]] = [
    (nn.GroupNorm(3, 6), IMAGE, 3),
    (nn.GroupNorm(1, 6, affine=False), LINE, 1),
    (nn.InstanceNorm2d(6), IMAGE, 6),
    (nn.InstanceNorm1d(6, affine=True), LINE, 6),
    (nn.GroupNorm(2, 6, bias=False), SOLID, 2),
]


@pytest.mark.parametrize(("module", "x", "groups"), NORMS)
def test_group_norms(module: nn.Module, x: Tensor, groups: int, agrees: Any) -> None:
    assert of(agrees(through(module), (x,)), "group_norm")["groups"] == groups


SIZES: list[tuple[Tensor, dict[str, Any]]] = [
    (IMAGE, {"scale_factor": 2}),
    (IMAGE, {"scale_factor": 1.5}),
    (IMAGE, {"size": (5, 9), "mode": "bilinear"}),
    (IMAGE, {"scale_factor": (1.5, 0.7), "mode": "bilinear", "align_corners": False}),
    (IMAGE, {"scale_factor": 1.5, "mode": "bilinear", "align_corners": True}),
    (IMAGE, {"scale_factor": 1.3, "mode": "bicubic", "recompute_scale_factor": True}),
    (IMAGE, {"size": 5, "mode": "nearest-exact"}),
    (IMAGE, {"size": (3, 4), "mode": "area"}),
    (LINE, {"size": 5, "mode": "linear"}),
    (SOLID, {"scale_factor": 2.0, "mode": "trilinear"}),
]


@pytest.mark.parametrize(("x", "options"), SIZES)
def test_interpolation(x: Tensor, options: dict[str, Any], agrees: Any) -> None:
    op = "adaptive_avg_pool" if options.get("mode") == "area" else "interpolate"
    assert of(agrees(Then(lambda x: F.interpolate(x, **options)), (x,)), op)


def shuffled(x: Tensor) -> Tensor:
    y = F.pixel_shuffle(x.repeat(1, 2, 1, 1), 2)
    return F.pixel_unshuffle(y, 2) * F.channel_shuffle(x, 3).repeat(1, 2, 1, 1)


def activations(x: Tensor, one: nn.Module, each: nn.Module) -> Tensor:
    y = F.relu6(x * 9) + F.hardtanh(x, -0.3, 0.2) + F.hardswish(x * 3) + F.hardsigmoid(x * 3) + F.mish(x)
    return y * one(x) + F.selu(each(x)) + F.celu(x, 0.5) + F.logsigmoid(x) + F.softsign(x)


def in_place(x: Tensor) -> Tensor:
    y = F.relu6(x * 9, inplace=True) + F.selu(x * 2, inplace=True)
    return F.max_pool2d(F.hardtanh(y, inplace=True), 2)


@pytest.mark.parametrize(
    ("function", "modules"),
    [(shuffled, ()), (activations, (nn.PReLU(), nn.PReLU(6))), (in_place, ())],
    ids=["shuffled", "activations", "in_place"],
)
def test_functions(function: Callable[..., Any], modules: tuple[nn.Module, ...], agrees: Any) -> None:
    agrees(Then(function, *modules), (IMAGE,))


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (
            nn.InstanceNorm2d(6, track_running_stats=True),
            "an instance norm with running statistics in module 'inner.0'",
        ),
        (nn.FractionalMaxPool2d(2, 2), r"aten.*in module 'inner.0', at .*test_space.py"),
    ],
)
def test_refusals(module: nn.Module, words: str) -> None:
    with pytest.raises(PartitaError, match=words):
        capture(through(module), (IMAGE,), allow_unknown=False, loss="projection")
