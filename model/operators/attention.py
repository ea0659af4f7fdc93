"""Scaled dot-product attention, fused: the scores never reach memory."""

from collections.abc import Sequence
from math import prod

from ..graph.pcg import Node
from .operator import Operator, register


def _work(node: Node, inputs: tuple[Node, ...]) -> int:
    """Two products of queries by keys by width; a causal mask halves them."""
    q, k, v = inputs[:3]
    pairs = prod(node.shape[:-1]) * k.shape[-2]
    return 2 * pairs * (q.shape[-1] + v.shape[-1]) // (2 if node["causal"] else 1)


def attend(node: Node, names: Sequence[str], mask: str | None, causal: bool) -> str:
    """PyTorch's call; groups of query heads share keys and values where the node says so."""
    options = [
        f", attn_mask={mask}" if mask else "",
        ", is_causal=True" if causal else "",
        f", scale={node['scale']!r}" if node["scale"] is not None else "",
        ", enable_gqa=True" if node.get("grouped") else "",
    ]
    return f"F.scaled_dot_product_attention({', '.join(names[:3])}{''.join(options)})"


def _emit(node: Node, names: Sequence[str]) -> str:
    return attend(node, names, names[3] if len(names) > 3 else None, node["causal"])


def _notation(node: Node, inputs: tuple[Node, ...]) -> str:
    """With `grouped`, head number (g r) of the queries reads head g of keys and values, which are not copied."""
    of_query, of_key = ("b.., (g r)", "b.., g") if node.get("grouped") else ("b..", "b..")
    scores = f"q[{of_query}, s, :], k[{of_key}, :, :]"
    if len(inputs) > 3:
        scores += f", bias[{_mask(node, inputs[3].shape)}]"
    return f"y[{of_query}, s, e] = sum(t) f({scores})[t] * v[{of_key}, t, e]"


def _mask(node: Node, shape: tuple[int, ...]) -> str:
    """The indices of a mask, which may lack leading dims and have one head for all."""
    if not node.get("grouped"):
        return "b.., s, :"
    heads = [] if len(shape) < 3 else [":"] if shape[-3] == 1 else ["(g r)"]
    return ", ".join([*(["b.."] if len(shape) > 3 else []), *heads, "s, :"])


def _scores(node: Node, inputs: tuple[Node, ...]) -> int:
    """The gradient of a mask is made of all scores' before it is summed over what the mask is broadcast to."""
    learned = len(inputs) > 3 and inputs[3].gradient
    return prod(node.shape[:-1]) * inputs[1].shape[-2] if learned else 0


def _split(node: Node, inputs: tuple[Node, ...], index: str, part: float) -> tuple[float, int]:
    """Some queries of a causal attention are given a mask: no pair is left out, and the mask is kept as numbers.

    Where the values' width is split, every rank computes all scores.
    """
    q, k, v = inputs[:3]
    if index == "s" and node["causal"]:
        return 2.0, round(q.shape[-2] * k.shape[-2] * part)
    if index == "e":
        return (q.shape[-1] / part + v.shape[-1]) / (q.shape[-1] + v.shape[-1]), 0
    return 1.0, 0


register(
    Operator(
        "attention",
        ("q", "k", "v", "bias"),
        _notation,
        _emit,
        saved=("q", "k", "v", "bias", "y"),
        flops=_work,
        scratch=_scores,
        split=_split,
        matmul=True,
    )
)
