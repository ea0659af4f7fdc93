"""The bound of a step by paths through its slots against steps run slot by slot, and its best cuts against all."""

from __future__ import annotations

import random
from itertools import combinations, pairwise
from typing import NamedTuple

import numpy as np
import pytest

from partita.formulation.network.network import INFINITE
from partita.formulation.pipeline.configuration import Configuration
from partita.formulation.pipeline.evaluate import starts_ns
from partita.formulation.pipeline.problem import Stage, chunked
from partita.formulation.pipeline.schedule import EAGER, INTERLEAVED, ONE_F_ONE_B
from partita.solvers.search import slots_bound
from partita.solvers.search.slots_bound import SlotsBound


class Segments(NamedTuple):
    """By segment what a micro-batch takes forward and backward, and an update; by boundary its message, both ways."""

    forward: list[int]
    backward: list[int]
    update: list[int]
    message: list[int]

    def bound(self, configuration: Configuration, known: float) -> SlotsBound:
        """`known`: the share of forwards, backwards and updates that their floors have."""
        floors = (np.cumsum([0, *(int(known * ns) for ns in each)]) for each in self[:3])
        forward, backward, update = floors
        messages = np.array([[0, *self.message, 0]] * 2)
        return SlotsBound(configuration, forward, backward, messages, update)

    def stage(self, i: int, j: int) -> Stage:
        ahead, back = ([0, *self.message, 0][at] for at in (j, i))
        slots = max(sum(self.forward[i:j]), ahead), max(sum(self.backward[i:j]), back)
        return Stage(*slots, forward_message_ns=ahead, backward_message_ns=back)

    def step(self, configuration: Configuration, cuts: tuple[int, ...]) -> int:
        """The step of stages between these cuts, slot by slot."""
        own, devices = configuration, configuration.devices
        problem = chunked([self.stage(*ends) for ends in pairwise(cuts)], devices, own.micro_batches)
        orders = own.schedule.orders(devices, own.chunks, own.micro_batches)
        updates = [sum(self.update[i:j]) for i, j in pairwise(cuts)]
        tasks = zip(starts_ns(problem, orders), problem.tasks, strict=True)
        return max(start + task.duration_ns + sum(updates[task.devices[0] :: devices]) for start, task in tasks)

    def busy(self, configuration: Configuration, i: int, j: int) -> int:
        """The slots of a stage, with the update of the first one."""
        stage = self.stage(i, j)
        slots = configuration.micro_batches * (stage.forward_ns + stage.backward_ns)
        return slots + (0 if i else sum(self.update[:j]))


def drawn(rng: random.Random) -> tuple[Configuration, Segments]:
    devices, chunks = rng.choice([(2, 2), (2, 3), (3, 2), (4, 2), (3, 1), (4, 1), (6, 1)])
    count = devices * chunks + rng.randint(0, 2)
    schedule = INTERLEAVED if chunks > 1 else rng.choice([EAGER, ONE_F_ONE_B])
    own = Configuration((devices,), ((1,),), devices * rng.choice([1, 2, 3]), schedule, chunks)
    even, far, long = rng.random() < 0.3, rng.choice([0, 20, 300, 3000]), rng.choice([0, 1000, 30_000])

    def times(low: int, high: int) -> list[int]:
        return [high if even else rng.randint(low, high) for _ in range(count)]

    message = [rng.randint(0, far) for _ in range(count - 1)]
    return own, Segments(times(200, 1000), times(200, 2000), [rng.randint(0, long) for _ in range(count)], message)


@pytest.mark.parametrize("seed", range(24))
def test_no_step_is_shorter(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all cuts, whatever is known of forwards, backwards and updates; all that is known bounds the best step."""
    rng = random.Random(seed)
    if seed >= 16:  # with fewer cuts followed than there are
        monkeypatch.setattr(slots_bound, "_MOST_CUTS", 2)
    own, segments = drawn(rng)
    last, known = len(segments.forward), rng.choice([0, 0.5, 1])
    made, at = segments.bound(own, known), np.arange(last + 1)
    busy = np.full((last + 1, last + 1), INFINITE)
    for i, j in combinations(at.tolist(), 2):
        busy[i, j] = segments.busy(own, i, j)
    updated = np.zeros_like(busy)
    if rng.random() < 0.5:
        for i, j in combinations(at.tolist(), 2):
            updated[i, j] = busy[i, j] + (sum(segments.update[i:j]) if i else 0)
    ways = made.larger_way
    if rng.random() < 0.5:
        ways = np.array([[own.micro_batches * sum(segments.backward[i:j]) for j in at] for i in at])
    every = [(0, *inner, last) for inner in combinations(range(1, last), own.stages - 1)]
    steps = {cuts: segments.step(own, cuts) for cuts in every}
    found = made.best_path(at, [busy] * own.stages, [ways] * own.stages, [updated] * own.stages)
    assert found is not None and found.objective <= min(steps.values())
    for cuts, step in steps.items():
        ends = [*pairwise(cuts)]
        times = ([int(each[e]) for e in ends] for each in (busy, ways, updated))
        busy_ns, ways_ns, updated_ns = times
        bound = made.step_ns(cuts, busy_ns, ways_ns, updated_ns)
        assert bound <= step and max(made.ends_ns(cuts, busy_ns, ways_ns, updated_ns)) <= own.micro_batches * step
        assert max(made.waiting_ns(cuts, busy_ns)) >= made.step_ns(
            cuts, busy_ns, [int(made.larger_way[e]) for e in ends]
        )
        if cuts == found.nodes:
            assert bound >= 0.998 * found.objective
    assert made.spread_ns(
        min(sum(int(busy[e]) for e in pairwise(c)) - sum(segments.update[: c[1]]) for c in every)
    ) <= min(steps.values())
    if known == 1 and seed < 16:
        assert found.objective >= 0.98 * min(steps.values())
        assert steps[found.nodes] <= 1.02 * min(steps.values())


def test_equal_stages_take_what_bounds_them() -> None:
    for devices, chunks, rounds in ((2, 2, 1), (2, 3, 4), (4, 2, 2)):
        own = Configuration((devices,), ((1,),), devices * rounds, INTERLEAVED, chunks)
        count = own.stages
        segments = Segments([1000] * count, [2000] * count, [0] * count, [0] * (count - 1))
        made, busy = segments.bound(own, 0), [segments.busy(own, s, s + 1) for s in range(count)]
        expected = 3000 * (chunks * own.micro_batches + devices - 1)
        assert segments.step(own, tuple(range(count + 1))) == expected
        assert made.step_ns(range(count + 1), busy, [0] * count) == expected
        assert (
            made.best_path(
                np.arange(count + 1),
                [np.where(np.triu(np.ones((count + 1, count + 1)), 1) > 0, busy[0], INFINITE)] * count,
                [made.larger_way] * count,
            ).objective
            == expected
        )
