"""Where the axes of a mesh lie on a machine: parallelism matrices (P², MLSys 2022, section 3).

Row i, column l of the matrix is the factor of axis i on machine level l (outermost first). The product of a column is
the size of the level, the product of a row the size of the axis.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations, islice, permutations, product
from numbers import Integral

import numpy as np
from numpy.typing import NDArray

from ...model.errors import PartitaError
from ...model.graph.layout import splittable
from ...model.machine.machine import MAX_DEVICES
from ...model.options import times

Row = tuple[int, ...]

MOST_SIZES = 64  # levels, or axes; ones included
MOST_MATRICES = 100_000


@dataclass(frozen=True, slots=True)
class Placement:
    """A mesh and its parallelism matrix; rows are axes, columns machine levels."""

    sizes: tuple[int, ...]
    matrix: tuple[Row, ...]

    def __post_init__(self) -> None:
        if not self.matrix or len({len(row) for row in self.matrix}) != 1:
            raise ValueError(f"not a matrix: {self.matrix}")
        if any(factor < 1 for row in self.matrix for factor in row):
            raise ValueError(f"a factor below 1 in {self.matrix}")
        if self.sizes != tuple(math.prod(row) for row in self.matrix):
            raise ValueError(f"axes of sizes {self.sizes} do not have the rows {self.matrix}")

    @property
    def hierarchy(self) -> tuple[int, ...]:
        """Sizes of the machine's levels."""
        return tuple(math.prod(column) for column in zip(*self.matrix, strict=True))

    @property
    def devices(self) -> int:
        """Number of ranks."""
        return math.prod(self.sizes)


def of_rows(matrix: Iterable[Row]) -> Placement:
    """The placement with these rows."""
    rows = tuple(matrix)
    return Placement(tuple(math.prod(row) for row in rows), rows)


def placements(
    hierarchy: Sequence[int], axes: int | None = None, max_axes: int = 3, mesh: Sequence[int] | None = None
) -> tuple[Placement, ...]:
    """All placements on the hierarchy, each axis larger than 1 (one axis of size 1 on a single device).

    Without `mesh`: every mesh of `axes` axes (None: 1 to `max_axes`), once up to the order of its axes; the axis with
    the larger factor on the outermost level comes first. With `mesh`: those sizes in that order, every matrix.
    PartitaError: sizes that do not multiply to the devices, or an axis of size 1.
    """
    levels = _checked(hierarchy)
    devices = math.prod(levels)
    if mesh is not None:
        sizes = tuple(mesh)
        if not sizes or math.prod(sizes) != devices:
            named = times(sizes) or "()"
            raise PartitaError(f"mesh {named} does not have the {devices} devices of hierarchy {times(levels)}")
        if sizes != (1,) and any(size < 2 for size in sizes):
            raise PartitaError(f"mesh {times(sizes)}: an axis of size 1 splits nothing, leave it out")
        return tuple(of_rows(rows) for rows in _matrices(levels, sizes))
    if devices == 1:
        return (of_rows([levels]),)
    counts = range(1, max_axes + 1) if axes is None else (axes,)
    return tuple(of_rows(rows) for count in counts for rows in _canonical(levels, count, levels))


def innermost_last(hierarchy: Sequence[int], mesh: Sequence[int]) -> Placement:
    """The placement that gives each axis the innermost units that the axes after it leave: tensor ranks in a node.

    PartitaError: an axis that no whole number of units makes up.
    """
    left, found = list(hierarchy), list[Row]()
    for size in reversed(tuple(mesh)):
        row = [1] * len(left)
        rest = size
        for level in reversed(range(len(left))):
            row[level] = math.gcd(left[level], rest)
            left[level] //= row[level]
            rest //= row[level]
            if rest > 1 and left[level] > 1:
                raise PartitaError(f"an axis of {size} does not divide the levels {times(tuple(hierarchy))} evenly")
        if rest > 1:
            raise PartitaError(f"mesh {times(tuple(mesh))} does not fit the levels {times(tuple(hierarchy))}")
        found.append(tuple(row))
    return of_rows(reversed(found))


