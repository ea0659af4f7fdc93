"""Schedules of a plan's own tasks: the problem has their predicted times and needs, and the answer runs."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

import partita
from partita import in_order, op_assign, op_trans, recompute, split, split_backward, stages
from partita.formulation.pipeline.evaluate import evaluate
from partita.formulation.pipeline.orders import Slot, one_f_one_b, zero_bubble
from partita.formulation.pipeline.problem import Precedence
from partita.formulation.spacetime.graph import Graph
from partita.formulation.spacetime.op import Op
from partita.formulation.spacetime.price import Prices
from partita.formulation.spacetime.tasks import tasks
from partita.model.errors import PartitaError
from partita.model.graph.batch import with_batch
from partita.model.graph.pcg import PCG
from partita.model.zoo import build
from partita.solvers.protocol import Status
from partita.solvers.schedule.bounds import makespan_bound
from partita.solvers.spacetime.schedule import one_of, problem_of, schedule
from partita.solvers.spacetime.validate import validate

STAGES, MICROS = 2, 3


@cache
def captured(model: str = "gpt3-1.3b") -> PCG:
    module, inputs = build(model, small=True)
    return partita.capture(module, inputs)


def pipeline(model: str = "gpt3-1.3b", apart: bool = True) -> tuple[Graph, list[list[Op]]]:
    graph = Graph(with_batch(captured(model), 2 * MICROS))
    for op in graph.forward:
        op_trans(op, split("batch", MICROS, "micro"))
    if apart:
        split_backward(graph.forward)
    groups = stages(graph, STAGES)
    for ops, device in zip(groups, range(STAGES), strict=True):
        op_assign(ops, device)
    return graph, groups


def test_slots_take_as_long_as_their_operators() -> None:
    graph, groups = pipeline()
    problem, prices = problem_of(groups), Prices(graph, partita.Machine.adhoc((STAGES,)))
    assert {task.slot for task in problem.tasks} == {
        Slot(kind, stage, micro) for kind in "FBW" for stage in range(STAGES) for micro in range(MICROS)
    }
    for stage, ops in enumerate(groups):
        one = [op for op in ops if op.coordinate("micro") == 1]
        backward = [op.backward for op in one if op.backward]
        weight = [op.weight for op in one if op.weight]
        for kind, parts in (("F", one), ("B", backward), ("W", weight)):
            task = problem.tasks[problem.index[Slot(kind, stage, 1)]]
            assert task.duration_ns == sum(prices.task_ns(op) for op in parts)
            assert task.devices == (stage,)


def test_what_waits_for_what() -> None:
    problem = problem_of(pipeline()[1])
    slots = [task.slot for task in problem.tasks]
    waits = {(slots[edge.before], slots[edge.after]): edge.lag_ns for edge in problem.edges}
    for micro in range(MICROS):
        assert waits[Slot("F", 0, micro), Slot("F", 1, micro)] > 0  # sent to another device
        assert waits[Slot("B", 1, micro), Slot("B", 0, micro)] > 0
        assert waits[Slot("F", 1, micro), Slot("B", 1, micro)] == 0
        assert waits[Slot("B", 1, micro), Slot("W", 1, micro)] == 0
    assert {one.micro for pair in waits for one in pair} == set(range(MICROS))
    assert all(before.micro == after.micro for before, after in waits)


def test_one_f_one_b_keeps_fewer_micro_batches_than_gpipe() -> None:
    problem = problem_of(pipeline(apart=False)[1])
    kept = [problem.tasks[problem.index[Slot("F", stage, 0)]].takes_bytes for stage in range(STAGES)]
    assert min(kept) > 0
    assert evaluate(problem, one_f_one_b(STAGES, MICROS)).peak_bytes == (2 * kept[0], kept[1])


def test_recomputation_keeps_what_goes_in() -> None:
    groups = pipeline(apart=False)[1]
    whole = problem_of(groups)
    for ops in groups:
        for micro in range(MICROS):
            recompute(op for op in ops if op.coordinate("micro") == micro)
    again = problem_of(groups)
    for stage in range(STAGES):
        forward, repeat = (again.tasks[again.index[Slot(kind, stage, 0)]] for kind in "FR")
        assert forward.takes_bytes < whole.tasks[whole.index[Slot("F", stage, 0)]].takes_bytes == repeat.takes_bytes


def test_the_answer_is_the_shortest_and_orders_the_plan() -> None:
    graph, groups = pipeline("mbart-4.7b")
    named = zero_bubble(STAGES, MICROS)
    problem = problem_of(groups)
    answer = schedule(groups, known=[named], seconds=120)
    assert answer.status is Status.OPTIMAL
    assert answer.objective_ns is not None
    assert answer.objective_ns == answer.bound_ns == evaluate(problem, answer.orders).makespan_ns
    assert answer.objective_ns <= evaluate(problem, named).makespan_ns
    in_order(answer.orders, groups)
    order = validate(tasks(graph)).order
    place = {op: number for number, op in enumerate(order)}
    of = {(stage, op.coordinate("micro")): op for stage, ops in enumerate(groups) for op in reversed(ops)}
    for device, slots in enumerate(answer.orders):
        forwards = [place[of[device, slot.micro]] for slot in slots if slot.kind == "F"]
        assert forwards == sorted(forwards)


def test_many_micro_batches_repeat() -> None:
    """Not unrolled, and as short as the bound for any number of them; the orders are complete and run."""
    count = 24
    graph = Graph(with_batch(captured(), count))
    for op in graph.forward:
        op_trans(op, split("batch", count, "micro"))
    groups = stages(graph, STAGES)
    for ops, device in zip(groups, range(STAGES), strict=True):
        op_assign(ops, device)
    problem = problem_of(groups)
    answer = schedule(groups, seconds=120)
    assert "repeats every" in answer.words
    assert answer.objective_ns == evaluate(problem, answer.orders).makespan_ns
    assert answer.bound_ns is not None
    assert makespan_bound(problem) <= answer.bound_ns <= answer.objective_ns
    assert answer.objective_ns <= evaluate(problem, one_f_one_b(STAGES, count)).makespan_ns
    assert answer.status is Status.OPTIMAL


def test_only_micro_batches_that_are_alike_repeat() -> None:
    problem = problem_of(pipeline(apart=False)[1])
    one = one_of(problem)
    assert one is not None
    assert [task.slot for task in one.tasks] == sorted(task.slot for task in problem.tasks if task.micro == 0)
    longer = replace(problem.tasks[0], duration_ns=problem.tasks[0].duration_ns + 1)
    assert one_of(replace(problem, tasks=(longer, *problem.tasks[1:]))) is None
    first, other = (problem.index[Slot("F", 0, micro)] for micro in (0, 1))
    assert one_of(replace(problem, edges=(*problem.edges, Precedence(first, other)))) is None


def test_what_cannot_be_scheduled_is_refused() -> None:
    graph = Graph(with_batch(captured(), 4))
    with pytest.raises(PartitaError, match="is not assigned to a device"):
        schedule(stages(graph, 2))
    with pytest.raises(PartitaError, match="no operators to schedule"):
        schedule([[], []])
