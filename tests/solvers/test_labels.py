"""Label lists: the half-way meeting and the sifting of pairs against plain joins."""

from dataclasses import replace
from math import inf
from unittest import mock

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from partita.formulation.network.network import Network, Variable, evaluate
from partita.solvers.elimination import labels
from partita.solvers.elimination.label_search import list_within
from partita.solvers.elimination.labels import Listing
from partita.solvers.elimination.memory_price import at_price, sweep
from partita.solvers.elimination.order import compile_network
from partita.solvers.protocol import NO_LIMITS, Search, TooManyError


def listed(network: Network, price: float, slack: int) -> Listing | None:
    """The ways of a feasible `network` within a slack of the bound at one price."""
    circuit = compile_network(network)
    at = at_price(circuit, (price,))
    return list_within(circuit, at, circuit.backward(at.slots), at.bound + slack, 1 << 20, inf)


def fastest(network: Network, listing: Listing | None) -> int | None:
    """The cost of the fastest label of the root that fits, checked by what it decodes to."""
    if listing is None:
        return None
    root = listing.slots[listing.circuit.root]
    fits = np.flatnonzero(root.use[:, 0] <= network.capacities[0])
    if len(fits) == 0:
        return None
    label = fits[np.argmin(root.time[fits])]
    verdict = evaluate(network, listing.decode(int(label)))
    assert (verdict.cost, verdict.use) == (network.constant + root.time[label], tuple(root.use[label]))
    return verdict.cost


def plainly(network: Network, price: float, slack: int) -> Listing | None:
    """The same with every join formed: neither meeting nor sifting."""
    with mock.patch.object(labels, "_stem", lambda circuit: -1), mock.patch.object(labels, "_MANY", 1 << 60):
        return listed(network, price, slack)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
@given(st.integers(0, 10**6), st.sampled_from([0.0, 0.7]), st.sampled_from([3, 10**12]))
def test_meeting_finds_what_the_plain_join_finds(make_network, seed: int, price: float, slack: int) -> None:
    network = make_network(seed)
    assume(len(network.capacities) == 1)
    assume(at_price(compile_network(network), (price,)).total < np.inf)
    full = fastest(network, plainly(network, price, slack))
    with mock.patch.object(labels, "_MANY", 0):
        half = fastest(network, listed(network, price, slack))
    if half != full:  # beyond the slack either may miss a solution
        reach = at_price(compile_network(network), (price,)).bound + slack
        assert min(cost for cost in (half, full) if cost is not None) > reach


@pytest.mark.parametrize("layers", [5, 6])
@pytest.mark.parametrize("tied", [True, False])
def test_the_lists_of_two_halves_meet(make_transformer, layers: int, tied: bool) -> None:
    """The last join of a chain is not formed, and its best pair is the best of the join that is."""
    network = make_transformer(layers, axes=1, memory=0.2, jitter=0.1)
    if not tied:  # the head shares the embedding's weight: else both halves also meet there
        edges = tuple(e for e in network.edges if e.v != 0 or e.u < network.chains[0].boundaries[-1])
        assert len(edges) == len(network.edges) - 1
        network = replace(network, edges=edges)
    best = sweep(compile_network(network), Search(network, NO_LIMITS, "test"))
    assert best is not None
    (price,), slack = best.price, int(best.total) // 300
    met, plain = listed(network, price, slack), plainly(network, price, slack)
    assert met is not None and plain is not None
    assert fastest(network, met) == fastest(network, plain) is not None
    last = labels._stem(met.circuit)
    assert len(met.slots[last]) == 1 < len(plain.slots[last])
    middle = network.chains[0].boundaries[layers - layers // 2]
    assert tied or met.circuit.buckets[last - len(met.circuit.factors)].variable == middle


def test_parts_without_an_edge_between_them_meet() -> None:
    """Of parts that only share the capacity the last join is not formed either: its pairs would be far too many."""
    rng = np.random.default_rng(0)
    parts = [(np.sort(rng.integers(0, 1 << 20, 300))[::-1], np.sort(rng.integers(0, 1 << 20, 300))) for _ in range(2)]
    variables = tuple(Variable(f"v{k}", time.copy(), use[:, None]) for k, (time, use) in enumerate(parts))
    network = Network(variables, (), capacities=(1 << 20,))
    circuit = compile_network(network)
    at = at_price(circuit, (1.0,))
    given = circuit, at, circuit.backward(at.slots), circuit.max_cost, 300, inf
    (time, use), (more, again) = parts
    fits = use[:, None] + again[None] <= 1 << 20
    assert fastest(network, list_within(*given)) == (time[:, None] + more[None])[fits].min()
    with mock.patch.object(labels, "_stem", lambda circuit: -1), pytest.raises(TooManyError):
        list_within(*given)


def test_prices_keep_their_digits_beside_options_that_cost_too_much() -> None:
    """The sum of the largest costs, which no solution comes near, says nothing of how fine a price must be."""
    costs, uses = np.array([0, 3, 1 << 50], np.int64), np.array([[8], [0], [0]], np.int64)
    network = Network(tuple(Variable(f"v{k}", costs, uses) for k in range(3)), (), capacities=(8,))
    circuit = compile_network(network)
    (price,) = circuit.exact_price((0.375,))
    assert circuit.exact and price == 0.375  # 3 ns for 8 bytes
    assert at_price(circuit, (0.375,)).bound == 6 == evaluate(network, (0, 1, 1)).cost