def arrangements(hierarchy: Sequence[int], axes: Sequence[int]) -> tuple[Placement, ...]:
    """Every parallelism matrix of these axes, in their order, on the hierarchy; axes of size 1 are allowed.

    PartitaError: see `check_axes`; more than `MOST_MATRICES` matrices.
    """
    levels, sizes = check_axes(hierarchy, axes)
    found = tuple(islice(_matrices(levels, sizes), MOST_MATRICES + 1))
    if len(found) > MOST_MATRICES:
        raise PartitaError(
            f"axes {times(sizes)} have more than {MOST_MATRICES:,} placements on hierarchy {times(levels)}; "
            "join some axes"
        )
    return tuple(map(of_rows, found))


def check_axes(hierarchy: Sequence[int], axes: Sequence[int]) -> tuple[Row, Row]:
    """Levels and axes as tuples.

    PartitaError: too many, a size that is no whole number of 1 or more, axes that do not multiply to the devices.
    """
    levels, sizes = _checked(hierarchy), tuple(axes)
    if not _are_sizes(sizes):
        raise PartitaError(
            f"axes {times(sizes) or '()':.60}: one or more axes (up to {MOST_SIZES}) are needed, "
            "each of size 1 or more, in whole"
        )
    if math.prod(sizes) != math.prod(levels):
        raise PartitaError(
            f"axes {times(sizes)} multiply to {math.prod(sizes):,}, "
            f"but hierarchy {times(levels)} has {math.prod(levels):,} devices; both must be equal"
        )
    return levels, sizes


def check_reduced(axes: Sequence[int], reduced: Sequence[int]) -> tuple[int, ...]:
    """The reduction axes in ascending order; PartitaError where they are none, unknown, repeated or all of size 1."""
    if not reduced:
        raise PartitaError("the reduction is empty: name at least one axis to reduce over")
    for axis in reduced:
        if not 0 <= axis < len(axes):
            raise PartitaError(f"no axis {axis} to reduce over: the axes are 0 to {len(axes) - 1}")
        if reduced.count(axis) > 1:
            raise PartitaError(f"axis {axis} is to be reduced over twice; name it once")
    if all(axes[axis] == 1 for axis in reduced):
        names = ", ".join(map(str, reduced))
        raise PartitaError(f"the reduction is empty: each axis it is over ({names}) has size 1, a group of one device")
    return tuple(sorted(reduced))


def _checked(hierarchy: Sequence[int]) -> Row:
    levels = tuple(hierarchy)
    if not _are_sizes(levels):
        raise PartitaError(
            f"hierarchy {times(levels) or '()':.60}: every level has a size of 1 or more, in whole; "
            f"at most {MOST_SIZES} levels"
        )
    if math.prod(levels) > MAX_DEVICES:
        raise PartitaError(f"hierarchy {times(levels)} has {math.prod(levels):,} devices; the most is {MAX_DEVICES:,}")
    return levels


def _are_sizes(sizes: Row) -> bool:
    return 1 <= len(sizes) <= MOST_SIZES and all(isinstance(size, Integral) and size >= 1 for size in sizes)


def _matrices(residual: Row, sizes: tuple[int, ...]) -> Iterator[tuple[Row, ...]]:
    """All matrices with these row and column products."""
    if len(sizes) == 1:
        if math.prod(residual) == sizes[0]:
            yield (residual,)
        return
    for row in _rows(residual, sizes[0]):
        for rest in _matrices(_divide(residual, row), sizes[1:]):
            yield (row, *rest)


