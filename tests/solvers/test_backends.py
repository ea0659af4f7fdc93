"""Every backend on one battery, and beside each other: the truth by brute force, the statuses, and what limits mean."""

import os
import signal
import threading
import time
from dataclasses import replace
from itertools import pairwise
from math import prod

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from partita.formulation.network import INFINITE, Edge, Network, Variable, evaluate
from partita.solvers.protocol import INTERRUPTED, Limits, Progress, Status, solver, solvers
from partita.solvers.smt import SMT

EVERY = ("elimination", "cpsat", "auto", "milp", "smt")
PROGRAMS = ("cpsat", "milp", "smt")
NEVER = INFINITE


def choice(
    name: str, cost: list[int], use: list[list[int]] | None = None, rows: list[list[int]] | None = None
) -> Variable:
    """`use` by option; none where the network has no capacity."""
    table = np.array(use if use is not None else [[]] * len(cost), np.int64)
    return Variable(name, np.array(cost, np.int64), table, None if rows is None else np.array(rows, np.int64))


def edge(u: int, v: int, cost: list[list[int]], use: list[list[list[int]]] | None = None) -> Edge:
    return Edge(u, v, np.array(cost, np.int64), None if use is None else np.array(use, np.int64))


def timed(limit: int) -> Network:
    """Three variables whose memory is alive at times 0 to 2, 1 to 3 and 3 to 4; the first two meet at time 1."""
    alive = ([0, 2], [1, 3], [3, 4])
    return Network(
        tuple(choice(f"v{i}", [0, 10 + i], [[4], [1]], [list(rows)]) for i, rows in enumerate(alive)),
        (edge(1, 2, [[0, 5], [5, 0]]),),
        (limit,) * 4,
    )


