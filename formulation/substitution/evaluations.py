"""Evaluations of operators on shards: those of the registry, and of the two operators that only rules have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np

from ...model.operators.operator import Operator, find_operator, operators
from ...model.operators.sharded import (
    Array,
    Attributes,
    Evaluation,
    IllTyped,
    Shape,
    Signature,
    Tasks,
    dim_of,
    elementwise,
    letters,
    operands,
    same_shape,
)
from ...model.operators.views import permute_shards
from .values import part_sizes


def _transpose(given: Attributes, shapes: Sequence[Shape]) -> Signature:
    """The last two dims swapped."""
    rank = len(operands(shapes, 1)[0])
    if rank < 2:
        raise IllTyped("transpose takes at least two dims")
    return permute_shards({"dims": (*range(rank - 2), rank - 1, rank - 2)}, shapes)


def _split(given: Attributes, shapes: Sequence[Shape]) -> Signature:
    (shape,) = operands(shapes, 1)
    if given.get("rank", len(shape)) != len(shape):
        raise IllTyped(f"split takes a tensor of {given['rank']} dims, not of shape {shape}")
    dim, named = dim_of(given["dim"], len(shape)), letters(len(shape))
    sizes = part_sizes(given, shape[dim])

    def local(t: Tasks, a: list[Array]) -> list[Array]:
        degree = t.degree(named[dim])
        if any(size % degree for size in sizes):
            raise IllTyped(f"parts {sizes} of a dim that is cut {degree} times are not whole shards")
        return np.split(a[0], np.cumsum([size // degree for size in sizes])[:-1], dim + 1)

    return Signature((named,), (named,) * len(sizes), local)


_OWN: Mapping[str, Evaluation] = {"split": _split, "transpose": _transpose}


def evaluation(op: str) -> Evaluation | None:
    """An operator's evaluation; None if its rules can only be proved."""
    if op in _OWN:
        return _OWN[op]
    entry = find_operator(op)
    return None if entry is None else entry.algebra.evaluation or _by_notation(entry)


def evaluated() -> tuple[str, ...]:
    """The names of all operators that are evaluated."""
    return tuple(sorted({*_OWN, *(entry.name for entry in operators() if evaluation(entry.name) is not None)}))


def _by_notation(entry: Operator) -> Evaluation | None:
    """The evaluation of an elementwise operator by the `f` or `L` that its entry defines."""
    if entry.algebra.multiple is not None:
        return same_shape(partial(_multiplied, entry.algebra.multiple))
    if entry.algebra.real is None:
        return None
    if len(entry.operands) == 1:
        return same_shape(partial(_called, entry.name))
    return elementwise(partial(_called, entry.name), len(entry.operands))


def _multiplied(multiple: int | str, t: Tasks, given: Attributes, a: Array) -> Array:
    return a if multiple == 1 else t.arithmetic.scale(a, given[multiple] if isinstance(multiple, str) else multiple)


def _called(name: str, t: Tasks, given: Attributes, *a: Array) -> Array:
    return t.arithmetic.call((name, *sorted(given.items())), *a)
