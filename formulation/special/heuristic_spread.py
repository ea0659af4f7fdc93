"""Heuristic spreads of joined tables, balanced within a percent, with few pieces."""

import heapq
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate, chain, pairwise
from math import inf
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from .table_spread import NEAR, TableSpread, fewest_elements, of_counts, unit_widths

_Numbers: TypeAlias = npt.NDArray[np.int64]


@lru_cache(maxsize=256)
def heuristic_spread(rows: tuple[int, ...], width: int, ranks: int, row: int = 1) -> TableSpread | None:
    """The spread of `heuristic_counts`, in the widest units that cost (nearly) nothing."""
    best: tuple[int, list[list[int]]] | None = None
    for unit in unit_widths(len(rows), width, ranks, row):
        counts = heuristic_counts(rows, width // unit, ranks)
        most = unit * fullest(rows, counts)
        if best is None or most < best[0]:
            best = most, counts
        if most <= NEAR * fewest_elements(rows, width, ranks):
            break
    return None if best is None else of_counts(rows, width, best[1])


def fullest(rows: Sequence[int], counts: Sequence[Sequence[int]]) -> int:
    """Rows of units on the fullest coordinate."""
    return max(sum(count * each for count, each in zip(rows, own, strict=True)) for own in counts)


def heuristic_counts(rows: Sequence[int], units: int, ranks: int) -> list[list[int]]:
    """[coordinate][table]: units of each table, of `units` each; fewest columns, then few rows and few pieces."""
    even = sum(rows) * units / ranks
    tried = [_evened(rows, _filled(rows, units, ranks, near), even * (1 + near)) for near in NEAR_FILLS]
    tried.append(_dealt(rows, units, ranks))

    def score(counts: list[list[int]]) -> tuple[float, int]:
        most = fullest(rows, counts)
        return (most if most > even * (1 + max(NEAR_FILLS)) else 0), sum(map(bool, chain.from_iterable(counts)))

    return min((counts for counts in tried if counts), key=score)


NEAR_FILLS = (0.0005, 0.001, 0.002, 0.004, 0.007)
"""Relative distances from an even share within which fillings count as equal; fewest pieces decide."""
LARGE = 6
"""The number of large tables whose units are combined to fill a coordinate; small tables fill the rest."""


def _filled(rows: Sequence[int], units: int, ranks: int, near: float) -> list[list[int]]:
    """Coordinates filled one after the other, each with an even share of what is left; empty if that fails."""
    room, left, counts = -(-len(rows) * units // ranks), [units] * len(rows), []
    for others in range(ranks - 1, 0, -1):
        target = sum(count * each for count, each in zip(rows, left, strict=True)) / (others + 1)
        own = _fill(rows, left, min(room, sum(left) - others), target, near)
        counts.append(own)
        left = [a - b for a, b in zip(left, own, strict=True)]
    return [*counts, left] if 0 < sum(left) <= room and all(map(any, counts)) else []


def _fill(rows: Sequence[int], left: Sequence[int], room: int, target: float, near: float) -> list[int]:
    """Units of two large and of the smallest tables: about `target` rows, few pieces, few tables left in part."""
    ascending = sorted((t for t in range(len(rows)) if left[t]), key=lambda t: (rows[t], t))
    large = ascending[-LARGE:]
    best: tuple[tuple[float, ...], dict[int, int]] = (inf,), {}
    for a, b in [(a, b) for i, b in enumerate(large) for a in large[i + 1 :]] or [(large[0], large[0])]:
        small = [t for t in ascending if t not in (a, b) for _ in range(left[t])]
        sums = [0, *accumulate(rows[t] for t in small[:room])]
        for count_a in range(min(left[a], room) + 1):
            most_b = 0 if a == b else min(left[b], room - count_a)
            least_b = max(0, room - count_a - len(small))
            if least_b > most_b:
                continue

            def held(count_b: int, a: int = a, b: int = b, count_a: int = count_a, sums: list[int] = sums) -> int:
                return count_a * rows[a] + count_b * rows[b] + sums[room - count_a - count_b]

            crossing = bisect_left(range(least_b, most_b + 1), target, key=held) + least_b
            for count_b in {min(crossing, most_b), max(crossing - 1, least_b)}:
                off = abs(held(count_b) - target) / target
                taken = {t: count for t, count in ((a, count_a), (b, count_b)) if count}
                left_over = sum(count < left[t] for t, count in taken.items())
                score = max(off, near), len(taken) + 2 * left_over, off
                if score < best[0]:
                    best = score, Counter(taken) + Counter(small[: room - count_a - count_b])
    return [best[1].get(t, 0) for t in range(len(rows))]


def _evened(rows: Sequence[int], filled: list[list[int]], most: float) -> list[list[int]]:
    """Local search: the fullest coordinate trades units until no coordinate has more than `most` rows.

    One unit for one, or two for two where that does not help.
    """
    if not filled:
        return []
    each, counts = np.array(rows, dtype=np.int64), np.array(filled, dtype=np.int64)
    held = counts @ each
    while held.max() > most:
        c = int(held.argmax())
        others = [*{counts[d].tobytes(): d for d in reversed(range(len(counts))) if d != c}.values()]
        trade = _trade(each, counts, held, c, others, several=1, most=most)
        if trade is None:  # one coordinate at a time, since there are many pairs of pairs
            trades = (_trade(each, counts, held, c, [d], several=2, most=most) for d in others)
            trade = min((found for found in trades if found is not None), default=None)
        if trade is None:
            break
        _, _, d, traded = trade
        for t, u in traded:
            counts[c, [t, u]] += -1, 1
            counts[d, [t, u]] += 1, -1
            held[[c, d]] += (each[u] - each[t]) * np.array([1, -1])
    evened: list[list[int]] = counts.tolist()
    return evened


def _trade(
    rows: _Numbers, counts: _Numbers, held: _Numbers, c: int, others: list[int], several: int, most: float
) -> tuple[float, int, int, list[tuple[int, int]]] | None:
    """The best trade of `several` units of c for as many of another coordinate; None if none relieves the fuller.

    (rows of the fuller afterwards, additional pieces, other coordinate, tables of the units given and taken): the least
    is best. `rows` [t], `counts` [coordinate, t], `held` [coordinate].
    """
    here = counts[others] > 0
    different = ~np.eye(len(rows), dtype=np.bool_)
    with_, give, take = np.nonzero((counts[c] > 0)[:, None] & here[:, None, :] & different)
    trades = np.arange(len(give))[None]
    if several == 2:
        ends = np.searchsorted(with_, np.arange(len(others) + 1))
        trades = np.concatenate([np.add(np.triu_indices(b - a), a) for a, b in pairwise(ends)], axis=1)
    d = np.array(others)[with_[trades[0]]]
    more = (rows[give] - rows[take])[trades].sum(axis=0)
    after = np.maximum(np.maximum(held[c] - more, held[d] + more), most)
    possible = more > 0
    if several == 2:  # two units of one table must exist
        (t, other_t), (u, other_u) = give[trades], take[trades]
        possible &= ((t != other_t) | (counts[c, t] > 1)) & ((u != other_u) | (counts[d, u] > 1))
    after[~possible] = inf
    least = after.min(initial=inf)
    if least >= held[c]:
        return None

    def preference(n: int) -> tuple[float, int, int, list[tuple[int, int]]]:
        traded = [(int(give[n]), int(take[n])) for n in trades[:, n]]
        change = Counter(u for _, u in traded)
        change.subtract(t for t, _ in traded)
        both = ((counts[c], 1), (counts[d[n]], -1))
        pieces = sum(int(own[t] + sign * by > 0) - int(own[t] > 0) for t, by in change.items() for own, sign in both)
        return float(least), pieces, int(d[n]), traded

    return min(map(preference, np.flatnonzero(after == least).tolist()))


def _dealt(rows: Sequence[int], units: int, ranks: int) -> list[list[int]]:
    """Units of the largest tables first, each to the coordinate with room and the fewest rows."""
    counts = [[0] * len(rows) for _ in range(ranks)]
    room, heap = -(-len(rows) * units // ranks), [(0, c) for c in range(ranks)]
    for table in sorted(range(len(rows)), key=lambda t: (-rows[t], t)):
        for _ in range(units):
            held, c = heapq.heappop(heap)
            counts[c][table] += 1
            if sum(counts[c]) < room:
                heapq.heappush(heap, (held + rows[table], c))
    for c, own in enumerate(counts):  # empty coordinates take a unit of another
        if not any(own):
            giver = max(range(ranks), key=lambda g: (sum(counts[g]), -g))
            table = min((t for t, count in enumerate(counts[giver]) if count), key=lambda t: (rows[t], t))
            counts[giver][table] -= 1
            counts[c][table] += 1
    return counts
