"""The devices of a state as a grid, whose digits have roles.

A count with several primes can be factored in several orders, which allow different groups: `grids` gives them all. For
copies and addends, whose order is free, one will do: by the levels of the machine, outermost first. States grow
steeply with digits, so there are at most `MOST_DIGITS`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import permutations, product
from math import prod

import numpy as np
from numpy.typing import NDArray

from .prices import Prices
from .roles import Counts, Roles, Sizes, V, counts
from .state import RVD, Piece, State, pieces_of

MOST_DIGITS = 4
"""Of a grid: 16 devices, or 3 x 8. Digits of larger groups are merged, and no longer split a count at every prime."""


@dataclass(frozen=True, eq=False)
class Grid:
    """`devices` has an axis of a prime size for every digit; `start` are the roles in the state it was made from."""

    devices: NDArray[np.int64]
    start: Roles

    @cached_property
    def numbers(self) -> tuple[int, ...]:
        """The devices, ascending."""
        return tuple(sorted(self.devices.ravel().tolist()))

    @cached_property
    def sizes(self) -> Sizes:
        """Of the digits."""
        return self.devices.shape

    def counts(self, roles: Roles) -> Counts:
        """(r, v, *d)."""
        return counts(self.sizes, roles)

    def rvd(self, roles: Roles) -> RVD:
        """The same as an RVD."""
        r, v, *d = self.counts(roles)
        return RVD(r, v, tuple(d))

    def indices(self, roles: Roles) -> NDArray[np.int64]:
        """[roles, devices]: which copy, addend and parts the devices hold, in the order of the grid."""
        index = np.zeros((len(roles), self.devices.size), dtype=np.int64)
        for number, role in enumerate(roles):
            for q in role:
                index[number] = index[number] * self.devices.shape[q] + self._digits[q]
        return index

    @cached_property
    def _digits(self) -> NDArray[np.int64]:
        """[digits, devices]."""
        return np.indices(self.devices.shape).reshape(self.devices.ndim, self.devices.size)

    @cached_property
    def _ascending(self) -> NDArray[np.int64]:
        return self.devices.ravel().argsort()

    def same(self, roles: Roles) -> tuple[bytes, bytes]:
        """Equal for roles of any grids of the same devices where these hold the same: parts, and who has equal ones."""
        index = self.indices(roles)[V:, self._ascending]
        if not roles[V]:
            return index[1:].tobytes(), b""
        flat = np.ravel_multi_index(tuple(index), self.counts(roles)[V:])
        _, first, inverse = np.unique(flat, return_index=True, return_inverse=True)
        return index[1:].tobytes(), first[inverse].tobytes()

    def state(self, roles: Roles) -> State:
        """Who holds what, with canonical names."""
        index = self.indices(roles)
        pieces = tuple(Piece(copy, value, tuple(parts)) for copy, value, *parts in index.T.tolist())
        return State(self.rvd(roles), tuple(self.devices.ravel().tolist()), pieces).canonical()

    def groups(self, digits: tuple[int, ...]) -> NDArray[np.int64]:
        """[groups, members]: devices that differ in these digits alone, members in their order."""
        others = [q for q in range(self.devices.ndim) if q not in digits]
        members = prod(self.devices.shape[q] for q in digits)
        return self.devices.transpose(*others, *digits).reshape(-1, members)


def grids(state: State, prices: Prices) -> tuple[Grid, ...]:
    """A canonical state's grids: one for every way to order the primes of the dims' parts."""
    rvd = state.rvd
    where = {piece: device for device, piece in zip(state.devices, state.pieces, strict=True)}
    first = Piece(0, 0, (0,) * len(rvd.d))
    copies = [where[first._replace(copy=i)] for i in range(rvd.r)]
    values = [where[first._replace(value=i)] for i in range(rvd.v)]
    ways = [
        [_by_level(copies, prices)],
        [_by_level(values, prices)],
        *(sorted(set(permutations(_primes(k)))) for k in rvd.d),
    ]
    order = [where[piece] for piece in pieces_of(rvd)]
    found = []
    for factors in dict.fromkeys(_merged(factors) for factors in product(*ways)):
        sizes = [size for role in factors for size in role]
        ends = np.cumsum([0, *map(len, factors)]).tolist()
        start = tuple(tuple(range(ends[i], ends[i + 1])) for i in range(len(factors)))
        found.append(Grid(np.array(order, dtype=np.int64).reshape(sizes), start))
    return tuple(found)


def _merged(factors: tuple[tuple[int, ...], ...]) -> tuple[tuple[int, ...], ...]:
    """At most `MOST_DIGITS` of them: neighbours in the longest role become one, the least product first."""
    roles = [list(role) for role in factors]
    while sum(map(len, roles)) > MOST_DIGITS and len(role := max(roles, key=len)) > 1:
        i = min(range(len(role) - 1), key=lambda i: role[i] * role[i + 1])
        role[i : i + 2] = [role[i] * role[i + 1]]
    return tuple(map(tuple, roles))


def _by_level(devices: Sequence[int], prices: Prices) -> tuple[int, ...]:
    """Primes whose product is the number of devices (ascending), those over the outermost level first."""
    factors: list[int] = []
    rest = len(devices)
    for below in prices.below:
        units = len({device // below for device in devices}) // prod(factors)
        if units > 1 and rest % units == 0:
            factors += reversed(_primes(units))
            rest //= units
    return (*factors, *reversed(_primes(rest)))


def _primes(number: int) -> tuple[int, ...]:
    """Its prime factors, ascending."""
    factor = next((p for p in range(2, int(number**0.5) + 1) if number % p == 0), number)
    return () if number == 1 else (factor, *_primes(number // factor))
