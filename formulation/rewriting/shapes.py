"""The shapes of what rewritings make, from the shapes of what it reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, TypeAlias

Shape: TypeAlias = tuple[int, ...]


def shape_of(op: str, shapes: Sequence[Shape], attributes: Mapping[str, Any]) -> Shape | None:
    """The shape of a node; None where the operator does not take these inputs, or its shape is not known here."""
    if op not in _SHAPES:
        return None
    try:
        return _SHAPES[op](shapes, attributes)
    except (_UnfitError, IndexError, ZeroDivisionError):
        return None


class _UnfitError(Exception):
    """Inputs that an operator does not take."""


def _ask(fits: bool) -> None:
    if not fits:
        raise _UnfitError


def _linear(shapes: Sequence[Shape], attributes: Mapping[str, Any]) -> Shape:
    x, w, *bias = shapes
    _ask(len(w) == 2 and x[-1] == w[1] and all(b == (w[0],) for b in bias))
    return (*x[:-1], w[0])


def _matmul(shapes: Sequence[Shape], attributes: Mapping[str, Any]) -> Shape:
    a, b = shapes
    _ask(len(a) >= 2 and len(a) == len(b) and a[:-2] == b[:-2] and a[-1] == b[-2])
    return (*a[:-1], b[-1])


def _alike(shapes: Sequence[Shape], attributes: Mapping[str, Any]) -> Shape:
    _ask(len({*shapes}) == 1)
    return shapes[0]


def _cat(shapes: Sequence[Shape], attributes: Mapping[str, Any]) -> Shape:
    dim = attributes["dim"]
    _ask(len({(*s[:dim], *s[dim + 1 :]) for s in shapes}) == 1 and 0 <= dim < len(shapes[0]))
    return (*shapes[0][:dim], sum(s[dim] for s in shapes), *shapes[0][dim + 1 :])


def _slice(shapes: Sequence[Shape], attributes: Mapping[str, Any]) -> Shape:
    (x,), dim = shapes, attributes["dim"]
    start, stop, step = attributes["start"], attributes["stop"], attributes["step"]
    _ask(0 <= start < stop <= x[dim] and step == 1)
    return (*x[:dim], stop - start, *x[dim + 1 :])


def _part(shapes: Sequence[Shape], attributes: Mapping[str, Any]) -> Shape:
    (x,), dim, of = shapes, attributes["dim"], attributes["of"]
    _ask(x[dim] % of == 0 and 0 <= attributes["number"] < of)
    return (*x[:dim], x[dim] // of, *x[dim + 1 :])


def _permute(shapes: Sequence[Shape], attributes: Mapping[str, Any]) -> Shape:
    (x,) = shapes
    _ask(sorted(attributes["dims"]) == list(range(len(x))))
    return tuple(x[d] for d in attributes["dims"])


def _conv(shapes: Sequence[Shape], attributes: Mapping[str, Any]) -> Shape:
    x, w, *bias = shapes
    groups, padding = attributes["groups"], attributes["padding"]
    _ask(len(x) == len(w) and x[1] == w[1] * groups and w[0] % groups == 0 and all(b == (w[0],) for b in bias))
    space = []
    for d, size in enumerate(x[2:]):
        reach = attributes["dilation"][d] * (w[2 + d] - 1)
        around = reach if padding == "same" else 2 * padding[d]
        space.append((size + around - reach - 1) // attributes["stride"][d] + 1)
    _ask(all(size > 0 for size in space))
    return (x[0], w[0], *space)


def _pad(shapes: Sequence[Shape], attributes: Mapping[str, Any]) -> Shape:
    (x,), pairs = shapes, tuple(attributes["pad"])
    _ask(len(pairs) % 2 == 0 and len(pairs) <= 2 * len(x))
    grown = [sum(pairs[2 * d : 2 * d + 2]) for d in range(len(pairs) // 2)][::-1]  # the last dim comes first
    shape = (*x[: len(x) - len(grown)], *(size + by for size, by in zip(x[len(x) - len(grown) :], grown, strict=True)))
    _ask(all(size > 0 for size in shape))
    return shape


def _wide(shapes: Sequence[Shape], attributes: Mapping[str, Any]) -> Shape:
    """Of two operands, one of which may be broadcast."""
    a, b = sorted(shapes, key=len, reverse=True)
    b = (1,) * (len(a) - len(b)) + b
    _ask(all(x == y or 1 in (x, y) for x, y in zip(a, b, strict=True)))
    return tuple(max(x, y) for x, y in zip(a, b, strict=True))


def _view(shapes: Sequence[Shape], attributes: Mapping[str, Any]) -> Shape:
    shape: Shape = attributes["shape"]
    _ask(prod(shape) == prod(shapes[0]))
    return shape


_SHAPES: Mapping[str, Callable[[Sequence[Shape], Mapping[str, Any]], Shape]] = {
    "linear": _linear,
    "linear_relu": _linear,
    "matmul": _matmul,
    "cat": _cat,
    "slice": _slice,
    "part": _part,
    "permute": _permute,
    "conv": _conv,
    "pad": _pad,
    "view": _view,
    **dict.fromkeys(("add", "sub", "mul"), _wide),
    **dict.fromkeys(("relu", "gelu", "silu", "tanh", "sigmoid", "neg", "scale"), _alike),
}
