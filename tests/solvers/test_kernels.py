"""The compiled loops against plain numpy."""

from collections.abc import Sequence
from itertools import pairwise, permutations

import numpy as np
import pytest

from partita.solvers.elimination import bucket, kernels
from partita.solvers.elimination.factors import Factor
from partita.solvers.elimination.tables import Kinds


@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 5, 2), (7, 3, 9), (40, 33, 21)])
@pytest.mark.parametrize("distinct", [2, 10**9])
@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("small", [0, 1 << 24])
def test_min_plus(shape, distinct: int, share: float, small: int, monkeypatch) -> None:
    """The product, with repeated rows and infinite entries, whether equal rows are looked for or not."""
    monkeypatch.setattr(kernels, "_SMALL", small)
    rng = np.random.default_rng(sum(shape))
    (m, k, n) = shape
    a = rng.integers(0, distinct, (m, k)).astype(float)[rng.integers(0, m, m)]
    b = rng.integers(0, distinct, (k, n)).astype(float)[:, rng.integers(0, n, n)]
    a[rng.random(a.shape) < share] = np.inf
    assert np.array_equal(kernels.min_plus(a, b), (a[:, :, None] + b[None]).min(axis=1))


@pytest.mark.parametrize("rows", [0, 1, 3])
@pytest.mark.parametrize("windows", [0, 1, 2])
@pytest.mark.parametrize("timed", [0, 1])
def test_priced_tables(rows: int, windows: int, timed: int) -> None:
    """Cost, weighted streams, rounded down, and priced use; what is forbidden stays so. The table is not written."""
    rng, shape = np.random.default_rng(rows), (3, 50, 40)
    time = np.where(rng.random(shape) < 0.2, np.inf, rng.integers(0, 99, shape))
    use = rng.integers(0, 99, (*shape, rows)).astype(float) if rows else None
    streams = tuple((w, rng.integers(0, 1 << 40, (2, *shape))) for w in range(windows))
    price, weights = [0.0, 0.25, 3.0][:rows], {w: (0.75 - w / 4096, 0.25) for w in range(windows)}
    before = time.copy()
    found = Factor((0, 1, 2), time, use, streams=streams).priced(timed, price, weights)
    more = sum(((own[0] * a + own[1] * b) for (_, own), (a, b) in zip(streams, weights.values(), strict=True)), 0.0)
    cost = time + np.floor(more) if timed else np.where(time < np.inf, 0.0, np.inf)
    assert np.array_equal(found, cost if use is None else cost + use @ np.array(price))
    assert np.array_equal(time, before)


def test_tables_are_equal_up_to_a_constant() -> None:
    """Only those that are not fixed are written; forbidden entries count."""
    kinds, rng = Kinds(), np.random.default_rng(0)
    table = rng.integers(5, 99, (90, 70)).astype(float)
    table[3, 5], table[7, 9] = np.inf, 5.0
    first, before = kinds.of(table, fixed=True), table.copy()
    assert (first[1], np.array_equal(first[0], table - 5)) == (5.0, True)
    assert np.array_equal(table, before)
    other = table + 2
    assert kinds.of(other)[1:] == (7.0, first[2])
    assert np.array_equal(other, table - 5)
    table[3, 6] += 1
    assert kinds.of(table.copy())[2] != first[2]


@pytest.mark.parametrize("shape", [(), (5,), (70, 90), (1, 70, 90), (40, 9, 33), (3, 40, 1, 7, 50)])
def test_tables_are_turned(shape: tuple[int, ...]) -> None:
    table = np.random.default_rng(0).random(shape)
    for order in permutations(range(len(shape))):
        found = kernels.turned(table, order)
        assert found.flags.c_contiguous
        assert np.array_equal(found, table.transpose(order))


@pytest.mark.parametrize("resources", [0, 1, 2, 4])
def test_frontier(resources: int) -> None:
    """Of sorted labels, those that no earlier one of the cell is at least as good as."""
    rng = np.random.default_rng(resources)
    labels = np.unique(rng.integers(0, 5, (60 << resources, 2 + resources)), axis=0)
    kept = kernels.frontier(labels[:, 0], labels[:, 1], np.ascontiguousarray(labels[:, 2:]))
    for i, label in enumerate(labels):
        earlier = labels[:i][labels[:i, 0] == label[0]]
        assert kept[i] == (not (earlier <= label).all(axis=1).any())


def test_pairs_within() -> None:
    """The pairs of each range that stay within the most."""
    right = np.array([1.0, 4.0, 9.0, 2.0, 3.0])
    starts = np.array([0, 3, 1])
    ends = kernels.ends_within(starts, np.array([3, 5, 1]), np.array([0.0, 6.0, 0.0]), right, 8.0)
    first, second = kernels.pairs_between(starts, ends)
    assert [*zip(first.tolist(), second.tolist(), strict=True)] == [(0, 0), (0, 1), (1, 3)]
    assert all(a <= b for a, b in pairwise(first))


