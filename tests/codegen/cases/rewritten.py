"""Graphs in pairs: one as a module would give it, and one rewritten by hand that computes the same."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from partita.model.graph.builder import Builder
from partita.model.graph.pcg import PCG, SOURCES

BATCH, LENGTH = 4, 3


def joined(b: Builder, name: str, parts: dict[str, int], *rest: int, trainable: bool = True) -> int:
    """One parameter that stores several, name to rows, one below the other."""
    return b.parameter(name, (sum(parts.values()), *rest), trainable=trainable, joined=tuple(parts.items()))


def piece(b: Builder, x: int, dim: int, widths: tuple[int, ...], number: int) -> int:
    """One of the parts of a tensor: a `part` where they are equal, else a slice."""
    shape = list(b.nodes[x].shape)
    shape[dim] = widths[number]
    if len(set(widths)) == 1:
        return b.add("part", x, shape=shape, dim=dim, of=len(widths), number=number)
    start = sum(widths[:number])
    return b.add("slice", x, shape=shape, dim=dim, start=start, stop=start + widths[number], step=1)


def attended(b: Builder, x: int, merge: bool, widths: tuple[int, ...], layer: str = "", trainable: bool = True) -> int:
    """Self-attention over heads of 4, whose keys and values may have fewer heads; with a residual."""
    names, outer = "qkv", b.nodes[x].shape[:-1]
    if merge:
        parts = {f"{layer}{n}.weight": width for n, width in zip(names, widths, strict=True)}
        biases = {f"{layer}{n}.bias": width for n, width in zip(names, widths, strict=True)}
        w = joined(b, f"{layer}qkv.weight", parts, 8, trainable=trainable)
        bias = joined(b, f"{layer}qkv.bias", biases)
        y = b.add("linear", x, w, bias, shape=(*outer, sum(widths)), path=layer[:-1])
        found = [piece(b, y, 2, widths, k) for k in range(3)]
    else:
        found = []
        for n, width in zip(names, widths, strict=True):
            w = b.parameter(f"{layer}{n}.weight", (width, 8), trainable=trainable)
            operands = x, w, b.parameter(f"{layer}{n}.bias", (width,))
            found.append(b.add("linear", *operands, shape=(*outer, width), path=layer[:-1]))
    heads = []
    for y, width in zip(found, widths, strict=True):
        y = b.add("view", y, shape=(*outer, width // 4, 4))
        heads.append(b.add("permute", y, shape=(outer[0], width // 4, outer[1], 4), dims=(0, 2, 1, 3)))
    grouped = {"grouped": True} if len(set(widths)) > 1 else {}
    y = b.add("attention", *heads, shape=b.nodes[heads[0]].shape, causal=True, scale=None, **grouped)
    y = b.add("permute", y, shape=(*outer, widths[0] // 4, 4), dims=(0, 2, 1, 3))
    y = b.add("view", y, shape=(*outer, widths[0]))
    y = b.add("linear", y, b.parameter(f"{layer}out.weight", (8, widths[0])), shape=(*outer, 8))
    return b.add("add", x, y, shape=(*outer, 8))


def attention(merge: bool, widths: tuple[int, ...] = (8, 8, 8), trainable: bool = True) -> PCG:
    b = Builder(BATCH)
    y = attended(b, b.input("x", (BATCH, LENGTH, 8)), merge, widths, trainable=trainable)
    return b.build(b.add("projection", y, shape=(), site=0))


def nested(merge: bool) -> PCG:
    """Four linears of one input, merged two by two: its columns are 2 x 2 x 6."""
    b = Builder(BATCH)
    x = b.input("x", (BATCH, 5))
    names = [f"w{k}" for k in range(4)]
    if merge:
        y = b.add("linear", x, joined(b, "w", dict.fromkeys(names, 6), 5), shape=(BATCH, 24))
        halves = [piece(b, y, 1, (12, 12), k) for k in range(2)]
        found = [piece(b, half, 1, (6, 6), k) for half in halves for k in range(2)]
    else:
        found = [b.add("linear", x, b.parameter(name, (6, 5)), shape=(BATCH, 6)) for name in names]
    y = found[0]
    for op, other in zip(("mul", "sub", "add"), found[1:], strict=True):
        y = b.add(op, b.add("tanh", y, shape=(BATCH, 6)), other, shape=(BATCH, 6))
    return b.build(b.add("projection", y, shape=(), site=0))


def convolutions(merge: bool, widths: tuple[int, int] = (6, 6)) -> PCG:
    """Two convolutions of one image, merged along output channels."""
    b = Builder(BATCH)
    x = b.input("x", (BATCH, 3, 5, 4))
    options: dict[str, Any] = {"stride": (1, 1), "padding": (1, 1), "dilation": (1, 1), "groups": 1}
    if merge:
        w = joined(b, "w", {f"{n}.weight": width for n, width in zip("ac", widths, strict=True)}, 3, 3, 3)
        bias = joined(b, "bias", {f"{n}.bias": width for n, width in zip("ac", widths, strict=True)})
        y = b.add("conv", x, w, bias, shape=(BATCH, sum(widths), 5, 4), **options)
        found = [piece(b, y, 1, widths, k) for k in range(2)]
    else:
        found = []
        for n, width in zip("ac", widths, strict=True):
            operands = x, b.parameter(f"{n}.weight", (width, 3, 3, 3)), b.parameter(f"{n}.bias", (width,))
            found.append(b.add("conv", *operands, shape=(BATCH, width, 5, 4), **options))
    found[1] = b.add("relu", found[1], shape=b.nodes[found[1]].shape)
    y = b.add("cat", *reversed(found), shape=(BATCH, sum(widths), 5, 4), dim=1)
    return b.build(b.add("projection", y, shape=(), site=0))


def enlarged(merge: bool) -> PCG:
    """Kernels of 1 x 1 and of 3 x 3 of one image: the first in the middle of zeros, then both in one convolution."""
    b = Builder(BATCH)
    x = b.input("x", (BATCH, 3, 5, 4))
    small, large = b.parameter("small", (6, 3, 1, 1)), b.parameter("large", (6, 3, 3, 3))
    options: dict[str, Any] = {"stride": (1, 1), "dilation": (1, 1), "groups": 1}
    if merge:
        grown = b.add("pad", small, shape=(6, 3, 3, 3), pad=(1, 1, 1, 1), mode="constant", value=0.0)
        w = b.add("cat", grown, large, shape=(12, 3, 3, 3), dim=0)
        y = b.add("conv", x, w, shape=(BATCH, 12, 5, 4), padding=(1, 1), **options)
        found = [piece(b, y, 1, (6, 6), k) for k in range(2)]
    else:
        found = [b.add("conv", x, small, shape=(BATCH, 6, 5, 4), padding=(0, 0), **options)]
        found.append(b.add("conv", x, large, shape=(BATCH, 6, 5, 4), padding=(1, 1), **options))
    y = b.add("mul", b.add("tanh", found[0], shape=(BATCH, 6, 5, 4)), found[1], shape=(BATCH, 6, 5, 4))
    return b.build(b.add("projection", y, shape=(), site=0))


def folded(merge: bool) -> PCG:
    """A convolution with bias, then a scale and a shift by channel; or both folded into its kernel and its bias."""
    b = Builder(BATCH)
    x = b.input("x", (BATCH, 3, 5, 4))
    w, bias = b.parameter("conv.weight", (6, 3, 3, 3)), b.parameter("conv.bias", (6,))
    scale, shift = b.parameter("norm.weight", (6,)), b.parameter("norm.bias", (6,))
    options: dict[str, Any] = {"stride": (1, 1), "padding": (1, 1), "dilation": (1, 1), "groups": 1}
    if merge:
        w = b.add("mul", w, b.add("view", scale, shape=(6, 1, 1, 1)), shape=(6, 3, 3, 3))
        bias = b.add("add", b.add("mul", bias, scale, shape=(6,)), shift, shape=(6,))
        y = b.add("conv", x, w, bias, shape=(BATCH, 6, 5, 4), **options)
    else:
        y = b.add("conv", x, w, bias, shape=(BATCH, 6, 5, 4), **options)
        for op, operand in (("mul", scale), ("add", shift)):
            y = b.add(op, y, b.add("view", operand, shape=(6, 1, 1)), shape=(BATCH, 6, 5, 4))
    y = b.add("relu", y, shape=(BATCH, 6, 5, 4))
    return b.build(b.add("projection", y, shape=(), site=0))


def perceptron(merge: bool) -> PCG:
    """Two layers with ReLU after the first, which may be one operator with it; the second has no bias."""
    b = Builder(BATCH)
    y = b.add("tanh", b.input("x", (BATCH, LENGTH, 5)), shape=(BATCH, LENGTH, 5))
    for k, (i, o) in enumerate(((5, 12), (12, 12), (12, 5))):
        operands = [y, b.parameter(f"{k}.weight", (o, i))]
        operands += [b.parameter(f"{k}.bias", (o,))] if k == 0 else []
        y = b.add("linear_relu" if merge and k < 2 else "linear", *operands, shape=(BATCH, LENGTH, o))
        if not merge and k < 2:
            y = b.add("relu", y, shape=(BATCH, LENGTH, o))
    return b.build(b.add("projection", y, shape=(), site=0))


def branches(merge: bool) -> PCG:
    """Two branches, each of which begins with two linears of one input."""
    b = Builder(BATCH)
    x = b.add("linear", b.input("x", (BATCH, 8)), b.parameter("stem", (6, 8)), shape=(BATCH, 6))
    x, ends = b.add("tanh", x, shape=(BATCH, 6)), []
    for k in "01":
        names, biases = (dict.fromkeys((f"{k}.p.{what}", f"{k}.q.{what}"), 4) for what in ("weight", "bias"))
        if merge:
            operands = joined(b, f"{k}.weight", names, 6), joined(b, f"{k}.bias", biases)
            y = b.add("linear", x, *operands, shape=(BATCH, 8))
            p, q = (piece(b, y, 1, (4, 4), number) for number in range(2))
        else:
            pairs = [(b.parameter(w, (4, 6)), b.parameter(bias, (4,))) for w, bias in zip(names, biases, strict=True)]
            p, q = (b.add("linear", x, *operands, shape=(BATCH, 4)) for operands in pairs)
        y = b.add("mul", b.add("tanh", p, shape=(BATCH, 4)), q, shape=(BATCH, 4))
        ends.append(b.add("linear", y, b.parameter(f"{k}.out", (5, 4)), shape=(BATCH, 5)))
    y = b.add("tanh", b.add("cat", *ends, shape=(BATCH, 10), dim=1), shape=(BATCH, 10))
    y = b.add("linear", y, b.parameter("head", (3, 10)), shape=(BATCH, 3))
    return b.build(b.add("projection", y, shape=(), site=0))


def layers(merge: bool, count: int = 3) -> PCG:
    b = Builder(BATCH)
    y = b.input("x", (BATCH, LENGTH, 8))
    for k in range(count):
        start = len(b.nodes)
        y = attended(b, y, merge, (8, 8, 8), f"layers.{k}.")
        for i in range(start, len(b.nodes)):
            if b.nodes[i].op not in SOURCES:
                b.nodes[i] = replace(b.nodes[i], path=f"layers.{k}")
    return b.build(b.add("projection", y, shape=(), site=0))


PAIRS: dict[str, Callable[[bool], PCG]] = {
    "heads": attention,
    "grouped heads": lambda merge: attention(merge, (8, 4, 4)),
    "frozen": lambda merge: attention(merge, trainable=False),
    "nested": nested,
    "convolutions": convolutions,
    "unequal convolutions": lambda merge: convolutions(merge, (6, 3)),
    "enlarged": enlarged,
    "folded": folded,
    "fused": perceptron,
}
