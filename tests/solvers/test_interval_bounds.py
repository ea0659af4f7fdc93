"""Bounds of parts by those of parts within them, against looking at all."""

from __future__ import annotations

import random
from itertools import combinations_with_replacement

import numpy as np

from partita.formulation.network.network import INFINITE
from partita.solvers.search.interval_bounds import max_adjacent_sum, max_disjoint_sum


def test_a_part_that_cannot_be_bounds_only_those_that_contain_it() -> None:
    """One part is proved to take so long, or INFINITE; the rest of a part around it takes what its segments do."""
    rng = random.Random(1)
    for _ in range(50):
        n = rng.randint(3, 7)
        own = [rng.randint(1, 9) for _ in range(n - 1)]
        rest = max_disjoint_sum(np.diag(own, 1))
        a, b = sorted(rng.sample(range(n), 2))
        proved = rng.choice([100, INFINITE])
        known = np.full((n, n), -INFINITE)
        known[a, b] = proved
        found = max_adjacent_sum(max_adjacent_sum(rest, known), rest)
        for i, j in combinations_with_replacement(range(n), 2):
            if i <= a and b <= j:
                assert found[i, j] == min(proved + sum(own[i:a]) + sum(own[b:j]), INFINITE)
            else:
                assert found[i, j] <= sum(own[i:j]), (i, j, a, b)
