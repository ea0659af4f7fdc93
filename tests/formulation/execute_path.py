"""Paths on plain numpy arrays: what the steps mean, and the proof that they move the right elements."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from partita.formulation.rvd.state import Box, Path, RvdStep, State

Array: TypeAlias = NDArray[Any]
Arrays: TypeAlias = dict[int, Array]
"""By device."""


def execute(path: Path, arrays: Mapping[int, Array], shape: tuple[int, ...]) -> Arrays:
    """What every device holds after the path, of a tensor of this shape; `arrays` are the pieces before it."""
    held = dict(arrays)
    for step in path.steps:
        held = _sent(step, held, shape) if step.messages else _inside(step, held)
    return held


def value_of(state: State, arrays: Mapping[int, Array], shape: tuple[int, ...]) -> Array:
    """The tensor that the pieces are: the sum of its addends; ValueError where two copies of one differ."""
    first: dict[tuple[int, tuple[int, ...]], Array] = {}
    total = np.zeros(shape, next(iter(arrays.values())).dtype)
    for device, piece in zip(state.devices, state.pieces, strict=True):
        array, box = arrays[device], piece.box(state.rvd, shape)
        if array.shape != tuple(stop - start for start, stop in box):
            raise ValueError(f"device {device} holds {array.shape}, not {box} of {shape}")
        if (piece.value, piece.parts) not in first:
            first[piece.value, piece.parts] = array
            total[_slices(box)] += array
        elif not np.array_equal(array, first[piece.value, piece.parts]):
            raise ValueError(f"device {device} holds another {piece} than others do")
    return total


def _inside(step: RvdStep, held: Arrays) -> Arrays:
    """Every member of a group gets what the kind makes of the pieces of all members, in their order."""
    rule = RULES[step.kind]
    found: Arrays = {}
    for group in step.groups:
        pieces = [held[device] for device in group]
        found |= {device: rule(pieces, j, step) for j, device in enumerate(group)}
    return found


def _cut(array: Array, parts: int, j: int, dim: int | None) -> Array:
    assert dim is not None
    return np.split(array, parts, axis=dim)[j]


def _padded(pieces: list[Array], j: int, step: RvdStep) -> Array:
    assert step.dim is not None
    return np.concatenate([x if i == j else np.zeros_like(x) for i, x in enumerate(pieces)], axis=step.dim)


def _joined(pieces: list[Array], dim: int | None) -> Array:
    assert dim is not None
    return np.concatenate(pieces, axis=dim)


def _sum(pieces: list[Array]) -> Array:
    total: Array = np.sum(pieces, axis=0)
    return total


Rule: TypeAlias = Callable[[list[Array], int, RvdStep], Array]
RULES: dict[str, Rule] = {
    "schunk": lambda x, j, step: _cut(x[j], len(x), j, step.dim),
    "vchunk": lambda x, j, step: x[j] if j == 0 else np.zeros_like(x[j]),
    "pad": _padded,
    "all-gather": lambda x, j, step: _joined(x, step.dim),
    "all-reduce": lambda x, j, step: _sum(x),
    "reduce-scatter": lambda x, j, step: _cut(_sum(x), len(x), j, step.dim),
    "all-to-all": lambda x, j, step: _joined([_cut(piece, len(x), j, step.dim) for piece in x], step.joined),
}
"""What member j holds afterwards, from what all hold before."""


def _sent(step: RvdStep, held: Arrays, shape: tuple[int, ...]) -> Arrays:
    """Receivers add up what comes, each into zeros."""
    before = dict(zip(step.before.devices, step.before.pieces, strict=True))
    boxes = {
        device: piece.box(step.after.rvd, shape)
        for device, piece in zip(step.after.devices, step.after.pieces, strict=True)
    }
    dtype = next(iter(held.values())).dtype
    found = {device: np.zeros([stop - start for start, stop in box], dtype) for device, box in boxes.items()}
    for sender, receiver, box in step.messages:
        inside = _slices(box, before[sender].box(step.before.rvd, shape))
        found[receiver][_slices(box, boxes[receiver])] += held[sender][inside]
    return found


def _slices(box: Box, around: Box | None = None) -> tuple[slice, ...]:
    """Where a box lies in the tensor, or in a box around it."""
    origin = [0] * len(box) if around is None else [start for start, _ in around]
    return tuple(slice(start - o, stop - o) for (start, stop), o in zip(box, origin, strict=True))
