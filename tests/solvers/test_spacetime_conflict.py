"""Wrong plans are refused with the smallest set of orders and needs that conflict, in the user's names."""

from __future__ import annotations

import inspect
import re
import time
from collections.abc import Callable, Sequence
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partita.formulation.spacetime.graph import Graph, Order
from partita.formulation.spacetime.op import Op
from partita.formulation.spacetime.order import PlanConflict, Wait
from partita.formulation.spacetime.primitives import op_assign, op_order, op_trans, place, recompute
from partita.formulation.spacetime.site import Site
from partita.formulation.spacetime.tasks import tasks
from partita.formulation.spacetime.transformation import replicate, split, split_value, transformation
from partita.model.errors import PartitaError
from partita.model.graph.builder import Builder
from partita.model.graph.pcg import PCG
from partita.solvers.spacetime.conflict import cycle, endless, feasible, irreducible, minimum, smallest
from partita.solvers.spacetime.prove import prover
from partita.solvers.spacetime.validate import validate


def chain(layers: int = 2, samples: int = 8) -> PCG:
    """loss = Σ l1(l0(x))."""
    b = Builder(samples)
    h = b.input("x", (samples, 4))
    weights = [b.parameter(f"l{i}.weight", (4, 4)) for i in range(layers)]
    for i, w in enumerate(weights):
        h = b.add("linear", h, w, shape=(samples, 4), name=f"l{i}")
    return b.build(b.add("sum", h, shape=(), dims=(0, 1), keepdim=False, name="loss"))


def refused(graph: Graph, devices: int | None = None) -> list[str]:
    """What conflicts, with the primitives for their calls in this file, and without boxes."""
    with pytest.raises(PlanConflict) as caught:
        validate(tasks(graph), devices)
    assert all(line in str(caught.value) for line in caught.value.conflicts[:20])
    unboxed = (re.sub(r"\[[\d:, ]*\]", "", line) for line in caught.value.conflicts)
    return sorted(re.sub(r"^test_spacetime_conflict\.py:\d+: (\w+)\(.*\): ", r"\1: ", line) for line in unboxed)


def on_one_device(layers: int = 2) -> tuple[Graph, list[Op]]:
    graph = Graph(chain(layers))
    op_assign(graph.forward, 0)
    return graph, list(graph.forward)


def two_stages(micros: int = 2) -> tuple[Graph, Callable[[int, int], list[Op]]]:
    """l0 on device 0, l1 and the loss on device 1; and the operators of a stage and a micro-batch."""
    graph = Graph(chain())
    for op in graph.forward:
        for part in op_trans(op, split("batch", micros, "micro")):
            op_assign(part, int(op.of.name != "l0"))

    def of(stage: int, micro: int) -> list[Op]:
        return [op for op in graph.forward if (op.device, op.coordinate("micro")) == (stage, micro)]

    return graph, of


def backward(ops: Sequence[Op]) -> list[Op]:
    return [op.backward for op in ops if op.backward is not None]


# Wrong plans


def test_two_orders_against_each_other() -> None:
    graph, of = two_stages()
    op_order(of(0, 0), of(0, 1))
    op_order(of(0, 1), of(0, 0))
    assert refused(graph) == [
        "op_order: l0 forward (micro 1/2) before l0 forward (micro 2/2)",
        "op_order: l0 forward (micro 2/2) before l0 forward (micro 1/2)",
    ]


def test_orders_are_named_by_their_lines() -> None:
    graph, of = two_stages()
    line = inspect.currentframe().f_lineno + 1  # type: ignore[union-attr]
    op_order(of(0, 0), of(0, 1))
    op_order(of(0, 1), of(0, 0))
    with pytest.raises(PlanConflict) as caught:
        validate(tasks(graph))
    assert [text.rsplit(": ", 1)[0] for text in caught.value.conflicts] == [
        f"test_spacetime_conflict.py:{line}: op_order(of(0, 0), of(0, 1))",
        f"test_spacetime_conflict.py:{line + 1}: op_order(of(0, 1), of(0, 0))",
    ]


def test_a_longer_circle_is_not_told_where_there_is_a_shorter_one() -> None:
    graph, (l0, l1, l2, loss) = on_one_device(3)
    op_order(loss, l0)
    op_order([l2, l1], l0)
    op_order(loss.backward or [], l2)
    assert refused(graph) == ["l1 forward needs l0, from l0 forward", "op_order: l1 forward before l0 forward"]


def test_an_operator_before_itself() -> None:
    graph, (l0, l1, _) = on_one_device()
    op_order([l0, l1], [l1])
    assert refused(graph) == ["op_order: l1 forward before l1 forward"]


def test_a_consumer_before_its_producer_on_one_device() -> None:
    graph, (_, l1, loss) = on_one_device()
    op_order(loss, l1)
    assert refused(graph) == ["loss forward needs l1, from l1 forward", "op_order: loss forward before l1 forward"]


