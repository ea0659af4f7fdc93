"""What is kept of a solver's answers: sound whatever was asked before, the same for the same question."""

from __future__ import annotations

import math
import pickle
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

import partita
from partita.codegen.planner.problem import MOST_WORK
from partita.formulation.network.network import INFINITE, Chain, Edge, Network, Switch, Variable, Window, evaluate
from partita.formulation.placement.placement import distinct, placements
from partita.formulation.search_space import SearchSpace
from partita.model.capture.capture import capture
from partita.model.capture.load import load_module
from partita.model.training import Training
from partita.solvers.cache.cached_solver import Cached
from partita.solvers.cache.digest import digest, solve_key
from partita.solvers.cache.store import FILE, Store
from partita.solvers.protocol import INTERRUPTED, NO_LIMITS, STOPPED, Limits, Progress, Solution, Status, solver
from partita.solvers.search.planning_problem import PlanningProblem
from partita.solvers.search.result import SearchResult
from partita.solvers.search.search import search


def table(*numbers: int) -> np.ndarray:
    return np.array(numbers, dtype=np.int64)


def choice(name: str, *cost: int) -> Variable:
    return Variable(name, table(*cost), np.zeros((len(cost), 1), np.int64))


SMALL = Network(  # costs 2 to 15
    (choice("a", 5, 1), choice("b", 4, 3)), (Edge(0, 1, np.array([[0, 6], [9, 3]], np.int64)),), (8,), constant=-5
)
BEST, WORST = (1, 1), (1, 0)


class Scripted:
    """Answers what it is told to, in order, and remembers what it was asked."""

    name = "scripted"

    def __init__(self, *answers: Solution) -> None:
        self.answers, self.asked = list(answers), list[Limits]()

    def accepts(self, network: Network) -> bool:
        return True

    def solve(self, network: Network, limits: Limits = NO_LIMITS) -> Solution:
        self.asked.append(limits)
        return self.answers.pop(0)


def answer(assignment: tuple[int, ...] | None, bound: int, words: str = "") -> Solution:
    """Of the small network."""
    objective = None if assignment is None else evaluate(SMALL, assignment).cost
    status = Status.FEASIBLE if objective is not None else Status.UNKNOWN
    if objective == bound:
        status = Status.OPTIMAL
    if bound >= INFINITE:
        status = Status.INFEASIBLE
    return Solution(status, assignment, objective, bound, 0.5, "scripted", words)


def told(found: Solution) -> tuple[str, tuple[int, ...] | None, int]:
    return found.status.value, found.assignment, found.bound


# What is enough


def test_a_proof_is_enough_for_every_question() -> None:
    cached = Cached(Scripted(answer(BEST, 2)), Store())
    for limits in (Limits(), Limits(gap=0.5), Limits(cutoff=2), Limits(seconds=1e-9), Limits(quick=True)):
        assert told(cached.solve(SMALL, limits)) == ("optimal", BEST, 2)
    assert cached.kept == 4


def test_the_same_question_has_the_same_answer() -> None:
    """Though a better one is known by then."""
    cached = Cached(Scripted(answer(WORST, 6, "first"), answer(BEST, 2, "second")), Store())
    first, second = cached.solve(SMALL, Limits(gap=0.5)), cached.solve(SMALL)
    again = [cached.solve(SMALL, limits) for limits in (Limits(gap=0.5), Limits())]
    assert [replace(x, seconds=0.0) for x in again] == [replace(x, seconds=0.0) for x in (first, second)]


def test_a_looser_answer_is_where_a_tighter_question_begins() -> None:
    """It is asked what is better; that there is nothing proves it."""
    scripted = Scripted(answer(WORST, 6), answer(None, 9))
    cached = Cached(scripted, Store())
    assert told(cached.solve(SMALL, Limits(gap=0.5))) == ("feasible", WORST, 6)
    assert told(cached.solve(SMALL, Limits(gap=0.4))) == ("feasible", WORST, 6)  # kept: close enough
    assert told(cached.solve(SMALL, Limits(cutoff=50))) == ("optimal", WORST, 9)
    assert [limits.cutoff for limits in scripted.asked] == [None, 9] and cached.kept == 1


