"""Windows: streams that run at the same time, of which the longest counts."""

import json
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from itertools import islice, pairwise, product
from math import inf, prod

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from partita.formulation.network.chains import Position, find_chains
from partita.formulation.network.checks import check_network, problems
from partita.formulation.network.direct_sum import direct_sum
from partita.formulation.network.network import (
    INFINITE,
    Chain,
    Edge,
    Network,
    Switch,
    Variable,
    Window,
    chain_edges,
    evaluate,
    extras,
    window_streams,
)
from partita.formulation.network.network_file import network_json, read_network
from partita.formulation.network.without_switches import without_switches
from partita.solvers.backends import milp
from partita.solvers.cache.digest import digest
from partita.solvers.decomposition.counted import build
from partita.solvers.elimination import copy_program, segment_lists, transient_memory, window_relaxation
from partita.solvers.elimination.circuit import Circuit
from partita.solvers.elimination.copy_costs import raise_copies
from partita.solvers.elimination.copy_mixtures import Mixtures
from partita.solvers.elimination.copy_program import solve_copy
from partita.solvers.elimination.longest_streams import without_shorter_streams
from partita.solvers.elimination.order import TooWideError, compile_network, restrict
from partita.solvers.elimination.segment_lists import blocks_of, with_columns
from partita.solvers.elimination.transient_branching import _Branching, _Node
from partita.solvers.elimination.transient_relaxation import (
    Count,
    Interval,
    Region,
    groups_of,
    relax_region,
    relax_transient,
    relaxed_use,
    unrelaxed,
)
from partita.solvers.elimination.window_relaxation import Cuts, price_windows, weighted_factors
from partita.solvers.protocol import Limits, Search, Status, TooManyError, solver
from partita.solvers.wide.highs import Highs

from ..levels import example_count
from .test_switches import switched


def windowed(network: Network, seed: int) -> Network:
    """Random windows of two or three streams: outside of chains, and in every copy, all copies alike."""
    rng = np.random.default_rng(seed + 1)
    modes = {("v", v): (len(network.variables[s.variable].cost),) for s in network.switches for v in s.variables}
    modes |= {("e", k): (len(network.variables[s.variable].cost),) for s in network.switches for k in s.edges}
    found: list[Window] = []

    def streams(k: int, part: tuple[str, int], cost: np.ndarray) -> np.ndarray:
        table = rng.integers(0, 12, (k, *modes.get(part, ()), *cost.shape))
        return table * (rng.random(k) < 0.7).reshape(-1, *[1] * (table.ndim - 1))

    def window(own: list[int], among: list[int]) -> tuple[dict[int, np.ndarray], dict[int, np.ndarray]]:
        count = int(rng.integers(2, 4))
        some = [v for v in own if rng.random() < 0.7]
        edges = [k for k in among if rng.random() < 0.6]
        return (
            {v: streams(count, ("v", v), network.variables[v].cost) for v in some},
            {k: streams(count, ("e", k), network.edges[k].cost) for k in edges},
        )

    copy_edges, rest = chain_edges(network)
    chained = {v for c in network.chains for part in (c.boundaries, *c.copies) for v in part}
    outside = [v for v in range(len(network.variables)) if v not in chained]
    for _ in range(int(rng.integers(0, 3))):
        own, among = window(outside, [k for k in rest if not {network.edges[k].u, network.edges[k].v} <= chained])
        found += [Window(own, among)] if own or among else []
    for chain, inside in zip(network.chains, copy_edges, strict=True):
        for _ in range(int(rng.integers(0, 3))):
            own, among = window(list(chain.copies[0]), inside[0])
            if not own and not among:
                continue
            for i, copy in enumerate(chain.copies):
                mine = {copy[chain.copies[0].index(v)]: t for v, t in own.items()}
                found.append(Window(mine, {inside[i][inside[0].index(k)]: t for k, t in among.items()}))
    return replace(network, windows=tuple(found))


def found(
    make_network: Callable[[int], Network], seed: int, kind: int | None = None, binds: bool | None = None
) -> Network:
    """A small network with windows; `kind` 0 has no switches, 2 transient use; in half of them memory binds."""
    rng = np.random.default_rng(seed)
    if kind is None:  # not from `seed` alone: `make_network` draws its number of capacities so
        kind = int(np.random.default_rng((seed, 1)).integers(3))
    network = make_network(seed)
    network = windowed(switched(network, seed, kind == 2) if kind else network, seed)
    assume(network.windows and prod(len(v.cost) for v in network.variables) <= 2000)
    check_network(network)
    if rng.random() < 0.5 if binds is None else not binds:
        return network
    some = [int(rng.integers(len(v.cost))) for v in network.variables]
    return replace(network, capacities=evaluate(network, some).use)


