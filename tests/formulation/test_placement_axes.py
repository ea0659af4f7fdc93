"""Matrices of given axes, as tables of the literature have them, and machine mappings by name."""

from __future__ import annotations

import json
import math
from importlib.resources import files
from itertools import product

import pytest

from partita.formulation.placement.mappings import mapped, mappings, register, without_ones
from partita.formulation.placement.placement import (
    Placement,
    arrangements,
    check_reduced,
    of_rows,
    placements,
    ranks,
)
from partita.model.errors import PartitaError
from partita.model.machine.machine import Machine

from .coordinates import coordinates

GROUPS = json.loads((files("partita.bench.data") / "p2_a100.json").read_text())["groups"]


def of_group(group: dict[str, object]) -> str:
    return "-".join("x".join(map(str, group[key])) for key in ("hierarchy", "parallelism_axes", "reduce_axes"))  # type: ignore[call-overload]


@pytest.mark.parametrize("group", GROUPS, ids=of_group)
def test_the_matrices_of_p2(group: dict[str, list[dict[str, list[list[int]]]]]) -> None:
    published = [tuple(tuple(row) for row in rows["matrix"]) for rows in group["rows"]]
    found = [p.matrix for p in arrangements(group["hierarchy"], group["parallelism_axes"])]  # type: ignore[arg-type]
    assert sorted(found) == sorted(published)


@pytest.mark.parametrize("hierarchy", [(1,), (6,), (2, 4), (3, 4), (2, 2, 2), (1, 8), (2, 6)])
@pytest.mark.parametrize("axes", [1, 2, 3])
def test_arrangements_are_all_matrices(hierarchy: tuple[int, ...], axes: int) -> None:
    devices = math.prod(hierarchy)
    factors = [[d for d in range(1, h + 1) if h % d == 0] for h in hierarchy]
    matrices = [
        rows
        for rows in product(product(*factors), repeat=axes)
        if tuple(math.prod(column) for column in zip(*rows, strict=True)) == hierarchy
    ]
    for sizes in product([d for d in range(1, devices + 1) if devices % d == 0], repeat=axes):
        if math.prod(sizes) == devices:
            expected = [rows for rows in matrices if tuple(map(math.prod, rows)) == sizes]
            found = [p.matrix for p in arrangements(hierarchy, sizes)]
            assert found == sorted(expected, reverse=True)
            if 1 not in sizes:
                assert found == [p.matrix for p in placements(hierarchy, mesh=sizes)]


@pytest.mark.parametrize(
    ("hierarchy", "axes", "words"),
    [
        ((4, 8), (8, 2), "axes 8x2 multiply to 16, but hierarchy 4x8 has 32 devices"),
        ((4, 8), (), "one or more axes"),
        ((4, 8), (32, 0), "of size 1 or more"),
        ((4, 0), (1,), "every level has a size of 1 or more"),
        ((), (1,), "every level"),
        ((2**13, 2**12), (2**25,), "the most is"),
        ((2, 1.5), (3,), "hierarchy 2x1.5: .* in whole"),
        ((2, 2), (2.0, 2), "axes 2.0x2: .* in whole"),
        ((1,) * 65, (1,), "at most 64 levels"),
        ((2,), (2, *(1,) * 64), "up to 64"),
        ((2,) * 9, (2,) * 9, "more than 100,000 placements"),
    ],
)
def test_axes_that_have_no_matrix(hierarchy: tuple[int, ...], axes: tuple[int, ...], words: str) -> None:
    with pytest.raises(PartitaError, match=words):
        arrangements(hierarchy, axes)


@pytest.mark.parametrize(
    ("reduced", "words"),
    [
        ((), "the reduction is empty: name at least one axis"),
        ((3,), "no axis 3 to reduce over: the axes are 0 to 2"),
        ((-1,), "no axis -1"),
        ((0, 2, 0), "axis 0 is to be reduced over twice"),
        ((1,), r"the reduction is empty: each axis it is over \(1\) has size 1"),
    ],
)
def test_reductions_that_are_none(reduced: tuple[int, ...], words: str) -> None:
    with pytest.raises(PartitaError, match=words):
        check_reduced((8, 1, 4), reduced)


def test_reduction_axes_are_sorted() -> None:
    assert check_reduced((8, 1, 4), (2, 1, 0)) == (0, 1, 2)


# Machine mappings


def test_unity_s_mappings_of_summit() -> None:
    summit = Machine.load("summit", nodes=2).hierarchy  # 2 nodes of 2 sockets of 3 GPUs
    assert mapped("unity-1d", summit) == of_rows([(2, 2, 3)])
    assert mapped("unity-2d", summit) == of_rows([(2, 1, 1), (1, 2, 3)])
    assert mapped("unity-3d", summit) == of_rows([(2, 1, 1), (1, 2, 1), (1, 1, 3)])
    data, reduction, model = coordinates(mapped("unity-3d", summit), 10)  # node 1, socket 1, its second GPU
    assert (data, reduction, model) == (1, 1, 1)
    assert ranks(mapped("unity-2d", summit)).tolist() == [[0, 1, 2, 3, 4, 5], [6, 7, 8, 9, 10, 11]]


def test_unity_s_mappings_of_one_node() -> None:
    node = Machine.load("summit").hierarchy
    assert [without_ones(mapped(f"unity-{n}d", node)).sizes for n in (1, 2, 3)] == [(6,), (6,), (2, 3)]


def test_levels_beyond_a_mapping_s_are_its_last_axis() -> None:
    assert mapped("unity-2d", (2, 3, 4, 5)) == of_rows([(2, 1, 1, 1), (1, 3, 4, 5)])


def test_a_mapping_needs_its_levels() -> None:
    with pytest.raises(PartitaError, match="unity-3d: 3 axes need as many levels; the hierarchy has 2"):
        mapped("unity-3d", (4, 8))


def test_mappings_of_one_s_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("partita.formulation.placement.mappings._known", dict[str, object](unity=of_rows([(2,)])))
    pairs = of_rows([(2, 4), (2, 2)])
    register("pairs", pairs)
    register("striped", lambda hierarchy: of_rows([(1, *hierarchy[1:]), (hierarchy[0], *(1 for _ in hierarchy[1:]))]))
    assert mapped("pairs", (4, 8)) is pairs
    assert mapped("striped", (4, 8)) == Placement((8, 4), ((1, 8), (4, 1)))
    assert {"pairs", "striped"} <= set(mappings())
    with pytest.raises(PartitaError, match="mapping pairs is for hierarchy 4x8, not for 2x8"):
        mapped("pairs", (2, 8))
    with pytest.raises(PartitaError, match="'pairs': the name is taken"):
        register("pairs", pairs)
    with pytest.raises(PartitaError, match="the name is empty"):
        register("", pairs)
    with pytest.raises(PartitaError, match="no machine mapping is called 'pears'; there are unity, pairs"):
        mapped("pears", (4, 8))


def test_an_installed_package_offers_mappings(monkeypatch: pytest.MonkeyPatch) -> None:
    class Point:
        name = "theirs"

        def load(self) -> Placement:
            return of_rows([(2, 2)])

    class Points(list[Point]):
        def __getitem__(self, name: object) -> Point:  # type: ignore[override]
            return next(point for point in self if point.name == name)

    monkeypatch.setattr("partita.formulation.placement.mappings.entry_points", lambda group: Points([Point()]))
    assert "theirs" in mappings()
    assert mapped("theirs", (2, 2)).sizes == (4,)
