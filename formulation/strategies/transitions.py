"""Transitions: what it costs to bring a tensor from any layout to any other, for all pairs at once.

The direct program of a pair is `model.layout.steps`; here the same phases run over arrays of pairs. A program depends
only on letters, so it is worked out once for a set of layouts; prices and sizes enter afterwards. A route may pass
through other layouts: the table is closed under shortest paths (as SuperScaler searches RVD transitions), so for
example an all-reduce becomes a reduce-scatter and an all-gather where that is cheaper. A collective costs what its best
program over the levels of the machine costs (`reduction.optimal`).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, reduce
from itertools import product
from math import prod
from typing import Literal

import numpy as np
import numpy.typing as npt
from numba import njit

from ...model.graph.layout import COLLECTIVES, Action, B, Layout, P, R, S, largest_part, move, splittable
from ...model.machine.collective_price import FREE, ROUNDING_NS, CollectivePrice
from ...model.machine.machine import Machine
from ..placement.placement import Placement
from ..reduction.cost import exchange_price
from ..reduction.optimal import cheapest_programs
from ..reduction.program import Reduction
from ..reduction.statuses import Kind

Codes = npt.NDArray[np.int64]
Times = npt.NDArray[np.int64]
Calls = npt.NDArray[np.int16]

ACTIONS = tuple(Action)
_NUMBER = {action: i for i, action in enumerate(ACTIONS)}
_JOINED = Action.GATHER, Action.SCATTER_SUM  # of several tensors in one message
TRAVELS = Action.GATHER, Action.NOTHING
"""Actions on a weight's value that programs begin ahead of its use; kernels wait for any others, and all with them."""
_IS_JOINED = np.array([action in _JOINED for action in ACTIONS])
_TRAVELS = np.array([action in TRAVELS for action in ACTIONS])
_IS_COLLECTIVE = np.array([action in COLLECTIVES for action in ACTIONS])
_KINDS: dict[Action, Kind] = {
    Action.GATHER: "all_gather",
    Action.SCATTER_SUM: "reduce_scatter",
    Action.SUM: "all_reduce",
}
# Priced by what they write (the rest by what they read): an all-gather's and a pad's output is the larger side.
_BY_OUTPUT = np.array([a in (Action.GATHER, Action.PAD, Action.SLICE, Action.KEEP_FIRST) for a in ACTIONS])


@dataclass(frozen=True, eq=False)
class Space:
    """The layouts of a tensor on a mesh: `codes` number all of them, `legal` are those that leave no rank empty.

    A code reads the letters as digits, the first axis most significant. `numel[code]` is the largest local size.
    """

    axes: tuple[int, ...]
    sizes: tuple[int, ...]

    @property
    def base(self) -> int:
        return 3 + len(self.sizes)

    @cached_property
    def letters(self) -> npt.NDArray[np.int8]:
        """[codes, axes]: the letters of every code."""
        return np.array(list(product(range(self.base), repeat=len(self.axes))), dtype=np.int8)

    @cached_property
    def weights(self) -> npt.NDArray[np.int64]:
        return np.array([self.base ** (len(self.axes) - 1 - a) for a in range(len(self.axes))], dtype=np.int64)

    def code(self, layout: Layout) -> int:
        return int(np.dot(np.array(layout), self.weights))

    def layout(self, code: int) -> Layout:
        return tuple(int(x) for x in self.letters[code])

    def _by_mask(self, atom: int) -> tuple[npt.NDArray[np.int64], list[tuple[int, ...]]]:
        """For every code which subset of axes splits the atom, and the sizes of the axes of every subset."""
        n = len(self.axes)
        mask = ((self.letters == S(atom)) @ (1 << np.arange(n))).astype(np.int64)
        subsets = [tuple(self.axes[a] for a in range(n) if m >> a & 1) for m in range(1 << n)]
        return mask, subsets

    @cached_property
    def numel(self) -> npt.NDArray[np.int64]:
        total = np.ones(len(self.letters), dtype=np.int64)
        for atom, size in enumerate(self.sizes):
            mask, subsets = self._by_mask(atom)
            total *= np.array([largest_part(size, parts) for parts in subsets], dtype=np.int64)[mask]
        return total

    @cached_property
    def is_legal(self) -> npt.NDArray[np.bool_]:
        fine = np.ones(len(self.letters), dtype=bool)
        for atom, size in enumerate(self.sizes):
            mask, subsets = self._by_mask(atom)
            fine &= np.array([splittable(size, parts) for parts in subsets])[mask]
        return fine

    def legal(self, addends: bool = True) -> Codes:
        """The legal codes; without `addends` (tensors without gradient) B is left out: it is R there."""
        fine = self.is_legal if addends else self.is_legal & ~(self.letters == B).any(axis=1)
        return np.flatnonzero(fine)

    def without_addends(self, codes: Codes) -> Codes:
        """The layouts that the same values have without a gradient: R for B."""
        letters = self.letters[codes].astype(np.int64)
        plain: Codes = np.where(letters == B, R, letters) @ self.weights
        return plain

    def only(self, atoms: Collection[int]) -> Space:
        """The same layouts of the tensor of these atoms alone."""
        return space(self.axes, tuple(size if a in atoms else 1 for a, size in enumerate(self.sizes)))

    def has(self, codes: Codes, letter: int) -> npt.NDArray[np.bool_]:
        """[codes, axes]: where the letter stands."""
        found: npt.NDArray[np.bool_] = self.letters[codes] == letter
        return found


