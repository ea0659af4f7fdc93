"""The bound of pipelines that micro-batches pass several times is never above a step, whatever the order."""

from __future__ import annotations

import random
from itertools import accumulate

import numpy as np
import pytest

from partita.formulation.pipeline.evaluate import starts_ns
from partita.formulation.pipeline.orders import Orders, Slot, three_f_one_b
from partita.formulation.pipeline.problem import Problem, Stage, build
from partita.solvers.search.repeated_bound import RepeatedBound


def random_orders(rng: random.Random, problem: Problem, devices: int) -> Orders:
    """Tasks in any order that their dependencies allow."""
    waiting = {task.slot: set[Slot]() for task in problem.tasks}
    for edge in problem.edges:
        waiting[problem.tasks[edge.after].slot].add(problem.tasks[edge.before].slot)
    place = {task.slot: task.devices[0] for task in problem.tasks}
    orders: list[list[Slot]] = [[] for _ in range(devices)]
    while waiting:
        slot = rng.choice([slot for slot, before in waiting.items() if before.isdisjoint(waiting)])
        orders[place[slot]].append(slot)
        del waiting[slot]
    return tuple(map(tuple, orders))


@pytest.mark.parametrize("seed", range(60))
def test_no_step_is_below_the_bound(seed: int) -> None:
    rng = random.Random(seed)
    S, K, F = rng.randint(2, 4), rng.randint(1, 5), rng.randint(2, 4)
    forward = [[rng.randint(1, 9) for _ in range(S)] for _ in range(F)]
    backward, update = ([rng.randint(1, 20) for _ in range(S)] for _ in range(2))
    chain = [Stage(f, b) for own in forward for f, b in zip(own, backward, strict=True)]
    problem = build(chain, K, lambda s, m: (s % S,), S, trained=(F - 1) * S)
    first = np.array([0, *accumulate(f + b for f, b in zip(forward[0], backward, strict=True))])
    once = [sum(own[s] for own in forward) + backward[s] for s in range(S)]
    bound = RepeatedBound(first, np.array([0, *accumulate(once)]), K)
    least = max(int(bound.finish_time(s, s, s + 1, K * once[s] + update[s])) for s in range(S))
    for orders in (three_f_one_b(S, K, F), *(random_orders(rng, problem, S) for _ in range(5))):
        starts = starts_ns(problem, orders)
        ends = [start + task.duration_ns for start, task in zip(starts, problem.tasks, strict=True)]
        assert least <= max(ends) + max(update)
    if len({*map(tuple, forward)}) == len({*backward}) == len({*forward[0]}) == 1:
        assert least > 0
