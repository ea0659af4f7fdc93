"""The cheapest reduction programs, for one payload or for every payload: shortest paths over the levels' statuses.

The price of a step depends only on its collective, its levels, the levels on which only digit 0 takes part, and the
number of parts the bytes are split into. So the cheapest program is a shortest path over the states of `statuses`,
whose number does not depend on the sizes of the levels. P² (MLSys 2022) enumerates all programs of up to 5 steps
instead.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from ...model.errors import PartitaError
from ...model.machine.collective_price import FREE, CollectivePrice
from ...model.machine.machine import LIBRARIES, Machine
from ..placement.placement import Placement, of_rows
from .cost import step_price, with_shares
from .program import Collective, Reduction, ReductionProgram, Step
from .statuses import Kind, graph, mirrored, task, transposes

Entry: TypeAlias = tuple[CollectivePrice, ReductionProgram]

MOST_BYTES = 2**40
"""The largest payload covered by an envelope."""

TIE = 1e-14  # relative; above the rounding error of equal sums
LEAST_NS = 0.1  # minimum saving of an entry of an envelope


@dataclass(frozen=True, slots=True)
class Best:
    """A cheapest program, its time (ns) for the given bytes, and its price for any bytes."""

    program: ReductionProgram
    ns: int
    price: CollectivePrice


def optimal(
    machine: Machine,
    reduction: Reduction,
    size_bytes: int,
    kind: Kind = "all_reduce",
    profile: str | None = None,
    limit: int | None = None,
) -> Best:
    """The cheapest program of at most `limit` steps for `size_bytes`, the bytes of the whole (unscattered) buffer.

    `profile`: a cost profile, by default the machine's. Ties go to fewer steps, then to no transpose. Exact up to five
    levels (see `statuses.MOST_LED`). PartitaError: an unknown kind, or a limit below 1.
    """
    if size_bytes < 0:
        raise PartitaError(f"a reduction of {size_bytes} bytes; give 0 or more")
    if limit is not None and limit < 1 and reduction.sizes:
        raise PartitaError(f"no program has {limit} steps or fewer; give a limit of 1 or more, or none")
    task(kind)
    price, program = _paths(machine, profile, kind, _canonical(machine, reduction)).best(size_bytes, limit)
    return Best(program, price.ns(size_bytes), price)


@dataclass(frozen=True, slots=True)
class CheapestPrograms:
    """The cheapest programs of one collective and their prices, small payloads first.

    The payload is the whole buffer: the input of an all-reduce or reduce-scatter, the output of an all-gather.
    """

    prices: tuple[CollectivePrice, ...]
    programs: tuple[ReductionProgram, ...]

    def at(self, size_bytes: int) -> CollectivePrice:
        """The price of the program that runs for a payload."""
        return self.prices[sum(start <= size_bytes for start in self.starts) - 1]

    @property
    def starts(self) -> tuple[int, ...]:
        """The payload in bytes from which each program is the cheapest; the first is 0."""
        crossings = (
            math.ceil((after.latency_ns - before.latency_ns) / (before.ns_per_byte - after.ns_per_byte))
            for before, after in pairwise(self.prices)
        )
        return (0, *crossings)

    @property
    def is_flat(self) -> bool:
        """True if every program has at most one step."""
        return all(len(program) <= 1 for program in self.programs)


@lru_cache(maxsize=4096)
def cheapest_programs(
    machine: Machine, placement: Placement, axes: tuple[int, ...], kind: Kind, flat: bool = False
) -> CheapestPrograms:
    """What the planner prices and the emitted program runs: the envelope of a collective over some axes.

    `flat`: a single step over the whole group.
    """
    reduction = Reduction(placement, axes)
    if flat and reduction.sizes:
        step = Step(Collective(kind), 0, len(reduction.sizes) - 1)
        profiles = LIBRARIES[machine.collectives]
        found = _lower({step_price(machine, reduction, step, 1.0, profile) for profile in profiles})
        return CheapestPrograms(found, ((step,),) * len(found))
    return envelope(machine, reduction, kind)


def _lower(lines: Iterable[CollectivePrice]) -> tuple[CollectivePrice, ...]:
    """Of two lines at most, those that are below the other one somewhere, small payloads first."""
    found: list[CollectivePrice] = []
    for line in sorted(lines, key=lambda line: (line.latency_ns, line.ns_per_byte)):
        if not found or line.ns_per_byte < found[-1].ns_per_byte:
            found.append(line)
    return tuple(found)


def envelope(
    machine: Machine, reduction: Reduction, kind: Kind = "all_reduce", profile: str | None = None
) -> CheapestPrograms:
    """The cheapest programs for all payloads: the lower envelope of their prices, which are lines over the bytes.

    It is the price of `optimal` up to `MOST_BYTES`, to a tenth of a nanosecond. A group of one device has one empty
    program. PartitaError: an unknown kind.
    """
    task(kind)
    return _envelope(machine, profile, kind, _canonical(machine, reduction))


def _canonical(machine: Machine, reduction: Reduction) -> Reduction:
    """A representative of all reductions of equal cost: between switches only the row matters, not the placement."""
    used = machine.levels[min(reduction.machine_levels, default=0) :]
    if reduction.numbering == "axes" or any(level.wiring for level in used):
        return reduction
    row = reduction.row
    rest = tuple(h // m for h, m in zip(reduction.placement.hierarchy, row, strict=True))
    return Reduction(of_rows((row, rest)), (0,))


def _paths(machine: Machine, profile: str | None, kind: Kind, reduction: Reduction) -> _Cheapest:
    profiles = (profile,) if profile else LIBRARIES[machine.collectives]
    return _Cheapest(tuple(_paths_of(machine, name, kind, reduction) for name in profiles))


@lru_cache(maxsize=256)  # a megabyte each with five levels
def _paths_of(machine: Machine, profile: str, kind: Kind, reduction: Reduction) -> _Paths:
    return _Paths(machine, profile, kind, reduction)


@lru_cache(maxsize=4096)
def _envelope(machine: Machine, profile: str | None, kind: Kind, reduction: Reduction) -> CheapestPrograms:
    paths = _paths(machine, profile, kind, reduction)
    low, high = paths.best(1), paths.best(MOST_BYTES)
    found = [low, *_between(paths, low, high)]
    if len(found) > 1 or _at(high, MOST_BYTES) < _at(low, MOST_BYTES) - LEAST_NS:
        found.append(high)
    prices, programs = zip(*found, strict=True)
    return CheapestPrograms(prices, programs)


def _between(paths: _Cheapest, low: Entry, high: Entry) -> tuple[Entry, ...]:
    """The entries of the envelope strictly between two, found recursively at crossings."""
    saved = low[0].ns_per_byte - high[0].ns_per_byte
    if saved <= 0:
        return ()
    crossing = (high[0].latency_ns - low[0].latency_ns) / saved
    middle = paths.best(crossing)
    if _at(middle, crossing) >= _at(low, crossing) - LEAST_NS:
        return ()
    return (*_between(paths, low, middle), middle, *_between(paths, middle, high))


class _Paths:
    """The state graph of a reduction with step prices as lines over the bytes of the whole buffer."""

    def __init__(self, machine: Machine, profile: str | None, kind: Kind, reduction: Reduction) -> None:
        self.kind: Kind = kind
        self.sizes = reduction.sizes
        self.graph = graph(len(self.sizes), kind)
        self.lines = {step: step_price(machine, reduction, step, 1.0, profile) for step in self.graph.steps}
        fixed, rate = np.array([(p.latency_ns, p.ns_per_byte) for p in self.lines.values()]).reshape(-1, 2).T
        shares = 1 / np.where(self.graph.scattered, np.array(self.sizes), 1).prod(axis=1)
        self.latency_ns: NDArray[np.float64] = fixed[self.graph.step]
        self.ns_per_byte: NDArray[np.float64] = rate[self.graph.step] * shares
        # Edges are sorted by target; `runs`: the first edge of each target.
        self.targets, self.runs = np.unique(self.graph.target, return_index=True)

    def best(self, size_bytes: float, limit: int | None = None) -> Entry:
        """The cheapest program of at most `limit` steps and its price."""
        if not self.sizes:
            return FREE, ()
        found = self._entry(self._shortest(size_bytes, 2 * len(self.sizes) if limit is None else limit))
        if self.kind != "all_reduce" or transposes(found[1], self.sizes, self.kind) == (None, None):
            return found
        other = self._entry(mirrored(found[1]))
        lines = ((price.latency_ns, price.ns_per_byte) for price, _ in (other, found))
        cheap = all(mine <= its * (1 + TIE) for mine, its in zip(*lines, strict=True))
        return other if cheap and len(other[1]) <= len(found[1]) else found

    def _shortest(self, size_bytes: float, limit: int) -> ReductionProgram:
        """The cheapest program; ties go to the shortest."""
        source, target = self.graph.source, self.graph.target
        cost = self.latency_ns + self.ns_per_byte * size_bytes
        best = np.full(self.graph.states, math.inf)
        best[0] = 0.0
        layers = [best]  # by number of steps: the least cost of every state
        for _ in range(limit):
            best = layers[-1].copy()
            least = np.minimum.reduceat(layers[-1][source] + cost, self.runs)
            best[self.targets] = np.minimum(best[self.targets], least)
            if (best == layers[-1]).all():
                break
            layers.append(best)
        steps: list[Step] = []
        state = self.graph.goal
        for before, after in zip(reversed(layers[:-1]), reversed(layers[1:]), strict=True):
            if before[state] > after[state]:
                into = np.flatnonzero(target == state)
                costs = before[source[into]] + cost[into]
                edge = into[np.argmax(costs <= costs.min() * (1 + TIE))]  # the first of equals
                steps.append(self.graph.steps[self.graph.step[edge]])
                state = source[edge]
        return tuple(reversed(steps))

    def _entry(self, program: ReductionProgram) -> Entry:
        """A program with its price."""
        start = 1 / math.prod(self.sizes) if self.kind == "all_gather" else 1.0
        steps = with_shares(program, self.sizes, start)
        return sum((self.lines[step].of_share(share) for step, share in steps), FREE), program


@dataclass(frozen=True, slots=True)
class _Cheapest:
    """The paths by several profiles, of which the library takes one."""

    profiles: tuple[_Paths, ...]

    def best(self, size_bytes: float, limit: int | None = None) -> Entry:
        """The cheapest program of at most `limit` steps and its price, by the cheapest profile."""
        return min((paths.best(size_bytes, limit) for paths in self.profiles), key=lambda entry: _at(entry, size_bytes))


def _at(entry: Entry, size_bytes: float) -> float:
    return entry[0].latency_ns + entry[0].ns_per_byte * size_bytes
