"""Networks of equal layers, too wide for elimination: prices on hubs bound every assignment, and every option."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from math import floor

import numpy as np
import pytest

from partita.formulation.network.checks import check_network
from partita.formulation.network.loose_hubs import without_modes
from partita.formulation.network.network import (
    INFINITE,
    Edge,
    Network,
    Switch,
    SwitchTables,
    Table,
    Variable,
    evaluate,
)
from partita.solvers.elimination.order import compile_network
from partita.solvers.elimination.transient_memory import plainest, without_windows
from partita.solvers.protocol import NO_LIMITS, Limits, Search, Status, solver
from partita.solvers.wide import solve_narrowed
from partita.solvers.wide.hub_prices import HubPrices

from .layer_pairs import assert_agrees, layered

_SIZES = {"a": 2, "b": 3, "u": 2, "v": 3}


def layers(rng: random.Random, count: int, decided: int = 2) -> Network:
    """Equal layers of two operators that read both hubs of the layer before, none of which is of little consequence.

    In half of them a switch decides on so many edges; on more than two, also on those that read hubs, with transient
    use.
    """

    def table(*shape: int, most: int = 99) -> Table:
        return np.array([rng.randint(0, most) for _ in range(int(np.prod(shape)))], dtype=np.int64).reshape(shape)

    ends = [(x, y, further) for x, y, further in (*product("ab", "uv", (False,)), *product("uv", "ab", (True,)))]
    costs = {key: table(_SIZES[key[0]], _SIZES[key[1]]) for key in ends}
    uses = {key: table(*costs[key].shape, 1, most=5) for key in ends}
    own = {name: (table(_SIZES[name]), table(_SIZES[name], 1)) for name in "ab"}
    free = {name: (np.zeros(_SIZES[name], np.int64), np.zeros((_SIZES[name], 1), np.int64)) for name in "uv"}
    if rng.random() < 0.5:
        costs["a", "v", False][0, 0] = INFINITE
    modes = {
        key: (np.stack([costs[key], table(*costs[key].shape)]), np.stack([uses[key]] * 2), None)
        for key in ends[: 2 * (rng.random() < 0.5)]
    }
    if decided > 2:
        modes = {
            key: (
                np.stack([costs[key], table(*costs[key].shape)]),
                np.stack([uses[key], table(*uses[key].shape, most=9)]),
                count * table(2, *costs[key].shape),
            )
            for key in ends[-decided:]
        }
    hidden = [key for key in ends[2:] if decided <= 2 or key not in modes]
    streams = {key: table(2, *costs[key].shape) for key in hidden} if rng.random() < 0.5 else {}
    edges = {key: (costs[key], uses[key]) for key in ends}
    made = layered(count, own | free, edges, modes, streams, rng.randint(60, 260) * count)
    check_network(made)
    return made


def with_dear_modes(network: Network) -> Network:
    """The network, whose other modes cost no less than the first."""

    def dearer(tables: Mapping[int, SwitchTables]) -> dict[int, SwitchTables]:
        return {key: (np.maximum(cost, cost[:1]), *others) for key, (cost, *others) in tables.items()}

    switches = (replace(s, variables=dearer(s.variables), edges=dearer(s.edges)) for s in network.switches)
    return replace(network, switches=tuple(switches))


def assert_bounds_options(plain: Network, price: tuple[float], bound: int, excess: Sequence[np.ndarray]) -> None:
    """The best assignment with any one option, by elimination, costs at least the bound and its excess."""
    circuit = compile_network(plain)
    slots = circuit.forward(circuit.tables(1, price))
    through = circuit.backward(slots)
    paid = plain.constant - price[0] * plain.capacities[0]
    assert bound <= paid + float(slots[circuit.root])
    for leaf, table in zip(circuit.leaves, through, strict=False):
        for axis, v in enumerate(leaf.scope):
            best = table.min(axis=tuple(a for a in range(table.ndim) if a != axis)) + paid
            assert np.all(bound + excess[v] <= best + 1e-6)


@pytest.mark.parametrize("tied", [False, True], ids=["loose", "tied"])
@pytest.mark.parametrize("seed", range(12))
def test_no_option_has_too_much_excess(seed: int, tied: bool) -> None:
    rng = random.Random(seed)
    network = layers(rng, 4)
    plain = replace(plainest(network), chains=(), pairs=(), line=())
    price = (rng.choice([0.0, 0.3, 1.7]),)
    prices = HubPrices(plain, price)
    assert prices.hubs
    first = prices.climb(1e-3)
    if tied:
        close = prices.close()
        assert close
        prices = HubPrices(plain, price, prices, frozenset(sorted(close)[:2]))
        assert prices.climb(1e-3) >= first - 1e-6 * abs(first) - len(network.edges)
    assert_bounds_options(plain, price, *prices.options())


@pytest.mark.parametrize("seed", [0, 3])
def test_prices_on_no_hubs_are_the_optimum_of_components(seed: int) -> None:
    """As where elimination takes each hub with all of its readers."""
    plain = replace(without_windows(layers(random.Random(seed), 3, 8)), chains=(), pairs=(), line=())
    every = HubPrices(plain, (0.3,)).hubs
    assert every
    prices = HubPrices(plain, (0.3,), tied=frozenset(every))
    without = replace(plain, switches=tuple(s.with_tables(lambda t: (*t[:2], None)) for s in plain.switches))
    circuit = compile_network(without)
    least = float(circuit.forward(circuit.tables(1, (0.3,)))[circuit.root]) + plain.constant - 0.3 * plain.capacities[0]
    bound, excess = prices.options()
    assert least - len(plain.edges) - 1 <= bound == int(prices.climb(1e-3)) <= least
    assert_bounds_options(without, (0.3,), bound, excess)


@pytest.mark.parametrize("modes", [2, 3])
def test_switches_of_one_component_are_in_modes_of_their_own(modes: int) -> None:
    """One costs nothing in its first mode, the other in its last, beside a hub that both read."""
    none, costs = np.zeros((4, 0), np.int64), [np.full((own, 2, 1), 9) for own in (2, modes)]
    costs[0][:, 0, 0], costs[1][:, 0, 0] = (0, 5), (*[5] * (modes - 1), 0)
    sizes = 2, 1, 1, 1, 1, 2, modes  # the hub, four readers, and what decides on the first two
    variables = tuple(Variable(f"v{i}", np.zeros(n, np.int64), none[:n]) for i, n in enumerate(sizes))
    ends = (*((0, v, (2, 1)) for v in range(1, 5)), (1, 2, (1, 1)))
    edges = tuple(
        Edge(u, v, costs[k][0] if k < len(costs) else np.zeros(shape, np.int64)) for k, (u, v, shape) in enumerate(ends)
    )
    switches = tuple(Switch(5 + k, {}, {k: (own, None, None)}) for k, own in enumerate(costs))
    network = Network(variables, edges, switches=switches)
    check_network(network)
    prices = HubPrices(network, (), tied=frozenset(range(1, 7)))
    assert prices.hubs == {0}
    bound, excess = prices.options()
    assert bound == 0 == excess[0][0] and excess[0][1] == 9


@pytest.mark.parametrize("decided", [2, 8])
def test_what_has_no_solution_without_hubs_has_none(decided: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("partita.solvers.wide.solve_narrowed.is_narrow", lambda _: False)
    some = layers(random.Random(1), 4, decided)
    variables = [replace(v, cost=v.cost + INFINITE * (v.name == "a2")) for v in some.variables]
    search = Search(replace(some, variables=tuple(variables)), Limits(prices=(0.3,)), "")
    answer = solve_narrowed.solve_narrowed(search, lambda *_: pytest.fail("nothing is left to solve"))
    assert answer is not None and answer.status is Status.INFEASIBLE


def with_mean_extras(network: Network) -> Network:
    """The network that counts the mean of all switches' transient use, which is a whole number of bytes."""
    count = len(network.switches)

    def counted(tables: SwitchTables) -> SwitchTables:
        cost, use, extra = tables
        assert use is not None and extra is not None
        return cost, use + extra[..., None] // count, None

    return replace(network, switches=tuple(s.with_tables(counted) for s in network.switches))


