"""Synthesis hierarchies (a) to (d) of P²: Theorem 3.2 where it holds, and the programs that refute it elsewhere."""

from itertools import permutations

import pytest

from partita.formulation.placement.placement import of_rows, placements
from partita.formulation.reduction.cost import program_price
from partita.formulation.reduction.enumeration import Move, programs
from partita.formulation.reduction.hierarchies import (
    Synthesis,
    _on_devices,
    cheapest,
    hierarchy_of,
    summed,
    synthesized,
)
from partita.formulation.reduction.optimal import optimal
from partita.formulation.reduction.program import Collective, Reduction, ReductionProgram, Step
from partita.formulation.reduction.rules import advance, ascending, initial
from partita.model.errors import PartitaError
from partita.model.machine.machine import Machine

AR, RS, AG, R, B = Collective
SYSTEM, COLUMNS, ROWS, AXES, LEVELS = Synthesis
SYSTEMS = [
    *(Reduction(p, (axis,)) for p in placements((2, 2), mesh=(2, 2)) for axis in (0, 1)),
    *(Reduction(p, (0,)) for p in placements((2, 2), mesh=(4,))),
    *(Reduction(p, (axis,)) for p in placements((2, 3), mesh=(2, 3)) for axis in (0, 1)),
    *(Reduction(p, (axis,)) for p in placements((2, 4), mesh=(2, 4)) for axis in (0, 1)),
    *(Reduction(p, (0,)) for p in placements((2, 2, 2), mesh=(4, 2))),
]
each_system = pytest.mark.parametrize("reduction", SYSTEMS, ids=lambda r: f"{r.placement.matrix}-{r.axes}")
NESTED = (SYSTEM, COLUMNS, ROWS, AXES)


def on_devices(
    reduction: Reduction,
    synthesis: Synthesis,
    rows: tuple[int, ...] | None = None,
    masters: bool = True,
    limit: int = 4,
) -> set[tuple[Move, ...]]:
    """The programs of a synthesis as collectives of devices."""
    hierarchy = hierarchy_of(reduction, synthesis, rows)
    found = synthesized(reduction, synthesis, limit, rows)
    return {tuple(map(hierarchy.move, p)) for p in found if masters or not any(step.zero for step in p)}


def last(reduction: Reduction) -> tuple[int, ...]:
    """The axes with the one reduced over at the end."""
    return (*(a for a in range(len(reduction.placement.sizes)) if a not in reduction.axes), *reduction.axes)


@each_system
def test_theorem_3_2(reduction: Reduction) -> None:
    """With the reduction axis as the last row, as in the paper's example; without Master in any order of rows."""
    a, b, c, d = (on_devices(reduction, synthesis, last(reduction)) for synthesis in NESTED)
    assert a <= b <= c <= d
    assert len(d) == len(programs(len(reduction.sizes), 4))
    for rows in permutations(range(len(reduction.placement.sizes))):
        a, b, c, d = (on_devices(reduction, synthesis, rows, masters=False) for synthesis in NESTED)
        assert a <= b <= c <= d


@each_system
def test_one_axis_has_one_factor_a_level(reduction: Reduction) -> None:
    assert on_devices(reduction, AXES) == on_devices(reduction, LEVELS)


@pytest.mark.parametrize("synthesis", [SYSTEM, COLUMNS, ROWS])
@pytest.mark.parametrize("matrix", [((2, 1), (1, 3)), ((1, 3), (2, 1)), ((2, 3),), ((1, 3), (3, 1))])
def test_sizes_of_factors_change_nothing(synthesis: Synthesis, matrix: tuple[tuple[int, ...], ...]) -> None:
    for axis in range(len(matrix)):
        reduction = Reduction(of_rows(matrix), (axis,))
        assert _on_devices(matrix, (axis,), synthesis, 4, None) == synthesized(reduction, synthesis, 4)


def test_a_finer_hierarchy_says_more() -> None:
    reduction = Reduction(of_rows([(1, 2), (2, 2)]), (1,))
    assert [len(synthesized(reduction, synthesis, 3)) for synthesis in NESTED] == [0, 12, 25, 25]


# Where the theorem fails


