"""Problems of pipelines, and what orders cost: by hand, and refused with the reason."""

from __future__ import annotations

import pytest

from partita.formulation.pipeline.evaluate import evaluate
from partita.formulation.pipeline.orders import Slot, gpipe, one_f_one_b, zero_bubble
from partita.formulation.pipeline.problem import (
    Precedence,
    Problem,
    Stage,
    Task,
    bidirectional,
    build,
    chunked,
    in_units,
    interlaced_pipeline,
    pipeline,
    with_room,
)
from partita.formulation.pipeline.steady import RepetitionBound, Steady, repetitions
from partita.model.errors import PartitaError

TWO = pipeline([Stage(2, 3, activation_bytes=7), Stage(4, 5, activation_bytes=1)], 2, lag_ns=10)


def test_starts_of_two_stages_by_hand() -> None:
    found = evaluate(TWO, gpipe(2, 2))
    starts = {str(TWO.tasks[i].slot): start for i, start in enumerate(found.starts_ns)}
    assert starts == {
        "F(stage 0, micro-batch 0)": 0,
        "F(stage 0, micro-batch 1)": 2,
        "F(stage 1, micro-batch 0)": 12,
        "F(stage 1, micro-batch 1)": 16,
        "B(stage 1, micro-batch 0)": 20,
        "B(stage 1, micro-batch 1)": 25,
        "B(stage 0, micro-batch 0)": 35,
        "B(stage 0, micro-batch 1)": 40,
    }
    assert (found.makespan_ns, found.period_ns, found.peak_bytes) == (43, 43, (14, 2))
    assert found.bubble == pytest.approx(1 - (10 + 18) / (2 * 43))


def test_the_period_is_the_longest_circle_of_devices() -> None:
    """Each device runs 2 ns of its own; what they wait for each other delays starts, not the time between steps."""
    tasks = (Task("F", 0, 0, (0,), 2), Task("F", 1, 0, (1,), 2))
    orders = ((Slot("F", 0, 0),), (Slot("F", 1, 0),))
    assert evaluate(Problem(tasks, (Precedence(0, 1, 5),), (None, None)), orders).makespan_ns == 9
    assert evaluate(Problem(tasks, (Precedence(0, 1, 5),), (None, None)), orders).period_ns == 2
    back = (*tasks, Task("B", 0, 0, (0,), 2))
    orders = ((Slot("F", 0, 0), Slot("B", 0, 0)), (Slot("F", 1, 0),))
    assert evaluate(Problem(back, (Precedence(0, 1, 5), Precedence(1, 2, 5)), (None, None)), orders).period_ns == 16
    # Two devices that wait for each other's middle: 0 starts 1 and 1 starts 0's end, with a mean of 3/2 rounded up.
    cross = (Task("F", 0, 0, (0,), 1), Task("F", 1, 0, (1,), 1), Task("F", 2, 0, (0,), 1), Task("F", 3, 0, (1,), 1))
    orders = ((Slot("F", 0, 0), Slot("F", 2, 0)), (Slot("F", 1, 0), Slot("F", 3, 0)))
    assert evaluate(Problem(cross, (Precedence(0, 3, 0), Precedence(1, 2, 1)), (None, None)), orders).period_ns == 3


@pytest.mark.parametrize(
    ("device", "order", "words"),
    [
        (0, "F0.0 F0.1 B0.0", r"device 0: B\(stage 0, micro-batch 1\) is missing"),
        (0, "F0.0 F0.1 B0.0 B0.1 B0.1", r"device 0: B\(stage 0, micro-batch 1\) is there 2 times"),
        (1, "F1.0 F1.1 B1.0 B1.1 F0.0", r"device 1: F\(stage 0, micro-batch 0\) is no task of it"),
        (
            1,
            "B1.0 F1.0 F1.1 B1.1",
            r"deadlock: (F\(stage 1, micro-batch 0\) comes after B\(stage 1, micro-batch 0\) on device 1, which "
            r"needs F\(stage 1, micro-batch 0\)|B\(stage 1, micro-batch 0\) needs F\(stage 1, micro-batch 0\), "
            r"which comes after B\(stage 1, micro-batch 0\) on device 1);",
        ),
    ],
)
def test_wrong_orders_are_refused_by_name(device: int, order: str, words: str) -> None:
    orders = list(gpipe(2, 2))
    orders[device] = tuple(Slot(text[0], int(text[1]), int(text[3])) for text in order.split())
    with pytest.raises(PartitaError, match=words):
        evaluate(TWO, orders)


def test_two_devices_that_wait_for_each_other_are_both_named() -> None:
    mine = tuple(Slot(kind, 0, micro) for micro in (0, 1) for kind in "FB")
    other = tuple(Slot(kind, 1, micro) for micro in (1, 0) for kind in "FB")
    with pytest.raises(PartitaError, match=r"deadlock: .* on device 1.* on device 0"):
        evaluate(TWO, (mine, other))