A, B = choice("a", [3, 1, 2]), choice("b", [0, 0])
BATTERY = {
    "nothing": (Network(()), 0),
    "nothing but a constant": (Network((), constant=-4), -4),
    "nothing, of no capacity": (Network((), (), (0,)), 0),
    "one variable": (Network((A,)), 1),
    "ties": (Network((B, B, B)), 0),
    "ties at a cost": (Network((choice("a", [7, 7]), choice("b", [2, 2])), (edge(0, 1, [[1, 1], [1, 1]]),)), 10),
    "an edge decides": (Network((A, B), (edge(0, 1, [[0, 0], [9, 8], [0, 7]]),)), 2),
    "parallel edges, both ways": (Network((A, B), (edge(0, 1, [[0, 9]] * 3), edge(1, 0, [[4, 0, 4], [0, 0, 0]]))), 1),
    "an odd cycle": (Network((B, B, B), tuple(edge(u, v, [[1, 0], [0, 1]]) for u, v in ((0, 1), (1, 2), (0, 2)))), 1),
    "apart": (Network((A, B, A)), 2),
    "negative costs": (Network((choice("a", [0, -7]), B), (edge(0, 1, [[-9, 0], [-1, 0]]),)), -9),
    "costs of 10^13": (Network((choice("a", [10**13, 10**13 + 1]), B), (edge(0, 1, [[2, 2], [0, 1]]),)), 10**13 + 1),
    "a forbidden option": (Network((choice("a", [NEVER, 4]),)), 4),
    "forbidden pairs": (Network((B, B), (edge(0, 1, [[NEVER, NEVER], [NEVER, 3]]),)), 3),
    "forbidden altogether": (Network((B, B), (edge(0, 1, [[NEVER, NEVER]] * 2),)), None),
    "forbidden around a cycle": (
        Network((B, B, B), tuple(edge(u, v, [[NEVER, 0], [0, NEVER]]) for u, v in ((0, 1), (1, 2), (0, 2)))),
        None,
    ),
    "forbidden beside a bargain": (
        Network((B, B), (edge(0, 1, [[NEVER, 5], [6, NEVER]]), edge(0, 1, [[-3, 0], [0, -3]]))),
        5,
    ),
    "a capacity that binds": (Network((choice("a", [0, 3], [[4], [1]]), choice("b", [0, 5], [[4], [1]])), (), (5,)), 3),
    "a capacity just enough": (Network((choice("a", [0, 3], [[4], [1]]),), (), (4,)), 0),
    "a capacity of nothing": (Network((choice("a", [0, 3], [[1], [0]]),), (), (0,)), 3),
    "beyond a capacity": (Network((choice("a", [0, 3], [[4], [2]]), choice("b", [0], [[1]])), (), (2,)), None),
    "half a unit too little": (Network(tuple(choice(f"v{i}", [0, 10], [[2], [0]]) for i in range(3)), (), (3,)), 20),
    "capacities against each other": (
        Network(tuple(choice(f"v{i}", [0, 1, 8], [[3, 0], [0, 3], [0, 0]]) for i in range(3)), (), (5, 5)),
        0 + 1 + 8,
    ),
    "a byte of 10^11": (
        Network(tuple(choice(f"v{i}", [0, 1], [[10**11], [0]]) for i in range(3)), (), (3 * 10**11 - 1,)),
        1,
    ),
    "an edge that uses": (
        Network(
            (choice("a", [0, 4], [[0], [0]]), choice("b", [0, 2], [[1], [1]])),
            (edge(0, 1, [[0, 0], [0, 0]], [[[5], [3]], [[0], [0]]]),),
            (4,),
        ),
        2,
    ),
    "an edge that uses too much": (
        Network((choice("a", [0], [[1]]), choice("b", [0], [[1]])), (edge(0, 1, [[0]], [[[2]]]),), (3,)),
        None,
    ),
    "rows, enough": (timed(8), 0),
    "rows that meet": (timed(5), 10),
    "rows, each alone": (timed(3), 10 + 11 + 12),
    "rows, nothing fits": (timed(0), None),
    "rows that overlap": (Network((choice("a", [0, 9], [[2, 3], [1, 1]], [[0, 2], [1, 3]]),), (), (4, 4, 4)), 9),
    "rows of nothing": (Network((choice("a", [0, 9], [[5], [0]], [[1, 1]]),), (), (1,)), 0),
}


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("case", BATTERY)
def test_battery(name: str, case: str) -> None:
    problem, best = BATTERY[case]
    problem.check()
    assert solver(name).accepts(problem)
    solution = solver(name).solve(problem)
    assert (solution.objective, solution.source) == (best, name)
    if best is None:
        assert solution.status is Status.INFEASIBLE
        assert solution.assignment is None and solution.bound == INFINITE and solution.gap is None
    else:
        assert solution.status is Status.OPTIMAL and solution.bound == best and solution.gap == 0.0
        verdict = evaluate(problem, solution.assignment or ())
        assert verdict.feasible and verdict.cost == best


def test_the_battery_by_brute_force(truth) -> None:
    assert {case: truth(problem) for case, (problem, _) in BATTERY.items()} == {
        c: best for c, (_, best) in BATTERY.items()
    }


HALF, MOST = 1 << 59, (1 << 63) - 1
HUGE = {
    "costs that reach INFINITE together": Network((choice("a", [HALF]), B), (edge(0, 1, [[HALF, HALF + 1]]),)),
    "parallel edges that do": Network((choice("a", [0]), B), (edge(0, 1, [[HALF, HALF + 1]]),) * 3),
    "parallel edges beyond 64 bits": Network((choice("a", [0]), B), (edge(0, 1, [[1 - 2 * HALF, -5]]),) * 10),
    "a constant of 2^60": Network((A,), constant=2 * HALF),
    "a constant of -2^70": Network((A,), constant=-(1 << 70)),
    "uses beyond 64 bits": Network(tuple(choice(f"v{i}", [0, 1], [[1 << 62], [0]]) for i in range(4)), (), (1 << 62,)),
    "uses of edges beyond 64 bits": Network(
        (choice("a", [0], [[0]]), choice("b", [0, 1], [[0], [0]])), (edge(0, 1, [[0, 0]], [[[MOST], [1]]]),) * 2, (9,)
    ),
    "a capacity beyond 64 bits": Network((choice("a", [0, 1], [[1], [0]]),), (), (1 << 70,)),
    "such a capacity, nine times": Network((choice("a", [0, 1], [[1] * 9, [0] * 9]),), (), (1 << 70,) * 9),
}


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("case", HUGE)
def test_numbers_too_large_are_refused_or_solved(truth, name: str, case: str) -> None:
    problem = HUGE[case]
    problem.check()
    if solver(name).accepts(problem):
        answer = solver(name).solve(problem)
        assert (answer.status, answer.objective) == (Status.OPTIMAL, truth(problem))
    else:
        assert solver(name).solve(problem).status is Status.UNKNOWN