def picks(network: Network, seed: int) -> tuple[int, ...]:
    rng = np.random.default_rng(seed)
    return tuple(int(rng.integers(len(v.cost))) for v in network.variables)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_files_digests_and_other_forms_keep_windows(make_network, seed: int) -> None:
    network = found(make_network, seed)
    text = json.dumps(network_json(network))
    again = read_network(json.loads(text))
    assert digest(again) == digest(read_network(json.loads(text))) != digest(replace(again, windows=()))
    some = picks(network, seed)
    assert window_streams(again, some) == window_streams(network, some)
    if not any(s.has_extra for s in network.switches) or not network.capacities:
        plain = without_switches(network)
        rng = np.random.default_rng(seed)
        for _ in range(5):
            options = [int(rng.integers(len(v.cost))) for v in plain.network.variables]
            if (verdict := evaluate(plain.network, options)).cost < INFINITE:
                assert verdict.cost == evaluate(network, plain.lift(options)).cost
    two = direct_sum([network, replace(network, constant=network.constant + 5)])
    check_network(two.network)
    for q in (0, 1):
        shifted = [x if start is None else start[q] + x for x, start in zip(some, two.starts, strict=True)]
        mine = evaluate(two.network, [*shifted, q])
        if mine.cost < INFINITE:
            assert mine.cost == evaluate(network, some).cost + 5 * q


def row(count: int) -> tuple[Network, list[Position]]:
    """Layers of two variables between cuts; the window of each has one of them, and the edges on both sides."""
    t = lambda *x: np.array(x, np.int64)  # noqa: E731
    none, link, own = np.zeros((2, 0), np.int64), t([0, 3], [2, 1]), t([1, 0], [0, 5])
    both, one = t([[1, 0], [0, 2]], [[3, 1], [0, 0]]), t([4, 1], [0, 3])
    variables = [Variable(f"v{k}", t(0, 0) if k % 3 == 0 else t(1, 2), none) for k in range(3 * count + 1)]
    variables = [replace(v, cost=variables[k % 3].cost) for k, v in enumerate(variables)]
    edges = [Edge(k, k + 1, link) for k in range(3 * count)]
    windows = tuple(Window({3 * k + 1: one, 3 * k + 2: own}, {3 * k: both, 3 * k + 2: both}) for k in range(count))
    network = Network(tuple(variables), tuple(edges), windows=windows)
    return network, [Position(k, cut=True) for k in range(3 * count + 1)]


def test_cuts_spare_windows_and_chains_have_equal_ones() -> None:
    network, positions = row(5)
    (chain,) = find_chains(network, positions)
    assert chain == Chain(tuple(range(0, 16, 3)), tuple((3 * k + 1, 3 * k + 2) for k in range(5)))
    check_network(replace(network, chains=(chain,)))
    assert not find_chains(replace(network, windows=()), positions)[0].copies[0]  # every variable is a boundary
    other = Window({7: network.windows[0].variables[1]}, network.windows[2].edges)
    odd = replace(network, windows=(*network.windows[:2], other, *network.windows[3:]))
    assert max(map(len, find_chains(odd, positions))) == 2
    assert any("copy 2 differs" in p for p in problems(replace(odd, chains=(chain,))))


def test_chains_read_what_is_beside_their_cuts() -> None:
    network, positions = row(5)
    last, link, other = len(network.variables), np.array([[0, 3], [2, 1]]), np.array([[0, 3], [2, 2]])
    variables = (*network.variables, network.variables[0])

    def chains(tables: list[np.ndarray], beside: int, read: int = len(network.variables)) -> tuple[Chain, ...]:
        """Of layers, the last of which read one variable; `beside` is that of the cuts but the last one."""
        readers = range(5 - len(tables), 5)
        edges = [Edge(read, 3 * k + 1, t) for k, t in zip(readers, tables, strict=True)]
        windows = list(network.windows)
        for n, k in enumerate(readers, len(network.edges)):
            windows[k] = Window(windows[k].variables, windows[k].edges | {n: windows[k].edges[3 * k]})
        whole = replace(network, variables=variables, edges=(*network.edges, *edges), windows=tuple(windows))
        places = [*(replace(p, beside=beside) for p in positions[:-1]), positions[-1], Position(-1)]
        found = find_chains(whole, places)
        check_network(replace(whole, chains=found))
        return found

    copies = tuple((3 * k + 1, 3 * k + 2) for k in range(5))
    assert chains([link] * 5, last) == (Chain(tuple(range(0, 16, 3)), copies, (last,)),)
    assert max(map(len, chains([link, link, other, link, link], last))) == 2
    assert not chains([link] * 5, 0)  # beside another variable
    assert chains([link] * 2, 6, read=6)[-1].reads == (6,)  # which is within no chain before


