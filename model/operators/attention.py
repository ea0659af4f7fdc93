"""Scaled dot-product attention, fused: the scores never reach memory."""

from collections.abc import Sequence
from math import prod

from ..operator import Operator, register
from ..pcg import Node


def _work(node: Node, inputs: tuple[Node, ...]) -> int:
    """Two products of queries by keys by width; a causal mask halves them."""
    q, k, v = inputs[:3]
    pairs = prod(node.shape[:-1]) * k.shape[-2]
    return 2 * pairs * (q.shape[-1] + v.shape[-1]) // (2 if node["causal"] else 1)


def _emit(node: Node, names: Sequence[str]) -> str:
    mask = f", attn_mask={names[3]}" if len(names) > 3 else ""
    causal = ", is_causal=True" if node["causal"] else ""
    scale = f", scale={node['scale']!r}" if node["scale"] is not None else ""
    return f"F.scaled_dot_product_attention({', '.join(names[:3])}{mask}{causal}{scale})"


def _notation(node: Node, inputs: tuple[Node, ...]) -> str:
    scores = "q[b.., s, :], k[b.., :, :]" + (", mask[b.., s, :]" if len(inputs) > 3 else "")
    return f"y[b.., s, e] = sum(t) f({scores})[t] * v[b.., t, e]"


register(
    Operator(
        "attention",
        ("q", "k", "v", "mask"),
        _notation,
        _emit,
        saved=("q", "k", "v", "y"),
        flops=_work,
        matmul=True,
    )
)