def test_auto_takes_what_is_exact_in_64_bits_only() -> None:
    assert solver("auto").accepts(HUGE["a capacity beyond 64 bits"])


def with_rows(problem: Network, seed: int) -> Network:
    """Capacities at some times instead, and uses that count on ranges of them; often just enough for some choice."""
    rng = np.random.default_rng(seed)
    count, largest = int(rng.integers(1, 7)), int(rng.choice([3, 20, 10**11]))
    variables = []
    for v in problem.variables:
        many = int(rng.integers(0, 3))
        first = rng.integers(0, count, many)
        rows = np.stack([first, np.minimum(count, first + rng.integers(0, count + 1, many))], axis=1).astype(np.int64)
        variables.append(Variable(v.name, v.cost, rng.integers(0, largest, (len(v.cost), many)).astype(np.int64), rows))
    edges = []
    for e in problem.edges:
        use = rng.integers(0, largest, (*e.cost.shape, count)).astype(np.int64) if rng.random() < 0.1 else None
        edges.append(Edge(e.u, e.v, e.cost, use))
    network = Network(tuple(variables), tuple(edges), (INFINITE,) * count, problem.constant)
    used = evaluate(network, [int(rng.integers(len(v.cost))) for v in variables]).use
    limits = tuple(max(0, x + int(rng.integers(-1, 2))) for x in used)
    return Network(network.variables, network.edges, limits, network.constant)


@pytest.mark.parametrize("rows", [False, True])
@pytest.mark.parametrize(
    ("name", "examples"), [("auto", 60), ("elimination", 60), ("cpsat", 60), ("milp", 200), ("smt", 120)]
)
def test_backends_agree_with_brute_force(make_network, truth, name: str, examples: int, rows: bool) -> None:
    @settings(max_examples=examples, deadline=None, database=None)
    @given(st.integers(0, 10**6))
    def agree(seed: int) -> None:
        problem = make_network(seed)
        if rows:
            problem = with_rows(problem, seed)
        assume(prod(len(v.cost) for v in problem.variables) <= 600)
        assume(solver(name).accepts(problem))
        best, solution = truth(problem), solver(name).solve(problem)
        if name == "elimination" and solution.status in (Status.UNKNOWN, Status.FEASIBLE):
            return  # it may find its lists too long
        assert solution.objective == best
        assert solution.status is (Status.INFEASIBLE if best is None else Status.OPTIMAL)

    agree()


@pytest.mark.parametrize("name", EVERY)
def test_cutoff(make_network, truth, name: str) -> None:
    """A solution below the cutoff is found and proved; else the search ends with a valid bound that reaches it."""

    @settings(max_examples=60, deadline=None, database=None)
    @given(st.integers(0, 10**6), st.integers(-2, 2))
    def holds(seed: int, more: int) -> None:
        problem = make_network(seed)
        assume(prod(len(v.cost) for v in problem.variables) <= 600)
        best = truth(problem)
        cutoff = (best or 0) + more
        solution = solver(name).solve(problem, Limits(cutoff=cutoff))
        if best is None:
            assert solution.status in (Status.INFEASIBLE, Status.UNKNOWN)
        elif best < cutoff:
            assert solution.status is Status.OPTIMAL and solution.objective == best
        else:
            assert solution.bound <= best
            assert solution.bound >= cutoff or solution.status is Status.OPTIMAL

    holds()


def mixed(count: int, options: int) -> Network:
    """A ring of random tables under a capacity that binds: a moment's work, and no reduction solves it."""
    rng = np.random.default_rng(1)
    variables = tuple(
        Variable(f"v{i}", rng.integers(0, 50, options), rng.integers(0, 1 << 20, (options, 1))) for i in range(count)
    )
    edges = tuple(
        Edge(u, v, rng.integers(0, 100, (options, options))) for u in range(count) for v in range(u + 1, count)
    )
    return Network(variables, edges, (sum(int(np.sort(v.use[:, 0])[1]) for v in variables),))