def test_what_is_known_only_gets_better() -> None:
    scripted = Scripted(answer(BEST, 1), answer(None, 0), answer(WORST, 1))
    cached = Cached(scripted, Store())
    found = [cached.solve(SMALL, Limits(gap=gap)) for gap in (0.9, 0.1, 0.0)]
    assert [told(x) for x in found] == [("feasible", BEST, 1)] * 3
    assert [limits.cutoff for limits in scripted.asked] == [None, 2, 2]


def test_more_time_is_more_time() -> None:
    """What the time ended is enough for as much of it, and where the next begins."""
    scripted = Scripted(answer(WORST, 1, STOPPED), answer(BEST, 2))
    cached = Cached(scripted, Store())
    for seconds in (10.0, 10.0, 5.0):
        assert told(cached.solve(SMALL, Limits(seconds))) == ("feasible", WORST, 1)
    assert told(cached.solve(SMALL, Limits(20.0))) == ("optimal", BEST, 2)
    assert [limits.cutoff for limits in scripted.asked] == [None, 9] and scripted.asked[1].seconds <= 20.0


def test_what_an_interrupt_ended_had_little_time() -> None:
    scripted = Scripted(answer(WORST, 1, INTERRUPTED), answer(BEST, 2))
    cached = Cached(scripted, Store())
    assert [cached.solve(SMALL, Limits(10.0)).words for _ in range(2)] == [INTERRUPTED, ""]
    assert len(scripted.asked) == 2


def test_what_is_wanted_quickly_is_not_sought_twice() -> None:
    scripted = Scripted(answer(WORST, 1, "only prices"), answer(BEST, 2))
    cached = Cached(scripted, Store())
    for seconds in (10.0, 20.0):
        assert told(cached.solve(SMALL, Limits(seconds, quick=True))) == ("feasible", WORST, 1)
    assert told(cached.solve(SMALL, Limits(20.0))) == ("optimal", BEST, 2)


def test_no_solution_is_kept_but_none_below_a_cutoff_says_no_more() -> None:
    cached = Cached(Scripted(answer(None, INFINITE)), Store())
    assert told(cached.solve(SMALL)) == told(cached.solve(SMALL, Limits(gap=0.1))) == ("infeasible", None, INFINITE)
    cached = Cached(Scripted(answer(None, INFINITE), answer(WORST, 5)), Store())
    assert cached.solve(SMALL, Limits(cutoff=5)).status is Status.INFEASIBLE
    assert told(cached.solve(SMALL, Limits(cutoff=4))) == ("unknown", None, 5)
    assert told(cached.solve(SMALL, Limits(gap=0.5))) == ("feasible", WORST, 5)


@pytest.mark.parametrize(
    ("wrong", "what"),
    [
        ({"objective": 8}, "a cost"),
        ({"bound": 10, "proved": 10}, "a bound"),
        ({"assignment": [1, 2]}, "an option that there is not"),
        ({"assignment": [1]}, "a variable missing"),
        ({"assignment": [0, 0]}, "another's cost"),
    ],
)
@pytest.mark.parametrize("limits", [Limits(), Limits(gap=0.7)], ids=["the same", "another question"])
def test_what_does_not_hold_is_forgotten(wrong: dict[str, object], what: str, limits: Limits) -> None:
    store, scripted = Store(), Scripted(answer(WORST, 9), answer(BEST, 2))
    cached = Cached(scripted, store)
    cached.solve(SMALL)
    key = solve_key(scripted, SMALL)
    for part, record in store.read(key).items():
        store.write(key, part, {**record, **wrong})
    assert told(cached.solve(SMALL, limits)) == ("optimal", BEST, 2)
    assert scripted.asked[-1].cutoff is None and len(store.read(key)) == 1


def test_news_never_fall_behind_what_is_known() -> None:
    news: list[Progress] = []

    class Chatty(Scripted):
        def solve(self, network: Network, limits: Limits = NO_LIMITS) -> Solution:
            if limits.progress is not None:
                limits.progress(Progress(None, -3, 0.0))
                limits.progress(Progress(2, 2, 0.0))
            return super().solve(network, limits)

    cached = Cached(Chatty(answer(WORST, 1), answer(BEST, 2)), Store())
    cached.solve(SMALL, Limits(gap=0.99))
    cached.solve(SMALL, Limits(progress=news.append))
    cached.solve(SMALL, Limits(progress=news.append))
    assert [(p.incumbent, p.bound) for p in news] == [(9, 1), (2, 2), (2, 2)]


