"""Normalizations and softmax: whole along the dims that they normalize."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..graph.pcg import Node
from . import sharded
from .algebra import Algebra
from .keywords import keywords
from .operator import Operator, along_dim
from .sharded import WHOLE, Array, Attributes, Evaluation, IllTyped, Shape, ShardTasks, Signature

if TYPE_CHECKING:
    from torch import Tensor

EPS = 1e-5


def _normalized(node: Node, inputs: tuple[Node, ...]) -> str:
    """f(x) * weight + bias over the last `normalized` dims."""
    last = [f"j{i}" for i in range(node["normalized"])]
    inner, whole = ", ".join(last), ", ".join(":" for _ in last)
    text = f"f(x[b.., {whole}])[{inner}]"
    operands = node.get("operands") or ("x", "w", "bias")[: len(inputs)]
    if "w" in operands:
        text += f" * w[{inner}]"
    if "bias" in operands:
        text += f" + bias[{inner}]"
    return f"y[b.., {inner}] = {text}"


def _layer_norm(node: Node, names: Sequence[str]) -> str:
    shape = node.shape[len(node.shape) - node["normalized"] :]
    given = dict(zip(node.get("operands") or ("x", "w", "bias"), names, strict=False))
    return f"F.layer_norm({given['x']}, {shape}, {given.get('w')}, {given.get('bias')}, {node['eps']!r})"


def _grouped(node: Node, inputs: tuple[Node, ...]) -> str:
    """f(x) * weight + bias: over space and the channels of each group, scaled by channel."""
    groups, channels = node["groups"], node.shape[1]
    space = [f"s{i}" for i in range(len(node.shape) - 2)]
    channel, normalized = ("(g c)", f"(g={groups} :)") if 1 < groups < channels else ("c", "c" if groups > 1 else ":")
    inner = ["c", *space] if groups < channels else space
    line = f"y[n, {', '.join([channel, *space])}] = f(x[n, {', '.join([normalized, *(':' for _ in space)])}])"
    scale = f" * w[{channel}] + bias[{channel}]" if len(inputs) > 1 else ""
    return f"{line}[{', '.join(inner)}]{scale}"


def _group_norm(node: Node, names: Sequence[str]) -> str:
    given = [names[0], str(node["groups"]), *names[1:]]
    return f"F.group_norm({', '.join(given)}{keywords(node, {'eps': 1e-5})})"


def _rms_norm(node: Node, names: Sequence[str]) -> str:
    shape = node.shape[len(node.shape) - node["normalized"] :]
    return f"F.rms_norm({names[0]}, {shape}, {names[1] if len(names) > 1 else None}, {node['eps']!r})"


def _group_norm_reference(node: Node, x: Sequence[Tensor]) -> Tensor:
    """Normalize each group; then scale and shift by channel."""
    grouped = x[0].reshape(x[0].shape[0], node["groups"], -1)
    centred = grouped - grouped.mean(-1, keepdim=True)
    result: Tensor = (centred / (centred.square().mean(-1, keepdim=True) + node["eps"]).sqrt()).reshape(node.shape)
    channel = (-1, *(1 for _ in node.shape[2:]))
    result = result * x[1].view(channel) if len(x) > 1 else result
    return result + x[2].view(channel) if len(x) > 2 else result


def _norm_shards(centered: bool) -> Evaluation:
    """Layer norm, or without the mean: RMS norm."""

    def evaluation(given: Attributes, shapes: Sequence[Shape]) -> Signature:
        given_operands = sharded.named_operands(given, ("x", "w", "bias"), shapes)
        x, count = shapes[0], given.get("normalized", 1)
        if not 0 < count <= len(x) or any(shape != x[len(x) - count :] for shape in shapes[1:]):
            raise IllTyped(f"a norm of the last {count} dims of {x} with weights of shapes {list(shapes[1:])}")
        batch, whole = sharded.letters(len(x) - count), (WHOLE,) * count
        dims = tuple(range(1 + len(batch), 1 + len(x)))

        def local(t: ShardTasks, a: list[Array]) -> list[Array]:
            f, values = t.arithmetic, dict(zip(given_operands, a, strict=True))
            y = sharded.standardized(t, values["x"], dims, centered, given.get("eps", EPS))
            y = f.mul(y, sharded.ranked(values["w"], len(x))) if "w" in values else y
            return [f.add(y, sharded.ranked(values["bias"], len(x))) if "bias" in values else y]

        return Signature(((*batch, *whole), *(whole for _ in shapes[1:])), ((*batch, *whole),), local)

    return evaluation


def _group_norm_shards(given: Attributes, shapes: Sequence[Shape]) -> Signature:
    """Shards have whole groups."""
    x, *scales = sharded.operands(shapes, 1, 3)
    groups = given["groups"]
    if len(x) < 2 or x[1] % groups or any(shape != x[1:2] for shape in scales):
        raise IllTyped(f"a norm of {groups} groups of {x} with weights of shapes {scales}")
    wide = ("n", "c", *(WHOLE,) * (len(x) - 2))

    def local(t: ShardTasks, a: list[Array]) -> list[Array]:
        f, part = t.arithmetic, t.degree("c")
        if groups % part:
            raise IllTyped(f"{groups} groups cannot be split {part} times")
        grouped = a[0].reshape(*a[0].shape[:2], groups // part, -1)
        y = sharded.standardized(t, grouped, (3,), True, given.get("eps", EPS)).reshape(a[0].shape)
        y = f.mul(y, sharded.by_channel(a[1], y)) if scales else y
        return [f.add(y, sharded.by_channel(a[2], y)) if len(scales) > 1 else y]

    return Signature((wide, *(("c",) for _ in scales)), (wide,), local)


def _softmax_shards(given: Attributes, shapes: Sequence[Shape]) -> Signature:
    (shape,) = sharded.operands(shapes, 1)
    dim = sharded.dim_of(given["dim"], len(shape))
    whole = sharded.whole_along(shape, dim)

    def local(t: ShardTasks, a: list[Array]) -> list[Array]:
        return [t.arithmetic.mul(*sharded.exponentials(t, a[0], dim + 1))]

    return Signature((whole,), (whole,), local)


def _log_softmax_shards(given: Attributes, shapes: Sequence[Shape]) -> Signature:
    plain = _softmax_shards(given, shapes)
    dim = sharded.dim_of(given["dim"], len(shapes[0])) + 1

    def local(t: ShardTasks, a: list[Array]) -> list[Array]:
        f = t.arithmetic
        total = f.sum(f.call(("exp",), a[0]), (dim,), keepdims=True)
        return [f.sub(a[0], f.call(("log",), total))]

    return Signature(plain.inputs, plain.outputs, local)


OPERATORS = (
    *(
        Operator(
            *(name, names, _normalized, emit),
            saved=("x",),
            passes=1.5,
            fuses=True,
            algebra=Algebra(_norm_shards(centered), defaults={"normalized": 1, "eps": EPS}, keeps_sizes=True),
        )
        for name, names, emit, centered in (
            ("layer_norm", ("x", "w", "bias"), _layer_norm, True),
            ("rms_norm", ("x", "w"), _rms_norm, False),
        )
    ),
    Operator(
        "group_norm",
        ("x", "w", "bias"),
        _grouped,
        _group_norm,
        saved=("x",),
        passes=1.5,
        fuses=True,
        reference=_group_norm_reference,
        algebra=Algebra(_group_norm_shards),
    ),
    *(
        Operator(
            *(name, ("x",), along_dim("f"), f"torch.{name}({{x}}, {{dim}})"),
            saved=("y",),
            passes=1.5,
            fuses=True,
            algebra=Algebra(shards),
        )
        for name, shards in (("softmax", _softmax_shards), ("log_softmax", _log_softmax_shards))
    ),
)
