"""Normalizations whose normalized dim is split: ranks add up statistics, two numbers a row, instead of gathering rows.

Layer norm and group norm add up the mean and the mean of squares (in float64, as their difference counts), backward the
two sums that their gradient needs; a root mean square norm one of each. A group norm can be split along space, and
along channels where they are one group.
"""

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

from ...model.graph.builder import Builder
from ...model.graph.layout import Action
from ...model.operators.operator import operator
from ..strategies.row import Row
from .registry import PROGRAMS, Message, Part, Situation, Special, Splits, register_strategy


def _rows(at: Situation) -> Iterator[Row]:
    """One for every normalized dim that is one atom, and splits nothing else."""
    dims, others = len(at.node.shape), range(1, len(at.sources))
    for d in range(1, dims) if at.node.op == "group_norm" else range(dims - at.node["normalized"], dims):
        letters = [at.split(0, d), at.split(-1, d)]
        if at.node.op != "group_norm":
            letters += [at.split(i, d - dims) for i in others]
        elif d > 1:  # space, which the weights lack
            letters += map(at.whole, others)
        elif at.node["groups"] == 1:
            letters += [at.split(i, 0) for i in others]
        else:
            continue
        found = [letter for letter in letters if letter is not None]
        if len(found) == len(letters):
            yield Row((found[0], *found[2:]), found[1], (f"{d}", 0), "normalize")


def _count(part: Part, shape: Sequence[int]) -> int:
    """How many values of a tensor of this shape are normalized together."""
    if part.node.op == "group_norm":
        groups = part.node["groups"]
        return (shape[1] if groups == 1 else part.node.shape[1] // groups) * prod(shape[2:])
    return prod(shape[len(shape) - part.node["normalized"] :])


def _numbers(part: Part) -> tuple[int, int]:
    """Rows of a rank, and how many statistics each has."""
    shape = part.inputs[0]
    return prod(shape) // _count(part, shape), 1 if part.node.op == "rms_norm" else 2


def _messages(part: Part) -> Iterator[Message]:
    """The statistics of each row; and what separate kernels read and write more than a fused one.

    Forward is a reduction, and four kernels by element that read and write; backward normalizes again, has four
    products by element, four reductions and three more kernels. A fused kernel has half as many passes as counted for
    it, so that is 3 times in and out more forward and 10 times backward.
    """
    (rows, count), wide = _numbers(part), max(part.item, 4)
    yield Message(Action.SUM, rows * (wide if count == 1 else 16))
    yield Message(Action.SUM, rows * count * wide, True)
    yield Message(Action.PAD, prod(part.output) * wide, times=3)
    yield Message(Action.PAD, prod(part.output) * wide, True, 10)


def _kept(part: Part) -> int:
    """Mean and deviation of each row."""
    rows, count = _numbers(part)
    return rows * count * max(part.item, 4)


def _emit(site: Any, names: Sequence[str], splits: Splits) -> str:
    node, shape = site.node, site.node.shape
    axes = ", ".join(site.axes[axis] for axis, _ in splits)
    rest = f"({axes},)" if len(splits) == 1 else f"({axes})"
    given = dict(zip(operator(node.op).named(node), names, strict=False))
    weights = [f"{word}={given[word]}" for word in ("w", "bias") if word in given]
    eps = node.get("eps", 1e-5)
    if node.op == "group_norm":
        groups, channels = node["groups"], shape[1] // node["groups"]
        count, local = channels * prod(shape[2:]), channels if groups > 1 else -1
        return f"normalize_groups({', '.join([names[0], f'{local}, {count}', rest, repr(eps), *weights])})"
    dims = node["normalized"]
    options = [*weights, *(["centred=False"] if node.op == "rms_norm" else [])]
    text = f"{names[0]}, {dims}, {prod(shape[len(shape) - dims :])}, {rest}, {eps!r}"
    return f"normalize({', '.join([text, *options])})"


def _weight(b: Builder, *shape: int) -> int:
    return b.parameter(f"p{len(b.nodes)}.weight", shape)


def _leaf(b: Builder, *shape: int) -> int:
    """Neither centred nor of deviation 1."""
    x = b.add("mul", b.input(f"x{len(b.nodes)}", shape), _weight(b, shape[-1]), shape=shape)
    return b.add("shift", x, shape=shape, value=3.0)


def _layer_norm(b: Builder) -> int:
    x = _leaf(b, 6, 3, 23)
    return b.add("layer_norm", x, _weight(b, 23), _weight(b, 23), shape=(6, 3, 23), normalized=1, eps=1e-5)


def _rms_norm(b: Builder) -> int:
    """Over two dims, of which either may be split."""
    x = _leaf(b, 6, 8, 23)
    return b.add("rms_norm", x, _weight(b, 8, 23), shape=(6, 8, 23), normalized=2, eps=None)


def _space(b: Builder) -> int:
    x = _leaf(b, 6, 4, 8, 11)
    return b.add("group_norm", x, _weight(b, 4), _weight(b, 4), shape=(6, 4, 8, 11), groups=2, eps=1e-5)


def _channels(b: Builder) -> int:
    return b.add("group_norm", _leaf(b, 6, 22, 3), _weight(b, 22), shape=(6, 22, 3), groups=1, eps=1e-5)


register_strategy(
    Special(
        "normalize",
        ("layer_norm", "rms_norm", "group_norm"),
        _rows,
        _messages,
        _emit,
        program=PROGRAMS / "normalize.py",
        primitives=("all_reduce",),
        kept=_kept,
        several=True,
        examples=(_layer_norm, _rms_norm, _space, _channels),
    )
)
