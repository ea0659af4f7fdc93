"""Elimination over label lists: every nondominated (time, use) of each table entry, up to a largest total.

A label is one way to realise an entry of a slot's table. Buckets join the labels of their inputs, and drop labels that
are dominated within their entry, or that no solution of priced total <= `max_total` can contain, by the best total
through their entry. Labels are exact integers and point to the labels they were joined from.

Under one capacity the last join is never formed: its two lists, sorted by use, meet at the fastest pair that fits.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import pairwise
from math import inf, prod
from typing import NamedTuple

import numpy as np

from ..protocol import OutOfTimeError, TooManyError
from ..work import ENTRY, PAIR, spend, spent
from .bucket import Bucket
from .circuit import Circuit
from .factors import Factor
from .kernels import Floats, Ints, best_pairs, ends_within, fastest_pair, frontier, pairs_between
from .tables import Tables, check_clock, outside_of

_MERGED = 4  # multiples of the limit of labels: more of one list are too many, more of several are merged
_CHUNK = 1 << 19  # pairs stored at once
_PAIRS = 64  # pairs stored per label that a table may hold
_VISITED, _MAX_VISITED = 4096, 1 << 26  # pairs visited per such label, and in total, which takes seconds
_MANY = 1 << 14  # pairs from which two passes over bins beat storing all
_BINS = 1 << 20


@dataclass(frozen=True, slots=True, eq=False)
class Labels:
    """N labels: entry `at` [axes, N], `time` [N], `use` [N, R], `origin` [1 + inputs, N]: v's option, input labels."""

    at: Ints
    time: Ints
    use: Ints
    origin: Ints

    def __len__(self) -> int:
        return len(self.time)

    def take(self, index: Ints) -> "Labels":
        return Labels(self.at[:, index], self.time[index], self.use[index], self.origin[:, index])

    def reduced(self, price: Floats) -> Floats:
        return self.time + self.use @ price


@dataclass(frozen=True, slots=True, eq=False)
class Listing:
    """The labels of slots of a circuit; those of the root include the best solution within the bounds.

    `rest` bounds the total of what is outside of every label of the slots that were asked for.
    """

    circuit: Circuit
    slots: dict[int, Labels]
    rest: dict[int, Floats]

    @property
    def count(self) -> int:
        return sum(len(s) for s in self.slots.values())

    def decode(self, label: int) -> tuple[int, ...]:
        """The assignment that a label of the root stands for."""
        return self.circuit.assemble([(self.circuit.root, label, 0)], self.choose)

    def choose(self, slot: int, label: int) -> tuple[int, list[int]]:
        option, *children = self.slots[slot].origin[:, label].tolist()
        return option, children


@dataclass(frozen=True, slots=True, eq=False)
class LabelBounds:
    """Largest total at `price` [R] and largest `use` [R] (None: any) of a label; most labels in a slot; deadlines.

    `until`: see `check_clock`; `most_work`: of this thread (`spent`).
    """

    price: Floats
    max_total: float
    limit: int
    until: float = inf
    use: Floats | None = None
    most_work: float = inf

    def fitting(self, labels: Labels) -> Labels:
        """The labels within the largest use."""
        return labels if self.use is None else labels.take(np.flatnonzero((labels.use <= self.use).all(axis=1)))

    def completable(self, labels: Labels, rest: Floats) -> Labels:
        """The labels within the bounds, given a lower bound on the total of the rest."""
        return self.fitting(labels.take(np.flatnonzero(labels.reduced(self.price) + rest <= self.max_total)))


