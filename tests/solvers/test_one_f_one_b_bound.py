"""The bound of 1F1B's step by its stages' times against steps run slot by slot, and its best cuts against all."""

from __future__ import annotations

import random
from itertools import combinations, pairwise, product
from typing import TypeAlias

import numpy as np
import pytest

from partita.formulation.network.network import INFINITE
from partita.formulation.pipeline.evaluate import starts_ns
from partita.formulation.pipeline.orders import one_f_one_b
from partita.formulation.pipeline.problem import Stage, pipeline
from partita.solvers.search.one_f_one_b_bound import OneFOneBBound

Computed: TypeAlias = list[tuple[int, int]]
"""By stage what its forward and backward of a micro-batch compute."""


def drawn(rng: random.Random, size: int) -> tuple[Computed, list[Stage]]:
    """Stages that are equal, nearly equal, or not, with messages of some length, which slots are no shorter than."""
    spread, share = rng.choice([0, 0, 50, 1000]), rng.choice([0, 0, 100, 900])
    far, computed, found = rng.choice([0, 20, 300, 3000]), [], []
    for number in range(size):
        whole = 1000 + rng.randint(0, spread)
        forward = rng.randint(max(1, whole // 3 - share), min(whole - 1, whole // 3 + share))
        ahead, back = (rng.randint(0, far) if where else 0 for where in (number < size - 1, number > 0))
        computed.append((forward, whole - forward))
        slots = max(forward, ahead), max(whole - forward, back)
        found.append(Stage(*slots, forward_message_ns=ahead, backward_message_ns=back))
    return computed, found


def simulated(stages: list[Stage], micros: int) -> int:
    problem = pipeline(stages, micros)
    starts = starts_ns(problem, one_f_one_b(len(stages), micros))
    return max(start + task.duration_ns for start, task in zip(starts, problem.tasks, strict=True))


def bound_of(computed: Computed, stages: list[Stage], micros: int, known: float, first_update: int = 0) -> int:
    """`known`: the share of a stage's forward and backward, and of the first one's update, that their floors have."""
    ahead, back = [s.forward_message_ns for s in stages[:-1]], [s.backward_message_ns for s in stages[1:]]
    forward, backward = (np.cumsum([0, *(int(known * ns) for ns in each)]) for each in zip(*computed, strict=True))
    update = np.array([0, *[int(known * first_update)] * len(stages)])
    own = OneFOneBBound(len(stages), micros, forward, backward, np.array([[0, *ahead, 0], [0, *back, 0]]), update)
    busy = [micros * sum(both) for both in computed]
    larger = [int(own.larger_way[s, s + 1]) for s in range(len(stages))]
    found = own.step_ns(range(len(stages) + 1), [busy[0] + first_update, *busy[1:]], larger)
    assert own.spread_ns(sum(busy)) <= found
    return found


def test_no_step_is_shorter() -> None:
    rng, shares = random.Random(1), []
    for _ in range(300):
        (computed, stages), micros = drawn(rng, rng.randint(2, 6)), rng.randint(1, 16)
        known = rng.choice([0, 0.5, 1])
        found, step = bound_of(computed, stages, micros, known), simulated(stages, micros)
        assert found <= step, (stages, micros)
        update = rng.randint(0, 5000)
        assert found <= bound_of(computed, stages, micros, known, update) <= step + update
        assert known < 1 or bound_of(computed, stages, micros, known, update) == found + update
        shares.append(found / step)
    assert sum(shares) / len(shares) > 0.98, sum(shares) / len(shares)


def test_no_step_is_shorter_with_the_updates_of_all_stages() -> None:
    """Of slots, and of slots with updates, any shares are known, also of a stage in which only their sum is."""
    rng = random.Random(2)
    for _ in range(400):
        (computed, stages), micros = drawn(rng, rng.randint(2, 5)), rng.randint(2, 9)
        updates = [int(rng.choice([0, 3000, 30000]) * rng.random()) for _ in stages]
        problem = pipeline(stages, micros)
        starts = starts_ns(problem, one_f_one_b(len(stages), micros))
        step = max(
            start + task.duration_ns + updates[task.devices[0]]
            for start, task in zip(starts, problem.tasks, strict=True)
        )
        ahead, back = [s.forward_message_ns for s in stages[:-1]], [s.backward_message_ns for s in stages[1:]]
        known = [rng.choice([0, 0.5, 1]) for _ in stages]
        floors = [
            np.cumsum([0, *(int(share * way[n]) for share, way in zip(known, computed, strict=True))]) for n in range(2)
        ]
        own = OneFOneBBound(
            len(stages), micros, *floors, np.array([[0, *ahead, 0], [0, *back, 0]]), 0 * floors[0]
        )  # fmt: skip
        slots = [micros * sum(both) for both in computed]
        busy = [int(ns * rng.choice([share, 1])) for ns, share in zip(slots, known, strict=True)]
        busy[0] += int(updates[0] * known[0])
        updated = [int((ns + x) * rng.choice([0, 1])) for ns, x in zip(slots, updates, strict=True)]
        larger = [int(own.larger_way[s, s + 1]) for s in range(len(stages))]
        ending = int(rng.choice([0, rng.random(), 1]) * (slots[0] + micros * updates[0]))
        assert own.step_ns(range(len(stages) + 1), busy, larger, updated, ending) <= step, (computed, micros, updates)


@pytest.mark.parametrize("size", range(2, 6))
def test_equal_stages_take_what_bounds_them(size: int) -> None:
    for micros in (size - 1, size, size + 1, 2 * size, 7 * size):
        stages = [Stage(1000, 2000)] * size
        assert (
            bound_of([(1000, 2000)] * size, stages, micros, 0)
            == simulated(stages, micros)
            == (micros + size - 1) * 3000
        )


@pytest.mark.parametrize("seed", range(120))
def test_no_cut_has_a_lower_bound(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor has any where only some cuts are followed."""
    rng = random.Random(seed)
    size, micros = rng.randint(2, 4), rng.randint(1, 9)
    nodes = size + rng.randint(1, 4)
    at = np.arange(nodes)
    length = [rng.randint(1, 60) for _ in range(nodes - 1)]
    floors = [np.cumsum([0, *(rng.randint(0, ns // 2) for ns in length)]) for _ in range(2)]
    messages = np.array([[0, *(rng.choice([0, 3, 20]) for _ in range(nodes - 2)), 0] for _ in range(2)])
    update = np.cumsum([0, *(rng.choice([0, 10]) for _ in length)])
    own = OneFOneBBound(size, micros, *floors, messages, update)
    busy = [np.full((nodes, nodes), INFINITE) for _ in range(size)]
    for times, (i, j) in product(busy, combinations(range(nodes), 2)):
        if rng.random() < 0.9:
            times[i, j] = micros * sum(length[i:j]) + rng.choice([0, 0, 7, 90]) + (update[j] if times is busy[0] else 0)
    updated = [
        np.array([[rng.choice([0, 0, micros * sum(length[i:j]) + rng.randint(0, 900)]) for j in at] for i in at])
        for _ in range(size)
    ]
    ending = np.array(
        [[rng.choice([0, micros * (sum(length[i:j]) + 200)]) if micros > 1 else 0 for j in at] for i in at]
    )
    paths = [(0, *inner, nodes - 1) for inner in combinations(range(1, nodes - 1), size - 1)]
    steps = {}
    for path in paths:
        ends = [*pairwise(path)]
        times = [int(t[u, v]) for t, (u, v) in zip(busy, ends, strict=True)]
        more = [int(t[u, v]) for t, (u, v) in zip(updated, ends, strict=True)]
        steps[path] = own.step_ns(path, times, [int(own.larger_way[u, v]) for u, v in ends], more, int(ending[ends[0]]))
    found, least = own.best_path(at, busy, [own.larger_way] * size, updated, ending), min(steps.values())
    if least >= INFINITE:
        assert found is None
    else:
        assert found is not None and found.objective == least == steps[found.nodes], (found, least)
        for most in (1, 2):
            monkeypatch.setattr("partita.solvers.search.one_f_one_b_bound._MOST_CUTS", most)
            some = own.best_path(at, busy, [own.larger_way] * size, updated, ending)
            assert some is not None and some.objective <= least
