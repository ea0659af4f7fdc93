"""Random modules on random machines, the same for a seed: small, but how tensors are split matters."""

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from random import Random
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..model.machine.machine import Device, Level, Machine

Block = tuple[Any, ...]
"""The kind of a block and its sizes; see `Net`."""

SIZES = (2, 3, 4, 6, 8, 12, 16, 24, 48, 96, 192)
BATCHES = (2, 3, 4, 6, 8, 12)
HIERARCHIES = (
    (2,), (3,), (4,), (6,), (8,), (2, 2), (2, 3), (3, 2), (2, 4), (4, 2), (2, 2, 2), (2, 5), (3, 3), (2, 6), (3, 4),
    (2, 2, 3), (4, 4), (2, 8), (2, 2, 4), (2, 2, 2, 2),
)  # fmt: skip


class Net(nn.Module):
    """Blocks one after the other, on samples of tokens, vectors, sequences of vectors, or images.

    embedding COUNT WIDTH, linear IN OUT, residual WIDTH HIDDEN, shared WIDTH (one matrix, twice), branches JOIN IN
    OUT... (JOIN: add or cat), attention WIDTH HEADS, norm WIDTH, convolution IN OUT, pool, tied (logits by the
    embedding), dropout P.
    """

    def __init__(self, *blocks: Block) -> None:
        super().__init__()
        self.blocks = blocks
        self.parts = nn.ModuleList(nn.ModuleList(_modules(*block)) for block in blocks)

    def forward(self, x: Tensor) -> Tensor:
        """A batch through all blocks."""
        for (kind, *sizes), parts in zip(self.blocks, self.parts, strict=True):
            assert isinstance(parts, nn.ModuleList)
            if kind == "tied":
                table = next(part for part in self.modules() if isinstance(part, nn.Embedding))
                x = F.linear(x, table.weight)
            else:
                x = _applied(kind, sizes, parts, x)
        return x


def _modules(kind: str, *sizes: Any) -> list[nn.Module]:
    match kind, *sizes:
        case "embedding", count, width:
            return [nn.Embedding(count, width)]
        case "linear", width, out:
            return [nn.Linear(width, out)]
        case "residual", width, hidden:
            return [nn.Linear(width, hidden), nn.Linear(hidden, width)]
        case "shared", width:
            return [nn.Linear(width, width, bias=False)]
        case "branches", _, width, *outs:
            return [nn.Linear(width, out) for out in outs]
        case "attention", width, _:
            return [nn.Linear(width, 3 * width), nn.Linear(width, width)]
        case "norm", width:
            return [nn.LayerNorm(width)]
        case "convolution", channels, out:
            return [nn.Conv2d(channels, out, 3, padding=1)]
        case "dropout", p:
            return [nn.Dropout(p)]
        case ("pool" | "tied",):
            return []
    raise AssertionError((kind, sizes))


def _applied(kind: str, sizes: Sequence[Any], parts: nn.ModuleList, x: Tensor) -> Tensor:
    y: Tensor
    match kind:
        case "residual":
            y = x + parts[1](F.gelu(parts[0](x)))
        case "shared":
            y = parts[0](torch.relu(parts[0](x)))
        case "branches":
            made = [part(x) for part in parts]
            y = torch.cat(made, -1) if sizes[0] == "cat" else torch.stack(made).sum(0)
        case "attention":
            width, heads = sizes
            q, k, v = (t.unflatten(-1, (heads, -1)).transpose(1, 2) for t in parts[0](x).split(width, -1))
            y = parts[1](F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        case "pool":
            y = x.mean((2, 3))
        case "linear" | "convolution":
            y = torch.relu(parts[0](x))
        case _:
            y = parts[0](x)
    return y


def random_module(rng: Random) -> tuple[Net, Tensor]:
    """A module and an example batch, whose size is that of a step."""
    batch, form = rng.choice(BATCHES), rng.choice(("vector", "vector", "sequence", "tokens", "image"))
    width, length = rng.choice(SIZES), rng.choice((2, 4, 6, 12))
    blocks: list[Block] = []
    shape: tuple[int, ...] = (batch, width)
    if form == "image":
        channels, side = rng.choice((2, 3, 4)), rng.choice((4, 6, 8))
        shape, width = (batch, channels, side, side), rng.choice(SIZES[:6])
        deep = [("convolution", width, width)] * rng.randint(0, 1)
        blocks += [("convolution", channels, width), *deep, ("pool",)]
    elif form == "tokens":
        shape, count = (batch, length), rng.choice((12, 48, 60))
        blocks.append(("embedding", count, width))
    elif form == "sequence":
        shape = (batch, length, width)
    for _ in range(rng.choice((1, 1, 2, 2, 3))):
        block, width = _random_block(rng, width, sequence=form in ("tokens", "sequence"))
        blocks += [block] * (rng.choice((1, 1, 3)) if block[0] in ("residual", "shared") else 1)  # deep: for pipelines
    if form == "tokens" and rng.random() < 0.4:
        blocks += [("linear", width, blocks[0][2]), ("tied",)]
    return Net(*blocks), torch.zeros(shape, dtype=torch.int64 if form == "tokens" else torch.float32)


def _random_block(rng: Random, width: int, sequence: bool) -> tuple[Block, int]:
    """A block and the width of what it returns."""
    kind = rng.choice(("linear", "residual", "shared", "branches", "norm", *(["attention"] if sequence else [])))
    other = rng.choice(SIZES)
    if kind == "linear":
        return (kind, width, other), other
    if kind == "residual":
        return (kind, width, other), width
    if kind == "branches":
        join, count = rng.choice(("add", "cat")), rng.randint(2, 3)
        outs = [other] * count if join == "add" else [rng.choice(SIZES) for _ in range(count)]
        return (kind, join, width, *outs), other if join == "add" else sum(outs)
    if kind == "attention":
        return (kind, width, rng.choice([n for n in (1, 2, 3, 4) if width % n == 0])), width
    return (kind, width), width


def random_machine(rng: Random) -> Machine:
    """Two to sixteen slow devices with ample memory; every level's links have a speed of their own."""
    hierarchy = rng.choice(HIERARCHIES)
    device = Device(
        name="slow",
        memory_bytes=2**34,
        reserved_bytes=0,
        memory_bandwidth=10 ** rng.uniform(9, 11),
        peak={"float32": 10 ** rng.uniform(8, 11)},
        matmul_efficiency=1.0,
        launch_ns=rng.choice((0.0, 0.0, 100.0, 5000.0)),
        host_bandwidth=10 ** rng.uniform(8, 10),
    )
    levels = tuple(
        Level(f"level{i}", size, 10 ** rng.uniform(6, 11), rng.choice((0.0, 10.0, 1000.0, 20000.0)))
        for i, size in enumerate(hierarchy)
    )
    return Machine("random", levels, device, rng.choice(("nccl-ring", "nccl-tree")))


def with_memory(machine: Machine, memory_bytes: int) -> Machine:
    """The machine with so much memory on every device."""
    return replace(machine, device=replace(machine.device, memory_bytes=memory_bytes))


def random_mesh(rng: Random, devices: int, most_axes: int) -> tuple[int, ...]:
    """Sizes of axes that multiply to a number of devices, in any order."""
    sizes: list[int] = []
    left = devices
    while left > 1 and len(sizes) < most_axes - 1 and rng.random() < 0.75:
        sizes.append(rng.choice([d for d in range(2, left + 1) if left % d == 0]))
        left //= sizes[-1]
    sizes += [left] if left > 1 or not sizes else []
    rng.shuffle(sizes)
    assert prod(sizes) == devices
    return tuple(sizes)