@pytest.mark.parametrize(
    ("window", "what"),
    [
        (Window({}, {}), "no tables"),
        (Window({0: np.zeros((2, 3), np.int64)}, {}), "expected int64, (2, 2)"),
        (Window({0: np.full((2, 2), -1)}, {}), "from -1 to -1 ns"),
        (Window({0: np.zeros((2, 2))}, {}), "float64"),
        (
            Window({0: np.zeros((2, 2), np.int64), 1: np.zeros((3, 2), np.int64)}, {}),
            "(3, 2) of int64, expected int64, (2, 2)",
        ),
        (Window({99: np.zeros((2, 2), np.int64)}, {}), "variable 99"),
        (Window({1: np.zeros((2, 2), np.int64), 4: np.zeros((2, 2), np.int64)}, {}), "partly in a copy"),
        (Window({3: np.zeros((2, 2), np.int64)}, {}), "boundary"),
    ],
)
def test_wrong_windows_are_named(window: Window, what: str) -> None:
    network, positions = row(3)
    network = replace(network, chains=find_chains(network, positions), windows=(window,))
    assert any(what in p for p in problems(network))


# Solvers


@pytest.mark.parametrize("kind", [0, 1, 2])
@pytest.mark.parametrize(
    ("name", "examples"),
    [("auto", 100), ("elimination", 4), ("cpsat", 2), ("cpsat-plain", 4), ("milp", 2), ("smt", 2)],
)
def test_solvers_agree_with_brute_force(make_network, truth, name: str, examples: int, kind: int) -> None:
    @settings(max_examples=example_count(examples), deadline=None)
    @given(st.integers(0, 10**6))
    def agree(seed: int) -> None:
        network = found(make_network, seed, kind)
        best = truth(network)
        assert solver(name).accepts(network)
        answer = solver(name).solve(network)
        assert (answer.status, answer.objective) == (
            (Status.INFEASIBLE, None) if best is None else (Status.OPTIMAL, best)
        ), answer.words
        assert best is None or evaluate(network, answer.assignment or ()).cost == best == answer.bound

    agree()


def test_no_bound_of_prices_copies_and_branching_is_above_the_optimum(make_network, truth, monkeypatch) -> None:
    """Without the lists that close small networks; in half of them memory binds, and transient use."""
    monkeypatch.setattr(transient_memory, "_list", lambda search, *_: search.finish())

    @settings(max_examples=example_count(40), deadline=None)
    @given(st.integers(0, 10**6))
    def bounded(seed: int) -> None:
        rng = np.random.default_rng(seed)
        network = found(make_network, seed, 2 if rng.random() < 0.7 else None)
        best = truth(network)
        cutoff = None if best is None or rng.random() < 0.5 else best + int(rng.integers(-3, 20))
        limits = Limits(cutoff=cutoff, gap=float(rng.choice([0, 0.01, 0.1])), quick=bool(rng.random() < 0.3))
        answer = solver("elimination").solve(network, limits)
        if best is None:
            assert answer.objective is None
        elif answer.status is Status.INFEASIBLE:
            assert cutoff is not None and limits.ceiling(None) <= best
        else:
            assert answer.bound <= best <= (answer.objective or INFINITE)

    bounded()


