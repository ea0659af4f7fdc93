"""Reduction programs: the rules of the collectives one by one, programs that break them, and the order of chunks."""

import re
from collections.abc import Sequence
from itertools import permutations
from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.formulation.reduction.enumeration import programs
from partita.formulation.reduction.program import Collective, Groups, ReductionProgram, Step, flat
from partita.formulation.reduction.rules import States, advance, ascending, goal, initial, scattered
from partita.formulation.reduction.semantics import Explicit, repaired, transpose, validate
from partita.formulation.reduction.statuses import Transpose
from partita.model.errors import PartitaError

AR, RS, AG, R, B = (
    Collective.ALL_REDUCE,
    Collective.REDUCE_SCATTER,
    Collective.ALL_GATHER,
    Collective.REDUCE,
    Collective.BROADCAST,
)


def apply(collective: Collective, step_groups: Groups, states: States, ranks: Sequence[int] | None = None) -> States:
    """The states after one step, by the paper's rules."""
    return advance(collective, step_groups, states, ascending(states), ranks)[0]


def state(*members: str) -> States:
    """A state from one word per member: rows apart by `/`, in each the members whose addends it contains."""
    k = len(members)
    result = np.zeros((k, k, k), dtype=np.bool_)
    for member, rows in enumerate(members):
        for row, addends in enumerate(rows.split("/")):
            for addend in addends.strip("-"):
                result[member, row, int(addend)] = True
    return result


def word(states: States) -> list[str]:
    return ["/".join("".join(map(str, np.flatnonzero(row))) or "-" for row in rows) for rows in states]


def test_start_and_goal() -> None:
    assert word(initial(3)) == ["0/0/0", "1/1/1", "2/2/2"]
    assert word(scattered(3)) == ["012/-/-", "-/012/-", "-/-/012"]
    assert word(goal(2)) == ["01/01", "01/01"]


# The rules


@pytest.mark.parametrize(
    ("collective", "groups", "before", "after"),
    [
        (AR, ((0, 1),), ["0/0", "1/1"], ["01/01", "01/01"]),
        (AR, ((0, 1),), ["0/-", "1/-"], ["01/-", "01/-"]),
        (RS, ((0, 1),), ["0/0", "1/1"], ["01/-", "-/01"]),
        (RS, ((1, 0),), ["0/0", "1/1"], ["-/01", "01/-"]),  # the first of a group gets the first part
        (R, ((0, 1),), ["0/0", "1/1"], ["01/01", "-/-"]),
        (R, ((1, 0),), ["0/0", "1/1"], ["-/-", "01/01"]),  # the first of a group is the root
        (AG, ((0, 1),), ["01/-", "-/01"], ["01/01", "01/01"]),
        (AG, ((0, 1),), ["0/-", "-/1"], ["0/1", "0/1"]),
        (B, ((0, 1),), ["01/01", "-/-"], ["01/01", "01/01"]),
        (B, ((0, 1),), ["01/01", "1/-"], ["01/01", "01/01"]),
        (B, ((1, 0),), ["0/-", "01/-"], ["01/-", "01/-"]),
        # Members of no group keep what they have.
        (AR, ((0, 2),), ["0/0/0", "1/1/1", "2/2/2"], ["02/02/02", "1/1/1", "02/02/02"]),
        # The part of a reduce-scatter is counted over the rows that are held.
        (RS, ((0, 3),), ["-/0/-/0", "1", "2", "-/3/-/3"], ["-/03/-/-", "1/-/-/-", "2/-/-/-", "-/-/-/03"]),
        # Groups may differ in size, and in how much their members hold.
        (
            RS,
            ((0, 1), (2, 3)),
            ["0/0/0/0", "1/1/1/1", "2/2/-/-", "3/3/-/-"],
            ["01/01/-/-", "-/-/01/01", "23/-/-/-", "-/23/-/-"],
        ),
        (AR, ((0, 1), (2,)), ["0/0/0", "1/1/1", "2/2/2"], ["01/01/01", "01/01/01", "2/2/2"]),
    ],
)
def test_what_a_collective_does(collective: Collective, groups: Groups, before: list[str], after: list[str]) -> None:
    assert word(apply(collective, groups, state(*before))) == after


