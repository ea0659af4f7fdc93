"""How operators apply to the shards of parallel tensors: equal letters mark dims that are split together.

Entries of the registry use this to say how rules evaluate them; dims without a letter must be undivided.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from math import prod
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..errors import PartitaError

Array: TypeAlias = NDArray[Any]
Attributes: TypeAlias = Mapping[str, Any]
Key: TypeAlias = tuple[Any, ...]  # a function's name, then its attributes
Letters: TypeAlias = tuple[str, ...]
Shape: TypeAlias = tuple[int, ...]

WHOLE = ""  # the letter of a dim that must be undivided


class IllTyped(PartitaError):  # noqa: N818  the word of the verdict
    """An operator does not apply to tensors of these shapes or states."""


class Digit(NamedTuple):
    """A dim is cut `degree` times, in space or in time."""

    degree: int
    time: bool = False


Digits: TypeAlias = tuple[Digit, ...]


def count(digits: Digits) -> int:
    """The number of parts of a dim."""
    return prod(d.degree for d in digits)


def dim_of(dim: Any, rank: int) -> int:
    """A data dim counted from 0. Raises IllTyped if it does not exist."""
    if not isinstance(dim, int) or not -rank <= dim < rank:
        raise IllTyped(f"a tensor of {rank} dims has no data dim {dim}")
    return dim % rank


class Arithmetic(ABC):
    """The numbers that tensors hold. `lowest` is below every element."""

    lowest: int | float

    @abstractmethod
    def reduced(self, array: Array) -> Array:
        """Reduce an array after a sum or one product."""

    @abstractmethod
    def constant(self, value: int | float | Fraction) -> int | float:
        """A number as an element."""

    @abstractmethod
    def call(self, key: Key, *arguments: Array) -> Array:
        """An opaque function, elementwise."""

    @abstractmethod
    def inverse(self, a: Array) -> Array:
        """1 / a, elementwise."""

    @abstractmethod
    def random(self, shape: Sequence[int], seed: int) -> Array:
        """Entries that depend on the shape and the seed alone."""

    def add(self, a: Array, b: Array | int | float) -> Array:
        return self.reduced(a + b)

    def sub(self, a: Array, b: Array) -> Array:
        return self.reduced(a - b)

    def mul(self, a: Array, b: Array | int | float) -> Array:
        return self.reduced(a * b)

    def sum(self, a: Array, dims: int | tuple[int, ...], keepdims: bool = False) -> Array:
        return self.reduced(a.sum(dims, keepdims=keepdims))

    def scale(self, a: Array, value: int | float | Fraction) -> Array:
        return self.mul(a, self.constant(value))

    def einsum(self, equation: str, *operands: Array) -> Array:
        """`ab,bc->ac`: the product over all letters, then the sum over those that the output lacks."""
        sources, output = equation.split("->")
        terms = sources.split(",")
        letters = output + "".join(dict.fromkeys(c for c in "".join(terms) if c not in output))
        product = None
        for term, operand in zip(terms, operands, strict=True):
            present = [letter for letter in letters if letter in term]
            spread = operand.transpose([term.index(letter) for letter in present])
            spread = spread[tuple(slice(None) if letter in term else None for letter in letters)]
            product = spread if product is None else self.mul(product, spread)
        assert product is not None
        gone = tuple(range(len(output), len(letters)))
        return self.sum(product, gone) if gone else product


@dataclass(frozen=True, slots=True)
class Signature:
    """How an operator is applied to a shard: one letter per dim of every operand and result.

    `summed`: letters that are summed, so that results lack them. `uneven`: letters whose dims may differ in size.
    `local` computes a shard's results from its operands; dim 0 of all of them counts tasks.
    """

    inputs: tuple[Letters, ...]
    outputs: tuple[Letters, ...]
    local: Callable[[ShardTasks, list[Array]], list[Array]]
    summed: Letters = ()
    uneven: frozenset[str] = frozenset()

    @property
    def letters(self) -> Letters:
        return tuple(dict.fromkeys((*(x for out in self.outputs for x in out if x), *self.summed)))


@dataclass(frozen=True)
class ShardTasks:
    """The tasks of one application: the digits of its letters, and the surplus replicas."""

    arithmetic: Arithmetic
    digits: Mapping[str, Digits]
    surplus: int

    def degree(self, letter: str) -> int:
        """The number of parts of a letter."""
        return count(self.digits.get(letter, ()))

    @cached_property
    def axes(self) -> tuple[tuple[str, Digit], ...]:
        return tuple((letter, digit) for letter, digits in self.digits.items() for digit in digits)

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        return (*(digit.degree for _, digit in self.axes), self.surplus)

    def position(self, letter: str) -> Array:
        """Per task, the number of its part of a letter."""
        grid = np.indices(self.sizes).reshape(len(self.sizes), -1)
        place = np.zeros(grid.shape[1], np.int64)
        for (name, digit), row in zip(self.axes, grid, strict=False):
            if name == letter:
                place = place * digit.degree + row
        return place


Evaluation: TypeAlias = Callable[[Attributes, Sequence[Shape]], Signature]
"""The signature of an operator with these attributes on operands of these global shapes."""


def letters(count: int) -> Letters:
    """Distinct letters for `count` dims."""
    return tuple(f"d{i}" for i in range(count))


def operands(shapes: Sequence[Shape], least: int, most: int | None = None) -> Sequence[Shape]:
    """The shapes, if there are as many as the operator takes. Raises IllTyped otherwise."""
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


def exponentials(t: ShardTasks, x: Array, dim: int) -> tuple[Array, Array]:
    """exp(x), and one over its sum along `dim`."""
    f = t.arithmetic
    powers = f.call(("exp",), x)
    return powers, f.inverse(f.sum(powers, (dim,), keepdims=True))


def activated(t: ShardTasks, given: Attributes, y: Array) -> Array:
    """Apply the activation that is fused with the operator, if there is one."""
    name = given.get("activation", "none")
    return y if name in ("none", None) else t.arithmetic.call((name,), y)


def elementwise(function: Callable[..., Array], count: int = 2) -> Evaluation:
    """`function(tasks, attributes, *operands)` of every element, operands broadcast."""

    def evaluation(given: Attributes, shapes: Sequence[Shape]) -> Signature:
        rank = max(map(len, operands(shapes, count)))
        return Signature(
            broadcast(shapes, rank),
            (letters(rank),),
            lambda t, a: [activated(t, given, function(t, given, *(ranked(x, rank) for x in a)))],
        )

    return evaluation


def same_shape(function: Callable[[ShardTasks, Attributes, Array], Array]) -> Evaluation:
    """`function(tasks, attributes, operand)` of one operand, all dims alike."""

    def evaluation(given: Attributes, shapes: Sequence[Shape]) -> Signature:
        (shape,) = operands(shapes, 1)
        return Signature((letters(len(shape)),), (letters(len(shape)),), lambda t, a: [function(t, given, a[0])])

    return evaluation


def whole_along(shape: Shape, *dims: int) -> Letters:
    """Letters of a tensor that must be whole along some dims."""
    return tuple(WHOLE if d in dims else letter for d, letter in enumerate(letters(len(shape))))


def named_operands(given: Attributes, every: tuple[str, ...], shapes: Sequence[Shape]) -> tuple[str, ...]:
    """The names of the operands: those of the attribute `operands`, otherwise the first of `every`."""
    found = tuple(given.get("operands") or every[: len(shapes)])
    if len(found) != len(shapes) or not set(found) <= set(every):
        raise IllTyped(f"operands {', '.join(found)} for {len(shapes)} tensors; there are {', '.join(every)}")
    return found


def standardized(t: ShardTasks, x: Array, dims: tuple[int, ...], centered: bool, eps: float) -> Array:
    """Zero mean (if `centered`) and unit variance along dims."""
    f, share = t.arithmetic, Fraction(1, prod(x.shape[d] for d in dims))
    if centered:
        x = f.sub(x, f.scale(f.sum(x, dims, keepdims=True), share))
    variance = f.scale(f.sum(f.mul(x, x), dims, keepdims=True), share)
    return f.mul(x, rsqrt(t, variance, eps))


def rsqrt(t: ShardTasks, variance: Array, eps: float) -> Array:
    """1 / sqrt(variance + eps)."""
    f = t.arithmetic
    return f.call(("rsqrt",), f.add(variance, f.constant(eps)))


def by_channel(a: Array, x: Array) -> Array:
    """[tasks, c], shaped to be broadcast over x [tasks, n, c, ..]."""
    return a.reshape(a.shape[0], 1, a.shape[1], *(1,) * (x.ndim - 3))


def numbers(value: Any, count: int) -> tuple[int, ...]:
    numbers = (value,) * count if isinstance(value, int) else tuple(value)
    if len(numbers) != count:
        raise IllTyped(f"{value} does not have one number for each of {count} spatial dims")
    return numbers


def paddings(padding: Any, taps: Shape, dilation: Shape) -> tuple[tuple[int, int], ...]:
    """The padding (before, after) of each spatial dim."""
    if padding == "same":
        reach = [d * (k - 1) for k, d in zip(taps, dilation, strict=True)]
        return tuple((r // 2, r - r // 2) for r in reach)
    return tuple((p, p) for p in numbers(0 if padding == "valid" else padding, len(taps)))


def window_places(size: Shape, taps: Shape, stride: Shape, dilation: Shape) -> Shape:
    """The number of windows along each dim."""
    found = tuple((n - d * (k - 1) - 1) // s + 1 for n, k, s, d in zip(size, taps, stride, dilation, strict=True))
    if min(found) < 1:
        raise IllTyped(f"a window of {taps} does not fit {size}")
    return found


def window(tap: Shape, places: Shape, stride: Shape, dilation: Shape) -> Any:
    """The places that one tap of all windows reads, as an index of the last dims."""
    sizes = zip(tap, places, stride, dilation, strict=True)
    return (..., *(slice(i * d, i * d + s * (n - 1) + 1, s) for i, n, s, d in sizes))
