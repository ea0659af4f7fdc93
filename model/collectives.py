"""Alpha-beta prices of collectives over mesh axes.

A group of devices is described by the row x = (x_0 .. x_n) of its axis in the parallelism matrix: x_l of the units of
level l (outermost first) take part, 1 where the group does not spread over that level. A group over several axes has
the elementwise product of their rows (`joint`).

A collective runs level by level. With m = x_l, D the bytes named in the table below, and D_l = D / prod(x_q, q > l) the
piece that one device handles at level l, once the inner levels have split the data among themselves:

    all_gather       D = bytes that each device has afterwards     (m-1)/m D_l / B_l + (m-1) a_l
    reduce_scatter   D = bytes that each device has before         the same, levels from the inside outwards
    all_reduce       D = bytes that each device has before         reduce_scatter, then all_gather: twice that
    broadcast        D = bytes that each device has afterwards     D_l / B_l + (m-1) a_l (a pipelined chain)
    all_to_all       D = bytes that each device has before         (m-1)/m D / prod(x_q, q < l) / B_l + (m-1) a_l
    send             D = bytes sent to the next device of the axis    D / B_l + a_l, on the dearest level spanned

all_to_all: of D, the share 1 / prod(x_q, q < l) stays inside the unit of the next outer level, and (m-1)/m of that
leaves the device's own unit of level l; what goes to one unit counts as one message.

Contention: B_l is not the unit's link but one device's share of it, `Machine.per_device_bandwidth`. In SPMD every
device runs the same collective at the same time in the group that it belongs to, so all devices below a unit use its
link at once and each gets an equal share, whether they are in one group or in several. Nothing else has to be known
about the other groups. Links of inner levels that the traffic passes on its way out are taken to be no narrower than
that share. For example all_reduce on a ring of 8 (row (8,)): 2 * 7/8 * D/B + 14 a.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from .machine import Machine

Kind = Literal["all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast", "send"]
KINDS: tuple[Kind, ...] = get_args(Kind)
Row = tuple[int, ...]

ROUNDING_NS = 1e-6  # floating-point noise below this does not start another nanosecond


@dataclass(frozen=True, slots=True)
class CollectivePrice:
    """Time of a collective as a line: latency_ns + ns_per_byte * bytes."""

    latency_ns: float
    ns_per_byte: float

    def ns(self, size_bytes: int) -> int:
        """Time for `size_bytes`, rounded up to whole nanoseconds."""
        if size_bytes < 0:
            raise ValueError(f"a collective of {size_bytes} bytes")
        return math.ceil(self.latency_ns + self.ns_per_byte * size_bytes - ROUNDING_NS)

    def ns_array(self, sizes_bytes: NDArray[np.int64]) -> NDArray[np.int64]:
        """The same for an array of sizes, equal to `ns` on every element."""
        times: NDArray[np.float64] = np.ceil(self.latency_ns + self.ns_per_byte * sizes_bytes - ROUNDING_NS)
        return times.astype(np.int64)

    def __add__(self, other: CollectivePrice) -> CollectivePrice:
        return CollectivePrice(self.latency_ns + other.latency_ns, self.ns_per_byte + other.ns_per_byte)


FREE = CollectivePrice(0.0, 0.0)


def joint(rows: Iterable[Row]) -> Row:
    """Row of the group over several axes together: the elementwise product."""
    return tuple(math.prod(column) for column in zip(*rows, strict=True))


@cache
def price(machine: Machine, kind: Kind, row: Row) -> CollectivePrice:
    """Price of `kind` in every group of the axis with this row; free where the group is one device.

    ValueError: an unknown kind, a row of the wrong length, a factor that does not divide its level.
    """
    if kind not in PRICES:
        raise ValueError(f"unknown collective {kind!r}; known: {', '.join(KINDS)}")
    if len(row) != len(machine.hierarchy) or any(m < 1 or h % m for m, h in zip(row, machine.hierarchy, strict=True)):
        raise ValueError(f"row {row} does not fit the hierarchy {machine.hierarchy} of {machine.name}")
    return PRICES[kind](machine, row)


def _gather(machine: Machine, row: Row) -> CollectivePrice:
    return _sum(_line(machine, i, m - 1, (m - 1) / m / math.prod(row[i + 1 :])) for i, m in _levels(row))


def _reduce(machine: Machine, row: Row) -> CollectivePrice:
    return _gather(machine, row) + _gather(machine, row)


def _broadcast(machine: Machine, row: Row) -> CollectivePrice:
    return _sum(_line(machine, i, m - 1, 1 / math.prod(row[i + 1 :])) for i, m in _levels(row))


def _all_to_all(machine: Machine, row: Row) -> CollectivePrice:
    return _sum(_line(machine, i, m - 1, (m - 1) / m / math.prod(row[:i])) for i, m in _levels(row))


def _send(machine: Machine, row: Row) -> CollectivePrice:
    lines = [_line(machine, i, 1, 1.0) for i, _ in _levels(row)]
    # Neighbours on the axis may be apart on any level of the row; the step waits for the slowest pair.
    return CollectivePrice(
        max((line.latency_ns for line in lines), default=0.0), max((line.ns_per_byte for line in lines), default=0.0)
    )


PRICES: dict[str, Callable[[Machine, Row], CollectivePrice]] = {
    "all_reduce": _reduce,
    "reduce_scatter": _gather,
    "all_gather": _gather,
    "all_to_all": _all_to_all,
    "broadcast": _broadcast,
    "send": _send,
}


def _levels(row: Row) -> list[tuple[int, int]]:
    return [(level, m) for level, m in enumerate(row) if m > 1]


def _line(machine: Machine, level: int, messages: int, share: float) -> CollectivePrice:
    """`messages` messages that together carry `share` of the bytes over a device's part of the level's link."""
    return CollectivePrice(messages * machine.latency_ns(level), share * 1e9 / machine.per_device_bandwidth(level))


def _sum(lines: Iterable[CollectivePrice]) -> CollectivePrice:
    return sum(lines, FREE)