def test_a_store_that_is_gone_changes_nothing(tmp_path: Path) -> None:
    """The folder is removed while it is in use; then there is a file in its place."""
    words: list[str] = []
    store = Store(tmp_path / "cache", warn=words.append)
    cached = Cached(Scripted(answer(WORST, 1), answer(BEST, 1), answer(BEST, 2)), store)
    cached.solve(SMALL, Limits(gap=0.99))
    for path in (tmp_path / "cache").iterdir():
        path.unlink()
    (tmp_path / "cache").rmdir()
    (tmp_path / "cache").write_text("")
    assert [cached.solve(SMALL, Limits(gap=gap)).bound for gap in (0.5, 0.0, 0.0)] == [1, 2, 2]
    assert len(words) <= 1


@pytest.mark.parametrize("name", ["auto", "elimination", "cpsat"])
def test_any_questions_in_any_order_are_answered_soundly(
    name: str, make_network: Callable[[int], Network], truth: Callable[[Network], int | None], tmp_path: Path
) -> None:
    """As close as without; no assignment is dearer than it says, no bound above the truth."""
    backend, draw = solver(name), random.Random(7)
    for seed in range(60):
        network = make_network(seed)
        if math.prod(len(v.cost) for v in network.variables) > 500 or not backend.accepts(network):
            continue
        best, store = truth(network), Store(tmp_path)
        for _ in range(6):
            cutoff = draw.choice((None, None, (best or 0) + draw.randint(-3, 20)))
            limits = Limits(math.inf, cutoff, gap=draw.choice((0.0, 0.0, 0.1, 0.5)), quick=draw.random() < 0.3)
            found = Cached(backend, store).solve(network, limits)
            assert found.bound <= (INFINITE if best is None else best) and (found.gap is None or found.gap >= 0)
            if found.assignment is not None:
                verdict = evaluate(network, found.assignment)
                assert verdict.feasible and verdict.cost == found.objective
            if not limits.quick:
                assert found.bound >= limits.ceiling(found.objective) or found.status is Status.INFEASIBLE
        store.close()


# What a network is


def test_the_digest_is_of_what_a_network_says() -> None:
    assert {f.name for f in fields(Variable)} == {"name", "cost", "use", "rows"}  # one more belongs into the digest
    assert {f.name for f in fields(Edge)} == {"u", "v", "cost", "use"}
    assert {f.name for f in fields(Switch)} == {"variable", "variables", "edges"}
    assert {f.name for f in fields(Window)} == {"variables", "edges"}
    a, b, c = (choice(name, 5, 1) for name in "abc")
    link, use = np.array([[0, 2], [3, 4]], np.int64), np.ones((2, 2, 1), np.int64)
    base = Network((a, b, c), (Edge(0, 1, link), Edge(1, 2, link)), (8,), 3)
    chained = replace(base, chains=(Chain((0, 2), ((1,),)),))
    renamed = replace(base, variables=(replace(a, name="x"), replace(b, cost=a.cost.copy()), c))
    transposed = np.array([[0, 3], [2, 4]], np.int64).T
    assert digest(base) == digest(renamed) == digest(replace(base, edges=(Edge(0, 1, transposed), Edge(1, 2, link))))
    others = [
        chained,
        replace(base, capacities=(9,)),
        replace(base, capacities=()),
        replace(base, constant=4),
        replace(base, variables=(a, b, choice("c", 5, 2))),
        replace(base, variables=(a, b, replace(c, use=np.ones((2, 1), np.int64)))),
        replace(base, variables=(a, b, replace(c, rows=np.array([[0, 1]], np.int64)))),
        replace(base, edges=(Edge(1, 0, link), Edge(1, 2, link))),
        replace(base, edges=(Edge(0, 1, link.T), Edge(1, 2, link))),
        replace(base, edges=(Edge(0, 1, link), Edge(1, 2, link, use))),
        replace(base, edges=(Edge(0, 1, link),)),
        replace(base, variables=(a, b, c, a)),
        replace(chained, chains=(Chain((2, 0), ((1,),)),)),
        replace(base, switches=(Switch(0, {1: (link, None, None)}, {}),)),
        replace(base, switches=(Switch(0, {1: (link, None, link)}, {}),)),
        replace(base, switches=(Switch(0, {}, {1: (np.stack([link, link]), None, None)}),)),
        replace(base, windows=(Window({1: link}, {}),)),
        replace(base, windows=(Window({2: link}, {}),)),
        replace(base, windows=(Window({1: link}, {}), Window({2: link}, {}))),
        replace(base, windows=(Window({1: link, 2: link}, {}),)),
        replace(base, windows=(Window({}, {1: np.stack([link, link])}),)),
    ]
    assert len({digest(network) for network in (base, *others)}) == 1 + len(others)


