"""Compiled inner loops of elimination: priced tables, min-plus products over distinct rows, dominance of labels."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, TypeVar

import numba
import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

_F = TypeVar("_F", bound=Callable[..., Any])
_SMALL = 1 << 24  # additions below which looking for equal rows does not pay
_LARGE = 1 << 21  # additions from which two threads share a product
_CACHED = 1 << 12  # numbers that stay in a core's cache


def compiled(function: _F) -> _F:
    """Compile with numba: cached on disk, no GIL; not `parallel`, as numba's thread pools do not survive a fork."""
    kept: _F = numba.njit(function, cache=True, nogil=True)
    return kept


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(2, thread_name_prefix="partita-min-plus")


@compiled
def least_sums(ahead: Floats, rows: Ints, count: int, table: Floats, at: int, out: Floats) -> None:
    """out[j] = min over the first `count` of ahead[k] + table[at + rows[k] * n + j]; four rows at a time."""
    n = out.shape[0]
    out[:] = np.inf
    k = 0
    while k + 4 <= count:
        a0, a1, a2, a3 = ahead[k], ahead[k + 1], ahead[k + 2], ahead[k + 3]
        r0, r1, r2, r3 = at + rows[k] * n, at + rows[k + 1] * n, at + rows[k + 2] * n, at + rows[k + 3] * n
        t0, t1, t2, t3 = table[r0 : r0 + n], table[r1 : r1 + n], table[r2 : r2 + n], table[r3 : r3 + n]
        for j in range(n):
            x, y = a0 + t0[j], a1 + t1[j]
            x = x if x < y else y
            y, z = a2 + t2[j], a3 + t3[j]
            y = y if y < z else z
            x = x if x < y else y
            out[j] = x if x < out[j] else out[j]
        k += 4
    while k < count:
        r0 = at + rows[k] * n
        a0, t0 = ahead[k], table[r0 : r0 + n]
        for j in range(n):
            x = a0 + t0[j]
            out[j] = x if x < out[j] else out[j]
        k += 1


@compiled
def least_of_rows(table: Floats, more: Floats) -> Floats:
    """out[j] = min over i of more[i] + table[i, j]."""
    out = np.empty(table.shape[1])
    least_sums(more, np.arange(len(more)), len(more), table.reshape(-1), 0, out)
    return out


@compiled
def least_of_classes(values: Floats, of: Ints, count: int) -> Floats:
    """The least of the values of each class."""
    out = np.full(count, np.inf)
    for i in range(len(values)):
        out[of[i]] = min(out[of[i]], values[i])
    return out


@compiled
def _product_rows(a: Floats, b: Floats, c: Floats, first: int, last: int) -> None:
    """c[i] = min_k a[i, k] + b[k] for the rows first..last and finite a."""
    inner, table = a.shape[1], b.reshape(-1)
    ahead, rows = np.empty(inner), np.empty(inner, np.int64)
    for i in range(first, last):
        count = 0
        for k in range(inner):
            if a[i, k] < np.inf:
                ahead[count], rows[count] = a[i, k], k
                count += 1
        least_sums(ahead, rows, count, table, 0, c[i])


@compiled
def row_classes(table: Floats) -> tuple[Ints, Ints]:
    """The class of each row (equal rows share one), and the first row of each class. Hashed, then compared."""
    rows, columns = table.shape
    bits = table.view(np.uint64)
    hashes = np.zeros(rows, np.uint64)
    for i in range(rows):
        h = np.uint64(1469598103934665603)
        for j in range(columns):
            h += (bits[i, j] ^ (bits[i, j] >> np.uint64(29))) * (
                np.uint64(0x9E3779B97F4A7C15) * np.uint64(2 * j + 1) ^ np.uint64(0xBF58476D1CE4E5B9)
            )
        hashes[i] = h
    of, firsts = np.empty(rows, np.int64), np.empty(rows, np.int64)
    seen, count = {np.uint64(0): np.int64(0)}, 0  # the first entry gives numba the type
    seen.clear()
    for i in range(rows):
        known = np.int64(-1)
        if hashes[i] in seen:
            known = seen[hashes[i]]
            for j in range(columns):
                if table[i, j] != table[firsts[known], j]:
                    known = np.int64(-1)
                    break
        if known < 0:
            known = np.int64(count)
            seen[hashes[i]] = known
            firsts[count] = i
            count += 1
        of[i] = known
    return of, firsts[:count]


