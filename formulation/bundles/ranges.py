"""Ranges of coordinates of an axis: unequal shares of devices for the branches of a sum.

A branch on a range of an axis runs on a mesh on which this axis has only these ranks, and splits its samples over them.
Weights are on all of them, and their gradients are summed there.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from ...model.machine.machine import Machine
from ..placement.placement import Placement, of_rows

MOST_SHARES = 8
"""Sizes of a range that are tried on an axis: of a larger one only multiples, and a single coordinate."""


class Shares(NamedTuple):
    """The largest time and bytes of a range; for every branch the first coordinate of its range, and its size."""

    time: int
    size: int
    places: tuple[int, ...]
    shares: tuple[int, ...]


def within(machine: Machine, placement: Placement, axis: int, share: int) -> tuple[Machine, Placement] | None:
    """The part of a machine, and of a mesh on it, that `share` adjacent coordinates of an axis are.

    All coordinates send at once, so links of outer levels are divided evenly among them. None if the axis spans several
    levels, or if one of these levels is not a switch: then parts differ.
    """
    row = placement.matrix[axis]
    levels = [level for level, factor in enumerate(row) if factor > 1]
    if len(levels) != 1 or any(level.wiring is not None for level in machine.levels[: levels[0] + 1]):
        return None
    at = levels[0]
    outer = (replace(level, bandwidth=level.bandwidth * share / row[at]) for level in machine.levels[:at])
    smaller = replace(machine.levels[at], size=machine.levels[at].size // row[at] * share)
    part = replace(machine, levels=(*outer, smaller, *machine.levels[at + 1 :]))
    rows = list(placement.matrix)
    rows[axis] = tuple(share if level == at else factor for level, factor in enumerate(row))
    return part, of_rows(rows)


def sizes_tried(coordinates: int) -> tuple[int, ...]:
    """The sizes of ranges on an axis, smallest first."""
    step = math.ceil(coordinates / MOST_SHARES)
    return tuple(sorted({1, *range(step, coordinates, step)}))


def divisions(
    branches: int, coordinates: int, costs: Callable[[int, int], tuple[int, int] | None], add_ns: int
) -> list[Shares]:
    """Ranges for all groupings of branches, each with the sizes that minimize its slowest range; some larger than one.

    `costs(branch, size)`: time and bytes of a branch on a range; None if it cannot be split so. Of results that meet on
    a range, all but one are added, which takes `add_ns`. Only the Pareto-optimal divisions are returned.
    """
    found = []
    for groups in _groupings(tuple(range(branches))):
        if 2 <= len(groups) < coordinates:
            shares = _divided(groups, coordinates, costs, add_ns)
            if shares is not None:
                found.append(shares)
    best: list[Shares] = []
    for one in sorted(found):
        if not any(other.size <= one.size for other in best):
            best.append(one)
    return best


def _groupings(branches: tuple[int, ...]) -> Iterator[list[list[int]]]:
    """All partitions of the branches."""
    if not branches:
        yield []
        return
    first, *rest = branches
    for groups in _groupings(tuple(rest)):
        yield [[first], *groups]
        for number in range(len(groups)):
            yield [*groups[:number], [first, *groups[number]], *groups[number + 1 :]]


def _divided(
    groups: Sequence[Sequence[int]], coordinates: int, costs: Callable[[int, int], tuple[int, int] | None], add_ns: int
) -> Shares | None:
    """The ranges of some groups: from one coordinate each, always the slowest group gets the next larger range."""
    tried = sizes_tried(coordinates)

    def cost(group: Sequence[int], share: int) -> tuple[int, int] | None:
        each = [costs(branch, share) for branch in group]
        known = [pair for pair in each if pair is not None]
        if len(known) < len(each):
            return None
        return sum(ns for ns, _ in known) + add_ns * (len(group) - 1), sum(size for _, size in known)

    shares = [1] * len(groups)
    first = [cost(group, 1) for group in groups]
    now = [pair for pair in first if pair is not None]
    if len(now) < len(groups):
        return None
    while True:
        slowest = max(range(len(groups)), key=lambda g: now[g])
        free = coordinates - sum(shares)
        larger = (share for share in tried if shares[slowest] < share <= shares[slowest] + free)
        better = ((share, pair) for share in larger if (pair := cost(groups[slowest], share)) and pair < now[slowest])
        step = next(better, None)
        if step is None:
            break
        shares[slowest], now[slowest] = step
    if max(shares) == 1:
        return None
    places, sizes, start = [0] * sum(map(len, groups)), [0] * sum(map(len, groups)), 0
    for group, share in zip(groups, shares, strict=True):
        for branch in group:
            places[branch], sizes[branch] = start, share
        start += share
    return Shares(max(ns for ns, _ in now), max(size for _, size in now), tuple(places), tuple(sizes))
