"""Every backend on one battery, and beside each other: the truth by brute force, the statuses, and what limits mean."""

import json
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from math import prod
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from partita.formulation.network import INFINITE, Edge, Network, Variable, evaluate
from partita.solvers import elimination, smt
from partita.solvers.flat import form
from partita.solvers.flat.form import flattened
from partita.solvers.flat.substitution import Reduced
from partita.solvers.order import TooWideError, compile_network
from partita.solvers.protocol import (
    INTERRUPTED,
    STOPPED,
    Limits,
    Progress,
    Search,
    Solution,
    Status,
    solver,
    solvers,
)
from partita.solvers.smt import SMT

Run = Callable[..., tuple[int, str, str]]

PROGRAMS = ("cpsat", "cpsat-plain", "milp", "smt")
EVERY = ("elimination", "auto", *PROGRAMS)
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
    answer = solver(name).solve(problem)
    if solver(name).accepts(problem) or answer.status is not Status.UNKNOWN:  # what reduction leaves may be smaller
        assert (answer.status, answer.objective) == (Status.OPTIMAL, truth(problem))


def spoiled(problem: Network, cost: int) -> Network:
    """The same where a tenth of the pairs cost so much more."""
    rng = np.random.default_rng(3)
    edges = [Edge(e.u, e.v, e.cost + np.where(rng.random(e.cost.shape) < 0.1, cost, 0), e.use) for e in problem.edges]
    return replace(problem, edges=tuple(edges))


REDUCING = [name for name in EVERY if name != "cpsat-plain"]


@pytest.mark.parametrize("name", REDUCING)
def test_large_costs_that_the_best_does_not_pay_are_no_hindrance(truth, name: str) -> None:
    """21 tables of up to 2^55 are far above what floats add up."""
    problem = spoiled(mixed(7, 4), 1 << 55)
    best = truth(problem)
    assert best is not None and best < 1 << 20
    assert solver(name).accepts(problem) and not solver("cpsat-plain").accepts(problem)
    answer = solver(name).solve(problem)
    assert (answer.status, answer.objective, answer.bound) == (Status.OPTIMAL, best, best)


