"""How an operator is applied to the shards of parallel tensors: letters that say which dims go together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np

from .arithmetic import Arithmetic, Array
from .values import Digit, Digits, IllTyped, count

WHOLE = ""  # the letter of a dim that must be undivided

Letters: TypeAlias = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Signature:
    """How an operator is applied to a shard: a letter for every dim of every operand and result.

    `summed`: letters that results lack because they are added up. `uneven`: letters whose dims may differ in size.
    `local` makes a shard's results from its operands, all with the tasks as dim 0.
    """

    inputs: tuple[Letters, ...]
    outputs: tuple[Letters, ...]
    local: Callable[[Tasks, list[Array]], list[Array]]
    summed: Letters = ()
    uneven: frozenset[str] = frozenset()

    @property
    def letters(self) -> Letters:
        return tuple(dict.fromkeys((*(x for out in self.outputs for x in out if x), *self.summed)))


@dataclass(frozen=True)
class Tasks:
    """The tasks of one application: the digits of its letters, and how many surplus replicas there are."""

    arithmetic: Arithmetic
    digits: Mapping[str, Digits]
    surplus: int

    def degree(self, letter: str) -> int:
        """How often a letter is cut."""
        return count(self.digits.get(letter, ()))

    @cached_property
    def axes(self) -> tuple[tuple[str, Digit], ...]:
        return tuple((letter, digit) for letter, digits in self.digits.items() for digit in digits)

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        return (*(digit.degree for _, digit in self.axes), self.surplus)

    def position(self, letter: str) -> Array:
        """For every task which part of a letter it has."""
        grid = np.indices(self.sizes).reshape(len(self.sizes), -1)
        place = np.zeros(grid.shape[1], np.int64)
        for (name, digit), row in zip(self.axes, grid, strict=False):
            if name == letter:
                place = place * digit.degree + row
        return place


Attributes: TypeAlias = Mapping[str, Any]
Shape: TypeAlias = tuple[int, ...]
Entry: TypeAlias = Callable[[Attributes, Sequence[Shape]], Signature]


def names(count: int) -> Letters:
    return tuple(f"d{i}" for i in range(count))


def some(shapes: Sequence[Shape], least: int, most: int | None = None) -> Sequence[Shape]:
    if not least <= len(shapes) <= (most or least):
        raise IllTyped(f"takes {least if most is None else f'{least} to {most}'} tensors, not {len(shapes)}")
    return shapes


def broadcast(shapes: Sequence[Shape], rank: int) -> tuple[Letters, ...]:
    """Dims aligned at the right; those of size 1 that meet larger ones have no letter."""
    sizes = [max((s[len(s) - rank + i] for s in shapes if len(s) - rank + i >= 0), default=1) for i in range(rank)]
    return tuple(
        tuple(WHOLE if n == 1 and sizes[rank - len(s) + i] > 1 else f"d{rank - len(s) + i}" for i, n in enumerate(s))
        for s in shapes
    )


def ranked(a: Array, rank: int) -> Array:
    """A shard [tasks, ...] with leading dims of size 1 up to `rank`."""
    return a.reshape(a.shape[0], *(1,) * (rank - a.ndim + 1), *a.shape[1:]) if a.ndim <= rank else a


def soft(t: Tasks, x: Array, dim: int) -> tuple[Array, Array]:
    """exp(x), and one over its sum along `dim`."""
    f = t.arithmetic
    powers = f.call(("exp",), x)
    return powers, f.inverse(f.sum(powers, (dim,), keepdims=True))


def finished(t: Tasks, given: Attributes, y: Array) -> Array:
    """A result after the activation that is fused with its operator, if there is one."""
    name = given.get("activation", "none")
    return y if name in ("none", None) else t.arithmetic.call((name,), y)
