"""Tables of transitions: the vectorised program is the scalar one, and routes are never dearer than direct programs."""

from itertools import pairwise

import numpy as np
import pytest

from partita.formulation.placement.placement import of_rows
from partita.formulation.strategies.transitions import Space, Transitions, space
from partita.model.graph.layout import Action, B, P, R, S, chunk, layouts, splittable, steps
from partita.model.machine.machine import Machine

MACHINE = Machine.load("dgx-a100", nodes=4)
PLACEMENTS = [of_rows(rows) for rows in (((4, 8),), ((4, 1), (1, 8)), ((4, 1), (1, 4), (1, 2)))]


@pytest.fixture(params=PLACEMENTS, ids=lambda p: "x".join(map(str, p.sizes)))
def transitions(request: pytest.FixtureRequest) -> Transitions:
    return Transitions(MACHINE, request.param)


def priced(t: Transitions, s: Space, source: int, target: int, itemsize: int) -> tuple[int, int]:
    """The scalar program, priced step by step."""
    written = (Action.GATHER, Action.PAD, Action.SLICE, Action.KEEP_FIRST)
    forward = backward = 0
    current = list(s.layout(source))
    for step in steps(s.layout(source), s.layout(target)):
        before = s.code(tuple(current))
        current[step.axis] = step.target
        after = s.code(tuple(current))
        value, gradient = step.move.value, step.move.gradient
        forward += t.step_ns(step.axis, value, int(s.numel[after if value in written else before]) * itemsize)
        backward += t.step_ns(step.axis, gradient, int(s.numel[before if gradient in written else after]) * itemsize)
    return forward, backward


def test_all_pairs_are_priced_as_their_programs(transitions: Transitions) -> None:
    s = space(transitions.axes, (64, 96, 50))
    codes = s.legal()
    forward, backward, *_ = transitions.direct(s, codes, 2, gradient=True)
    generator = np.random.default_rng(0)
    for _ in range(1500):
        i, j = generator.integers(len(codes), size=2)
        assert (forward[i, j], backward[i, j]) == priced(transitions, s, codes[i], codes[j], 2)


def test_routes_are_shortest_and_their_parts_add_up(transitions: Transitions) -> None:
    s = space(transitions.axes, (64, 96))
    table = transitions.table(s, 4, gradient=True)
    forward, backward, *_ = transitions.direct(s, table.codes, 4, gradient=True)
    direct = forward + backward
    assert (table.total <= direct).all()
    n = len(table.codes)
    best = np.min(table.total[:, :, None] + table.total[None, :, :], axis=1)
    assert (table.total <= best).all()
    generator, found = np.random.default_rng(1), set()
    for _ in range(300):
        i, j = generator.integers(n, size=2)
        route = (table.codes[i], *table.route(table.codes[i], table.codes[j]), table.codes[j])
        legs = [(table.position[a], table.position[b]) for a, b in pairwise(route)]
        assert sum(direct[a, b] for a, b in legs) == table.total[i, j]
        assert sum(forward[a, b] for a, b in legs) == table.forward[i, j]
        moves = [step.move.value for a, b in pairwise(map(s.layout, route)) for step in steps(a, b)]
        assert table.waits[i, j] == any(move not in (Action.GATHER, Action.NOTHING) for move in moves)
        found.add(bool(table.waits[i, j]))
    assert found == {True, False}


def test_staying_is_free_and_slicing_sends_nothing(transitions: Transitions) -> None:
    s = space(transitions.axes, (64, 96))
    table = transitions.table(s, 4, gradient=True)
    assert (np.diagonal(table.total) == 0).all()
    at = {letter: table.position[s.code((letter,) * len(transitions.axes))] for letter in (R, B, P, S(0))}
    assert table.total[at[B], at[S(0)]] < table.total[at[S(0)], at[B]]
    assert table.total[at[P], at[S(0)]] < table.total[at[P], at[R]] + table.total[at[R], at[S(0)]] + 1


def test_legal_layouts_leave_no_rank_empty() -> None:
    s = space((4, 8), (3, 96))
    expected = {
        s.code(x)
        for x in layouts(2, 2)
        if all(
            splittable(n, tuple(p for p, y in zip((4, 8), x, strict=True) if y == S(a))) for a, n in enumerate((3, 96))
        )
    }
    assert set(s.legal().tolist()) == expected
    assert not any(S(0) == x for code in expected for x in s.layout(code))  # 3 into 4 leaves one empty


def test_local_sizes_are_those_of_the_largest_part() -> None:
    s = space((4, 2), (10, 6))
    assert s.numel[s.code((S(0), R))] == 3 * 6
    assert s.numel[s.code((S(0), S(0)))] == 2 * 6
    assert s.numel[s.code((S(0), S(1)))] == 3 * 3


def test_a_split_is_legal_where_every_part_has_items() -> None:
    """By brute force: cut, and cut every part again."""

    def empty(size: int, parts: tuple[int, ...]) -> bool:
        if not parts:
            return size < 1
        cuts = [chunk(size, parts[0], i) for i in range(parts[0])]
        return any(empty(stop - start, parts[1:]) for start, stop in cuts)

    for size in range(1, 30):
        for parts in ((2,), (5,), (2, 4), (4, 2), (3, 3), (2, 2, 3), (3, 2, 4)):
            assert splittable(size, parts) is not empty(size, parts), (size, parts)
    assert not splittable(9, (2, 4))