@pytest.mark.parametrize("name", [name for name in REDUCING if name != "auto"])  # which is through before
def test_large_costs_that_the_best_pays_leave_a_bound(truth, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if floats were exact up to 700 only: without the constant, 28 tables of up to 100 must add up to 138."""
    monkeypatch.setattr(form, "_EXACT", 700)
    problem = mixed(7, 4)
    answer, best = solver(name).solve(problem, Limits(seconds=2.0)), truth(problem)
    assert answer.status is Status.FEASIBLE and answer.objective is not None
    assert 562 < answer.bound < best <= answer.objective


@pytest.mark.parametrize("name", [name for name in REDUCING if name != "auto"])
def test_reduction_tells_a_bound_at_once(name: str) -> None:
    seen: list[Progress] = []
    solver(name).solve(mixed(7, 4), Limits(progress=seen.append))
    assert (seen[0].incumbent, seen[0].bound) == (None, 562)


@pytest.mark.parametrize("name", EVERY)
def test_larger_costs_are_refused(name: str) -> None:
    problem = spoiled(mixed(7, 4), 1 << 57)
    assert not solver(name).accepts(problem)
    answer = solver(name).solve(problem)
    assert (answer.status, answer.assignment) == (Status.UNKNOWN, None)


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
    ("name", "examples"),
    [("auto", 60), ("elimination", 120), ("cpsat", 60), ("cpsat-plain", 60), ("milp", 200), ("smt", 120)],
)
def test_backends_agree_with_brute_force(make_network, truth, name: str, examples: int, rows: bool) -> None:
    @settings(max_examples=examples, deadline=None)
    @given(st.integers(0, 10**6))
    def agree(seed: int) -> None:
        problem = make_network(seed)
        if rows:
            problem = with_rows(problem, seed)
        assume(prod(len(v.cost) for v in problem.variables) <= 600)
        assume(solver(name).accepts(problem))
        best, solution = truth(problem), solver(name).solve(problem)
        if name == "elimination" and solution.status in (Status.UNKNOWN, Status.FEASIBLE):
            assert "label lists" in solution.words  # they may grow too long
            assert solution.bound <= (INFINITE if best is None else best)
            assert solution.objective is None or (best is not None and best <= solution.objective)
            return
        assert solution.objective == best
        assert solution.status is (Status.INFEASIBLE if best is None else Status.OPTIMAL)

    agree()


@pytest.mark.parametrize("name", EVERY)
def test_cutoff(make_network, truth, name: str) -> None:
    """A solution below the cutoff is found and proved; else the search ends with a valid bound that reaches it."""

    @settings(max_examples=60, deadline=None)
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


def lattice(rows: int, columns: int, options: int) -> Network:
    """A grid of two options each; each has a leaf that decides it by its parity, and costs more the less it uses."""
    rng, count = np.random.default_rng(0), rows * columns
    inner = [choice(f"v{i}", rng.integers(0, 50, 2).tolist(), [[0], [0]]) for i in range(count)]
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


def test_elimination_takes_a_network_as_it_stands_where_that_is_less_work(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = mixed(5, 3)
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
    assert not solver("elimination").accepts(problem)
    answer = solver("elimination").solve(problem)
    assert answer.status is Status.UNKNOWN and "too wide" in answer.words and answer.bound > 0


def test_z3_takes_the_network_as_it_stands_where_reduction_leaves_more(truth, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = mixed(6, 3)

    def grown(search: Search) -> Reduced:
        return Reduced(replace(flattened(search.network), table=np.zeros(1 << 20, np.int64)))

    monkeypatch.setattr(smt, "reduction", grown)
    assert solver("smt").solve(problem).objective == truth(problem)


@pytest.mark.parametrize("name", ["cpsat", "cpsat-plain"])
def test_a_program_is_not_built_beyond_the_time(name: str) -> None:
    rng = np.random.default_rng(0)
    nothing = np.zeros((60, 0), np.int64)
    variables = tuple(Variable(f"v{i}", rng.integers(0, 1 << 20, 60), nothing) for i in range(30))
    ends = [(u, v) for u in range(30) for v in range(u)]
    problem = Network(variables, tuple(Edge(u, v, rng.integers(0, 1 << 20, (60, 60))) for u, v in ends))
    began = time.perf_counter()
    answer = solver(name).solve(problem, Limits(seconds=0.5))
    assert time.perf_counter() - began < 5.0  # all 1.5 million pairs take some 15 s
    assert answer.status in (Status.UNKNOWN, Status.FEASIBLE) and answer.words == STOPPED


SITE = """
from partita.formulation.network import Network
from partita.solvers.protocol import Limits, Search, Solution, Solver


class First:
    name = "first"

    def accepts(self, network: Network) -> bool:
        return True

    def solve(self, network: Network, limits: Limits = Limits()) -> Solution:
        search = Search(network, limits, self.name)
        search.offer((0,) * len(network.variables))
        search.raise_bound(0)
        return search.finish()
"""


def test_a_backend_of_one_file_solves_by_its_name(
    partita: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An installed package with the class of docs/solvers.md and an entry point, and nothing else."""
    info = tmp_path / "my_package-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-package\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[partita.solvers]\nmine = my_solver:First\n")
    (tmp_path / "my_solver.py").write_text(SITE)
    (tmp_path / "network.json").write_text(json.dumps(Network((A, B)).to_json()))
    assert partita("solve", tmp_path / "network.json", "--solver", "mine")[0] != 0
    monkeypatch.syspath_prepend(str(tmp_path))
    code, out, _ = partita("solve", tmp_path / "network.json", "--solver", "mine", "--json")
    answer = json.loads(out)
    assert (code, answer["source"], answer["assignment"]) == (0, "first", [0, 0])
    assert (answer["status"], answer["objective"], answer["bound"]) == ("feasible", 3, 0)


def test_all_backends_are_listed() -> None:
    assert {backend.name for backend in solvers()} >= set(EVERY)


def test_z3_is_for_small_networks() -> None:
    tables = np.zeros((200, 200), np.int64)
    many = tuple(choice(f"v{i}", [0] * 200) for i in range(2))
    large = Network(many, (Edge(0, 1, tables),))
    assert not SMT().accepts(large)
    assert SMT().solve(large).status is Status.UNKNOWN
