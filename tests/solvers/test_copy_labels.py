"""Lists of rounded costs and streams, and joined tables of a copy, against brute force."""

from dataclasses import replace
from itertools import product
from math import inf

import numpy as np

from partita.formulation.network.network import Edge, Network, Variable, Window, evaluate
from partita.solvers.elimination.copy_labels import list_copy
from partita.solvers.elimination.copy_pairs import merged
from partita.solvers.elimination.copy_program import Found
from partita.solvers.elimination.factors import Factor
from partita.solvers.elimination.order import compile_network

from ..levels import example_count


def layer(seed: int) -> Network:
    """Activations in a row with two weights each, in two windows that weights balance; memory may bind."""
    rng = np.random.default_rng(seed)
    variables, edges, streams = list[Variable](), list[Edge](), dict[int, np.ndarray]()
    for i in range(2):
        for k in range(3):
            variables.append(
                Variable(f"v{i}.{k}", rng.integers(-20 * (k > 0), 20, 3) * 999, rng.integers(0, 9, (3, 1)))
            )
            streams[len(variables) - 1] = rng.integers(0, 50, (2, 3)) * 1001
        ends = [(3 * i, 3 * i + 1), (3 * i, 3 * i + 2), *([(3 * i - 3, 3 * i)] if i else [])]
        edges += [Edge(u, v, rng.integers(0, 10**4, (3, 3))) for u, v in ends]
    windows = tuple(Window({v: t for v, t in streams.items() if v % 2 == w}, {}) for w in range(2))
    network = Network(tuple(variables), tuple(edges), (81,), windows=windows)
    some = tuple(rng.integers(0, 3, len(variables)).tolist())
    return replace(network, capacities=evaluate(network, some).use) if seed % 2 else network


def test_lists_bound_what_they_solve(truth) -> None:
    """Whatever the weights and prices are, also with streams of next to no weight left out."""
    closed = improved = 0
    for seed in range(example_count(60, every=10)):
        network = layer(seed)
        best, circuit = truth(network), compile_network(network)
        for share, gap in product((0.0, 0.5, 0.6), (0, 700, 10**5)):
            at = dict.fromkeys(range(2), (1 - share, share)), np.array([10.0 * (seed % 3)])
            had = Found(-(10.0**6), 10.0**6)
            got, less = list_copy(circuit, at, had, gap), list_copy(circuit, at, had, gap, best - 3000)
            assert less.bound <= best <= less.cost
            assert got.bound <= best <= got.cost
            if got.options:
                verdict = evaluate(network, got.options)
                assert verdict.feasible and verdict.cost == got.cost
            improved += got.bound > had.bound
            closed += share > 0 and got.cost - got.bound <= gap
    assert closed and improved


def test_merged_factors_cost_the_same_in_fewer_tables() -> None:
    rng = np.random.default_rng(5)
    size = (2, 3, 2)

    def factor(*scope: int) -> Factor:
        shape = tuple(size[v] for v in scope)
        cost = np.where(rng.random(shape) < 0.2, inf, rng.integers(0, 9, shape))
        return Factor(
            scope, cost, rng.integers(0, 9, (*shape, 1)) * 1.0, streams=((4, rng.integers(0, 9, (2, *shape))),)
        )

    def total(factors: list[Factor], at: tuple[int, ...]) -> list[float]:
        own = [(f, tuple(at[v] for v in f.scope)) for f in factors]
        found = [sum(f.time[e] for f, e in own), sum(f.use[e].item() for f, e in own)]
        return [*found, *(sum(f.streams[0][1][(k, *e)] for f, e in own) for k in range(2))]

    before = [factor(1), factor(0, 1), factor(1, 0), factor(2, 1), factor(0), factor(2)]
    after = merged(before)
    assert len(after) == 2
    for at in product(*map(range, size)):
        assert total(after, at) == total(before, at)
