"""What limits mean to every backend, and what each refuses for its size."""

import os
import signal
import threading
import time
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from partita.formulation.network.network import INFINITE, Edge, Network, Variable
from partita.solvers.backends import elimination
from partita.solvers.elimination.order import TooWideError, compile_network, is_narrow
from partita.solvers.protocol import INTERRUPTED, STOPPED, Limits, Progress, Search, Solution, Status, solver
from partita.solvers.wide import solve_reduced
from partita.solvers.wide.form import flattened
from partita.solvers.wide.substitution import Reduced

PROGRAMS = ("cpsat", "cpsat-plain", "milp", "smt")
NEVER = INFINITE


@pytest.mark.parametrize("name", PROGRAMS)
def test_without_time_the_answer_is_honest(make_mixed, name: str) -> None:
    problem = make_mixed(7, 4)
    best = solver(name).solve(problem)
    solution = solver(name).solve(problem, Limits(seconds=0.0))
    assert best.status is Status.OPTIMAL and solution.status in (Status.UNKNOWN, Status.FEASIBLE)
    assert solution.bound <= best.bound
    assert solution.objective is None or solution.objective >= best.bound


@pytest.mark.parametrize("name", PROGRAMS)
def test_any_time_limit_is_honest(make_mixed, name: str) -> None:
    """Also one that ends in the middle of a step of a library, or before it is a unit of its clock."""
    problem = make_mixed(7, 4)
    best = solver(name).solve(problem).objective
    assert best is not None
    for seconds in np.geomspace(1e-5, 0.3, 25).tolist():
        answer = solver(name).solve(problem, Limits(seconds=seconds))
        assert answer.status is not Status.INFEASIBLE and answer.words != INTERRUPTED and answer.bound <= best
        assert answer.objective is None or answer.objective >= best
        assert answer.status is not Status.OPTIMAL or answer.objective == best


@pytest.mark.parametrize("name", ["auto", "milp"])
def test_a_gap_below_a_negative_cost(make_mixed, name: str) -> None:
    assert Limits(gap=0.1).ceiling(-100) == -110 and Limits(gap=0.1).ceiling(100) == 90
    answer = solver(name).solve(replace(make_mixed(7, 4), constant=-10_000), Limits(gap=0.5))
    assert answer.gap is not None and answer.gap <= 0.5 and "time" not in answer.words


@pytest.mark.parametrize("name", PROGRAMS)
def test_an_interrupt_keeps_the_best(make_mixed, name: str) -> None:
    def interrupt(progress: Progress) -> None:
        if progress.incumbent is not None:
            raise KeyboardInterrupt

    solution = solver(name).solve(make_mixed(7, 4), Limits(progress=interrupt))
    assert solution.status in (Status.FEASIBLE, Status.OPTIMAL) and solution.objective is not None


@pytest.mark.usefixtures("hears_interrupts")
@pytest.mark.parametrize("name", ["milp", "smt"])
def test_the_terminal_s_interrupt_ends_a_solve(make_mixed, name: str) -> None:
    """Also in the middle of a program, which hears nothing of Python's signals."""
    problem = make_mixed(40, 10) if name == "milp" else make_mixed(14, 10)
    began = time.perf_counter()
    alarm = threading.Timer(2.5, lambda: os.kill(os.getpid(), signal.SIGINT))
    alarm.start()
    solution = solver(name).solve(problem, Limits(seconds=120))
    alarm.cancel()
    assert solution.words == INTERRUPTED and time.perf_counter() - began < 60
    assert solution.status in (Status.FEASIBLE, Status.UNKNOWN)


@pytest.mark.parametrize("name", PROGRAMS)
def test_progress_only_improves(make_mixed, name: str) -> None:
    seen: list[Progress] = []
    solution = solver(name).solve(make_mixed(7, 4), Limits(progress=seen.append))
    assert seen and (seen[-1].incumbent, seen[-1].bound) == (solution.objective, solution.bound)
    for a, b in pairwise(seen):
        assert b.bound >= a.bound and (a.incumbent is None or (b.incumbent or INFINITE) <= a.incumbent)


def lattice(rows: int, columns: int, options: int) -> Network:
    """A grid of two options each; each has a leaf that decides it by its parity, and costs more the less it uses."""
    rng, count = np.random.default_rng(0), rows * columns
    inner = [Variable(f"v{i}", rng.integers(0, 50, 2), np.zeros((2, 1), np.int64)) for i in range(count)]
    leaves = [
        Variable(
            f"w{i}", np.sort(rng.integers(0, 1000, options)), -np.sort(-rng.integers(0, 1000, (options, 1)), axis=0)
        )
        for i in range(count)
    ]
    right = [(i, i + 1) for i in range(count) if (i + 1) % columns]
    down = [(i, i + columns) for i in range(count - columns)]
    parity = np.where(np.arange(options) % 2 == np.arange(2)[:, None], 0, NEVER)
    edges = [Edge(u, v, rng.integers(0, 100, (2, 2))) for u, v in right + down]
    edges += [Edge(i, count + i, parity) for i in range(count)]
    capacity = sum(int(np.median(v.use)) for v in leaves)
    return Network((*inner, *leaves), tuple(edges), (capacity,))