def _rows(residual: Row, size: int) -> Iterator[Row]:
    """Rows of product `size` whose factors divide the residual's, larger outer factors first."""
    if not residual:
        if size == 1:
            yield ()
        return
    for factor in divisors(math.gcd(residual[0], size)):
        for rest in _rows(residual[1:], size // factor):
            yield (factor, *rest)


def _canonical(residual: Row, count: int, bound: Row) -> Iterator[tuple[Row, ...]]:
    """All matrices of `count` rows, none all ones, in descending order and none above `bound`."""
    if count == 1:
        if math.prod(residual) > 1 and residual <= bound:
            yield (residual,)
        return
    for row in product(*map(divisors, residual)):
        if row <= bound and math.prod(row) > 1:
            for rest in _canonical(_divide(residual, row), count - 1, row):
                yield (row, *rest)


def divisors(n: int) -> list[int]:
    """Divisors of n, descending."""
    small = [d for d in range(1, math.isqrt(n) + 1) if n % d == 0]
    return sorted({*small, *(n // d for d in small)}, reverse=True)


@cache
def prime_factors(n: int) -> tuple[int, ...]:
    """Prime factors of n, ascending, each as often as it divides n."""
    factor = next((p for p in range(2, math.isqrt(n) + 1) if n % p == 0), n)
    return () if n == 1 else (factor, *prime_factors(n // factor))


def _divide(residual: Row, row: Row) -> Row:
    return tuple(r // f for r, f in zip(residual, row, strict=True))


# Orders of axes


def distinct(candidates: Iterable[Placement]) -> tuple[Placement, ...]:
    """Those placements that are not another one with axes of equal size renamed (larger outer factors come first)."""
    return tuple(
        p
        for p in candidates
        if all(
            p.matrix[i] >= p.matrix[j]
            for i in range(len(p.sizes))
            for j in range(i + 1, len(p.sizes))
            if p.sizes[i] == p.sizes[j]
        )
    )


def reordered(candidates: Iterable[Placement], sizes: Iterable[int]) -> tuple[Placement, ...]:
    """The candidates, and those orders of their axes that allow a split which none before allows.

    Several axes split one atom in mesh order, the first outermost, the last parts shorter. For sizes that they do not
    divide, the order decides whether a part is empty: 9 items are split by 3 and then 2, but not by 2 and then 3.
    `sizes` are those of the atoms to be split.
    """
    items = sorted(set(sizes))
    result: list[Placement] = []
    for candidate in candidates:
        allowed: set[tuple[int, frozenset[int]]] = set()
        for order in permutations(range(len(candidate.sizes))):
            mine = {
                (size, frozenset(subset))
                for count in range(2, len(order) + 1)
                for subset in combinations(order, count)
                for size in items
                if splittable(size, tuple(candidate.sizes[axis] for axis in subset))
            }
            if order == tuple(range(len(order))) or not mine <= allowed:
                result.append(of_rows(candidate.matrix[axis] for axis in order))
                allowed |= mine
    return tuple(dict.fromkeys(result))


def every_order(candidates: Iterable[Placement]) -> tuple[Placement, ...]:
    """The candidates, and every other order of their axes.

    The order says which axis is outermost where several split one atom, and so which conversions are cheap.
    """
    found = tuple(candidates)
    others = (of_rows(rows) for candidate in found for rows in permutations(candidate.matrix))
    return tuple(dict.fromkeys((*found, *others)))


# Numbering of the devices: level-major, and inside one level axis 0 is the most significant digit


def ranks(placement: Placement) -> NDArray[np.int64]:
    """The ranks as an array with one dimension per mesh axis: what `torch.distributed.DeviceMesh` takes."""
    axes, levels = len(placement.sizes), len(placement.hierarchy)
    digits = [row[level] for level in range(levels) for row in placement.matrix]
    order = [level * axes + axis for axis in range(axes) for level in range(levels)]
    numbers = np.arange(placement.devices, dtype=np.int64)
    return numbers.reshape(digits).transpose(order).reshape(placement.sizes)


def groups(placement: Placement, axis: int | Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Ranks that differ only on `axis` (one or several), each group and the groups in ascending order.

    On one axis ascending order is the order of the coordinate.
    """
    over = (axis,) if isinstance(axis, int) else tuple(axis)
    kept = [a for a in range(len(placement.sizes)) if a not in over]
    size = math.prod(placement.sizes[a] for a in over)
    rows = ranks(placement).transpose(*kept, *over).reshape(-1, size)
    return tuple(sorted(tuple(sorted(group)) for group in rows.tolist()))
