"""Enumerated reduction programs: the paper's groups and totals, and every program run on integers."""

import json
import math
from collections.abc import Iterable, Sequence
from importlib.resources import files
from itertools import product
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from partita.formulation.placement.placement import of_rows, placements
from partita.formulation.reduction.enumeration import Form, Instruction, instructions, programs
from partita.formulation.reduction.program import Collective, Groups, Reduction, ReductionProgram, Step, groups
from partita.formulation.reduction.semantics import repaired, validate
from partita.model.errors import PartitaError

AR, RS, AG, R, B = (
    Collective.ALL_REDUCE,
    Collective.REDUCE_SCATTER,
    Collective.ALL_GATHER,
    Collective.REDUCE,
    Collective.BROADCAST,
)
TABLE: list[dict[str, Any]] = json.loads((files("partita.bench.data") / "p2_a100.json").read_text())["groups"]
SHAPES = [(2, 2), (2, 3), (3, 2), (5, 7), (2, 16), (4, 4), (16, 4), (4, 16)]


def lowered(program: ReductionProgram, reduction: Reduction) -> list[tuple[Collective, Groups]]:
    """The collectives of a program with the ranks of all their groups."""
    members = reduction.members()
    return [
        (
            step.collective,
            tuple(tuple(row[list(group)].tolist()) for row in members for group in groups(step, reduction.sizes)),
        )
        for step in program
    ]


def reductions(group: dict[str, Any]) -> list[Reduction]:
    """The reduction of one group of the table on each of its matrices."""
    found = placements(group["hierarchy"], mesh=group["parallelism_axes"])
    return [Reduction(placement, tuple(group["reduce_axes"])) for placement in found]


# The language

RACK, SERVER, CPU = 0, 1, 2  # P², figure 2a: one rack, 2 servers, 2 CPUs each, 4 GPUs each

TABLE_2 = [
    (CPU, Form.INSIDE_GROUP, None, "A0 A1 A2 A3, B0 B1 B2 B3, C0 C1 C2 C3, D0 D1 D2 D3"),
    (CPU, Form.PARALLEL, SERVER, "A0 B0, A1 B1, A2 B2, A3 B3, C0 D0, C1 D1, C2 D2, C3 D3"),
    (CPU, Form.PARALLEL, RACK, "A0 B0 C0 D0, A1 B1 C1 D1, A2 B2 C2 D2, A3 B3 C3 D3"),
    (CPU, Form.MASTER, RACK, "A0 B0 C0 D0"),
    (SERVER, Form.INSIDE_GROUP, None, "A0 A1 A2 A3 B0 B1 B2 B3, C0 C1 C2 C3 D0 D1 D2 D3"),
    (SERVER, Form.PARALLEL, RACK, "A0 C0, A1 C1, A2 C2, A3 C3, B0 D0, B1 D1, B2 D2, B3 D3"),
    (RACK, Form.INSIDE_GROUP, None, "A0 A1 A2 A3 B0 B1 B2 B3 C0 C1 C2 C3 D0 D1 D2 D3"),
]


