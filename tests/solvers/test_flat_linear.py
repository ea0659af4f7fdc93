"""Linear programs, fixing, covers and exact solving of flat networks, beside all choices of small ones."""

import ctypes
import math
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import optimize
from scipy.sparse import csr_array

from partita.formulation.network.network import INFINITE, Edge, Network, Variable
from partita.solvers.wide import highs, integer
from partita.solvers.wide.fixing import LowerBounds, fixed, lower_bounds
from partita.solvers.wide.form import Flat, fits, flattened, in_floats
from partita.solvers.wide.integer import solve_exactly
from partita.solvers.wide.messages import Messages
from partita.solvers.wide.polytope import ActiveRows, cover, polytope, program, relaxed
from partita.solvers.wide.substitution import Reduced

NONE = 1 << 50  # no choice of a small network costs as much, and sums of a few do not overflow


def table(*rows) -> np.ndarray:
    return np.array(rows, np.int64)


def network(costs, edges=(), pieces=(), limits=()) -> Network:
    """Costs by variable, edges (u, v, rows), pieces (variable, first row, last row, uses)."""
    variables = []
    for v, cost in enumerate(costs):
        own = [p for p in pieces if p[0] == v]
        use = np.array([p[3] for p in own], np.int64).reshape(len(own), len(cost)).T
        variables.append(Variable(f"v{v}", table(*cost), use, np.array([p[1:3] for p in own], np.int64).reshape(-1, 2)))
    return Network(tuple(variables), tuple(Edge(u, v, table(*rows)) for u, v, rows in edges), tuple(limits))


def random_flat(seed: int) -> Flat:
    """Up to 5 variables, some edges, pieces on ranges of up to 6 capacities that are often just not exceeded."""
    rng = np.random.default_rng(seed)
    count, rows = int(rng.integers(1, 6)), int(rng.integers(0, 7))
    scale, bytes_ = int(rng.choice([3, 30, 10**9])), int(rng.choice([3, 20, 10**11]))
    sizes = rng.integers(1, 5, count)

    def costs(*shape: int) -> np.ndarray:
        values = rng.integers(-scale if rng.random() < 0.1 else 0, scale, shape)
        return np.where(rng.random(shape) < rng.choice([0, 0.1, 0.3]), INFINITE, values).astype(np.int64)

    variables = []
    for v in range(count):
        many = int(rng.integers(0, 3)) if rows else 0
        first = rng.integers(0, max(rows, 1), many)
        last = np.minimum(rows, first + rng.integers(0, rows + 1, many))
        use = rng.integers(0, bytes_, (sizes[v], many)).astype(np.int64)
        variables.append(Variable(f"v{v}", costs(sizes[v]), use, np.stack([first, last], 1).astype(np.int64)))
    edges = []
    for _ in range(int(rng.integers(0, 2 * count)) if count > 1 else 0):
        u, v = (int(x) for x in rng.choice(count, 2, replace=False))
        shape = sizes[u], sizes[v]
        use = rng.integers(0, bytes_, (*shape, rows)).astype(np.int64) if rng.random() < 0.15 else None
        edges.append(Edge(u, v, costs(*shape), use))
    free = flattened(Network(tuple(variables), tuple(edges), (0,) * rows))
    some = free.loads(np.array([rng.integers(n) for n in sizes], np.int64))
    spare = rng.integers(-1, 2, rows) if rng.random() < 0.7 else rng.integers(-bytes_, bytes_, rows)
    limits = tuple(np.maximum(some + spare, 0).tolist())
    return flattened(Network(tuple(variables), tuple(edges), limits, int(rng.integers(-9, 9))))


def choices(flat: Flat) -> Iterator[np.ndarray]:
    return (np.array(c, np.int64) for c in np.ndindex(*flat.sizes.tolist()))


def priced(flat: Flat) -> list[tuple[int, np.ndarray]]:
    """Every feasible choice with its price."""
    return [(price, c) for c in choices(flat) if (price := flat.price(c)) is not None]


def optimum(flat: Flat) -> int | None:
    return min((price for price, _ in priced(flat)), default=None)