@pytest.mark.parametrize("start", ["none", "modeless", "dearer"])
@pytest.mark.parametrize("decided", [3, 5, 8])
@pytest.mark.parametrize("seed", range(4))
def test_prices_of_modes_bound_options(seed: int, decided: int, start: str) -> None:
    """Where memory and transient use have prices, and switches decide on readers of hubs of two layers."""
    rng = random.Random(seed)
    network = layers(rng, 4, decided)
    plain = replace(without_windows(network), chains=(), pairs=(), line=())
    price = (rng.choice([0.1, 0.3, 1.7]),)
    transient = {s.variable: price[0] / 4 for s in plain.switches}
    first = None
    if start == "modeless":
        first = HubPrices(without_modes(with_dear_modes(plain)) or plain, price)
    elif start == "dearer":
        first = HubPrices(plain, (2 * price[0],), transient=transient)
    if first is not None:
        first.climb(1e-3)
    prices = HubPrices(plain, price, first, transient=transient)
    assert prices.hubs and any(len(own) == 2 for own in prices.prices.values())
    prices.climb(1e-3)
    assert_bounds_options(with_mean_extras(plain), price, *prices.options())


@pytest.mark.parametrize("seed", [2, 4, 6])
def test_dear_modes_change_no_bound(seed: int) -> None:
    """Where memory costs nothing; where another mode costs less somewhere, modes stay."""
    cheap = layers(random.Random(seed), 4)
    plain = replace(plainest(with_dear_modes(cheap)), chains=(), pairs=(), line=())
    assert plain.switches and without_modes(cheap) is None
    without = without_modes(plain)
    assert without is not None and not without.switches
    prices = HubPrices(without, (0.0,))
    prices.climb(1e-3)
    assert_bounds_options(plain, (0.0,), *prices.options())


