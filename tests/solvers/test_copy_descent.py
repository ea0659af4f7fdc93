"""Descent: changes of single options, in all copies of a chain alike, against trying every one."""

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from partita.formulation.network.checks import check_network
from partita.formulation.network.network import Network, Switch, Variable, Window, evaluate
from partita.solvers.elimination.circuit import Circuit
from partita.solvers.elimination.copy_descent import offer_descended
from partita.solvers.elimination.order import compile_network
from partita.solvers.protocol import Limits, Search, Status, solver

from ..levels import example_count
from .test_windows import found, picks


def alike(circuit: Circuit, assignment: tuple[int, ...]) -> tuple[int, ...]:
    """The assignment in which variables that share a domain take the option of the first of them."""
    first: dict[int, int] = {}
    return tuple(first.setdefault(d, option) for d, option in zip(circuit.domain, assignment, strict=True))


def changes(circuit: Circuit, assignment: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Every assignment with another option in one domain."""
    return [
        tuple(option if e == d else x for e, x in zip(circuit.domain, assignment, strict=True))
        for d in set(circuit.domain)
        for option in range(len(circuit.network.variables[d].cost))
    ]


@settings(max_examples=example_count(60), deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
@given(st.integers(0, 10**6))
def test_no_single_change_is_better_than_what_descent_ends_at(make_network, seed: int) -> None:
    network = found(make_network, seed)
    circuit = compile_network(network)
    start = alike(circuit, picks(network, seed))
    before = evaluate(network, start)
    search = Search(network, Limits(), "test")
    better = offer_descended(circuit, start, search)
    here = start if better is None else better
    after = evaluate(network, here)
    if before.feasible:
        assert after.feasible and (after.cost < before.cost) == (better is not None)
        assert search.assignment == better
        others = (evaluate(network, other) for other in changes(circuit, here))
        assert all(other.cost >= after.cost for other in others if other.feasible)
    elif better is not None:
        assert search.objective is None or search.objective == after.cost


def layer(weights: int, capacities: tuple[int, ...]) -> Network:
    """Weights that are stored whole, or gathered: 3 of kernels or 2 of traffic each; gathered ones take a byte."""
    own = np.array([[3, 0], [0, 2]], np.int64)
    use = None if not capacities else np.array([[0], [1]], np.int64)
    variables = tuple(Variable(f"w{n}", np.zeros(2, np.int64), use) for n in range(weights))
    return Network(variables, capacities=capacities, windows=(Window(dict.fromkeys(range(weights), own), {}),))


def test_streams_are_balanced() -> None:
    network = layer(10, ())
    search = Search(network, Limits(), "test")
    offer_descended(compile_network(network), (0,) * 10, search)
    assert search.objective == 12 and sum(search.assignment or ()) == 6  # 30 at first


def test_no_change_takes_too_much_memory() -> None:
    network = layer(10, (4,))
    search = Search(network, Limits(), "test")
    offer_descended(compile_network(network), (0,) * 10, search)
    assert search.objective == 18 and sum(search.assignment or ()) == 4


def test_transient_use_that_no_capacity_counts_is_left_out() -> None:
    none = np.zeros((2, 0), np.int64)
    costs, extra = np.array([[3, 0], [4, 5]], np.int64), np.array([[0, 2], [1, 0]], np.int64)
    variables = Variable("x", costs[0], none), Variable("mode", np.zeros(2, np.int64), none)
    window = Window({0: np.array([[[1, 2]] * 2, [[0, 0]] * 2], np.int64)}, {})
    network = Network(variables, switches=(Switch(1, {0: (costs, None, extra)}, {}),), windows=(window,))
    check_network(network)
    search = Search(network, Limits(), "test")
    assert offer_descended(compile_network(network), (0, 1), search) is not None
    assert search.objective == 2  # of traffic alone, in the first mode
    assert solver("auto").solve(network, Limits(quick=True, gap=0.1)).objective == 2


def test_a_first_plan_is_balanced() -> None:
    network = layer(10, (10,))
    answer = solver("auto").solve(network, Limits(gap=0.5, quick=True))
    assert answer.status is not Status.UNKNOWN and answer.objective == 12