def test_answers_are_of_one_solver() -> None:
    assert len({solve_key(solver(name), SMALL) for name in ("auto", "elimination", "cpsat")}) == 3


def test_the_digest_of_many_layers_is_quick(make_transformer: Callable[..., Network]) -> None:
    network = make_transformer(80, axes=2)
    digest(network)
    began = time.process_time()
    digest(network)
    assert time.process_time() - began < 0.05


# Searches


@pytest.fixture(scope="module")
def problem() -> PlanningProblem:
    module, inputs = load_module("gpt2", small=True, sequence=None)
    graph, machine = capture(module, inputs, batch=12), partita.Machine.adhoc((2, 2))
    places = distinct(placements(machine.hierarchy))
    return PlanningProblem(
        graph,
        machine,
        Training(12, "float32", "adamw"),
        places,
        (1, 2, 3, 4, 6, 12),
        SearchSpace(recompute="none"),
        most_work=MOST_WORK,
    )


def plan_of(found: SearchResult) -> object:
    assert found.encoding is not None
    place = found.encoding.placement, found.encoding.micro_batches
    return found.status, found.objective, found.bound, found.solved, place, found.assignment


SEARCHER = """
import pickle, sys
from partita.solvers.cache.cached_solver import Cached
from partita.solvers.cache.store import Store
from partita.solvers.protocol import solver
from partita.solvers.search.search import search
with open(sys.argv[1], "rb") as file:
    problem = pickle.load(file)
backend = Cached(solver("auto"), Store(sys.argv[2]))
print("ready", flush=True)
found = search(problem, backend)
print(found.objective, flush=True)
"""


@pytest.fixture
def searcher(problem: PlanningProblem, tmp_path: Path) -> Iterator[Callable[[], subprocess.Popen[str]]]:
    asked, running = tmp_path / "question", list[subprocess.Popen[str]]()
    asked.write_bytes(pickle.dumps(problem))

    def start() -> subprocess.Popen[str]:
        command = [sys.executable, "-c", SEARCHER, str(asked), str(tmp_path)]
        running.append(
            subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                text=True,
            )
        )
        assert running[-1].stdout is not None and running[-1].stdout.readline() == "ready\n"
        return running[-1]

    yield start
    for process in running:
        process.kill()
        process.wait()


def test_a_search_killed_at_any_time_goes_on_to_the_same_plan(
    problem: PlanningProblem, searcher: Callable[[], subprocess.Popen[str]], tmp_path: Path
) -> None:
    backend = solver("auto")
    search(problem, backend)
    began = time.perf_counter()
    undisturbed = search(problem, backend)
    whole, draw = time.perf_counter() - began, random.Random(0)
    for share in (0.4, 0.9):
        process = searcher()
        time.sleep(whole * share * (0.8 + 0.4 * draw.random()))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        with sqlite3.connect(tmp_path / FILE) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        connection.close()
    others = [searcher(), searcher()]  # at once, beside this one
    resumed = search(problem, Cached(backend, Store(tmp_path)))
    assert {int(process.communicate()[0]) for process in others} == {undisturbed.objective}
    again = Cached(backend, Store(tmp_path))
    repeated = search(problem, again)
    assert plan_of(undisturbed) == plan_of(resumed) == plan_of(repeated)
    assert again.kept == repeated.solved and repeated.solving < undisturbed.solving