@pytest.mark.parametrize(("seed", "dear"), [(0, False), (1, False), (3, False), (4, False), (3, True), (4, True)])
@pytest.mark.parametrize("name", ["auto", "elimination"])
def test_bounds_hold(name: str, seed: int, dear: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against a solver that leaves nothing out, where elimination takes four fifths of the options."""
    monkeypatch.setattr("partita.formulation.network.joined_pairs.MOST_OPTIONS", 3)  # so that no pair is joined
    network = layers(random.Random(seed), 4)
    network = with_dear_modes(network) if dear else network
    total = sum(len(v.cost) for v in network.variables)

    def narrow(given: Network) -> bool:
        return sum(len(v.cost) for v in given.variables) <= 0.8 * total

    monkeypatch.setattr("partita.solvers.wide.solve_loosened.is_narrow", narrow)
    monkeypatch.setattr("partita.solvers.wide.solve_narrowed.is_narrow", narrow)
    climbed, climb = list[float](), HubPrices.climb

    def counted(prices: HubPrices, rise: float, until: float, wanted: float) -> float:
        climbed.append(climb(prices, rise, until, wanted))
        return climbed[-1]

    monkeypatch.setattr(HubPrices, "climb", counted)
    reference = solver("cpsat-plain").solve(network, NO_LIMITS)
    for gap, prices in ((0.05, ()), (0.0, (0.3,)), (0.0, ())):
        climbed.clear()
        answer = solver(name).solve(network, Limits(gap=gap, prices=prices))
        assert climbed
        assert_agrees(network, answer, reference)
    enough = floor(climbed[0])
    climbed.clear()
    answer = solver(name).solve(network, Limits(enough=enough))
    assert len(climbed) == 1 and enough <= answer.bound <= reference.bound
    for more, gap in ((1, 0.0), (reference.bound, 0.05)):  # the latter is never reached
        answer = solver(name).solve(network, Limits(enough=enough + more, cutoff=2 * reference.bound, gap=gap))
        assert answer.bound <= reference.bound
        assert answer.assignment is None or evaluate(network, answer.assignment).cost == answer.objective


@pytest.mark.parametrize("seed", [0, 4])
def test_prices_of_memory_and_modes_bound_the_optimum(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where elimination takes four fifths of the options, and each group of switches has a price of transient use."""
    monkeypatch.setattr("partita.formulation.network.joined_pairs.MOST_OPTIONS", 3)
    rng = random.Random(seed)
    network = layers(rng, 4, 8)
    cheaper = (s.with_tables(lambda t: (np.concatenate([t[0][:1], t[0][1:] // 4]), *t[1:])) for s in network.switches)
    network = replace(network, switches=tuple(cheaper))
    some = [evaluate(network, [rng.randrange(len(v.cost)) for v in network.variables]) for _ in range(40)]
    network = replace(network, capacities=(sorted(x.use[0] for x in some)[10],))
    total = sum(len(v.cost) for v in network.variables)
    for module in ("solve_loosened", "solve_narrowed"):
        narrow = lambda given: sum(len(v.cost) for v in given.variables) <= 0.8 * total  # noqa: E731
        monkeypatch.setattr(f"partita.solvers.wide.{module}.is_narrow", narrow)
    answer = solver("elimination").solve(network, Limits(prices=(0.3,) * len(network.switches)))
    assert_agrees(network, answer, solver("cpsat-plain").solve(network, NO_LIMITS))


def test_options_that_prices_prove_nothing_of_bound_nothing() -> None:
    network = replace(plainest(layers(random.Random(3), 4)), capacities=(10**6,))
    best = solver("cpsat-plain").solve(network, NO_LIMITS)
    assert best.assignment is not None and best.objective is not None
    excess = [np.zeros(len(v.cost)) for v in network.variables]
    excess[-1][best.assignment[-1]], search = 1e15, Search(network, Limits(), "")
    found = solve_narrowed._of_few_options(search, solver("elimination").solve, 10**9, excess, proves=False)
    assert found is not None and found.bound > best.objective > search.bound
