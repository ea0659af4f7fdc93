"""Every backend on one battery, and beside each other: the truth by brute force, the statuses, and what limits mean."""

import json
from collections.abc import Callable
from dataclasses import replace
from math import prod
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from partita.formulation.network.checks import check_network
from partita.formulation.network.network import INFINITE, Edge, Network, Variable, evaluate
from partita.formulation.network.network_file import network_json
from partita.solvers.protocol import Limits, Progress, Status, solver, solvers
from partita.solvers.wide import form

from ..levels import example_count, some

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
    "a cost of 10^15 under three capacities": (
        Network((choice("a", [1152980074277147, 0], [[3, 1, 0], [3, 2, 4]]),), (), (3, 3, 0)),
        1152980074277147,
    ),
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
@pytest.mark.parametrize("case", some(BATTERY, 2))
def test_battery(name: str, case: str) -> None:
    problem, best = BATTERY[case]
    check_network(problem)
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
    "parallel edges beyond that, and back": Network(
        (B, B), tuple(edge(0, 1, [[a, -4], [-4, -4]]) for a in (-3 * HALF // 2, -3 * HALF // 2, 2 * HALF - 2))
    ),
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
    check_network(problem)
    answer = solver(name).solve(problem)
    if solver(name).accepts(problem) or answer.status is not Status.UNKNOWN:  # what reduction leaves may be smaller
        assert (answer.status, answer.objective) == (Status.OPTIMAL, truth(problem))


def spoiled(problem: Network, cost: int) -> Network:
    """The same where a tenth of the pairs cost so much more."""
    rng = np.random.default_rng(3)
    edges = [Edge(e.u, e.v, e.cost + np.where(rng.random(e.cost.shape) < 0.1, cost, 0), e.use) for e in problem.edges]
    return replace(problem, edges=tuple(edges))


@pytest.mark.parametrize("name", ["elimination", "cpsat"])
def test_what_floats_hold_before_reduction_is_proved(truth, name: str) -> None:
    """Sums of tables that reduction makes are beyond 2^52 here."""
    for seed in (10, 16, 17, 31):
        rng = np.random.default_rng(seed)
        count, options = int(rng.integers(4, 7)), int(rng.integers(2, 4))
        pairs = [(u, v) for u in range(count) for v in range(u + 1, count)]
        most, shape, edges = (1 << 52) // len(pairs) - 10, (options, options), []
        for u, v in pairs:
            dear = rng.random(shape) < rng.choice([0.3, 0.5, 0.7])
            edges.append(
                Edge(u, v, np.where(dear, most - rng.integers(0, most // 8, shape), rng.integers(0, most // 3, shape)))
            )
        problem = Network(tuple(choice(f"v{i}", [0] * options) for i in range(count)), tuple(edges))
        assert solver("cpsat-plain").accepts(problem)
        answer = solver(name).solve(problem, Limits(seconds=120))
        assert (answer.status, answer.objective) == (Status.OPTIMAL, truth(problem))


REDUCING = [name for name in EVERY if name != "cpsat-plain"]


@pytest.mark.parametrize("name", REDUCING)
def test_large_costs_that_the_best_does_not_pay_are_no_hindrance(make_mixed, truth, name: str) -> None:
    """21 tables of up to 2^55 are far above what floats add up."""
    problem = spoiled(make_mixed(7, 4), 1 << 55)
    best = truth(problem)
    assert best is not None and best < 1 << 20
    assert solver(name).accepts(problem) and not solver("cpsat-plain").accepts(problem)
    answer = solver(name).solve(problem)
    assert (answer.status, answer.objective, answer.bound) == (Status.OPTIMAL, best, best)


@pytest.mark.parametrize("name", ["elimination"])  # others are through before, or split the network
def test_large_costs_that_the_best_pays_leave_a_bound(
    make_mixed, truth, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if floats were exact up to 700 only: without the constant, 28 tables of up to 100 must add up to 138."""
    monkeypatch.setattr(form, "_EXACT", 700)
    problem = make_mixed(7, 4)
    answer, best = solver(name).solve(problem, Limits(seconds=5.0)), truth(problem)
    assert answer.status is Status.FEASIBLE and answer.objective is not None
    assert 562 < answer.bound < best <= answer.objective


@pytest.mark.parametrize("name", ["elimination"])
def test_reduction_tells_a_bound_at_once(make_mixed, name: str) -> None:
    seen: list[Progress] = []
    solver(name).solve(make_mixed(7, 4), Limits(progress=seen.append))
    assert (seen[0].incumbent, seen[0].bound) == (None, 562)


@pytest.mark.parametrize("name", EVERY)
def test_larger_costs_are_refused(make_mixed, name: str) -> None:
    problem = spoiled(make_mixed(7, 4), 1 << 57)
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
    [("auto", 60), ("elimination", 80), ("cpsat", 40), ("cpsat-plain", 40), ("milp", 30), ("smt", 60)],
)
def test_backends_agree_with_brute_force(make_network, truth, name: str, examples: int, rows: bool) -> None:
    @settings(max_examples=example_count(examples, 4), deadline=None)
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

    # HiGHS starts a process for each example.
    @settings(max_examples=example_count(20 if name == "milp" else 60, 4), deadline=None)
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


def test_programs_agree_on_a_network_that_no_reduction_solves(make_mixed, truth) -> None:
    problem = make_mixed(7, 4)
    answers = [solver(name).solve(problem) for name in PROGRAMS]
    assert {(a.status, a.objective, a.bound) for a in answers} == {(Status.OPTIMAL, truth(problem), truth(problem))}


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
    (tmp_path / "network.json").write_text(json.dumps(network_json(Network((A, B)))))
    assert partita("solve", tmp_path / "network.json", "--solver", "mine")[0] != 0
    monkeypatch.syspath_prepend(str(tmp_path))
    code, out, _ = partita("solve", tmp_path / "network.json", "--solver", "mine", "--json")
    answer = json.loads(out)
    assert (code, answer["source"], answer["assignment"]) == (0, "first", [0, 0])
    assert (answer["status"], answer["objective"], answer["bound"]) == ("feasible", 3, 0)


def test_all_backends_are_listed() -> None:
    assert {backend.name for backend in solvers()} >= set(EVERY)