@pytest.mark.parametrize("name", ["elimination", "auto"])
def test_reduction_makes_nothing_too_wide_for_elimination(name: str) -> None:
    """Merged into their leaves, the grid's variables would have 40 options instead of 2: tables of 40^6 entries."""
    problem = lattice(6, 10, 40)
    answer = solver(name).solve(problem, Limits(seconds=60))
    assert answer.status is Status.OPTIMAL
    assert answer.objective == solver("milp").solve(problem, Limits(seconds=60)).objective


def test_elimination_takes_a_network_as_it_stands_where_that_is_less_work(
    make_mixed, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = make_mixed(5, 3)
    whole: list[Network] = []
    real = elimination.Elimination._whole

    def spy(self: elimination.Elimination, search: Search) -> Solution:
        whole.append(search.network)
        return real(self, search)

    monkeypatch.setattr(elimination.Elimination, "_whole", spy)
    assert solver("elimination").solve(problem).status is Status.OPTIMAL
    monkeypatch.setattr(elimination, "_work", lambda network: 1.0 if network is problem else 2.0)
    assert solver("elimination").solve(problem).status is Status.OPTIMAL
    assert [network is problem for network in whole] == [False, True]


def test_elimination_counts_all_its_tables() -> None:
    """Each is below the limit, all together are not."""
    rng = np.random.default_rng(0)
    rows, columns, options = 5, 200, 16
    nothing = np.zeros((options, 0), np.int64)
    variables = tuple(Variable(f"v{i}", rng.integers(0, 9, options), nothing) for i in range(rows * columns))
    ends = [(i, i + rows) for i in range(rows * (columns - 1))]
    ends += [(i, i + 1) for i in range(rows * columns) if (i + 1) % rows]
    problem = Network(variables, tuple(Edge(u, v, rng.integers(0, 9, (options, options))) for u, v in ends))
    with pytest.raises(TooWideError, match="in all"):
        compile_network(problem)
    assert not (is_narrow(problem) or solver("elimination").accepts(problem))
    answer = solver("elimination").solve(problem)
    assert answer.status is Status.UNKNOWN and "too wide" in answer.words and answer.bound > 0


def test_a_table_may_be_what_one_part_uses_and_another_costs() -> None:
    nothing, costs = np.zeros((2, 2), np.int64), np.array([3, 1])
    variables = (Variable("u", costs, nothing), Variable("v", costs, nothing + 1))
    problem = Network(variables, (Edge(0, 1, nothing),), (2, 2))
    assert is_narrow(problem)
    answer = solver("elimination").solve(problem)
    assert (answer.status, answer.objective) == (Status.OPTIMAL, 2)


def test_z3_takes_the_network_as_it_stands_where_reduction_leaves_more(
    make_mixed, truth, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = make_mixed(6, 3)

    def grown(search: Search) -> Reduced:
        return Reduced(replace(flattened(search.network), table=np.zeros(1 << 20, np.int64)))

    monkeypatch.setattr(solve_reduced, "_reduction", grown)
    assert solver("smt").solve(problem).objective == truth(problem)


@pytest.mark.parametrize("name", ["cpsat", "cpsat-plain"])
def test_a_program_is_not_built_beyond_the_time(name: str) -> None:
    rng = np.random.default_rng(0)
    nothing = np.zeros((60, 0), np.int64)
    variables = tuple(Variable(f"v{i}", rng.integers(0, 1 << 20, 60), nothing) for i in range(30))
    ends = [(u, v) for u in range(30) for v in range(u)]
    problem = Network(variables, tuple(Edge(u, v, rng.integers(0, 1 << 20, (60, 60))) for u, v in ends))
    began = time.process_time()
    answer = solver(name).solve(problem, Limits(seconds=0.5))
    assert time.process_time() - began < 5.0  # all 1.5 million pairs take some 15 s
    assert answer.status in (Status.UNKNOWN, Status.FEASIBLE) and answer.words == STOPPED


def test_z3_is_for_small_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    """What counted programs leave open, Z3 solves as a whole; if that is too large, it says so."""
    rng = np.random.default_rng(0)
    cost, use = rng.integers(0, 1 << 20, (2, 200)), rng.integers(0, 1 << 20, (2, 200, 1))
    many = tuple(Variable(f"v{i}", cost[i], use[i]) for i in range(2))
    large = Network(many, (Edge(0, 1, rng.integers(0, 1 << 20, (200, 200))),), (1 << 18,))
    backend = solver("smt")
    monkeypatch.setattr(type(backend.part_solver), "count", lambda *_: False)
    answer = backend.solve(large)
    assert (answer.status, answer.words) == (Status.FEASIBLE, "too large for Z3, or totals beyond 2^60")


@pytest.mark.parametrize("name", ["auto", "elimination", "cpsat"])
def test_capacities_that_no_float_holds(make_mixed, name: str) -> None:
    """They bind nothing, and keep no backend from adding up in floats."""
    problem = make_mixed(7, 4)
    ample, huge = (replace(problem, capacities=(most,) * len(problem.capacities)) for most in (10**12, 10**18))
    backend, expected = solver(name), solver("milp").solve(ample)
    assert backend.accepts(huge) and is_narrow(huge) and compile_network(huge).exact
    answer = backend.solve(huge)
    assert (answer.status, answer.objective) == (Status.OPTIMAL, expected.objective)