def enumerate_labels(circuit: Circuit, bounds: LabelBounds, top: Sequence[int] = ()) -> Listing:
    """All labels within the bounds of the slots `top` (default: the root) and their inputs.

    The root under one capacity gets only its best label that fits. Raises TooManyError beyond the limit of labels in a
    slot, OutOfTimeError after the deadline.
    """
    slots = circuit.forward(circuit.tables(1, bounds.price.tolist()), bounds.until)
    through = circuit.backward(slots, bounds.until)
    single = len(bounds.price) == 1 and not top
    stem, capacity = (_stem(circuit), circuit.network.capacities[0]) if single else (-1, 0)
    needed = circuit.below(top or (circuit.root,))
    lists, first, kinds = dict[int, Labels](), dict[object, int](), dict[int, int]()  # equal segments share lists
    for slot in sorted(needed):
        key = _identity(circuit, slot, slots, through, kinds), slot == stem
        kinds[slot] = first.setdefault(key, slot)
        if kinds[slot] != slot:
            lists[slot] = lists[kinds[slot]]
        elif slot < len(circuit.factors):
            lists[slot] = bounds.fitting(_leaf(circuit.leaves[slot], through[slot], bounds))
        else:
            bucket, outside = circuit.bucket(slot), outside_of(through[slot], slots[slot])
            lists[slot] = _bucket(bucket, lists, slots, outside, bounds, capacity if slot == stem else None)
    rest = {slot: outside_of(through[slot], slots[slot])[tuple(lists[slot].at)] for slot in top}
    return Listing(circuit, lists, rest)


def _identity(circuit: Circuit, slot: int, slots: Tables, through: Tables, kinds: Mapping[int, int]) -> object:
    """A key equal for slots of equal labels, given the kinds of their inputs."""
    outside = through.kinds[slot], through.offsets[slot]
    if slot < len(circuit.factors):
        tables = circuit.leaves[slot].time, circuit.leaves[slot].use
        return outside, *(None if t is None else (t.shape, blake2b(t.tobytes()).digest()) for t in tables)
    bucket = circuit.bucket(slot)
    inputs = tuple((kinds[s], axes, slots.kinds[s], slots.offsets[s]) for s, axes in bucket.inputs)
    return outside, slots.kinds[slot], slots.offsets[slot], bucket.dims, inputs


def _stem(circuit: Circuit) -> int:
    """The last bucket of several inputs before the root: only its best label is needed."""
    slot = circuit.root
    while slot >= len(circuit.factors) and len(circuit.bucket(slot).inputs) == 1:
        slot = circuit.bucket(slot).inputs[0][0]
    return slot


def _leaf(factor: Factor, through: Floats, bounds: LabelBounds) -> Labels:
    at = np.stack(np.nonzero(through <= bounds.max_total))
    entries = tuple(at)
    use = np.zeros((at.shape[1], len(bounds.price))) if factor.use is None else factor.use[entries]
    return Labels(at, factor.time[entries].astype(np.int64), use.astype(np.int64), np.zeros((0, at.shape[1]), np.int64))


def _bucket(
    bucket: Bucket,
    lists: dict[int, Labels],
    slots: Tables,
    outside: Floats,
    bounds: LabelBounds,
    fit: int | None,
) -> Labels:
    """Join the inputs, the most connected next, dropping labels that cannot be completed within the bounds.

    With a capacity `fit`, returns at most one label: the fastest of the last join that fits.
    """
    kept = tuple(range(1, len(bucket.dims)))
    origin = np.zeros((1 + len(bucket.inputs), 1), np.int64)
    nothing = np.zeros((0, 1), np.int64), np.zeros(1, np.int64), np.zeros((1, len(bounds.price)), np.int64)
    state = Labels(*nothing, origin)
    left = []
    for k, (slot, more) in enumerate(bucket.inputs):
        if more or len(lists[slot]) != 1:
            left.append(k)
        else:  # a constant; equal layers have thousands
            state = replace(state, time=state.time + lists[slot].time, use=state.use + lists[slot].use)
    axes: tuple[int, ...] = ()
    while left:
        k = min(left, key=lambda k: (-len({*axes} & {*bucket.inputs[k][1]}), len(lists[bucket.inputs[k][0]])))
        left.remove(k)
        slot, more = bucket.inputs[k]
        rest = [(slots[bucket.inputs[j][0]], bucket.inputs[j][1]) for j in left] + [(outside, kept)]
        if left or fit is None:
            state, axes = _join(_Axed(state, axes), _Axed(lists[slot], more), k, rest, bucket.dims, bounds)
        else:
            state, axes = _meet(_Axed(state, axes), _Axed(lists[slot], more), k, bucket.dims, fit)
    option = state.at[axes.index(0)] if 0 in axes else np.zeros(len(state), np.int64)
    origin = np.concatenate([option[None], state.origin[1:]])
    missing = [a for a in kept if a not in axes]
    for a in missing:  # no input has this axis: list all its options
        copies = np.repeat(np.arange(len(state)), bucket.dims[a])
        state, origin, option = state.take(copies), origin[:, copies], np.tile(np.arange(bucket.dims[a]), len(state))
        state, axes = Labels(np.concatenate([state.at, option[None]]), state.time, state.use, origin), (*axes, a)
    at = state.at[[axes.index(a) for a in kept]]
    labels = Labels(at, state.time, state.use, origin)
    if missing:
        labels = bounds.completable(labels, outside[tuple(at)])
    return nondominated(labels, [a - 1 for a in kept], bucket.dims[1:])


