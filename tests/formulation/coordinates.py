"""Ranks and coordinates of placements, digit by digit."""

from __future__ import annotations

from collections.abc import Sequence

from partita.formulation.placement.placement import Placement


def coordinates(placement: Placement, rank: int) -> tuple[int, ...]:
    """Coordinate of a rank on every axis of the mesh."""
    if not 0 <= rank < placement.devices:
        raise ValueError(f"rank {rank} of {placement.devices} devices")
    result, weight = [0] * len(placement.sizes), [1] * len(placement.sizes)
    for column in reversed(tuple(zip(*placement.matrix, strict=True))):
        for axis in reversed(range(len(column))):
            rank, digit = divmod(rank, column[axis])
            result[axis] += digit * weight[axis]
            weight[axis] *= column[axis]
    return tuple(result)


def rank(placement: Placement, coordinates: Sequence[int]) -> int:
    """The rank at these coordinates, the inverse of `coordinates`."""
    if len(coordinates) != len(placement.sizes) or any(
        not 0 <= c < size for c, size in zip(coordinates, placement.sizes, strict=True)
    ):
        raise ValueError(f"coordinates {tuple(coordinates)} in a mesh of {placement.sizes}")
    left, number, weight = list(coordinates), 0, 1
    for column in reversed(tuple(zip(*placement.matrix, strict=True))):
        for axis in reversed(range(len(column))):
            left[axis], digit = divmod(left[axis], column[axis])
            number += digit * weight
            weight *= column[axis]
    return number