def test_two_stages_that_wait_for_each_other() -> None:
    """Stage 0 wants micro-batch 0 back before it begins with 1; stage 1 wants 1 before it gives 0 back."""
    graph, of = two_stages()
    op_order(backward(of(0, 0)), of(0, 1))
    op_order(of(1, 1), backward(of(1, 0)))
    assert refused(graph) == [
        "l0 backward (micro 1/2) needs the gradient of l0, from l1 backward (micro 1/2)",
        "l1 forward (micro 2/2) needs l0, from l0 forward (micro 2/2)",
        "op_order: l0 backward (micro 1/2) before l0 forward (micro 2/2)",
        "op_order: l1 forward (micro 2/2) before l1 backward (micro 1/2)",
    ]


def test_a_backward_before_the_forward_that_it_follows_from() -> None:
    graph, (l0, *_) = on_one_device()
    op_order(l0.backward or [], l0)
    assert refused(graph) == [
        "l0 backward needs what it keeps of l0, from l0 forward",
        "op_order: l0 backward before l0 forward",
    ]


def test_a_recomputation_after_its_backward() -> None:
    graph, (l0, *_) = on_one_device()
    recompute(l0)
    op_order(l0.backward or [], l0.recomputed or [])
    assert refused(graph) == [
        "l0 backward needs what it keeps of l0, from l0 recompute",
        "op_order: l0 backward before l0 recompute",
    ]


def test_an_operator_that_is_not_assigned() -> None:
    graph = Graph(chain())
    op_assign(graph.forward[1:], 0)
    assert refused(graph) == ["l0 forward is not assigned to a device"]


def test_an_update_of_which_a_part_is_not_assigned() -> None:
    graph, _ = on_one_device()
    first, _ = op_trans(graph.optimizer[0], split(0, 2, "half"))
    op_assign(first, 0)
    assert refused(graph) == ["op_trans: l0.weight update (half 2/2) is not assigned to a device"]


def test_a_device_that_there_is_not() -> None:
    """A send that nobody receives."""
    graph, of = two_stages(1)
    assert of(1, 0)
    place(graph, "l0.weight", None, [2])
    assert validate(tasks(graph), 3)
    assert refused(graph, 2) == ["place: l0.weight store is assigned to device 2, of devices 0 to 1"]


def test_a_part_that_nobody_makes() -> None:
    """Receives without a send: the second stage recomputes from what is recomputed of one half only."""
    graph, (l0, l1, loss) = on_one_device()
    half, _ = op_trans(l0, split("batch", 2))
    op_assign(graph.parts(l0.node), 0)
    recompute([half, l1])
    assert refused(graph) == [
        "recompute: l1 recompute needs the recomputed l0, which no operator writes: recompute every part of l0 that it "
        "reads, or no part of it in the group of l1"
    ]
    assert loss.backward is not None


def test_overlapping_addends() -> None:
    graph, (_, l1, _) = on_one_device()
    first, _ = op_trans(l1, replicate(2, label="copy"))
    op_trans(first, split_value("x", 2, "half"))
    op_assign(graph.forward, 0)
    copies = "l1 {0} (copy 1/2, half 1/2) and l1 {0} (copy 2/2) write the same addends: cut replicas alike"
    assert refused(graph) == [
        f"op_trans: l1.weight update needs the gradient of l1.weight, of which {copies.format('backward')}",
        f"op_trans: loss forward needs l1, of which {copies.format('forward')}",
    ]


def test_addends_that_are_all_the_whole() -> None:
    """Each part takes all of x and w, and gives what it has as an addend: the sum would be twice the product."""
    graph = Graph(chain(), prover)
    with pytest.raises(PartitaError, match=r"twice of linear 'l0' is not accepted: it is false: at d = \d"):
        op_trans(graph.forward[0], transformation(["whole", "whole"], "addends", 2, "twice"))


def test_a_part_that_would_be_empty() -> None:
    graph = Graph(chain())
    with pytest.raises(PartitaError, match="batch: l0 forward has 8 entries there, too few for 5 parts: of 2 each"):
        op_trans(graph.forward[0], split("batch", 5))


def test_an_order_of_what_is_transformed_afterwards() -> None:
    graph, (l0, l1, _) = on_one_device()
    op_order(l1, l0)
    op_trans(l0, split("batch", 2))
    op_assign(graph.parts(l0.node), 0)
    assert refused(graph) == [
        "l1 forward needs l0, from l0 forward (batch 1/2)",
        "op_order: l1 forward before l0 forward (batch 1/2)",
    ]


# Several producers


def replicas(ordered: int) -> Graph:
    """l0 by three devices alike, l1 on device 0; the first `ordered` of l0's are ordered after l1."""
    graph = Graph(chain())
    l0, l1, loss = graph.forward
    copies = op_trans(l0, replicate(3))
    for device, copy in enumerate(copies):
        op_assign(copy, device)
    op_assign([l1, loss], 0)
    for copy in copies[:ordered]:
        op_order(l1, copy)
    return graph


@pytest.mark.parametrize("ordered", [0, 1, 2])
def test_any_one_of_several_producers_suffices(ordered: int) -> None:
    done = validate(tasks(replicas(ordered)))
    assert next(p.device for n, p in done.chosen.items() if n.task.name == "l1 forward" and len(n.producers) > 1) == (
        ordered
    )


