"""Shortest schedules of pipelines: what is proved, what is found, and beside all orders of tiny ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import permutations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partita.formulation.pipeline.evaluate import TimedOrders, evaluate
from partita.formulation.pipeline.orders import (
    chimera,
    gpipe,
    interlaced,
    interleaved,
    one_f_one_b,
    three_f_one_b,
    zero_bubble,
)
from partita.formulation.pipeline.problem import (
    Problem,
    Stage,
    bidirectional,
    chunked,
    interlaced_pipeline,
    pipeline,
    repeated,
    with_room,
)
from partita.model.errors import PartitaError
from partita.solvers.protocol import Status
from partita.solvers.schedule.bounds import jackson, makespan_bound, period_bound, tightened
from partita.solvers.schedule.cpsat import OBJECTIVES, OrderModel, orders_of, refuted, solve

F, B, HALF = 1, 2, 1
SIZES = [(S, K) for S in range(2, 9) for K in range(4, 17)]


def test_unsplit_no_schedule_beats_1f1b_whatever_the_memory() -> None:
    """Twice proved for 2 to 8 stages and 4 to 16 micro-batches: by the bound of one device, and by CP-SAT alone."""
    for S, K in SIZES:
        problem = pipeline([Stage(F, B)] * S, K)
        named = evaluate(problem, one_f_one_b(S, K)).makespan_ns
        assert makespan_bound(problem) == named, (S, K)
        assert refuted(problem, named - 1), (S, K)
        if K == 8:  # nor where devices do not wait for each other between steps
            assert period_bound(problem) == named


@pytest.mark.parametrize(("S", "K"), [(2, 4), (3, 7), (5, 10)])
def test_1f1b_is_rediscovered_in_its_memory(S: int, K: int) -> None:
    room = [S - s for s in range(S)]
    found = solve(pipeline([Stage(F, B)] * S, K, room))
    assert (found.status, found.objective_ns) == (Status.OPTIMAL, (K + S - 1) * (F + B))
    assert found.schedule is not None and list(found.schedule.peak_bytes) == room
    room[0] -= 1
    assert solve(pipeline([Stage(F, B)] * S, K, room)).bound_ns > (K + S - 1) * (F + B)  # type: ignore[operator]


@pytest.mark.parametrize(("S", "K"), [(2, 4), (3, 6), (4, 8)])
def test_split_backwards_have_zero_bubble(S: int, K: int) -> None:
    """In 1F1B's memory S - 1 steps of waiting, proved least; in up to twice as much none within a device's time."""
    stages = [Stage(F, HALF, HALF)] * S
    once = solve(pipeline(stages, K, room=S))
    assert (once.status, once.objective_ns) == (Status.OPTIMAL, 3 * K + S - 1)
    twice = solve(pipeline(stages, K, room=2 * S), "period")
    assert (twice.status, twice.objective_ns) == (Status.OPTIMAL, 3 * K)
    assert twice.schedule is not None and twice.schedule.period_bubble == 0 and max(twice.schedule.peak_bytes) <= 2 * S
    unsplit = solve(pipeline([Stage(F, B)] * S, K), "period")
    assert unsplit.objective_ns == (K + S - 1) * (F + B)


@pytest.mark.parametrize(("D", "K"), [(2, 4), (3, 6), (4, 8)])
def test_chunks_are_interleaved(D: int, K: int) -> None:
    problem = chunked([Stage(F, B)] * 2 * D, D, K)
    found = solve(problem)
    named = evaluate(problem, interleaved(D, K)).makespan_ns
    assert (found.status, found.objective_ns) == (Status.OPTIMAL, named)
    assert named < 2 * (K + D - 1) * (F + B)  # than with both chunks as one stage


UNEVEN = [(20, 40, 10), (10, 20, 10), (10, 20, 30), (10, 20, 10)]


@pytest.mark.parametrize(("room", "lag"), [(None, 0), (4, 0), (4, 5)])
@pytest.mark.parametrize("turn", range(4))
def test_uneven_stages_are_no_longer_than_any_named_schedule(turn: int, room: int | None, lag: int) -> None:
    K, S = 6, 4
    stages = [Stage(f, b) for f, b, _ in UNEVEN[turn:] + UNEVEN[:turn]]
    halves = [Stage(f, b // 2, b - b // 2) for f, b, _ in UNEVEN[turn:] + UNEVEN[:turn]]
    for chain, named in (
        (stages, [gpipe(S, K), one_f_one_b(S, K)]),
        (halves, [zero_bubble(S, K), zero_bubble(S, K, doubled=True)]),
    ):
        free = [evaluate(pipeline(chain, K, lag_ns=lag), orders) for orders in named]
        least = min(s.makespan_ns for s in free if room is None or max(s.peak_bytes) <= room)
        found = solve(pipeline(chain, K, room, lag), known=named, seconds=5)
        assert found.objective_ns is not None and found.bound_ns is not None
        assert found.bound_ns <= found.objective_ns <= least


def test_what_is_better_than_named_schedules() -> None:
    """Uneven stages, several forwards, embeddings on all devices: with what is saved."""

    def saved(problem: Problem, named: TimedOrders) -> float:
        found = solve(problem, known=[named.orders], seconds=120)
        assert found.status is Status.OPTIMAL and found.objective_ns is not None
        return 1 - found.objective_ns / named.makespan_ns

    slow = pipeline([Stage(20, 40), *[Stage(10, 20)] * 3], 8)
    assert saved(slow, evaluate(slow, one_f_one_b(4, 8))) == pytest.approx(30 / 510)
    passes = repeated([Stage(10, 20)] * 4, 8, room=4)
    assert saved(passes, evaluate(passes, three_f_one_b(4, 8))) == pytest.approx(80 / 570)
    shared = interlaced_pipeline([Stage(4, 6, activation_bytes=0), *[Stage(10, 20)] * 2], (0,), 4, room=2)
    assert saved(shared, evaluate(shared, interlaced(2, 4))) == pytest.approx(30 / 220)
    both = bidirectional([Stage(10, 20)] * 4, 8)
    assert saved(both, evaluate(both, chimera(4, 8))) == pytest.approx(30 / 300)


def test_recomputation_as_a_task_beats_the_best_with_it_fused() -> None:
    """The interlaced pipeline, 2 stages, 4 micro-batches: as written 264 fused, 194 as tasks; at best 204 fused."""
    again = Stage(10, 20, recompute_ns=10, activation_bytes=8, input_bytes=1)
    own, fused = (
        interlaced_pipeline([Stage(1, 1, activation_bytes=0), stage, stage], (0,), 4)
        for stage in (again, replace(again, fused=True))
    )
    block, task = evaluate(fused, interlaced(2, 4)), evaluate(own, interlaced(2, 4, recompute=True))
    found = [solve(problem, known=[s.orders]) for problem, s in ((fused, block), (own, task))]
    assert [answer.status for answer in found] == [Status.OPTIMAL] * 2
    assert found[1].objective_ns == task.makespan_ns < found[0].objective_ns < block.makespan_ns  # type: ignore[operator]


def test_too_little_memory_is_infeasible_and_says_why() -> None:
    found = solve(pipeline([Stage(F, B, activation_bytes=3)] * 2, 4, room=2))
    assert (found.status, found.bound_ns, found.schedule) == (Status.INFEASIBLE, None, None)
    assert "takes 3 of 2 bytes" in found.words
    with pytest.raises(PartitaError, match="no orders: infeasible"):
        _ = found.orders
    # The second chunk's forward needs room while the first chunk's piece, which waits for its backward, takes it.
    assert solve(chunked([Stage(F, B)] * 4, 2, 2, room=1)).status is Status.INFEASIBLE
    with pytest.raises(PartitaError, match="no objective 'span'"):
        solve(pipeline([Stage(F, B)], 1), "span")


def test_no_time_leaves_what_is_known_and_the_bound() -> None:
    problem = pipeline([Stage(20, 40), *[Stage(10, 20)] * 3], 8)
    found = solve(problem, known=[one_f_one_b(4, 8)], seconds=0)
    assert (found.status, found.objective_ns, found.bound_ns) == (Status.FEASIBLE, 510, makespan_bound(problem))
    assert solve(problem, seconds=0).status is Status.UNKNOWN


def test_a_known_schedule_is_proved_without_search() -> None:
    problem = pipeline([Stage(F, B)] * 8, 64, room=8)
    found = solve(problem, known=[gpipe(8, 64), one_f_one_b(8, 64)])
    assert (found.status, found.orders) == (Status.OPTIMAL, one_f_one_b(8, 64))
    assert found.words == "known; proved by the bound of one device"


# Beside brute force.


def every_schedule(problem: Problem) -> Iterator[TimedOrders]:
    """The schedules of all orders that end and fit."""
    slots = [[problem.tasks[i].slot for i in own] for own in problem.on_device]
    for orders in product(*(permutations(own) for own in slots)):
        try:
            yield evaluate(problem, orders)
        except PartitaError:
            continue


TIMES = st.integers(1, 4)
STAGES = st.builds(Stage, TIMES, TIMES, activation_bytes=st.integers(1, 2))
SPLITS = st.builds(Stage, TIMES, TIMES, TIMES, activation_bytes=st.just(2), weight_bytes=st.integers(0, 2))
AGAIN = st.builds(Stage, TIMES, TIMES, recompute_ns=TIMES, activation_bytes=st.just(2), input_bytes=st.just(1))
LAG, ROOM = st.integers(0, 3), st.none() | st.integers(2, 4)
TINY: list[Callable[..., Problem]] = [pipeline, bidirectional]
CLOSING = st.lists(st.integers(0, 5), min_size=3, max_size=3)


def closed(problem: Problem, closing: list[int]) -> Problem:
    """With what devices do after their last task, as an update."""
    return replace(problem, closing_ns=tuple(closing[: problem.devices]))


OPEN = st.one_of(
    st.builds(
        lambda build, a, b, room, lag: build([a, b], 2, room, lag), st.sampled_from(TINY), STAGES, STAGES, ROOM, LAG
    ),
    st.builds(lambda a, room: pipeline([a], 2, room), SPLITS | AGAIN, ROOM),
    st.builds(lambda a, b, room, lag: pipeline([a, b], 1, room, lag), SPLITS | AGAIN, SPLITS | AGAIN, ROOM, LAG),
    st.builds(lambda a, b, room: chunked([a, b], 1, 1, room), STAGES, SPLITS | AGAIN, ROOM),
    st.builds(lambda a, b, room: interlaced_pipeline([a, b, b], (0,), 1, room), STAGES, STAGES, ROOM),
    st.builds(lambda a, b, room: repeated([a, b], 1, 2, room), STAGES, STAGES, ROOM),
)
PROBLEMS = OPEN | st.builds(closed, OPEN, CLOSING)


def longer(problem: Problem, times: int) -> Problem:
    """With all times so many times as long."""
    tasks = tuple(replace(task, duration_ns=task.duration_ns * times) for task in problem.tasks)
    edges = tuple(edge._replace(lag_ns=edge.lag_ns * times) for edge in problem.edges)
    return Problem(tasks, edges, problem.capacities, tuple(ns * times for ns in problem.closing_ns))


@settings(max_examples=25, deadline=None)
@given(PROBLEMS, st.sampled_from(sorted(OBJECTIVES)), st.sampled_from([1, 60]))
def test_the_optimum_is_that_of_all_orders(problem: Problem, objective: str, times: int) -> None:
    bounded, value = OBJECTIVES[objective]
    problem = longer(problem, times)
    best = min((value(schedule) for schedule in every_schedule(problem)), default=None)
    found = solve(problem, objective)
    if objective == "makespan" or times == 1 or best is None:
        assert (found.objective_ns, found.bound_ns) == (best, best)
        assert found.status is (Status.INFEASIBLE if best is None else Status.OPTIMAL)
    if best is not None:
        assert found.objective_ns is not None and found.bound_ns is not None
        assert bounded(problem) <= found.bound_ns <= best <= found.objective_ns < best + times
        assert found.schedule is not None and value(evaluate(problem, found.orders)) == found.objective_ns
        assert not refuted(problem, min(s.makespan_ns for s in every_schedule(problem)))


WIDER = st.one_of(
    st.builds(
        lambda a, b, c, n, room, lag: pipeline([a, b, c], n, room, lag), *[STAGES] * 3, st.integers(2, 4), ROOM, LAG
    ),
    st.builds(lambda a, b, n, room: pipeline([a, b], n, room), SPLITS | AGAIN, SPLITS | AGAIN, st.integers(2, 3), ROOM),
    st.builds(lambda a, b, n, room: chunked([a, b, a, b], 2, n, room), STAGES, STAGES, st.integers(2, 3), ROOM),
)
LARGER = WIDER | st.builds(closed, WIDER, CLOSING)


@settings(max_examples=15, deadline=None)
@given(LARGER)
def test_order_of_micro_batches_and_memory_as_edges_lose_nothing(problem: Problem) -> None:
    """CP-SAT from the constraints alone finds nothing shorter; its starts are those of a schedule, or later ones."""
    program = OrderModel(problem, "makespan", 0, plain=True)
    status, starts, bound = program.solve(10)
    found = solve(problem)
    assert status is found.status
    if starts is not None:
        assert found.objective_ns == bound >= makespan_bound(problem)
        earliest = evaluate(problem, orders_of(problem, starts))
        assert all(a <= b for a, b in zip(earliest.starts_ns, starts, strict=True))
        assert len(tightened(problem).edges) > len(problem.edges)


def test_a_step_ends_with_the_longest_update() -> None:
    """The step ends with the last device's update, which takes longest."""
    plain = pipeline([Stage(F, B)] * 2, 4)
    found = solve(replace(plain, closing_ns=(0, 9)))
    assert (found.status, found.objective_ns) == (Status.OPTIMAL, F + 4 * (F + B) + 9)
    with pytest.raises(PartitaError, match=r"closing_ns \(1,\): a time from 0 for each of 2 devices is needed"):
        replace(plain, closing_ns=(1,))


def test_jackson_by_hand() -> None:
    """The second waits for the first's end, or interrupts it where its tail is longer."""
    assert jackson([]) == 0
    assert jackson([(2, 3, 4)]) == 9
    assert jackson([(0, 4, 0), (1, 2, 9)]) == 12
    assert jackson([(0, 4, 9), (1, 2, 0)]) == 13
    assert jackson([(0, 1, 5), (4, 2, 0), (4, 1, 3)]) == 8


def test_memory_as_edges() -> None:
    """In room for two, the forward of micro-batch 2 waits for the backward of micro-batch 0."""
    problem = pipeline([Stage(F, B)], 4)
    more = [len(tightened(with_room(problem, room)).edges) - len(problem.edges) for room in (None, 4, 3, 2, 1)]
    assert more == [6, 6, 7, 8, 9]