def test_branching_goes_on_where_prices_ended(make_network, monkeypatch) -> None:
    """The lower part forbids the largest use of the relaxed solution, at prices that prove as much as before."""
    split = list[bool]()

    @settings(max_examples=example_count(20), deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
    @given(st.integers(0, 10**6))
    def goes_on(seed: int) -> None:
        network = found(make_network, seed, 2, binds=True)
        circuit, groups, search = compile_network(network), groups_of(network), Search(network, Limits(), "")
        assume(network.capacities and groups)
        root = price_windows(relax_transient(circuit, groups), search)
        assume(root is not None and any(root.price.price))
        assert root is not None
        solution = root.circuit.weighted(root.weights).decode(root.price.slots)
        most, known = max(extras(network, solution).values()), search.bound
        circuit = unrelaxed(root.circuit, groups)
        parts = _Branching(circuit, groups, search, root.mixtures)._split_interval(
            root, *_Branching(circuit, groups, search, root.mixtures).whole(root)
        )
        split.append(len(parts) == 2)
        assert all(a.region.interval.high < b.region.interval.low for a, b in pairwise(parts))
        assert not split[-1] or most == 0 or parts[0].region.interval.high < most
        with monkeypatch.context() as once:
            once.setattr(window_relaxation, "_ROUNDS", 0)  # the first prices, and no others
            for part in parts[:1]:
                inner = Search(network, Limits(prices=part.prices), "")
                priced = price_windows(relax_region(circuit, groups, part.region), inner)
                assert priced is None or priced.price.value >= root.price.value * (1 - 1e-9) - 1
                assert priced is None or inner.bound >= known - 1

    goes_on()
    assert any(split)


@settings(max_examples=example_count(20), deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
@given(st.integers(0, 10**6))
def test_regions_bound_the_solutions_that_they_hold(make_network, seed: int) -> None:
    network, rng = found(make_network, seed, 2, binds=True), np.random.default_rng(seed)
    groups = groups_of(network)
    assume(network.capacities and groups)
    group, mode = int(rng.integers(len(groups))), int(rng.integers(2))
    low = int(rng.integers(len(groups[group]) + 1))
    count = Count(group, mode, low, int(rng.integers(low, len(groups[group]) + 1)))
    interval = Interval(0, int(rng.integers(1 + network.capacities[0])))
    region, costs = Region(interval, (count,)), []
    relaxed = relax_region(compile_network(network), groups, region)
    for x in product(*(range(len(v.cost)) for v in network.variables)):
        verdict, most = evaluate(network, x), max(extras(network, x).values())
        many = sum(x[z] == mode for z in groups[group])
        if verdict.feasible and most <= interval.high and count.low <= many <= count.high:
            costs.append(verdict.cost)
            use = relaxed_use(network, groups, region, x, verdict.use)
            assert all(u <= c for u, c in zip(use, relaxed.network.capacities, strict=True))
    search = Search(network, Limits(), "region")
    priced = price_windows(relaxed, search)
    if priced is None:
        assert not costs
        return
    assert search.bound <= min([*costs, search.objective or INFINITE])
    raised = Search(network, Limits(), "copies")
    raise_copies(relaxed, priced, groups, raised, relaxed.max_cost, region=region)
    assert raised.bound <= min([*costs, relaxed.max_cost + 1, raised.objective or INFINITE])


def layers_in_two_modes(capacity: int) -> Network:
    """Six layers, each of which keeps 20 bytes, or nothing for 90 ns; it needs 5 bytes for a while, or 10."""
    t = lambda *x: np.array(x, np.int64)  # noqa: E731
    none, layers = np.zeros((2, 1), np.int64), 6
    variables = [Variable(f"b{i}", t(0, 0), none) for i in range(layers + 1)]
    edges, copies, switches, windows = [], [], [], []
    for i in range(layers):
        mode, x = len(variables), len(variables) + 1
        use = t([[20], [20]], [[0], [0]])
        variables += [Variable("z", t(0, 0), none), Variable("x", t(0, 0), use[0])]
        tables = t([0, 0], [90, 90])
        switches.append(Switch(mode, {x: (tables, use, t([5, 5], [10, 10]))}, {}))
        edges += [Edge(u, v, t([0, 50], [50, 0])) for u, v in ((i, x), (x, i + 1))]
        windows.append(Window({x: t([[10, 10], [10, 10]], [[10, 10], [10, 10]])}, {}))
        copies.append((mode, x))
    chains = (Chain(tuple(range(layers + 1)), tuple(copies)),)
    network = Network(tuple(variables), tuple(edges), (capacity,), 0, chains, tuple(switches), tuple(windows))
    check_network(network)
    return network


def test_branching_counts_the_layers_of_a_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of six layers two and a half would have to be recomputed by the price of memory, so that it takes three."""

    def no_lists(*_: object) -> None:
        raise TooManyError("labels")

    monkeypatch.setattr(segment_lists, "enumerate_labels", no_lists)
    answer = solver("elimination").solve(layers_in_two_modes(80))
    assert (answer.objective, answer.bound) == (6 * 10 + 3 * 90, 6 * 10 + 3 * 90), answer.words


@pytest.mark.parametrize(("low", "high", "split"), [(0, 6, True), (4, 5, True), (0, 4, False), (5, 6, False)])
def test_counts_are_split_between_those_of_their_region(low: int, high: int, split: bool) -> None:
    """Where prices are too low, the relaxed solution, here 4.5 layers in mode 1, may have more or fewer."""
    network, modes = layers_in_two_modes(80), Count(0, 0, 0, 1)
    groups, search = groups_of(network), Search(network, Limits(), "counts")
    root = price_windows(relax_transient(compile_network(network), groups), search)
    assert root is not None
    some = [tuple(int(network.variables[v].name == "z" and v < 7 + 2 * n) for v in range(19)) for n in (4, 5)]
    region = Region(Interval(5, 10), (modes, Count(0, 1, low, high)))
    branching = _Branching(unrelaxed(root.circuit, groups), groups, search, root.mixtures)
    prices = (0.0,) * 10
    parts = branching._split(replace(root, mix=((0.5, some[0]), (0.5, some[1]))), region, 0, prices)
    assert len(parts) == 2
    for part in parts:
        inside = part.region
        assert inside != region and inside.interval.low <= inside.interval.high
        assert all(a.low <= b.low <= b.high <= a.high for a, b in zip(region.counts, inside.counts, strict=True))
    assert split is (parts[0].region.counts[1].high == 4 == parts[1].region.counts[1].low - 1)


def test_a_network_without_memory_is_priced_once_for_each_region(monkeypatch: pytest.MonkeyPatch) -> None:
    """No transient use but 0 is left: an interval that cannot get shorter. Of the streams weights prove half."""
    t = lambda *x: np.array(x, np.int64)  # noqa: E731
    use = np.zeros((2, 1), np.int64)
    tables = t([0, 0], [90, 90]), None, t([5, 5], [0, 0])
    variables = Variable("z", t(0, 0), use), Variable("x", t(0, 0), use)
    window = Window({1: t([[10, 0], [10, 0]], [[0, 10], [0, 10]])}, {})
    network = Network(variables, (), (0,), switches=(Switch(0, {1: tables}, {}),), windows=(window,))
    check_network(network)
    regions, priced = list[Region](), _Branching.priced

    def noted(branching: _Branching, node: _Node, left: float) -> list[_Node]:
        regions.append(node.region)
        return priced(branching, node, left)

    monkeypatch.setattr(_Branching, "priced", noted)
    monkeypatch.setattr(transient_memory, "_list", lambda search, *_: search.finish())
    answer = solver("elimination").solve(network)
    assert (answer.objective, answer.bound) == (100, 95)
    assert regions and len({*regions}) == len(regions)


@pytest.mark.parametrize("name", ["auto", "cpsat", "milp", "smt"])
def test_windows_of_wide_networks_are_bounded_and_small_ones_closed(make_network, truth, monkeypatch, name) -> None:
    def wide(network: Network) -> None:
        raise TooWideError("a table")

    monkeypatch.setattr(transient_memory, "compile_network", wide)
    for seed in (3, 11, 16):
        network = windowed(make_network(seed), seed)
        answer, best = solver(name).solve(network), truth(network)
        assert (answer.objective, answer.bound) == (best, INFINITE if best is None else best)
        quick = solver(name).solve(network, Limits(quick=True))
        assert best is None or quick.bound <= best <= (quick.objective or INFINITE)


def test_streams_cost_less_than_their_sum_and_the_optimum_of_the_sum_is_no_better(make_network) -> None:
    for seed in range(40):
        network = found_or_none(make_network, seed)
        if network is None:
            continue
        together, apart = solver("auto").solve(network), solver("auto").solve(summed(network))
        if apart.assignment is not None:
            assert together.objective <= evaluate(network, apart.assignment).cost <= apart.objective


def found_or_none(make_network, seed: int) -> Network | None:
    network = windowed(make_network(seed), seed)
    return network if network.windows else None


def summed(network: Network) -> Network:
    """The network whose streams run one after the other: windows of one stream."""

    def one(window: Window) -> Window:
        return Window(*({k: t.sum(axis=0)[None] for k, t in of.items()} for of in (window.variables, window.edges)))

    return replace(network, windows=tuple(map(one, network.windows)))


def balanced_badly(layers: int, ns: int, windows: int = 1) -> Network:
    """A chain whose streams of one layer balance badly: weights leave a gap as many times as there are layers."""
    t = lambda *x: np.array(x, np.int64)  # noqa: E731
    none = np.zeros((2, 0), np.int64)
    variables = (*(Variable(f"b{i}", t(0, 0), none) for i in range(layers + 1)),)
    variables += (*(Variable(f"x{i}", t(0, 0), none) for i in range(layers)),)
    link = t([0, 5], [5, 0])
    edges = [Edge(*ends, link) for i in range(layers) for ends in ((i, layers + 1 + i), (layers + 1 + i, i + 1))]
    streams = t([ns, 0], [0, ns])  # the longest of both is ns, their mean half of it
    chain = Chain(tuple(range(layers + 1)), tuple((layers + 1 + i,) for i in range(layers)))
    found = tuple(Window({layers + 1 + i: streams}, {}) for i in range(layers) for _ in range(windows))
    network = Network(variables, tuple(edges), chains=(chain,), windows=found)
    check_network(network)
    return network


@pytest.mark.parametrize(("layers", "ns"), [(4, 100), (40, 100), (40, 1)])
def test_copies_of_windows_are_bounded_exactly(layers: int, ns: int) -> None:
    answer = solver("auto").solve(balanced_badly(layers, ns))
    assert (answer.objective, answer.bound) == (ns * layers, ns * layers)
    assert answer.words == "proved by prices"


def test_copies_that_balance_their_streams_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights bound them exactly, but at these weights all variables of a copy choose alike; without lists."""

    def no_lists(*_: object) -> None:
        raise TooManyError("labels")

    monkeypatch.setattr(segment_lists, "enumerate_labels", no_lists)
    layers, inside = 12, 6
    t = lambda *x: np.array(x, np.int64)  # noqa: E731
    none = np.zeros((2, 0), np.int64)
    count = layers * inside
    variables = tuple(Variable(f"v{i}", t(0, 0), none) for i in range(layers + 1 + count))
    copies = tuple(tuple(range(layers + 1 + inside * i, layers + 1 + inside * (i + 1))) for i in range(layers))
    link, streams = t([0, 50], [50, 0]), t([10, 0], [0, 10])
    edges = [Edge(*ends, link) for i, copy in enumerate(copies) for ends in ((i, copy[0]), (copy[-1], i + 1))]
    windows = tuple(Window(dict.fromkeys(copy, streams), {}) for copy in copies)
    network = Network(variables, tuple(edges), chains=(Chain(tuple(range(layers + 1)), copies),), windows=windows)
    check_network(network)
    answer = solver("elimination").solve(network)
    assert (answer.objective, answer.bound) == (30 * layers, 30 * layers)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6))