def test_programs_agree_on_a_network_that_no_reduction_solves(truth) -> None:
    problem = mixed(7, 4)
    answers = [solver(name).solve(problem) for name in PROGRAMS]
    assert {(a.status, a.objective, a.bound) for a in answers} == {(Status.OPTIMAL, truth(problem), truth(problem))}


@pytest.mark.parametrize("name", PROGRAMS)
def test_without_time_the_answer_is_honest(name: str) -> None:
    problem = mixed(7, 4)
    best = solver(name).solve(problem)
    solution = solver(name).solve(problem, Limits(seconds=0.0))
    assert best.status is Status.OPTIMAL and solution.status in (Status.UNKNOWN, Status.FEASIBLE)
    assert solution.bound <= best.bound
    assert solution.objective is None or solution.objective >= best.bound


@pytest.mark.parametrize("name", PROGRAMS)
def test_any_time_limit_is_honest(name: str) -> None:
    """Also one that ends in the middle of a step of a library, or before it is a unit of its clock."""
    problem = mixed(7, 4)
    best = solver(name).solve(problem).objective
    assert best is not None
    for seconds in np.geomspace(1e-5, 0.3, 25).tolist():
        answer = solver(name).solve(problem, Limits(seconds=seconds))
        assert answer.status is not Status.INFEASIBLE and answer.words != INTERRUPTED and answer.bound <= best
        assert answer.objective is None or answer.objective >= best
        assert answer.status is not Status.OPTIMAL or answer.objective == best


@pytest.mark.parametrize("name", ["auto", "milp"])
def test_a_gap_below_a_negative_cost(name: str) -> None:
    assert Limits(gap=0.1).ceiling(-100) == -110 and Limits(gap=0.1).ceiling(100) == 90
    answer = solver(name).solve(mixed_and(-10_000), Limits(gap=0.5))
    assert answer.gap is not None and answer.gap <= 0.5 and "time" not in answer.words


def mixed_and(constant: int) -> Network:
    return replace(mixed(7, 4), constant=constant)


@pytest.mark.parametrize("name", PROGRAMS)
def test_an_interrupt_keeps_the_best(name: str) -> None:
    def interrupt(progress: Progress) -> None:
        if progress.incumbent is not None:
            raise KeyboardInterrupt

    solution = solver(name).solve(mixed(7, 4), Limits(progress=interrupt))
    assert solution.status in (Status.FEASIBLE, Status.OPTIMAL) and solution.objective is not None


@pytest.mark.usefixtures("hears_interrupts")
@pytest.mark.parametrize("name", ["milp", "smt"])
def test_the_terminal_s_interrupt_ends_a_solve(name: str) -> None:
    """Also in the middle of a program, which hears nothing of Python's signals."""
    problem = mixed(40, 10) if name == "milp" else mixed(14, 10)
    began = time.perf_counter()
    alarm = threading.Timer(2.5, lambda: os.kill(os.getpid(), signal.SIGINT))
    alarm.start()
    solution = solver(name).solve(problem, Limits(seconds=120))
    alarm.cancel()
    assert solution.words == INTERRUPTED and time.perf_counter() - began < 60
    assert solution.status in (Status.FEASIBLE, Status.UNKNOWN)


@pytest.mark.parametrize("name", PROGRAMS)
def test_progress_only_improves(name: str) -> None:
    seen: list[Progress] = []
    solution = solver(name).solve(mixed(7, 4), Limits(progress=seen.append))
    assert seen and (seen[-1].incumbent, seen[-1].bound) == (solution.objective, solution.bound)
    for a, b in pairwise(seen):
        assert b.bound >= a.bound and (a.incumbent is None or (b.incumbent or INFINITE) <= a.incumbent)


def test_all_backends_are_listed() -> None:
    assert {backend.name for backend in solvers()} >= set(EVERY)


def test_z3_is_for_small_networks() -> None:
    tables = np.zeros((200, 200), np.int64)
    many = tuple(choice(f"v{i}", [0] * 200) for i in range(2))
    large = Network(many, (Edge(0, 1, tables),))
    assert not SMT().accepts(large)
    assert SMT().solve(large).status is Status.UNKNOWN
