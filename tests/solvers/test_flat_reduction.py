"""Exact reduction of flat networks: the same optimum by brute force, and a way back, for every step and for all."""

import os
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partita.formulation.network.checks import check_network
from partita.formulation.network.network import INFINITE, evaluate
from partita.solvers.wide import form
from partita.solvers.wide.arcs import without_dead_options, without_sums
from partita.solvers.wide.degree import eliminated
from partita.solvers.wide.dominance import without_dominated
from partita.solvers.wide.form import Flat, fits, flattened, in_floats
from partita.solvers.wide.merging import merged
from partita.solvers.wide.reduce import STEPS, reduced
from partita.solvers.wide.rows import tightened
from partita.solvers.wide.solve_reduced import unflattened

X = INFINITE
NONE = 1 << 50  # no choice of a small network costs as much; many of them do not overflow


def flat(costs, edges=(), limits=(), pieces=(), constant=0, pair_use=None):
    """Prices by variable; edges (u, v, table); pieces (variable, first row, last row, uses)."""
    tables = [np.array(t, np.int64) for _, _, t in edges]
    lengths = [len(c) for c in costs], [t.size for t in tables], [len(p[3]) for p in pieces]
    start, at, use_at = (np.cumsum([0, *x]).astype(np.int64) for x in lengths)
    return Flat(
        start=start,
        cost=np.array([x for c in costs for x in c], np.int64),
        ends=np.array([e[:2] for e in edges], np.int64).reshape(-1, 2),
        at=at,
        table=np.concatenate([t.ravel() for t in tables]) if tables else np.zeros(0, np.int64),
        limits=np.array(limits, np.int64),
        piece_of=np.array([p[0] for p in pieces], np.int64),
        rows=np.array([p[1:3] for p in pieces], np.int64).reshape(-1, 2),
        use_at=use_at,
        use=np.array([x for p in pieces for x in p[3]], np.int64),
        pair_use=pair_use,
        constant=constant,
    )


def check_form(net):
    """The rules of `Flat`, which every step must keep."""
    assert (net.sizes > 0).all()
    assert len(net.cost) == net.start[-1] and len(net.table) == net.at[-1] and len(net.use) == net.use_at[-1]
    assert (net.ends[:, 0] < net.ends[:, 1]).all()
    assert len({tuple(e) for e in net.ends.tolist()}) == len(net.ends)
    assert (np.diff(net.at) == net.sizes[net.ends[:, 0]] * net.sizes[net.ends[:, 1]]).all()
    assert (np.diff(net.use_at) == net.sizes[net.piece_of]).all()
    assert (net.use >= 0).all() and (net.rows >= 0).all() and (net.rows <= len(net.limits)).all()
    assert net.pair_use is None or net.pair_use.shape == (len(net.table), len(net.limits))
    assert all(x.dtype == np.int64 for x in (net.cost, net.table, net.limits, net.use, net.rows, net.piece_of))


def prices(net):
    """All choices [N, V] of a small network, and the price [N] of each, NONE or more where it is not feasible."""
    choices = (
        np.indices(net.sizes.tolist()).reshape(net.variables, -1).T if net.variables else np.zeros((1, 0), np.int64)
    )
    price = net.constant + np.minimum(net.cost, NONE)[net.start[:-1] + choices].sum(axis=1)
    load = np.zeros((len(choices), len(net.limits)), np.int64)
    for e, (u, v) in enumerate(net.ends.tolist()):
        entry = net.at[e] + choices[:, u] * net.sizes[v] + choices[:, v]
        price += np.minimum(net.table, NONE)[entry]
        if net.pair_use is not None:
            load += net.pair_use[entry]
    for p, v in enumerate(net.piece_of.tolist()):
        load[:, slice(*net.rows[p])] += net.use[net.use_at[p] + choices[:, v], None]
    price[(load > net.limits).any(axis=1)] = 2 * NONE
    return choices, price


def best(net):
    """The price of the best choice, or None."""
    least = int(prices(net)[1].min())
    return least if least < NONE >> 1 else None


