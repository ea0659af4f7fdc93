"""Reduction programs: collectives over the levels of a reduction, and their groups of devices (P², section 3).

A reduction over mesh axes under a placement has one *level* for every machine level its group spreads over; its size is
the product of the axes' factors in the parallelism matrix. Levels of size 1 are dropped; the outermost comes first.
Members of a group are numbered in mixed radix over the levels, consecutively on the innermost level. Where several axes
are reduced, P²'s measurements fit another numbering, in mixed radix over the axes (`Numbering`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import product
from math import prod
from typing import Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from ...model.errors import PartitaError
from ..placement.placement import Placement, ranks

Groups: TypeAlias = tuple[tuple[int, ...], ...]

Numbering: TypeAlias = Literal["levels", "axes"]
NUMBERINGS: tuple[Numbering, ...] = get_args(Numbering)
"""What numbers the members of a group: the levels, so that a step inside a level stays in its units, or the axes.

By axes the last axis varies fastest, and the levels' sizes cut that list: where an earlier axis has a factor on an
inner level and a later one on an outer level, a "level" of a program spans units."""

DEFAULT_LIMIT = 5
"""Most collectives in a program, as in P²."""


class Collective(StrEnum):
    """A collective of a group; its first member is the root."""

    ALL_REDUCE = "all_reduce"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_GATHER = "all_gather"
    REDUCE = "reduce"
    BROADCAST = "broadcast"

    @property
    def words(self) -> str:
        """In prose: reduce-scatter."""
        return self.value.replace("_", "-")


@dataclass(frozen=True, slots=True)
class Step:
    """One collective in every group of members that differ only on levels `first` to `last`, inclusive.

    On the levels in `zero` only digit 0 takes part (P²'s Master: all levels below `last`; after a reduce, the levels it
    emptied).
    """

    collective: Collective
    first: int
    last: int
    zero: tuple[int, ...] = ()

    @property
    def levels(self) -> range:
        """The levels over which a group spreads."""
        return range(self.first, self.last + 1)


ReductionProgram: TypeAlias = tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Reduction:
    """A reduction over `axes` of a placement: its levels and groups of devices.

    `sizes`: the sizes of its levels; `machine_levels`: their machine levels (0: outermost). `numbering`: what
    numbers the members of a group. PartitaError: an axis that does not exist or occurs twice.
    """

    placement: Placement
    axes: tuple[int, ...]
    numbering: Numbering = "levels"

    def __post_init__(self) -> None:
        known = range(len(self.placement.sizes))
        if len(set(self.axes)) < len(self.axes) or any(a not in known for a in self.axes):
            raise PartitaError(f"a reduction over axes {self.axes} of {len(known)}: name each once, from 0 on")

    @property
    def row(self) -> tuple[int, ...]:
        """Units of each machine level that one group spreads over."""
        return tuple(prod(self.placement.matrix[a][level] for a in self.axes) for level in range(self._depth))

    @property
    def _depth(self) -> int:
        return len(self.placement.matrix[0])

    @property
    def machine_levels(self) -> tuple[int, ...]:
        return tuple(level for level, m in enumerate(self.row) if m > 1)

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(m for m in self.row if m > 1)

    @property
    def size(self) -> int:
        """Members of one group."""
        return prod(self.row)

    def members(self) -> NDArray[np.int64]:
        """[groups, size]: the ranks of every group, by member number."""
        matrix, depth = self.placement.matrix, self._depth
        # One digit per (axis, level): a coordinate is in mixed radix over the levels.
        digits = ranks(self.placement).reshape([matrix[a][level] for a in range(len(matrix)) for level in range(depth)])
        mine = [a * depth + level for a in self.axes for level in range(depth)]
        if self.numbering == "levels":
            mine.sort(key=lambda digit: digit % depth)
        rest = [d for d in range(len(matrix) * depth) if d not in mine]
        return digits.transpose(*rest, *mine).reshape(-1, self.size)


def groups(step: Step, sizes: Sequence[int]) -> Groups:
    """The groups of a step within one reduction group, ascending, each with its root first."""
    numbers = np.arange(prod(sizes)).reshape(sizes)
    others = [level for level in range(len(sizes)) if level not in step.levels]
    found = []
    for digits in product(*(range(1 if level in step.zero else sizes[level]) for level in others)):
        where: list[int | slice] = [slice(None)] * len(sizes)
        for level, digit in zip(others, digits, strict=True):
            where[level] = digit
        found.append(tuple(numbers[tuple(where)].ravel().tolist()))
    return tuple(sorted(found))


def step_text(step: Step, names: Sequence[str], plural: str = "") -> str:
    """A step in words: `all-reduce over node (first gpu)`; `names` of the levels, to which over appends `plural`."""
    over = " x ".join(names[level] + plural for level in step.levels)
    first = f" (first {', '.join(names[level] for level in step.zero)})" if step.zero else ""
    return f"{step.collective.words} over {over}{first}"


def flat(sizes: Sequence[int]) -> ReductionProgram:
    """A single all-reduce over all levels; empty for a group of one."""
    return (Step(Collective.ALL_REDUCE, 0, len(sizes) - 1),) if sizes else ()
