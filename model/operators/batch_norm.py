"""Batch norm: channels (dim 1) normalized by their mean and variance over all other dims.

`moments` sums x and x² over the batch, so that the statistics of a split batch are addends, reduced by a conversion
like any other; or over each of p parts of the samples (`parts`), and gives the sums of every channel side by side.
`batch_norm` reads them and updates the running statistics `mean` and `var` in place, by one part after another.
`local_batch_norm` normalizes by each rank's own statistics: `n` is free, though samples are normalized together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from ..graph.pcg import Node
from . import sharded
from .algebra import Algebra
from .normalization import EPS
from .operator import Operator
from .sharded import WHOLE, Array, Attributes, Evaluation, IllTyped, Shape, ShardTasks, Signature

if TYPE_CHECKING:
    from torch import Tensor

_OPERANDS = ("x", "mean", "var", "w", "bias")


def values_per_channel(x: Node) -> int:
    """The number of values of `x` [n, c, d..] per channel."""
    return prod(x.shape) // x.shape[1]


def sums_per_channel(x: Node, sums: Node) -> int:
    """How many parts of the samples of `x` have sums of their own."""
    return sums.shape[1] // x.shape[1]


def _moments(node: Node, inputs: tuple[Node, ...]) -> str:
    _check_count(inputs[0])
    parts = node.get("parts", 1)
    if parts > 1:
        return f"y[k, (c p={parts})] = sum(n, d..) f(x[n, c, d..])[k, p]"
    return "y[k, c] = sum(n, d..) f(x[n, c, d..])[k]"


def _normalized(node: Node, inputs: tuple[Node, ...]) -> str:
    given = _given(node, ("x", "s"))
    sums = "s[:, (c :)]" if sums_per_channel(*inputs[:2]) > 1 else "s[:, c]"
    arguments = ["x[n, c, d..]", sums, *_running(given)]
    return f"y[n, c, d..] = f({', '.join(arguments)})" + _affine(given)


def _local(node: Node, inputs: tuple[Node, ...]) -> str:
    given = _given(node, ("x",))
    _check_count(inputs[0])
    rest = [f"d{i}" for i in range(len(node.shape) - 2)]
    arguments = [f"x[{', '.join(['n', 'c', *(':' for _ in rest)])}]", *_running(given)]
    inside = f"[{', '.join(rest)}]" if rest else ""
    return f"y[{', '.join(['n', 'c', *rest])}] = f({', '.join(arguments)}){inside}" + _affine(given)


def _given(node: Node, first: tuple[str, ...]) -> tuple[str, ...]:
    """The operands of a node; raises ValueError unless they are in order, with both running statistics or none."""
    given: tuple[str, ...] = node["operands"]
    allowed = (*first, *_OPERANDS[1:])
    if given[: len(first)] != first or given != tuple(name for name in allowed if name in given):
        raise ValueError(f"operands are some of {', '.join(allowed)} in this order, not {', '.join(given)}")
    if ("mean" in given) != ("var" in given):
        raise ValueError("give both running statistics or neither")
    return given


def _running(given: tuple[str, ...]) -> list[str]:
    return [f"{name}[c]" for name in ("mean", "var") if name in given]


def _affine(given: tuple[str, ...]) -> str:
    return (" * w[c]" if "w" in given else "") + (" + bias[c]" if "bias" in given else "")


def _check_count(x: Node) -> None:
    if len(x.shape) < 2:
        raise ValueError(f"a batch norm of shape {x.shape} has no channels")
    if values_per_channel(x) < 2:
        raise ValueError("a batch norm needs more than one value per channel")


def _emit_local(node: Node, names: Sequence[str]) -> str:
    given = dict(zip(node["operands"], names, strict=True))
    operands = ", ".join(given.get(name, "None") for name in _OPERANDS)
    return f"F.batch_norm({operands}, True, {node['momentum']!r}, {node['eps']!r})"


def _moments_reference(node: Node, x: Sequence[Tensor]) -> Tensor:
    """Sums of x and of its squares, per channel and part of the samples."""
    import torch

    dims = [d for d in range(x[0].dim()) if d != 1]
    sums = [torch.stack((part.sum(dims), part.pow(2).sum(dims))) for part in x[0].chunk(node.get("parts", 1))]
    return torch.stack(sums, 2).flatten(1)


def _batch_norm_reference(node: Node, x: Sequence[Tensor]) -> Tensor:
    """Normalize by the moments; running statistics change in place unless a conversion copied them."""
    import torch

    given = dict(zip(node["operands"], x, strict=True))
    sums = given["s"].unflatten(1, (given["x"].shape[1], -1)).unbind(2)
    samples = given["x"].chunk(len(sums))
    return torch.cat([_normalized_part(node, given | {"x": x, "s": s}) for x, s in zip(samples, sums, strict=True)])


def _normalized_part(node: Node, given: Mapping[str, Tensor]) -> Tensor:
    """Samples that are normalized together."""
    import torch

    count = given["x"].numel() // given["x"].shape[1]
    mean, square = given["s"] / count
    variance = square - mean**2
    if "mean" in given:
        with torch.no_grad():
            for running, now in ((given["mean"], mean), (given["var"], variance * count / (count - 1))):
                running += node["momentum"] * (now - running)

    def along(channels: Tensor) -> Tensor:
        return channels.reshape(1, -1, *[1] * (given["x"].dim() - 2))

    y: Tensor = (given["x"] - along(mean)) / along(variance + node["eps"]).sqrt()
    y = y * along(given["w"]) if "w" in given else y
    return y + along(given["bias"]) if "bias" in given else y


def _channels(x: Shape) -> tuple[str, ...]:
    if len(x) < 2:
        raise IllTyped(f"a tensor of shape {x} has no channels")
    return ("n", "c", *sharded.letters(len(x) - 2))


def _moments_shards(given: Attributes, shapes: Sequence[Shape]) -> Signature:
    """y[0, c] sums x, y[1, c] its squares."""
    (x,) = sharded.operands(shapes, 1)
    named = _channels(x)
    dims = tuple(d + 1 for d in range(len(x)) if d != 1)

    def local(t: ShardTasks, a: list[Array]) -> list[Array]:
        f = t.arithmetic
        return [np.stack([f.sum(a[0], dims), f.sum(f.mul(a[0], a[0]), dims)], 1)]

    return Signature((named,), ((WHOLE, "c"),), local, tuple(name for name in named if name != "c"))


def _batch_norm_shards(local_statistics: bool) -> Evaluation:
    """By the statistics of a shard, or by sums of the whole batch; running statistics are not updated."""
    first = ("x",) if local_statistics else ("x", "s")

    def evaluation(given: Attributes, shapes: Sequence[Shape]) -> Signature:
        every = (*first, "mean", "var", "w", "bias")
        given_operands = (
            sharded.named_operands(given, every, shapes)
            if "operands" in given
            else (*first, "w", "bias")[: len(shapes)]
        )
        named, x = _channels(shapes[0]), shapes[0]
        space = (WHOLE,) * (len(x) - 2) if local_statistics else named[2:]
        wide = ("n", "c", *space)
        count = given.get("count", prod(x) // x[1])

        def local(t: ShardTasks, a: list[Array]) -> list[Array]:
            f, values = t.arithmetic, dict(zip(given_operands, a, strict=True))
            x = values["x"]
            if local_statistics:
                dims = tuple(d for d in range(1, x.ndim) if d != 2)
                y = sharded.standardized(t, x, dims, True, given.get("eps", EPS))
            else:
                mean, square = np.moveaxis(f.scale(values["s"], Fraction(1, count)), 1, 0)
                variance = f.sub(square, f.mul(mean, mean))
                scale = sharded.by_channel(sharded.rsqrt(t, variance, given.get("eps", EPS)), x)
                y = f.mul(f.sub(x, sharded.by_channel(mean, x)), scale)
            y = f.mul(y, sharded.by_channel(values["w"], x)) if "w" in values else y
            return [f.add(y, sharded.by_channel(values["bias"], x)) if "bias" in values else y]

        others = tuple((WHOLE, "c") if name == "s" else ("c",) for name in given_operands[1:])
        return Signature((wide, *others), (wide,), local)

    return evaluation


OPERATORS = (
    # Two reductions read the input once each.
    Operator(
        "moments",
        ("x",),
        _moments,
        "moments({x})",
        saved=("x",),
        flops=lambda node, inputs: 3 * inputs[0].numel,
        passes=2,
        reference=_moments_reference,
        algebra=Algebra(_moments_shards),
    ),
    Operator(
        "batch_norm",
        ("x", "s", *_OPERANDS[1:]),
        _normalized,
        "batch_norm({x}, {s})",  # a helper of the program, which also takes the count
        saved=("x",),
        passes=1.5,
        updates=("mean", "var"),
        reference=_batch_norm_reference,
        algebra=Algebra(_batch_norm_shards(local_statistics=False)),
    ),
    Operator(
        "local_batch_norm",
        _OPERANDS,
        _local,
        _emit_local,
        saved=("x",),
        passes=2,
        updates=("mean", "var"),
        algebra=Algebra(_batch_norm_shards(local_statistics=True), unprovable="normalizes by what each rank has"),
    ),
)
