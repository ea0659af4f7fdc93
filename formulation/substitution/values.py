"""Parallel tensors with values (Unity §3.1).

A parallel tensor is a function of the replica index and the global data indices. Every data dim has digits: the degrees
by which it is partitioned, outermost first, in space or in time (pipeline, batch).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import prod
from typing import Any

import numpy as np

from ...model.operators.sharded import Array, Digit, Digits, IllTyped


def merged(digits: Iterable[Digit]) -> Digits:
    """Multiply neighbouring digits of one kind; drop those of degree 1."""
    kinds = groupby((d for d in digits if d.degree > 1), key=lambda d: d.time)
    return tuple(Digit(prod(d.degree for d in group), time) for time, group in kinds)


@dataclass(frozen=True, eq=False)
class ParallelValue:
    """`array` is [replicas, *global shape]; `digits` has one entry per data dim."""

    array: Array
    digits: tuple[Digits, ...]

    @staticmethod
    def of(array: Array, degrees: Sequence[int] = ()) -> ParallelValue:
        """A tensor [replicas, *shape], partitioned by `degrees`. Raises IllTyped if one does not divide its dim."""
        shape = array.shape[1:]
        given = tuple(degrees) or (1,) * len(shape)
        if len(given) != len(shape):
            raise IllTyped(f"{len(given)} degrees for the {len(shape)} dims of a tensor of shape {shape}")
        for dim, (size, degree) in enumerate(zip(shape, given, strict=True)):
            if degree < 1 or size % degree:
                raise IllTyped(f"dim {dim} of size {size} cannot be partitioned {degree} times")
        return ParallelValue(array, tuple(merged([Digit(d)]) for d in given))

    @property
    def replicas(self) -> int:
        return int(self.array.shape[0])

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape[1:]

    @property
    def state(self) -> tuple[Any, ...]:
        """Everything but the values."""
        return (*self.array.shape, *self.digits)

    def same(self, other: ParallelValue, tolerance: float = 0.0) -> bool:
        """Equal state and values; `tolerance` is relative to the largest entry, nan equals nan."""
        if self.state != other.state:
            return False
        if not tolerance:
            return bool(np.array_equal(self.array, other.array, equal_nan=self.array.dtype.kind == "f"))
        top = 1 + float(np.max(np.abs(other.array[np.isfinite(other.array)]), initial=0.0))
        return bool(np.allclose(self.array, other.array, rtol=0, atol=tolerance * top, equal_nan=True))

    def __str__(self) -> str:
        cuts = ["".join("/" + str(d.degree) + "t" * d.time for d in digits) for digits in self.digits]
        dims = [f"{size}{cut}" for size, cut in zip(self.shape, cuts, strict=True)]
        return f"[{', '.join(dims)}]" + (f"*{self.replicas}" if self.replicas > 1 else "")


def part_sizes(attributes: Mapping[str, Any], size: int) -> tuple[int, ...]:
    """The part sizes of a split: its attribute `sizes`, or `parts` equal ones."""
    parts = attributes.get("parts")
    sizes: tuple[int, ...] = tuple(attributes["sizes"]) if parts is None else (size // max(parts, 1),) * parts
    if sum(sizes) != size or min(sizes, default=0) < 1:
        raise IllTyped(f"a dim of size {size} cannot be split into {sizes}")
    return sizes
