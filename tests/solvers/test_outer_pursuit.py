"""The lazy search of one configuration on parts whose times are made up, against looking at everything."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import combinations, pairwise, product

import numpy as np
import pytest

from partita.formulation.network.network import INFINITE
from partita.formulation.pipeline.configuration import Configuration
from partita.formulation.pipeline.schedule import schedule_named
from partita.solvers.search.cut_search import search_cuts
from partita.solvers.search.one_f_one_b_bound import OneFOneBBound
from partita.solvers.search.part_bounds import MemoryNeed, PartAnswer, Query
from partita.solvers.search.shared_operators import NOTHING
from partita.solvers.search.state import Effort, Level, Proved
from partita.solvers.search.zero_bubble_bound import ZeroBubbleBound

LAYOUTS = ((0,), (1,), (2,))
OPTIONS = 3


class Made:
    """Segments in a row, each with options of a time, static bytes and bytes a micro-batch in flight.

    Options of neighbours, and an end with the layout there, cost something together. The first and the last segment
    have a weight in common, stored as their option is odd or even.
    """

    def __init__(self, rng: random.Random, segments: int, repeated: bool, tied: bool, capacity: int) -> None:
        def table(*shape: int, most: int = 60) -> np.ndarray:
            return np.array([rng.randint(0, most) for _ in range(int(np.prod(shape)))]).reshape(shape)

        each = [
            (table(OPTIONS, most=200) + 50, table(OPTIONS, most=9), table(OPTIONS, most=9)) for _ in range(segments)
        ]
        if repeated:
            each[1:-1] = [each[1]] * (segments - 2)
        self.segments, self.tied, self.capacity = each, tied, capacity
        self.inner, self.left, self.right = table(OPTIONS, OPTIONS), table(3, OPTIONS), table(OPTIONS, 3)
        n = segments + 1
        self.floors = np.full((n, n), INFINITE)
        for i, j in combinations(range(n), 2):
            self.floors[i, j] = sum(int(own[0].min()) for own in each[i:j])
        self.transfer_floors = np.zeros((2, n), dtype=np.int64)
        self.stages = self.floors < INFINITE
        self.finish_bound: ZeroBubbleBound | None = None
        self.messages: np.ndarray | None = None
        self.slots: OneFOneBBound | None = None
        self.beside = NOTHING
        self.asked = 0

    def kind(self, i: int, j: int) -> object:
        return tuple(id(own) for own in self.segments[i:j]), i == 0, j == len(self.segments)

    def group(self, boundary: int) -> object:
        return None

    def shared(self, i: int, j: int) -> tuple[bool, ...]:
        return ((i == 0) != (j == len(self.segments)) and self.tied,)

    def least_backward(self, i: int, j: int, in_flight: int, effort: Effort) -> int:
        """Half of what its segments take at least."""
        return self.floors[i, j] // 2

    def least_updated(self, i: int, j: int, in_flight: int, effort: Effort) -> int:
        return int(self.floors[i, j])

    def least_ending(self, i: int, j: int, in_flight: int, effort: Effort) -> int:
        return int(self.floors[i, j])

    def as_planned(self, i: int, j: int, query: Query, answer: PartAnswer, effort: Effort) -> PartAnswer:
        return answer

    def solve_without_long_updates(self, i: int, j: int, query: Query, effort: Effort, most: int) -> PartAnswer | None:
        """No stage has an update."""

    def memory_need(self, i: int, j: int, in_flight: int) -> MemoryNeed:
        return MemoryNeed(sum(int((s[1] + in_flight * s[2]).min()) for s in self.segments[i:j]), self.capacity, (0,))

    def every(self, i: int, j: int, in_flight: int):
        """All solutions of a part: time, left, right and stored layouts."""
        last = len(self.segments)
        for options in product(range(OPTIONS), repeat=j - i):
            own = list(zip(self.segments[i:j], options, strict=True))
            if in_flight and sum(s[1][x] + in_flight * s[2][x] for s, x in own) > self.capacity:
                continue
            time = sum(int(s[0][x]) for s, x in own)
            time += sum(int(self.inner[a, b]) for a, b in pairwise(options))
            stored = (options[0] % 2,) if i == 0 else (options[-1] % 2,) if j == last else None
            for left, right in product(LAYOUTS if i else [None], LAYOUTS if j < last else [None]):
                ends = int(self.left[left[0], options[0]]) if left else 0
                ends += int(self.right[options[-1], right[0]]) if right else 0
                yield time + ends, ((left,) if left else (), (right,) if right else (), (stored,))

    def inside(self, i: int, j: int) -> int:
        """The least time without ends."""
        times = [0] * OPTIONS
        for k in range(i, j):
            own = self.segments[k][0]
            before = [
                min(times[a] + (int(self.inner[a, b]) if k > i else 0) for a in range(OPTIONS)) for b in range(OPTIONS)
            ]
            times = [before[b] + int(own[b]) for b in range(OPTIONS)]
        return min(times)

    def solve(self, i: int, j: int, query: Query, effort: Effort) -> PartAnswer:
        self.asked += 1
        found = [x for x in self.every(i, j, query.in_flight) if query.admits(x[1])]
        if not found:
            return PartAnswer(INFINITE)
        time, ends = min(found)
        if effort.level is Level.RELAXED:
            return PartAnswer(time, inside=self.inside(i, j))
        if effort.cutoff is not None and time >= effort.cutoff:
            return PartAnswer(effort.cutoff)
        return PartAnswer(time, time, query.in_flight, ends, ())


def best_of_all(made: Made, configuration: Configuration) -> int | None:
    """The least step over all cuts and all solutions of the stages that agree."""
    last, p, least = len(made.segments), configuration.stages, None
    for inner in combinations(range(1, last), p - 1):
        bounds = (0, *inner, last)
        stages = []
        for s in range(p):
            fastest: dict[object, int] = {}
            for time, ends in made.every(bounds[s], bounds[s + 1], configuration.in_flight(s)):
                fastest[ends] = min(time, fastest.get(ends, time))
            stages.append(fastest)
        for taken in product(*stages):
            agree = all(a[1] == b[0] for a, b in pairwise(taken))
            stored = {taken[0][2], taken[-1][2]} if made.tied and p > 1 else {None}
            if agree and len(stored) == 1:
                busy = [stages[s][ends] for s, ends in enumerate(taken)]
                if made.finish_bound is not None:
                    busy = [int(made.finish_bound.finish_time(s, *bounds[s : s + 2], ns)) for s, ns in enumerate(busy)]
                sent = 0 if made.messages is None else int(made.messages[:, [*bounds]].sum())
                step = configuration.step_ns(busy) + sent - configuration.rounding_ns
                if made.slots is not None:
                    larger = [made.floors[ends] // 2 for ends in pairwise(bounds)]
                    step = made.slots.step_ns(bounds, busy, larger) - configuration.rounding_ns
                least = step if least is None else min(least, step)
    return least


def some_slots(rng: random.Random, made: Made, configuration: Configuration) -> OneFOneBBound:
    """With nothing known of forward and backward."""
    none, messages = np.zeros(len(made.floors), dtype=np.int64), made.messages
    assert messages is not None
    return OneFOneBBound(configuration.devices, configuration.micro_batches, none, none, messages, none)


def some_waits(rng: random.Random, segments: int, configuration: Configuration) -> ZeroBubbleBound:
    """Of every segment some ns forward, and backward, part of it for weights."""
    each = [[0, 0, 0]]
    for _ in range(segments):
        backward = rng.randint(0, 40)
        each.append([rng.randint(0, 40), backward, rng.randint(0, backward)])
    ahead = tuple(map(configuration.forwards_ahead, range(configuration.stages)))
    return ZeroBubbleBound(*np.cumsum(each, axis=0).T, ahead, configuration.micro_batches)


@pytest.mark.parametrize("seed", range(80))
def test_it_finds_the_best_of_all(seed: int) -> None:
    rng = random.Random(seed)
    made = Made(rng, rng.randint(3, 5), seed % 2 == 0, seed % 3 == 0, rng.randint(15, 60))
    schedule = rng.choice(["1f1b", "gpipe", "2bw", "zero-bubble"])
    configuration = Configuration((rng.randint(1, 3),), ((1,),), rng.randint(1, 6), schedule_named(schedule))
    if configuration.formula_bounds:
        made.messages = np.array([[0, *(rng.choice([0, 30]) for _ in made.segments[1:]), 0] for _ in range(2)])
        made.slots = some_slots(rng, made, configuration) if schedule == "1f1b" else None
    elif configuration.schedule.priced_by_slots and not configuration.schedule.formula_bounds:
        made.finish_bound = some_waits(rng, len(made.segments), configuration)
    expected, state = best_of_all(made, configuration), Proved()
    relaxed = search_cuts(made, configuration, state, INFINITE, Effort(Level.RELAXED))
    assert relaxed is None and state.bound <= (expected or INFINITE)
    found = search_cuts(made, configuration, state, INFINITE, Effort(Level.CLOSED))
    if expected is None:
        assert found is None and state.bound >= INFINITE
        return
    assert found is not None
    assert (found.objective, state.bound) == (expected, expected)
    plain = made.finish_bound is None and made.messages is None
    assert not plain or configuration.step_ns([a.objective for a in found.answers]) == expected
    below, above = Proved(), Proved()
    assert search_cuts(made, configuration, below, expected, Effort(Level.CLOSED)) is None and below.bound == expected
    assert search_cuts(made, configuration, above, expected + 1, Effort(Level.CLOSED)).objective == expected


def test_equal_layers_are_asked_once() -> None:
    made = Made(random.Random(1), 40, True, False, 10**6)
    made.every = lambda i, j, in_flight: iter(
        [((j - i) * 100 + (i == 0), (((1,),) * (i > 0), ((1,),) * (j < 40), (None,)))]
    )
    state = Proved()
    found = search_cuts(made, Configuration((8,), ((1,),), 64), state, INFINITE, Effort(Level.CLOSED))
    assert found is not None and found.bounds == tuple(range(0, 41, 5))
    assert made.asked < 80


def test_a_stage_is_bounded_roughly_before_it_is_solved() -> None:
    """Only stages whose rough bound leaves them in the best cut are solved."""
    made, asked = Made(random.Random(3), 6, False, False, 10**6), list[tuple[int, int, bool]]()
    solve = made.solve

    def noted(i: int, j: int, query: Query, effort: Effort) -> PartAnswer:
        asked.append((i, j, effort.rough))
        answer = solve(i, j, query, effort)
        return PartAnswer(answer.bound) if effort.rough else answer

    made.solve = noted  # type: ignore[method-assign]
    configuration = Configuration((2,), ((1,),), 4, schedule_named("gpipe"))
    found = search_cuts(made, configuration, Proved(), INFINITE, Effort(Level.PRICED))
    assert found is not None and found.objective == best_of_all(made, configuration)
    rough, solved = ({(i, j) for i, j, quick in asked if quick is kind} for kind in (True, False))
    assert solved < rough


@pytest.mark.parametrize("seed", range(12))
def test_no_stage_is_priced_again_for_layouts_that_its_solution_has(seed: int) -> None:
    """Prices leave a gap, which a second call with fewer layouts would leave too."""
    made, solved = Made(random.Random(seed), 5, False, False, 10**6), list[tuple[object, Query, PartAnswer]]()
    solve = made.solve

    def noted(i: int, j: int, query: Query, effort: Effort) -> PartAnswer:
        answer = replace(solve(i, j, query, effort), bound=made.inside(i, j))
        if effort.rough:
            return PartAnswer(answer.bound)
        kind = made.kind(i, j)
        wider = [a for of, asked, a in solved if of == kind and query.is_restriction_of(asked)]
        assert not any(query.admits(a.ends) for a in wider if a.objective is not None)
        solved.append((kind, query, answer))
        return answer

    made.solve = noted  # type: ignore[method-assign]
    configuration, state = Configuration((2,), ((1,),), 4, schedule_named("gpipe")), Proved()
    found = search_cuts(made, configuration, state, INFINITE, Effort(Level.PRICED))
    best = best_of_all(made, configuration)
    assert found is not None and best is not None and state.bound <= best <= found.objective