@lru_cache(maxsize=4096)
def space(axes: tuple[int, ...], sizes: tuple[int, ...]) -> Space:
    """The space of a tensor with these atom sizes (shared, so that its arrays are built once)."""
    return Space(axes, sizes)


@dataclass(frozen=True, slots=True)
class _Phase:
    """Moves of one axis for many pairs at once: which, the actions, and the codes that their sizes are read from."""

    axis: int
    pairs: npt.NDArray[np.int64]
    value: npt.NDArray[np.int8]
    value_code: npt.NDArray[np.int64]
    gradient: npt.NDArray[np.int8]
    gradient_code: npt.NDArray[np.int64]


def _action_tables(base: int) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.int8]]:
    moves = [[move(a, b) for b in range(base)] for a in range(base)]
    return (
        np.array([[_NUMBER[m.value] for m in row] for row in moves], dtype=np.int8),
        np.array([[_NUMBER[m.gradient] for m in row] for row in moves], dtype=np.int8),
    )


def _stays(source: list[npt.NDArray[np.int8]], target: list[npt.NDArray[np.int8]], axis: int) -> npt.NDArray[np.bool_]:
    """The pairs whose letter on an axis stays, since the axes outside of it split the same there."""
    a = source[axis]
    fine: npt.NDArray[np.bool_] = a == target[axis]
    for o in range(axis):
        fine &= (a < 3) | ((source[o] == a) == (target[o] == a))
    return fine


