"""The bound of stages with times of their own is never above a step, and its cuts are the best of all."""

from __future__ import annotations

import random
from itertools import combinations, pairwise

import pytest

from partita.formulation.network.network import INFINITE
from partita.formulation.pipeline.configuration import Configuration
from partita.formulation.pipeline.evaluate import starts_ns
from partita.formulation.pipeline.problem import Stage, chunked
from partita.formulation.pipeline.schedule import UNEQUAL, schedule_named
from partita.solvers.search.share_bound import ShareBound, best_cuts, share_bound


def bound_of(name: str, stages: int, micro_batches: int) -> ShareBound:
    meshes = (((1,), ((1,),)),) * stages
    return share_bound(
        Configuration((1,), ((1,),), micro_batches, schedule_named(name).with_unequal_stages(), meshes=meshes)
    )


@pytest.mark.parametrize("name", UNEQUAL)
@pytest.mark.parametrize("seed", range(40))
def test_no_step_is_below_the_bound(name: str, seed: int) -> None:
    """Stages with any shares of forward and backward, messages and updates; `tight`: equal stages reach it."""
    rng = random.Random(seed)
    for _ in range(10):
        p, K, tight = rng.randint(2, 5), rng.randint(1, 9), rng.random() < 0.2
        most, scale = 1 if tight else rng.choice((9, 60)), 1000
        forward, backward = ([scale * rng.randint(1, most) for _ in range(p)] for _ in range(2))
        update, message = ([0 if tight else scale * rng.randint(0, 9) for _ in range(p)] for _ in range(2))
        message[0] = 0
        after = [*message[1:], 0]
        chain = [
            Stage(f, b, forward_message_ns=ahead, backward_message_ns=back)
            for f, b, ahead, back in zip(forward, backward, after, message, strict=True)
        ]
        problem = chunked(chain, p, K)
        orders = schedule_named(name).orders(p, 1, K)
        starts = starts_ns(problem, orders)
        ends = [0] * p
        for task, start in zip(problem.tasks, starts, strict=True):
            ends[task.devices[0]] = max(ends[task.devices[0]], start + task.duration_ns)
        step = max(end + own for end, own in zip(ends, update, strict=True))
        times = [K * (f + b) + m for f, b, m in zip(forward, backward, message, strict=True)]
        times[0] += update[0]
        least = bound_of(name, p, K).of(times)
        assert least <= step
        if tight:
            assert step - least <= 2 * p * K  # what rounding to ns may have taken


@pytest.mark.parametrize("seed", range(20))
def test_cuts_of_least_bound_are_found(seed: int) -> None:
    rng = random.Random(seed)
    p, K, last = rng.randint(2, 4), rng.randint(1, 6), rng.randint(4, 7)
    bound = bound_of(rng.choice(UNEQUAL), p, K)
    times = [
        [
            [rng.randint(1, 9) * 1000 * (j - i) if i < j and rng.random() < 0.8 else INFINITE for j in range(last + 1)]
            for i in range(last + 1)
        ]
        for _ in range(p)
    ]
    barred = {(rng.randint(1, p - 1), rng.randint(1, last - 1))}
    steps = {}
    for inner in combinations(range(1, last), p - 1):
        bounds = (0, *inner, last)
        own = [times[s][i][j] for s, (i, j) in enumerate(pairwise(bounds))]
        if max(own) < INFINITE and barred.isdisjoint(enumerate(bounds)):
            steps[bounds] = bound.of(own)
    found = best_cuts(bound, times, lambda stage, i: (stage, i) not in barred)
    if not steps:
        assert found is None
        return
    assert found is not None
    assert found[0] == min(steps.values()) == steps[found[1]]
    assert best_cuts(bound, times, lambda stage, i: (stage, i) not in barred, min(steps.values())) is None