def test_master_in_a_row_that_is_not_the_last() -> None:
    """Master takes offset 0 of all that is below; by rows that also holds for the axes behind the reduction axis."""
    reduction = Reduction(of_rows([(1, 2, 2), (2, 1, 1)]), (0,))
    program = (
        (R, ((0, 1), (2, 3), (4, 5), (6, 7))),
        (AR, ((0, 2), (4, 6))),
        (B, ((0, 1), (2, 3), (4, 5), (6, 7))),
    )
    a, b, c, d = (on_devices(reduction, synthesis, (0, 1), limit=3) for synthesis in NESTED)
    assert program in a & b & d
    assert program not in c
    assert program in on_devices(reduction, ROWS, last(reduction), limit=3)


def moves(reduction: Reduction, synthesis: Synthesis) -> set[Move]:
    """All instructions over at most four levels, on devices."""
    hierarchy = hierarchy_of(reduction, synthesis)
    depth = len(hierarchy.sizes)
    steps = [Step(c, i, j) for c in Collective for i in range(depth) for j in range(i, depth)]
    return set(map(hierarchy.move, steps))


def valid(reduction: Reduction, program: tuple[Move, ...]) -> bool:
    """Whether moves sum every group, on the states of all devices."""
    states = initial(reduction.placement.devices)
    for collective, step_groups in program:
        states, _ = advance(collective, step_groups, states, ascending(states))
    return bool((states == summed(reduction)).all())


def test_two_axes_on_two_levels() -> None:
    """The program of figure 10ii reduces the inner factors of both axes: no range of levels axis by axis."""
    reduction = Reduction(of_rows([(2, 2), (2, 2)]), (0, 1))
    levels = hierarchy_of(reduction, LEVELS)
    program: ReductionProgram = (Step(RS, 1, 1), Step(AR, 0, 0), Step(AG, 1, 1))
    on_ranks = tuple(map(levels.move, program))
    assert valid(reduction, on_ranks)
    for synthesis in (SYSTEM, COLUMNS, LEVELS):
        assert set(on_ranks) <= moves(reduction, synthesis)
    for synthesis in (ROWS, AXES):
        assert on_ranks[0] not in moves(reduction, synthesis)


def test_collapsed_factors_of_two_axes_on_a_wired_level() -> None:
    """GPUs 0, 1, 4 and 5 of a V100 server: pairs of neighbours by NVLink first, then half of the data over PCIe."""
    machine, size = Machine.load("gcp-v100", nodes=1), 10**9
    reduction = Reduction(of_rows([(1, 2), (1, 2), (1, 2)]), (0, 2))
    found = {synthesis: cheapest(machine, reduction, synthesis, size) for synthesis in (AXES, LEVELS)}
    assert (found[AXES].programs, found[LEVELS].programs) == (47, 3)
    assert found[LEVELS].ns == optimal(machine, reduction, size).ns
    assert found[AXES].program == (Step(RS, 1, 1), Step(AR, 0, 0), Step(AG, 1, 1))
    assert 1.3 * (found[AXES].ns or 0) < (found[LEVELS].ns or 0)


@pytest.mark.parametrize(("nodes", "matrix"), [(2, ((2, 4), (1, 4))), (4, ((4, 1), (1, 16))), (4, ((4, 16),))])
@pytest.mark.parametrize("profile", ["nccl-ring", "nccl-tree"])
def test_enumerated_programs_have_the_price_of_levels(
    nodes: int, matrix: tuple[tuple[int, ...], ...], profile: str
) -> None:
    machine, size = Machine.load("gcp-a100", nodes=nodes), 10**9
    reduction = Reduction(of_rows(matrix), (0,))
    found = cheapest(machine, reduction, LEVELS, size, profile)
    known = {p: program_price(machine, reduction, p, profile).ns(size) for p in programs(len(reduction.sizes))}
    assert found.ns == min(known.values()) and known[found.program or ()] == found.ns


def test_too_many_factors_are_refused() -> None:
    with pytest.raises(PartitaError, match="more than 4 factors"):
        synthesized(Reduction(of_rows([(2, 2, 2), (2, 2, 1)]), (0,)), COLUMNS)
    assert len(synthesized(Reduction(of_rows([(2, 2, 2), (2, 2, 1)]), (1,)), AXES)) == 47
