"""Random plans of small graphs: legal ones are completed, corrupted ones are refused or completed rightly."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partita.formulation.spacetime.graph import Graph
from partita.formulation.spacetime.op import Op, Phase
from partita.formulation.spacetime.order import Completed, PlanConflict, edges, precedences
from partita.formulation.spacetime.primitives import op_assign, op_order, op_trans, recompute, split_backward, swap
from partita.formulation.spacetime.tasks import tasks
from partita.formulation.spacetime.transformation import Transformation, replicate, split, split_value
from partita.model.graph.builder import Builder
from partita.model.graph.pcg import PCG
from partita.solvers.spacetime.conflict import feasible
from partita.solvers.spacetime.validate import validate

pytestmark = pytest.mark.timeout(120)
SHAPE = (8, 4)
HOW: dict[str, tuple[Transformation, ...]] = {
    "linear": (split("o", 2), split("i", 2), split_value("x", 2), replicate(2, addends=True)),
    "relu": (split(1, 2), split(1, 4)),
    "add": (split(1, 2), split(0, 4)),
    "sum": (split("d1", 2),),
}
FOR_ALL = (split("batch", 2, "micro"), split("batch", 4), replicate(2), replicate(3))


@st.composite
def graphs(draw: st.DrawFn) -> PCG:
    """Three to eight linears, relus and additions, then a sum; not all need be of use to it, weights may be shared."""
    b = Builder(SHAPE[0])
    weights = [b.parameter("v", (4, 4)), b.parameter("w", (4, 4))]
    found = [b.add("linear", b.input("x", SHAPE), weights[0], shape=SHAPE, name="n0")]
    for number in range(1, draw(st.integers(3, 8))):
        op, one, other = draw(st.tuples(st.sampled_from(sorted(HOW)[:3]), *[st.sampled_from(found[-3:])] * 2))
        second = {"linear": (draw(st.sampled_from(weights)),), "add": (other,), "relu": ()}[op]
        found.append(b.add(op, one, *second, shape=SHAPE, name=f"n{number}"))
    return b.build(b.add("sum", found[-1], shape=(), dims=(0, 1), keepdim=False, name="loss"))


def planned(pcg: PCG, chance: random.Random) -> Graph:
    """The graph with every operator in parts, somehow, each on one of three devices.

    A part may be cut again. Of parts that write the same, a value or a gradient, all are, alike: addends of one beside
    the whole of another would overlap.
    """
    graph = Graph(pcg)
    for op in graph.forward:
        parts = op_trans(op, chance.choice(_fitting(op))) if chance.random() < 0.7 else []
        how = chance.choice(_fitting(parts[0])) if parts and chance.random() < 0.5 else None
        alike = bool(parts) and parts[0].cuts[0].label in ("replica", "addends of x")
        for part in (parts if alike else parts[:1]) if how else []:
            op_trans(part, how)
    for op in graph.forward:
        op_assign(op, chance.randrange(3))
        chance.choice((recompute, swap, *[lambda _: None] * 5))(op)
        if chance.random() < 0.2:
            split_backward(op)
    return graph


def _fitting(op: Op) -> list[Transformation]:
    """Transformations that divide what is left of an operator: every dim is split once."""
    split_before = {cut.label for cut in op.cuts}
    if split_before & {"batch", "micro", "dim 0"}:
        split_before |= {"batch", "micro", "dim 0"}
    found = [how for how in (*HOW[op.of.op], *FOR_ALL) if how.label not in split_before]
    return found or [replicate(2)]


def ordered(graph: Graph, chance: random.Random) -> list[tuple[list[Op], list[Op]]]:
    """Orders of a plan that a random order of its tasks fulfils, between a few operators each."""
    done = validate(tasks(graph))
    after: dict[Op, list[Op]] = {op: [] for op in done.order}
    left = dict.fromkeys(done.order, 0)
    for a, b in edges(done):
        after[a].append(b)
        left[b] += 1
    order, ready = list[Op](), [op for op in done.order if not left[op]]
    while ready:
        order.append(ready.pop(chance.randrange(len(ready))))
        for b in after[order[-1]]:
            left[b] -= 1
            ready += [] if left[b] else [b]
    order = [op for op in order if op.phase not in (Phase.STORE, Phase.UPDATE, Phase.KEEP)]
    found = []
    for _ in range(chance.randrange(6)):
        cut = chance.randrange(1, len(order))
        found.append((_some(order[:cut], chance), _some(order[cut:], chance)))
    return found


def _some(ops: Sequence[Op], chance: random.Random) -> list[Op]:
    return chance.sample(ops, min(len(ops), chance.randrange(1, 4)))


def right(done: Completed) -> bool:
    """Whether every task comes after all that it needs, and every order is kept."""
    at = {op: place for place, op in enumerate(done.order)}
    assert set(at) == set(done.tasks.ops) and len(at) == len(done.order)
    needs = all(
        done.chosen[need] in need.producers and at[done.chosen[need]] < at[need.task] for need in done.tasks.needs
    )
    orders = [(at[a], at[b]) for o in done.tasks.orders for a in o.first for b in o.second if a in at and b in at]
    return needs and all(a < b for a, b in orders)


@given(graphs(), st.integers(0, 10**6))
@settings(max_examples=40, deadline=None)
def test_a_legal_plan_is_completed(pcg: PCG, seed: int) -> None:
    chance = random.Random(seed)
    graph = planned(pcg, chance)
    for first, second in ordered(graph, chance):
        op_order(first, second)
    found = tasks(graph)
    assert found.problems == ()
    done = validate(found, 3)
    assert right(done) and feasible(precedences(found).waits)
    assert [op.name for op in validate(found).order] == [op.name for op in done.order]


@given(graphs(), st.integers(0, 10**6))
@settings(max_examples=40, deadline=None)
def test_an_order_the_wrong_way_round_is_refused_or_kept(pcg: PCG, seed: int) -> None:
    chance = random.Random(seed)
    graph = planned(pcg, chance)
    orders = ordered(graph, chance) or [([graph.forward[0]], [graph.forward[-1]])]
    wrong = chance.randrange(len(orders))
    for number, (first, second) in enumerate(orders):
        op_order(*((second, first) if number == wrong else (first, second)))
    try:
        assert right(validate(tasks(graph)))
    except PlanConflict as refusal:
        assert "the smallest conflict" in str(refusal)
        assert all("op_order(" in line or " needs " in line for line in refusal.conflicts)
        reversed_one = graph.orders[wrong]
        graph.orders.remove(reversed_one)
        assert right(validate(tasks(graph))), "without the order that is the wrong way round it can run"
        pairs = [f": {a.name} before {b.name}" for a in reversed_one.first for b in reversed_one.second]
        assert any(pair in line for pair in pairs for line in refusal.conflicts)


@given(graphs(), st.integers(0, 10**6))
@settings(max_examples=20, deadline=None)
def test_an_operator_without_a_device_is_named(pcg: PCG, seed: int) -> None:
    chance = random.Random(seed)
    graph = planned(pcg, chance)
    lost = chance.choice(graph.forward)
    lost._device = None
    with pytest.raises(PlanConflict) as caught:
        validate(tasks(graph))
    (told,) = caught.value.conflicts
    assert told == (f"{lost.where}: " if lost.where else "") + f"{lost.name} is not assigned to a device"
