"""Bounds by messages and first solutions, against brute force."""

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partita.formulation.network.network import INFINITE, Edge, Network, Variable
from partita.solvers.wide.decimation import decimated, first_solution, settle
from partita.solvers.wide.form import Flat, flattened
from partita.solvers.wide.messages import Messages
from partita.solvers.wide.substitution import incidence


def random_flat(
    seed: int, variables: int = 5, capacities: int = 2, tree: bool = False, high: int = 12, pairs: bool = False
) -> Flat:
    """A small network with ties, infinities, variables of one option, and often several parts."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 4, rng.integers(1, variables + 1))

    def costs(*shape: int) -> np.ndarray:
        return np.where(rng.random(shape) < 0.15, INFINITE, rng.integers(0, high, shape))

    nodes = [Variable(str(v), costs(n), rng.integers(0, 9, (n, capacities))) for v, n in enumerate(sizes)]
    ends = [(int(rng.integers(v)), v) for v in range(1, len(sizes))]
    if not tree:
        ends = [(u, v) for v in range(len(sizes)) for u in range(v) if rng.random() < 0.6]
    edges = [
        Edge(u, v, costs(sizes[u], sizes[v]), rng.integers(0, 4, (sizes[u], sizes[v], capacities)) if pairs else None)
        for u, v in ends
    ]
    limits = tuple(int(x) for x in rng.integers(2, 5 * len(sizes) + 2, capacities))
    return flattened(Network(tuple(nodes), tuple(edges), limits, int(rng.integers(-5, 5))))


def priced(flat: Flat) -> dict[tuple[int, ...], int]:
    """Every feasible choice, and its cost."""
    choices = product(*[range(n) for n in flat.sizes])
    found = {x: flat.price(np.array(x, np.int64)) for x in choices}
    return {x: cost for x, cost in found.items() if cost is not None}


@pytest.mark.parametrize("pairs", [False, True])
@pytest.mark.parametrize("seed", range(400))
def test_bound_and_fixing(seed: int, pairs: bool) -> None:
    """No bound exceeds the optimum, at any price; no option of a solution is deleted below its cost."""
    flat = random_flat(seed, pairs=pairs)
    truth = priced(flat)
    best = min(truth.values(), default=INFINITE)
    messages = Messages(flat)
    rng = np.random.default_rng(seed)
    for _ in range(3):
        messages.climb(15, best if best < INFINITE else None)
        assert messages.bound <= best
        messages.reprice(rng.random(len(flat.limits)) * 3 - 1)
        messages.sweep(2)
        assert messages.bound <= best
    if messages.bound == INFINITE:
        return
    for x, cost in truth.items():
        assert not messages.fix(cost)[flat.start[:-1] + x].any()
    messages.delete(messages.fix(best))
    messages.sweep(3)
    assert messages.bound <= best


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 1 << 40), st.integers(1, 1 << 45), st.integers(1, 7))
def test_large_costs(seed: int, high: int, variables: int) -> None:
    """Costs up to 2^45: the grain grows where it must, and the bound stays one."""
    flat = random_flat(seed, variables=variables, high=high, capacities=1)
    messages = Messages(flat)
    messages.climb(10)
    messages.sweep(2)
    assert messages.bound <= min(priced(flat).values(), default=INFINITE)


@pytest.mark.parametrize("seed", range(300))
def test_trees(seed: int) -> None:
    """On a forest without capacities the bound is the optimum, and so is the first solution; or there is none."""
    flat = random_flat(seed, variables=6, capacities=0, tree=True)
    best = min(priced(flat).values(), default=INFINITE)
    messages = Messages(flat)
    messages.sweep(30)
    assert messages.bound == best
    if best < INFINITE:
        assert flat.price(decimated(messages)) == best
        first = np.array([np.isclose(messages.least, best, atol=1e-3)[a:b].any() for a, b in _ranges(flat)])
        assert first.all()  # what is proved of the best options is the optimum


def _ranges(flat: Flat) -> list[tuple[int, int]]:
    return list(zip(flat.start[:-1].tolist(), flat.start[1:].tolist(), strict=True))


@pytest.mark.parametrize("seed", range(100))
def test_bounds_rise(seed: int) -> None:
    """With prices unchanged no sweep lowers the value by more than rounding to the grain."""
    flat = random_flat(seed, variables=8)
    messages = Messages(flat)
    messages.reprice(np.array([0.3, 0.7]))
    before = messages.sweep()
    for _ in range(10):
        after = messages.sweep()
        assert after >= before - 1e-3
        before = after


def test_capacity_is_priced() -> None:
    """Two of four bytes may be saved, at 3 or 5 each: the bound is the linear program's, 3."""
    saves = [Variable(str(cost), np.array([0, cost]), np.array([[2], [0]])) for cost in (3, 5)]
    messages = Messages(flattened(Network(tuple(saves), (), (2,))))
    messages.sweep()
    assert messages.bound == 0
    messages.climb(200, 3)
    assert messages.bound == 3
    weight, loads = messages.shares()
    assert math.isclose(weight.sum(), 2)
    assert loads.shape == (1,)


