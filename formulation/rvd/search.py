"""The cheapest path between two states: shortest paths over RVD states (SuperScaler, section 4).

Transitions between groups connect the graph of the source's device group to that of the target's. Dijkstra runs forward
from the source and backward from the target, over roles of digits (`roles`). Every settled state is paired with all
settled states of the other side; pairs are priced in order of a lower bound, until no remaining pair can be cheaper. On
one device group the graphs differ if the target orders devices differently; equal states then connect them, or pieces
are sent.

Sending directly from source to target is always a candidate. Addends that neither end has are left out: replicas cost
no more.
"""

import heapq
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import count
from typing import NamedTuple

import numpy as np

from ...model.errors import PartitaError
from ...model.machine.machine import Machine
from .crossing import Crossing, CrossingFloor, crossed, crossing, crossing_floor, least, partners
from .grid import grids
from .prices import Payload, prices_on
from .reach import Side, allowed
from .roles import Counts, Roles
from .state import Path, RvdStep, State, check_shape


def search(
    source: State,
    target: State,
    shape: tuple[int, ...],
    itemsize: int,
    machine: Machine,
    *,
    intra: bool = True,
    inter: bool = True,
) -> Path:
    """The cheapest path for a tensor of `shape` with `itemsize` bytes per element.

    `intra`: allow transitions within a group; `inter`: between groups; if the states need an excluded one, the result
    is `send_receive`. States equal up to names give an empty path. PartitaError: a state that does not cut the shape
    into equal parts, or a device that the machine does not have.
    """
    a, b = _checked(source, target, shape, machine)
    return _named(_shortest(a, b, shape, itemsize, machine, intra=intra, inter=inter), source, target)


@lru_cache(maxsize=4096)
def _shortest(
    a: State, b: State, shape: tuple[int, ...], itemsize: int, machine: Machine, intra: bool, inter: bool
) -> Path:
    """`search` between canonical states, cached for equal layers and micro-batches."""
    one_group, tensor = a.devices == b.devices, Payload(shape, itemsize, prices_on(machine))
    direct = _direct(a, b, tensor)
    if a == b or not (intra if one_group else inter):
        return direct
    kinds = allowed(a.rvd, b.rvd) if intra else frozenset[str]()
    starts = [Side(grid, tensor, kinds, backward=False) for grid in grids(a, tensor.prices)]
    ends = [Side(grid, tensor, kinds, backward=True) for grid in grids(b, tensor.prices)]
    found = _Joining(starts, ends, tensor, one_group).best(direct.cost_ns + 1)
    return direct if found is None else _path(found)


def forget() -> None:
    """Clear the caches of paths and prices, for timing."""
    _shortest.cache_clear()
    prices_on.cache_clear()


def send_receive(source: State, target: State, shape: tuple[int, ...], itemsize: int, machine: Machine) -> Path:
    """One step in which every device of the target fetches the overlaps of its box (section 3.3): the baseline."""
    a, b = _checked(source, target, shape, machine)
    return _named(_direct(a, b, Payload(shape, itemsize, prices_on(machine))), source, target)


def _direct(a: State, b: State, tensor: Payload) -> Path:
    if a == b:
        return Path((), 0)
    step = crossed(a, b, tensor)
    return Path((step,), step.cost_ns)


def _named(path: Path, source: State, target: State) -> Path:
    """The path with the given names of replicas and addends at its ends."""
    if not path.steps:
        return path
    steps = [replace(path.steps[0], before=source), *path.steps[1:]]
    return Path((*steps[:-1], replace(steps[-1], after=target)), path.cost_ns)


def _checked(source: State, target: State, shape: tuple[int, ...], machine: Machine) -> tuple[State, State]:
    for state in (source, target):
        check_shape(state, shape)
        if max(state.devices) >= machine.devices or min(state.devices) < 0:
            raise PartitaError(
                f"{state.rvd} lies on devices {list(state.devices)}, but {machine.name} has 0 to {machine.devices - 1}"
            )
    return source.canonical(), target.canonical()


class _Join(NamedTuple):
    """Two states joined by a crossing or by equality, and the cost of the whole path."""

    start: Side
    source: Roles
    end: Side
    target: Roles
    step: RvdStep | None
    cost_ns: int


