"""Counts of copies at several prices, and what is outside of chains, against brute force."""

from itertools import product
from math import inf, prod

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from partita.formulation.network.checks import check_network
from partita.formulation.network.network import INFINITE, Chain, Edge, Network, Variable, evaluate
from partita.solvers.elimination import copy_counts, copy_outside, transient_memory
from partita.solvers.elimination.copy_costs import CopyCosts, mode_of
from partita.solvers.elimination.copy_counts import raise_counts
from partita.solvers.elimination.copy_mixtures import Mixtures
from partita.solvers.elimination.copy_outside import Outside
from partita.solvers.elimination.copy_prices import FoundCopies, Kind
from partita.solvers.elimination.order import compile_network
from partita.solvers.elimination.transient_relaxation import groups_of, relax_transient
from partita.solvers.elimination.window_relaxation import Cuts, price_windows
from partita.solvers.protocol import Limits, Search

from ..levels import example_count
from .test_switches import switched
from .test_windows import found, layers_in_two_modes, picks, windowed


def counted_at_prices(network: Network, gap: float = 0.0) -> tuple[Search, bool]:
    """A search after prices and counts of copies, and whether these apply."""
    groups, search = groups_of(network), Search(network, Limits(gap=gap), "counts")
    circuit = compile_network(network)
    relaxed = relax_transient(circuit, groups) if groups else transient_memory._without_extra(circuit)
    priced = price_windows(relaxed, Search(network, Limits(), "prices"))
    return search, priced is not None and raise_counts(priced, groups, search, relaxed.max_cost)


