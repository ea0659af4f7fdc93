"""Swin Transformer (Liu et al., ICCV'21): attention inside the windows of an image, from fine maps to coarse ones.

Sizes are those of SuperScaler's table 2 on images of 1536 x 1536. As in its code, windows have 48 x 48 patches, hidden
size and heads are those of the first of four stages (a stage has twice the width and heads of the one before), and of
the layers two are in each of the first two stages and in the last, the others in the third. For swin-6.6b and -13b the
last has four here, since the parameters are then 6.6 and 13.3 billion (with two, 5.9 and 12.1). The other two sizes
have 1.8 and 30.7 billion. There is no dropout and no stochastic depth.
"""

from math import inf

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .entry import IMAGES, Entry, superscaler


def cut(x: Tensor, size: int) -> Tensor:
    """Squares of a map: [batch, height, width, channel] to [batch, rows, columns, places, channel]."""
    x = torch.unflatten(torch.unflatten(x, 2, (-1, size)), 1, (-1, size))
    return x.transpose(2, 3).flatten(3, 4)


def join(x: Tensor, size: int) -> Tensor:
    """The map of squares: the inverse of `cut`."""
    x = torch.unflatten(x, 3, (size, size)).transpose(2, 3)
    return x.flatten(3, 4).flatten(1, 2)


def offsets(size: int) -> Tensor:
    """For every two places of a square the number of their offset, of (2 * size - 1)^2; [size^2, size^2]."""
    place = torch.arange(size * size)
    row, column = place // size, place % size
    down, right = row[:, None] - row + size - 1, column[:, None] - column + size - 1
    return down * (2 * size - 1) + right


def visible(side: int, size: int, shift: int) -> Tensor:
    """Which places of a window see each other after a cyclic shift: those that were neighbours before.

    [rows, columns, 1, places, places]; the 1 stands for the heads.
    """
    place = torch.arange(side)
    strip = (place >= side - size).long() + (place >= side - shift).long()
    region = cut((3 * strip[:, None] + strip)[None, :, :, None], size)[0, ..., 0]
    return (region[..., None, :] == region[..., None])[:, :, None]


class Attention(nn.Module):
    """Every patch looks at those of its window; a learned bias for their offset is added to the scores."""

    def __init__(self, width: int, heads: int, window: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.offset_bias = nn.Embedding((2 * window - 1) ** 2, heads)
        self.output = nn.Linear(width, width)

    def forward(self, x: Tensor, offsets: Tensor, visible: Tensor | None) -> Tensor:
        """`x` is [batch, rows, columns, places, channel], as `cut` makes it."""
        q, k, v = (t.transpose(-3, -2) for t in self.qkv(x).unflatten(-1, (3, self.heads, -1)).unbind(-3))
        bias = self.offset_bias(offsets).permute(2, 0, 1)
        if visible is not None:
            bias = torch.where(visible, bias, -inf)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        result: Tensor = self.output(y.transpose(-3, -2).flatten(-2))
        return result


class Block(nn.Module):
    """Attention in windows, which are moved by `shift`, and a perceptron, each normalized before."""

    def __init__(self, width: int, heads: int, window: int, shift: int) -> None:
        super().__init__()
        self.window, self.shift = window, shift
        self.attention_norm = nn.LayerNorm(width)
        self.attention = Attention(width, heads, window)
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor, offsets: Tensor, visible: Tensor | None) -> Tensor:
        x = x + self.attend(self.attention_norm(x), offsets, visible)
        x = x + self.down(F.gelu(self.up(self.norm(x))))
        return x

    def attend(self, x: Tensor, offsets: Tensor, visible: Tensor | None) -> Tensor:
        if not self.shift:
            return join(self.attention(cut(x, self.window), offsets, None), self.window)
        x = torch.roll(x, (-self.shift, -self.shift), (1, 2))
        x = join(self.attention(cut(x, self.window), offsets, visible), self.window)
        return torch.roll(x, (self.shift, self.shift), (1, 2))


class Merge(nn.Module):
    """Four neighbours become one of twice the width."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4 * width)
        self.reduction = nn.Linear(4 * width, 2 * width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.reduction(self.norm(cut(x, 2).flatten(-2)))
        return result


class Stage(nn.Module):
    """Blocks on a map of one resolution; in every second one the windows are moved, if there is more than one."""

    visible: Tensor | None

    def __init__(self, side: int, depth: int, width: int, heads: int, window: int) -> None:
        super().__init__()
        shift = window // 2 if side > window else 0
        self.blocks = nn.ModuleList(Block(width, heads, window, shift * (i % 2)) for i in range(depth))
        self.register_buffer("visible", visible(side, window, shift) if shift else None, persistent=False)

    def forward(self, x: Tensor, offsets: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x, offsets, self.visible)
        return x


class Swin(nn.Module):
    """Scores of the class of an image, from the mean over the last map."""

    offsets: Tensor

    def __init__(
        self,
        width: int,
        heads: int,
        depths: tuple[int, ...],
        resolution: int = 1536,
        patch: int = 4,
        window: int = 48,
        classes: int = 1000,
    ) -> None:
        super().__init__()
        self.patch = patch
        self.register_buffer("offsets", offsets(window), persistent=False)
        self.embedding = nn.Linear(3 * patch * patch, width)
        self.embedding_norm = nn.LayerNorm(width)
        self.stages = nn.ModuleList(
            Stage(resolution // patch >> i, depth, width << i, heads << i, window) for i, depth in enumerate(depths)
        )
        self.merges = nn.ModuleList(Merge(width << i) for i in range(len(depths) - 1))
        self.norm = nn.LayerNorm(width << len(depths) - 1)
        self.scores = nn.Linear(width << len(depths) - 1, classes)

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        """[batch, 3, resolution, resolution] and [batch]. Mean cross entropy with smoothed labels."""
        x = cut(images.permute(0, 2, 3, 1), self.patch).flatten(-2)
        x = self.stages[0](self.embedding_norm(self.embedding(x)), self.offsets)
        for merge, stage in zip(self.merges, self.stages[1:], strict=True):
            x = stage(merge(x), self.offsets)
        scores = self.scores(self.norm(x).mean((1, 2)))
        return F.cross_entropy(scores, labels, label_smoothing=0.1)


def _swin(depths: tuple[int, ...], width: int, heads: int, nodes: int) -> Entry:
    return superscaler(
        Swin,
        {"width": width, "heads": heads, "depths": depths},
        {"width": 12, "heads": 4, "depths": (2, 4), "resolution": 24, "patch": 2, "window": 3, "classes": 10},
        IMAGES,
        nodes=nodes,
    )


ENTRIES = {
    "swin-1.8b": _swin((2, 2, 26, 2), 512, 16, 1),
    "swin-6.6b": _swin((2, 2, 40, 4), 768, 24, 1),
    "swin-13b": _swin((2, 2, 48, 4), 1024, 32, 2),
    "swin-30b": _swin((2, 2, 58, 2), 1536, 32, 4),
}
