"""Inception-v3 (Szegedy et al., CVPR'16), without the auxiliary head: blocks of parallel branches, concatenated.

Channels are the published ones divided by 16 and multiplied by `unit`.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .entry import IMAGES, unity


class Conv(nn.Module):
    """A convolution, batch norm and ReLU."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: int | tuple[int, int],
        stride: int = 1,
        padding: int | tuple[int, int] = 0,
    ) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride, padding, bias=False)
        self.norm = nn.BatchNorm2d(outputs, eps=1e-3)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.norm(self.conv(x)))


def row(inputs: int, outputs: int, length: int) -> Conv:
    """A convolution over `length` pixels of a row."""
    return Conv(inputs, outputs, (1, length), padding=(0, length // 2))


def column(inputs: int, outputs: int, length: int) -> Conv:
    """A convolution over `length` pixels of a column."""
    return Conv(inputs, outputs, (length, 1), padding=(length // 2, 0))


def average() -> nn.AvgPool2d:
    """The mean of each pixel's 3 x 3 neighbourhood."""
    return nn.AvgPool2d(3, stride=1, padding=1)


class Branches(nn.Module):
    """Parallel branches over the same input; their results are concatenated along the channels."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([branch(x) for branch in self.branches], 1)


def block_a(inputs: int, unit: int, pooled: int) -> tuple[nn.Module, int]:
    """Branches of 5 x 5, of two 3 x 3, and of a pool with `pooled` units of channels."""
    block = Branches(
        Conv(inputs, 4 * unit, 1),
        nn.Sequential(Conv(inputs, 3 * unit, 1), Conv(3 * unit, 4 * unit, 5, padding=2)),
        nn.Sequential(
            Conv(inputs, 4 * unit, 1), Conv(4 * unit, 6 * unit, 3, padding=1), Conv(6 * unit, 6 * unit, 3, padding=1)
        ),
        nn.Sequential(average(), Conv(inputs, pooled * unit, 1)),
    )
    return block, (14 + pooled) * unit


def block_b(inputs: int, unit: int) -> tuple[nn.Module, int]:
    """Halves the image."""
    block = Branches(
        Conv(inputs, 24 * unit, 3, stride=2),
        nn.Sequential(
            Conv(inputs, 4 * unit, 1), Conv(4 * unit, 6 * unit, 3, padding=1), Conv(6 * unit, 6 * unit, 3, stride=2)
        ),
        nn.MaxPool2d(3, stride=2),
    )
    return block, inputs + 30 * unit


def block_c(inputs: int, unit: int, middle: int) -> tuple[nn.Module, int]:
    """7 x 7 as rows and columns, once and twice, with `middle` units of channels between."""
    m, outputs = middle * unit, 12 * unit
    block = Branches(
        Conv(inputs, outputs, 1),
        nn.Sequential(Conv(inputs, m, 1), row(m, m, 7), column(m, outputs, 7)),
        nn.Sequential(Conv(inputs, m, 1), column(m, m, 7), row(m, m, 7), column(m, m, 7), row(m, outputs, 7)),
        nn.Sequential(average(), Conv(inputs, outputs, 1)),
    )
    return block, 4 * outputs


def block_d(inputs: int, unit: int) -> tuple[nn.Module, int]:
    """Halves the image again."""
    m = 12 * unit
    block = Branches(
        nn.Sequential(Conv(inputs, m, 1), Conv(m, 20 * unit, 3, stride=2)),
        nn.Sequential(Conv(inputs, m, 1), row(m, m, 7), column(m, m, 7), Conv(m, m, 3, stride=2)),
        nn.MaxPool2d(3, stride=2),
    )
    return block, inputs + 32 * unit


def block_e(inputs: int, unit: int) -> tuple[nn.Module, int]:
    """3 x 3 as parallel rows and columns, once and after a 3 x 3."""
    m = 24 * unit
    block = Branches(
        Conv(inputs, 20 * unit, 1),
        nn.Sequential(Conv(inputs, m, 1), Branches(row(m, m, 3), column(m, m, 3))),
        nn.Sequential(
            Conv(inputs, 28 * unit, 1), Conv(28 * unit, m, 3, padding=1), Branches(row(m, m, 3), column(m, m, 3))
        ),
        nn.Sequential(average(), Conv(inputs, 12 * unit, 1)),
    )
    return block, 128 * unit


BLOCKS: dict[str, Callable[..., tuple[nn.Module, int]]] = {
    "a": block_a,
    "b": block_b,
    "c": block_c,
    "d": block_d,
    "e": block_e,
}
"""How each kind of block is made of its input channels, the unit and its own sizes; also its output channels."""

FULL = (("a", 2), ("a", 4), ("a", 4), ("b",), ("c", 8), ("c", 10), ("c", 10), ("c", 12), ("d",), ("e",), ("e",))
ONE_OF_EACH = (("a", 2), ("b",), ("c", 4), ("d",), ("e",))


class Inception(nn.Module):
    """A stem that makes the image an eighth, then `blocks`: the kind of each and its own sizes."""

    def __init__(self, unit: int = 16, blocks: tuple[tuple[Any, ...], ...] = FULL, classes: int = 1000) -> None:
        super().__init__()
        stem = [
            Conv(3, 2 * unit, 3, stride=2),
            Conv(2 * unit, 2 * unit, 3),
            Conv(2 * unit, 4 * unit, 3, padding=1),
            nn.MaxPool2d(3, stride=2),
            Conv(4 * unit, 5 * unit, 1),
            Conv(5 * unit, 12 * unit, 3),
            nn.MaxPool2d(3, stride=2),
        ]
        self.stem = nn.Sequential(*stem)
        self.blocks = nn.ModuleList()
        channels = 12 * unit
        for kind, *sizes in blocks:
            block, channels = BLOCKS[kind](channels, unit, *sizes)
            self.blocks.append(block)
        self.average = nn.AdaptiveAvgPool2d(1)
        self.dropout = nn.Dropout(0.5)
        self.scores = nn.Linear(channels, classes)

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        """Images [batch, 3, height, width], labels [batch]. Mean cross entropy."""
        x = self.stem(images)
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.scores(self.dropout(self.average(x).flatten(1))), labels)


ENTRIES = {
    "inception-v3": unity(
        Inception,
        {"resolution": 299},
        {"unit": 1, "blocks": ONE_OF_EACH, "classes": 12, "resolution": 107},
        IMAGES,
        batch=64,
    ),
}
