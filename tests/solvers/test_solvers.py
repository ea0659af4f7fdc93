"""Every solver on one battery: the truth by brute force, the statuses, and what limits mean."""

import os
import signal
import threading
from dataclasses import replace
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from partita import PartitaError
from partita.formulation.network.checks import check_network
from partita.formulation.network.network import INFINITE, Edge, Network, Variable, evaluate
from partita.solvers.backends import cpsat
from partita.solvers.backends.cpsat import CpSatPlain
from partita.solvers.protocol import INTERRUPTED, STOPPED, Limits, Progress, Solver, Status, solver, solvers

from ..levels import example_count

EVERY = ("auto", "elimination", "cpsat", "cpsat-plain")


def network(
    *costs: list[int], edges: tuple[Edge, ...] = (), uses: tuple[list[int], ...] = (), capacity: int = 0
) -> Network:
    """Variables of these costs; with `uses`, one capacity."""
    uses = uses or tuple([0] * len(c) for c in costs)
    return Network(
        tuple(
            Variable(f"v{i}", np.array(c, np.int64), np.array(u, np.int64)[:, None])
            for i, (c, u) in enumerate(zip(costs, uses, strict=True))
        ),
        edges,
        (capacity,),
    )


def edge(u: int, v: int, rows: list[list[int]]) -> Edge:
    return Edge(u, v, np.array(rows, np.int64))


NEVER = INFINITE
BATTERY = {
    "nothing": (network(), 0),
    "an isolated variable": (network([3, 1, 2]), 1),
    "a tie": (network([1, 1]), 1),
    "an edge decides": (network([0, 1], [0, 0], edges=(edge(0, 1, [[9, 8], [0, 5]]),)), 1),
    "parallel edges add": (network([0, 3], [0], edges=(edge(0, 1, [[2], [0]]), edge(1, 0, [[2, 0]]))), 3),
    "a triangle": (
        network([0, 0], [0, 0], [0, 0], edges=tuple(edge(u, v, [[1, 0], [0, 1]]) for u, v in ((0, 1), (1, 2), (0, 2)))),
        1,
    ),
    "two components": (network([1, 2], [5, 4], [7], edges=(edge(0, 2, [[3], [0]]),)), 2 + 4 + 7),
    "a forbidden row": (network([0, 5], [0, 0], edges=(edge(0, 1, [[NEVER, NEVER], [1, 2]]),)), 6),
    "all forbidden": (network([0], [0], edges=(edge(0, 1, [[NEVER]]),)), None),
    "a forbidden option": (network([NEVER, 4]), 4),
    "a capacity that binds": (network([0, 3], [0, 5], uses=([4, 1], [4, 1]), capacity=5), 3),
    "a duality gap": (network([0, 10], [0, 10], [0, 10], uses=([2, 0], [2, 0], [2, 0]), capacity=3), 20),
    "no capacity at all": (network([0, 3], uses=([1, 0],)), 3),
    "beyond capacity": (network([0, 3], [0], uses=([4, 2], [1]), capacity=2), None),
    "a negative cost": (network([0, -7]), -7),
}


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("case", BATTERY)
def test_battery(name: str, case: str) -> None:
    problem, best = BATTERY[case]
    check_network(problem)
    assert solver(name).accepts(problem)
    solution = solver(name).solve(problem)
    assert (solution.objective, solution.source) == (best, name)
    if best is None:
        assert solution.status is Status.INFEASIBLE and solution.assignment is None and solution.gap is None
    else:
        assert solution.status is Status.OPTIMAL and solution.bound == best and solution.gap == 0.0
        assert evaluate(problem, solution.assignment or ()).cost == best


def test_ties_go_to_the_lower_option() -> None:
    assert solver("elimination").solve(network([1, 1], [2, 2, 2])).assignment == (0, 0)


def check(backend: Solver, problem: Network, truth: int | None) -> None:
    solution = backend.solve(problem)
    assert solution.objective == truth
    assert solution.status is (Status.INFEASIBLE if truth is None else Status.OPTIMAL)


