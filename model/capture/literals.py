"""Tensors with values as expressions that make them: constants of forward must not become lists of numbers."""

import math

import torch
from torch import Tensor

from ..errors import PartitaError
from ..graph.builder import Builder
from .known_values import once
from .translation import Index, dtype_name

MAX_CONSTANT = 256
"""Most elements of a tensor that is written as numbers."""
_FEW = 64
"""Most elements for which numbers read better than an expression."""


def literal(builder: Builder, name: str, tensor: Tensor) -> Index:
    """A node for a tensor that forward creates, or an attribute that is not a buffer.

    One number, consecutive numbers, a triangle of one number, few numbers; each also repeated along dims. Raises
    PartitaError for others.
    """
    if not has_values(tensor):
        raise PartitaError(f"the constant {name!r} has no values: it was created on the meta device")
    made = written(builder, name, tensor)
    if made is None:
        raise PartitaError(
            f"the constant {name!r} of shape {tuple(tensor.shape)} is no range, triangle or single number: it must be "
            f"a buffer of the module (register_buffer), unless it has at most {MAX_CONSTANT} elements, all finite"
        )
    return made


def written(builder: Builder, name: str, tensor: Tensor) -> Index | None:
    """As `literal`, for a tensor that has values; None for others than these."""
    tensor = as_real(tensor.detach())
    small = once(_repeated(tensor))
    made = _expression(builder, name, small)
    if made is not None and small.shape != tensor.shape:
        made = Index(builder.add("expand", made, shape=tensor.shape, dtype=dtype_name(tensor.dtype), name=name))
    return made


def has_values(tensor: Tensor) -> bool:
    """False for tensors without memory: those on meta, and fake ones."""
    return tensor.device.type != "meta" and not isinstance(tensor, torch._subclasses.FakeTensor)


def as_real(tensor: Tensor) -> Tensor:
    """A complex tensor with its real and imaginary parts as a last dim."""
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def _repeated(tensor: Tensor) -> Tensor:
    """The tensor, expanded along the dims in which all its entries are equal."""
    for dim in range(tensor.dim()):
        first = tensor.narrow(dim, 0, 1) if tensor.shape[dim] else tensor
        if tensor.shape[dim] > 1 and tensor.stride(dim) and torch.equal(tensor, first.expand(tensor.shape)):
            tensor = first.expand(tensor.shape)
    return tensor


def _expression(builder: Builder, name: str, tensor: Tensor) -> Index | None:
    dtype, shape = dtype_name(tensor.dtype), tuple(tensor.shape)
    if tensor.numel() == 1:
        return Index(builder.add("full", shape=shape, dtype=dtype, name=name, value=tensor.item()))
    values = tensor.flatten().tolist() if tensor.numel() <= MAX_CONSTANT else []
    as_numbers = not tensor.numel() or (values and all(map(math.isfinite, values)))
    if not as_numbers or tensor.numel() > _FEW:
        made = _line(builder, name, tensor)
        made = _triangle(builder, name, tensor) if made is None else made
        if made is not None or not as_numbers:
            return made
    return Index(builder.add("constant", shape=shape, dtype=dtype, name=name, values=tuple(values)))


def _line(builder: Builder, name: str, tensor: Tensor) -> Index | None:
    """Consecutive numbers."""
    dtype, shape = dtype_name(tensor.dtype), tuple(tensor.shape)
    if tensor.dtype != torch.bool and max(shape, default=0) == tensor.numel():
        start, step = tensor.flatten()[0].item(), tensor.flatten().diff()[0].item()
        line = torch.arange(tensor.numel(), dtype=tensor.dtype) * step + start
        if step and torch.equal(line, tensor.flatten()):
            stop = start + step * tensor.numel()
            numbers = builder.add(
                "arange", shape=(tensor.numel(),), dtype=dtype, name=name, start=start, stop=stop, step=step
            )
            return Index(numbers if len(shape) == 1 else builder.add("view", numbers, shape=shape, name=name))
    return None


def _triangle(builder: Builder, name: str, tensor: Tensor) -> Index | None:
    """One number on and below a diagonal, or on and above it, in the last two dims; zero elsewhere."""
    if tensor.dim() < 2 or tensor.numel() != math.prod(tensor.shape[-2:]):
        return None
    matrix, (rows, columns) = tensor.reshape(tensor.shape[-2:]), tensor.shape[-2:]
    row, column = int((matrix[0] != 0).sum()), int((matrix[:, 0] != 0).sum())  # entries that are not zero
    for op, function, corner, diagonals in (
        ("tril", torch.tril, matrix[-1, 0], (row - 1, column - rows)),
        ("triu", torch.triu, matrix[0, -1], (columns - row, 1 - column)),
    ):
        for diagonal in diagonals:
            if torch.equal(function(corner.expand(rows, columns), diagonal), matrix):
                dtype, shape = dtype_name(tensor.dtype), tuple(tensor.shape)
                full = builder.add("full", shape=shape, dtype=dtype, name=f"{name}.full", value=corner.item())
                return Index(builder.add(op, full, shape=shape, dtype=dtype, name=name, diagonal=diagonal))
    return None