def test_memory_is_checked_at_every_take() -> None:
    assert evaluate(with_room(TWO, (14, 2)), gpipe(2, 2)).peak_bytes == (14, 2)
    with pytest.raises(PartitaError, match=r"device 0 has room for 13 bytes, but F\(stage 0, micro-batch 1\) .* 14"):
        evaluate(with_room(TWO, (13, None)), gpipe(2, 2))
    assert evaluate(with_room(TWO, (14, 1)), one_f_one_b(2, 2)).peak_bytes == (14, 1)


def test_what_is_kept_for_the_weights_and_what_is_recomputed() -> None:
    """Of 10 bytes a weight's gradient needs 4; a recomputed stage keeps its input of 2, and 10 from its "R" on."""
    split = pipeline([Stage(1, 1, 1, activation_bytes=10, weight_bytes=4)], 2)
    assert evaluate(split, zero_bubble(1, 2, doubled=True)).peak_bytes == (10,)
    late = tuple(Slot(kind, 0, m) for kind in "FBW" for m in (0, 1))
    assert evaluate(split, (late,)).peak_bytes == (20,)
    again = [Stage(1, 1, recompute_ns=1, activation_bytes=10, input_bytes=2, fused=fused) for fused in (False, True)]
    own, fused = (pipeline([stage], 3) for stage in again)
    forwards = tuple(Slot("F", 0, m) for m in range(3))
    backwards = tuple(Slot("B", 0, m) for m in range(3))
    assert evaluate(fused, (forwards + backwards,)).peak_bytes == (16,)
    repeated = tuple(Slot("R", 0, m) for m in range(3))
    assert evaluate(own, (forwards + repeated + backwards,)).peak_bytes == (36,)
    assert [(h.taker, h.releaser, h.bytes) for h in pipeline([again[0]], 1).holdings] == [(0, 2, 2), (1, 2, 10)]


def test_shared_stages_keep_all_devices_busy_at_once() -> None:
    problem = interlaced_pipeline([Stage(1, 1), Stage(2, 2), Stage(2, 2)], (0,), 1)
    assert problem.devices == 2 and problem.loads_ns == (6, 6)
    order = [Slot("F", 0, 0), Slot("F", 1, 0), Slot("B", 1, 0), Slot("B", 0, 0)]
    other = [slot._replace(stage=2) if slot.stage == 1 else slot for slot in order]
    assert evaluate(problem, (order, other)).makespan_ns == 10


def test_times_in_their_largest_unit() -> None:
    small, unit = in_units(pipeline([Stage(200, 300), Stage(100, 500)], 1, lag_ns=50))
    assert unit == 50 and [task.duration_ns for task in small.tasks] == [4, 6, 2, 10]
    assert {edge.lag_ns for edge in small.edges} == {0, 1}


F, B = Task("F", 0, 0, (0,), 1, takes_bytes=2), Task("B", 0, 0, (0,), 1, releases_bytes=2)


@pytest.mark.parametrize(
    ("tasks", "edges", "words"),
    [
        ((F, B), (Precedence(0, 1), Precedence(1, 0)), "no schedule exists: .* waits for"),
        ((F, B), (Precedence(0, 2),), "beyond the 2 tasks"),
        ((F, F), (), r"F\(stage 0, micro-batch 0\) is duplicated"),
        ((Task("F", 0, 0, (1,), 1),), (), "on devices .*, of 1"),
        ((Task("F", 0, 0, (0,), 0),), (), "at least 1 ns"),
        ((Task("G", 0, 0, (0,), 1),), (), "one of F, R, B, W"),
        ((F,), (), "takes 2 bytes that nothing releases"),
        ((B,), (), "releases 2 bytes that nothing before it took"),
    ],
)
def test_problems_that_are_none(tasks: tuple[Task, ...], edges: tuple[Precedence, ...], words: str) -> None:
    with pytest.raises(PartitaError, match=words):
        Problem(tasks, edges, (None,))


def test_constructors_check_their_sizes() -> None:
    stage = Stage(1, 1)
    for words, wrong in {
        "no pipeline": lambda: pipeline([], 4),
        "do not lie evenly": lambda: chunked([stage] * 3, 2, 4),
        "room for 3 devices": lambda: pipeline([stage] * 2, 4, room=(1, 2, 3)),
        "not places in a chain": lambda: interlaced_pipeline([stage] * 2, (2,), 4),
        "orders for 1 devices": lambda: evaluate(TWO, gpipe(1, 2)),
        "without any task": lambda: evaluate(build([stage], 1, lambda s, m: (0,), 2), (*gpipe(1, 1), ())),
        "at least one": lambda: repetitions(TWO, 0),
    }.items():
        with pytest.raises(PartitaError, match=words):
            wrong()
    assert bidirectional([stage] * 2, 2).index[Slot("F", 0, 1)] in bidirectional([stage] * 2, 2).on_device[1]


def test_a_steady_schedule_is_not_asked_for_less_than_it_has() -> None:
    one = pipeline([Stage(1, 1)], 1)
    steady = Steady(one, 2, 3, (0, 1, 2, 3, 4, 5), 4, RepetitionBound(2, 0, 0, "work"))  # type: ignore[arg-type]
    assert steady.makespan_ns(5) == 10 and steady.starts(4) == (0, 1, 2, 3, 4, 5, 6, 7)
    with pytest.raises(PartitaError, match="begins to repeat with 3"):
        steady.orders(2)
