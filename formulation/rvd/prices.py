"""Prices of RVD steps on a machine, for the exact devices involved.

A collective: the messages of its algorithm (`model.machine.collective_patterns`, by the machine's profile) in all
groups at once; the busiest link decides:

    launch + hops * latency + max over links (bytes over the link / its bandwidth)

Members of a group are ordered by rank, from the root on if there is one. This is `reduction.cost.step_price` for the
given groups instead of those of a whole machine. A group that does not fill units evenly counts as flat, with the mean
latency between neighbours per hop.

Sends: all messages of a step flow at once, over the links of sender and receiver on every level on which their units
differ: those of one node share its network card, per direction. A device sends (and receives) its messages one after
another, each with its level's latency:

    launch + max over devices (Σ latency of messages sent, or received) + max over links (bytes / bandwidth)

Pieces cut before sending, and joined or added after receiving, cost one copy (`local`): one read, one write, a launch.
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ...model.machine.collective_patterns import MOST_STREAMED, PATTERNS, STREAMED, Shape, Sizes, TrafficPhase
from ...model.machine.collective_price import ROUNDING_NS, CollectivePrice
from ...model.machine.link_flows import busiest, busiest_of_groups, streamed_of_groups
from ...model.machine.machine import LIBRARIES, Machine
from .roles import Counts, D

Numbers: TypeAlias = NDArray[np.int64]
Key: TypeAlias = tuple[tuple[int, ...], bytes]

ROOTED = frozenset({"broadcast", "reduce"})
"""Collectives from or to one member, the first of its group."""


class GroupSpread(NamedTuple):
    """Groups [groups, members], their key, and sizes and latencies of their levels, `across` of which cross nodes."""

    groups: Numbers
    key: Key
    sizes: Sizes
    delay: NDArray[np.float64]
    across: int


class MessageFloor(NamedTuple):
    """Lower bound on messages between two groups: receivers, possible senders, latencies, ns per byte per receiver."""

    receivers: int
    senders: int
    longest_ns: float
    shortest_ns: float
    ns_per_byte: float

    def ns(self, each: int, size_bytes: int, launch_ns: float) -> int:
        """Least time of `each` messages of `size_bytes` to every receiver; 0 without receivers."""
        if not self.receivers:
            return 0
        waits = max(each * self.longest_ns, -(-self.receivers * each // self.senders) * self.shortest_ns)
        return math.ceil(launch_ns + waits + each * size_bytes * self.ns_per_byte - ROUNDING_NS)


class TransitionPrices:
    """Cached prices on one machine; `prices_on` shares them."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.below = [machine.devices_below(level) for level in range(len(machine.levels))]
        self._latency = np.array([level.latency_ns for level in machine.levels], dtype=np.float64)
        self._spreads: dict[Key, GroupSpread] = {}
        self._lines: dict[tuple[str, Key], CollectivePrice] = {}
        self._seconds: dict[tuple[Shape, Key, bool], float] = {}
        self._profile = LIBRARIES[machine.collectives][0]
        launch = machine.device.launch_ns
        self._local = CollectivePrice(launch, 2e9 / machine.device.memory_bandwidth)

    def local(self, size_bytes: int) -> int:
        """A copy on one device; 0 for no bytes."""
        return self._local.ns(size_bytes) if size_bytes else 0

    def collective(self, kind: str, groups: Numbers) -> CollectivePrice:
        """A collective in all groups [groups, members] at once, as a line in the bytes of a member before it.

        An all-gather counts the bytes after it. The first member of a group is its root.
        """
        return self.line(kind, self.spread(groups, rooted=kind in ROOTED))

    def line(self, kind: str, spread: GroupSpread) -> CollectivePrice:
        """`collective` for groups whose spread is known."""
        key = kind, spread.key
        if key not in self._lines:
            phases = PATTERNS[self._profile][kind](spread.sizes, spread.across)
            hops = sum(x.laps * float(np.dot(x.shape.hops, spread.delay)) for x in phases)
            rate = 1e9 * self._seconds_per_byte(kind, phases, spread)
            self._lines[key] = CollectivePrice(self.machine.device.launch_ns + hops, rate)
        return self._lines[key]

    def spread(self, groups: Numbers, rooted: bool = False) -> GroupSpread:
        """The levels that groups [groups, members] spread over; `rooted`: the first member stays the first."""
        roots, groups = groups[:, :1], np.sort(groups, axis=1)
        if rooted:  # a ring passes the devices in their order, wherever it begins
            start = (groups == roots).argmax(axis=1)[:, None]
            groups = np.take_along_axis(groups, (start + np.arange(groups.shape[1])) % groups.shape[1], axis=1)
        groups = self._moved(groups)
        key = groups.shape, groups.tobytes()
        if key not in self._spreads:
            self._spreads[key] = GroupSpread(
                groups, key, *self._levels(self._split_level(groups[:, :-1], groups[:, 1:]))
            )
        return self._spreads[key]

    def sends(
        self, senders: Sequence[int], receivers: Sequence[int], sizes_bytes: Sequence[int], *, share: float = 1.0
    ) -> int:
        """Simultaneous messages between different devices, or a `share` of their latency; 0 for none."""
        if not senders:
            return 0
        source, target = np.array(senders), np.array(receivers)
        latency = self._latency[self._split_level(source, target)]
        waits = max(float(np.bincount(end, latency).max()) for end in (source, target))
        seconds = busiest(self.machine, source, target, np.array(sizes_bytes, dtype=np.float64))
        return math.ceil((self.machine.device.launch_ns + waits) * share + 1e9 * seconds - ROUNDING_NS)

    def floor(self, sources: Sequence[int], targets: Sequence[int]) -> MessageFloor:
        """Lower bound on messages from `sources` to every device of `targets` that is not a source."""
        source, target = np.array(sources), np.array(targets)
        away = target[~np.isin(target, source)]
        if not len(away):
            return MessageFloor(0, len(source), 0.0, 0.0, 0.0)
        rate = 0.0
        for level, below in zip(self.machine.levels, self.below, strict=True):
            senders, receivers = np.unique(source // below), away // below
            alone = receivers[~np.isin(receivers, senders)]
            if level.wiring is not None or not len(alone):
                continue
            rate = max(rate, float(np.unique(alone, return_counts=True)[1].max()) / level.bandwidth)
            if len(alone) == len(away) and not np.isin(target // below, senders).any():
                rate = max(rate, len(away) / len(senders) / level.bandwidth)
        latency = self._latency[self._split_level(source[:, None], away[None, :])].min(axis=0)
        return MessageFloor(len(away), len(source), float(latency.max()), float(latency.min()), 1e9 * rate * (1 - 1e-9))

    def rooted_floor(self, roots: Sequence[int], others: Sequence[int]) -> MessageFloor:
        """Lower bound on broadcasts from `roots` to `others`, or reduces the other way, k others for each root.

        In a unit without a root at least every k-th of the others takes part in another group, and the data of each
        group crosses the unit's link once.
        """
        root, other = np.array(roots), np.array(others)
        away, k, rate = other[~np.isin(other, root)], len(others) // len(roots), 0.0
        for level, below in zip(self.machine.levels, self.below, strict=True):
            alone = (away // below)[~np.isin(away // below, root // below)]
            if level.wiring is None and len(alone):
                groups = -(-int(np.unique(alone, return_counts=True)[1].max()) // k)
                rate = max(rate, groups / level.bandwidth)
        least = float(self._latency.min())
        return MessageFloor(1, 1, least, least, 1e9 * rate * (1 - 1e-9))

    def one_message(self) -> MessageFloor:
        """Lower bound on any one message."""
        wired = any(level.wiring for level in self.machine.levels)
        rate = 0.0 if wired else 1e9 / max(level.bandwidth for level in self.machine.levels)
        return MessageFloor(1, 1, float(self._latency.min()), float(self._latency.min()), rate * (1 - 1e-9))

    def distance(self, device: int, other: int) -> int:
        """0 for the same device, 1 within the innermost unit, and so on outwards."""
        return sum(device // below != other // below for below in self.below)

    def _split_level(self, source: Numbers, target: Numbers) -> Numbers:
        """The outermost level on which two different devices lie in different units."""
        level = np.full(np.broadcast_shapes(source.shape, target.shape), len(self.below) - 1)
        for number in reversed(range(len(self.below))):
            level[source // self.below[number] != target // self.below[number]] = number
        return level

    def _moved(self, groups: Numbers) -> Numbers:
        """Translate groups into the first unit of each level that contains them all, since units are equal."""
        first = groups.min()
        for below in self.below:
            if (groups // below != first // below).any():
                break
            groups = groups - first // below * below
            first = groups.min()
        return groups

    def _seconds_per_byte(self, kind: str, phases: Sequence[TrafficPhase], spread: GroupSpread) -> float:
        if (self._profile, kind) in STREAMED and len(spread.sizes) > 1 and spread.groups.size <= MOST_STREAMED:
            return streamed_of_groups(self.machine, spread.groups, [x.shape for x in phases])
        machine = self.machine.carrying(kind)
        return sum(x.share * self._seconds_of(machine, x.shape, spread) for x in phases)

    def _seconds_of(self, machine: Machine, shape: Shape, spread: GroupSpread) -> float:
        key = shape, spread.key, machine is self.machine
        if key not in self._seconds:
            self._seconds[key] = busiest_of_groups(machine, spread.groups, shape)
        return self._seconds[key]

    def _levels(self, split_level: Numbers) -> tuple[Sizes, NDArray[np.float64], int]:
        """Sizes and latencies of the levels over which every group spreads, and how many of them cross nodes.

        `split_level` [groups, members - 1]: the outermost level on which each member and the next differ.
        """
        members, levels, node = split_level.shape[1] + 1, len(self.below), self.machine.node_level
        units = [1, *(np.cumsum(np.bincount(split_level[0], minlength=levels)) + 1).tolist()]
        sizes = [here // out for out, here in pairwise(units)]
        steps = np.arange(1, members)
        even = np.full(members - 1, levels - 1)
        for level in reversed(range(levels)):
            even[steps % math.prod(sizes[level + 1 :]) == 0] = level
        if math.prod(sizes) == members and (split_level == even).all():
            used = [level for level in range(levels) if sizes[level] > 1]
            return tuple(sizes[level] for level in used), self._latency[used], sum(level <= node for level in used)
        return (members,), self._latency[split_level].mean(axis=1).max(keepdims=True), int(split_level.min() <= node)


class Payload(NamedTuple):
    """The tensor that is converted, and the prices of the machine."""

    shape: tuple[int, ...]
    itemsize: int
    prices: TransitionPrices

    def size_bytes(self, counts: Counts) -> int:
        """Bytes of one piece."""
        return math.prod(self.shape) * self.itemsize // math.prod(counts[D:])


@lru_cache(maxsize=16)
def prices_on(machine: Machine) -> TransitionPrices:
    """The shared prices of a machine."""
    return TransitionPrices(machine)
