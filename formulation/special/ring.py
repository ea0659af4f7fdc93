"""Attention whose sequence is split: keys and values go round a ring of ranks (Liu et al., Ring Attention, 2023).

Each rank has a part of the queries and a part of keys and values. Keys and values pass from rank to rank, and every
rank merges what its queries attend to in each part by the running maximum and sum of exponentials. Backward sends keys
and values round once more, and their gradients with them. No rank ever has all keys, and scores exist one piece at a
time: a rank keeps its parts and one number a query.
"""

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

from ...model.graph.builder import Builder
from ...model.graph.layout import Action
from ...model.operators.operator import is_random
from ..strategies.row import Row
from .example_inputs import scaled_input
from .registry import PROGRAMS, Message, Part, Situation, Special, Splits, register_strategy


def _rows(at: Situation) -> Iterator[Row]:
    """Not with a mask as input: every rank would need the columns of all keys. Nor with dropout, which it lacks."""
    letters = tuple(at.split(operand, -2) for operand in range(3))
    y = at.split(-1, -2)
    if len(at.sources) == 3 and not is_random(at.node) and y is not None and None not in letters:
        yield Row(tuple(x for x in letters if x is not None), y, ("ring", 0), "ring")


def _shown(part: Part) -> float:
    """The share of all keys to which a query of the rank with most work attends: of the last rank, if causal.

    Parts are contiguous, so the last of p ranks does (2 p - 1) / p^2 of a causal attention's work.
    """
    return 1 - part.output[-2] / (2 * part.whole(-1, -2)) if part.node["causal"] else 1.0


def _messages(part: Part) -> Iterator[Message]:
    """Keys and values forward and backward, their gradients in float32 at least; and the scores, which are not fused.

    In each of p steps, the scores of a block are written by a product, read for their maximum, made exponentials (two
    reads and two writes), read for their sum, and read by a product: 8 passes, or 4 reads and writes. Backward has 14:
    two products write and three read, and between them are two subtractions, an exponential and an elementwise product.
    For 16-bit scores some passes are shorter, but the exponentials, in float32, are cast, which costs as much.
    """
    steps = part.ranks - 1
    gradients = (prod(part.inputs[1]) + prod(part.inputs[2])) * max(part.item, 4)
    yield Message(Action.SEND, part.bytes(1) + part.bytes(2), times=steps)
    yield Message(Action.SEND, part.bytes(1) + part.bytes(2), True, steps)
    yield Message(Action.SEND, gradients, True, steps)
    scores = prod(part.output[:-1]) * part.whole(1, -2) * _shown(part) * max(part.item, 4)
    yield Message(Action.PAD, int(scores / part.ranks), times=4 * part.ranks)
    yield Message(Action.PAD, int(scores / part.ranks), True, 7 * part.ranks)


def _work(part: Part) -> float:
    """Under a causal mask the last rank has more than an even share."""
    return 2 * _shown(part) if part.node["causal"] else 1.0


def _kept(part: Part) -> int:
    """The logarithm of each query's sum of exponentials."""
    return prod(part.output[:-1]) * max(part.item, 4)


def _emit(site: Any, names: Sequence[str], splits: Splits) -> str:
    ((axis, _),) = splits
    queries, keys = site.sources[0].shape[-2], site.sources[1].shape[-2]
    options = [", causal=True"] if site.node["causal"] else []
    options += [f", scale={site.node['scale']!r}"] if site.node["scale"] is not None else []
    return f"ring_attention({', '.join(names[:3])}, {site.axes[axis]}, {queries}, {keys}{''.join(options)})"


def _causal(b: Builder) -> int:
    """Heads that share keys and values, and parts of different sizes."""
    q, k, v = scaled_input(b, 6, 4, 23, 5), scaled_input(b, 6, 2, 23, 5), scaled_input(b, 6, 2, 23, 3)
    return b.add("attention", q, k, v, shape=(6, 4, 23, 3), causal=True, scale=None, grouped=True)


def _across(b: Builder) -> int:
    """Cross-attention, with another number of keys than queries."""
    q, k, v = scaled_input(b, 6, 16, 4), scaled_input(b, 6, 22, 4), scaled_input(b, 6, 22, 4)
    return b.add("attention", q, k, v, shape=(6, 16, 4), causal=False, scale=0.4)


register_strategy(
    Special(
        "ring",
        ("attention",),
        _rows,
        _messages,
        _emit,
        program=PROGRAMS / "ring.py",
        work=_work,
        kept=_kept,
        examples=(_causal, _across),
    )
)