class _Axed(NamedTuple):
    """Labels, and the axes of the rows of their `at`."""

    labels: Labels
    axes: tuple[int, ...]


def _join(
    one: _Axed,
    two: _Axed,
    place: int,
    rest: list[tuple[Floats, tuple[int, ...]]],
    dims: tuple[int, ...],
    bounds: LabelBounds,
) -> _Axed:
    """The pairs that agree on the shared axes and that the best `rest` completes within the bounds."""
    (state, axes), (other, more) = one, two
    price, limit = bounds.price, bounds.limit
    new = tuple(a for a in more if a not in axes)
    mine, key = _keys(one, two, dims)
    weight = other.reduced(price) + _least(rest, more, other.at)
    order = np.lexsort((weight, key))
    key, weight = key[order], weight[order]
    starts, ends = np.searchsorted(key, mine, "left"), np.searchsorted(key, mine, "right")
    ends, after = ends_within(starts, ends, state.reduced(price), weight, bounds.max_total), (*axes, *new)
    total, found = int((ends - starts).sum()), list[Labels]()
    visible = tuple(a for a in after if a or len(rest) > 1)  # the last join minimises over v
    rows, sizes = [after.index(a) for a in visible], [dims[a] for a in visible]
    cells = prod(sizes)
    bins = min(_BINS, 4 * total) // cells
    binned = len(price) == 1 and total > _MANY and bins >= 16
    if total > (min(_VISITED * limit, _MAX_VISITED) if binned else _PAIRS * limit):
        raise TooManyError(f"{total} pairs of labels, the limit is {limit} in a table")
    stored: Iterable[tuple[Ints, Ints]]
    if binned:
        spend(ENTRY * total)
        stride = {a: prod(dims[b] for b in visible[k + 1 :]) for k, a in enumerate(visible)}
        left = _rows(state, axes, stride)
        right = _rows(other, more, {a: stride[a] for a in new if a in stride})[order]
        first, second = best_pairs(starts, ends, left, right, cells, bins)
        if len(first) > _PAIRS * limit:
            raise TooManyError(f"{len(first)} pairs of labels, the limit is {limit} in a table")
        stored = ((first[k : k + _CHUNK], second[k : k + _CHUNK]) for k in range(0, len(first) or 1, _CHUNK))
    else:
        stored = ((i + p.start, j) for p in _chunks(ends - starts) for i, j in [pairs_between(starts[p], ends[p])])
    for i, j in stored:
        check_clock(bounds.until)
        spend(PAIR * len(i))
        if spent() > bounds.most_work:
            raise OutOfTimeError
        pairs = _pair(state, i, other, [more.index(a) for a in new], order[j], place)
        pairs = bounds.completable(pairs, _least(rest, after, pairs.at))
        found.append(nondominated(pairs, rows, sizes, _MERGED * limit))
        if len(found[-1]) > _MERGED * limit:
            raise TooManyError(f"{len(found[-1])} labels of some pairs, the limit is {limit} in a table")
        if sum(map(len, found)) > _MERGED * limit:  # the check of dominance takes the square of the labels
            found = [_merged(found, rows, sizes, limit)]
    joined = _merged(found, rows, sizes, limit)
    return _Axed(joined, after)


def _merged(found: list[Labels], rows: list[int], sizes: list[int], limit: int) -> Labels:
    """The nondominated labels of several lists."""
    joined = found[0] if len(found) == 1 else nondominated(_concatenate(found), rows, sizes, limit)
    if len(joined) > limit:
        raise TooManyError(f"{len(joined)} labels in one table, the limit is {limit}")
    return joined