def test_programs_bound_what_they_solve(make_network, truth, seed: int) -> None:
    network = replace(found(make_network, seed, 1), chains=())
    best, good = truth(network), solve_copy(compile_network(network), 0.0)
    if best is None:
        assert good.bound == inf and not good.options
        return
    verdict = evaluate(network, good.options)
    assert verdict.feasible and verdict.cost == good.cost + network.constant == best
    assert good.bound + network.constant == best


def row_within_a_second(seed: int) -> Network:
    """A row of variables in one window, to each stream of which every one adds up to a second; memory may bind."""
    rng = np.random.default_rng(seed)
    count, options = 5, 4
    variables = tuple(
        Variable(f"v{i}", rng.integers(0, 100, options), rng.integers(0, 10**9, (options, 1))) for i in range(count)
    )
    edges = tuple(Edge(i, i + 1, rng.integers(0, 100, (options, options))) for i in range(count - 1))
    windows = (Window({i: rng.integers(0, 10**9, (2, options)) for i in range(count)}, {}),)
    network = Network(variables, edges, (5 * 10**9,), windows=windows)
    some = tuple(rng.integers(0, options, count).tolist())
    return replace(network, capacities=evaluate(network, some).use) if seed % 2 else network


@pytest.mark.parametrize("seed", range(6))
def test_programs_of_windows_of_a_second_are_exact(truth, seed: int) -> None:
    """With whole numbers of 10^9 in rows of windows HiGHS excluded optima, and its bounds were far above them."""
    network = row_within_a_second(seed)
    best, found = truth(network), solve_copy(compile_network(network), 0.0)
    assert found.cost == best
    assert best - 100 <= found.bound <= best


