"""Normalizations whose normalized dim is split: ranks add up statistics, two numbers a row, instead of gathering rows.

Layer norm and group norm add up the mean and the mean of squares (in float64, as their difference counts), backward the
two sums that their gradient needs; a root mean square norm adds up one number each way. A group norm can be split along
space, and along channels if they form one group.
"""

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

from ...model.graph.builder import Builder
from ...model.graph.layout import Action
from ...model.operators.operator import operator
from ..strategies.row import Row
from .example_inputs import scaled_input
from .registry import PROGRAMS, Message, Part, Situation, Special, Splits, register_strategy


def _rows(at: Situation) -> Iterator[Row]:
    """One for every normalized dim that is one atom."""
    dims, others = len(at.node.shape), range(1, len(at.sources))
    for d in range(1, dims) if at.node.op == "group_norm" else range(dims - at.node["normalized"], dims):
        letters = [at.split(0, d), at.split(-1, d)]
        if at.node.op != "group_norm":
            letters += [at.split(i, d - dims) for i in others]
        elif d > 1:  # space, which weights do not have
            letters += map(at.whole, others)
        elif at.node["groups"] == 1:
            letters += [at.split(i, 0) for i in others]
        else:
            continue
        found = [letter for letter in letters if letter is not None]
        if len(found) == len(letters):
            yield Row((found[0], *found[2:]), found[1], (f"{d}", 0), "normalize")


def _count(part: Part, shape: Sequence[int]) -> int:
    """The number of values that are normalized together in a tensor of this shape."""
    if part.node.op == "group_norm":
        groups = part.node["groups"]
        return (shape[1] if groups == 1 else part.node.shape[1] // groups) * prod(shape[2:])
    return prod(shape[len(shape) - part.node["normalized"] :])


def _statistics(part: Part) -> tuple[int, int]:
    """Rows of a rank, and statistics of each row."""
    shape = part.inputs[0]
    return prod(shape) // _count(part, shape), 1 if part.node.op == "rms_norm" else 2


def _messages(part: Part) -> Iterator[Message]:
    """The statistics of each row; and what separate kernels read and write more than a fused one.

    Forward is a reduction and four elementwise kernels; backward normalizes again, and has four elementwise products,
    four reductions and three more kernels. A fused kernel has half of the passes that the cost model counts for it, so
    separate ones read and write 3 times more forward and 10 times more backward.
    """
    (rows, count), wide = _statistics(part), max(part.item, 4)
    yield Message(Action.SUM, rows * (wide if count == 1 else 16))
    yield Message(Action.SUM, rows * count * wide, True)
    yield Message(Action.PAD, prod(part.output) * wide, times=3)
    yield Message(Action.PAD, prod(part.output) * wide, True, 10)


def _kept(part: Part) -> int:
    """Mean and deviation of each row."""
    rows, count = _statistics(part)
    return rows * count * max(part.item, 4)


def _emit(site: Any, names: Sequence[str], splits: Splits) -> str:
    node, shape = site.node, site.node.shape
    axes = ", ".join(site.axes[axis] for axis, _ in splits)
    over = f"({axes},)" if len(splits) == 1 else f"({axes})"
    given = dict(zip(operator(node.op).named(node), names, strict=False))
    weights = [f"{word}={given[word]}" for word in ("w", "bias") if word in given]
    eps = node.get("eps", 1e-5)
    if node.op == "group_norm":
        groups, channels = node["groups"], shape[1] // node["groups"]
        count, local = channels * prod(shape[2:]), channels if groups > 1 else -1
        return f"normalize_groups({', '.join([names[0], f'{local}, {count}', over, repr(eps), *weights])})"
    dims = node["normalized"]
    options = [*weights, *(["centred=False"] if node.op == "rms_norm" else [])]
    text = f"{names[0]}, {dims}, {prod(shape[len(shape) - dims :])}, {over}, {eps!r}"
    return f"normalize({', '.join([text, *options])})"


def _weight(b: Builder, *shape: int) -> int:
    return b.parameter(f"p{len(b.nodes)}.weight", shape)


def _shifted(b: Builder, *shape: int) -> int:
    """Values whose mean is not 0 and whose deviation is not 1."""
    return b.add("shift", scaled_input(b, *shape), shape=shape, value=3.0)


def _layer_norm(b: Builder) -> int:
    x = _shifted(b, 6, 3, 23)
    return b.add("layer_norm", x, _weight(b, 23), _weight(b, 23), shape=(6, 3, 23), normalized=1, eps=1e-5)


def _rms_norm(b: Builder) -> int:
    """Over two dims, either of which can be split."""
    x = _shifted(b, 6, 8, 23)
    return b.add("rms_norm", x, _weight(b, 8, 23), shape=(6, 8, 23), normalized=2, eps=None)


def _space(b: Builder) -> int:
    x = _shifted(b, 6, 4, 8, 11)
    return b.add("group_norm", x, _weight(b, 4), _weight(b, 4), shape=(6, 4, 8, 11), groups=2, eps=1e-5)


def _channels(b: Builder) -> int:
    return b.add("group_norm", _shifted(b, 6, 22, 3), _weight(b, 22), shape=(6, 22, 3), groups=1, eps=1e-5)


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