def _meet(one: _Axed, two: _Axed, place: int, dims: tuple[int, ...], capacity: int) -> _Axed:
    """The fastest pair that agrees on the shared axes and fits the capacity, if any."""
    (state, axes), (other, more) = one, two
    new = tuple(a for a in more if a not in axes)
    mine, key = _keys(one, two, dims)
    left, right = np.lexsort((state.use[:, 0], mine)), np.lexsort((other.use[:, 0], key))
    i, j = fastest_pair(
        (mine[left], state.use[left, 0], state.time[left]),
        (key[right], other.use[right, 0], other.time[right]),
        capacity,
    )
    found = slice(0, int(i >= 0))
    pair = _pair(state, left[[i]][found], other, [more.index(a) for a in new], right[[j]][found], place)
    return _Axed(pair, (*axes, *new))


def _keys(one: _Axed, two: _Axed, dims: tuple[int, ...]) -> tuple[Ints, Ints]:
    """A key for each label of either side, equal where the shared axes agree."""
    (state, axes), (other, more) = one, two
    shared = tuple(a for a in axes if a in more)
    sizes = [dims[a] for a in shared]
    mine = _key(state.at[[axes.index(a) for a in shared]], sizes, len(state))
    return mine, _key(other.at[[more.index(a) for a in shared]], sizes, len(other))


def _rows(labels: Labels, axes: tuple[int, ...], stride: Mapping[int, int]) -> Ints:
    """The contribution of labels to the (cell, time, use) of a pair; strides of the axes number the cells."""
    cell = np.zeros(len(labels), np.int64)
    for row, a in zip(labels.at, axes, strict=True):
        cell += row * stride.get(a, 0)
    return np.stack([cell, labels.time, labels.use[:, 0]], axis=1)


def _pair(state: Labels, i: Ints, other: Labels, new: list[int], j: Ints, place: int) -> Labels:
    """The joined labels i and j, with the rows `new` of the other's axes."""
    origin = state.origin[:, i]
    origin[1 + place] = j
    at = np.concatenate([state.at[:, i], other.at[new][:, j]])
    return Labels(at, state.time[i] + other.time[j], state.use[i] + other.use[j], origin)


def _least(rest: list[tuple[Floats, tuple[int, ...]]], known: tuple[int, ...], at: Ints) -> Floats:
    """Lower bound on what the other tables add, given the known axes."""
    total = np.zeros(at.shape[1])
    for table, axes in rest:
        least = table.min(axis=tuple(k for k, a in enumerate(axes) if a not in known))
        total += least[tuple(at[known.index(a)] for a in axes if a in known)]
    return total


def _key(at: Ints, dims: Sequence[int], count: int) -> Ints:
    return np.ravel_multi_index(tuple(at), tuple(dims)) if dims else np.zeros(count, np.int64)


def _chunks(sizes: Ints) -> list[slice]:
    """Ranges of at most about _CHUNK pairs."""
    piece = np.cumsum(sizes) // _CHUNK
    cuts = [0, *(np.flatnonzero(np.diff(piece)) + 1).tolist(), len(sizes)]
    return [slice(a, b) for a, b in pairwise(cuts)]


def _concatenate(parts: list[Labels]) -> Labels:
    return Labels(
        np.concatenate([p.at for p in parts], axis=1),
        np.concatenate([p.time for p in parts]),
        np.concatenate([p.use for p in parts]),
        np.concatenate([p.origin for p in parts], axis=1),
    )


def nondominated(labels: Labels, rows: list[int], dims: Sequence[int], most: int = 1 << 62) -> Labels:
    """The labels nondominated among those that agree on these rows of `at`; some more than `most` if there are more."""
    cell = _key(labels.at[rows], dims, len(labels))
    order = np.lexsort((*labels.use.T[::-1], labels.time, cell))
    kept = frontier(cell[order], labels.time[order], labels.use[order], most)
    entries = 1 + int(np.count_nonzero(np.diff(cell[order])))
    left = int(np.count_nonzero(kept)) / entries
    spend(ENTRY * len(labels) * left)  # each label is compared with those left of its entry
    return labels.take(order[kept])
