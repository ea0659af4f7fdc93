"""The way of `auto` through large networks: here small ones are taken as large, and compared with brute force."""

from __future__ import annotations

import threading
import time
from _thread import interrupt_main
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from partita.formulation.network.network import INFINITE, Edge, Network, Variable, evaluate
from partita.solvers.protocol import INTERRUPTED, NO_MEMORY, STOPPED, Limits, Progress, Search, Solution, Status
from partita.solvers.wide import integer, portfolio
from partita.solvers.wide.form import flattened
from partita.solvers.wide.shared_state import Deadline, Incumbent


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
@pytest.mark.parametrize("seed", [0, 2, 3])
def test_brute_force(seed: int, pair_use: bool) -> None:
    problem = network(seed, pair_use=pair_use)
    best, answer = least(problem), solve(problem, seconds=60.0)
    assert answer.objective is None or evaluate(problem, answer.assignment or ()).cost == answer.objective
    assert best is None or answer.bound <= best
    if best is None:
        assert answer.status in (Status.INFEASIBLE, Status.UNKNOWN)
    else:
        assert (answer.status, answer.objective) == (Status.OPTIMAL, best)


def grid(side: int = 24, options: int = 12, pair_use: bool = False) -> Network:
    """Too wide for elimination, too large for a proof in seconds."""
    rng = np.random.default_rng(1)
    nodes = tuple(
        Variable(f"v{v}", table(rng.integers(0, 1000, options)), table(rng.integers(0, 100, (options, 1))))
        for v in range(side * side)
    )
    pairs = [(v, v + 1) for v in range(side * side) if (v + 1) % side] + [
        (v, v + side) for v in range(side * (side - 1))
    ]
    costs = [table(rng.integers(0, 1000, (options, options))) for _ in pairs]
    use = table(rng.integers(0, 2, (options, options, 1))) if pair_use else None
    return Network(nodes, tuple(Edge(*pair, c, use) for pair, c in zip(pairs, costs, strict=True)), (side**2 * 40,))


@pytest.mark.usefixtures("all_large")
def test_a_large_one_is_anytime_and_ends_in_time() -> None:
    problem, heard, start = grid(), list[Progress](), time.perf_counter()
    answer = solve(problem, seconds=8.0, progress=heard.append)
    assert time.perf_counter() - start < 5 * 8.0
    assert answer.objective is not None and answer.assignment is not None
    verdict = evaluate(problem, answer.assignment)
    assert verdict.feasible and verdict.cost == answer.objective
    assert 0 < answer.bound <= answer.objective
    assert answer.gap is not None and answer.gap < 0.2
    costs = [p.incumbent for p in heard if p.incumbent is not None]
    assert len(costs) > 1 and costs == sorted(costs, reverse=True)


@pytest.mark.usefixtures("all_large")
@pytest.mark.parametrize("memory", [40, 18], ids=["free", "tight"])
def test_without_time_some_solution_is_still_found(memory: int) -> None:
    problem = replace(grid(10, 5), capacities=(10**2 * memory,))
    answer = solve(problem, seconds=0.0)
    assert answer.status is Status.FEASIBLE and answer.assignment is not None
    assert evaluate(problem, answer.assignment).feasible and answer.bound <= answer.objective
    assert "the best by a quick choice" in answer.words


@pytest.mark.usefixtures("all_large", "hears_interrupts")
def test_an_interrupt_returns_the_best_so_far() -> None:
    sent: list[float] = []

    def interrupt() -> None:
        sent.append(time.perf_counter())
        interrupt_main()

    def hear(progress: Progress) -> None:
        if progress.incumbent is not None and not threads:
            threads.append(threading.Timer(1.0, interrupt))
            threads[0].start()

    threads: list[threading.Timer] = []
    answer = solve(grid(), seconds=120.0, progress=hear)
    assert time.perf_counter() - sent[0] < 30
    assert (answer.status, answer.words) == (Status.FEASIBLE, INTERRUPTED)


def hangs(flat: Any, until: float, choice: Any, ceiling: Callable[[None], int], *_: Any) -> None:
    """In place of programs: they end at a word only."""
    while ceiling(None) > -INFINITE:
        time.sleep(0.01)


