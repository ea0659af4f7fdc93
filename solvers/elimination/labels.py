"""Elimination over lists: every nondominated (time, use) of each table entry, within a total.

A label is one way to realise an entry of a slot's table. Buckets join the labels of their inputs; what cannot be
part of a solution of reduced total <= most is dropped, by the best total through its entry, and so is what another
label of the entry is at least as good as. Labels are exact integers and point to the labels that they are made of.

Under one capacity the last join is never formed: its two lists meet, sorted by use, at the fastest pair that fits.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import pairwise
from math import inf, prod
from typing import NamedTuple

import numpy as np

from ..protocol import TooManyError
from .bucket import Bucket
from .circuit import Circuit
from .factors import Factor
from .kernels import Floats, Ints, best_pairs, ends_within, fastest_pair, frontier, pairs_between
from .tables import Tables, check_clock, outside_of

_CHUNK = 1 << 19  # pairs stored at once
_PAIRS = 64  # stored for each label that a table may hold
_LOOKED, _MOST_LOOKED = 4096, 1 << 26  # looked at for each of those; and in all, which takes seconds
_MANY = 1 << 14  # pairs from which looking twice is better than storing
_BINS = 1 << 20


@dataclass(frozen=True, slots=True, eq=False)
class Labels:
    """Ways: the entry `at` [axes, N], `time` [N], `use` [N, R], and `made` [1 + inputs, N]: v's option, then labels."""

    at: Ints
    time: Ints
    use: Ints
    made: Ints

    def __len__(self) -> int:
        return len(self.time)

    def take(self, index: Ints) -> "Labels":
        return Labels(self.at[:, index], self.time[index], self.use[index], self.made[:, index])

    def reduced(self, price: Floats) -> Floats:
        return self.time + self.use @ price


@dataclass(frozen=True, slots=True, eq=False)
class Listing:
    """The labels of slots of a circuit; those of the root hold the best solution of reduced total at most `most`."""

    circuit: Circuit
    slots: dict[int, Labels]

    @property
    def count(self) -> int:
        return sum(len(s) for s in self.slots.values())

    def decode(self, label: int) -> tuple[int, ...]:
        """The assignment of a label of the root."""
        return self.circuit.assemble([(self.circuit.root, label, 0)], self.choose)

    def choose(self, slot: int, label: int) -> tuple[int, list[int]]:
        option, *children = self.slots[slot].made[:, label].tolist()
        return option, children


@dataclass(frozen=True, slots=True, eq=False)
class LabelBounds:
    """The largest total at `price` [R] and, unless None, `use` [R] of a label; `limit` labels in a slot, a time.

    `until`: see `check_clock`.
    """

    price: Floats
    most: float
    limit: int
    until: float = inf
    use: Floats | None = None

    def light(self, labels: Labels) -> Labels:
        """The labels that do not use too much."""
        return labels if self.use is None else labels.take(np.flatnonzero((labels.use <= self.use).all(axis=1)))

    def within(self, labels: Labels, rest: Floats) -> Labels:
        """The labels that do not total or use too much with what the rest takes at least."""
        return self.light(labels.take(np.flatnonzero(labels.reduced(self.price) + rest <= self.most)))


def enumerate_labels(
    circuit: Circuit, slots: Tables, through: Tables, bounds: LabelBounds, top: Sequence[int] = ()
) -> Listing:
    """All labels within the bounds of what the slots `top` (the root) need, given the circuit's tables at the price.

    For the root under one capacity only the best that fits. Raises TooManyError beyond the limit of labels in a slot,
    OutOfTimeError after the time.
    """
    one, most = len(bounds.price) == 1 and not top, bounds.most
    stem, capacity = (_stem(circuit), circuit.network.capacities[0]) if one else (-1, 0)
    wanted = circuit.below(top or (circuit.root,))
    lists, known, kinds = dict[int, Labels](), dict[object, int](), dict[int, int]()  # equal segments have equal lists
    for slot in sorted(wanted):
        key = _made_of(circuit, slot, slots, through, kinds), slot == stem
        kinds[slot] = known.setdefault(key, slot)
        if kinds[slot] != slot:
            lists[slot] = lists[kinds[slot]]
        elif slot < len(circuit.factors):
            lists[slot] = bounds.light(_leaf(circuit.leaves[slot], through[slot], most, len(bounds.price)))
        else:
            bucket, outside = circuit.buckets[slot - len(circuit.factors)], outside_of(through[slot], slots[slot])
            lists[slot] = _bucket(bucket, lists, slots, outside, bounds, capacity if slot == stem else None)
    return Listing(circuit, lists)


