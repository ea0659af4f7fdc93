"""Mixtures of two solutions against trying every place."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from partita.formulation.network.network import Network, evaluate
from partita.solvers.elimination.crossover import crossed


@pytest.mark.parametrize("seed", range(40))
def test_the_best_place(make_network: Callable[[int], Network], seed: int) -> None:
    network, rng = make_network(seed), random.Random(seed)
    before, after = (tuple(rng.randrange(len(v.cost)) for v in network.variables) for _ in range(2))
    mixtures = [(*before[:n], *after[n:]) for n in range(len(before) + 1)]
    costs = [found.cost for found in (evaluate(network, m) for m in mixtures) if found.feasible]
    answer = crossed(network, before, after)
    if not costs:
        assert answer is None
        return
    assert answer is not None and answer[0] == min(costs)
    found = evaluate(network, answer[1])
    assert found.feasible and found.cost == answer[0]