def _labels(rng: np.random.Generator, count: int, scale: int) -> np.ndarray:
    """Rows of (cell, time, use)."""
    return np.stack([rng.integers(0, 3, count), *rng.integers(0, scale, (2, count))], axis=1)


@pytest.mark.parametrize("scale", [3, 1000, 1 << 50])
@pytest.mark.parametrize("bins", [1, 7, 256])
def test_best_pairs(scale: int, bins: int) -> None:
    """Every nondominated (time, use) of each cell is among the pairs, and none is repeated for its bin's best."""
    rng = np.random.default_rng(bins)
    left, right = _labels(rng, 40, scale), _labels(rng, 30, scale)
    left[:, 0] *= 3
    starts, ends = np.zeros(40, np.int64), rng.integers(0, 31, 40)

    def nondominated(first: np.ndarray, second: np.ndarray) -> np.ndarray:
        rows = np.unique(left[first] + right[second], axis=0)
        return rows[kernels.frontier(rows[:, 0], rows[:, 1], rows[:, 2:])]

    every, some = kernels.pairs_between(starts, ends), kernels.best_pairs(starts, ends, left, right, 9, bins)
    assert np.array_equal(nondominated(*every), nondominated(*some))
    assert len(some[0]) < len(every[0])


@pytest.mark.parametrize("seed", range(20))
def test_fastest_pair(seed: int) -> None:
    """The least time over all pairs of one cell that fit, for capacities from none to all."""
    rng = np.random.default_rng(seed)
    left, right = (_labels(rng, int(rng.integers(0, 12)), 20) for _ in range(2))
    left, right = (rows[np.lexsort((rows[:, 2], rows[:, 0]))] for rows in (left, right))
    for capacity in (-1, 0, 5, 15, 40):
        both = left[:, None] + right[None]
        fits = (left[:, None, 0] == right[None, :, 0]) & (both[..., 2] <= capacity)
        i, j = kernels.fastest_pair(tuple(left[:, [0, 2, 1]].T), tuple(right[:, [0, 2, 1]].T), capacity)
        assert (i >= 0) == (j >= 0) == fits.any()
        assert i < 0 or (fits[i, j] and both[i, j, 1] == both[..., 1][fits].min())


@pytest.mark.parametrize("share", [0.0, 0.4])
@pytest.mark.parametrize("kept", [0, 1, 2, 3, 4])
def test_a_bucket_in_rows_and_as_products(kept: int, share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both are the sums of all tables minimised, forward and backward, where some entries are forbidden."""
    rng = np.random.default_rng(kept)
    dims = (3, *(int(n) for n in rng.integers(2, 6, kept)))
    inputs = [(0,), *((0, a) for a in range(1, kept + 1)), *([(1, 0, 3)] if kept > 2 else []), (*range(1, kept + 1),)]

    def table(axes: Sequence[int]) -> np.ndarray:
        shape = [dims[a] for a in axes]
        return np.where(rng.random(shape) < share, np.inf, rng.integers(0, 100, shape))

    slots, outside = [table(axes) for axes in inputs], table(range(1, kept + 1))
    made = bucket.Bucket(tuple(enumerate(inputs)), dims, 0, kept=(*range(1, kept + 1),))
    whole = sum(bucket.spread(slot, axes, (0, *range(1, kept + 1))) for slot, axes in zip(slots, inputs, strict=True))
    for least in (1 << 12, 0):
        monkeypatch.setattr(bucket, "_PRODUCT", least)
        joined = bucket.Join(made, slots)
        out = joined.forward()
        assert np.array_equal(out, whole.min(axis=0))
        every = joined.backward(outside, outside + out, range(len(inputs)))
        for k, (found, axes) in enumerate(zip(every, inputs, strict=True)):
            least_of = (whole + outside).min(axis=tuple(a for a in range(kept + 1) if a not in axes))
            order = np.argsort(np.argsort(axes))
            assert np.array_equal(found, least_of.transpose(order))
            (alone,) = joined.backward(outside, outside + out, [k])
            assert np.array_equal(alone, found)
    assert (joined.pair is not None) == (kept > 1)


def test_a_bucket_with_modes_is_a_product_for_each_mode() -> None:
    """Two long axes that meet only in the variable, of each of three modes: no table of all three is formed."""
    rng = np.random.default_rng(0)
    dims, inputs = (40, 30, 25, 3), [(3, 0), (3, 1, 0), (3, 0, 2)]
    slots = [rng.integers(0, 100, [dims[a] for a in axes]).astype(float) for axes in inputs]
    joined = bucket.Join(bucket.Bucket(tuple(enumerate(inputs)), dims, 0, modes=3, kept=(1, 2, 3)), slots)
    assert joined.pair == (1, 2)
    own, left, right = slots
    sums = own[:, None, None] + left[:, :, None] + right.transpose(0, 2, 1)[:, None]
    assert np.array_equal(joined.forward(), sums.min(axis=3).transpose(1, 2, 0))
