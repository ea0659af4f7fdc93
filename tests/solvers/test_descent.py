"""Descent: never worse, never over a capacity, the same for a seed, the optimum of most small networks; and fusion."""

import itertools
import threading
import time

import numpy as np
import pytest

from partita.formulation.network.network import INFINITE
from partita.model.errors import PartitaError
from partita.solvers.wide.blocks import (
    changed_cost,
    changed_load,
    clear,
    grow,
    net_of,
    scratch,
    solve_tree,
    sum_prices,
)
from partita.solvers.wide.descent import Descent, least_changes
from partita.solvers.wide.form import Flat
from partita.solvers.wide.integer import fused, restricted
from partita.solvers.wide.shared_state import Deadline


def offsets(sizes):
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)


def network(rng, variables=6, options=4, rows=3, forbidden=0.2, density=0.5):
    """A random network: about a share `density` of all pairs, pieces over random ranges of rows."""
    sizes = rng.integers(1, options + 1, variables)
    pairs = [p for p in itertools.combinations(range(variables), 2) if rng.random() < density]
    tables = [rng.integers(0, 20, sizes[u] * sizes[v]) for u, v in pairs]
    tables = [np.where(rng.random(len(t)) < forbidden, INFINITE, t) for t in tables]
    pieces = [v for v in range(variables) for _ in range(rng.integers(0, 3)) if rows]
    ranges = [sorted(rng.choice(rows + 1, 2, replace=False)) for _ in pieces]
    uses = [rng.integers(0, 10, sizes[v]) for v in pieces]
    return Flat(
        start=offsets(sizes),
        cost=rng.integers(0, 20, sizes.sum()),
        ends=np.array(pairs, np.int64).reshape(-1, 2),
        at=offsets([len(t) for t in tables]),
        table=np.concatenate([np.zeros(0, np.int64), *tables]),
        limits=rng.integers(variables, 5 * variables, rows),
        piece_of=np.array(pieces, np.int64),
        rows=np.array(ranges, np.int64).reshape(-1, 2),
        use_at=offsets([len(u) for u in uses]),
        use=np.concatenate([np.zeros(0, np.int64), *uses]),
        constant=int(rng.integers(0, 5)),
    )


def optimum(flat):
    prices = [flat.price(np.array(c)) for c in itertools.product(*(range(n) for n in flat.sizes))]
    return min((p for p in prices if p is not None), default=None)


def anywhere(flat, rng):
    return rng.integers(0, flat.sizes)


def descended(flat, choice, seed, rounds=80):
    descent = Descent(flat, choice, seed=seed)
    for _ in range(rounds):
        descent.round()
    return descent


def test_reaches_the_optimum_of_most_small_networks():
    reached = feasible = 0
    for seed in range(160):
        rng = np.random.default_rng(seed)
        flat = network(rng, forbidden=(0.0, 0.1, 0.2)[seed % 3], rows=seed % 4)
        best, descent = optimum(flat), descended(flat, anywhere(flat, rng), seed)
        if best is None:
            assert descent.best is None
            continue
        feasible += 1
        if descent.best is not None:
            assert descent.cost == flat.price(descent.best) >= best
            reached += descent.cost == best
    assert feasible > 80
    assert reached >= 0.92 * feasible


def test_never_gets_worse_and_prices_what_it_has():
    for seed in range(60):
        rng = np.random.default_rng(seed)
        flat = network(rng, variables=12, density=0.4)
        descent, costs = Descent(flat, anywhere(flat, rng), seed=seed), []
        for _ in range(30):
            descent.round()
            assert (descent.load == flat.loads(descent.choice)).all()
            assert (descent.best is None) == (descent.cost is None)
            if descent.best is not None:
                assert flat.price(descent.best) == descent.cost
                costs.append(descent.cost)
        assert costs == sorted(costs, reverse=True)


def test_the_same_seed_does_the_same():
    flat = network(np.random.default_rng(3), variables=30, options=6, density=0.2, forbidden=0.05)
    start = np.zeros(30, np.int64)
    one, two = descended(flat, start, 5), descended(flat, start, 5)
    assert (one.choice == two.choice).all() and one.cost == two.cost and (one.prices == two.prices).all()
    assert not np.array_equal(one.state, descended(flat, start, 6).state)


def under(prices, flat, choice):
    """What a choice costs and pays, forbidden costs counted as descent does."""
    costs = np.concatenate([flat.cost[flat.start[:-1] + choice], flat.table[flat.entries(choice)]])
    return float(np.minimum(costs, net_of(flat).forbidden).sum() + prices @ flat.loads(choice))