@lru_cache(maxsize=256)
def _programs(axes: int, base: int, sources: bytes, targets: bytes) -> tuple[_Phase, ...]:
    """`steps` for every pair (source, target); codes are given as bytes so that the cache can compare them."""
    weights = np.array([base ** (axes - 1 - a) for a in range(axes)], dtype=np.int64)
    of = [np.frombuffer(c, dtype=np.int64) for c in (sources, targets)]
    digits = [codes[:, None] // weights % base for codes in of]
    source = [np.repeat(digits[0][:, a], len(of[1])).astype(np.int8) for a in range(axes)]
    target = [np.tile(digits[1][:, a], len(of[0])).astype(np.int8) for a in range(axes)]
    current = [letters.copy() for letters in source]
    code = np.repeat(of[0], len(of[1]))
    value_table, gradient_table = _action_tables(base)
    phases: list[_Phase] = []

    def go(axis: int, where: npt.NDArray[np.bool_], letter: npt.NDArray[np.int8]) -> None:
        pairs = np.flatnonzero(where)
        if not len(pairs):
            return
        a, b = current[axis][pairs], letter[pairs]
        before = code[pairs]
        after = before + (b.astype(np.int64) - a) * weights[axis]
        value, gradient = value_table[a, b], gradient_table[a, b]
        phases.append(
            _Phase(
                axis,
                pairs,
                value,
                np.where(_BY_OUTPUT[value], after, before),
                gradient,
                np.where(_BY_OUTPUT[gradient], before, after),
            )
        )
        current[axis][pairs], code[pairs] = b, after

    def free_to_push(axis: int) -> npt.NDArray[np.bool_]:
        letter, fine = target[axis], np.ones(len(code), dtype=bool)
        for i in range(axis + 1, axes):
            fine &= current[i] != letter
        for o in range(axis):
            fine &= (target[o] == letter) == (current[o] == letter)
        return fine

    def free_to_pop(axis: int) -> npt.NDArray[np.bool_]:
        fine = np.ones(len(code), dtype=bool)
        for i in range(axis + 1, axes):
            fine &= current[i] != current[axis]
        return fine

    stay = [_stays(source, target, axis) for axis in range(axes)]
    whole = np.full(len(code), R, dtype=np.int8)
    for axis in range(axes):
        a, b = current[axis], target[axis]
        go(axis, ((a == R) | (a == B)) & (b >= 3) & free_to_push(axis), b)
    for axis in range(axes):
        a, b = current[axis], target[axis]
        go(axis, (a == P) & (b >= 3) & free_to_push(axis), b)
    for axis in range(axes):
        a, b = current[axis], target[axis]
        go(axis, (a >= 3) & (b >= 3) & (a != b) & free_to_pop(axis) & free_to_push(axis), b)
    for axis in range(axes):
        a, b = current[axis], target[axis]
        go(axis, (a < 3) & (b < 3) & (a != b), b)
        go(axis, (a == P) & (b >= 3), whole)
    for axis in reversed(range(axes)):
        a, b = current[axis], target[axis]
        go(axis, (a >= 3) & ~stay[axis] & ~((a == b) & (a != source[axis])), np.where(b >= 3, R, b).astype(np.int8))
    for axis in range(axes):
        go(axis, current[axis] != target[axis], target[axis])
    return tuple(phases)


@dataclass(frozen=True, eq=False)
class Table:
    """All pairs of the legal layouts of a tensor, [codes, codes] in the order of `codes`.

    `total` and `forward` are ns (forward alone is what a repeated conversion costs), `via` an intermediate layout of
    the cheapest route (-1: the direct program). `calls` [2, codes, codes] are those of the framework in forward, and in
    backward: one for every move. `waits`: whether kernels wait for a weight on that route (`TRAVELS`).
    """

    codes: Codes
    total: Times
    forward: Times
    via: npt.NDArray[np.int16]
    calls: Calls
    waits: npt.NDArray[np.bool_]

    @property
    def of_fill(self) -> Table:
        """The same of a fill, of which any part is made where it is read."""
        return replace(self, total=np.zeros_like(self.total), forward=np.zeros_like(self.forward))

    @cached_property
    def moves(self) -> npt.NDArray[np.bool_]:
        """Whether the value moves in memory."""
        found: npt.NDArray[np.bool_] = self.calls[0] > 0
        return found

    @cached_property
    def position(self) -> npt.NDArray[np.int64]:
        """For every legal code its place in `codes`."""
        places = np.full(int(self.codes.max()) + 1, -1, dtype=np.int64)
        places[self.codes] = np.arange(len(self.codes))
        return places

    def route(self, source: int, target: int) -> tuple[int, ...]:
        """The codes between `source` and `target` on the cheapest route."""
        k = int(self.via[self.position[source], self.position[target]])
        if k < 0:
            return ()
        middle = int(self.codes[k])
        return (*self.route(source, middle), middle, *self.route(middle, target))


@njit(cache=True)
def _close(
    total: Times, forward: Times, via: npt.NDArray[np.int16], calls: Calls, waits: npt.NDArray[np.bool_]
) -> None:
    """Floyd and Warshall: shortest routes through any layout; what is equally cheap stays direct."""
    n = len(total)
    for k in range(n):
        for i in range(n):
            first = total[i, k]
            if i == k:
                continue
            for j in range(n):
                through = first + total[k, j]
                if through < total[i, j]:
                    total[i, j] = through
                    forward[i, j] = forward[i, k] + forward[k, j]
                    calls[0, i, j] = calls[0, i, k] + calls[0, k, j]
                    calls[1, i, j] = calls[1, i, k] + calls[1, k, j]
                    waits[i, j] = waits[i, k] or waits[k, j]
                    via[i, j] = k


class Transitions:
    """Prices of moves on one machine under one placement; `flat`: without programs of several steps.

    `transfer` is the price of handing a tensor to another stage of a pipeline.
    """

    def __init__(
        self, machine: Machine, placement: Placement, flat: bool = False, transfer: CollectivePrice | None = None
    ) -> None:
        self.transfer = transfer or FREE
        self.machine, self.placement, self.axes, self.flat = machine, placement, placement.sizes, flat
        self._lines = [[self._prices(action, axis) for action in ACTIONS] for axis in range(len(self.axes))]
        self._tables: dict[tuple[Space, int, bool, float | None], Table] = {}

    def _prices(self, action: Action, axis: int) -> tuple[CollectivePrice, ...]:
        """The lines of which the lowest is the price: one for each program of a reduction."""
        launch = CollectivePrice(self.machine.device.launch_ns, 0.0)
        if action is Action.NOTHING:
            return (CollectivePrice(0.0, 0.0),)
        if self.axes[axis] == 1:  # a group of one calls the collective; nothing is cut or filled up
            return (launch if action in COLLECTIVES else FREE,)
        if action in _KINDS:
            return cheapest_programs(self.machine, self.placement, (axis,), _KINDS[action], self.flat).prices
        if action in (Action.EXCHANGE, Action.SEND):
            kind: Literal["all_to_all", "send"] = "send" if action is Action.SEND else "all_to_all"
            return (exchange_price(self.machine, Reduction(self.placement, (axis,)), kind),)
        return (launch + CollectivePrice(0.0, 2e9 / self.machine.device.memory_bandwidth),)  # read and written once

    @cached_property
    def _arrays(self) -> list[list[tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]]]:
        """For every axis and line the latency and the rate of every action; one that has no such line has its first."""
        most = [max(map(len, actions)) for actions in self._lines]
        chosen = [
            [[lines[k if k < len(lines) else 0] for lines in actions] for k in range(count)]
            for actions, count in zip(self._lines, most, strict=True)
        ]
        return [
            [(np.array([x.latency_ns for x in row]), np.array([x.ns_per_byte for x in row])) for row in axis]
            for axis in chosen
        ]

    def step_ns(self, axis: int, action: Action, size_bytes: int, share: float | None = None) -> int:
        """Time of one action of one axis on `size_bytes` (the larger side of a gather or reduce-scatter).

        A tensor that is gathered with others ahead of its use pays a `share` of the latency of their message; kernels
        wait for any other, until the last rank of the group is there.
        """
        paid = 1.0 if share is None or action not in _JOINED else share
        wait = self._wait_ns[axis] if share is None and action in COLLECTIVES else 0.0
        lines = self._lines[axis][_NUMBER[action]]
        return min(CollectivePrice(line.latency_ns * paid + wait, line.ns_per_byte).ns(size_bytes) for line in lines)

    @cached_property
    def _wait_ns(self) -> list[float]:
        """What a collective over each axis waits for the ranks of its group."""
        levels, matrix = self.machine.levels, self.placement.matrix
        crossed = ([level.wait_ns for level, n in zip(levels, row, strict=True) if n > 1] for row in matrix)
        return [(size - 1) * max(waits, default=0.0) for size, waits in zip(self.axes, crossed, strict=True)]

    def _times(
        self, axis: int, actions: npt.NDArray[np.int8], sizes: npt.NDArray[np.int64], share: float | None
    ) -> Times:
        """`step_ns` for many actions of one axis."""
        shares = np.where(_IS_JOINED, 1.0 if share is None else share, 1.0)
        wait = np.where(_IS_COLLECTIVE, self._wait_ns[axis] if share is None else 0.0, 0.0)
        times = ((latency * shares + wait)[actions] + rate[actions] * sizes for latency, rate in self._arrays[axis])
        return _ns(reduce(np.minimum, times))

    def direct(
        self, tensor: Space, codes: Codes, itemsize: int, gradient: bool, share: float | None = None
    ) -> tuple[Times, Times, Calls, npt.NDArray[np.bool_]]:
        """Of the direct programs between all pairs forward and backward ns, the calls of both, and `Table.waits`."""
        shape = (len(codes), len(codes))
        forward, backward = np.zeros(prod(shape), dtype=np.int64), np.zeros(prod(shape), dtype=np.int64)
        calls, waits = np.zeros((2, prod(shape)), dtype=np.int16), np.zeros(prod(shape), dtype=np.bool_)
        sizes = tensor.numel * itemsize
        for phase in _programs(len(self.axes), tensor.base, codes.tobytes(), codes.tobytes()):
            forward[phase.pairs] += self._times(phase.axis, phase.value, sizes[phase.value_code], share)
            calls[0, phase.pairs] += phase.value != _NUMBER[Action.NOTHING]
            waits[phase.pairs] |= ~_TRAVELS[phase.value] & (self.axes[phase.axis] > 1)
            if gradient:
                backward[phase.pairs] += self._times(phase.axis, phase.gradient, sizes[phase.gradient_code], share)
                calls[1, phase.pairs] += phase.gradient != _NUMBER[Action.NOTHING]
        return forward.reshape(shape), backward.reshape(shape), calls.reshape(2, *shape), waits.reshape(shape)

    def table(self, tensor: Space, itemsize: int, gradient: bool, share: float | None = None) -> Table:
        """Cheapest routes between the legal layouts of a tensor whose elements have `itemsize` bytes.

        Without `gradient` B is no layout (it is R there), and nothing flows back. `share`: see `step_ns`.
        """
        key = (tensor, itemsize, gradient, share)
        if key not in self._tables:
            codes = tensor.legal(addends=gradient)
            forward, backward, calls, waits = self.direct(tensor, codes, itemsize, gradient, share)
            total, via = forward + backward, np.full(forward.shape, -1, dtype=np.int16)
            _close(total, forward, via, calls, waits)
            self._tables[key] = Table(codes, total, forward, via, calls, waits)
        return self._tables[key]


def _ns(times: npt.NDArray[np.float64]) -> Times:
    rounded: Times = np.ceil(times - ROUNDING_NS).astype(np.int64)
    return rounded
