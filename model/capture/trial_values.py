"""Random inputs with which calls are tried while a module is captured, and when two results of them are equal."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import isfinite, prod

import torch
from torch import Tensor

from ..graph.notation import accesses, parse

MOST_ELEMENTS = 1 << 18
"""Most elements of a tensor with which a call is run."""
MOST_WORK = 1 << 20
"""Elements after which a split of a size has been tried with enough values."""
KINDS = ("normal", "positive", "above one", "ties", "definite")
"""Kinds of random values; see `values`."""


@dataclass(frozen=True, slots=True)
class Operand:
    """An input of a call; `gradient`: it has one."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    gradient: bool


def scales_of(constants: Sequence[float]) -> tuple[float, ...]:
    """Magnitudes of values to try: a call with these constants may do nothing to what is below one of them."""
    own = (abs(float(c)) for c in constants if isfinite(c) and 1e-6 < abs(c) < 1e6)
    return tuple(dict.fromkeys((1.0, 30.0, *own)))[:4]


def samples(
    operands: Sequence[Operand], shapes: Sequence[tuple[int, ...]], seed: int, scales: Sequence[float] = (1.0,)
) -> Iterator[list[Tensor]]:
    """Random inputs of these shapes, of several kinds of values; none where a call with them takes too long."""
    elements = max(map(prod, shapes), default=1)
    if elements > MOST_ELEMENTS:
        return
    kinds = list(product(scales, KINDS))
    for number, (scale, kind) in enumerate(kinds[: max(len(KINDS), MOST_WORK // elements)]):
        generator = torch.Generator().manual_seed(1000 * seed + number)
        yield [
            values(shape, x.dtype, kind, scale, generator, 4 + seed).requires_grad_(
                x.gradient and x.dtype.is_floating_point
            )
            for shape, x in zip(shapes, operands, strict=True)
        ]


def values(
    shape: Sequence[int], dtype: torch.dtype, kind: str, scale: float, generator: torch.Generator, most: int
) -> Tensor:
    """Random values: floats, in float64, of this kind and scale; whole numbers, which may be places, below `most`."""
    if dtype == torch.bool:
        return torch.rand(shape, generator=generator) < (0.5 if kind != "positive" else 0.9)
    if not dtype.is_floating_point:
        high = {"normal": 4, "positive": 2, "above one": 3}.get(kind, most)
        return torch.randint(0, high, tuple(shape), generator=generator).to(dtype)
    value = torch.randn(shape, dtype=torch.float64, generator=generator)
    if kind == "positive":
        value = torch.rand(shape, dtype=torch.float64, generator=generator) * 0.9 + 0.05
    elif kind == "above one":
        value = 1.01 + value.abs()
    elif kind == "ties":
        value = (2 * value).round() / 2
    elif kind == "definite" and len(shape) > 1 and shape[-1] == shape[-2]:
        value = value @ value.mT / shape[-1] + torch.eye(shape[-1], dtype=torch.float64)
    return value * scale


def resized(shapes: Sequence[tuple[int, ...]], notation: str, sizes: Mapping[str, int]) -> list[tuple[int, ...]]:
    """The shapes of the inputs with the indices of a notation at these sizes."""
    (term,) = parse(notation).terms
    indices = [access.indices for access in accesses(term)]
    return [
        tuple(sizes.get(name, size) for name, size in zip(names, shape, strict=True))
        for names, shape in zip(indices, shapes, strict=True)
    ]


_TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-5}


def equal(a: Tensor, b: Tensor, tolerance: float = 0.0) -> bool:
    """True if two tensors agree up to rounding, NaN where NaN is."""
    a, b = a.detach(), b.detach()
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if b.is_complex():
        return equal(torch.view_as_real(a.resolve_conj()), torch.view_as_real(b.resolve_conj()), tolerance)
    if not b.is_floating_point():
        return torch.equal(a, b)
    if b.dtype not in _TOLERANCES:
        return False
    finite = b.isfinite()
    if not torch.equal(a.nan_to_num(0.5, 2.0, -2.0)[~finite], b.nan_to_num(0.5, 2.0, -2.0)[~finite]):
        return False
    if not bool(a.isfinite().eq(finite).all()):
        return False
    if not bool(finite.any()):
        return True
    bound = max(tolerance, _TOLERANCES[b.dtype]) * (1 + float(b[finite].abs().max()))
    return bool((a[finite] - b[finite]).abs().max() <= bound)
