"""Normalizations and softmax: whole along the dims that they normalize."""

from collections.abc import Sequence

from ..graph.pcg import Node
from .keywords import keywords
from .operator import Operator, register


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


def _softmax(node: Node, inputs: tuple[Node, ...]) -> str:
    names = [f"d{i}" for i in range(len(node.shape))]
    inside = ", ".join(":" if d == node["dim"] else name for d, name in enumerate(names))
    return f"y[{', '.join(names)}] = f(x[{inside}])[{names[node['dim']]}]"


register(Operator("layer_norm", ("x", "w", "bias"), _normalized, _layer_norm, saved=("x",), passes=1.5))
register(Operator("group_norm", ("x", "w", "bias"), _grouped, _group_norm, saved=("x",), passes=1.5))
register(Operator("rms_norm", ("x", "w"), _normalized, _rms_norm, saved=("x",), passes=1.5))
register(Operator("softmax", ("x",), _softmax, "torch.softmax({x}, {dim})", saved=("y",), passes=1.5))
register(Operator("log_softmax", ("x",), _softmax, "torch.log_softmax({x}, {dim})", saved=("y",), passes=1.5))