@settings(max_examples=example_count(60, every=15), deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
@given(st.integers(0, 10**6))
@example(3141)  # of negative costs
def test_counts_of_copies_at_several_prices_bound_the_optimum(make_network, truth, seed: int) -> None:
    network = found(make_network, seed, seed % 3, binds=True)
    assume(network.chains and network.capacities)
    search, counted = counted_at_prices(network, (0.0, 0.05)[seed // 3 % 2])
    assume(counted)
    best = truth(network)
    assert best is not None or search.objective is None
    assert best is None or search.bound <= best <= (search.objective or INFINITE)


@pytest.mark.parametrize("seed", range(4))
def test_tables_of_a_copy_in_each_mode_are_those_without_the_others(make_network, seed: int) -> None:
    several = 0
    for other in range(seed, 40, 4):
        circuit = compile_network(switched(make_network(other), other, False))
        for chain, top in zip(circuit.network.chains, circuit.copies, strict=True):
            switch = mode_of(circuit.network, chain)
            found = circuit.in_modes(top, switch, dict(enumerate(circuit.tables(1, ()))))
            for m, table in enumerate(found):
                only = [f.time.copy() for f in circuit.leaves]
                for f, time in zip(circuit.leaves, only, strict=True):
                    if switch in f.scope and len(found) > 1:
                        np.moveaxis(time, f.scope.index(switch), 0)[np.arange(len(found)) != m] = inf
                assert np.array_equal(circuit.forward(only)[top], table)
            several += len(found) > 1
    assert several


def encoder_and_decoder(seed: int) -> Network:
    """Two chains of two layers, which an embedding joins at three ends; the second reads what the first computes."""
    rng = np.random.default_rng(seed)
    variables: list[Variable] = []
    edges: list[Edge] = []

    def add(n: int, name: str, free: bool = False) -> int:
        cost, use = (rng.integers(0, most, n) * (not free) for most in (20, 9))
        variables.append(Variable(name, cost, use[:, None]))
        return len(variables) - 1

    def table(u: int, v: int) -> np.ndarray:
        shape = len(variables[u].cost), len(variables[v].cost)
        return np.where(rng.random(shape) < 0.1, INFINITE, rng.integers(0, 20, shape))

    def chain(reads: tuple[int, ...]) -> Chain:
        ends, inner = [add(2, "first"), add(2, "b", free=True), add(2, "last")], add(2, "x")
        variables.append(variables[inner])
        ways = table(ends[0], inner), table(inner, ends[0])
        for i, x in enumerate((inner, inner + 1)):
            edges.extend((Edge(ends[i], x, ways[0]), Edge(x, ends[i + 1], ways[1])))
        for v in reads:
            way = table(v, inner)
            edges.extend(Edge(v, x, way) for x in (inner, inner + 1))
        return Chain(tuple(ends), ((inner,), (inner + 1,)), reads)

    embedding, output = add(3, "embedding"), add(2, "output")
    first = chain(())
    second = chain((output,))
    ends = (first.boundaries[0], second.boundaries[0], second.boundaries[-1])
    for u, v in ((first.boundaries[-1], output), *((embedding, v) for v in ends)):
        edges.append(Edge(u, v, table(u, v)))
    network = windowed(Network(tuple(variables), tuple(edges), (0,), 3, (first, second)), seed)
    check_network(network)
    return Network(
        network.variables,
        network.edges,
        evaluate(network, picks(network, seed)).use,
        network.constant,
        network.chains,
        windows=network.windows,
    )


@pytest.mark.parametrize(("entries", "columns"), [(1 << 11, 1 << 11), (1, 1 << 11), (1, 30)])
def test_counts_of_two_chains_bound_the_optimum(
    truth, monkeypatch: pytest.MonkeyPatch, entries: int, columns: int
) -> None:
    """Also where hubs are left outside, and where a program has only the entries of the cheapest solutions."""
    monkeypatch.setattr(copy_outside, "_ENTRIES", entries)
    monkeypatch.setattr(copy_counts, "_COLUMNS", columns)
    raised = 0
    for seed in range(example_count(60, every=30)):
        network = encoder_and_decoder(seed)
        search, counted = counted_at_prices(network, (0.0, 0.02, 0.1)[seed % 3])
        best = truth(network)
        assert best is None or search.bound <= best <= (search.objective or INFINITE)
        raised += counted and best is not None and search.bound > best * 0.9
    assert raised


@pytest.mark.parametrize("entries", [1, 8, 1 << 11])
def test_tables_outside_of_chains_are_the_least_of_what_is_eliminated(monkeypatch, entries: int) -> None:
    monkeypatch.setattr(copy_outside, "_ENTRIES", entries)
    for seed in range(3):
        network = encoder_and_decoder(seed)
        circuit = compile_network(network)
        inside = circuit.below(circuit.copies)
        rest = [f for slot, f in enumerate(circuit.factors) if slot not in inside]
        outside = Outside(circuit, rest)
        tables = outside.tables(rest, (0.5,))
        met = sorted({v for f in rest for v in f.scope})
        least: dict[tuple[int, ...], float] = {}
        for options in product(*(range(len(network.variables[v].cost)) for v in met)):
            at = dict(zip(met, options, strict=True))
            total = sum(float(f.priced(1, (0.5,))[tuple(at[v] for v in f.scope)]) for f in rest)
            key = tuple(at[v] for v in outside.size)
            least[key] = min(total, least.get(key, inf))
        for key, total in least.items():
            at = dict(zip(outside.size, key, strict=True))
            parts = zip(outside.scopes, tables, strict=True)
            assert sum(float(table[tuple(at[v] for v in scope)]) for scope, table in parts) == total


def test_a_hub_is_left_where_its_tables_are_far_smaller_than_one_of_all_ends() -> None:
    """Four ends of 30 options each would be 810,000 entries together, and are 30 x 30 each beside the hub."""
    none, n = np.zeros((30, 0), np.int64), 30
    variables = [Variable("v", np.arange(n), none) for _ in range(7)]
    chains = tuple(Chain((2 * c, 2 * c + 1), ((),)) for c in range(2))
    edges = tuple(Edge(u, v, np.add.outer(np.arange(n), np.arange(n))) for u, v in ((6, 0), (6, 1), (5, 2), (6, 5)))
    circuit = compile_network(Network(tuple(variables), (*edges, Edge(6, 3, edges[0].cost)), chains=chains))
    inside = circuit.below(circuit.copies)
    outside = Outside(circuit, [f for slot, f in enumerate(circuit.factors) if slot not in inside])
    assert set(outside.size) == {0, 1, 2, 3, 6}
    assert max(prod(outside.size[v] for v in scope) for scope in outside.scopes) == n * n


@pytest.mark.parametrize("modes", [False, True])
def test_entries_raised_together_cost_at_least_that(make_network, modes: bool) -> None:
    rose = 0
    for seed in range(12):
        rng = np.random.default_rng(seed)
        network = windowed(switched(make_network(seed), seed, False), seed) if modes else encoder_and_decoder(seed)
        circuit = transient_memory._without_extra(compile_network(network))
        weights, price = Cuts(circuit).weights(Cuts(circuit).first()), (0.5,) * len(network.capacities)
        search = Search(network, Limits(), "copies")

        args = circuit, price, weights, search, circuit.max_cost
        exact, together = (CopyCosts(*args, groups=(), region=None, starts={}) for _ in range(2))
        for c, table in enumerate(exact.tables):
            for mode, before in enumerate(map(np.copy, table)):
                extra = np.where(rng.random(before.shape) < 0.7, rng.integers(0, 3, before.shape), inf)
                together.raise_together(c, mode, extra, float(rng.integers(1, 12)), 1.0)
                for ends in np.argwhere(before < inf).tolist():
                    exact.raise_entry((c, (mode, *ends)), 0.0)
                    was, now = before[tuple(ends)], together.tables[c][(mode, *ends)]
                    assert was <= now <= max(was, exact.known[c, (mode, *ends)].cost)  # which is rounded down
                    rose += now > was
    assert rose


@pytest.mark.parametrize("modes", [False, True])
def test_weights_of_some_entries_bound_all_others(make_network, modes: bool) -> None:
    rose = 0
    for seed in range(16):
        network = windowed(switched(make_network(seed), seed, False), seed) if modes else encoder_and_decoder(seed)
        circuit = transient_memory._without_extra(compile_network(network))
        weights, price = Cuts(circuit).weights(Cuts(circuit).first()), (0.1,) * len(network.capacities)
        args = circuit, price, weights, Search(network, Limits(), "copies"), circuit.max_cost
        exact = CopyCosts(*args, groups=(), region=None, starts={})
        before = [table.copy() for table in exact.tables]
        for c, table in enumerate(before):
            for entry in np.argwhere(table < inf).tolist():
                exact.raise_entry((c, tuple(entry)), 0.0)
        again = CopyCosts(*args, groups=(), region=None, starts=exact.starts)
        for (c, entry), known in exact.known.items():
            was, now = before[c][entry], again.tables[c][entry]
            assert was <= now <= known.cost + len(circuit.factors)  # prices are rounded down there
            rose += now > was
    assert rose


def test_options_found_of_entries_raised_together_are_a_copy_that_costs_no_less(make_network) -> None:
    found = 0
    for seed in range(12):
        network = windowed(switched(make_network(seed), seed, False), seed)
        circuit = transient_memory._without_extra(compile_network(network))
        weights, price = Cuts(circuit).weights(Cuts(circuit).first()), (0.5,) * len(network.capacities)
        copies = CopyCosts(circuit, price, weights, Search(network, Limits(), "copies"), circuit.max_cost, (), None, {})
        for c, table in enumerate(copies.tables):
            for mode, least in enumerate(table):
                options = copies.raise_together(c, mode, least - least.min(), 12.0, 0.0)
                if not options:
                    continue
                mixtures = Mixtures(network)
                mixtures.add_copy(c, options)
                (label,) = mixtures.of_copies[c].values()
                ends = circuit.places(network.chains[c].around(0), label.around)
                found += 1
                assert least[tuple(ends)] <= label.time + sum(p * u for p, u in zip(price, label.use, strict=True))
    assert found


@pytest.mark.parametrize("seed", range(5))
def test_no_price_near_the_dearest_one_says_more_of_what_was_found(seed: int) -> None:
    rng = np.random.default_rng(seed)
    labels = [[(float(rng.integers(50)), rng.integers(0, 30, 2) * 1.0) for _ in range(4)] for _ in range(3)]
    found = FoundCopies([Kind(2 + k, own) for k, own in enumerate(labels)], np.array([120.0, 90.0]))
    before = rng.uniform(0.5, 2, 2)
    price, upper = found.dearest([before.tolist()], 100.0)
    assert upper == pytest.approx(found.at(price))
    for share in product(np.linspace(1 / 1.6, 1.6, 9), repeat=2):
        assert found.at(before * share) <= upper + 1e-6
    assert FoundCopies([Kind(1, [])], np.zeros(2)).dearest([before.tolist()], 1.0)[1] == -inf


def test_counts_know_that_layers_are_whole() -> None:
    """Of six layers four have to be recomputed, a fraction less by the price of memory."""
    network = layers_in_two_modes(60)
    search, counted = counted_at_prices(network)
    prices = Search(network, Limits(), "prices")
    assert price_windows(relax_transient(compile_network(network), groups_of(network)), prices) is not None
    assert counted
    assert prices.bound < 400 < search.bound <= 420 == search.objective
