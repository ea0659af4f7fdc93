"""The bound of pipelines in two directions is never above a step, whatever the order, nor above the shortest of all."""

from __future__ import annotations

import random
from itertools import accumulate, combinations, pairwise, product

import numpy as np
import pytest

from partita.formulation.network.network import INFINITE
from partita.formulation.pipeline.evaluate import starts_ns
from partita.formulation.pipeline.orders import chimera
from partita.formulation.pipeline.problem import Stage, bidirectional
from partita.solvers.schedule.cpsat import solve
from partita.solvers.search.paired_cut import best_pairs
from partita.solvers.search.repeated_bound import BothWaysBound

from .test_repeated_bound import random_orders


def least(forward: list[int], backward: list[int], update: list[int], K: int) -> int:
    """The greatest bound of a stage, and of both stages of a device."""
    S = len(forward)
    t = [f + b for f, b in zip(forward, backward, strict=True)]
    around = np.array([0, *accumulate(t)])
    bound = BothWaysBound(around, around, K)
    busy = [K * t[s] + (update[s] if s in (0, S - 1) else 0) for s in range(S)]
    finish = [int(bound.finish_time(s, s, s + 1, busy[s])) for s in range(S)]
    return max(*finish, *(int(around[d]) + busy[d] + busy[S - 1 - d] for d in range(S // 2)))


@pytest.mark.parametrize("seed", range(60))
def test_no_step_is_below_the_bound(seed: int) -> None:
    rng = random.Random(seed)
    S, K = rng.choice((2, 4, 6)), rng.randint(1, 4)
    forward, backward, update = ([rng.randint(1, most) for _ in range(S)] for most in (9, 20, 20))
    problem = bidirectional([Stage(f, b) for f, b in zip(forward, backward, strict=True)], 2 * K)
    for orders in (chimera(S, 2 * K), *(random_orders(rng, problem, S) for _ in range(5))):
        starts = starts_ns(problem, orders)
        ends = [
            start + task.duration_ns + update[d] + update[S - 1 - d]
            for start, task in zip(starts, problem.tasks, strict=True)
            for d in task.devices
        ]
        assert least(forward, backward, update, K) <= max(ends)


@pytest.mark.parametrize("seed", range(12))
def test_the_shortest_order_is_not_below_the_bound(seed: int) -> None:
    rng = random.Random(seed)
    S, K = rng.choice((2, 4)), rng.randint(1, 2)
    forward, backward = ([rng.randint(1, most) for _ in range(S)] for most in (5, 9))
    problem = bidirectional([Stage(f, b) for f, b in zip(forward, backward, strict=True)], 2 * K)
    found = solve(problem, known=[chimera(S, 2 * K)], seconds=10)
    assert found.status.value == "optimal"
    assert least(forward, backward, [0] * S, K) <= found.objective_ns


@pytest.mark.parametrize("stages", [2, 4, 6])
def test_it_is_reached_by_equal_stages_with_as_many_micro_batches(stages: int) -> None:
    problem = bidirectional([Stage(1, 1)] * stages, stages)
    step = max(start + 1 for start in starts_ns(problem, chimera(stages, stages)))
    assert least([1] * stages, [1] * stages, [0] * stages, stages // 2) == step == 3 * stages - 2


@pytest.mark.parametrize("seed", range(60))
def test_no_path_of_pairs_is_better(seed: int) -> None:
    rng = random.Random(seed)
    S, nodes = rng.choice((2, 4, 6)), rng.randint(3, 8)
    before = np.array([0, *accumulate(rng.randint(0, 9) for _ in range(nodes - 1))])
    busy, alone = ([np.full((nodes, nodes), INFINITE) for _ in range(S)] for _ in range(2))
    for s, (i, j) in product(range(S), combinations(range(nodes), 2)):
        if rng.random() < 0.9:
            busy[s][i, j] = rng.randint(0, 30)
            alone[s][i, j] = busy[s][i, j] + rng.choice((0, 0, 20))

    def cost(path: tuple[int, ...]) -> int:
        own, ends = ([int(t[u, v]) for t, (u, v) in zip(of, pairwise(path), strict=True)] for of in (busy, alone))
        return min(INFINITE, max(*ends, *(int(before[path[d]]) + own[d] + own[-1 - d] for d in range(S // 2))))

    best = min((cost((0, *inner, nodes - 1)) for inner in combinations(range(1, nodes - 1), S - 1)), default=INFINITE)
    found = best_pairs(busy, alone, before)
    if best >= INFINITE:
        assert found is None
    else:
        assert found is not None and (found.objective, cost(found.nodes)) == (best, best)
