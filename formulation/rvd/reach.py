"""Dijkstra over the states that transitions within a device group reach."""

import heapq
from collections import defaultdict
from collections.abc import Iterator
from itertools import count
from math import inf, prod
from typing import NamedTuple

from .grid import Grid
from .prices import GroupSpread, Payload
from .roles import BY_OUTPUT, COLLECTIVES, KINDS, Counts, D, RoleMove, RolePair, Roles, links, moves
from .state import RVD, RvdStep, State


class Reached(NamedTuple):
    """Cost from the source (or to the target), previous roles and last move; None at the start."""

    cost_ns: int
    previous: Roles
    move: RoleMove | None


def allowed(source: RVD, target: RVD) -> frozenset[str]:
    """Useful transition kinds: into V only if the target has addends, out of V only if the source has."""
    enters, leaves = target.v > 1, source.v > 1
    return frozenset(kind for kind in KINDS if (kind[1] != "V" or enters) and (kind[0] != "V" or leaves))


class Side:
    """Dijkstra over the roles of a grid from its start, or backward to it.

    `settle` returns the states cheapest first; `reached` and (by counts) `settled` hold those so far.
    """

    def __init__(self, grid: Grid, tensor: Payload, kinds: frozenset[str], backward: bool) -> None:
        self.grid, self.tensor, self.backward = grid, tensor, backward
        self.reached: dict[Roles, Reached] = {}
        self.settled: dict[Counts, list[Roles]] = defaultdict(list)
        self._links = links(len(grid.start), kinds, backward)
        self._whole = prod(tensor.shape) * tensor.itemsize
        self._ns: dict[tuple[RolePair, tuple[int, ...], tuple[int, int]], int] = {}
        self._spreads: dict[tuple[int, ...], GroupSpread] = {}
        self._states: dict[Roles, State] = {}
        self._order: Iterator[int] = count()
        self._best = {grid.start: 0}
        self._queue = [(0, next(self._order), grid.start, Reached(0, grid.start, None))]

    @property
    def next_ns(self) -> float:
        """The cost of the next state; infinite if there is none."""
        while self._queue and self._queue[0][2] in self.reached:
            heapq.heappop(self._queue)
        return self._queue[0][0] if self._queue else inf

    def settle(self, limit_ns: int) -> Roles:
        """Settle the next state and queue its neighbours that cost less than the limit."""
        cost, _, roles, reached = heapq.heappop(self._queue)
        self.reached[roles] = reached
        self.settled[self.grid.counts(roles)].append(roles)
        shape = (1, 1, *self.tensor.shape)
        for move in moves(self.grid.sizes, roles, self._links):
            if shape[move.link.target] % move.cut:
                continue
            total = cost + self.price(move)
            if total < limit_ns and total < self._best.get(move.roles, limit_ns):
                self._best[move.roles] = total
                heapq.heappush(self._queue, (total, next(self._order), move.roles, Reached(total, roles, move)))
        return roles

    def size_bytes(self, move: RoleMove) -> int:
        """Bytes of the piece by which a move is priced."""
        return self._whole // move.parts[(move.link.kind in BY_OUTPUT) != self.backward]

    def price(self, move: RoleMove) -> int:
        """Price (ns) of a transition in all its groups."""
        key = move.link, move.group, move.parts
        if key not in self._ns:
            self._ns[key] = self._priced(move)
        return self._ns[key]

    def _priced(self, move: RoleMove) -> int:
        size, name, prices = self.size_bytes(move), COLLECTIVES.get(move.link.kind), self.tensor.prices
        if name is None:
            return prices.local(size)
        if move.group not in self._spreads:
            self._spreads[move.group] = prices.spread(self.grid.groups(move.group))
        return prices.line(name, self._spreads[move.group]).ns(size)

    def state(self, roles: Roles) -> State:
        if roles not in self._states:
            self._states[roles] = self.grid.state(roles)
        return self._states[roles]

    def steps(self, roles: Roles) -> list[RvdStep]:
        """The steps from the start to these roles, or from them to the end."""
        found = []
        while (last := self.reached[roles]).move is not None:
            found.append(self._step(last.previous, last.move))
            roles = last.previous
        return found if self.backward else found[::-1]

    def _step(self, roles: Roles, move: RoleMove) -> RvdStep:
        """The path step of a search move from these roles."""
        a, b, kind = move.link
        ends = [(a, self.state(roles)), (b, self.state(move.roles))]
        (left, before), (entered, after) = ends[::-1] if self.backward else ends
        joined, cut = (role - D if role >= D else None for role in (left, entered))
        groups = tuple(map(tuple, self.grid.groups(move.digits).tolist()))
        size, cost = self.size_bytes(move), self.price(move)
        dim, joined = (joined, None) if cut is None else (cut, joined)
        return RvdStep(kind, dim, groups, before, after, size_bytes=size, cost_ns=cost, joined=joined)
