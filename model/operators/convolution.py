"""Convolutions of 1 to 3 spatial dims: whole along space where windows span several places, a product elsewhere.

Unfolding a window, or folding it back, is linear and needs all of space. The rest is a product over the channels of
each group, so samples, groups, output channels and (as addends) input channels can be split, and space where windows
are single places. Attributes are named like the keywords of `torch.nn.functional`.
"""

from collections.abc import Callable, Sequence
from itertools import product
from math import prod
from typing import Any

import numpy as np

from ..graph.pcg import Node
from . import sharded
from .algebra import Algebra, Rewriting, require
from .keywords import keywords
from .operator import Operator
from .sharded import WHOLE, Array, Attributes, IllTyped, Shape, ShardTasks, Signature

CONVOLUTIONS = ("conv", "conv_transpose")
_DEFAULTS = {"stride": 1, "padding": 0, "output_padding": 0, "groups": 1, "dilation": 1}


def _product(channels: str) -> Callable[[Node, tuple[Node, ...]], str]:
    """The notation where the kernel has these channel dims: `c` into, `o` out of each group `g`."""

    def notation(node: Node, inputs: tuple[Node, ...]) -> str:
        dims = range(len(node.shape) - 2)
        single = [_single(node, inputs[1].shape[2 + d], d) for d in dims]
        space, taps = (", ".join(f"{letter}{d}" for d in dims) for letter in "sk")
        read = ", ".join(f"s{d}" if single[d] else ":" for d in dims)
        unfolded = ", ".join(f"{letter}{d}" for letter in "sk" for d in dims if not single[d])
        x = f"x[n, (g c), {read}]" if all(single) else f"L(x[n, (g c), {read}])[{unfolded}]"
        line = f"y[n, (g o), {space}] = sum(c, {taps}) {x} * w[{channels}, {taps}] + bias[(g o)]"
        return line if node["groups"] > 1 else line.replace("(g c)", "c").replace("(g o)", "o")

    return notation


def _single(node: Node, taps: int, d: int) -> bool:
    """True if every output place along a spatial dim reads only the same input place."""
    return taps == 1 and node["stride"][d] == 1 and (node["padding"] == "same" or not node["padding"][d])


def _work(node: Node, inputs: tuple[Node, ...]) -> int:
    """Every tap meets every place of the output (transposed: of the input), for all channels of the other side."""
    x, w = inputs[:2]
    places = x if node.op == "conv_transpose" else node
    return 2 * places.numel * w.shape[1] * prod(w.shape[2:]) + node.numel


def _emit(node: Node, names: Sequence[str]) -> str:
    return f"F.{node.op}{len(node.shape) - 2}d({', '.join(names)}{keywords(node, _DEFAULTS)})"


def _conv_shards(given: Attributes, shapes: Sequence[Shape]) -> Signature:
    x, w, *bias = sharded.operands(shapes, 2, 3)
    count, groups = len(x) - 2, given.get("groups", 1)
    if count < 1 or len(w) != len(x) or x[1] != w[1] * groups or w[0] % groups:
        raise IllTyped(f"a convolution in {groups} groups of {x} with {w}")
    stride, dilation = (sharded.numbers(given.get(name, 1), count) for name in ("stride", "dilation"))
    pairs = sharded.paddings(given.get("padding", 0), w[2:], dilation)
    single = [k == 1 and s == 1 and p == (0, 0) for k, s, p in zip(w[2:], stride, pairs, strict=True)]
    space = tuple(name if one else WHOLE for name, one in zip(sharded.letters(count), single, strict=True))
    inner, outer = ("g", "g") if groups > 1 else ("c", "o")
    filters = (outer, WHOLE if groups > 1 else "c", *(WHOLE,) * count)

    def local(t: ShardTasks, a: list[Array]) -> list[Array]:
        f, part = t.arithmetic, t.degree("g")
        if groups % part:
            raise IllTyped(f"{groups} groups cannot be split {part} times")
        here = groups // part
        tasks, samples, taps = a[0].shape[0], a[0].shape[1], a[1].shape[3:]
        wide = np.pad(a[0], ((0, 0), (0, 0), (0, 0), *pairs))
        wide = wide.reshape(tasks, samples, here, -1, *wide.shape[3:])
        kernel = a[1].reshape(tasks, here, -1, *a[1].shape[2:])
        places = sharded.window_places(wide.shape[4:], taps, stride, dilation)
        y = None
        for tap in product(*map(range, taps)):
            seen = wide[sharded.window(tap, places, stride, dilation)]
            seen = seen.reshape(*seen.shape[:4], -1)
            last: Any = (..., *tap)
            term = f.einsum("tngcs,tgoc->tngos", seen, kernel[last])
            y = term if y is None else f.add(y, term)
        assert y is not None
        y = y.reshape(tasks, samples, -1, *places)
        return [sharded.activated(t, given, f.add(y, sharded.by_channel(a[2], y)) if bias else y)]

    inputs = (("n", inner, *space), filters, *((outer,) for _ in bias))
    return Signature(inputs, (("n", outer, *space),), local, ("c",) * (groups == 1), frozenset("g"))


def _conv_shape(shapes: Sequence[Shape], attributes: Attributes) -> Shape:
    x, w, *bias = shapes
    groups, padding = attributes["groups"], attributes["padding"]
    require(len(x) == len(w) and x[1] == w[1] * groups and w[0] % groups == 0 and all(b == (w[0],) for b in bias))
    space = []
    for d, size in enumerate(x[2:]):
        reach = attributes["dilation"][d] * (w[2 + d] - 1)
        around = reach if padding == "same" else 2 * padding[d]
        space.append((size + around - reach - 1) // attributes["stride"][d] + 1)
    require(all(size > 0 for size in space))
    return (x[0], w[0], *space)


_REWRITING = Rewriting(_conv_shape, {"dilation": None, "groups": 1, "padding": None, "stride": None})

OPERATORS = tuple(
    Operator(
        *(name, ("x", "w", "bias"), _product(channels), _emit),
        saved=("x", "w"),
        flops=_work,
        matmul=True,
        algebra=Algebra(evaluation),
        rewriting=rewriting,
    )
    for name, channels, evaluation, rewriting in (
        ("conv", "(g o), c", _conv_shards, _REWRITING),
        ("conv_transpose", "(g c), o", None, None),
    )
)