@pytest.mark.parametrize(
    ("name", "examples"), [("auto", 120), ("elimination", 120), ("cpsat", 40), ("cpsat-plain", 40)]
)
def test_solvers_agree_with_brute_force(make_network, truth, name: str, examples: int) -> None:
    @settings(max_examples=example_count(examples), deadline=None)
    @given(st.integers(0, 10**6))
    def agree(seed: int) -> None:
        problem = make_network(seed)
        assume(prod(len(v.cost) for v in problem.variables) <= 3000)
        best = truth(problem)
        check(solver(name), problem, best)
        check(solver(name), replace(problem, chains=()), best)  # decomposed = monolithic

    agree()


@pytest.mark.usefixtures("only_counting")
def test_counting_agrees_with_brute_force(make_network, truth) -> None:
    @settings(max_examples=80, deadline=None)
    @given(st.integers(0, 10**6))
    def agree(seed: int) -> None:
        problem = make_network(seed)
        assume(prod(len(v.cost) for v in problem.variables) <= 3000)
        check(solver("auto"), problem, truth(problem))

    agree()


@pytest.mark.parametrize("name", ["auto", "elimination"])
def test_without_time_the_answer_is_honest(make_transformer, name: str) -> None:
    problem = make_transformer(4, axes=2, jitter=0.1)
    solution = solver(name).solve(problem, Limits(seconds=0.0))
    best = solver(name).solve(problem)
    assert best.status is Status.OPTIMAL and solution.status in (Status.UNKNOWN, Status.FEASIBLE)
    assert solution.bound <= best.bound
    assert solution.objective is None or solution.objective >= best.objective


def test_progress_only_improves(make_transformer) -> None:
    seen: list[Progress] = []
    problem = make_transformer(6, axes=2, jitter=0.1)
    solution = solver("auto").solve(problem, Limits(progress=seen.append))
    assert seen and (seen[-1].incumbent, seen[-1].bound) == (solution.objective, solution.bound)
    for a, b in pairwise(seen):
        assert b.bound >= a.bound and (a.incumbent is None or (b.incumbent or INFINITE) <= a.incumbent)


@pytest.mark.parametrize("name", EVERY)
def test_interrupt_keeps_the_best(make_transformer, name: str) -> None:
    def interrupt(progress: Progress) -> None:
        if progress.incumbent is not None:
            raise KeyboardInterrupt

    problem = make_transformer(2, axes=1, memory=0.3)
    solution = solver(name).solve(problem, Limits(progress=interrupt))
    assert solution.status in (Status.FEASIBLE, Status.OPTIMAL) and solution.objective is not None


def test_unknown_solvers_are_named() -> None:
    assert {s.name for s in solvers()} >= {*EVERY}
    with pytest.raises(PartitaError, match="no solver is called 'magic'; there are auto"):
        solver("magic")


def subset_sum() -> Network:
    """Options as full as possible: CP-SAT finds solutions, and no proof for long."""
    generator = np.random.default_rng(5)
    uses = [generator.integers(1, 1 << 40, (6, 1)) for _ in range(40)]
    variables = tuple(Variable(f"v{i}", (1 << 40) - use[:, 0], use) for i, use in enumerate(uses))
    return Network(variables, (), (sum(int(np.median(use)) for use in uses),))


@pytest.mark.usefixtures("hears_interrupts")
def test_an_interrupt_while_cp_sat_runs_ends_the_solve() -> None:
    """CP-SAT runs in another thread, where no signal arrives."""
    alarm = threading.Timer(1.0, lambda: os.kill(os.getpid(), signal.SIGINT))
    alarm.start()
    solution = CpSatPlain().solve(subset_sum(), Limits(seconds=60))
    alarm.cancel()
    assert solution.words == INTERRUPTED and solution.seconds < 30
    assert solution.status in (Status.FEASIBLE, Status.UNKNOWN)


def test_cp_sat_that_stops_early_was_not_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    """It does if one of its steps takes a large share of the time."""

    def hasty(seconds: float) -> Any:
        made = plain(seconds)
        made.parameters.max_deterministic_time = 1e-3
        return made

    plain = cpsat._solver
    monkeypatch.setattr(cpsat, "_solver", hasty)
    assert CpSatPlain().solve(subset_sum(), Limits(seconds=60)).words == STOPPED