def _made_of(circuit: Circuit, slot: int, slots: Tables, through: Tables, kinds: Mapping[int, int]) -> object:
    """What the labels of a slot are made of, given the kinds of its inputs."""
    outside = through.kinds[slot], through.offsets[slot]
    if slot < len(circuit.factors):
        tables = circuit.leaves[slot].time, circuit.leaves[slot].use
        return outside, *(None if t is None else (t.shape, blake2b(t.tobytes()).digest()) for t in tables)
    bucket = circuit.buckets[slot - len(circuit.factors)]
    inputs = tuple((kinds[s], axes, slots.kinds[s], slots.offsets[s]) for s, axes in bucket.inputs)
    return outside, slots.kinds[slot], slots.offsets[slot], bucket.dims, inputs


def _stem(circuit: Circuit) -> int:
    """The bucket with several inputs from which one way leads to the root: its list is only asked for its best."""
    slot = circuit.root
    while slot >= len(circuit.factors) and len(circuit.buckets[slot - len(circuit.factors)].inputs) == 1:
        slot = circuit.buckets[slot - len(circuit.factors)].inputs[0][0]
    return slot


def _leaf(factor: Factor, through: Floats, most: float, count: int) -> Labels:
    at = np.stack(np.nonzero(through <= most))
    entries = tuple(at)
    use = np.zeros((at.shape[1], count)) if factor.use is None else factor.use[entries]
    return Labels(at, factor.time[entries].astype(np.int64), use.astype(np.int64), np.zeros((0, at.shape[1]), np.int64))


def _bucket(
    bucket: Bucket,
    lists: dict[int, Labels],
    slots: Tables,
    outside: Floats,
    bounds: LabelBounds,
    fit: int | None,
) -> Labels:
    """Join the inputs, the most connected next, dropping what cannot be completed within `most`.

    With a capacity `fit` at most one label: of the last pair of lists the fastest that fits.
    """
    kept = tuple(range(1, len(bucket.dims)))
    made = np.zeros((1 + len(bucket.inputs), 1), np.int64)
    state = Labels(np.zeros((0, 1), np.int64), np.zeros(1, np.int64), np.zeros((1, len(bounds.price)), np.int64), made)
    left = []
    for k, (slot, more) in enumerate(bucket.inputs):
        if more or len(lists[slot]) != 1:
            left.append(k)
        else:  # no choice is left there; of equal layers there are thousands
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
    made = np.concatenate([option[None], state.made[1:]])
    missing = [a for a in kept if a not in axes]
    for a in missing:  # no input knows this axis: every option of it
        copies = np.repeat(np.arange(len(state)), bucket.dims[a])
        state, made, option = state.take(copies), made[:, copies], np.tile(np.arange(bucket.dims[a]), len(state))
        state, axes = Labels(np.concatenate([state.at, option[None]]), state.time, state.use, made), (*axes, a)
    at = state.at[[axes.index(a) for a in kept]]
    labels = Labels(at, state.time, state.use, made)
    if missing:
        labels = bounds.within(labels, outside[tuple(at)])
    return _nondominated(labels, [a - 1 for a in kept], bucket.dims[1:])


