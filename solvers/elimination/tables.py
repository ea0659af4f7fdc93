"""The tables of a circuit's slots; tables equal up to a constant are computed and stored once.

Along equal layers the messages of elimination soon repeat up to a constant, as powers in the min-plus semiring do, so
a deep network costs little more than a shallow one even without chains. Tables are compared by their numbers, less
the least entry.
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from math import inf
from time import perf_counter

import numpy as np

from ..protocol import OutOfTimeError
from ..work import CALL, ENTRY, spend
from .bucket import Bucket, Join
from .kernels import Floats, lowered


@dataclass(eq=False)
class Tables:
    """One table per slot: entry i is `arrays[i] + offsets[i]`; those of equal `kinds` share their array.

    Buckets of equal `recipes` (dims and kinds of inputs) choose alike; `choices` caches their choices.
    """

    arrays: list[Floats] = field(default_factory=list)
    offsets: list[float] = field(default_factory=list)
    kinds: list[int] = field(default_factory=list)
    recipes: list[int] = field(default_factory=list)
    choices: dict[tuple[int, tuple[int, ...]], int] = field(default_factory=dict)

    def __getitem__(self, index: int) -> Floats:
        table: Floats = self.arrays[index] + self.offsets[index] if self.offsets[index] else self.arrays[index]
        return table

    def __len__(self) -> int:
        return len(self.arrays)

    def put(self, index: int, array: Floats, offset: float, kind: int) -> None:
        self.arrays[index], self.offsets[index], self.kinds[index] = array, offset, kind

    def append(self, array: Floats, offset: float, kind: int, recipe: int = -1) -> None:
        self.arrays.append(array)
        self.offsets.append(offset)
        self.kinds.append(kind)
        self.recipes.append(recipe)


class Kinds:
    """Numbers tables by content up to a constant, and memoizes computations on them."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, tuple[int, ...]], list[int]] = {}
        self._arrays: list[Floats] = []
        self._by_id: dict[int, tuple[Floats, tuple[Floats, float, int]]] = {}
        self._memo: dict[Hashable, list[tuple[Floats, float, int]]] = {}

    def itself(self, table: Floats) -> tuple[Floats, float, int]:
        """As `of`, for a table that nothing is to be compared with: as it is, and nothing subtracted."""
        if id(table) not in self._by_id:
            self._arrays.append(table)
            self._by_id[id(table)] = table, (table, 0.0, len(self._arrays) - 1)
        return self._by_id[id(table)][1]

    def of(self, table: Floats, fixed: bool = False) -> tuple[Floats, float, int]:
        """The table less its least entry, that entry, and the table's number; written in place unless it is `fixed`."""
        if id(table) in self._by_id:
            return self._by_id[id(table)][1]
        spend(CALL + ENTRY * table.size)
        least = float(table.min(initial=inf))
        least = least if np.isfinite(least) else 0.0
        flat = np.ascontiguousarray(table).reshape(-1)
        out = np.empty_like(flat) if fixed and least else flat
        hashed = int(lowered(flat, least, out))
        plain = out.reshape(table.shape)
        alike = self._numbers.setdefault((hashed, plain.shape), [])
        number = next((n for n in alike if np.array_equal(self._arrays[n], plain)), len(self._arrays))
        if number == len(self._arrays):
            self._arrays.append(plain)
            alike.append(number)
        found = self._arrays[number], least, number
        self._by_id[id(table)] = table, found  # holding the table keeps its id unique
        return found

    def once(self, key: Hashable, make: Callable[[], Iterable[Floats]]) -> list[tuple[Floats, float, int]]:
        """The tables of `make()`, computed once per key."""
        if key not in self._memo:
            self._memo[key] = [self.of(table) for table in make()]
            self._by_id.clear()  # temporaries of one call
        return self._memo[key]


def forward(
    tables: Iterable[Floats],
    buckets: Iterable[Bucket],
    until: float = inf,
    fixed: AbstractSet[int] = frozenset(),
    known: AbstractSet[int] = frozenset(),
) -> Tables:
    """The table of every slot: the factors' `tables`, then the buckets in order. `until`: see `check_clock`.

    The tables are overwritten, but for those whose id is `fixed`, or `known`: equal ones of these are one.
    """
    kinds, slots, numbers = Kinds(), Tables(), dict[Hashable, int]()
    for table in tables:
        slots.append(*(kinds.itself(table) if id(table) in known else kinds.of(table, id(table) in fixed)))
    for bucket in buckets:
        check_clock(until)
        spend(CALL)
        key = bucket.dims, tuple((slots.kinds[child], axes) for child, axes in bucket.inputs)
        ((array, offset, kind),) = kinds.once(key, lambda b=bucket: [Join(b, slots.arrays).forward()])  # type: ignore[misc]
        slots.append(
            array,
            offset + sum(slots.offsets[child] for child, _ in bucket.inputs),
            kind,
            numbers.setdefault(key, len(numbers)),
        )
    return slots


def check_clock(until: float) -> None:
    """Raise OutOfTimeError after `until`, in seconds of `time.perf_counter`."""
    if perf_counter() > until:
        raise OutOfTimeError


def backward(
    slots: Tables, buckets: Sequence[Bucket], until: float = inf, wanted: AbstractSet[int] | None = None
) -> Tables:
    """The best total through every entry of every slot; shared slots take the minimum over their uses.

    `wanted`: only of these tables, and of the buckets above them (None: all).
    """
    kinds, first = Kinds(), len(slots) - len(buckets)
    above = None if wanted is None else _above(wanted, buckets, first)
    through = Tables([np.full(0, inf)] * len(slots), [0.0] * len(slots), [-1] * len(slots))
    root = len(slots) - 1
    through.put(root, *kinds.of(slots[root], fixed=True))
    for index in range(root, first - 1, -1):
        check_clock(until)
        spend(CALL)
        bucket = buckets[index - first]
        least = slots.offsets[index] - sum(slots.offsets[child] for child, _ in bucket.inputs)
        key = "outside", through.kinds[index], slots.kinds[index]
        ((outside, offset, kind),) = kinds.once(
            key,
            lambda i=index: [outside_of(through.arrays[i], slots.arrays[i])],  # type: ignore[misc]
        )
        total = through.offsets[index] + offset - least
        asked = tuple(k for k, (child, _) in enumerate(bucket.inputs) if above is None or child in above)
        places = bucket.dims, kind, tuple((slots.kinds[child], axes) for child, axes in bucket.inputs), asked

        def marginals(
            b: Bucket = bucket, o: Floats = outside, i: int = index, low: float = least, which: tuple[int, ...] = asked
        ) -> list[Floats]:
            return Join(b, slots.arrays).backward(o, o + slots.arrays[i] + low, which)

        for k, (array, low, number) in zip(asked, kinds.once(places, marginals), strict=True):
            child = bucket.inputs[k][0]
            if through.kinds[child] < 0:
                through.put(child, array, total + low, number)
            else:
                both = np.minimum(through[child], array + (total + low))
                through.put(child, *kinds.of(both))
    return through


def _above(wanted: AbstractSet[int], buckets: Sequence[Bucket], first: int) -> set[int]:
    """These slots, and the buckets above them, of which the first is that slot."""
    found = set(wanted)
    for index, bucket in enumerate(buckets, first):
        if any(child in found for child, _ in bucket.inputs):
            found.add(index)
    return found


def outside_of(through: Floats, inside: Floats) -> Floats:
    """The best total outside of each entry; +inf where the entry is forbidden."""
    out = np.full(inside.shape, inf)
    np.subtract(through, inside, out=out, where=through < inf)
    return out