@pytest.mark.parametrize(
    ("collective", "before", "why"),
    [
        (AR, ["-/-", "-/-"], "no member of the group holds any data"),
        (AG, ["-/-", "-/-"], "no member of the group holds any data"),
        (B, ["-/-", "-/-"], "no member of the group holds any data"),
        (AR, ["0/0", "1/-"], "member 0 holds chunk 1 and member 1 does not: they would add different chunks"),
        (RS, ["-/0", "1/-"], "member 1 holds chunk 0 and member 0 does not: they would add different chunks"),
        (
            R,
            ["0/01", "1/01"],
            "chunk 1 of members 0 and 1: both contain member 0's addend: it would be counted twice",
        ),
        (RS, ["0/-", "1/-"], "1 chunks cannot be scattered evenly over 2 members"),
        (AG, ["01/-", "01/-"], "members 0 and 1 both hold chunk 0: gathered parts must be different chunks"),
        (AG, ["01/01", "-/-"], "member 0 holds 2 chunks and member 1 0: they must hold equally many"),
        (
            B,
            ["0/0", "-/1"],
            "chunk 1 of member 1 contains member 1's addend, and the root's does not: it would be lost",
        ),
        (B, ["01/01", "01/01"], "every member already holds what the root holds: nothing would change"),
    ],
)
def test_what_a_collective_may_not_do(collective: Collective, before: list[str], why: str) -> None:
    with pytest.raises(PartitaError) as error:
        apply(collective, ((0, 1),), state(*before))
    assert str(error.value) == f"{collective.replace('_', '-')} of members 0, 1: {why}"


def test_the_group_that_fails_is_named_with_its_ranks() -> None:
    before = state("0/0/0/0", "1/1/1/1", "23/23/23/23", "3/3/3/3")
    with pytest.raises(PartitaError, match=r"all-reduce of members 2, 3 \(ranks 12, 13\): chunk 0 of members 2 and 3"):
        apply(AR, ((0, 1), (2, 3)), before, ranks=(10, 11, 12, 13))


# Programs


@pytest.mark.parametrize(
    "program",
    [
        [(AR, [(0, 1, 2, 3)])],
        [(AR, [(0, 3), (1, 2)]), (AR, [(0, 1), (2, 3)])],  # a butterfly
        [("reduce", [[2, 0, 1, 3]]), ("broadcast", [[2, 0, 1, 3]])],  # a root of one's own, plain lists
        [(R, [(0, 1)]), (R, [(2, 3)]), (AR, [(0, 2)]), (B, [(0, 1), (2, 3)])],
        [(AR, np.arange(4).reshape(1, 4))],
    ],
)
def test_programs_of_ones_own(program: Sequence[Explicit]) -> None:
    validate(program, 4)
    assert not repaired(program, 4).permuted


def test_the_papers_figure_4() -> None:
    # A0 and B0 share a group of the first step; A0 and A1 hold different halves after it.
    with pytest.raises(PartitaError, match=r"^step 2: all-reduce of members 0, 1: member 0 holds chunk 0 and member 1"):
        validate((Step(RS, 1, 1), Step(AR, 1, 1)), (2, 2))
    with pytest.raises(PartitaError, match=r"^step 2: .* both contain member 0's addend: it would be counted twice"):
        validate([(AR, [(0, 1), (2, 3)]), (AR, [(0, 1, 2, 3)])], 4)


