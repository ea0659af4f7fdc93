"""Layers: solved once, however many; the memory shared out among them exactly."""

import pytest

from partita.formulation.network.checks import check_network
from partita.formulation.network.network import Chain, Evaluation, Network, evaluate
from partita.solvers import protocol
from partita.solvers.elimination.order import compile_network
from partita.solvers.protocol import Limits, Progress, Status, solver
from partita.solvers.work import spent


@pytest.mark.parametrize(("layers", "memory", "jitter"), [(1, 0.2, 0.0), (3, 0.1, 0.2), (5, 0.5, 0.05), (4, 0.02, 0.3)])
def test_counted_layers_equal_separate_layers(make_transformer, layers: int, memory: float, jitter: float) -> None:
    counted, separate = (
        solver("auto").solve(make_transformer(layers, axes=1, memory=memory, jitter=jitter, chain=chain))
        for chain in (True, False)
    )
    assert counted.status is separate.status is Status.OPTIMAL
    assert counted.objective == separate.objective


@pytest.mark.parametrize("jitter", [0.003, 0.1])
def test_counting_equals_listing(make_transformer, request, jitter: float) -> None:
    problem = make_transformer(12, axes=2, memory=0.1, jitter=jitter)
    listed = solver("elimination").solve(problem, Limits(seconds=120))
    request.getfixturevalue("only_counting")
    counted = solver("auto").solve(problem)
    assert counted.status is Status.OPTIMAL
    assert listed.bound <= counted.objective <= (listed.objective or counted.objective)


@pytest.mark.parametrize(("memory", "part"), [(100.0, "prices"), (0.2, "label lists")])
def test_the_words_say_what_proved_it(make_transformer, request, memory: float, part: str) -> None:
    problem = make_transformer(5, axes=1, memory=memory, jitter=0.1)
    solution = solver("auto").solve(problem)
    assert (solution.status, solution.words) == (Status.OPTIMAL, f"proved by {part}")
    if part != "prices":
        request.getfixturevalue("only_counting")
        counted = solver("auto").solve(problem)
        assert (counted.objective, counted.words) == (solution.objective, "proved by counting")


def test_two_chains(make_transformer) -> None:
    """A chain cut in two at a boundary is the same network."""
    whole = make_transformer(5, axes=1, memory=0.2, jitter=0.1)
    (chain,) = whole.chains
    parts = Chain(chain.boundaries[:3], chain.copies[:2]), Chain(chain.boundaries[2:], chain.copies[2:])
    halves = Network(whole.variables, whole.edges, whole.capacities, whole.constant, parts)
    check_network(halves)
    assert solver("auto").solve(halves).objective == solver("auto").solve(whole).objective


def test_infeasible_memory_is_proved(make_transformer) -> None:
    assert solver("auto").solve(make_transformer(8, axes=2, memory=-0.1)).status is Status.INFEASIBLE


def test_the_answer_is_the_same_every_time(make_transformer) -> None:
    problem = make_transformer(12, axes=2, memory=0.1, jitter=0.003)
    first, second = (solver("auto").solve(problem) for _ in range(2))
    assert first.assignment == second.assignment


def test_depth_costs_almost_nothing(make_transformer) -> None:
    """One elimination of 96 layers works only log 96 products more than one of 12."""
    work, buckets = [], []
    for layers in (12, 96):
        compiled = compile_network(make_transformer(layers, axes=2))
        buckets.append(len(compiled.buckets))
        before = spent()
        compiled.forward(compiled.tables(1, (0.1,)))
        work.append(spent() - before)
    assert buckets[1] - buckets[0] <= 4
    assert 0 < work[1] < 1.5 * work[0]


def test_depth_costs_a_whole_solve_little(make_transformer, monkeypatch) -> None:
    """96 layers take about as much work as 12 under a binding capacity; only incumbents are evaluated, each once."""
    evaluated: list[int] = []

    def counted(network: Network, assignment: tuple[int, ...]) -> Evaluation:
        evaluated.append(len(assignment))
        return evaluate(network, assignment)

    monkeypatch.setattr(protocol, "evaluate", counted)
    work = []
    for layers in (12, 96):
        seen: list[Progress] = []
        evaluated.clear()
        before = spent()
        solution = solver("auto").solve(make_transformer(layers, axes=2, memory=0.2), Limits(progress=seen.append))
        work.append(spent() - before)
        assert solution.status is Status.OPTIMAL
        assert len(evaluated) == len({p.incumbent for p in seen} - {None})
    assert 0 < work[1] < 1.5 * work[0]


def test_marginals_are_the_best_through_each_option(make_transformer) -> None:
    """Each option's marginal equals the optimum when the option is forced."""
    problem = make_transformer(2, axes=1, chain=False)
    compiled = compile_network(problem)
    slots = compiled.forward(compiled.tables(1, (0.0,)))
    through = compiled.backward(slots)
    for slot in range(0, 12, 3):
        marginal = through[slot]
        for option in range(0, len(marginal), 3):
            tables = compiled.tables(1, (0.0,))
            tables[slot] = tables[slot].copy()
            tables[slot][[i for i in range(len(marginal)) if i != option]] = float("inf")
            assert compiled.forward(tables)[-1] == marginal[option]
