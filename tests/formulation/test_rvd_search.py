"""Paths: they move the right elements, are never worse than sends, and are those of SuperScaler's figures."""

from __future__ import annotations

import random
from collections import Counter
from itertools import groupby, pairwise, product
from math import prod

import numpy as np
import pytest

from partita.formulation.reduction.cost import price_of_groups
from partita.formulation.rvd.crossing import crossed, crossing, crossing_floor, least
from partita.formulation.rvd.grid import Grid, grids
from partita.formulation.rvd.prices import Payload, TransitionPrices, prices_on
from partita.formulation.rvd.reach import Side
from partita.formulation.rvd.roles import KINDS, counts
from partita.formulation.rvd.search import search, send_receive
from partita.formulation.rvd.state import RVD, Path, State
from partita.model.errors import PartitaError
from partita.model.machine.machine import Machine

from .execute_path import Arrays, execute, value_of

V100 = Machine.load("v100-32gb", nodes=4)
SHAPES = {1: (48,), 2: (48, 24), 3: (12, 24, 12)}


def filled(state: State, shape: tuple[int, ...], seed: int = 0) -> Arrays:
    """Small integers, equal in copies."""
    rng = np.random.default_rng(seed)
    size = [n // k for n, k in zip(shape, state.rvd.d, strict=True)]
    known = {(p.value, p.parts): rng.integers(-99, 99, size) for p in state.pieces}
    return {d: known[p.value, p.parts] for d, p in zip(state.devices, state.pieces, strict=True)}


def some_rvd(rng: random.Random, devices: int, dims: int) -> RVD:
    found = [1] * (2 + dims)
    for prime in (2, 2, 2, 2, 3):
        if devices % prime == 0:
            devices //= prime
            found[rng.randrange(len(found))] *= prime
    return RVD(found[0], found[1], tuple(found[2:]))


def some_case(seed: int) -> tuple[State, State, tuple[int, ...], int]:
    """One group or two, equal or of different sizes, which may overlap; in order or not."""
    rng = random.Random(seed)
    dims, size, one_group = rng.choice((1, 2, 2, 3)), rng.choice((1, 2, 4, 6, 8)), rng.random() < 0.4
    other = size if one_group else rng.choice((size, max(size // 2, 1), min(2 * size, 8), 3))
    first = 0 if one_group else rng.choice((8, 12, size // 2))
    found = []
    for devices in (range(size), range(first, first + other)):
        order = rng.sample(devices, len(devices)) if seed % 2 else devices
        found.append(State.natural(some_rvd(rng, len(devices), dims), order))
    return found[0], found[1], SHAPES[dims], rng.choice((8, 800, 80_000))


def check(path: Path, source: State, target: State, shape: tuple[int, ...]) -> None:
    """The right elements arrive where they belong, each step begins where the last one ended, prices add up."""
    before = filled(source, shape)
    after = execute(path, before, shape)
    assert set(after) == set(target.devices)
    np.testing.assert_array_equal(value_of(target, after, shape), value_of(source, before, shape))
    for step, following in pairwise(path.steps):
        assert step.after.canonical() == following.before.canonical()
    assert path.cost_ns == sum(step.cost_ns for step in path.steps)
    if path.steps:
        assert (path.steps[0].before, path.steps[-1].after) == (source, target)


@pytest.mark.parametrize("part", range(4))
def test_any_states(part: int) -> None:
    kinds: set[str] = set()
    for seed in range(30 * part, 30 * part + 30):
        source, target, shape, item = some_case(seed)
        path, direct = (find(source, target, shape, item, V100) for find in (search, send_receive))
        check(path, source, target, shape)
        check(direct, source, target, shape)
        assert path.cost_ns <= direct.cost_ns
        kinds |= set(path.kinds)
    assert {"all-gather", "reduce-scatter", "schunk", "move"} <= kinds


def side(state: State, shape: tuple[int, ...], backward: bool = False) -> tuple[Side, Grid]:
    tensor = Payload(shape, 4, prices_on(V100))
    grid = grids(state.canonical(), tensor.prices)[0]
    return Side(grid, tensor, frozenset(KINDS), backward), grid


def test_every_transition_inside_a_group() -> None:
    """From R(2)V(2)D(2,1), to every state and by every kind."""
    state, shape = State.natural(RVD(2, 2, (2, 1)), (5, 3, 1, 0, 2, 7, 6, 4)), (16, 8)
    found, grid = side(state, shape)
    seen: set[str] = set()
    while found.next_ns < 10**12:
        roles = found.settle(10**12)
        steps = tuple(found.steps(roles))
        path = Path(steps, sum(step.cost_ns for step in steps))
        check(path, steps[0].before if steps else state, grid.state(roles), shape)
        seen |= set(path.kinds)
        assert path.cost_ns == found.reached[roles].cost_ns
    assert seen == set(KINDS.values())
    # Three digits in the roles R, V and two dims: 8 sets without a dim, and so on.
    assert len(found.reached) == 8 + 2 * 3 * 4 + 3 * 6 * 2 + 4 * 6


@pytest.mark.parametrize(("r", "v", "d"), [(4, 1, (2,)), (1, 4, (2,)), (1, 1, (8,)), (2, 2, (2,))])
def test_backward_costs_what_forward_does(r: int, v: int, d: tuple[int, ...]) -> None:
    one, other = State.natural(RVD(8, 1, (1,)), range(8)), State.natural(RVD(r, v, d), range(8))
    (forward, _), (backward, _) = side(one, (16,)), side(other, (16,), backward=True)
    for found in (forward, backward):
        while found.next_ns < 10**12:
            found.settle(10**12)
    reached = backward.reached[backward.grid.start], forward.reached[forward.grid.start]
    assert [way.cost_ns for way in reached] == [0, 0]
    assert forward.reached[backward.grid.start].cost_ns == backward.reached[forward.grid.start].cost_ns
    for found, end in ((forward, backward.grid.start), (backward, forward.grid.start)):
        steps = tuple(found.steps(end))
        check(Path(steps, sum(step.cost_ns for step in steps)), one.canonical(), other.canonical(), (16,))


@pytest.mark.parametrize("seed", range(0, 60, 3))
def test_bounds_of_crossings_hold(seed: int) -> None:
    source, target, shape, item = some_case(seed)
    if {*source.devices} != {*target.devices}:
        crossings(source, target, Payload(shape, item, prices_on(V100)))


@pytest.mark.parametrize("name", ["v100-32gb", "cpu", "gcp-v100", "dgx-a100"])
def test_bounds_of_broadcasts_and_reduces_hold(name: str) -> None:
    """Roots in the groups or beside them, many groups on a card or one, in any order."""
    kinds: Counter[str] = Counter()
    machine, rng = Machine.load(name, nodes=8 if name == "cpu" else 2), random.Random(1)
    everyone = range(min(machine.devices, 16))
    for few, many, overlaps in product((1, 2, 3), (2, 4, 6, 8), (False, True)):
        if many <= few or many % few or few + many > len(everyone):
            continue
        devices = rng.sample(everyone, many + few)
        small, large = devices[:few], devices[0 if overlaps else few :][:many]
        for letter, source, target in (("R", small, large), ("V", large, small)):
            start, end = (State.natural(some_rvd(rng, len(x), 1), x) for x in (source, target))
            kinds += crossings(start, end, Payload((48,), rng.choice((8, 80_000)), prices_on(machine)))
            parts = few if rng.random() < 0.5 else 1
            wide = RVD(*((many // parts, 1) if letter == "R" else (few // parts, many // few)), (parts,))
            narrow = RVD(few // parts, 1, (parts,))
            pair = (narrow, wide) if letter == "R" else (wide, narrow)
            start, end = (State.natural(rvd, x) for rvd, x in zip(pair, (source, target), strict=True))
            kinds += crossings(start, end, Payload((48,), rng.choice((8, 80_000)), prices_on(machine)))
    assert min(kinds["broadcast"], kinds["reduce"]) > 10


def crossings(source: State, target: State, tensor: Payload) -> Counter[str]:
    """Check crossings between the first states on both sides, and that none costs less than the bounds say."""
    a, b, shape = source.canonical(), target.canonical(), tensor.shape
    floor, kinds = crossing_floor(a.devices, b.devices, tensor), Counter[str]()
    (ours, *_), (theirs, *_) = grids(a, tensor.prices), grids(b, tensor.prices)
    one, other = Side(ours, tensor, frozenset(KINDS), False), Side(theirs, tensor, frozenset(KINDS), False)
    for found in (one, other):
        while found.next_ns < 10**12 and len(found.reached) < 25:
            found.settle(10**12)
    for left in one.reached:
        for right in other.reached:
            x, y = counts(ours.sizes, left), counts(theirs.sizes, right)
            kind = crossing(x, y, tensor)
            if kind is not None:
                step = crossed(ours.state(left), theirs.state(right), tensor, kind.kind, kind.dim)
                assert floor.any_ns(tensor, len(a.devices), len(b.devices)) <= step.cost_ns
                assert least(kind, x, y, floor, tensor) <= step.cost_ns
                check(Path((step,), step.cost_ns), step.before, step.after, shape)
                kinds[step.kind] += 1
    return kinds


# The paper's figures


def merged(path: Path) -> list[str]:
    """Kinds, those that follow each other in several factors as one."""
    return [kind for kind, _ in groupby(path.kinds)]


def test_figure_11() -> None:
    """R(1)V(2)D(1,2) to R(2)V(1)D(2,1): all-reduce, then all-to-all."""
    source, target = State.natural(RVD(1, 2, (1, 2)), range(4)), State.natural(RVD(2, 1, (2, 1)), range(4))
    path = search(source, target, (64, 64), 4, V100)
    assert path.kinds == ("all-reduce", "all-to-all")
    assert path.steps[0].groups == ((0, 2), (1, 3)) and path.steps[1].groups == ((0, 1), (2, 3))
    assert (path.steps[1].dim, path.steps[1].joined) == (0, 1)
    check(path, source, target, (64, 64))


def test_figure_18_a() -> None:
    """Four copies on a server to eight on another: a part of each over the network, gathered where it is fast.

    The paper halves each part once more as it is sent; a broadcast to both receivers loads the card no more.
    """
    source, target = State.natural(RVD(4, 1, (1,)), range(4)), State.natural(RVD(8, 1, (1,)), range(8, 16))
    path = search(source, target, (2**10,), 2**16, V100)
    assert merged(path) == ["schunk", "broadcast", "all-gather"]
    assert [len(group) for group in path.steps[1].groups] == [3] * 4  # a sender and two receivers
    assert path.steps[1].size_bytes == 2**26 // 4
    assert path.cost_ns < send_receive(source, target, (2**10,), 2**16, V100).cost_ns / 7
    check(path, source, target, (2**10,))


def test_figure_18_b() -> None:
    """Four addends to eight parts; as in (a), each part is broadcast, and then cut, where the paper sends halves."""
    source, target = State.natural(RVD(1, 4, (1,)), range(4)), State.natural(RVD(1, 1, (8,)), range(8, 16))
    path = search(source, target, (2**24,), 4, V100)
    assert merged(path) == ["reduce-scatter", "broadcast", "schunk"]
    assert search(source, target, (2**24,), 4, V100, inter=False).kinds == ("send-recv",)


def test_sums_of_a_group_over_two_servers_go_by_levels() -> None:
    """Reduce-scatters inside the servers, a sum between them of an eighth each, all-gathers inside."""
    devices = range(16)
    source, target = State.natural(RVD(1, 16, (1,)), devices), State.natural(RVD(16, 1, (1,)), devices)
    path = search(source, target, (2**24,), 4, V100)
    assert merged(path) == ["reduce-scatter", "all-reduce", "all-gather"]
    sum_ = next(step for step in path.steps if step.kind == "all-reduce")
    assert sum_.groups == tuple((i, 8 + i) for i in range(8)) and sum_.size_bytes == 2**26 // 8


@pytest.mark.parametrize("machine", ["v100-32gb", "dgx-a100"])
@pytest.mark.parametrize("replicas", [range(4), range(1, 5), range(8), range(8, 16)])
def test_one_piece_for_many_is_one_broadcast(machine: str, replicas: range) -> None:
    """It passes each link once; before, parts were sent and gathered."""
    known = Machine.load(machine, nodes=4)
    source, target = State.natural(RVD(1, 1, (1,)), [0]), State.natural(RVD(len(replicas), 1, (1,)), replicas)
    path = search(source, target, (2**24,), 4, known)
    assert path.kinds == ("broadcast",) and path.steps[0].groups == ((0, *(d for d in replicas if d)),)
    group = np.array([sorted({0, *replicas})])
    if 0 in replicas:
        assert path.cost_ns == price_of_groups(known, group, "broadcast").ns(2**26)
    check(path, source, target, (2**24,))


@pytest.mark.parametrize("addends", [range(4), range(8), range(1, 5), range(8, 12)])
def test_addends_for_one_are_one_reduce(addends: range) -> None:
    """To one of them, or to another device, which adds zeros."""
    source, target = State.natural(RVD(1, len(addends), (1,)), addends), State.natural(RVD(1, 1, (1,)), [0])
    path = search(source, target, (2**20,), 4, V100)
    assert path.kinds == ("reduce",) and path.steps[0].groups == ((0, *(d for d in addends if d)),)
    group, zeros = np.array([[0, *(d for d in addends if d)]]), 0 if 0 in addends else prices_on(V100).local(2**22)
    assert path.cost_ns == prices_on(V100).collective("reduce", group).ns(2**22) + zeros
    check(path, source, target, (2**20,))


def test_each_of_two_broadcasts_to_its_own_and_shared_cards_count() -> None:
    """Two parts to three replicas each, on a server of their own or on one that both broadcasts enter."""
    source = State.natural(RVD(1, 1, (2,)), (0, 1))
    costs = []
    for targets in ((8, 16, 9, 17, 10, 18), (8, 9, 10, 11, 12, 13)):
        target = State.natural(RVD(3, 1, (2,)), targets)
        path = search(source, target, (2**24,), 4, V100)
        assert path.kinds == ("broadcast",) and [len(group) for group in path.steps[0].groups] == [4, 4]
        check(path, source, target, (2**24,))
        costs.append(path.cost_ns)
    assert costs[0] == pytest.approx(costs[1], rel=0.01)  # both leave by one card


# What callers ask


def test_equal_states_need_nothing() -> None:
    rvd = RVD(2, 2, (2,))
    state, renamed = State.natural(rvd, range(8)), State.natural(rvd, (6, 7, 4, 5, 2, 3, 0, 1))
    assert search(state, state, (8,), 4, V100) == Path((), 0)
    assert search(state, renamed, (8,), 4, V100) == Path((), 0)


def test_local_work_sends_nothing() -> None:
    """Copies are cut as the target wants, whatever its order."""
    source, target = State.natural(RVD(8, 1, (1,)), range(8)), State.natural(RVD(1, 1, (8,)), (3, 1, 4, 0, 5, 2, 7, 6))
    path = search(source, target, (64,), 4, V100)
    assert path.kinds == ("schunk",) and path.cost_ns == prices_on(V100).local(8 * 4)
    check(path, source, target, (64,))


def test_another_order_is_a_priced_permutation() -> None:
    source, target = State.natural(RVD(1, 1, (4,)), range(4)), State.natural(RVD(1, 1, (4,)), (1, 2, 3, 0))
    path = search(source, target, (2**20,), 4, V100)
    assert path.kinds == ("move",) and path.steps[0].groups == ((3, 0), (0, 1), (1, 2), (2, 3))
    assert path.cost_ns == prices_on(V100).sends([0, 1, 2, 3], [1, 2, 3, 0], [2**20] * 4)
    check(path, source, target, (2**20,))


def test_a_factor_of_a_count_that_has_two_primes() -> None:
    """D(6) gathers pairs, and triples."""
    for d, r in ((3, 2), (2, 3)):
        parts = [p for p in range(d) for _ in range(r)]
        source = State.natural(RVD(1, 1, (6,)), range(6))
        target = State.natural(RVD(r, 1, (d,)), [i for c in range(r) for i in range(6) if i % r == c])
        assert [piece.parts[0] for piece in target.canonical().pieces] == parts
        path = search(source, target, (6 * 2**20,), 4, V100)
        assert path.kinds == ("all-gather",) and len(path.steps[0].groups) == d


def test_groups_neither_of_which_divides_the_other() -> None:
    """Three devices to two: summed before, sent overlap by overlap, gathered after."""
    source, target = State.natural(RVD(1, 3, (1,)), range(3)), State.natural(RVD(2, 1, (1,)), (8, 9))
    path, direct = (find(source, target, (12,), 2**20, V100) for find in (search, send_receive))
    assert path.kinds == ("reduce-scatter", "send-recv", "all-gather") and 2 * path.cost_ns < direct.cost_ns
    check(path, source, target, (12,))


def test_what_may_be_used() -> None:
    inside = State.natural(RVD(1, 4, (1,)), range(4)), State.natural(RVD(4, 1, (1,)), range(4))
    across = inside[0], State.natural(RVD(4, 1, (1,)), range(8, 12))
    for pair, intra, inter, kinds in (
        (inside, False, True, ("send-recv",)),
        (inside, True, False, ("all-reduce",)),
        (across, True, False, ("send-recv",)),
        (across, True, True, ("reduce-scatter", "move", "all-gather")),
    ):
        path = search(*pair, (2**22,), 4, V100, intra=intra, inter=inter)
        assert tuple(merged(path)) == kinds


def test_a_wired_machine_and_gloo() -> None:
    for machine in (Machine.load("gcp-v100", nodes=2), Machine.load("cpu", nodes=8)):
        for seed in range(0, 24, 3):
            source, target, shape, item = some_case(seed)
            if max(*source.devices, *target.devices) < machine.devices:
                path = search(source, target, shape, item, machine)
                check(path, source, target, shape)
                assert path.cost_ns <= send_receive(source, target, shape, item, machine).cost_ns


def test_sixteen_and_thirty_two_devices() -> None:
    for n in (16, 32):
        source, target = State.natural(RVD(1, n, (1, 1)), range(n)), State.natural(RVD(n, 1, (1, 1)), range(n))
        path = search(source, target, (1, 2**10), 2**12, V100)
        check(path, source, target, (1, 2**10))
        for grid in grids(source, TransitionPrices(V100)):
            assert len(grid.sizes) <= 4 and prod(grid.sizes) == n


@pytest.mark.parametrize(
    ("source", "target", "shape", "message"),
    [
        (RVD(1, 1, (4,)), RVD(4, 1, (1,)), (6,), "does not cut a tensor of shape"),
        (RVD(1, 1, (4,)), RVD(4, 1, (1,)), (4, 4), "one count per dim"),
    ],
)
def test_shapes_that_do_not_fit(source: RVD, target: RVD, shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(PartitaError, match=message):
        search(State.natural(source, range(4)), State.natural(target, range(4)), shape, 4, V100)


def test_devices_that_the_machine_does_not_have() -> None:
    source, target = State.natural(RVD(2, 1, (1,)), (0, 1)), State.natural(RVD(2, 1, (1,)), (31, 32))
    with pytest.raises(PartitaError, match="v100-32gb has 0 to 31"):
        search(source, target, (4,), 4, V100)


def test_copies_that_differ_are_seen() -> None:
    """The check of these tests can fail."""
    state = State.natural(RVD(2, 1, (1,)), (0, 1))
    with pytest.raises(ValueError, match="device 1 holds another"):
        value_of(state, {0: np.zeros(4), 1: np.ones(4)}, (4,))
    with pytest.raises(ValueError, match="device 0 holds"):
        value_of(state, {0: np.zeros(3), 1: np.zeros(3)}, (4,))
