"""Placements: counts checked by hand and against brute force, and the numbering of the devices."""

import math
from itertools import combinations_with_replacement, product

import numpy as np
import pytest

from partita.formulation.placement.placement import (
    Placement,
    groups,
    of_rows,
    placements,
    ranks,
    reordered,
)
from partita.model.errors import PartitaError

from .coordinates import coordinates, rank

HIERARCHIES = [(2,), (6,), (8,), (2, 4), (3, 4), (4, 4), (1, 8), (2, 2, 2), (4, 2, 3), (2, 1, 6)]


def rows_of(hierarchy: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Every row that divides the hierarchy and is not all ones."""
    factors = [[d for d in range(1, h + 1) if h % d == 0] for h in hierarchy]
    return [row for row in product(*factors) if math.prod(row) > 1]


def columns(matrix: tuple[tuple[int, ...], ...]) -> tuple[int, ...]:
    return tuple(math.prod(column) for column in zip(*matrix, strict=True))


def matrices(hierarchy: tuple[int, ...], mesh: tuple[int, ...]) -> list[tuple[tuple[int, ...], ...]]:
    return [placement.matrix for placement in placements(hierarchy, mesh=mesh)]


# Enumeration


@pytest.mark.parametrize(
    ("hierarchy", "counts"),
    [
        ((2,), [1, 0, 0]),
        ((8,), [1, 1, 1]),  # 8; 4x2; 2x2x2
        ((6,), [1, 1, 0]),  # 6; 3x2
        ((2, 4), [1, 2, 1]),  # [2 4]; [2 1][1 4], [2 2][1 2]; [2 1][1 2][1 2]
        # [4 4]; [4 2][1 2], [4 1][1 4], [2 4][2 1], [2 2][2 2]; [4 1][1 2][1 2], [2 1][2 1][1 4], [2 2][2 1][1 2]
        ((4, 4), [1, 4, 3]),
        ((2, 2, 2), [1, 3, 1]),  # two axes: which level stands alone
    ],
)
def test_counts(hierarchy: tuple[int, ...], counts: list[int]) -> None:
    assert [len(placements(hierarchy, axes=axes)) for axes in (1, 2, 3)] == counts
    assert len(placements(hierarchy)) == sum(counts)


@pytest.mark.parametrize("hierarchy", HIERARCHIES)
@pytest.mark.parametrize("axes", [1, 2, 3])
def test_every_matrix_once_up_to_the_order_of_its_axes(hierarchy: tuple[int, ...], axes: int) -> None:
    expected = {
        tuple(sorted(rows, reverse=True))
        for rows in combinations_with_replacement(rows_of(hierarchy), axes)
        if columns(rows) == hierarchy
    }
    found = [placement.matrix for placement in placements(hierarchy, axes=axes)]
    assert len(found) == len(set(found))
    assert set(found) == expected


@pytest.mark.parametrize("hierarchy", HIERARCHIES)
def test_every_matrix_of_a_given_mesh(hierarchy: tuple[int, ...]) -> None:
    meshes = {tuple(math.prod(row) for row in rows) for rows in product(rows_of(hierarchy), repeat=2)}
    for mesh in meshes:
        expected = {
            rows
            for rows in product(rows_of(hierarchy), repeat=2)
            if columns(rows) == hierarchy and tuple(map(math.prod, rows)) == mesh
        }
        if math.prod(mesh) == math.prod(hierarchy):
            found = matrices(hierarchy, mesh)
            assert set(found) == expected and len(found) == len(expected)


def test_meshes_of_published_experiments() -> None:
    """P² (MLSys 2022), four nodes of 16 A100."""
    assert matrices((4, 16), (64,)) == [((4, 16),)]
    assert set(matrices((4, 16), (16, 2, 2))) == {
        ((4, 4), (1, 2), (1, 2)),
        ((2, 8), (2, 1), (1, 2)),
        ((2, 8), (1, 2), (2, 1)),
        ((1, 16), (2, 1), (2, 1)),
    }


def test_the_order_of_a_given_mesh_is_kept() -> None:
    assert matrices((2, 4), (4, 2)) == [((2, 2), (1, 2)), ((1, 4), (2, 1))]
    assert matrices((2, 4), (2, 4)) == [((2, 1), (1, 4)), ((1, 2), (2, 2))]


def test_outer_axes_come_first() -> None:
    for placement in placements((4, 2, 3)):
        assert list(placement.matrix) == sorted(placement.matrix, reverse=True)


def test_one_device() -> None:
    assert placements((1,)) == (Placement((1,), ((1,),)),)
    assert placements((1, 1)) == placements((1, 1), mesh=(1,)) == (Placement((1,), ((1, 1),)),)
    assert groups(placements((1, 1))[0], 0) == ((0,),)


def test_4096_devices_in_four_levels_take_no_time() -> None:
    assert len(placements((8, 8, 8, 8), axes=2)) == (4**4 - 2) // 2  # 4 divisors a level, two all-one rows, each twice


@pytest.mark.parametrize(
    ("hierarchy", "mesh", "words"),
    [
        ((2, 4), (3, 2), "mesh 3x2 does not have the 8 devices of hierarchy 2x4"),
        ((2, 4), (), "does not have the 8 devices"),
        ((2, 4), (8, 1), "axis of size 1"),
        ((2, 4), (-2, -4), "axis of size 1"),
        ((2, 0), (2,), "every level"),
        ((), (1,), "every level"),
        ((10**9, 10**9), None, "the most is"),
    ],
)
def test_refusals(hierarchy: tuple[int, ...], mesh: tuple[int, ...] | None, words: str) -> None:
    with pytest.raises(PartitaError, match=words):
        placements(hierarchy, mesh=mesh)


def test_a_placement_checks_itself() -> None:
    with pytest.raises(ValueError, match="do not have the rows"):
        Placement((8,), ((2, 2),))
    with pytest.raises(ValueError, match="not a matrix"):
        Placement((2, 2), ((2,), (2, 1)))
    with pytest.raises(ValueError, match="below 1"):
        Placement((0,), ((0,),))


# Numbering


def test_numbering_is_level_major() -> None:
    """Two nodes of four; axis 0 has one factor on each level."""
    placement = of_rows([(2, 2), (1, 2)])
    assert ranks(placement).tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert groups(placement, 0) == ((0, 2, 4, 6), (1, 3, 5, 7))
    assert groups(placement, 1) == ((0, 1), (2, 3), (4, 5), (6, 7))
    # axis 0 inside the nodes, axis 1 across them and the neighbours inside
    crossed = of_rows([(1, 2), (2, 2)])
    assert ranks(crossed).tolist() == [[0, 1, 4, 5], [2, 3, 6, 7]]
    assert groups(crossed, 0) == ((0, 2), (1, 3), (4, 6), (5, 7))
    assert groups(crossed, 1) == ((0, 1, 4, 5), (2, 3, 6, 7))


def test_published_strides() -> None:
    """V100 node of eight: an in-node pair on axis 1 of [8 2] is neighbours, on axis 0 of [2 8] it has stride 4."""
    across = of_rows([(2, 4), (1, 2)])
    assert groups(across, 1)[0] == (0, 1)
    inside = of_rows([(1, 2), (2, 4)])
    assert groups(inside, 0)[0] == (0, 4)


@pytest.mark.parametrize("hierarchy", HIERARCHIES)
def test_ranks_and_coordinates_are_inverse(hierarchy: tuple[int, ...]) -> None:
    for placement in placements(hierarchy):
        numbers = ranks(placement)
        assert numbers.shape == placement.sizes
        assert sorted(numbers.flat) == list(range(math.prod(hierarchy)))
        for place in np.ndindex(*placement.sizes):
            assert rank(placement, place) == numbers[place]
            assert coordinates(placement, rank(placement, place)) == place


@pytest.mark.parametrize("hierarchy", HIERARCHIES)
def test_groups_partition_the_ranks(hierarchy: tuple[int, ...]) -> None:
    for placement in placements(hierarchy):
        count = len(placement.sizes)
        for axes in [(a,) for a in range(count)] + [tuple(range(count)), tuple(range(1, count))]:
            found = groups(placement, axes)
            assert sorted(r for group in found for r in group) == list(range(placement.devices))
            for group in found:
                fixed = {tuple(c for a, c in enumerate(coordinates(placement, r)) if a not in axes) for r in group}
                assert len(fixed) == 1
                assert len(group) == math.prod(placement.sizes[a] for a in axes)
            if len(axes) == 1:  # ascending ranks are ascending coordinates
                assert all([coordinates(placement, r)[axes[0]] for r in g] == list(range(len(g))) for g in found)


def test_ranks_outside_the_mesh() -> None:
    placement = of_rows([(2, 2), (1, 2)])
    with pytest.raises(ValueError, match="rank 8 of 8"):
        coordinates(placement, 8)
    with pytest.raises(ValueError, match="coordinates"):
        rank(placement, (4, 0))
    with pytest.raises(ValueError, match="coordinates"):
        rank(placement, (0,))


def test_orders_are_added_where_they_allow_a_split() -> None:
    """9 items are split by 3 and then 2 (2, 1, 2, 1, 2, 1), but by 2 and then 3 a part is empty."""
    (found,) = [p for p in placements((2, 3)) if len(p.sizes) == 2]
    assert found.sizes == (2, 3)
    assert [p.sizes for p in reordered([found], [9])] == [(2, 3), (3, 2)]
    assert [p.sizes for p in reordered([found], [6, 12, 30, 1, 5])] == [(2, 3)]


@pytest.mark.parametrize("hierarchy", [(4, 8), (8, 8), (2, 4)])
def test_no_order_is_added_where_sizes_divide(hierarchy: tuple[int, ...]) -> None:
    found = placements(hierarchy)
    assert reordered(found, [2**n for n in range(16)]) == found