@pytest.mark.parametrize(
    ("program", "missing"),
    [
        ((), "member 0 lacks the addends of members 1, 2, 3"),
        ((Step(AR, 1, 1),), "chunk 0 of member 0 lacks the addends of members 2, 3"),
        ((Step(RS, 0, 1),), "member 0 does not hold chunk 1"),
        ((Step(R, 0, 1),), "member 1 does not hold chunk 0"),
        ((Step(R, 1, 1), Step(AR, 0, 0, (1,))), "member 1 does not hold chunk 0"),
    ],
)
def test_a_goal_that_is_not_reached(program: ReductionProgram, missing: str) -> None:
    with pytest.raises(PartitaError, match=f"^after the last step .*{missing}"):
        validate(program, (2, 2))


@pytest.mark.parametrize(
    ("program", "missing"),
    [
        ((Step(AR, 0, 1),), "member 0 holds 4 chunks; after a reduce-scatter each member holds one"),
        ((Step(RS, 1, 1),), "member 0 holds 2 chunks"),
        ([(RS, [(0, 1)])], "member 0 holds 2 chunks"),
        (
            [(RS, [(0, 1), (2, 3)]), (RS, [(0, 2)]), (R, [(1, 3)])],
            "member 1 holds 2 chunks; after a reduce-scatter each member holds one",
        ),
    ],
)
def test_a_reduce_scatter_that_is_not_one(program: Sequence[Step | Explicit], missing: str) -> None:
    with pytest.raises(PartitaError, match=f"^after the last step {missing}"):
        validate(program, (2, 2), kind="reduce_scatter")


@pytest.mark.parametrize(
    ("program", "members", "message"),
    [
        ([(AR, [(0, 4)])], 4, "step 1, all-reduce: no member 4; the members are 0 to 3"),
        ([(AR, [(0, [1])])], 4, "step 1, all-reduce: no member [1]"),
        ([(AR, [0, 1])], 4, "step 1: (<Collective.ALL_REDUCE: 'all_reduce'>, [0, 1]) is neither a Step nor"),
        ([(AR,)], 4, "is neither a Step nor a collective with a list of groups"),
        ([None], 4, "step 1: None is neither a Step nor a collective"),
        ([(AR, [(0, -1)])], 4, "step 1, all-reduce: no member -1"),
        ([(AR, [(0, 1.5)])], 4, "step 1, all-reduce: no member 1.5"),
        ([(AR, [(0, 1), (1, 2)])], 4, "step 1, all-reduce: member 1 is named 2 times; the groups of a step must be"),
        ([(AR, [(0, 0)])], 4, "step 1, all-reduce: member 0 is named 2 times"),
        ([(AR, [])], 4, "step 1, all-reduce: no groups"),
        ([(AR, [(0, 1), ()])], 4, "step 1, all-reduce: no groups, or an empty one"),
        ([(AR, [(0, 1, 2, 3)]), ("gossip", [(0, 1)])], 4, "step 2: unknown collective 'gossip' (known: all_reduce"),
        ((Step(AR, 0, 2),), (2, 2), "names levels that are not among the 2 of (2, 2)"),
        ((Step(AR, 1, 0),), (2, 2), "names levels that are not among the 2 of (2, 2)"),
        ((Step(AR, 0, 0, (2,)),), (2, 2), "names levels that are not among the 2 of (2, 2)"),
        (flat((2048,)), (2048,), "the most members are 512"),
        (flat((2, 0)), (2, 0), "every size is 1 or more"),
    ],
)
def test_programs_that_are_none(program: Sequence[Step | Explicit], members: int | Sequence[int], message: str) -> None:
    for check in (validate, repaired):
        with pytest.raises(PartitaError, match=re.escape(message)):
            check(program, members)


def test_an_unknown_kind() -> None:
    with pytest.raises(PartitaError, match="no programs for 'gossip'"):
        validate(flat((2,)), (2,), kind="gossip")  # type: ignore[arg-type]


def test_nothing_to_do_in_a_group_of_one() -> None:
    validate((), ())
    assert repaired((), ()).after == (0,)


# The order of chunks