def confirm(flat: Flat, bounds: LowerBounds, feasible) -> None:
    """No bound is above the price of a feasible choice to which it applies."""
    for price, c in feasible:
        price -= flat.constant
        assert bounds.total <= price
        assert (bounds.options[flat.start[:-1] + c] <= price).all()
        assert (bounds.entries[flat.entries(c)] <= price).all()


class Kept(highs.Highs):
    """A child that stays for the next problem; how one is started and ended is tested below."""

    def __exit__(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def child() -> Iterator[Kept]:
    with Kept() as one:
        yield one
    one.stop()


@pytest.mark.parametrize("block", range(10))
def test_any_messages_and_prices_are_valid(block: int) -> None:
    for seed in range(100 * block, 100 * block + 100):
        flat, rng = random_flat(seed), np.random.default_rng(seed)
        feasible = priced(flat)
        messages = rng.normal(size=int(flat.sizes[flat.ends].sum())) * rng.choice([0, 1, 1e9])
        prices = np.maximum(rng.normal(size=len(flat.limits)), 0) * rng.choice([0, 1e-3, 1, 1e5])
        bounds = lower_bounds(flat, messages, prices)
        confirm(flat, bounds, feasible)
        best = min((price for price, _ in feasible), default=None)
        if best is not None:  # what is deleted below best + 1 leaves the best
            left = fixed(flat, bounds, best + 1)
            assert left is not None and optimum(left.flat) == best
            assert flat.price(left.lift(min(priced(left.flat), key=lambda x: x[0])[1])) == best


@pytest.mark.parametrize("block", range(2))
def test_what_messages_prove_is_valid_and_suffices(block: int, child: Kept) -> None:
    for seed in range(40 * block, 40 * block + 40):
        flat = random_flat(seed)
        if (np.maximum.reduceat(flat.cost < INFINITE, flat.start[:-1])).all():
            state = Messages(flat)
            state.climb(10)
            bounds, feasible = state.lower_bounds(), priced(flat)
            confirm(flat, bounds, feasible)
            found = solve_exactly(flat, proved=bounds, highs=child)
            best = min((price for price, _ in feasible), default=INFINITE)
            assert (found.cost, found.bound) == (best, best)


def test_messages_prove_a_tree_as_the_linear_program_does() -> None:
    rng = np.random.default_rng(3)
    edges = [(u, v, rng.integers(0, 99, (4, 4)).tolist()) for u, v in ((0, 1), (1, 2), (1, 3), (3, 4))]
    flat = flattened(network(rng.integers(0, 99, (5, 4)).tolist(), edges))
    state = Messages(flat)
    state.sweep(20)
    assert state.lower_bounds().bound(flat) == optimum(flat)


@pytest.mark.parametrize("block", range(4))
def test_the_linear_program_is_valid(block: int) -> None:
    tight = 0
    for seed in range(50 * block, 50 * block + 50):
        flat = random_flat(seed)
        relaxation = relaxed(flat)
        assert relaxation is not None
        feasible = priced(flat)
        confirm(flat, relaxation.proved, feasible)
        tight += bool(feasible) and relaxation.proved.bound(flat) == min(price for price, _ in feasible)
    assert tight > 5  # it is the optimum often enough to know that it is the right program


def test_the_linear_program_by_hand() -> None:
    # Each half of both options: the capacity allows 3 of 4 bytes, and a byte less costs 10 / 2.
    half = flattened(network([[0, 10], [0, 10]], pieces=((0, 0, 1, [2, 0]), (1, 0, 1, [2, 0])), limits=(3,)))
    relaxation = relaxed(half)
    assert relaxation is not None
    assert relaxation.proved.bound(half) == 5 and relaxation.prices == pytest.approx([5.0])
    assert relaxation.rows == (0,)
    # An odd cycle that wants neighbours to differ: the polytope does not know that they cannot all.
    differ = [[1, 0], [0, 1]]
    cycle = flattened(network([[0, 0]] * 3, edges=[(u, v, differ) for u, v in ((0, 1), (1, 2), (0, 2))]))
    relaxation = relaxed(cycle)
    assert relaxation is not None and relaxation.proved.bound(cycle) == 0
    assert solve_exactly(cycle).bound == solve_exactly(cycle).cost == 1


def test_capacities_are_added_as_they_are_exceeded() -> None:
    pieces = [(v, v, v + 3, [9, 1]) for v in range(20)]
    flat = flattened(network([[0, 5]] * 20, pieces=pieces, limits=(20,) * 23))
    relaxation = relaxed(flat)
    assert relaxation is not None and 0 < len(relaxation.rows) < 23
    used = np.zeros(23)
    for p, (v, first, last, _) in enumerate(pieces):
        used[first:last] += flat.use[flat.use_at[p] : flat.use_at[p + 1]] @ relaxation.x[2 * v : 2 * v + 2]
    assert (used <= 20 * (1 + 1e-6)).all()


def test_fixing_by_hand() -> None:
    flat = flattened(network([[0, 3, 9], [0, 4]], edges=[(0, 1, [[1, 0], [0, 1], [0, 0]])]))
    relaxation = relaxed(flat)
    assert relaxation is not None and relaxation.proved.total == 1
    assert relaxation.proved.options.tolist() == [1, 3, 9, 1, 4]
    left = fixed(flat, relaxation.proved, 4)
    assert left is not None and left.flat.sizes.tolist() == [2, 1] and left.flat.cost.tolist() == [0, 3, 0]
    assert fixed(flat, relaxation.proved, 1) is None


def test_equal_rows_and_columns_are_one_class() -> None:
    rows = np.add.outer(np.arange(6) * 7, np.arange(5))  # a sum: nothing is left between the ends
    rows[3:] += [0, 9, 9, 0, 0]
    shape = polytope(flattened(network([[0] * 6, [0] * 5], edges=[(0, 1, rows)])))
    assert len(shape.option) == 11 and len(shape.entry) == 4
    shape = polytope(flattened(network([[0] * 6, [0] * 5], edges=[(0, 1, rows[:3].repeat(2, axis=0))])))
    assert len(shape.entry) == 0


@pytest.mark.parametrize("block", range(4))
def test_covers_cut_off_what_exceeds_and_nothing_else(block: int) -> None:
    found = 0
    for seed in range(60 * block, 60 * block + 60):
        flat = random_flat(seed)
        for choice in list(choices(flat))[:20]:
            for row in np.flatnonzero(flat.loads(choice) > flat.limits)[:1].tolist():
                options, most = cover(flat, choice, row)
                taken = np.isin(flat.start[:-1] + choice, options).sum()
                assert taken > most
                within = [c for c in choices(flat) if flat.loads(c)[row] <= flat.limits[row]]
                assert all(np.isin(flat.start[:-1] + c, options).sum() <= most for c in within)
                found += 1
    assert found > 50


def check(flat: Flat, child: Kept) -> None:
    best, found = optimum(flat), solve_exactly(flat, highs=child)
    if best is None:
        assert found.choice is None and found.bound == INFINITE
    else:
        assert found.choice is not None and found.cost == found.bound == flat.price(found.choice) == best


@pytest.mark.parametrize("block", range(3))
def test_exact_solving_agrees_with_brute_force(block: int, child: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(50 * block, 50 * block + 50):
        check(random_flat(seed), child)
    monkeypatch.setattr(integer, "reduced", lambda flat, until=0.0: Reduced(flat))  # all of it by HiGHS
    for seed in range(50 * block, 50 * block + 50):
        check(random_flat(seed), child)


@pytest.mark.parametrize("spare", [0, -1])
def test_one_byte_too_many_is_too_many(spare: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Far below what floats and HiGHS's tolerance can tell apart."""
    monkeypatch.setattr(integer, "reduced", lambda flat, until=0.0: Reduced(flat))
    pieces = [(v, 0, 1, [10**11 + v, 7 * v]) for v in range(6)]
    flat = flattened(network([[0, 5 + v] for v in range(6)], pieces=pieces, limits=(4 * 10**11 + 14 + 7 + spare,)))
    best = solve_exactly(flat)
    assert best.cost == best.bound == optimum(flat)
    assert (best.cost == 5 + 6) == (spare == 0)  # the first two without their 10^11


def test_what_is_known_is_used() -> None:
    flat = flattened(network([[0, 10], [0, 10]], pieces=((0, 0, 1, [2, 0]), (1, 0, 1, [2, 0])), limits=(3,)))
    known = np.array([1, 1])
    assert solve_exactly(flat, until=0.0, choice=known).cost == 20
    heard: list[integer.Exact] = []
    assert solve_exactly(flat, choice=known, report=heard.append).cost == 10
    assert heard[0].cost == 20 and (heard[-1].cost, heard[-1].bound) == (10, 10)
    assert solve_exactly(flat, ceiling=lambda cost: 7).bound == 7  # proved: nothing below


def test_what_pairs_use_counts_where_it_is_the_same_for_all() -> None:
    """Else HiGHS knows nothing of it, and excludes one choice after another."""
    rng = np.random.default_rng(0)
    uses = np.sort(rng.integers(0, 100, (12, 5)))
    problem = Network(
        tuple(Variable(f"v{i}", 100 - use, use[:, None]) for i, use in enumerate(uses)),
        tuple(Edge(i, i + 1, np.zeros((5, 5), np.int64), np.full((5, 5, 1), 40)) for i in range(11)),
        (40 * 11 + int(uses[:, 1].sum()),),
    )
    assert solve_exactly(flattened(problem)).cost == int((100 - uses[:, 1]).sum())


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
def test_messages_that_are_no_numbers_prove_nothing(number: float) -> None:
    flat = flattened(network([[3, 5], [0, 1]], edges=[(0, 1, [[0, 1], [1, 0]])], limits=(3,)))
    assert lower_bounds(flat, np.full(4, number), np.full(1, number)).bound(flat) == 3


def test_without_time_nothing_is_claimed() -> None:
    flat = random_flat(2)
    found = solve_exactly(flat, until=time.perf_counter() - 1)
    assert found.choice is None and found.bound == -INFINITE


def test_totals_beyond_64_bits_are_refused() -> None:
    assert fits(flattened(network([[0, 1 << 59], [0, (1 << 59) - 2]])))
    assert not fits(flattened(network([[0, 1 << 59], [0, (1 << 59) - 1]])))
    assert not fits(flattened(network([[-1 << 59, 0]])))
    assert not fits(flattened(network([[0]] * 3, pieces=[(v, 0, 1, [1 << 61]) for v in range(3)], limits=(1 << 62,))))


def test_costs_that_do_not_add_up_in_floats_are_cut() -> None:
    """2 (2^51 - 501) + 1000 is the most below 2^52 that is even."""
    flat = flattened(network([[0, 1000], [0, 1 << 51], [0, 1 << 55], [0, INFINITE]]))
    cut, level = in_floats(flat), (1 << 51) - 501
    assert cut is not None and cut.cost.tolist() == [0, 1000, 0, level, 0, level, 0, INFINITE]
    assert in_floats(cut) is cut
    assert in_floats(flattened(replace(network([[0, 1]]), constant=1 << 52))) is None


# HiGHS in a process of its own


def knapsack() -> Flat:
    """A subset sum that no bound helps with."""
    rng = np.random.default_rng(5)
    uses = rng.integers(1, 1 << 40, (50, 6))
    pieces = [(v, 0, 1, use.tolist()) for v, use in enumerate(uses)]
    costs = ((1 << 40) - uses).tolist()
    return flattened(network(costs, pieces=pieces, limits=(int(np.median(uses, axis=1).sum()),)))


def test_a_child_answers_as_this_process_does(monkeypatch: pytest.MonkeyPatch) -> None:
    here = [solve_exactly(random_flat(seed)) for seed in range(5)]
    monkeypatch.setattr(highs, "_SMALL", -1)
    monkeypatch.setattr(integer, "reduced", lambda flat, until=0.0: Reduced(flat))
    there = [solve_exactly(random_flat(seed)) for seed in range(5)]
    assert [(x.cost, x.bound) for x in here] == [(x.cost, x.bound) for x in there]


@pytest.mark.skipif(os.name != "posix", reason="the C library is found by POSIX means")
def test_words_of_highs_go_to_standard_error(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Also those that C still had in its buffer before or after the call."""
    plain, libc = optimize.milp, ctypes.CDLL(None)

    def chatty(*given, **options):
        libc.puts(b"tmpSolver.run()")
        return plain(*given, **options)

    monkeypatch.setattr(optimize, "milp", chatty)
    none = csr_array((0, 2))
    given = highs.LinearProgram(np.ones(2), csr_array([[1, 1]]), np.ones(1), none, np.zeros(0), whole=2)
    libc.puts(b"before")
    assert highs.run(given).objective == 1
    libc.puts(b"after")
    libc.fflush(None)
    assert [*capfd.readouterr()] == ["before\nafter\n", "tmpSolver.run()\n"]


def test_a_child_that_died_is_no_answer_and_another_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(highs, "_SMALL", -1)
    shape = polytope(flattened(network([[3, 1, 2]])))
    program_ = program(shape, ActiveRows(), 1.0)[0]
    with highs.Highs() as child:
        assert child.solve(program_, 60).end is highs.End.SOLVED
        assert child._process is not None
        child._process.kill()
        child._process.wait()
        assert child.solve(program_, 60).end is highs.End.STOPPED
        assert child.solve(program_, 60).objective == 1.0
        before = child._process
        assert child.solve(program_, 0.0).end is highs.End.STOPPED
        assert child._process is before


def test_time_ends_a_program() -> None:
    began = time.perf_counter()
    found = solve_exactly(knapsack(), until=began + 2)
    assert time.perf_counter() - began < 20
    assert found.choice is None or knapsack().price(found.choice) == found.cost
    assert found.bound <= found.cost


def test_an_interrupt_ends_the_child(monkeypatch: pytest.MonkeyPatch) -> None:
    processes = []

    def interrupted(self: highs.Highs, seconds: float = 0.0) -> highs.HighsOutcome:
        assert self._process is not None
        processes.append(self._process)
        raise KeyboardInterrupt

    monkeypatch.setattr(highs, "_SMALL", -1)
    monkeypatch.setattr(highs.Highs, "answer", interrupted)
    with pytest.raises(KeyboardInterrupt):
        solve_exactly(knapsack())
    assert processes[0].poll() is not None


# The contest's instances

OPTIMA = {"A": 6_548_553_650, "B": 532_843, "D": 309_195_190_496, "G": 217_039, "P": 651_833_115_436}


def test_an_interrupted_program_leaves_no_answer_behind() -> None:
    class Interrupted(highs.Highs):
        stopped = False

        def answer(self, seconds: float = math.inf) -> highs.HighsOutcome:
            raise KeyboardInterrupt

        def ask(self, program: highs.LinearProgram, seconds: float) -> None:
            self.stopped = False

        def stop(self) -> None:
            self.stopped = True

    child, none = Interrupted(), csr_array((0, 1))
    with pytest.raises(KeyboardInterrupt):
        child.solve(highs.LinearProgram(np.ones(1), none, np.zeros(0), none, np.zeros(0), whole=1), 1.0)
    assert child.stopped


@pytest.mark.skipif("PARTITA_IOPDDL" not in os.environ, reason="PARTITA_IOPDDL names no folder with the instances")
@pytest.mark.parametrize("name", OPTIMA)
def test_official_instances_are_proved(name: str) -> None:
    from partita.formulation.network.contest import Contest
    from partita.solvers.protocol import Limits, Status, solver

    instance = Contest.read(Path(os.environ["PARTITA_IOPDDL"]) / f"{name}.json.gz")
    answer = solver("milp").solve(instance.network(), Limits(seconds=240))
    assert answer.status is Status.OPTIMAL and answer.assignment is not None
    verdict = instance.evaluate(answer.assignment)
    assert verdict.feasible and verdict.cost == answer.objective == answer.bound == OPTIMA[name]
