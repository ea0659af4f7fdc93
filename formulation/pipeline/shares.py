"""Shares of a machine: the devices of every stage, where stages have unequally many.

The stages lie side by side in the order of the model: stage s has the devices from the sum of the shares before it on.
A share is a part of one unit of the machine, or several whole units of one level, and is priced as one of equal stages
of that size (`stage_machine`): it shares the links of its unit with as many others.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from math import prod

from ...model.errors import PartitaError
from ...model.machine.machine import Machine, stage_machine
from ...model.options import times
from ..placement.placement import Row, divisors


def share_row(hierarchy: Sequence[int], devices: int) -> Row | None:
    """The factors of a pipeline, outermost first, whose stages have so many adjacent devices; None if none has.

    >>> share_row((2, 4), 2), share_row((2, 4), 3)
    ((2, 2), None)
    """
    below = 1
    for level in reversed(range(len(hierarchy) if devices > 0 else 0)):
        if devices <= below * hierarchy[level]:
            units = devices // below
            if devices % below or hierarchy[level] % units:
                return None
            return (*hierarchy[:level], hierarchy[level] // units, *(1,) * (len(hierarchy) - level - 1))
        below *= hierarchy[level]
    return None


def shares_of(hierarchy: Sequence[int]) -> tuple[int, ...]:
    """The sizes that a share of a machine may have, without all of its devices; descending."""
    every = prod(hierarchy)
    return tuple(d for d in divisors(every) if d < every and share_row(hierarchy, d) is not None)


def ways(hierarchy: Sequence[int], shares: Sequence[int], stages: int | None = None) -> int:
    """How many `divisions` there are, without a list of them, which would be long where shares are small.

    >>> ways((2, 2), (1, 2)), ways((2, 2), (1, 2), 3), ways((48,), (24, 16, 12, 8, 6, 4, 3))
    (4, 2, 388764)
    """
    every = prod(hierarchy)
    found = [Counter[int]() for _ in range(every + 1)]  # by devices so far, and stages
    found[0][0] = 1
    for start, before in enumerate(found[:-1]):
        for share in _next(hierarchy, shares, start) if before else ():
            for count, n in before.items():
                found[start + share][count + 1] += n
    return found[every].total() if stages is None else found[every][stages]


def blocks(shares: Sequence[int]) -> tuple[range, ...]:
    """The devices of every stage.

    >>> blocks((1, 2, 1))
    (range(0, 1), range(1, 3), range(3, 4))
    """
    return tuple(range(start, stop) for start, stop in pairwise((0, *accumulate(shares))))


def lies_in_units(hierarchy: Sequence[int], block: range) -> bool:
    """True if adjacent devices are a part of one unit, or several whole units of one level within one of the next."""
    below = 1
    for size in reversed(hierarchy):
        if len(block) <= below * size:
            whole = len(block) % below == 0 and block.start % below == 0
            return whole and block.start // (below * size) == (block.stop - 1) // (below * size)
        below *= size
    return False


def share_rows(hierarchy: Sequence[int], shares: Sequence[int]) -> tuple[Row, ...]:
    """`share_row` of every stage. PartitaError: stages of such shares do not make up the machine."""
    found = [share_row(hierarchy, share) for share in shares]
    rows = tuple(row for row in found if row is not None)
    if len(rows) < len(shares) or sum(shares) != prod(hierarchy):
        raise PartitaError(f"stages of {', '.join(map(str, shares))} devices on a machine of {times(tuple(hierarchy))}")
    for block in blocks(shares):
        if not lies_in_units(hierarchy, block):
            raise PartitaError(
                f"a stage on devices {block.start} to {block.stop - 1} of a machine of {times(tuple(hierarchy))} is "
                "neither a part of one unit nor several whole ones"
            )
    return rows


def stage_machines(machine: Machine, row: Row, shares: Sequence[int], stages: int) -> tuple[Machine, ...]:
    """The part of a machine that every stage has: of equal ones by their pipeline's row, or by their shares."""
    rows = share_rows(machine.hierarchy, shares) if shares else (row,) * stages
    return tuple(stage_machine(machine, own) for own in rows)


def divisions(
    hierarchy: Sequence[int], shares: Sequence[int], stages: int | None = None, start: int = 0
) -> Iterator[tuple[int, ...]]:
    """All ways to give every device from `start` on to one of at least two stages with such shares.

    >>> list(divisions((2, 2), (1, 2)))
    [(1, 1, 1, 1), (1, 1, 2), (2, 1, 1), (2, 2)]
    """
    every = prod(hierarchy)
    if start == every:
        if not stages:
            yield ()
        return
    if stages == 0:
        return
    left = None if stages is None else stages - 1
    for share in _next(hierarchy, shares, start):
        for rest in divisions(hierarchy, shares, left, start + share):
            yield (share, *rest)


def _next(hierarchy: Sequence[int], shares: Sequence[int], start: int) -> list[int]:
    """The shares that a stage may have whose first device is `start`."""
    every = prod(hierarchy)
    return [
        share
        for share in shares
        if share < every and start + share <= every and lies_in_units(hierarchy, range(start, start + share))
    ]