def test_gradient_of_the_bound() -> None:
    """What `shares` says is used is how the bound changes with a price, where it is smooth."""
    checked = 0
    for seed in range(40):
        flat = random_flat(seed, variables=6, capacities=1, high=1000)
        messages = Messages(flat)
        messages.reprice(np.array([0.37]))
        if math.isinf(messages.sweep(3)):
            continue
        there, back = messages.copy(), messages.copy()
        for state, price in ((messages, 0.37), (there, 0.37 + 2**-10), (back, 0.37 - 2**-10)):
            state.reprice(np.array([price]))
            state._step()
        slopes = (there.value - messages.value) * 2**10, (messages.value - back.value) * 2**10
        if abs(slopes[0] - slopes[1]) < 1e-2:
            assert messages.shares()[1][0] - flat.limits[0] == pytest.approx(slopes[0], abs=0.05)
            checked += 1
    assert checked > 20


@pytest.mark.parametrize("seed", range(200))
def test_decimation(seed: int) -> None:
    """A choice of every variable, the same each time; without infinite costs, a solution of at least the bound."""
    flat = random_flat(seed, variables=7, capacities=0)
    messages = Messages(flat)
    messages.sweep(5)
    choice = decimated(messages, 0.3)
    assert ((choice >= 0) & (choice < flat.sizes)).all()
    assert np.array_equal(choice, decimated(messages, 0.3))
    price = flat.price(choice)
    assert price is None or price >= messages.bound


def test_first_solution_heeds_capacities() -> None:
    """Twenty items that must save half of their bytes: found feasible by dearer prices, near the bound."""
    rng = np.random.default_rng(1)
    saves = [Variable(str(v), np.array([0, c]), np.array([[10], [0]])) for v, c in enumerate(rng.integers(90, 110, 20))]
    edges = [Edge(v, v + 1, rng.integers(0, 9, (2, 2))) for v in range(19)]
    flat = flattened(Network(tuple(saves), tuple(edges), (100,)))
    messages = Messages(flat)
    messages.climb(200)
    choice, cost = first_solution(messages, 0.1)
    assert cost is not None and cost == flat.price(choice)
    assert messages.bound <= cost <= 1.3 * messages.bound


@pytest.mark.parametrize("seed", range(200))
def test_first_solution(seed: int) -> None:
    """What is returned as a solution is one."""
    flat = random_flat(seed, variables=7)
    messages = Messages(flat)
    messages.climb(20)
    choice, cost = first_solution(messages, 0.3)
    assert cost == flat.price(choice)
    assert cost is None or cost >= messages.bound


def test_decimation_avoids_what_is_forbidden() -> None:
    """A ring whose cheap options have no partner around it: refuted one by one, the dear ones are left."""
    n = 7
    nodes = tuple(Variable(str(v), np.array([0, 0, 9]), np.zeros((3, 0), np.int64)) for v in range(n))
    turn = np.full((3, 3), INFINITE)
    turn[0, 1] = turn[1, 0] = turn[2, 2] = 0  # two colours alternate, which an odd ring does not allow
    flat = flattened(Network(nodes, tuple(Edge(v, (v + 1) % n, turn) for v in range(n))))
    messages = Messages(flat)
    messages.sweep(5)
    assert messages.bound <= 9 * n
    assert flat.price(decimated(messages)) == 9 * n


def test_infeasible() -> None:
    """Without a partner for any option the bound is infinite."""
    nodes = tuple(Variable(v, np.zeros(2, np.int64), np.zeros((2, 0), np.int64)) for v in "ab")
    flat = flattened(Network(nodes, (Edge(0, 1, np.full((2, 2), INFINITE)),)))
    messages = Messages(flat)
    messages.sweep()
    assert messages.bound == INFINITE


def test_what_settles_a_long_path_ends() -> None:
    """Each of its variables loses an option to the one before, and is looked at once."""
    same = np.array([[0, INFINITE], [INFINITE, 0]])
    options = np.array([0, 1]), np.zeros((2, 0), np.int64)
    variables = tuple(Variable(f"v{i}", *options) for i in range(300))
    path = Network(variables, tuple(Edge(i, i + 1, same) for i in range(299)))
    flat = flattened(path)
    alive, best = np.ones(600, np.bool_), np.zeros(300, np.int64)
    assert settle(flat.pairs, incidence(flat), alive, best, np.array([0]))
    assert alive.reshape(300, 2).tolist() == [[True, False]] * 300
