"""The devices of a state as a grid whose axes (digits) have roles.

A count can be factored into primes in several orders, which allow different groups; `grids` returns all of them.
Replicas and addends are unordered, so one order suffices: by machine level, outermost first. The number of states grows
steeply with the digits, so there are at most `MOST_DIGITS`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import permutations, product
from math import prod

import numpy as np
from numpy.typing import NDArray

from ..placement.placement import prime_factors
from .prices import TransitionPrices
from .roles import Counts, Roles, Sizes, V, counts
from .state import RVD, Piece, State, pieces_of

MOST_DIGITS = 4
"""Most digits of a grid: 16 devices, or 3 x 8. Larger groups merge digits, so not every divisor can move alone."""


@dataclass(frozen=True, eq=False)
class Grid:
    """`devices` has one axis of prime size per digit; `start`: the roles in the state it was made from."""

    devices: NDArray[np.int64]
    start: Roles

    @cached_property
    def numbers(self) -> tuple[int, ...]:
        """The devices, ascending."""
        return tuple(sorted(self.devices.ravel().tolist()))

    @cached_property
    def sizes(self) -> Sizes:
        """The size of every digit."""
        return self.devices.shape

    def counts(self, roles: Roles) -> Counts:
        """(r, v, *d)."""
        return counts(self.sizes, roles)

    def rvd(self, roles: Roles) -> RVD:
        """`counts` as an RVD."""
        r, v, *d = self.counts(roles)
        return RVD(r, v, tuple(d))

    def indices(self, roles: Roles) -> NDArray[np.int64]:
        """[roles, devices]: index of the replica, addend and parts of each device, in grid order."""
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
        """Key of the layout, comparable across grids of the same devices: parts, and which devices share an addend."""
        index = self.indices(roles)[V:, self._ascending]
        if not roles[V]:
            return index[1:].tobytes(), b""
        flat = np.ravel_multi_index(tuple(index), self.counts(roles)[V:])
        _, first, inverse = np.unique(flat, return_index=True, return_inverse=True)
        return index[1:].tobytes(), first[inverse].tobytes()

    def state(self, roles: Roles) -> State:
        """The canonical state of these roles."""
        index = self.indices(roles)
        pieces = tuple(Piece(copy, value, tuple(parts)) for copy, value, *parts in index.T.tolist())
        return State(self.rvd(roles), tuple(self.devices.ravel().tolist()), pieces).canonical()

    def groups(self, digits: tuple[int, ...]) -> NDArray[np.int64]:
        """[groups, members]: devices that differ in these digits only, members in digit order."""
        others = [q for q in range(self.devices.ndim) if q not in digits]
        members = prod(self.devices.shape[q] for q in digits)
        return self.devices.transpose(*others, *digits).reshape(-1, members)


def grids(state: State, prices: TransitionPrices) -> tuple[Grid, ...]:
    """The grids of a canonical state: one per order of the prime factors of each dim."""
    rvd = state.rvd
    where = {piece: device for device, piece in zip(state.devices, state.pieces, strict=True)}
    first = Piece(0, 0, (0,) * len(rvd.d))
    copies = [where[first._replace(copy=i)] for i in range(rvd.r)]
    values = [where[first._replace(value=i)] for i in range(rvd.v)]
    orders = [
        [_by_level(copies, prices)],
        [_by_level(values, prices)],
        *(sorted(set(permutations(prime_factors(k)))) for k in rvd.d),
    ]
    order = [where[piece] for piece in pieces_of(rvd)]
    found = []
    for factors in dict.fromkeys(_merged(factors) for factors in product(*orders)):
        sizes = [size for role in factors for size in role]
        ends = np.cumsum([0, *map(len, factors)]).tolist()
        start = tuple(tuple(range(ends[i], ends[i + 1])) for i in range(len(factors)))
        found.append(Grid(np.array(order, dtype=np.int64).reshape(sizes), start))
    return tuple(found)


def _merged(factors: tuple[tuple[int, ...], ...]) -> tuple[tuple[int, ...], ...]:
    """Merge neighbouring factors of the longest role, smallest product first, down to `MOST_DIGITS`."""
    roles = [list(role) for role in factors]
    while sum(map(len, roles)) > MOST_DIGITS and len(role := max(roles, key=len)) > 1:
        i = min(range(len(role) - 1), key=lambda i: role[i] * role[i + 1])
        role[i : i + 2] = [role[i] * role[i + 1]]
    return tuple(map(tuple, roles))


def _by_level(devices: Sequence[int], prices: TransitionPrices) -> tuple[int, ...]:
    """Prime factors of the number of devices (given in ascending order), outermost machine level first."""
    factors: list[int] = []
    rest = len(devices)
    for below in prices.below:
        units = len({device // below for device in devices}) // prod(factors)
        if units > 1 and rest % units == 0:
            factors += reversed(prime_factors(units))
            rest //= units
    return (*factors, *reversed(prime_factors(rest)))
