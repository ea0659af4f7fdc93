"""Every strategy of every operator, forced: the program computes, forward and backward, what the operator says."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from partita import PartitaError
from partita.codegen.program.micro import divided
from partita.formulation.strategy import Row, rows
from partita.model.operator import operators
from partita.model.operators.loss import LOSSES
from partita.model.pcg import FLOATS, PCG, Builder, with_batch

Judge = Callable[..., dict[str, Any]]
Force = Callable[..., Any]
BATCH = 6


def leaf(b: Builder, *shape: int) -> int:
    """A tensor that depends on samples (dim 0) and through which a gradient flows."""
    x = b.input(b.name("x"), shape)
    return b.add("mul", x, b.parameter(b.name("scale"), shape[1:]), shape=shape)


def weight(b: Builder, *shape: int) -> int:
    return b.parameter(b.name("w"), shape)


def unary(op: str, positive: bool = False, **attributes: Any) -> Callable[[Builder], int]:
    def build(b: Builder) -> int:
        x = leaf(b, BATCH, 5, 4)
        if positive:  # away from zero, where some functions are not defined
            x = b.add("shift", b.add("mul", x, x, shape=(BATCH, 5, 4)), shape=(BATCH, 5, 4), value=0.5)
        return b.add(op, x, shape=(BATCH, 5, 4), **attributes)

    return build


def binary(op: str, **attributes: Any) -> Callable[[Builder], int]:
    """The second operand lacks a dim, and has one that is broadcast."""

    def build(b: Builder) -> int:
        return b.add(op, leaf(b, BATCH, 5, 4), weight(b, 5, 1), shape=(BATCH, 5, 4), **attributes)

    return build


def both(op: str, **attributes: Any) -> Callable[[Builder], int]:
    def build(b: Builder) -> int:
        a, c = leaf(b, BATCH, 5), leaf(b, BATCH, 5)
        if op in ("div", "power"):
            a, c = (b.add("shift", b.add("mul", x, x, shape=(BATCH, 5)), shape=(BATCH, 5), value=0.5) for x in (a, c))
        return b.add(op, a, c, shape=(BATCH, 5), **attributes)

    return build


def linear(bias: bool) -> Callable[[Builder], int]:
    def build(b: Builder) -> int:
        operands = (leaf(b, BATCH, 5, 4), weight(b, 7, 4), *([weight(b, 7)] if bias else []))
        return b.add("linear", *operands, shape=(BATCH, 5, 7))

    return build


def norm(op: str, operands: tuple[str, ...]) -> Callable[[Builder], int]:
    def build(b: Builder) -> int:
        given = [leaf(b, BATCH, 5, 4), *(weight(b, 4) for _ in operands[1:])]
        return b.add(op, *given, shape=(BATCH, 5, 4), normalized=1, eps=1e-5, operands=operands)

    return build


def convolution(
    channels: tuple[int, int], taps: tuple[int, ...], shape: tuple[int, ...], bias: bool = True, **attributes: Any
) -> Callable[[Builder], int]:
    """From the first of `channels` to the second, over places 6 x 5 (x 4), to `shape`; attributes override defaults."""
    (into, out), rank = channels, len(taps)
    op = "conv_transpose" if "output_padding" in attributes else "conv"
    plain = {"stride": (1,) * rank, "padding": (0,) * rank, "dilation": (1,) * rank, "groups": 1}

    def build(b: Builder) -> int:
        groups = attributes.get("groups", 1)
        kernel = (out, into // groups, *taps) if op == "conv" else (into, out // groups, *taps)
        given = [leaf(b, BATCH, into, *(6, 5, 4)[:rank]), weight(b, *kernel), *([weight(b, out)] if bias else [])]
        return b.add(op, *given, shape=(BATCH, out, *shape), **plain | attributes)

    return build


def over_space(op: str, before: tuple[int, ...], after: tuple[int, ...], **attributes: Any) -> Callable[[Builder], int]:
    """Four channels, then space."""
    return lambda b: b.add(op, leaf(b, BATCH, 4, *before), shape=(BATCH, 4, *after), **attributes)


def pool(
    op: str, before: tuple[int, ...], after: tuple[int, ...], kernel: tuple[int, ...], **attributes: Any
) -> Callable[[Builder], int]:
    plain: dict[str, Any] = {"stride": kernel, "padding": (0,) * len(kernel), "ceil_mode": False}
    plain |= {"dilation": (1,) * len(kernel)} if op == "max_pool" else {"count_include_pad": True}
    return over_space(op, before, after, kernel_size=kernel, **plain | attributes)


def resampled(
    before: tuple[int, ...], after: tuple[int, ...], mode: str, **attributes: Any
) -> Callable[[Builder], int]:
    plain: dict[str, Any] = {"size": None, "scale_factor": None, "align_corners": None}
    return over_space("interpolate", before, after, mode=mode, **plain | attributes)


def group_norm(groups: int, weights: int, *space: int) -> Callable[[Builder], int]:
    def build(b: Builder) -> int:
        given = [leaf(b, BATCH, 6, *space), *(weight(b, 6) for _ in range(weights))]
        return b.add("group_norm", *given, shape=(BATCH, 6, *space), groups=groups, eps=1e-5)

    return build


def prelu(slopes: int) -> Callable[[Builder], int]:
    return lambda b: b.add("prelu", leaf(b, BATCH, 5, 4), weight(b, slopes), shape=(BATCH, 5, 4))


def batch_norm(op: str, operands: tuple[str, ...], *rest: int) -> Callable[[Builder], int]:
    """Of 4 channels; `op` is the operator under test, `moments` too is read by a batch norm."""

    def build(b: Builder) -> int:
        shape = (BATCH, 4, *rest)
        x = leaf(b, *shape)
        running = [b.add("buffer", shape=(4,), name=name) for name in operands if name in ("mean", "var")]
        affine = [weight(b, 4) for name in operands if name in ("w", "bias")]
        if op == "local_batch_norm":
            return b.add(op, x, *running, *affine, shape=shape, operands=operands, momentum=0.1, eps=1e-5, site=0)
        s = b.add("moments", x, shape=(2, 4), statistics="batch", site=0)
        if op == "moments":
            return s
        return b.add(op, x, s, *running, *affine, shape=shape, operands=operands, momentum=0.1, eps=1e-5, site=0)

    return build


def attention(causal: bool, mask: tuple[int, ...] = (), heads: int = 2, groups: int = 2) -> Callable[[Builder], int]:
    """Some heads of 5 positions, of keys and values as many as `groups`; a mask is learned, and added to the scores."""

    def build(b: Builder) -> int:
        shape = (BATCH, heads, 5, 4)
        given = [leaf(b, *shape), *(leaf(b, BATCH, groups, 5, 4) for _ in "kv"), *([weight(b, *mask)] if mask else [])]
        grouped = {"grouped": True} if groups != heads else {}
        return b.add("attention", *given, shape=shape, causal=causal, scale=None, **grouped)

    return build


def boolean_mask(b: Builder) -> int:
    """Which keys a sample has."""
    shape = (BATCH, 2, 5, 4)
    mask = b.add(
        "compare", b.input("t", (BATCH, 1, 1, 5)), shape=(BATCH, 1, 1, 5), dtype="bool", relation="lt", value=1.5
    )
    return b.add("attention", *(leaf(b, *shape) for _ in "qkv"), mask, shape=shape, causal=False, scale=0.4)


def matmul(a: tuple[int, ...], c: tuple[int, ...], y: tuple[int, ...]) -> Callable[[Builder], int]:
    return lambda b: b.add("matmul", leaf(b, *a), weight(b, *c), shape=y)


def einsum(equation: str, a: tuple[int, ...], c: tuple[int, ...], y: tuple[int, ...]) -> Callable[[Builder], int]:
    return lambda b: b.add("einsum", leaf(b, *a), weight(b, *c), shape=y, equation=equation)


def reduced(op: str, dims: tuple[int, ...], keepdim: bool, **attributes: Any) -> Callable[[Builder], int]:
    def build(b: Builder) -> int:
        shape = (BATCH, 5, 4)
        kept = [1 if d in dims else n for d, n in enumerate(shape) if keepdim or d not in dims]
        counted: dict[str, Any] = {}
        if op == "mean":
            counted["count"] = 1
            for d in dims:
                counted["count"] *= shape[d]
        return b.add(op, leaf(b, *shape), shape=kept, dims=dims, keepdim=keepdim, **counted, **attributes)

    return build


def view(before: tuple[int, ...], after: tuple[int, ...]) -> Callable[[Builder], int]:
    return lambda b: b.add("view", leaf(b, *before), shape=after)


def embedding(b: Builder) -> int:
    ids = b.add("input", name="ids", shape=(BATCH, 5), dtype="int64", batch_dim=0, high=9)
    return b.add("embedding", weight(b, 9, 4), ids, shape=(BATCH, 5, 4))


def bag(weighted: bool) -> Callable[[Builder], int]:
    def build(b: Builder) -> int:
        ids = b.add("input", name="ids", shape=(BATCH, 4), dtype="int64", batch_dim=0, high=9)
        weights = [leaf(b, BATCH, 4)] if weighted else []
        return b.add("embedding_bag", weight(b, 9, 4), ids, *weights, shape=(BATCH, 4))

    return build


def look_up(
    op: str, dim: int, shape: tuple[int, ...], y: tuple[int, ...], table: bool = False
) -> Callable[[Builder], int]:
    """Ids of some shape into a dim of a tensor of the batch, or of a weight."""

    def build(b: Builder) -> int:
        x = weight(b, 5, 6, 4) if table else leaf(b, BATCH, 6, 4)
        high = b.nodes[x].shape[dim]
        batch_dim = 0 if shape[:1] == (BATCH,) else None
        ids = b.add("input", name="ids", shape=shape, dtype="int64", batch_dim=batch_dim, high=high)
        return b.add(op, x, ids, shape=y, dim=dim)

    return build


def integers(op: str) -> Callable[[Builder], int]:
    """What is looked up has no gradient, and is a number."""

    def build(b: Builder) -> int:
        ids = b.add("input", name="ids", shape=(BATCH, 4), dtype="int64", batch_dim=0, high=4)
        return b.add(op, ids, ids, shape=(BATCH, 4), dtype="int64", dim=1)

    return build


def classified(
    op: str, reduction: str, weighted: bool = False, deep: bool = False, **attributes: Any
) -> Callable[[Builder], int]:
    """`deep`: several labels a sample."""

    def build(b: Builder) -> int:
        rest = (3,) if deep else ()
        x = leaf(b, BATCH, 5, *rest)
        t = b.add("input", name="labels", shape=(BATCH, *rest), dtype="int64", batch_dim=0, high=5)
        extra = [b.parameter("class_weights", (5,), trainable=False)] if weighted else []
        shape = (BATCH, *rest) if reduction == "none" else ()
        return b.add(op, x, t, *extra, shape=shape, reduction=reduction, **{"ignore_index": -100} | attributes)

    return build


def soft(reduction: str, weighted: bool = False, deep: bool = False, **attributes: Any) -> Callable[[Builder], int]:
    """Probabilities as targets, with a gradient."""

    def build(b: Builder) -> int:
        shape = (BATCH, 5, *((3,) if deep else ()))
        t = b.add("softmax", leaf(b, *shape), shape=shape, dim=1)
        extra = [b.parameter("class_weights", (5,), trainable=False)] if weighted else []
        y = (BATCH, *shape[2:]) if reduction == "none" else ()
        return b.add("cross_entropy", leaf(b, *shape), t, *extra, shape=y, reduction=reduction, **attributes)

    return build


def pointwise(
    op: str, reduction: str, weights: tuple[str, ...] = (), squash: str = "", **attributes: Any
) -> Callable[[Builder], int]:
    """`squash` brings input and target into the range that is asked of them; weights are broadcast."""

    def build(b: Builder) -> int:
        shape = (BATCH, 5, 4)
        given = [leaf(b, *shape), b.input("t", shape)]
        if squash:
            given = [b.add(squash, x, shape=shape) for x in given]
        given += [b.input(b.name("scales"), shape[2 - k :], batch_dim=None) for k in range(len(weights))]
        named = {"operands": ("x", "t", *weights)} if weights else {}
        return b.add(op, *given, shape=shape if reduction == "none" else (), reduction=reduction, **named | attributes)

    return build


def where(b: Builder) -> int:
    x = leaf(b, BATCH, 5)
    c = b.add("compare", x, shape=(BATCH, 5), dtype="bool", relation="gt", value=0.1)
    return b.add("where", c, x, weight(b, 5), shape=(BATCH, 5))


def condition(op: str) -> Callable[[Builder], int]:
    """Operators without gradient decide between two operands."""

    def build(b: Builder) -> int:
        shape = (BATCH, 5)
        x = leaf(b, *shape)
        if op == "relate":
            return b.add("relate", x, leaf(b, *shape), shape=shape, dtype="bool", relation="lt")
        c = b.add("compare", x, shape=shape, dtype="bool", relation="le", value=0.0)
        return c if op == "compare" else b.add("logical_not", c, shape=shape)

    return build


def table(op: str, diagonal: int = 0) -> Callable[[Builder], int]:
    return lambda b: b.add(op, leaf(b, BATCH, 5, 4), shape=(BATCH, 5, 4), diagonal=diagonal)


def created(op: str, shape: tuple[int, ...], dtype: str = "float32", **attributes: Any) -> Callable[[Builder], int]:
    return lambda b: b.add(op, shape=shape, dtype=dtype, **attributes)


def opaque(b: Builder) -> int:
    x = leaf(b, BATCH, 5)
    call = (("", ("@", 0)), ("", 1))
    return b.add("opaque", x, shape=(BATCH, 5), target="aten.logcumsumexp.default", arguments=call, output=None)


def detach(b: Builder) -> int:
    return b.add("detach", leaf(b, BATCH, 5), shape=(BATCH, 5), gradient=False)


CASES: dict[str, tuple[Callable[[Builder], int], ...]] = {
    **{op: (unary(op),) for op in ("relu", "silu", "tanh", "sigmoid", "softplus", "exp")},
    **{op: (unary(op),) for op in ("sin", "cos", "erf", "abs", "neg", "contiguous")},
    **{op: (unary(op, positive=True),) for op in ("log", "sqrt", "rsqrt", "reciprocal")},
    "gelu": (unary("gelu", approximate="none"), unary("gelu", approximate="tanh")),
    "leaky_relu": (unary("leaky_relu", slope=0.1),),
    "elu": (unary("elu", alpha=0.7),),
    **{op: (unary(op),) for op in ("selu", "mish", "relu6", "hardswish", "hardsigmoid", "logsigmoid")},
    "hardtanh": (unary("hardtanh", min_val=-0.3, max_val=0.2),),
    "prelu": (prelu(5), prelu(1)),
    "pow": (unary("pow", exponent=3), unary("pow", positive=True, exponent=-0.5)),
    "clamp": (unary("clamp", min=-0.3, max=0.4),),
    "shift": (unary("shift", value=0.3),),
    "scale": (unary("scale", value=0.25), unary("scale", value=-3)),
    "to": (unary("to", dtype="float64"),),
    "dropout": (unary("dropout", p=0.3, site=0),),
    "add": (binary("add"), both("add")),
    "sub": (binary("sub"), both("sub")),
    "mul": (binary("mul"), both("mul")),
    "div": (both("div"),),
    "maximum": (binary("maximum"), both("maximum")),
    "minimum": (binary("minimum"),),
    "power": (both("power"),),
    "where": (where,),
    "compare": (condition("compare"),),
    "relate": (condition("relate"),),
    "logical_not": (condition("logical_not"),),
    "linear": (linear(bias=True), linear(bias=False)),
    "matmul": (
        matmul((BATCH, 5, 4), (4, 7), (BATCH, 5, 7)),
        matmul((BATCH, 2, 5, 4), (2, 4, 3), (BATCH, 2, 5, 3)),
        matmul((BATCH, 5, 4), (4,), (BATCH, 5)),
    ),
    "einsum": (
        einsum("bik,kj->bji", (BATCH, 5, 4), (4, 7), (BATCH, 7, 5)),
        einsum("bhd,hde->be", (BATCH, 3, 4), (3, 4, 5), (BATCH, 5)),
        einsum("bi,j->bij", (BATCH, 5), (4,), (BATCH, 5, 4)),
        lambda b: b.add("einsum", leaf(b, BATCH, 5, 4), shape=(4, BATCH), equation="bij->jb"),
    ),
    "attention": (
        attention(causal=False),
        attention(causal=True),
        attention(causal=False, mask=(5, 5)),
        attention(causal=True, heads=6, groups=2),
        attention(causal=False, mask=(4, 5, 5), heads=4, groups=2),
        attention(causal=False, mask=(BATCH, 1, 5, 5), heads=4, groups=1),
        boolean_mask,
    ),
    "layer_norm": (
        norm("layer_norm", ("x", "w", "bias")),
        norm("layer_norm", ("x", "bias")),
        norm("layer_norm", ("x",)),
    ),
    "conv": (
        convolution((4, 6), (3, 3), (4, 3)),
        convolution((4, 6), (3, 2), (3, 2), bias=False, stride=(2, 2), padding=(1, 0), groups=2),
        convolution((6, 12), (3, 3), (6, 5), padding="same", groups=6),
        convolution((8, 8), (2,), (4,), dilation=(2,), groups=4),
        convolution((5, 10), (2,), (5,), groups=5),
        convolution((3, 2), (2, 1, 3), (5, 5, 2)),
    ),
    "conv_transpose": (
        convolution((4, 6), (2, 2), (12, 10), stride=(2, 2), output_padding=(0, 0)),
        convolution((6, 4), (3, 3), (12, 10), stride=(2, 2), padding=(1, 1), output_padding=(1, 1), groups=2),
        convolution((4, 8), (2,), (7,), bias=False, output_padding=(0,), groups=4),
    ),
    "max_pool": (
        pool("max_pool", (6, 5), (3, 3), (2, 2), ceil_mode=True),
        pool("max_pool", (7,), (4,), (3,), stride=(2,), padding=(1,)),
        pool("max_pool", (6, 5), (2, 3), (3, 2), stride=(2, 1), dilation=(2, 2), padding=(1, 0)),
    ),
    "avg_pool": (
        pool("avg_pool", (6, 5), (6, 5), (3, 3), stride=(1, 1), padding=(1, 1), count_include_pad=False),
        pool("avg_pool", (4, 4), (2, 2), (2, 2), divisor_override=3),
        pool("avg_pool", (5,), (3,), (2,), ceil_mode=True),
    ),
    "adaptive_max_pool": (over_space("adaptive_max_pool", (6, 5), (2, 3), output_size=(2, 3)),),
    "adaptive_avg_pool": (
        over_space("adaptive_avg_pool", (6, 5), (2, 3), output_size=(2, 3)),
        over_space("adaptive_avg_pool", (2, 3, 4), (1, 2, 2), output_size=(1, 2, 2)),
    ),
    "interpolate": (
        resampled((3, 2), (6, 4), "nearest", scale_factor=(2.0, 2.0)),
        resampled((3, 2), (5, 4), "bilinear", size=(5, 4), align_corners=True),
        resampled((4,), (6,), "linear", scale_factor=(1.5,)),
    ),
    "group_norm": (
        group_norm(3, 2, 3, 2),
        group_norm(1, 2, 4),
        group_norm(6, 1, 3, 2),
        group_norm(2, 0, 3),
    ),
    "moments": (batch_norm("moments", ()), batch_norm("moments", (), 5, 3)),
    "batch_norm": (
        batch_norm("batch_norm", ("x", "s", "mean", "var", "w", "bias"), 5),
        batch_norm("batch_norm", ("x", "s", "mean", "var")),
        batch_norm("batch_norm", ("x", "s", "w"), 3, 2),
        batch_norm("batch_norm", ("x", "s", "bias")),
    ),
    "local_batch_norm": (
        batch_norm("local_batch_norm", ("x", "mean", "var", "w", "bias"), 5),
        batch_norm("local_batch_norm", ("x", "w", "bias"), 3, 2),
    ),
    "rms_norm": (norm("rms_norm", ("x", "w")), norm("rms_norm", ("x",))),
    "softmax": (unary("softmax", dim=1), unary("softmax", dim=2)),
    "log_softmax": (unary("log_softmax", dim=2),),
    "cumsum": (unary("cumsum", dim=1),),
    "cumprod": (unary("cumprod", dim=1),),
    "logsumexp": (reduced("logsumexp", (1,), False), reduced("logsumexp", (0, 2), True)),
    "norm": (reduced("norm", (1,), True, ord=2), reduced("norm", (0, 1, 2), False, ord=3)),
    "sum": (reduced("sum", (1,), False), reduced("sum", (0, 2), True), reduced("sum", (0, 1, 2), False)),
    "mean": (reduced("mean", (2,), True), reduced("mean", (0, 1), False), reduced("mean", (1, 2), False)),
    "amax": (reduced("amax", (1,), False), reduced("amax", (2,), True)),
    "view": (
        view((BATCH, 5, 4), (BATCH, 20)),
        view((BATCH, 12), (BATCH, 3, 4)),
        view((BATCH, 4, 6), (BATCH * 4, 6)),
        view((BATCH, 6, 10), (BATCH, 4, 15)),
        view((BATCH, 1, 5), (BATCH, 5)),
    ),
    "permute": (
        lambda b: b.add("permute", leaf(b, BATCH, 5, 4), shape=(4, BATCH, 5), dims=(2, 0, 1)),
        lambda b: b.add("permute", leaf(b, BATCH, 5, 4), shape=(BATCH, 4, 5), dims=(0, 2, 1)),
    ),
    "expand": (
        lambda b: b.add("expand", leaf(b, BATCH, 1, 4), shape=(BATCH, 5, 4)),
        lambda b: b.add("expand", weight(b, 5, 1), shape=(3, 5, 4)),
    ),
    "slice": (
        lambda b: b.add("slice", leaf(b, BATCH, 7, 4), shape=(BATCH, 3, 4), dim=1, start=1, stop=7, step=2),
        lambda b: b.add("slice", leaf(b, BATCH, 7), shape=(3, 7), dim=0, start=3, stop=6, step=1),
    ),
    "cat": (
        lambda b: b.add("cat", leaf(b, BATCH, 5), leaf(b, BATCH, 4), leaf(b, BATCH, 3), shape=(BATCH, 12), dim=1),
        lambda b: b.add("cat", leaf(b, BATCH, 5), weight(b, 3, 5), shape=(BATCH + 3, 5), dim=0),
    ),
    "pad": (
        lambda b: b.add("pad", leaf(b, BATCH, 5, 4), shape=(BATCH, 5, 7), pad=(1, 2), mode="constant", value=0.0),
        lambda b: b.add(
            "pad", leaf(b, BATCH, 5, 4), shape=(BATCH, 8, 3), pad=(0, -1, 1, 2), mode="constant", value=0.5
        ),
        lambda b: b.add("pad", leaf(b, BATCH, 5, 4), shape=(BATCH, 5, 6), pad=(1, 1), mode="reflect", value=0.0),
        lambda b: b.add("pad", leaf(b, BATCH, 5, 4), shape=(BATCH, 5, 7), pad=(3, 0), mode="circular", value=0.0),
    ),
    "roll": (unary("roll", dims=(1,), shifts=(2,)), unary("roll", dims=(2, 1), shifts=(-1, 7))),
    "flip": (unary("flip", dims=(1, 2)), unary("flip", dims=(2,))),
    "embedding": (embedding,),
    "embedding_bag": (bag(weighted=False), bag(weighted=True)),
    "gather": (
        look_up("gather", 1, (BATCH, 3, 4), (BATCH, 3, 4)),
        look_up("gather", 2, (5, 6, 3), (5, 6, 3), table=True),
        integers("gather"),
    ),
    "index": (
        look_up("index", 1, (3,), (BATCH, 3, 4)),
        look_up("index", 2, (3, 5), (BATCH, 6, 3, 5)),
        look_up("index", 0, (BATCH, 3), (BATCH, 3, 6, 4), table=True),
        look_up("index", 1, (), (5, 4), table=True),
        look_up("index", 0, (3,), (3, 6, 4)),
    ),
    "tril": (table("tril"), table("tril", diagonal=-1)),
    "triu": (table("triu", diagonal=1),),
    "full": (created("full", (5, 4), value=0.5), created("full", (), value=2.5)),
    "arange": (
        created("arange", (5,), start=2, stop=12, step=2),
        created("arange", (4,), "int64", start=0, stop=4, step=1),
    ),
    "constant": (created("constant", (2, 2), values=(0.1, 0.2, 0.3, 0.5)),),
    "detach": (detach,),
    "opaque": (opaque,),
    "cross_entropy": (
        classified("cross_entropy", "mean"),
        classified("cross_entropy", "sum"),
        classified("cross_entropy", "mean", weighted=True),
        classified("cross_entropy", "mean", weighted=True, deep=True, label_smoothing=0.2),
        classified("cross_entropy", "none", deep=True, label_smoothing=0.1),
        soft("mean", weighted=True, deep=True),
        soft("none", label_smoothing=0.1),
    ),
    "nll_loss": (
        classified("nll_loss", "mean", weighted=True),
        classified("nll_loss", "none", deep=True, ignore_index=2),
    ),
    "mse_loss": (
        lambda b: b.add("mse_loss", leaf(b, BATCH, 5), leaf(b, BATCH, 5), shape=(), reduction="mean"),
        lambda b: b.add("mse_loss", leaf(b, BATCH, 5), b.input("t", (BATCH, 5)), shape=(), reduction="sum"),
        lambda b: b.add("mse_loss", weight(b, 5, 4), weight(b, 5, 4), shape=(), reduction="mean"),
    ),
    "l1_loss": (pointwise("l1_loss", "mean"),),
    "smooth_l1_loss": (pointwise("smooth_l1_loss", "mean", beta=0.3), pointwise("smooth_l1_loss", "none", beta=1.0)),
    "huber_loss": (pointwise("huber_loss", "sum", delta=0.4),),
    "kl_div": (
        pointwise("kl_div", "batchmean", squash="sigmoid", log_target=False),
        pointwise("kl_div", "mean", log_target=True),
    ),
    "binary_cross_entropy": (
        pointwise("binary_cross_entropy", "mean", squash="sigmoid"),
        pointwise("binary_cross_entropy", "sum", ("weight",), squash="sigmoid"),
    ),
    "binary_cross_entropy_with_logits": (
        pointwise("binary_cross_entropy_with_logits", "mean", ("weight", "pos_weight")),
        pointwise("binary_cross_entropy_with_logits", "none", ("pos_weight",)),
    ),
    "projection": (lambda b: b.add("projection", leaf(b, BATCH, 5, 4), shape=(), site=3),),
}


def around(build: Callable[[Builder], int]) -> tuple[PCG, int]:
    """A graph with this node in it, trained through it where it has a gradient, and the node."""
    b = Builder(BATCH)
    index = build(b)
    node = b.nodes[index]
    y, shape = index, node.shape
    if node.dtype == "bool":
        y = b.add("where", y, leaf(b, *shape), leaf(b, *shape), shape=shape)
    elif node.dtype not in FLOATS:
        y = b.add("to", y, shape=shape, dtype="float32")
    if node.shape or node.op not in LOSSES:
        y = b.add("mul", y, b.parameter("after", shape), shape=shape)
        y = b.add("projection", y, shape=(), site=0)
    if not b.nodes[index].gradient:  # something else to train
        y = b.add("add", y, b.add("projection", leaf(b, BATCH, 3), shape=(), site=1), shape=())
    return b.build(y), index


def kinds(row: Row) -> tuple[str, str]:
    """How a row is called in the coverage: its letters, without the atoms."""
    return "".join("RBPS"[min(x, 3)] for x in row.inputs), "RBPS"[min(row.output, 3)]


def micro_batches(graph: PCG) -> tuple[int, ...]:
    """1, and 2 where the graph can be cut."""
    try:
        divided(graph, 2)
        with_batch(graph, 2 * graph.batch)
    except PartitaError:
        return (1,)
    return (1, 2)


def test_every_operator_has_a_case() -> None:
    assert set(CASES) == {entry.name for entry in operators()}


@pytest.mark.parametrize("op", sorted(CASES))
def test_every_row(op: str, judge: Judge, force: Force) -> None:
    """Each row alone on an axis of 2 and of 3 (where only the batch divides evenly), then rows mixed on two axes."""
    rng = random.Random(op)
    done = set()
    for build in CASES[op]:
        graph, index = around(build)
        counts = micro_batches(graph)
        found = rows(graph, index)
        for number in range(len(found)):
            for size in (2, 3):
                try:
                    optimizer = rng.choice(("sgd", "adamw"))
                    plan = force(graph, (size,), rng, {index: (number,)}, rng.choice(counts), optimizer)
                except ValueError as error:
                    assert "leave a rank empty" in str(error)
                    continue
                judge(plan)
                done.add((id(build), number))
        for sizes in ((2, 2), (2, 3), (3, 2)):
            judge(force(graph, sizes, rng, None, rng.choice(counts), "adam"))
        missing = [kinds(found[n]) for n in range(len(found)) if (id(build), n) not in done]
        assert not missing, f"{op}: rows {missing} were not run"
