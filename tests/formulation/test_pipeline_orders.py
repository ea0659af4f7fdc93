"""The named schedules: what every device runs, and the makespans and memory that their papers state."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.formulation.pipeline import device_orders
from partita.formulation.pipeline.configuration import step_ns
from partita.formulation.pipeline.evaluate import TimedOrders, evaluate, starts_ns
from partita.formulation.pipeline.orders import (
    Orders,
    Slot,
    chimera,
    device_slots,
    gpipe,
    in_lock_step,
    interlaced,
    interleaved,
    one_f_one_b,
    three_f_one_b,
    zero_bubble,
)
from partita.formulation.pipeline.problem import Stage, bidirectional, chunked, interlaced_pipeline, pipeline, repeated
from partita.model.errors import PartitaError

SIZES = [(1, 1), (2, 3), (3, 2), (4, 8), (5, 16), (8, 12)]
F, B = 3, 5


def written(order: Sequence[Slot]) -> str:
    return " ".join(f"{slot.kind}{slot.stage}.{slot.micro}" for slot in order)


def test_small_schedules_by_hand() -> None:
    assert [written(order) for order in gpipe(2, 2)] == ["F0.0 F0.1 B0.0 B0.1", "F1.0 F1.1 B1.0 B1.1"]
    assert [written(order) for order in one_f_one_b(2, 3)] == [
        "F0.0 F0.1 B0.0 F0.2 B0.1 B0.2",
        "F1.0 B1.0 F1.1 B1.1 F1.2 B1.2",
    ]
    assert written(one_f_one_b(2, 2, recompute=True)[1]) == "F1.0 R1.0 B1.0 F1.1 R1.1 B1.1"
    assert [written(order) for order in chimera(2, 2)] == ["F0.0 F1.1 B1.1 B0.0", "F0.1 F1.0 B1.0 B0.1"]
    assert [written(order) for order in interleaved(2, 2, chunks=2)] == [
        "F0.0 F0.1 F2.0 F2.1 B2.0 B2.1 B0.0 B0.1",
        "F1.0 F1.1 F3.0 B3.0 F3.1 B3.1 B1.0 B1.1",
    ]
    assert [written(order) for order in zero_bubble(2, 3)] == [
        "F0.0 F0.1 B0.0 W0.0 F0.2 B0.1 W0.1 B0.2 W0.2",
        "F1.0 B1.0 F1.1 B1.1 W1.0 F1.2 B1.2 W1.1 W1.2",
    ]
    assert written(three_f_one_b(2, 1)[1]) == "F1.0 F3.0 F5.0 B5.0"
    assert written(three_f_one_b(2, 2, passes=2, in_turn=True)[0]) == "F0.0 F0.1 F2.0 F2.1 B2.0 B2.1"


def test_interlaced_has_embeddings_as_barriers_after_every_second_step() -> None:
    """Stage 0 is the embedding; step 2m + s runs forwards of stage s + 1, step 2S - 1 - s + 2m its backwards."""
    first, second = interlaced(2, 3)
    assert written(first) == "F0.0 F1.0 F0.1 F1.1 B1.0 B0.0 F0.2 F1.2 B1.1 B0.1 B1.2 B0.2"
    assert written(second) == "F0.0 F2.0 F0.1 B2.0 F2.1 B0.0 F0.2 B2.1 F2.2 B0.1 B2.2 B0.2"
    embeddings = [[slot for slot in order if slot.stage == 0] for order in interlaced(4, 8)]
    assert all(own == embeddings[0] for own in embeddings)
    assert [tuple(s for s in order if s.stage) for order in interlaced(4, 8)] == [
        tuple(slot._replace(stage=s + 1) for slot in order) for s, order in enumerate(one_f_one_b(4, 8))
    ]


@pytest.mark.parametrize("shared", [(0,), (0, 4), (2,), (0, 2, 5), (0, 1)])
def test_interlaced_runs_with_embeddings_anywhere(shared: tuple[int, ...]) -> None:
    chain = [Stage(1, 1) if k in shared else Stage(F, B, recompute_ns=F) for k in range(3 + len(shared))]
    found = evaluate(interlaced_pipeline(chain, shared, 5), interlaced(3, 5, shared, recompute=True))
    assert found.makespan_ns >= 5 * (2 * len(shared) + 2 * F + B)


@pytest.mark.parametrize("shared", [(0, 4), (0, 2, 5)])
@pytest.mark.parametrize("micros", [1, 2, 9])
def test_lock_step_makes_no_equal_stage_wait_at_barriers(shared: tuple[int, ...], micros: int) -> None:
    """The step is that of 1F1B, and the time of the shared stages, whatever the shares of forward and backward."""
    for forward, backward in ((3, 3), (2, 7), (7, 2)):
        chain = [Stage(1, 2) if k in shared else Stage(forward, backward) for k in range(3 + len(shared))]
        found = evaluate(interlaced_pipeline(chain, shared, micros), in_lock_step(3, micros, shared))
        together = 3 * len(shared) * micros
        assert found.makespan_ns <= (micros + 2) * (forward + backward) + together
        assert micros < 5 or found.makespan_ns == (micros + 2) * (forward + backward) + together


def test_the_stages_of_lock_step_are_in_the_order_of_eager_1f1b() -> None:
    own = [tuple(slot for slot in order if slot.stage not in (0, 5)) for order in in_lock_step(4, 8, (0, 5))]
    eager = [device_slots(device_orders.eager_one_f_one_b, d, 4, 8) for d in range(4)]
    assert own == [tuple(slot._replace(stage=slot.stage + 1) for slot in order) for order in eager]


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=2, max_size=4), st.integers(1, 9))
def test_the_formula_of_1f1b_bounds_lock_step_from_below(times: list[tuple[int, int]], more: int) -> None:
    stages, micros = len(times), len(times) + more
    chain = [Stage(1, 1), *(Stage(*each) for each in times), Stage(1, 1)]
    shared = (0, stages + 1)
    found = evaluate(interlaced_pipeline(chain, shared, micros), in_lock_step(stages, micros, shared))
    busy = [micros * sum(each) for each in times]
    assert found.makespan_ns >= step_ns(stages, micros, busy) + 4 * micros


@pytest.mark.parametrize(("stages", "micros"), SIZES)
def test_1f1b_has_the_makespan_of_gpipe_and_keeps_at_most_s_micro_batches(stages: int, micros: int) -> None:
    problem = pipeline([Stage(F, B)] * stages, micros)
    all_at_once, alternating = (evaluate(problem, plan(stages, micros)) for plan in (gpipe, one_f_one_b))
    assert all_at_once.makespan_ns == alternating.makespan_ns == (micros + stages - 1) * (F + B)
    assert all_at_once.peak_bytes == (micros,) * stages
    assert alternating.peak_bytes == tuple(min(micros, stages - s) for s in range(stages))
    assert alternating.bubble == pytest.approx((stages - 1) / (micros + stages - 1))


@pytest.mark.parametrize(("devices", "micros", "chunks"), [(2, 4, 2), (4, 8, 2), (4, 8, 3), (3, 6, 1)])
def test_interleaving_divides_the_bubble_by_the_chunks(devices: int, micros: int, chunks: int) -> None:
    problem = chunked([Stage(F, B)] * devices * chunks, devices, micros)
    found = evaluate(problem, interleaved(devices, micros, chunks))
    assert found.makespan_ns == (micros * chunks + devices - 1) * (F + B)


@pytest.mark.parametrize("stages", [2, 4, 8])
def test_chimera_waits_s_minus_2_steps_in_its_first_unit(stages: int) -> None:
    problem = bidirectional([Stage(1, 1)] * stages, stages)
    found = evaluate(problem, chimera(stages, stages))
    assert found.makespan_ns == 3 * stages - 2
    assert max(found.peak_bytes) <= stages
    evaluate(bidirectional([Stage(F, B)] * stages, 3 * stages + 1), chimera(stages, 3 * stages + 1))


@pytest.mark.parametrize("stages", [2, 4, 6, 8])
@pytest.mark.parametrize("each", [1, 2, 5])
def test_both_devices_of_chimera_s_stages_run_mirrored_orders(stages: int, each: int) -> None:
    """Slot by slot the other direction: so they end at one time, and no update waits for the other device."""
    orders = chimera(stages, 2 * each)
    for device, other in zip(orders, orders[::-1], strict=True):
        assert [slot._replace(micro=slot.micro ^ 1) for slot in device] == list(other)
    rng = random.Random(each)
    problem = bidirectional([Stage(rng.randint(1, 9), rng.randint(1, 9)) for _ in range(stages)], 2 * each)
    found = starts_ns(problem, orders)
    ends = [0] * stages
    for task, start in zip(problem.tasks, found, strict=True):
        for d in task.devices:
            ends[d] = max(ends[d], start + task.duration_ns)
    assert ends == ends[::-1]


@pytest.mark.parametrize(("stages", "micros"), [(2, 3), (4, 8), (6, 12), (8, 16)])
def test_zero_bubble_with_1f1b_s_memory_and_with_twice_as_much(stages: int, micros: int) -> None:
    """With equal F, B and W: ZB-H1 waits S - 1 steps, ZB-H2 none within a device's own time."""
    problem = pipeline([Stage(1, 1, 1)] * stages, micros)
    once, twice = (evaluate(problem, zero_bubble(stages, micros, doubled)) for doubled in (False, True))
    assert once.makespan_ns == once.period_ns == 3 * micros + stages - 1
    assert once.peak_bytes == (min(stages, micros),) * stages
    assert twice.period_ns == 3 * micros and twice.period_bubble == 0
    assert max(twice.peak_bytes) == 2 * stages - 1


