"""The master problem against all paths, and arrays of bounds against what is known of every query."""

from __future__ import annotations

import random
from itertools import combinations, pairwise, product

import numpy as np
import pytest

from partita.formulation.network.network import INFINITE
from partita.formulation.pipeline.configuration import waited
from partita.model.graph.layout import S
from partita.solvers.search.interval_bounds import BoundTables
from partita.solvers.search.part_bounds import ANY, LayoutSet, PartAnswer, PartBounds, Query
from partita.solvers.search.shortest_cut import best_path


@pytest.mark.parametrize("seed", range(200))
def test_no_path_is_better(seed: int) -> None:
    rng = random.Random(seed)
    nodes, devices, chunks = rng.randint(2, 7), rng.randint(1, 3), rng.choice([1, 1, 2])
    stages, rounds = devices * chunks, rng.choice([None, 1, 2, 5])
    kinds = [np.full((nodes, nodes), INFINITE) for _ in range(rng.randint(1, stages))]
    for times, (i, j) in product(kinds, combinations(range(nodes), 2)):
        if rng.random() < 0.8:
            times[i, j] = rng.randint(0, 9)  # few values: many ties
    times = [kinds[min(s, len(kinds) - 1)] for s in range(stages)]
    sent = np.array([rng.choice([0, 0, 3]) for _ in range(nodes)])
    messages = sent if rounds is not None and chunks == 1 and seed % 3 == 0 else None

    def cost(path: tuple[int, ...]) -> int:
        each = [int(t[u, v]) for t, (u, v) in zip(times, pairwise(path), strict=True)]
        if max(each) >= INFINITE:
            return INFINITE
        more = 0 if messages is None else int(sum(messages[v] for v in path[1:]))
        return waited(max(*each, -(-sum(each) // devices)), sum(each), rounds) + more

    paths = [(0, *inner, nodes - 1) for inner in combinations(range(1, nodes - 1), stages - 1)]
    best = min(map(cost, paths), default=INFINITE)
    found = best_path(times, rounds, devices, messages)
    if best >= INFINITE:
        assert found is None
    else:
        assert found is not None and (found.objective, cost(found.nodes)) == (best, best)


LETTERS = [((S(n),),) for n in range(5)]


@pytest.mark.parametrize("seed", range(30))
def test_arrays_hold_what_is_known_of_every_query(seed: int) -> None:
    rng = random.Random(seed)
    groups = ("left", "right")
    sides: dict[object, tuple[LayoutSet, ...]] = dict.fromkeys(groups, (ANY,))
    known = PartBounds()
    bounds = BoundTables(known, lambda _: groups, lambda group: sides[group])
    for _ in range(40):
        left, right = (rng.choice(sides[group]) for group in groups)
        query = Query(rng.randint(1, 3), left, right, (ANY,))
        if rng.random() < 0.7:
            known.add("part", query, PartAnswer(rng.randint(0, 100)))
            bounds.learn("part", query, known.answers["part"][-1][1].bound)
        else:
            group, letters = rng.choice(groups), rng.sample(LETTERS, 2)
            parts = [side.split(letters) for side in sides[group]]
            sides[group] = tuple(side for own in parts for side in own)
            bounds.split({group: list(map(len, parts))})
        for in_flight in (1, 3):
            found = bounds.of("part", in_flight, (ANY,))
            for (u, a), (v, b) in product(*(enumerate(sides[group]) for group in groups)):
                assert found[u, v] == known.bound("part", Query(in_flight, a, b, (ANY,)))