def confirm(before, after):
    """The same optimum, and every feasible choice of the smaller network lifts to one of the same price."""
    truth = best(before)
    if after is None:
        assert truth is None
        return
    check_form(after.flat)
    choices, price = prices(after.flat)
    feasible = np.flatnonzero(price < NONE >> 1)
    assert price[feasible].min(initial=X) == (X if truth is None else truth)
    for i in feasible[:: 1 + len(feasible) // 20]:
        assert before.price(after.lift(choices[i])) == price[i]


def table(rng, rows, columns):
    """A random table: plain, a sum, a function of either end, or with many infinities."""
    kind = rng.integers(6)
    entries = rng.integers(0, rng.choice([2, 4, 30]), (rows, columns))
    if kind == 0:
        entries = entries[:1] + entries[:, :1]
    if kind in (1, 2):
        function = rng.integers(columns, size=rows)
        entries[np.arange(columns) != function[:, None]] = X
    if kind == 3:
        function = rng.integers(rows, size=columns)
        entries[np.arange(rows)[:, None] != function] = X
    if kind == 4:
        entries[rng.random((rows, columns)) < rng.choice([0.2, 0.5])] = X
    return entries


def random_flat(seed):
    """At most 5 variables and some 400 choices: ties, infinities, overlapping pieces, pairs that use."""
    rng = np.random.default_rng(seed)
    count = int(rng.integers(1, 6))
    sizes = rng.integers(1, 4 if count > 3 else 5, count)
    costs = [rng.integers(rng.choice([0, -5]), 8, n) for n in sizes]
    for cost in costs:
        cost[rng.random(len(cost)) < rng.choice([0, 0.2])] = X
    density = rng.choice([0.3, 0.6, 1.0])
    edges = [
        (u, v, table(rng, sizes[u], sizes[v]))
        for u in range(count)
        for v in range(u + 1, count)
        if rng.random() < density
    ]
    rows = int(rng.choice([0, 1, 2, 6]))
    pieces = []
    for v in rng.integers(count, size=rng.integers(0, 9) if rows else 0).tolist():
        first = int(rng.integers(rows))
        pieces.append((v, first, int(rng.integers(first, rows + 1)), rng.integers(0, rng.choice([2, 4]), sizes[v])))
    pair_use = None
    if edges and rows in (1, 2) and rng.random() < 0.7:
        parts = [rng.integers(0, 3, (t.size, rows)) * (rng.random() < 0.5) for _, _, t in edges]
        pair_use = np.concatenate(parts).astype(np.int64)
    limits = rng.integers(0, 8, rows) if rng.random() < 0.5 else np.full(rows, rng.integers(1, 8))
    return flat(costs, edges, limits, pieces, int(rng.integers(-3, 4)), pair_use)


SEEDS = st.integers(0, 10**9)


def examples(count):
    """So many examples of a property, each as slow as it likes."""
    return settings(max_examples=count, deadline=None)


@examples(600)
@given(SEEDS)
def test_all_steps_together_keep_the_optimum(seed):
    net = random_flat(seed)
    confirm(net, reduced(net))


@pytest.mark.parametrize("step", STEPS, ids=lambda s: s.__name__)
@examples(300)
@given(SEEDS)
def test_each_step_alone_keeps_the_optimum(step, seed):
    net = random_flat(seed)
    if step is merged:  # promises nothing where an option has no partner
        clean = without_dead_options(net)
        if clean is None:
            return
        net = clean.flat
    confirm(net, step(net))


def scaled(net, factor):
    """All finite costs times a factor."""
    cost, entries = (np.where(x < X, x * factor, X) for x in (net.cost, net.table))
    return replace(net, cost=cost, table=entries, constant=net.constant * factor)


@examples(400)
@given(SEEDS)
def test_costs_as_large_as_are_accepted_do_not_overflow(seed):
    net = random_flat(seed)
    parts = [x[a:b] for x, at in ((net.cost, net.start), (net.table, net.at)) for a, b in pairwise(at.tolist())]
    finite = [[0, *part[part < X].tolist()] for part in parts]
    most = sum(max(part) - 2 * min(part) for part in finite) + abs(net.constant)
    factor = (X - 2) // max(1, most)
    large = scaled(net, factor)
    assert fits(large)
    after, truth = reduced(large), best(net)
    found = None if after is None else [after.flat.price(choice) for choice in prices(after.flat)[0]]
    assert min((x for x in found or [] if x is not None), default=None) == (None if truth is None else truth * factor)


@examples(400)
@given(SEEDS, st.integers(10, 60))
def test_costs_cut_for_floats_are_a_bound_and_often_exact(seed, room):
    after = reduced(random_flat(seed))
    if after is None:
        return
    net = after.flat
    with patch.object(form, "_EXACT", room):
        cut = in_floats(net)
    if cut is None:
        assert abs(net.constant) + len(net.sizes) + len(net.ends) >= room
        return
    high = [x[x < X] for x in (cut.cost, cut.table)]
    level = max((int(x.max(initial=0)) for x in high), default=0)
    for choice, price in zip(*prices(net), strict=True):
        found = cut.price(choice)
        assert (found is None) == (price >= NONE >> 1)
        assert found is None or found == price or net.floor() + level <= found < price


@examples(200)
@given(SEEDS)
def test_arrays_and_network_say_the_same(seed):
    net = random_flat(seed)
    problem = unflattened(net)
    check_network(problem)
    again, choices = flattened(problem), prices(net)[0]
    for i in range(0, len(choices), 1 + len(choices) // 10):
        verdict, here = evaluate(problem, tuple(choices[i].tolist())), net.price(choices[i])
        assert verdict.feasible == (here is not None) and here in (None, verdict.cost)
        assert again.price(choices[i]) == here
        assert here is None or here >= net.floor()


@examples(600)
@given(SEEDS)
def test_fewer_rows_leave_the_same_choices_feasible(seed):
    rng = np.random.default_rng(seed)
    sizes, rows = rng.integers(1, 4, rng.integers(2, 5)), int(rng.integers(2, 9))
    pieces = []
    for v in rng.integers(len(sizes), size=rng.integers(4, 14)).tolist():
        first = int(rng.integers(rows))
        pieces.append((v, first, int(rng.integers(first, rows + 1)), rng.integers(0, 4, sizes[v])))
    limits = rng.integers(4, 12) + rng.integers(0, rng.choice([1, 3]), rows)
    net = flat([[0] * n for n in sizes], (), limits, pieces)
    after = tightened(net)
    before_prices = prices(net)[1]
    if after is None:
        assert (before_prices >= NONE).all()
    else:
        assert ((prices(after.flat)[1] < NONE) == (before_prices < NONE)).all()


@examples(400)
@given(SEEDS, st.integers(0, 8))
def test_a_time_limit_stops_between_two_steps(seed, steps):
    net = random_flat(seed)
    with patch.object(time, "perf_counter", iter(range(1000)).__next__):
        after = reduced(net, until=steps)
    confirm(net, after)


# One fact each


def test_options_without_a_finite_partner_go_in_a_chain():
    net = flat([[0, 0], [0, 0], [1, 2]], [(0, 1, [[0, X], [X, 0]]), (1, 2, [[X, X], [5, 6]])])
    after = without_dead_options(net)
    assert after.flat.sizes.tolist() == [1, 1, 2]
    assert after.lift(np.array([0, 0, 1])).tolist() == [1, 1, 1]


def test_no_option_left_is_infeasible():
    assert without_dead_options(flat([[0, 0], [0]], [(0, 1, [[X], [X]])])) is None
    assert without_dead_options(flat([[X, X]])) is None
    assert without_sums(flat([[X, X]])) is None
    assert reduced(flat([[0, 0], [0, X]], [(0, 1, [[X, 1], [X, 1]])])) is None


def test_a_table_that_is_a_sum_becomes_prices():
    after = without_sums(flat([[0, 0], [0, 0, 0]], [(0, 1, [[3, 4, 5], [7, 8, 9]])])).flat
    assert len(after.ends) == 0
    assert (after.cost.tolist(), after.constant) == ([0, 4, 0, 1, 2], 3)


def test_a_variable_that_is_a_function_becomes_part_of_its_neighbour():
    function = [[1, X], [X, 2], [3, X]]
    net = flat([[0, 0, 0], [10, 20], [0, 0]], [(0, 1, function), (1, 2, [[0, 7], [8, 0]])], [9], [(1, 0, 1, [4, 5])])
    after = merged(net)
    assert after.flat.cost.tolist() == [11, 22, 13, 0, 0]
    assert after.flat.table.tolist() == [0, 7, 8, 0, 0, 7]
    assert (after.flat.piece_of.tolist(), after.flat.use.tolist()) == ([0], [4, 5, 4])
    assert after.lift(np.array([2, 1])).tolist() == [2, 0, 1]


def test_a_function_of_many_options_is_merged_only_where_nothing_grows():
    """Each of 40 options names one of 2: a variable between others stays 2 wide, a leaf goes."""
    parity = np.where(np.arange(40) % 2 == np.arange(2)[:, None], 0, X)
    ring = [(u, v, np.arange(4).reshape(2, 2)) for u, v in pairwise(range(5))] + [(0, 4, np.ones((2, 2)))]
    net = flat([[0, 0]] * 5 + [range(40)] * 5, [*ring, *((v, v + 5, parity) for v in range(5))])
    assert merged(net).flat is net
    leaf = flat([[0, 5], list(range(40))], [(0, 1, parity)])
    assert (merged(leaf).flat.variables, merged(leaf).flat.cost.tolist()[:4]) == (1, [0, 6, 2, 8])


def test_functions_around_a_ring_merge_once():
    swap = [[X, 0], [0, X]]
    net = flat([[0, 1], [0, 2], [0, 4]], [(0, 1, swap), (0, 2, swap), (1, 2, [[5, X], [X, 6]])])
    after = merged(net)
    assert (after.flat.variables, len(after.flat.ends)) == (1, 0)
    assert sorted(after.flat.cost.tolist()) == [6, 12]
    assert [net.price(after.lift(np.array([x]))) for x in range(2)] == after.flat.cost.tolist()


def test_the_least_use_leaves_the_limit():
    after = tightened(flat([[0, 0], [0, 0]], (), [10, 10], [(0, 0, 2, [4, 8]), (1, 1, 2, [3, 6])]))
    assert after.flat.limits.tolist() == [3]  # the first row is never full
    assert sorted(after.flat.use.tolist()) == [0, 0, 3, 4]


def test_an_option_too_large_for_a_limit_is_forbidden():
    after = tightened(flat([[0, 0], [0, 0]], (), [10], [(0, 0, 1, [4, 9]), (1, 0, 1, [3, 6])]))
    assert after.flat.cost.tolist() == [0, X, 0, 0]


def test_least_uses_above_a_limit_are_infeasible():
    assert tightened(flat([[0], [0, 0]], (), [5], [(0, 0, 1, [3]), (1, 0, 1, [3, 4])])) is None


def test_merging_makes_nothing_wider():
    """Both ends of the small table in the middle are functions of wide neighbours."""
    parity = np.where(np.arange(40)[:, None] % 2 == np.arange(2), 0, X)
    rng = np.random.default_rng(0)
    wide = [rng.integers(0, 99, 40).tolist() for _ in range(2)]
    net = flat([wide[0], [0, 0], [0, 0], wide[1]], [(0, 1, parity), (1, 2, [[0, 9], [9, 0]]), (2, 3, parity.T)])
    after = merged(net)
    assert 0 < len(after.flat.table) <= len(net.table)
    confirm(net, after)


def test_of_rows_only_the_fullest_remain():
    pieces = [(v, v, v + 3, [0, 5]) for v in range(4)]  # rows 2 and 3 hold three pieces each
    after = tightened(flat([[0, 0]] * 4, (), [9] * 7, pieces))
    assert len(after.flat.limits) == 2
    assert sorted(after.flat.rows.tolist()) == [[0, 1], [0, 2], [0, 2], [1, 2]]


def test_overlapping_pieces_of_a_variable_become_disjoint():
    net = flat([[0, 0, 0], [0, 0]], (), [6, 6, 6], [(0, 0, 2, [0, 1, 4]), (0, 1, 3, [0, 3, 1]), (1, 0, 3, [0, 4])])
    after = tightened(net).flat
    covered = [r for p in np.flatnonzero(after.piece_of == 0) for r in range(*after.rows[p])]
    assert len(covered) == len(set(covered))
    confirm(net, tightened(net))


def test_a_path_is_eliminated_and_lifted():
    path = flat([[0, 3], [1, 0, 9], [4, 0], [0, 2]], [(v, v + 1, np.arange(n * m).reshape(n, m) % 5)
                                                      for v, (n, m) in enumerate(pairwise([2, 3, 2, 2]))])  # fmt: skip
    after = reduced(path)
    assert after.flat.variables == 0
    assert path.price(after.lift(np.zeros(0, np.int64))) == after.flat.constant == best(path)


def test_what_uses_a_capacity_is_not_eliminated():
    net = flat([[0, 1], [0, 1]], [(0, 1, [[0, 9], [5, 0]])], [1], [(0, 0, 1, [1, 0]), (1, 0, 1, [1, 0])])
    assert eliminated(net).flat is net


def test_an_option_that_is_dearer_everywhere_goes():
    net = flat([[0, 4], [0, 0]], [(0, 1, [[1, 5], [0, 2]])])
    assert without_dominated(net).flat.sizes[0] == 1


def test_a_cheaper_option_that_uses_more_does_not_dominate():
    net = flat([[0, 4]], (), [1], [(0, 0, 1, [1, 0])])
    assert without_dominated(net).flat is net


def test_of_equal_options_one_remains():
    net = flat([[2, 2, 2], [0, 0]], [(0, 1, [[0, 3], [0, 3], [0, 3]])])
    after = without_dominated(net)
    assert after.flat.sizes[0] == 1


def test_a_pair_that_is_dearer_whatever_the_others_do_becomes_infinite():
    """Beside the second option of 0, the first of 1 is cheaper and uses no more; beside the first it is not."""
    net = flat([[0, 0], [0, 0]], [(0, 1, [[9, 0], [0, 9]])], [9], [(1, 0, 1, [0, 0])])
    assert without_dominated(net).flat.table.tolist() == [X, 0, 0, X]


def test_nothing_is_left_of_no_variables():
    after = reduced(flat([], constant=7))
    assert (after.flat.variables, after.flat.constant, after.lift(np.zeros(0, np.int64)).tolist()) == (0, 7, [])


INSTANCES = os.environ.get("PARTITA_IOPDDL")


@pytest.mark.skipif(not INSTANCES, reason="PARTITA_IOPDDL names no folder of instances")
@pytest.mark.parametrize("path", sorted(Path(INSTANCES or ".").glob("*.json.gz")), ids=lambda p: p.name)
def test_contest_instances_shrink_and_lift(path):
    from partita.formulation.network.contest import Contest
    from partita.solvers.wide.form import flattened

    net = flattened(Contest.read(path).network())
    after = reduced(net)
    check_form(after.flat)
    assert after.flat.variables < 0.3 * net.variables
    rng = np.random.default_rng(0)
    for _ in range(5):  # whatever their feasibility, lifted choices use no more than their limits allow below
        choice = rng.integers(0, after.flat.sizes)
        price = after.flat.price(choice)
        lifted = after.lift(choice)
        assert (lifted >= 0).all() and (lifted < net.sizes).all()
        assert price is None or net.price(lifted) == price