class _Joining:
    """The two Dijkstra searches and the pairs of states that join them."""

    def __init__(self, starts: Sequence[Side], ends: Sequence[Side], tensor: Payload, one_group: bool) -> None:
        self.starts, self.ends, self.tensor, self.one_group = starts, ends, tensor, one_group
        self.one_grid = len(starts) == len(ends) == 1 and np.array_equal(starts[0].grid.devices, ends[0].grid.devices)
        sources, targets = starts[0].grid.numbers, ends[0].grid.numbers
        # Different states of one group take at least one message.
        one = CrossingFloor(tensor.prices.one_message(), None)
        self.floor = one if one_group else crossing_floor(sources, targets, tensor)
        self.cheapest_ns = 0 if one_group else self.floor.any_ns(tensor, len(sources), len(targets))
        self.found: _Join | None = None
        self.limit_ns = 0
        self._order = count()
        self._pairs: list[tuple[int, int, tuple[Side, Roles, Side, Roles], Crossing]] = []
        self._crossings: dict[tuple[Counts, Counts], tuple[Crossing, int] | None] = {}
        self._same: tuple[dict[object, tuple[Side, Roles]], ...] = ({}, {})

    def best(self, limit_ns: int) -> _Join | None:
        """The cheapest path below the limit: best first over pairs (by bound) and unsettled states (by cost)."""
        self.limit_ns = limit_ns
        while True:
            side = min((*self.starts, *self.ends), key=lambda side: side.next_ns)
            next_ns = side.next_ns + self.cheapest_ns
            if self._pairs and self._pairs[0][0] <= next_ns:
                bound, _, pair, kind = heapq.heappop(self._pairs)
                if bound < self.limit_ns:
                    self._try(*pair, kind)
            elif next_ns < self.limit_ns:
                self._settle(side)
            else:
                return self.found

    def _settle(self, side: Side) -> None:
        """Settle the next state and pair it with those of the other side."""
        roles = side.settle(self.limit_ns)
        if self.one_group:
            self._join_same(side, roles)
        for other in self.starts if side.backward else self.ends:
            self._join(side, roles, other)

    def _join(self, side: Side, roles: Roles, other: Side) -> None:
        """Pair a state with all settled states of the other side that a crossing connects."""
        cost, settled = side.reached[roles].cost_ns, other.settled
        counts = side.grid.counts(roles)
        for theirs in partners(counts, other.grid.devices.size, settled):
            known = self._crossing(*((theirs, counts) if side.backward else (counts, theirs)))
            if known is None:
                continue
            kind, least_ns = known
            for partner in settled.get(theirs, ()):
                bound = cost + least_ns + other.reached[partner].cost_ns
                if bound >= self.limit_ns:
                    break
                pair = (other, partner, side, roles) if side.backward else (side, roles, other, partner)
                heapq.heappush(self._pairs, (bound, next(self._order), pair, kind))

    def _crossing(self, a: Counts, b: Counts) -> tuple[Crossing, int] | None:
        """The crossing between two RVDs and a lower bound on its price."""
        if (a, b) not in self._crossings:
            kind = crossing(a, b, self.tensor)
            self._crossings[a, b] = None if kind is None else (kind, least(kind, a, b, self.floor, self.tensor))
        return self._crossings[a, b]

    def _try(self, start: Side, source: Roles, end: Side, target: Roles, kind: Crossing | None) -> None:
        step = None
        if kind is not None:
            step = crossed(start.state(source), end.state(target), self.tensor, kind.kind, kind.dim)
        cost = start.reached[source].cost_ns + end.reached[target].cost_ns + (step.cost_ns if step else 0)
        if cost < self.limit_ns:
            self.limit_ns, self.found = cost, _Join(start, source, end, target, step, cost)

    def _join_same(self, side: Side, roles: Roles) -> None:
        """Join a state with an equal one of the other side."""
        key = roles if self.one_grid else side.grid.same(roles)
        ours, theirs = self._same if side.backward else self._same[::-1]
        ours.setdefault(key, (side, roles))
        if key in theirs:
            other = theirs[key]
            ends = (*other, side, roles) if side.backward else (side, roles, *other)
            self._try(*ends, None)


def _path(found: _Join) -> Path:
    """The path through a join."""
    steps = found.start.steps(found.source)
    if found.step is not None and found.step.before != found.step.after:
        steps.append(found.step)
    steps += found.end.steps(found.target)
    assert sum(step.cost_ns for step in steps) == found.cost_ns
    return Path(tuple(steps), found.cost_ns)
