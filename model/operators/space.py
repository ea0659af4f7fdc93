"""Pooling and resampling of the last dims: whole along them, free elsewhere.

Attributes are called as the keywords of `torch.nn.functional`.
"""

from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import product
from math import prod

import numpy as np

from ..graph.pcg import Node
from . import sharded
from .algebra import Algebra
from .keywords import keywords, text
from .operator import Operator
from .sharded import WHOLE, Array, Attributes, Evaluation, IllTyped, Shape, ShardTasks, Signature


def _over_last(function: str, rank: Callable[[Node], int]) -> Callable[[Node, tuple[Node, ...]], str]:
    """`f` or `L` over the last `rank(node)` dims."""

    def notation(node: Node, inputs: tuple[Node, ...]) -> str:
        count = rank(node)
        space = ", ".join(f"s{d}" for d in range(count))
        return f"y[b.., {space}] = {function}(x[b.., {', '.join(':' * count)}])[{space}]"

    return notation


def _window_rank(node: Node) -> int:
    return len(node["kernel_size"])


def _adaptive_rank(node: Node) -> int:
    return len(node["output_size"])


def _window(node: Node, names: Sequence[str]) -> str:
    size = node["kernel_size"]
    defaults = {"stride": size, "padding": 0, "dilation": 1, "ceil_mode": False, "count_include_pad": True}
    given = keywords(node, defaults | {"divisor_override": None})
    return f"F.{node.op}{len(size)}d({names[0]}, {text(size)}{given})"


def _adaptive(node: Node, names: Sequence[str]) -> str:
    return f"F.{node.op}{_adaptive_rank(node)}d({names[0]}, {text(node['output_size'])})"


def _window_work(node: Node, inputs: tuple[Node, ...]) -> int:
    taps: int = prod(node["kernel_size"])
    return node.numel * taps


def _adaptive_work(node: Node, inputs: tuple[Node, ...]) -> int:
    return inputs[0].numel


def _interpolate(node: Node, names: Sequence[str]) -> str:
    defaults = {"size": None, "scale_factor": None, "mode": "nearest", "align_corners": None}
    return f"F.interpolate({names[0]}{keywords(node, defaults)})"


def _pool_shards(largest: bool) -> Evaluation:
    def evaluation(given: Attributes, shapes: Sequence[Shape]) -> Signature:
        (x,) = sharded.operands(shapes, 1)
        size = given["kernel_size"]
        count = len(x) - 2 if isinstance(size, int) else len(size)
        taps = sharded.numbers(size, count)
        stride, dilation = (
            sharded.numbers(given.get("stride", taps), count),
            sharded.numbers(given.get("dilation", 1), count),
        )
        pairs = sharded.paddings(given.get("padding", 0), taps, dilation)
        if given.get("ceil_mode"):
            raise IllTyped("pooling is evaluated without ceil_mode")
        divisor = given.get("divisor_override")
        inside_only = divisor is None and not given.get("count_include_pad", True)
        whole = (*sharded.letters(len(x) - count), *(WHOLE,) * count)

        def local(t: ShardTasks, a: list[Array]) -> list[Array]:
            f = t.arithmetic
            filled = f.lowest if largest else f.constant(0)
            wide = np.pad(a[0], ((0, 0),) * (a[0].ndim - count) + pairs, constant_values=filled)
            places = sharded.window_places(wide.shape[wide.ndim - count :], taps, stride, dilation)
            seen = [wide[sharded.window(tap, places, stride, dilation)] for tap in product(*map(range, taps))]
            if largest:
                return [np.max(seen, 0)]
            total = f.sum(np.stack(seen), 0)
            if not inside_only:
                return [f.scale(total, Fraction(1, divisor or prod(taps)))]
            inside = np.pad(np.ones_like(a[0]), ((0, 0),) * (a[0].ndim - count) + pairs)
            counted = np.sum(
                [inside[sharded.window(tap, places, stride, dilation)] for tap in product(*map(range, taps))], 0
            )
            return [f.mul(total, f.inverse(counted))]

        return Signature((whole,), (whole,), local)

    return evaluation


# Linear operators move input and output once forward and their gradients once backward; one pass would count both
# three times. A maximum also writes, keeps and reads int64 indices, which makes up for it with 2 x 2 windows in 32
# bits. Autograd also keeps the input of a mean, though only for its shape.
_LINEAR_PASSES = 2 / 3


def _sampled(node: Node, inputs: tuple[Node, ...]) -> str:
    """Every place of the result reads any places of its channel; `grid` says which."""
    own = ", ".join(f"s{d}" for d in range(len(node.shape) - 2))
    whole = ", ".join(":" for _ in range(len(node.shape) - 2))
    return f"y[n, c, {own}] = f(x[n, c, {whole}], grid[n, {own}, :])"


_POOLS = (
    ("{}_pool", _window_rank, _window, _window_work, _pool_shards),
    ("adaptive_{}_pool", _adaptive_rank, _adaptive, _adaptive_work, None),
)


OPERATORS = (
    *(
        Operator(
            *(name.format("max"), ("x",), _over_last("f", rank), emit),
            saved=("x", "indices"),
            flops=flops,
            algebra=Algebra(shards and shards(True)),
        )
        for name, rank, emit, flops, shards in _POOLS
    ),
    *(
        Operator(
            *(name.format("avg"), ("x",), _over_last("L", rank), emit),
            saved=("x",),
            flops=flops,
            passes=_LINEAR_PASSES,
            algebra=Algebra(shards and shards(False)),
        )
        for name, rank, emit, flops, shards in _POOLS
    ),
    Operator(
        "interpolate", ("x",), _over_last("L", lambda node: len(node.shape) - 2), _interpolate, passes=_LINEAR_PASSES
    ),
    Operator(
        "grid_sample",
        ("x", "grid"),
        _sampled,
        "torch.grid_sampler({x}, {grid}, {interpolation_mode}, {padding_mode}, {align_corners})",
        saved=("x", "grid"),
        flops=lambda node, inputs: 2 * 2 ** (len(node.shape) - 2) * node.numel,
        captures="aten::grid_sampler",
        attributes=("interpolation_mode", "padding_mode", "align_corners"),
    ),
)