@pytest.mark.parametrize("seed", range(2))
def test_the_milp_backend_proves_nothing_wrong_of_windows_of_a_second(truth, seed: int) -> None:
    network = row_within_a_second(seed)
    best, search, backend = truth(network), Search(network, Limits(), "milp"), milp._Parts()
    size = {v: len(x.cost) for v, x in enumerate(network.variables)}
    program = build(compile_network(network).factors, size, network.capacities)
    with Highs() as backend.highs:
        assert backend.count(program, search, lambda value: tuple(program.read(value)[0].values()), INFINITE)
    assert (search.objective, search.bound) == (best, best)


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
@given(st.integers(0, 10**6))
def test_mixtures_are_the_best_of_what_solutions_hold(make_network, seed: int) -> None:
    """Each copy of a chain as some copy of some solution, what is outside as in one; boundaries are alike."""
    network = found(make_network, seed, seed % 3, binds=True)
    assume(network.chains and network.capacities)
    some = [picks(network, seed + k) for k in range(4)]
    ends = {v: some[0][v] for chain in network.chains for v in chain.reads}
    ends |= {v: some[0][chain.boundaries[0]] for chain in network.chains for v in chain.boundaries}
    some = [tuple(ends.get(v, x) for v, x in enumerate(one)) for one in some]
    mixtures, search = Mixtures(network), Search(network, Limits(), "mixed")
    for one in some:
        mixtures.add(one)
    mixtures.offer_best(search)
    parts = [copy for chain in network.chains for copy in chain.copies]
    of_copies = [
        {tuple(one[v] for v in copy) for one in some for copy in chain.copies}
        for chain in network.chains
        for _ in chain.copies
    ]
    costs = []
    for base in some:
        for chosen in islice(product(*of_copies), 3000):
            mixed = list(base)
            for copy, options in zip(parts, chosen, strict=True):
                for v, option in zip(copy, options, strict=True):
                    mixed[v] = option
            verdict = evaluate(network, mixed)
            costs += [verdict.cost] if verdict.feasible else []
    assert search.objective == min(costs, default=None)