def test_all_of_several_producers_come_too_late() -> None:
    assert refused(replicas(3)) == [
        "l1 forward needs l0, from l0 forward (replica 1/3) or l0 forward (replica 2/3) or 1 more",
        "op_order: l1 forward before l0 forward (replica 1/3)",
        "op_order: l1 forward before l0 forward (replica 2/3)",
        "op_order: l1 forward before l0 forward (replica 3/3)",
    ]


def test_one_order_can_make_all_producers_late() -> None:
    graph = replicas(0)
    *copies, l1, loss = graph.forward
    op_order([l1, loss], copies)
    assert refused(graph) == [
        "l1 forward needs l0, from l0 forward (replica 1/3) or l0 forward (replica 2/3) or 1 more",
        "op_order: l1 forward before l0 forward (replica 1/3) and 2 more",
    ]


def test_of_conflicts_of_one_size_that_with_fewer_orders_is_told() -> None:
    graph, (l0, l1, loss) = on_one_device()
    op_order(l0, l1)
    op_order(l1, loss)
    op_order(loss, l1)
    assert refused(graph) == ["loss forward needs l1, from l1 forward", "op_order: loss forward before l1 forward"]


def test_a_long_conflict_between_replicas_is_found_soon() -> None:
    """A circle through 12 layers that four devices compute alike: 4 needs a layer, and every one of them is needed."""
    graph = Graph(chain(12))
    for op in graph.forward:
        for device, part in enumerate(op_trans(op, replicate(4))):
            op_assign(part, device)
    first, last = graph.parts(graph.forward[0].node), graph.parts(graph.forward[-5].node)
    op_order(last, first)
    start = time.process_time()
    with pytest.raises(PlanConflict, match="the smallest conflict") as caught:
        validate(tasks(graph))
    assert len(caught.value.conflicts) == 1 + 4 * 10 + 1, "all that four replicas wait for, and of the last one"
    assert time.process_time() - start < 20


# Against brute force


@st.composite
def waits(draw: st.DrawFn) -> list[Wait]:
    """Needs of several producers, which alone are without circle, and orders between groups, of six events at most."""
    count = draw(st.integers(2, 6))
    event = st.integers(0, count - 1)
    found = []
    for number in range(draw(st.integers(1, 6))):
        task = draw(st.integers(1, count - 1))
        producers = draw(st.lists(st.integers(0, task - 1), min_size=1, max_size=3, unique=True))
        found.append(Wait(task, tuple(producers), f"need {number}"))  # type: ignore[arg-type]
    for number in range(draw(st.integers(1, 3))):
        order, group = Order((), (), Site("plan.py", number)), st.lists(event, min_size=1, max_size=2, unique=True)
        found += [Wait(count + number, (e,), order, 0) for e in draw(group)]
        found += [Wait(e, (count + number,), order) for e in draw(group)]
    return found


def possible(held: Sequence[Wait]) -> bool:
    """Whether all events can happen one after the other, tried naively."""
    events = {e for w in held for e in (w.task, *w.producers)}
    happened: set[int] = set()
    while True:
        able = {e for e in events if all(happened.intersection(w.producers) for w in held if w.task == e)}
        if able == happened:
            return happened == events
        happened = able


def brute(held: Sequence[Wait]) -> tuple[int, int] | None:
    """The number of constraints, and of orders, of the smallest conflict."""
    sources = list(dict.fromkeys(w.source for w in held))
    for size in range(1, len(sources) + 1):
        found = [
            sum(isinstance(s, Order) for s in chosen)
            for chosen in combinations(sources, size)
            if not possible([w for w in held if w.source in chosen])
        ]
        if found:
            return size, min(found)
    return None


@given(waits())
@settings(max_examples=80, deadline=None)
def test_the_smallest_conflict_is_that_of_brute_force(held: list[Wait]) -> None:
    expected = brute(held)
    assert feasible(held) == possible(held) == (expected is None) == (not endless(held))
    if expected is None:
        return
    conflict = smallest(held, {w.task for w in endless(held)})
    assert conflict.proved and not feasible(conflict.waits)
    assert (len(conflict.constraints), sum(isinstance(s, Order) for s in conflict.constraints)) == expected
    for source in {w.source for w in irreducible(held)}:
        assert possible([w for w in irreducible(held) if w.source != source])


@given(waits())
@settings(max_examples=60, deadline=None)
def test_a_shortest_circle_is_a_minimum(held: list[Wait]) -> None:
    """Where every wait has one producer, search along the waits and the program agree."""
    single = [Wait(w.task, w.producers[:1], w.source, w.count) for w in held]
    found = cycle(single)
    assert bool(found) == bool(endless(single))
    if found:
        counts = [sum(not isinstance(s, Order) for s in c) for c in ({w.source for w in found}, _minimum(single))]
        assert len({w.source for w in found}) == len(_minimum(single)) and counts[0] == counts[1]


def _minimum(held: Sequence[Wait]) -> set[object]:
    return {wait.source for wait in minimum(endless(held)).waits}