@compiled
def _merge_rows(table: Floats, of: Ints, count: int) -> Floats:
    """The elementwise minimum of the rows of each class."""
    merged = np.full((count, table.shape[1]), np.inf)
    for i in range(table.shape[0]):
        row = merged[of[i]]
        for j in range(table.shape[1]):
            row[j] = min(row[j], table[i, j])
    return merged


@compiled
def add_weighted(found: Floats, streams: Ints, weights: Floats) -> None:
    """found += Σ_k weights[k] · streams[k]."""
    count = found.shape[0]
    for start in range(0, count, _CACHED):
        end = min(count, start + _CACHED)
        for k in range(weights.shape[0]):
            weight, row = weights[k], streams[k]
            if weight != 0:
                for i in range(start, end):
                    found[i] += weight * row[i]


@compiled
def add_priced(found: Floats, time: Floats, use: Floats, price: Floats, timed: bool) -> None:
    """found ← time + ⌊found⌋ + Σ_r price[r] · use[:, r]; unless `timed` with 0 in place of finite times."""
    for i in range(found.shape[0]):
        total = time[i] if timed or time[i] == np.inf else 0.0
        total += np.floor(found[i])
        for r in range(price.shape[0]):
            total += use[i, r] * price[r]
        found[i] = total


@compiled
def lowered(table: Floats, least: float, out: Floats) -> np.uint64:
    """A hash of the bits of table - least, which is written to `out`: perhaps the table itself, as where least is 0."""
    lanes, bits = np.full(4, 1469598103934665603, np.uint64), out.view(np.uint64)
    count = table.shape[0]
    for start in range(0, count, _CACHED):
        end = min(count, start + _CACHED)
        if least != 0:
            for i in range(start, end):
                out[i] = table[i] - least
        for i in range(start, end):
            x = bits[i]
            lanes[i & 3] = (lanes[i & 3] ^ x ^ (x >> np.uint64(29))) * np.uint64(0x9E3779B97F4A7C15)
    h = np.uint64(count)
    for lane in lanes:
        h = (h ^ lane ^ (lane >> np.uint64(31))) * np.uint64(0xBF58476D1CE4E5B9)
    return h


_TILE = 32  # rows and columns that are turned at once: both are in the cache then


