"""Scaled dot-product attention, fused: the scores never reach memory.

With dropout (the attributes `p` and `site`) the shares of the keys are dropped; see `dropout` in `elementwise.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from ..graph.pcg import Node
from . import sharded
from .algebra import Algebra
from .operator import Operator
from .sharded import WHOLE, Array, Attributes, IllTyped, Shape, ShardTasks, Signature

if TYPE_CHECKING:
    from torch import Tensor


def _work(node: Node, inputs: tuple[Node, ...]) -> int:
    """Two products of queries by keys by width; a causal mask halves them."""
    q, k, v = inputs[:3]
    pairs = prod(node.shape[:-1]) * k.shape[-2]
    return 2 * pairs * (q.shape[-1] + v.shape[-1]) // (2 if node["causal"] else 1)


def options(node: Node, mask: str | None, causal: bool) -> str:
    """Keywords of PyTorch's call, each after a comma; with `grouped`, groups of query heads share keys and values."""
    given = [
        f", attn_mask={mask}" if mask else "",
        ", is_causal=True" if causal else "",
        f", scale={node['scale']!r}" if node["scale"] is not None else "",
        ", enable_gqa=True" if node.get("grouped") else "",
    ]
    return "".join(given)


def _emit(node: Node, names: Sequence[str]) -> str:
    given = options(node, names[3] if len(names) > 3 else None, node["causal"])
    return f"F.scaled_dot_product_attention({', '.join(names[:3])}{given})"


def _notation(node: Node, inputs: tuple[Node, ...]) -> str:
    """With `grouped`, head number (g r) of the queries reads head g of keys and values, which are not copied."""
    of_query, of_key = ("b.., (g r)", "b.., g") if node.get("grouped") else ("b..", "b..")
    scores = f"q[{of_query}, s, :], k[{of_key}, :, :]"
    if len(inputs) > 3:
        scores += f", bias[{_mask(node, inputs[3].shape)}]"
    return f"y[{of_query}, s, e] = sum(t) f({scores})[t] * v[{of_key}, t, e]"


def _mask(node: Node, shape: tuple[int, ...]) -> str:
    """The indices of a mask, which may lack leading dims or be shared by all heads."""
    if not node.get("grouped"):
        return "b.., s, :"
    heads = [] if len(shape) < 3 else [":"] if shape[-3] == 1 else ["(g r)"]
    return ", ".join([*(["b.."] if len(shape) > 3 else []), *heads, "s, :"])


def _scores(node: Node, inputs: tuple[Node, ...]) -> int:
    """A learned mask: its gradient has all scores before the sum over broadcast dims."""
    learned = len(inputs) > 3 and inputs[3].gradient
    return prod(node.shape[:-1]) * inputs[1].shape[-2] if learned else 0


def _split(node: Node, inputs: tuple[Node, ...], index: str, part: float) -> tuple[float, int]:
    """A shard of causal queries needs an explicit mask: no pair is skipped, and the mask is kept.

    If the values' width is split, every rank computes all scores.
    """
    q, k, v = inputs[:3]
    if index == "s" and node["causal"]:
        return 2.0, round(q.shape[-2] * k.shape[-2] * part)
    if index == "e":
        return (q.shape[-1] / part + v.shape[-1]) / (q.shape[-1] + v.shape[-1]), 0
    return 1.0, 0


def written_out(node: Node, x: Sequence[Tensor], mask: Tensor | None = None) -> Tensor:
    """Softmax of the scaled, masked scores, times the `mask` of dropout, times the values.

    Queries that see no key have shares of 0, as in PyTorch.
    """
    import torch

    q, k, v = x[:3]
    if node.get("grouped"):
        k, v = (t.repeat_interleave(q.shape[-3] // t.shape[-3], -3) for t in (k, v))
    scale = node["scale"] if node["scale"] is not None else q.shape[-1] ** -0.5
    scores = q @ k.mT * scale
    if node["causal"]:
        scores = scores.masked_fill(~torch.ones(scores.shape[-2:], dtype=torch.bool).tril(), -torch.inf)
    if len(x) > 3:
        scores = scores.masked_fill(~x[3], -torch.inf) if x[3].dtype == torch.bool else scores + x[3]
    blind = scores.isneginf().all(-1, keepdim=True)
    shares = scores.masked_fill(blind, 0).softmax(-1).masked_fill(blind, 0)
    result: Tensor = (shares if mask is None else shares * mask) @ v
    return result


def _attention_shards(given: Attributes, shapes: Sequence[Shape]) -> Signature:
    """softmax(q kᵀ scale + bias) v; a causal mask counts queries from the start of the whole sequence."""
    q, k, v, *bias = sharded.operands(shapes, 3, 4)
    rank = len(q)
    repeat = q[-3] // k[-3] if given.get("grouped") else 1
    if not rank == len(k) == len(v) >= 2 or q[-1] != k[-1] or k[-2] != v[-2]:
        raise IllTyped(f"attention of {q}, {k}, {v}")
    batch = sharded.letters(rank - 2)
    grouped = frozenset(batch[-1:]) if repeat > 1 else frozenset[str]()
    inputs = ((*batch, "s", WHOLE), (*batch, WHOLE, WHOLE), (*batch, WHOLE, "e"))
    masks = tuple((*sharded.broadcast([q[:-2], m[:-2]], rank - 2)[1], "s", WHOLE) for m in bias)
    scale = given.get("scale") or q[-1] ** -0.5

    def local(t: ShardTasks, a: list[Array]) -> list[Array]:
        f, (queries, keys, values) = t.arithmetic, a[:3]
        if repeat > 1:
            keys, values = (np.repeat(x, repeat, axis=-3) for x in (keys, values))
        scores = f.sum(f.mul(queries[..., :, None, :], keys[..., None, :, :]), -1)
        scores = f.scale(scores, scale)
        scores = f.add(scores, sharded.ranked(a[3], rank)) if bias else scores
        powers, total = (
            sharded.exponentials(t, scores, scores.ndim - 1)
            if not given.get("causal")
            else _causal_exponentials(t, scores)
        )
        shares = f.mul(powers, total)
        return [f.sum(f.mul(shares[..., :, :, None], values[..., None, :, :]), -2)]

    return Signature((*inputs, *masks), ((*batch, "s", "e"),), local, uneven=grouped)


def _causal_exponentials(t: ShardTasks, scores: Array) -> tuple[Array, Array]:
    """As `exponentials`, for queries that see only the keys up to their own place."""
    f, (here, keys) = t.arithmetic, scores.shape[-2:]
    place = (t.position("s") * here)[:, None] + np.arange(here)
    seen = (np.arange(keys) <= place[..., None]).reshape(-1, *(1,) * (scores.ndim - 3), here, keys)
    powers = f.call(("exp",), scores) * seen
    return powers, f.inverse(f.sum(powers, -1, keepdims=True))


OPERATORS = (
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
        random="p",
        reference=written_out,
        algebra=Algebra(_attention_shards),
    ),
)