@pytest.mark.parametrize(("stages", "micros"), SIZES)
def test_3f1b_keeps_as_much_as_1f1b(stages: int, micros: int) -> None:
    problem = repeated([Stage(1, 2)] * stages, micros)
    mixed, in_turn = (evaluate(problem, three_f_one_b(stages, micros, in_turn=turn)) for turn in (False, True))
    for found in (mixed, in_turn):
        assert found.peak_bytes == tuple(min(micros, stages - s) for s in range(stages))
    assert in_turn.makespan_ns <= mixed.makespan_ns
    if micros >= stages:
        assert in_turn.makespan_ns == 2 * micros + 3 * (micros + stages - 1)
    assert three_f_one_b(stages, micros, passes=1) == one_f_one_b(stages, micros)


def test_recomputation_as_a_task_runs_before_the_gradient_comes() -> None:
    """The paper's Figure 15: fused recomputation makes every second step of the interlaced pipeline wait for it."""

    def step(fused: bool, orders: Orders) -> TimedOrders:
        again = Stage(100, 200, recompute_ns=100, activation_bytes=8, input_bytes=1, fused=fused)
        return evaluate(interlaced_pipeline([Stage(1, 1, activation_bytes=0), *[again] * 4], (0,), 64), orders)

    block, own = step(True, interlaced(4, 64)), step(False, interlaced(4, 64, recompute=True))
    assert block.makespan_ns / own.makespan_ns == pytest.approx(1.5, abs=0.04)
    assert own.peak_bytes == block.peak_bytes  # as many inputs, and one micro-batch recomputed at a time


@pytest.mark.parametrize(
    ("orders", "words"),
    [
        (lambda: gpipe(0, 4), "stages is 0"),
        (lambda: one_f_one_b(2, 0), "micros is 0"),
        (lambda: interleaved(4, 6), "6 are no multiple of 4"),
        (lambda: chimera(3, 4), "even, not 3"),
        (lambda: interlaced(2, 4, shared=(0, 0)), "different places"),
        (lambda: interlaced(2, 4, shared=(3,)), "0 to 2"),
    ],
)
def test_what_has_no_schedule_is_refused(orders: object, words: str) -> None:
    with pytest.raises(PartitaError, match=words):
        orders()  # type: ignore[operator]