@compiled
def _turn(table: Floats, out: Floats, sizes: Ints, steps: Ints) -> None:
    """Copy between flat tables of equal axes of `sizes`; `steps` [2, axes]: in `table`, and in `out`.

    The first axis has step 1 in `table`, the second in `out`.
    """
    n, m, far, step = sizes[0], sizes[1], steps[1, 0], steps[0, 1]
    place, source, target = np.zeros_like(sizes), 0, 0
    for _ in range(out.shape[0] // (n * m)):
        for j0 in range(0, m, _TILE):
            for i0 in range(0, n, _TILE):
                for i in range(i0, min(n, i0 + _TILE)):
                    for j in range(j0, min(m, j0 + _TILE)):
                        out[target + i * far + j] = table[source + j * step + i]
        for a in range(2, sizes.shape[0]):
            place[a] += 1
            source, target = source + steps[0, a], target + steps[1, a]
            if place[a] < sizes[a]:
                break
            source, target = source - sizes[a] * steps[0, a], target - sizes[a] * steps[1, a]
            place[a] = 0


def turned(table: Floats, order: Sequence[int]) -> Floats:
    """A table with its axes in that order, in one piece; itself if it is that."""
    view = table.transpose(order)
    if view.flags.c_contiguous or not table.flags.c_contiguous or table.size < _CACHED:
        return np.ascontiguousarray(view).reshape(view.shape)
    wide = [axis for axis in range(table.ndim) if table.shape[axis] > 1]
    first, second = wide[-1], [axis for axis in order if axis in wide][-1]
    if first == second:
        return np.ascontiguousarray(view)
    axes = [first, second, *(axis for axis in reversed(wide) if axis not in (first, second))]
    out = np.empty(view.shape)
    steps = [[table.strides[a] // 8 for a in axes], [out.strides[order.index(a)] // 8 for a in axes]]
    _turn(table.reshape(-1), out.reshape(-1), np.array([table.shape[a] for a in axes]), np.array(steps))
    return out


def _plain(a: Floats, b: Floats) -> Floats:
    c = np.empty((a.shape[0], b.shape[1]))
    work, rows = a.size * b.shape[1], a.shape[0]
    if work < _LARGE or rows < 2:
        _product_rows(a, b, c, 0, rows)
        return c
    half = _threads().submit(_product_rows, a, b, c, 0, rows // 2)
    _product_rows(a, b, c, rows // 2, rows)
    half.result()
    return c


def _transposed(a: Floats) -> Floats:
    return turned(a, (1, 0))


def _sparser(a: Floats, b: Floats) -> Floats:
    """The product, skipping infinite entries of the factor where that saves more."""
    dense_a = np.count_nonzero(a < np.inf) * b.shape[1]
    dense_b = np.count_nonzero(b < np.inf) * a.shape[0]
    return _plain(a, b) if dense_a <= dense_b * 1.3 else _transposed(_plain(_transposed(b), _transposed(a)))


def min_plus(a: Floats, b: Floats) -> Floats:
    """c[i, j] = min_k a[i, k] + b[k, j]; equal rows and columns of the factors are computed once."""
    if a.size * b.shape[1] <= _SMALL:
        return _plain(np.ascontiguousarray(a), np.ascontiguousarray(b))
    left, right = _transposed(a), np.ascontiguousarray(b)  # [k, i], [k, j]
    for _ in range(2):  # merge the k with equal rows of b, then those with equal columns of a
        of, firsts = row_classes(right)
        if len(firsts) < 0.9 * len(of):
            left, right = _merge_rows(left, of, len(firsts)), right[firsts]
        left, right = right, left
    left, rows = _distinct(_transposed(left))  # [i, k]
    right, columns = _distinct(_transposed(right))  # [j, k]
    c = _sparser(left, _transposed(right))
    c = c if rows is None else c[rows]
    return c if columns is None else np.ascontiguousarray(c[:, columns])


def _distinct(table: Floats) -> tuple[Floats, Ints | None]:
    """The distinct rows, and the index of each row among them (None: all rows, as merging saves little)."""
    of, firsts = row_classes(table)
    return (table[firsts], of) if len(firsts) < 0.9 * len(of) else (table, None)


@compiled
def frontier(cell: Ints, time: Ints, use: Ints, most: int = 1 << 62) -> Bools:
    """Mask of the nondominated labels of each cell; the labels are sorted by (cell, time, use...).

    It ends once it has more than `most` labels: the rest are not in the mask.
    """
    n, count = use.shape
    kept, total = np.zeros(n, np.bool_), 0
    before, size = np.empty(n, np.int64), 0  # kept labels of the cell, frequent dominators first
    for i in range(n):
        if total > most:
            break
        if i == 0 or cell[i] != cell[i - 1]:
            size = 0
        good = True
        for k in range(size):
            j, r = before[k], 0
            while r < count and use[j, r] <= use[i, r]:
                r += 1
            if r == count:
                good = False
                before[k], before[k // 2] = before[k // 2], j
                break
        kept[i] = good
        total += good
        if good and count == 1:
            before[0], size = i, 1  # it uses less than all before it
        elif good:
            before[size], size = i, size + 1
    return kept


@compiled
def ends_within(starts: Ints, ends: Ints, left: Floats, right: Floats, most: float) -> Ints:
    """For each range starts[i]..ends[i] of the ascending `right`, the first place that exceeds most - left[i]."""
    last = np.empty(left.shape[0], np.int64)
    for i in range(left.shape[0]):
        low, high = starts[i], ends[i]
        while low < high:
            middle = (low + high) // 2
            if left[i] + right[middle] <= most:
                low = middle + 1
            else:
                high = middle
        last[i] = low
    return last


@compiled
def pairs_between(starts: Ints, ends: Ints) -> tuple[Ints, Ints]:
    """The pairs (i, j) with starts[i] <= j < ends[i]."""
    count = (ends - starts).sum()
    first, second = np.empty(count, np.int64), np.empty(count, np.int64)
    at = 0
    for i in range(starts.shape[0]):
        for j in range(starts[i], ends[i]):
            first[at], second[at] = i, j
            at += 1
    return first, second


@compiled
def best_pairs(starts: Ints, ends: Ints, left: Ints, right: Ints, cells: int, bins: int) -> tuple[Ints, Ints]:
    """The pairs of `pairs_between` without most of the dominated ones.

    `left` and `right` hold rows of (cell, time, use), which add up in a pair. The first pass finds the fastest pair of
    each bin of uses; the second keeps it, and pairs that use less and are faster than all lower bins.
    """
    low, high = left[:, 2].min() + right[:, 2].min(), left[:, 2].max() + right[:, 2].max()
    shift = 0
    while (high - low) >> shift >= bins:
        shift += 1
    none = np.iinfo(np.int64).max
    least, its = np.full((cells, bins), none), np.full((cells, bins), none)
    for i in range(left.shape[0]):
        for j in range(starts[i], ends[i]):
            cell, time = left[i, 0] + right[j, 0], left[i, 1] + right[j, 1]
            use = left[i, 2] + right[j, 2]
            bin_ = (use - low) >> shift
            if time < least[cell, bin_] or (time == least[cell, bin_] and use < its[cell, bin_]):
                least[cell, bin_], its[cell, bin_] = time, use
    below = np.full((cells, bins), none)
    for cell in range(cells):
        for bin_ in range(1, bins):
            below[cell, bin_] = min(below[cell, bin_ - 1], least[cell, bin_ - 1])
    size = 1024
    first, second = np.empty(size, np.int64), np.empty(size, np.int64)
    at = 0
    for i in range(left.shape[0]):
        for j in range(starts[i], ends[i]):
            cell, time, use = left[i, 0] + right[j, 0], left[i, 1] + right[j, 1], left[i, 2] + right[j, 2]
            bin_ = (use - low) >> shift
            first_of_bin = time == least[cell, bin_] and use == its[cell, bin_]
            if time < below[cell, bin_] and (first_of_bin or use < its[cell, bin_]):
                if first_of_bin:
                    least[cell, bin_] = none  # its equals are not needed
                if at == size:
                    first, second = np.concatenate((first, first)), np.concatenate((second, second))
                    size *= 2
                first[at], second[at] = i, j
                at += 1
    return first[:at], second[:at]


@compiled
def fastest_pair(left: tuple[Ints, Ints, Ints], right: tuple[Ints, Ints, Ints], capacity: int) -> tuple[int, int]:
    """The fastest pair (i, j) of equal keys whose uses sum to at most the capacity, or (-1, -1).

    Both sides are (key, use, time), sorted by (key, use): as i uses more, j may use less, so one pass suffices.
    """
    left_key, left_use, left_time = left
    right_key, right_use, right_time = right
    n, m = left_key.shape[0], right_key.shape[0]
    best, first, second = np.int64(0), -1, -1
    fastest = np.empty(m, np.int64)  # the fastest so far of each key
    for j in range(m):
        same = j > 0 and right_key[j] == right_key[j - 1] and right_time[fastest[j - 1]] <= right_time[j]
        fastest[j] = fastest[j - 1] if same else j
    start, i = 0, 0
    while i < n:
        while start < m and right_key[start] < left_key[i]:
            start += 1
        last = start
        while last < m and right_key[last] == left_key[i]:
            last += 1
        key = left_key[i]
        while i < n and left_key[i] == key:
            while last > start and left_use[i] + right_use[last - 1] > capacity:
                last -= 1
            if last > start:
                j = fastest[last - 1]
                if first < 0 or left_time[i] + right_time[j] < best:
                    best, first, second = left_time[i] + right_time[j], i, j
            i += 1
    return first, second