def raises(error: Exception) -> Callable[..., None]:
    def programs(*_: Any) -> None:
        raise error

    return programs


@pytest.mark.parametrize(
    ("programs", "pair_use"), [(hangs, False), (raises(MemoryError()), True)], ids=["hang", "break off, pair use"]
)
def test_where_programs_fail_the_others_answer(
    programs: Callable[..., None], pair_use: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A small network, which programs alone could close, with the messages' bound near the best."""
    monkeypatch.setattr(portfolio, "solve_exactly", programs)
    start = time.perf_counter()
    answer = solve(grid(10, 5, pair_use), seconds=4.0)
    assert time.perf_counter() - start < 5 * 4.0
    assert answer.status is Status.FEASIBLE and answer.gap is not None and answer.gap < 0.2
    assert STOPPED in answer.words and "the bound by messages; the best by d" in answer.words  # dive or descent
    assert ("HiGHS failed (MemoryError)" in answer.words) == (programs is not hangs)


def test_without_a_limit_it_ends_when_nothing_new_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(portfolio, "solve_exactly", raises(OSError("no process")))
    for name, value in (("_MESSAGES", (0.1, 0.5)), ("_DIVES", (0.5, 0.5)), ("_SLICE", (0.1, 0.1)), ("_PATIENCE", 1.0)):
        monkeypatch.setattr(portfolio, name, value)
    for pair_use in (False, True):
        answer = solve(grid(8, 4, pair_use))
        assert answer.status is Status.FEASIBLE
        assert answer.words.startswith("no improvement for long; the bound by messages")
        assert answer.words.endswith("HiGHS failed (OSError: no process)")


def test_a_choice_below_what_was_proved_ends_no_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """What HiGHS says a little too high is believed no more, and what was told of it is taken back."""
    problem = grid(8, 4)

    def lies(flat: Any, until: Any, choice: Any, ceiling: Any, report: Any, *_: Any) -> None:
        report(portfolio.Exact(None, INFINITE, 10**9))
        time.sleep(1.5)

    monkeypatch.setattr(portfolio, "solve_exactly", lies)
    answer = solve(problem, seconds=6.0)
    assert answer.objective is not None and answer.bound <= answer.objective < 10**9
    assert "a bound by HiGHS was wrong" in answer.words and "the bound by messages" in answer.words
    monkeypatch.setattr(integer, "solve_exactly", raises(AssertionError()))
    search = Search(problem, Limits(4.0), "auto")
    found = portfolio.try_programs(search)
    assert found is not None and found.words == "HiGHS failed (AssertionError)" and not search.done


def test_known() -> None:
    flat = flattened(network(0))
    best = least(network(0))
    assert best is not None
    choice = next(x for x in product(*map(range, flat.sizes.tolist())) if flat.price(np.array(x)) == best)
    known = Incumbent(flat, 0)
    assert (known.now().bound, known.now().prover) == (0, "reduction")
    known.prove(best - 1, "messages")
    known.prove(best - 1, "HiGHS")
    assert (known.now().bound, known.now().prover) == (best - 1, "messages")
    known.prove(best + 1, "HiGHS")
    assert (known.now().bound, known.now().prover) == (best + 1, "HiGHS")
    known.take(np.array(choice), "dive")
    known.take(np.array(choice), "descent")
    assert (known.now().cost, known.now().finder) == (best, "dive")
    assert (known.now().bound, known.now().prover, known.now().refuted) == (best - 1, "messages", ("HiGHS",))


def test_a_deadline() -> None:
    deadline = Deadline()
    soon, later = deadline.within(0.05), deadline.within(60.0)
    assert not soon.past and not later.past and soon.within(60.0).at == soon.at
    time.sleep(0.1)
    assert soon.past and not later.past and not deadline.past
    deadline.ended.set()
    assert later.past and deadline.past


def test_too_little_memory_keeps_what_was_found() -> None:
    problem = Network((Variable("a", table(np.array([3, 1])), table(np.zeros((2, 0)))),), (), ())
    search = Search(problem, Limits(), "auto")

    def solve() -> Solution:
        search.offer((1,))
        raise MemoryError

    answer = search.run(solve)
    assert (answer.status, answer.objective, answer.words) == (Status.FEASIBLE, 1, NO_MEMORY)
