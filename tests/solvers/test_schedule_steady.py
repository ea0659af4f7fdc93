"""Schedules for any number of micro-batches: their period is proved, and they are what they say, unrolled."""

from __future__ import annotations

from functools import partial
from itertools import count, pairwise, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partita.formulation.pipeline.evaluate import evaluate
from partita.formulation.pipeline.orders import one_f_one_b, zero_bubble
from partita.formulation.pipeline.problem import (
    Problem,
    Stage,
    bidirectional,
    chunked,
    interlaced_pipeline,
    pipeline,
    repeated,
)
from partita.formulation.pipeline.steady import Steady, repetitions, turns
from partita.model.errors import PartitaError
from partita.solvers.protocol import Status
from partita.solvers.schedule.cpsat import solve
from partita.solvers.schedule.repetition_bounds import repetition_bounds
from partita.solvers.schedule.steady import Modulo, steady

F, B = 10, 20
MEASURED = [Stage(1235, 2346), Stage(1535, 2946), Stage(1035, 2146), Stage(1435, 2746)]


def check_starts(problem: Problem, starts: tuple[int, ...]) -> int:
    """The makespan of starts that keep every constraint: edges, devices, memory at every time."""
    end = [start + task.duration_ns for start, task in zip(starts, problem.tasks, strict=True)]
    assert all(starts[e.after] >= end[e.before] + e.lag_ns for e in problem.edges) and min(starts) >= 0
    for d, own in enumerate(problem.on_device):
        ordered = sorted(own, key=starts.__getitem__)
        assert all(end[a] <= starts[b] for a, b in pairwise(ordered))
        held = [h for h in problem.holdings if h.device == d]
        for i in own:
            used = sum(h.bytes for h in held if starts[h.taker] <= starts[i] < end[h.releaser])
            capacity = problem.capacities[d]
            assert capacity is None or used <= capacity
    return max(end)


def check_unrolled(problem: Problem, found: Steady, most: int = 64) -> None:
    """For a few more than the least, and for many: valid starts of the makespan said, which `evaluate` confirms."""
    for n in (*range(found.least, found.least + 4), most):
        whole, said = repetitions(problem, n), found.makespan_ns(n)
        assert check_starts(whole, found.starts(n)) == said
        assert found.floor.makespan_ns(n) <= evaluate(whole, found.orders(n)).makespan_ns <= said


CASES = {
    "1f1b": (pipeline([Stage(F, B)] * 4, 1, [4, 3, 2, 1]), 30),
    "split": (pipeline([Stage(F, 10, 10)] * 3, 1, 3), 30),
    "measured": (pipeline(MEASURED, 1, [4, 3, 2, 1]), 1535 + 2946),
    "with transfers": (pipeline(MEASURED, 1, [4, 3, 2, 1], lag_ns=300), 1535 + 2946),
    "three forwards": (repeated([Stage(F, B)] * 3, 1, room=3), 50),
    "two chunks": (chunked([Stage(F, B)] * 4, 2, 1, room=6), 60),
}


@pytest.mark.parametrize("name", CASES)
def test_no_schedule_is_shorter_for_any_number_of_micro_batches(name: str) -> None:
    problem, period = CASES[name]
    answer = steady(problem, seconds=120)
    found = answer.steady
    assert found is not None and answer.period is Status.OPTIMAL
    assert found.period_ns == period == max(problem.loads_ns)
    assert found.always_shortest and found.above_ns(1000) == 0
    check_unrolled(problem, found)


def test_1f1b_s_makespan_is_a_line() -> None:
    found = steady(pipeline([Stage(F, B)] * 4, 1, [4, 3, 2, 1])).steady
    assert found is not None and [found.makespan_ns(n) for n in (16, 64, 1000)] == [19 * 30, 67 * 30, 1003 * 30]


@pytest.mark.parametrize(
    ("problem", "period"),
    [
        (pipeline([Stage(F, B)] * 4, 1, [2, 2, 2, 1]), 60),  # 120 ns in memory, 2 at once
        (bidirectional([Stage(F, B)] * 2, 2, room=2), 60),
        (interlaced_pipeline([Stage(4, 6, activation_bytes=0), *[Stage(F, B)] * 2], (0,), 1, room=2), 40),
    ],
)
def test_memory_and_shared_stages_make_periods_longer_or_not(problem: Problem, period: int) -> None:
    answer = steady(problem, seconds=120)
    assert answer.steady is not None and (answer.period, answer.steady.period_ns) == (Status.OPTIMAL, period)
    assert answer.steady.above_ns(100) == answer.steady.above_ns(200) or period > answer.steady.floor.slope_ns
    check_unrolled(problem, answer.steady)