OUT, IN, ALL = (0, 0), (1, 1), (0, 1)
PERMUTED = [
    ((RS, ALL), (AG, OUT), (AG, IN)),
    ((RS, IN), (RS, OUT), (AG, ALL)),
    ((RS, IN), (RS, OUT), (AG, IN), (AG, OUT)),
    ((RS, OUT), (RS, IN), (AG, OUT), (AG, IN)),
]


@pytest.mark.parametrize("sizes", [(2, 2), (2, 4), (3, 2), (4, 16)])
def test_four_programs_of_two_levels_need_a_transpose(sizes: tuple[int, ...]) -> None:
    expected = {tuple(Step(collective, *levels) for collective, levels in program) for program in PERMUTED}
    assert {program for program in programs(2) if repaired(program, sizes).permuted} == expected
    for program in expected:
        take = repaired(program, sizes).after
        # Scattered outermost first the chunks are numbered by (out, in), innermost first by (in, out).
        out_first = program[0].first == 0
        how = Transpose(sizes[::-1], (1, 0)) if out_first else Transpose(sizes, (1, 0))
        assert transpose(take) == how
        assert take[1] == (sizes[0] if out_first else sizes[1])


def test_chunks_that_lie_in_different_orders_are_refused() -> None:
    # Both pairs gather what the others scattered, one of them backwards.
    backwards = [(RS, [(0, 1), (2, 3)]), (AR, [(0, 2), (1, 3)]), (AG, [(0, 1), (3, 2)])]
    validate(backwards, 4)
    with pytest.raises(PartitaError, match=r"members 0 and 2 end with their chunks in different orders"):
        repaired(backwards, 4)
    # Valid by the rules, but the second sum would add chunk 0 to chunk 2.
    added = [(RS, [(0, 1), (2, 3)]), (AG, [(0, 1), (3, 2)]), (AR, [(0, 2), (1, 3)])]
    validate(added, 4)
    with pytest.raises(PartitaError, match=r"^step 3: all-reduce of members 0, 2: position 0 of the buffers holds"):
        repaired(added, 4)


def test_one_permutation_on_all_members_is_repaired() -> None:
    backwards = [(RS, [(0, 1), (2, 3)]), (AR, [(0, 2), (1, 3)]), (AG, [(1, 0), (3, 2)])]
    assert repaired(backwards, 4).after == (2, 3, 0, 1)
    assert transpose((2, 3, 0, 1)) is None  # a rotation: taken chunk by chunk


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_halves_are_repaired_before_or_after(order: tuple[int, ...]) -> None:
    sizes = (2, 3, 2)
    scatter = repaired([Step(RS, level, level) for level in order], sizes, "reduce_scatter")
    assert scatter.after == (0,)
    assert scatter.permuted is (order != (0, 1, 2))
    gather = repaired([Step(AG, level, level) for level in reversed(order)], sizes, "all_gather")
    assert gather.before == (0,)
    # To gather in reverse what was scattered undoes it: the one's order is the inverse of the other's.
    assert [gather.after[chunk] for chunk in scatter.before] == list(range(prod(sizes)))


# Transposes


@given(st.lists(st.integers(2, 4), min_size=0, max_size=4), st.data())
def test_every_transpose_is_found(sizes: list[int], data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(len(sizes))))
    take = np.arange(prod(sizes)).reshape(sizes).transpose(order).ravel().tolist()
    found = transpose(take)
    assert found is not None
    assert len(found.sizes) <= max(len(sizes) - 1, 0) or order[-1:] != [len(sizes) - 1]
    again = np.arange(len(take)).reshape(*found.sizes, -1).transpose(*found.order, len(found.order))
    assert again.ravel().tolist() == take


@given(st.permutations(range(6)))
def test_what_is_no_transpose_has_none(take: list[int]) -> None:
    identity = np.arange(6)
    transposes = {tuple(identity.reshape(a, 6 // a).T.ravel().tolist()) for a in (1, 2, 3)}
    assert (transpose(take) is not None) is (tuple(take) in transposes)