class _Axed(NamedTuple):
    """Labels and the axes that the rows of their `at` are."""

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
    """The pairs that agree on the shared axes, less those that the least of the rest takes beyond the bounds."""
    (state, axes), (other, more) = one, two
    price, most, limit = bounds.price, bounds.most, bounds.limit
    new = tuple(a for a in more if a not in axes)
    mine, key = _keys(one, two, dims)
    weight = other.reduced(price) + _least(rest, more, other.at)
    order = np.lexsort((weight, key))
    key, weight = key[order], weight[order]
    starts, ends = np.searchsorted(key, mine, "left"), np.searchsorted(key, mine, "right")
    ends, after = ends_within(starts, ends, state.reduced(price), weight, most), (*axes, *new)
    total, found = int((ends - starts).sum()), list[Labels]()
    told = tuple(a for a in after if a or len(rest) > 1)  # after the last join v is no longer told apart
    rows, sizes = [after.index(a) for a in told], [dims[a] for a in told]
    cells = prod(sizes)
    bins = min(_BINS, 4 * total) // cells
    binned = len(price) == 1 and total > _MANY and bins >= 16
    if total > (min(_LOOKED * limit, _MOST_LOOKED) if binned else _PAIRS * limit):
        raise TooManyError(f"{total} pairs of labels, the limit is {limit} in a table")
    stored: Iterable[tuple[Ints, Ints]]
    if binned:
        stride = {a: prod(dims[b] for b in told[k + 1 :]) for k, a in enumerate(told)}
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
        pairs = _pair(state, i, other, [more.index(a) for a in new], order[j], place)
        pairs = bounds.within(pairs, _least(rest, after, pairs.at))
        pairs = _nondominated(pairs, rows, sizes)
        found.append(pairs)
    joined = found[0] if len(found) == 1 else _nondominated(_concatenate(found), rows, sizes)
    if len(joined) > limit:
        raise TooManyError(f"{len(joined)} labels in one table, the limit is {limit}")
    return _Axed(joined, after)


def _meet(one: _Axed, two: _Axed, place: int, dims: tuple[int, ...], capacity: int) -> _Axed:
    """The fastest pair that agrees on the shared axes and uses at most the capacity, if there is one."""
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
    """A number for each label on either side, equal where the shared axes agree."""
    (state, axes), (other, more) = one, two
    shared = tuple(a for a in axes if a in more)
    sizes = [dims[a] for a in shared]
    mine = _key(state.at[[axes.index(a) for a in shared]], sizes, len(state))
    return mine, _key(other.at[[more.index(a) for a in shared]], sizes, len(other))


def _rows(labels: Labels, axes: tuple[int, ...], stride: Mapping[int, int]) -> Ints:
    """What labels add to the (cell, time, use) of a pair: the cell is numbered by the strides of the axes."""
    cell = np.zeros(len(labels), np.int64)
    for row, a in zip(labels.at, axes, strict=True):
        cell += row * stride.get(a, 0)
    return np.stack([cell, labels.time, labels.use[:, 0]], axis=1)


def _pair(state: Labels, i: Ints, other: Labels, new: list[int], j: Ints, place: int) -> Labels:
    """The labels i and j as one, with the rows `new` of the other's axes."""
    made = state.made[:, i]
    made[1 + place] = j
    at = np.concatenate([state.at[:, i], other.at[new][:, j]])
    return Labels(at, state.time[i] + other.time[j], state.use[i] + other.use[j], made)


def _least(rest: list[tuple[Floats, tuple[int, ...]]], known: tuple[int, ...], at: Ints) -> Floats:
    """At least what the other tables add, given the known axes."""
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
        np.concatenate([p.made for p in parts], axis=1),
    )


def _nondominated(labels: Labels, rows: list[int], dims: Sequence[int]) -> Labels:
    """The labels that no other is as good as, of those that agree on some rows of `at`."""
    cell = _key(labels.at[rows], dims, len(labels))
    order = np.lexsort((*labels.use.T[::-1], labels.time, cell))
    kept = frontier(cell[order], labels.time[order], labels.use[order])
    return labels.take(order[kept])