@pytest.mark.parametrize("most", [0, 1 << 27])
def test_programs_prove_copies_whose_lists_are_too_large(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many windows, or of few where columns take more than they may."""
    monkeypatch.setattr(segment_lists, "_MAX_COLUMNS", most)
    windows = 7 if most else 1
    answer = solver("elimination").solve(balanced_badly(40, 100, windows))
    assert (answer.objective, answer.bound) == (4000 * windows, 4000 * windows)
    monkeypatch.setattr(copy_program, "_COLUMNS", 0)
    answer = solver("elimination").solve(balanced_badly(40, 100, windows))
    assert answer.objective == 4000 * windows
    assert 0 < answer.bound < 4000 * windows


def test_streams_that_are_nowhere_the_longest_are_dropped(make_network) -> None:
    """Every assignment costs the same without them, and weighted sums bound it."""
    dropped = list[int]()

    @settings(max_examples=example_count(40), deadline=None)
    @given(st.integers(0, 10**6))
    def same(seed: int) -> None:
        network = replace(found(make_network, seed, 0), chains=())
        circuit = compile_network(network)
        slots = circuit.forward(circuit.weighted(Cuts(circuit).weights(Cuts(circuit).first())).tables(1, ()))
        circuit = restrict(circuit, circuit.backward(slots), INFINITE, blocks_of(network)) or circuit
        weights = {w: (1 / len(t),) * len(t) for f in circuit.factors for w, t in f.streams}
        fewer, left = without_shorter_streams(circuit, weights, inf)
        assert {w for f in fewer.factors for w, _ in f.streams} == {*left}
        dropped.append(sum(map(len, weights.values())) - sum(map(len, left.values())))
        options = [circuit.kept[circuit.domain[v]] for v in range(len(network.variables))]
        for at in islice(product(*(range(len(own)) for own in options)), 200):
            cost = _cost(circuit, at)
            verdict = evaluate(network, [own[k] for own, k in zip(options, at, strict=True)])
            assert _cost(fewer, at) == cost == min(verdict.cost, INFINITE)
            assert _cost(fewer.with_cheaper(tuple(weighted_factors(fewer.factors, left))), at) <= cost

    same()
    assert any(dropped)


def _cost(circuit: Circuit, at: tuple[int, ...]) -> float:
    """The cost of an assignment of the options left, by the circuit's factors."""
    total, streams = float(circuit.network.constant), dict[int, np.ndarray]()
    for f in circuit.factors:
        entry = tuple(at[v] for v in f.scope)
        total += f.time[entry]
        for w, table in f.streams:
            streams[w] = streams.get(w, 0) + table[:, *entry]
    return min(total + sum(s.max() for s in streams.values()), float(INFINITE))


def test_lists_have_no_columns_for_streams_that_are_never_the_longest() -> None:
    """Seven windows in a layer have more ways to choose a stream of each than are listed, but traffic always hides."""
    t = lambda *x: np.array(x, np.int64)  # noqa: E731
    layers = 40
    variables = tuple(Variable(f"x{i}", t(0, 0), t([3], [0])) for i in range(layers))
    windows = tuple(Window({i: t([0, 10], [0, 9])}, {}) for i in range(layers) for _ in range(7))
    network = Network(variables, (), capacities=(32,), windows=windows)
    answer = solver("elimination").solve(network)
    assert (answer.objective, answer.bound) == (2100, 2100), answer.words  # prices prove 2054


def test_each_switch_of_a_copy_may_use_as_much_as_the_interval_ends_at() -> None:
    """Two switches in each copy, of which only the one with the most counts, so that both may need all there is."""
    t = lambda *x: np.array(x, np.int64)  # noqa: E731
    none, layers = np.zeros((2, 1), np.int64), 3
    variables = [Variable(f"b{i}", t(0, 0), none) for i in range(layers + 1)]
    edges, copies, switches, windows = [], [], [], []
    for i in range(layers):
        modes, (x, y) = (len(variables), len(variables) + 1), (len(variables) + 2, len(variables) + 3)
        variables += [
            Variable(name, cost, none)
            for name, cost in zip("zwxy", (t(0, 0), t(0, 0), t(0, 100), t(0, 100)), strict=True)
        ]
        tables = t([0, 100], [3, 103]), None, t([10, 10], [0, 0])  # 10 bytes, or 3 ns more
        switches += [Switch(mode, {v: tables}, {}) for mode, v in zip(modes, (x, y), strict=True)]
        edges += [Edge(u, v, t([0, 5], [5, 0])) for u, v in ((i, x), (x, y), (y, i + 1))]
        streams = t([[50, 0], [50, 0]], [[0, 50], [0, 50]])
        windows.append(Window({x: streams, y: streams}, {}))
        copies.append((*modes, x, y))
    chains = (Chain(tuple(range(layers + 1)), tuple(copies)),)
    network = Network(tuple(variables), tuple(edges), (10,), 0, chains, tuple(switches), tuple(windows))
    check_network(network)
    best = evaluate(network, (0,) * len(variables))
    assert best.feasible and best.cost == 300
    region, groups = Region(Interval(0, 10)), groups_of(network)
    relaxed = relax_region(compile_network(network), groups, region)
    found = price_windows(relaxed, Search(network, Limits(), "prices"))
    search = Search(network, Limits(), "copies")
    assert found is not None
    raise_copies(relaxed, found, groups, search, relaxed.max_cost, region=region)
    assert search.bound <= 300
    assert solver("auto").solve(network).objective == 300


def test_layers_of_each_kind_have_transient_memory_of_their_own() -> None:
    """By the mean of all six layers 20 bytes are missing, but two of them need 180 more each than there are."""
    variables, switches = [], []
    for k, extra in enumerate((600, 600, 600, 600, 840, 840)):
        for name, count in (("x", 1), ("z", 2)):
            variables.append(Variable(f"{name}{k}", np.zeros(count, np.int64), np.zeros((count, 1), np.int64)))
        table = np.array([[0], [300]]), np.zeros((2, 1, 1), np.int64), np.array([[extra], [0]])  # or 300 ns more
        switches.append(Switch(2 * k + 1, {2 * k: table}, {}))
    network = Network(tuple(variables), (), (660,), switches=tuple(switches))
    check_network(network)
    assert solver("auto").solve(network).objective == 2 * 300
    groups, bounds = groups_of(network), []
    assert sorted(map(len, groups)) == [2, 4]
    for each in (groups, [frozenset.union(*groups)]):
        search = Search(network, Limits(), "prices")
        relaxed = relax_transient(compile_network(network), each)
        assert price_windows(relaxed, search) is not None
        bounds.append(search.bound)
    assert 2 * 300 >= bounds[0] > 2 * bounds[1] > 0


def layers_beside(count: int, options: int, modes: int) -> Network:
    """Equal layers in a row that all read the first variable: no copies of a chain. Each has a mode and a window."""
    rng = np.random.default_rng(0)

    def table(*shape: int) -> np.ndarray:
        return rng.integers(1, 20, shape)

    inside, streams = table(modes, options), table(2, modes, options)
    reads, follows = table(modes, options, options), table(modes, options, options)
    own, of_reading, of_following = inside[0], reads[0], follows[0]  # one object each, as the encoder makes them
    nothing, mode_cost, no_mode_use = np.zeros((options, 1), np.int64), table(modes), np.zeros((modes, 1), np.int64)
    decided = inside, np.zeros((modes, options, 1), np.int64), None
    variables, edges, switches, windows = [Variable("read", own, nothing), Variable("first", own, nothing)], [], [], []
    last = 1
    for k in range(count):
        at, edge = len(variables), len(edges)
        variables += [Variable(f"in {k}", own, nothing), Variable(f"out {k}", own, nothing)]
        variables += [Variable(f"shared {k}", own, nothing), Variable(f"mode {k}", mode_cost, no_mode_use)]
        row = (last, at), (at, at + 1), (at + 1, at + 2)
        edges += [Edge(0, at + 1, of_reading), *(Edge(u, v, of_following) for u, v in row)]
        tables = {edge: (reads, None, None)} | {edge + e: (follows, None, None) for e in (1, 2, 3)}
        switches.append(Switch(at + 3, {at: decided, at + 1: decided}, tables))
        windows.append(Window({at: streams}, {}))
        last = at + 2
    edges.append(Edge(last, 1, of_following))  # so that no end is a place to begin
    return Network(tuple(variables), tuple(edges), capacities=(0,), switches=tuple(switches), windows=tuple(windows))


def test_equal_windows_share_weights() -> None:
    network = layers_beside(4, 3, 2)
    check_network(network)
    cuts = Cuts(compile_network(network))
    assert len(cuts.counts) == 1  # of four windows
    assert len(cuts.weights(cuts.first())) == 4
    priced = Search(network, Limits(), "test")
    assert price_windows(compile_network(network), priced) is not None
    rng = np.random.default_rng(1)
    some = ([int(rng.integers(len(v.cost))) for v in network.variables] for _ in range(200))
    assert 0 < priced.bound <= min(evaluate(network, assignment).cost for assignment in some)


def test_no_table_has_the_modes_of_several_layers() -> None:
    circuit = compile_network(layers_beside(8, 9, 3))
    assert max(bucket.modes for bucket in circuit.buckets if bucket.variable is not None) == 3


def test_a_first_plan_does_not_take_traffic_for_free() -> None:
    streams = np.array([[10, 12], [1000, 0]])  # of either option kernels, and traffic
    variable = Variable("layer", np.zeros(2, np.int64), np.zeros((2, 1), np.int64))
    network = Network((variable,), (), capacities=(0,), windows=(Window({0: streams}, {}),))
    assert solver("auto").solve(network, Limits(quick=True, gap=0.1)).objective == 12


def test_too_many_windows_in_a_segment_are_refused_before_their_ways_are_listed() -> None:
    circuit = compile_network(layers_beside(18, 3, 2))
    weights = dict.fromkeys(range(18), (0.5, 0.5))
    tracemalloc.start()
    try:
        with pytest.raises(TooWideError, match="18 windows in one segment"):
            with_columns(circuit, {*range(len(circuit.factors))}, weights)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20  # ways: 2^18
    finally:
        tracemalloc.stop()
