"""The way of `auto` through large networks: here small ones are taken as large, and compared with brute force."""

from __future__ import annotations

import threading
import time
from _thread import interrupt_main
from itertools import product

import numpy as np
import pytest

from partita.formulation.network import INFINITE, Edge, Network, Variable, evaluate
from partita.solvers.flat import portfolio
from partita.solvers.protocol import INTERRUPTED, Limits, Progress, Search, Solution, Status


def table(values: np.ndarray) -> np.ndarray:
    return values.astype(np.int64)


def network(seed: int, variables: int = 7, pair_use: bool = False) -> Network:
    """Two or three options each, some pairs forbidden, two capacities of which one or none may hold."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(2, 4, variables)
    nodes = tuple(
        Variable(f"v{v}", table(rng.integers(0, 50, n)), table(rng.integers(0, 9, (n, 2)))) for v, n in enumerate(sizes)
    )
    edges = []
    for u in range(variables):
        for v in range(u + 1, variables):
            if rng.random() < 0.6:
                cost = np.where(
                    rng.random((sizes[u], sizes[v])) < 0.15, INFINITE, rng.integers(0, 50, (sizes[u], sizes[v]))
                )
                use = table(rng.integers(0, 3, (sizes[u], sizes[v], 2))) if pair_use else None
                edges.append(Edge(u, v, table(cost), use))
    return Network(nodes, tuple(edges), tuple(int(x) for x in rng.integers(2 * variables, 6 * variables, 2)))


def least(problem: Network) -> int | None:
    found = [evaluate(problem, x) for x in product(*(range(len(v.cost)) for v in problem.variables))]
    return min((x.cost for x in found if x.feasible), default=None)


def solve(problem: Network, **limits: object) -> Solution:
    search = Search(problem, Limits(**limits), "auto")  # type: ignore[arg-type]
    return search.run(lambda: portfolio.solve_flat(search))


@pytest.fixture
def all_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(portfolio, "_PROGRAM", -1)


@pytest.mark.usefixtures("all_large")
@pytest.mark.parametrize("pair_use", [False, True], ids=["plain", "pair use"])
@pytest.mark.parametrize("seed", range(6))
def test_brute_force(seed: int, pair_use: bool) -> None:
    problem = network(seed, pair_use=pair_use)
    best, answer = least(problem), solve(problem, seconds=6.0)
    assert answer.objective is None or evaluate(problem, answer.assignment or ()).cost == answer.objective
    assert best is None or answer.bound <= best
    if best is None:
        assert answer.status in (Status.INFEASIBLE, Status.UNKNOWN)
    else:
        assert (answer.status, answer.objective) == (Status.OPTIMAL, best)


def grid(side: int = 24, options: int = 12) -> Network:
    """Too wide for elimination, too large for a proof in seconds."""
    rng = np.random.default_rng(1)
    nodes = tuple(
        Variable(f"v{v}", table(rng.integers(0, 1000, options)), table(rng.integers(0, 100, (options, 1))))
        for v in range(side * side)
    )
    pairs = [(v, v + 1) for v in range(side * side) if (v + 1) % side] + [
        (v, v + side) for v in range(side * (side - 1))
    ]
    edges = tuple(Edge(u, v, table(rng.integers(0, 1000, (options, options)))) for u, v in pairs)
    return Network(nodes, edges, (side * side * 40,))


@pytest.mark.usefixtures("all_large")
def test_a_large_one_is_anytime_and_ends_in_time() -> None:
    problem, heard, start = grid(), list[Progress](), time.perf_counter()
    answer = solve(problem, seconds=8.0, progress=heard.append)
    assert time.perf_counter() - start < 20
    assert answer.objective is not None and answer.assignment is not None
    verdict = evaluate(problem, answer.assignment)
    assert verdict.feasible and verdict.cost == answer.objective
    assert 0 < answer.bound <= answer.objective
    assert answer.gap is not None and answer.gap < 0.2
    costs = [p.incumbent for p in heard if p.incumbent is not None]
    assert len(costs) > 1 and costs == sorted(costs, reverse=True)


@pytest.mark.usefixtures("all_large", "hears_interrupts")
def test_an_interrupt_returns_the_best_so_far() -> None:
    seen = threading.Event()

    def hear(progress: Progress) -> None:
        if progress.incumbent is not None and not seen.is_set():
            seen.set()
            threading.Timer(1.0, interrupt_main).start()

    start = time.perf_counter()
    answer = solve(grid(), seconds=120.0, progress=hear)
    assert time.perf_counter() - start < 60
    assert answer.objective is not None
    assert answer.words == INTERRUPTED or answer.status is Status.OPTIMAL