def test_a_block_is_an_induced_tree_and_its_choice_the_best_under_prices():
    for seed in range(100):
        rng = np.random.default_rng(seed)
        flat = network(rng, variables=8, options=3, density=0.3, forbidden=0.1)
        net, choice, state = net_of(flat), anywhere(flat, rng), np.array([seed * 77 + 1])
        room, prices = scratch(net, choice), rng.random(len(flat.limits))
        count = grow(net, room, int(rng.integers(8)), 8, state)
        block = room.order[:count].tolist()
        inside = [(u, v) for u, v in flat.ends.tolist() if u in block and v in block]
        assert len(set(block)) == count and len(inside) == count - 1
        sum_prices(prices, room.prefix)
        solve_tree(net, room, count, choice, 0.0, state)

        others = []
        for options in itertools.product(*(range(flat.sizes[v]) for v in block)):
            other = choice.copy()
            other[block] = options
            others.append(under(prices, flat, other))
        assert under(prices, flat, room.new) == pytest.approx(min(others))
        changed_load(net, room, count, choice)
        assert (room.load[:-1] == flat.loads(room.new) - flat.loads(choice)).all()
        free = np.zeros_like(prices)
        assert changed_cost(net, room, count, choice) == under(free, flat, room.new) - under(free, flat, choice)
        clear(net, room, count)
        assert not room.near.any()


def test_the_least_changes():
    flat = network(np.random.default_rng(1), variables=6, forbidden=0.0)
    choice = np.zeros(6, np.int64)
    plain = Flat(**{name: getattr(flat, name) for name in Flat.__slots__} | {"limits": flat.limits + 1000})
    for v, least in enumerate(least_changes(net_of(plain), choice)):
        alone = [plain.price(choice + (np.arange(6) == v) * x) - plain.price(choice) for x in range(plain.sizes[v])]
        assert least == min((a for a in alone if a > 0), default=np.inf)


def test_a_start_that_fits_nowhere_is_repaired():
    """Two options, dear and small or cheap and large; all cheap exceeds the one capacity."""
    n = 50
    flat = Flat(
        start=2 * np.arange(n + 1),
        cost=np.tile([10, 1], n),
        ends=np.stack([np.arange(n - 1), np.arange(1, n)], axis=1),
        at=4 * np.arange(n),
        table=np.tile([0, 3, 3, 0], n - 1),
        limits=np.array([20]),
        piece_of=np.arange(n),
        rows=np.tile([0, 1], (n, 1)),
        use_at=2 * np.arange(n + 1),
        use=np.tile([0, 1], n),
    )
    descent = descended(flat, np.ones(n, np.int64), 0)
    assert descent.cost == 30 * 10 + 20 * 1 + 3  # one run of 20 at an end


def test_networks_without_variables_edges_or_rows():
    flat = network(np.random.default_rng(0), variables=5, rows=0, density=0.0)
    assert descended(flat, np.zeros(5, np.int64), 0).cost == optimum(flat)
    empty = network(np.random.default_rng(0), variables=0, rows=0)
    assert descended(empty, np.zeros(0, np.int64), 0).cost == empty.constant


def test_pairs_that_use_a_capacity_are_refused():
    flat = network(np.random.default_rng(0))
    uses = Flat(**{name: getattr(flat, name) for name in Flat.__slots__} | {"pair_use": np.zeros((len(flat.table), 3))})
    with pytest.raises(PartitaError, match="pairs use no capacity"):
        Descent(uses, np.zeros(6, np.int64))


def test_threads_share_the_arrays_and_stop_in_time():
    flat = network(np.random.default_rng(2), variables=200, options=8, density=0.02, forbidden=0.0)
    net = net_of(flat)
    both = [Descent(flat, np.zeros(200, np.int64), seed=seed, net=net) for seed in (0, 1)]
    for descent in both:
        descent.round()  # compiles
    end = time.perf_counter() + 0.5
    threads = [threading.Thread(target=descent.run, args=(Deadline(end),)) for descent in both]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert time.perf_counter() < end + 10
    for descent in both:
        assert descent.best is not None and flat.price(descent.best) == descent.cost
    best = min(both, key=lambda d: d.cost)
    other = both[best is both[0]]
    other.adopt(best.best)
    assert other.cost == best.cost


def test_fusion_is_the_best_combination():
    better = 0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        flat = network(rng, variables=7, forbidden=0.1)
        choices = [anywhere(flat, rng) for _ in range(3)]
        known = min((p for p in map(flat.price, choices) if p is not None), default=INFINITE)
        combinations = itertools.product(*(sorted({int(c[v]) for c in choices}) for v in range(7)))
        prices = [flat.price(np.array(c)) for c in combinations]
        best = min((p for p in prices if p is not None), default=INFINITE)
        found = fused(flat, choices, Deadline(time.perf_counter() + 30))
        if best < known:
            assert found is not None and flat.price(found) == best
            better += 1
        else:
            assert found is None
    assert better > 50


def test_restricted_networks_price_as_before():
    flat = network(np.random.default_rng(4), forbidden=0.0)
    one, two = np.zeros(6, np.int64), flat.sizes - 1
    small = restricted(flat, [one])
    assert small.price(one) == flat.price(one)
    assert small.price(two) is None
    assert restricted(flat, [one, two]).price(two) == flat.price(two)