@pytest.mark.parametrize(("where", "form", "over", "expected"), TABLE_2)
def test_groups_of_the_papers_table_2(where: int, form: Form, over: int | None, expected: str) -> None:
    step = Instruction(where, form, AR, over).step(3)
    named = [" ".join("ABCD"[gpu // 4] + str(gpu % 4) for gpu in group) for group in groups(step, (2, 2, 4))]
    assert sorted(named) == sorted(expected.split(", "))


@pytest.mark.parametrize("levels", [1, 2, 3, 4])
def test_every_range_of_levels_and_every_master_once(levels: int) -> None:
    steps = [instruction.step(levels) for instruction in instructions(levels)]
    assert len(set(steps)) == len(steps)
    ranges, masters = levels * (levels + 1) // 2, levels * (levels - 1) // 2
    assert len([step for step in steps if not step.zero]) == ranges * len(Collective)
    assert [step.collective for step in steps if step.zero] == [AR] * masters
    assert len({groups(step, (2,) * levels) for step in steps}) == ranges + masters


def test_an_instruction_reads_as_in_the_paper() -> None:
    assert str(Instruction(CPU, Form.MASTER, AR, RACK)) == "(slice 2, Master(0), all-reduce)"
    assert str(Instruction(SERVER, Form.INSIDE_GROUP, RS)) == "(slice 1, InsideGroup, reduce-scatter)"
    with pytest.raises(ValueError, match="over 2 levels"):
        Instruction(2, Form.INSIDE_GROUP, AR).step(2)  # groups of one device


# How many


@pytest.mark.parametrize(("levels", "count"), [(0, 1), (1, 3), (2, 47), (3, 825)])
def test_counts(levels: int, count: int) -> None:
    found = programs(levels)
    assert len(found) == len(set(found)) == count
    assert [len(program) for program in found] == sorted(len(program) for program in found)


@pytest.mark.parametrize("group", TABLE, ids=lambda g: f"{g['hierarchy']}-{g['parallelism_axes']}-{g['reduce_axes']}")
def test_totals_of_the_papers_table(group: dict[str, Any]) -> None:
    total = sum(len(programs(len(reduction.sizes))) for reduction in reductions(group))
    assert total == group["programs"]["ring"]["total"] == group["programs"]["tree"]["total"]


def test_the_table_has_24_groups() -> None:
    assert len(TABLE) == 24


def test_one_level() -> None:
    assert programs(1) == ((Step(AR, 0, 0),), (Step(RS, 0, 0), Step(AG, 0, 0)), (Step(R, 0, 0), Step(B, 0, 0)))


def test_the_papers_figure_10_is_found() -> None:
    assert (Step(R, 1, 1), Step(AR, 0, 0, zero=(1,)), Step(B, 1, 1)) in programs(2)
    assert (Step(RS, 1, 1), Step(AR, 0, 0), Step(AG, 1, 1)) in programs(2)


@pytest.mark.parametrize("sizes", [(3,), (5,), (16,), *SHAPES, (2, 3, 2), (3, 2, 2), (2, 2, 5)])
def test_the_sizes_of_levels_change_nothing(sizes: tuple[int, ...]) -> None:
    assert programs(len(sizes), sizes=sizes) == programs(len(sizes))


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 6])
def test_a_limit_only_takes_away_what_is_longer(limit: int) -> None:
    assert programs(2, limit) == tuple(program for program in programs(2, 6) if len(program) <= limit)


def test_two_levels_need_no_more_than_four_steps() -> None:
    assert programs(2, 4) == programs(2, 7)
    assert len(programs(2, 3)) < 47


@pytest.mark.parametrize("levels", [1, 2, 3])
@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_that_admits_no_program(levels: int, limit: int) -> None:
    with pytest.raises(PartitaError, match=f"limit of {limit} steps admits no program"):
        programs(levels, limit)


@pytest.mark.parametrize(("levels", "sizes"), [(2, (2,)), (2, (2, 1)), (1, (0,))])
def test_sizes_that_do_not_fit(levels: int, sizes: tuple[int, ...]) -> None:
    with pytest.raises(PartitaError, match=f"for {levels} levels"):
        programs(levels, sizes=sizes)


def test_by_brute_force() -> None:
    """All sequences of up to 3 instructions over two levels, each validated alone."""
    steps = [instruction.step(2) for instruction in instructions(2)]
    valid = []
    for length in (1, 2, 3):
        for program in product(steps, repeat=length):
            try:
                validate(program, (2, 2))
            except PartitaError:
                continue
            valid.append(program)
    assert tuple(valid) == programs(2, 3)


# Executed on integers: plain contiguous collectives on flat buffers

NOTHING = -(10**9)  # what lies where a member holds nothing


def run(steps: Iterable[tuple[Collective, Groups]], buffers: NDArray[np.int64]) -> NDArray[np.int64]:
    """What every rank has after the steps; `buffers` [ranks, elements]."""
    for collective, step_groups in steps:
        index = np.array(step_groups)
        count, size = index.shape
        mine = buffers[index]  # [groups, members, elements]
        total = mine.sum(axis=1)
        if collective is RS:
            buffers = np.full((len(buffers), buffers.shape[1] // size), NOTHING)
            buffers[index] = total.reshape(count, size, -1)
        elif collective is AG:
            buffers = np.full((len(buffers), buffers.shape[1] * size), NOTHING)
            buffers[index] = mine.reshape(count, 1, -1)
        else:
            buffers = buffers.copy()
            buffers[index] = {AR: total, R: np.full_like(total, NOTHING), B: mine[:, 0]}[collective][:, None]
            if collective is R:
                buffers[index[:, 0]] = total
    return buffers


def taken(buffers: NDArray[np.int64], chunks: Sequence[int]) -> NDArray[np.int64]:
    """The buffers with their chunks in another order."""
    return buffers.reshape(len(buffers), len(chunks), -1)[:, list(chunks)].reshape(len(buffers), -1)


def check(program: ReductionProgram, reduction: Reduction) -> bool:
    """Assert that every rank ends with its group's sums in order; whether the chunks had to be put in order."""
    k, members = reduction.size, reduction.members()
    data = np.random.default_rng(0).integers(0, 1000, (reduction.placement.devices, k * 2))
    expected = np.empty_like(data)
    expected[members] = data[members].sum(axis=1, keepdims=True)
    repair = repaired(program, reduction.sizes)
    result = run(lowered(program, reduction), taken(data, repair.before))
    assert np.array_equal(taken(result, repair.after), expected), program
    assert np.array_equal(result, expected) is not repair.permuted
    return repair.permuted


def distinct() -> list[Reduction]:
    """The reductions of the table, those with equal devices in equal levels once."""
    everything = [reduction for group in TABLE for reduction in reductions(group)]
    return list({(r.sizes, r.members().tobytes()): r for r in everything}.values())


@pytest.mark.parametrize("reduction", distinct(), ids=lambda r: f"{r.placement.matrix}-{r.axes}")
def test_every_program_of_the_papers_matrices_sums(reduction: Reduction) -> None:
    permuted = sum(check(program, reduction) for program in programs(len(reduction.sizes)))
    assert permuted == {1: 0, 2: 4}[len(reduction.sizes)]


def test_every_program_sums_whatever_numbers_the_members() -> None:
    reduction = Reduction(of_rows([(1, 4), (2, 2), (2, 1)]), (0, 2), "axes")
    assert not np.array_equal(reduction.members(), Reduction(reduction.placement, (0, 2)).members())
    assert sum(check(program, reduction) for program in programs(2)) == 4


@pytest.mark.parametrize("sizes", [(2, 2, 2), (2, 3, 2), (3, 2, 2)])
def test_every_program_of_three_levels_sums(sizes: tuple[int, ...]) -> None:
    reduction = Reduction(of_rows([sizes]), (0,))
    assert sum(check(program, reduction) for program in programs(3)) > 100  # so many need a transpose


@pytest.mark.parametrize("order", [(0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)])
def test_a_half_alone_ends_in_order(order: tuple[int, ...]) -> None:
    """A reduce-scatter leaves chunk i on member i, an all-gather starts from there, in whatever order of levels."""
    sizes = (2, 3, 4)
    k = math.prod(sizes)
    reduction = Reduction(of_rows([sizes]), (0,))
    data = np.random.default_rng(0).integers(0, 1000, (k, k * 2))
    total = data.sum(axis=0)

    scatter = tuple(Step(RS, level, level) for level in order)
    repair = repaired(scatter, sizes, "reduce_scatter")
    assert repair.permuted is (order != (0, 1, 2))
    parts = run(lowered(scatter, reduction), taken(data, repair.before))
    assert np.array_equal(parts, total.reshape(k, 2))

    gather = tuple(Step(AG, level, level) for level in order)
    repair = repaired(gather, sizes, "all_gather")
    assert repair.permuted is (order != (2, 1, 0))
    assert np.array_equal(taken(run(lowered(gather, reduction), parts), repair.after), np.tile(total, (k, 1)))
