"""The hierarchies over which P² compares the synthesis of reduction programs (MLSys 2022, section 3.4).

| `Synthesis` | paper | levels | over |
|---|---|---|---|
| `system` | (a) | those of the machine | all devices |
| `columns` | (b) | every factor of the parallelism matrix, machine level by machine level | all devices |
| `rows` | (c) | every factor of the matrix, axis by axis | all devices |
| `axes` | (d) | the factors of the axes reduced over, axis by axis | each group of the reduction |
| `levels` | (d), collapsed | the same, those of one machine level multiplied | each group of the reduction |

P² and Partita use `levels`. Theorem 3.2 says that (d) expresses every program of (c), (c) those of (b), and (b) those
of (a). That holds for a reduction over one axis, for (c) with that axis last in the matrix. It fails in three ways:

- Master takes the first of everything below its slice. In (c) that includes the axes after the one reduced over, so
  Master leaves out whole groups there. (b) has the program, (c) has not; without Master it has, in any order of rows.
- Over several axes the proof no longer applies: it takes the factors between two levels to be neighbours in the row of
  *the* axis. A step inside of a node is a range of levels in (a) and (b), but not axis by axis: (c) and `axes` miss
  the reduce-scatter in nodes, all-reduce across and all-gather in nodes of two axes that are on both levels.
- `levels` collapses factors, so over several axes on one level it has fewer programs than `axes`, (b) and (c). On a
  wired level the best may be among those that it misses, and between switches where latency counts.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache

import numpy as np
from numpy.typing import NDArray

from ...model.errors import PartitaError
from ...model.machine.collective_price import FREE, CollectivePrice
from ...model.machine.machine import Machine
from ..placement.placement import of_rows
from .cost import price_of_groups, with_shares
from .enumeration import Move, instructions, programs, search
from .program import DEFAULT_LIMIT, Reduction, ReductionProgram, Step, groups
from .rules import States, initial

MOST_FACTORS = 4
"""Factors above 1 over which all programs are searched, with two devices for each; five take a minute."""


class Synthesis(StrEnum):
    """What the levels of a reduction program are; the table of the module."""

    SYSTEM = "system"
    COLUMNS = "columns"
    ROWS = "rows"
    AXES = "axes"
    LEVELS = "levels"


@dataclass(frozen=True, slots=True, eq=False)
class SynthesisHierarchy:
    """Levels of `sizes`, each above 1, outermost first; `members` [copies, product of the sizes]: devices in its order.

    A step runs in every copy: all devices are one copy, or each group of the reduction is. `factors`: the machine level
    of every level, and its axis if it is a factor of one.
    """

    sizes: tuple[int, ...]
    factors: tuple[tuple[int, int | None], ...]
    members: NDArray[np.int64]

    def names(self, machine: Machine) -> tuple[str, ...]:
        """The levels in words: `gpu`, `gpu of axis 0`."""
        return tuple(
            machine.levels[level].name + ("" if axis is None else f" of axis {axis}") for level, axis in self.factors
        )

    def groups(self, step: Step) -> NDArray[np.int64]:
        """[groups, members]: the devices of a step, roots first."""
        spread = self.sizes[step.first : step.last + 1]
        return self.members[:, np.array(groups(step, self.sizes))].reshape(-1, math.prod(spread))

    def move(self, step: Step) -> Move:
        """The step on devices."""
        return step.collective, tuple(sorted(map(tuple, self.groups(step).tolist())))


def hierarchy_of(reduction: Reduction, synthesis: Synthesis, rows: Sequence[int] | None = None) -> SynthesisHierarchy:
    """The levels of a synthesis; `rows`: the order in which (c) takes the axes, by default that of the mesh."""
    placement = reduction.placement
    matrix, depth = placement.matrix, range(len(placement.hierarchy))
    everything = range(len(matrix))
    columns = [(level, a) for level in depth for a in everything]
    devices = np.arange(placement.devices)
    match synthesis:
        case Synthesis.SYSTEM:
            return _hierarchy([(size, level, None) for level, size in enumerate(placement.hierarchy)], devices)
        case Synthesis.COLUMNS:
            return _hierarchy([(matrix[a][level], level, a) for level, a in columns], devices)
        case Synthesis.ROWS:
            order = [(level, a) for a in rows or everything for level in depth]
            by_columns = devices.reshape([matrix[a][level] for level, a in columns])
            by_rows = by_columns.transpose([columns.index(factor) for factor in order])
            return _hierarchy([(matrix[a][level], level, a) for level, a in order], by_rows)
        case Synthesis.AXES:
            by_axes = Reduction(placement, reduction.axes, "axes").members()
            return _hierarchy([(matrix[a][level], level, a) for a in reduction.axes for level in depth], by_axes)
        case Synthesis.LEVELS:
            by_levels = Reduction(placement, reduction.axes).members()
            return _hierarchy([(size, level, None) for level, size in enumerate(reduction.row)], by_levels)


def _hierarchy(levels: Sequence[tuple[int, int, int | None]], members: NDArray[np.int64]) -> SynthesisHierarchy:
    """Of the levels (size, machine level, axis) those above 1."""
    kept = [(size, (level, axis)) for size, level, axis in levels if size > 1]
    sizes, factors = tuple(size for size, _ in kept), tuple(factor for _, factor in kept)
    return SynthesisHierarchy(sizes, factors, members.reshape(-1, math.prod(sizes)))


def synthesized(
    reduction: Reduction, synthesis: Synthesis, limit: int = DEFAULT_LIMIT, rows: Sequence[int] | None = None
) -> tuple[ReductionProgram, ...]:
    """All valid programs of at most `limit` steps over the levels of a synthesis, short ones first; maybe none.

    Sizes of factors do not matter, so programs are searched with every factor of 2. PartitaError: more than
    `MOST_FACTORS` factors, of the axes reduced over or, where the search is on all devices, of the whole matrix.
    """
    hierarchy = hierarchy_of(reduction, synthesis, rows)
    if synthesis in (Synthesis.AXES, Synthesis.LEVELS):
        if len(hierarchy.sizes) > MOST_FACTORS:
            raise PartitaError(
                f"a reduction over more than {MOST_FACTORS} factors is too large for --synthesis {synthesis}, which "
                "prices every program; without it the cheapest one is found"
            )
        return programs(len(hierarchy.sizes), limit)
    matrix = tuple(tuple(min(factor, 2) for factor in row) for row in reduction.placement.matrix)
    if sum(factor > 1 for row in matrix for factor in row) > MOST_FACTORS:
        raise PartitaError(
            f"a matrix with more than {MOST_FACTORS} factors is too large for --synthesis {synthesis}, which searches "
            "on all devices; choose axes or levels, which search on one group"
        )
    return _on_devices(matrix, reduction.axes, synthesis, limit, None if rows is None else tuple(rows))


@cache
def _on_devices(
    matrix: tuple[tuple[int, ...], ...],
    axes: tuple[int, ...],
    synthesis: Synthesis,
    limit: int,
    rows: tuple[int, ...] | None,
) -> tuple[ReductionProgram, ...]:
    reduction = Reduction(of_rows(matrix), axes)
    hierarchy = hierarchy_of(reduction, synthesis, rows)
    steps = [instruction.step(len(hierarchy.sizes)) for instruction in instructions(len(hierarchy.sizes))]
    found = search(
        [hierarchy.move(step) for step in steps], initial(reduction.placement.devices), summed(reduction), limit
    )
    return tuple(tuple(steps[i] for i in program) for program in found)


def summed(reduction: Reduction) -> States:
    """The goal on all devices: each has all chunks, with the addends of its group."""
    k = reduction.placement.devices
    end = np.zeros((k, k, k), dtype=np.bool_)
    for members in reduction.members():
        end[np.ix_(members, range(k), members)] = True
    return end


@dataclass(frozen=True, slots=True)
class Enumerated:
    """The number of programs of a synthesis, and the fastest of them with its time; None where there is none."""

    programs: int
    program: ReductionProgram | None
    ns: int | None


def cheapest(
    machine: Machine,
    reduction: Reduction,
    synthesis: Synthesis,
    size_bytes: int,
    profile: str | None = None,
    limit: int = DEFAULT_LIMIT,
) -> Enumerated:
    """All programs of a synthesis, each priced. PartitaError: see `synthesized` and `cost.price_of_groups`."""
    found = synthesized(reduction, synthesis, limit)
    hierarchy = hierarchy_of(reduction, synthesis)
    lines: dict[Step, CollectivePrice] = {}
    times: dict[ReductionProgram, int] = {}
    for program in found:
        total = FREE
        for step, share in with_shares(program, hierarchy.sizes):
            if step not in lines:
                lines[step] = price_of_groups(machine, hierarchy.groups(step), step.collective, profile)
            total += lines[step].of_share(share)
        times[program] = total.ns(size_bytes)
    best = min(times, key=times.__getitem__, default=None)
    return Enumerated(len(found), best, None if best is None else times[best])