def test_named_schedules_repeat_and_are_taken_where_they_are_shortest() -> None:
    problem = pipeline([Stage(1, 1, 1)] * 8, 1, room=8)
    answer = steady(problem, [partial(zero_bubble, 8)], seconds=120)
    assert answer.steady is not None and answer.steady.always_shortest
    assert answer.steady.orders(64) == zero_bubble(8, 64)
    assert answer.steady.makespan_ns(64) == 3 * 64 + 7


def test_a_schedule_that_does_not_repeat_has_no_turn() -> None:
    problem = pipeline([Stage(F, B)] * 2, 1)
    whole = repetitions(problem, 8)
    alternating = evaluate(whole, one_f_one_b(2, 8)).starts_ns
    assert next(turns(problem, 30, alternating), None) is not None
    assert next(turns(problem, 31, alternating), None) is None
    backwards = tuple(alternating[i ^ 4] for i in range(len(alternating)))  # neighbours change places
    assert next(turns(problem, 30, backwards), None) is None


def test_no_period_without_memory_for_one_repetition() -> None:
    answer = steady(chunked([Stage(F, B)] * 4, 2, 1, room=1))
    assert (answer.period, answer.steady) == (Status.INFEASIBLE, None)


def test_tasks_on_some_devices_are_refused() -> None:
    with pytest.raises(PartitaError, match="for one or all"):
        some = interlaced_pipeline([Stage(1, 1), *[Stage(1, 1)] * 3], (0,), 1)
        Modulo(Problem(some.tasks, some.edges, (*some.capacities, None)), 1)


# Beside brute force.

TIMES = st.integers(1, 3)
STAGES = st.builds(Stage, TIMES, TIMES)


def least_period(problem: Problem, most: int) -> int:
    """The least period of a chain of tasks, tried one by one, with every place of each task in the period.

    A task may run over the end of the period here. In a chain, earliest tasks hold memory for the shortest time.
    """
    p = [task.duration_ns for task in problem.tasks]
    chain = problem.topological
    waits = {(a, b): p[a] + lag for a, b, lag in problem.edges}
    for T in count(max(problem.loads_ns)):
        for places in product(range(T), repeat=len(p)):
            busy = [[(places[i] + t) % T for i in own for t in range(p[i])] for own in problem.on_device]
            if any(len(set(times)) < len(times) for times in busy) or places[chain[0]]:
                continue
            begin = {chain[0]: 0}
            for i, j in pairwise(chain):
                soonest = begin[i] + waits[i, j]
                begin[j] = soonest + (places[j] - soonest) % T
            spans = [(h.device, h.bytes, begin[h.taker], begin[h.releaser] + p[h.releaser]) for h in problem.holdings]
            used = [
                sum(b * len([t for t in range(start, end) if t % T == at]) for on, b, start, end in spans if on == d)
                for d in range(problem.devices)
                for at in range(T)
            ]
            rooms = [c for c in problem.capacities for _ in range(T)]
            if all(room is None or u <= room for u, room in zip(used, rooms, strict=True)):
                return T
        assert most > T, "no period"
    raise AssertionError


@settings(max_examples=12, deadline=None)
@given(STAGES, STAGES, st.integers(0, 2), st.sampled_from([1, 2, None]))
def test_the_period_is_the_least_and_the_floors_hold(a: Stage, b: Stage, lag: int, room: int | None) -> None:
    problem = pipeline([a, b], 1, room, lag)
    answer = steady(problem, seconds=120)
    found = answer.steady
    assert found is not None and answer.period is Status.OPTIMAL
    assert found.period_ns == least_period(problem, 40)
    for n in (1, 2, 3, 5):
        shortest = solve(repetitions(problem, n)).objective_ns
        assert shortest is not None
        assert all(floor.makespan_ns(n) <= shortest for floor in repetition_bounds(problem) if floor.beyond < n)
    check_unrolled(problem, found, found.least + 6)
    assert steady(repetitions(problem, 2), seconds=120).steady.period_ns <= 2 * found.period_ns  # type: ignore[union-attr]
