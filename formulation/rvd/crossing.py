"""Transitions between device groups, as messages from device to device (SuperScaler, Figure 10, g and h).

Every device fetches the overlaps of its box from devices that hold them, then concatenates and adds them (section 3.3).
Of several holders of a replica it prefers itself, then the nearest, then the one that has sent least. Where one device
sends its piece to several, or adds up those of several, a broadcast or a reduce may do it for less.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import product
from math import prod
from typing import NamedTuple

import numpy as np

from .prices import ROOTED, MessageFloor, Payload
from .roles import Counts, D, V
from .state import RVD, Box, Piece, PieceMessage, RvdStep, State


class Crossing(NamedTuple):
    """A transition between groups: kind, dim cut or joined, messages per receiver (`each`), bytes per message."""

    kind: str
    dim: int | None
    each: int
    size_bytes: int


class CrossingFloor(NamedTuple):
    """Lower bounds on a crossing between two groups: by messages, and by rooted collectives if there can be any."""

    messages: MessageFloor
    rooted: MessageFloor | None

    def any_ns(self, tensor: Payload, sources: int, targets: int) -> int:
        """Least time of any crossing from as many devices to as many others."""
        whole, launch = prod(tensor.shape) * tensor.itemsize, tensor.prices.machine.device.launch_ns
        found = self.messages.ns(1, whole // targets, launch)  # every receiver gets its share
        if self.rooted is None:
            return found
        return min(found, self.rooted.ns(1, whole // min(sources, targets), launch))


def crossing_floor(sources: Sequence[int], targets: Sequence[int], tensor: Payload) -> CrossingFloor:
    """Lower bounds on crossings from the devices `sources` to the devices `targets`."""
    few, many = sorted((sources, targets), key=len)
    rooted = tensor.prices.rooted_floor(few, many) if len(few) < len(many) and not len(many) % len(few) else None
    return CrossingFloor(tensor.prices.floor(sources, targets), rooted)


def crossing(a: Counts, b: Counts, tensor: Payload) -> Crossing | None:
    """The transition between two RVDs: at most one count (R or a dim) grows or shrinks, or V shrinks; else None.

    If neither device count divides the other, pieces are sent overlap by overlap.
    """
    size = min(tensor.size_bytes(a), tensor.size_bytes(b))
    changed = [role for role, counts in enumerate(zip(a, b, strict=True)) if counts[0] != counts[1]]
    if V in changed:
        return Crossing("reduce", None, a[V] // b[V], size) if changed == [V] and a[V] % b[V] == 0 else None
    if not changed:
        return Crossing("move", None, 1, size)
    i = changed[0]
    if prod(a) % prod(b) and prod(b) % prod(a):
        each = prod(-(-x // y) for x, y in zip(a[D:], b[D:], strict=True))
        return Crossing("send-recv", None, each, tensor.size_bytes(b) // each)
    if len(changed) > 1 or (a[i] % b[i] and b[i] % a[i]):
        return None
    dim = i - D if i >= D else None
    if b[i] % a[i]:
        return Crossing("RD-gather", dim, 1 if dim is None else a[i] // b[i], size)
    return Crossing("broadcast" if dim is None else "RD-scatter", dim, 1, size)


def partners(counts: Counts, devices: int, candidates: Iterable[Counts]) -> Iterable[Counts]:
    """RVDs on `devices` devices that a crossing may reach; `candidates` if neither device count divides the other."""
    here = prod(counts)
    if here % devices and devices % here:
        return list(candidates)
    if here == devices:
        return (counts,)
    roles = range(len(counts))
    if devices > here:
        return [(*counts[:i], counts[i] * devices // here, *counts[i + 1 :]) for i in roles]
    k = here // devices
    return [(*counts[:i], counts[i] // k, *counts[i + 1 :]) for i in roles if counts[i] % k == 0]


def least(kind: Crossing, a: Counts, b: Counts, floor: CrossingFloor, tensor: Payload) -> int:
    """Lower bound on the price of a crossing (ns), for any assignment to devices."""
    found = _least_sent(kind, a, b, floor.messages, tensor)
    if kind.kind in ROOTED and floor.rooted is not None:
        found = min(found, floor.rooted.ns(1, kind.size_bytes, tensor.prices.machine.device.launch_ns))
    return found


def _least_sent(kind: Crossing, a: Counts, b: Counts, floor: MessageFloor, tensor: Payload) -> int:
    """`least` where the crossing is messages."""
    prices, mine, theirs = tensor.prices, tensor.size_bytes(a), tensor.size_bytes(b)
    bound = floor.ns(kind.each, kind.size_bytes, prices.machine.device.launch_ns)
    if not bound:
        return 0
    # Plus the copies: what a sender cuts (its whole piece if no receiver keeps any) and what a receiver joins.
    cut = mine if floor.receivers == prod(b) else kind.size_bytes
    cut *= kind.kind == "RD-scatter"
    return bound + prices.local(cut) + prices.local(theirs if kind.each > 1 else 0)


def crossed(source: State, target: State, tensor: Payload, kind: str = "send-recv", dim: int | None = None) -> RvdStep:
    """The step of a crossing between two states; a broadcast or reduce that costs no less than sends is `send-recv`."""
    messages = fetch(source, target, tensor)
    sent = [m for m in messages if m.sender != m.receiver]
    groups = _grouped(sent, kind)
    cost = price_of(messages, source, target, tensor)
    size = max((elements(m.box) * tensor.itemsize for m in sent), default=0)
    if kind in ROOTED:
        together = _rooted_ns(kind, groups, messages, size, tensor)
        if together is None or together >= cost:
            kind, groups = "send-recv", _grouped(sent, "send-recv")
        else:
            cost = together
    return RvdStep(kind, dim, groups, source, target, size_bytes=size, cost_ns=cost, messages=messages)


def _rooted_ns(
    kind: str, groups: Sequence[tuple[int, ...]], messages: Iterable[PieceMessage], size_bytes: int, tensor: Payload
) -> int | None:
    """Price of one collective in every group; None unless the groups are of one size and share no device.

    The root of a reduce that has no addend of its own adds zeros.
    """
    members = [device for group in groups for device in group]
    if not groups or len({*members}) < len(members) or len({*map(len, groups)}) > 1:
        return None
    found = tensor.prices.collective(kind, np.array(groups)).ns(size_bytes)
    if kind == "reduce" and not {group[0] for group in groups} <= adding_roots(messages):
        found += tensor.prices.local(size_bytes)
    return found


def adding_roots(messages: Iterable[PieceMessage]) -> set[int]:
    """The devices that keep what they hold, so that a reduce to them adds it."""
    return {m.receiver for m in messages if m.sender == m.receiver}


def _grouped(sent: Iterable[PieceMessage], kind: str) -> tuple[tuple[int, ...], ...]:
    """Groups per receiver (senders, then receiver) or per sender (sender, then receivers), or pairs.

    The root of a reduce comes first, as that of a broadcast.
    """
    found: dict[int, list[int]] = defaultdict(list)
    if kind in ("RD-gather", "reduce"):
        for m in sent:
            found[m.receiver].append(m.sender)
        if kind == "reduce":
            return tuple((receiver, *senders) for receiver, senders in found.items())
        return tuple((*senders, receiver) for receiver, senders in found.items())
    if kind in ("RD-scatter", "broadcast"):
        for m in sent:
            found[m.sender].append(m.receiver)
        return tuple((sender, *receivers) for sender, receivers in found.items())
    return tuple((m.sender, m.receiver) for m in sent)


# Messages


def fetch(source: State, target: State, tensor: Payload) -> tuple[PieceMessage, ...]:
    """Messages that convert `source` to `target`; a device sends to itself what it already holds.

    Addend a goes to addend a mod target.v; surplus target addends are zeros.
    """
    holders: dict[tuple[int, tuple[int, ...]], list[int]] = defaultdict(list)
    for device, piece in zip(source.devices, source.pieces, strict=True):
        holders[piece.value, piece.parts].append(device)
    sent: dict[int, int] = defaultdict(int)
    messages = []
    for device, piece in sorted(zip(target.devices, target.pieces, strict=True)):
        values = range(piece.value, source.rvd.v, target.rvd.v)
        for value, (parts, common) in product(values, _overlaps(tensor.shape, source.rvd.d, target.rvd.d, piece.parts)):
            having = holders[value, parts]
            sender = having[0]
            if len(having) > 1:
                sender = min(having, key=lambda h: (tensor.prices.distance(h, device), sent[h], h))
            sent[sender] += elements(common) if sender != device else 0
            messages.append(PieceMessage(sender, device, common))
    return tuple(messages)


@lru_cache(maxsize=2**14)
def _overlaps(
    shape: tuple[int, ...], source: tuple[int, ...], target: tuple[int, ...], parts: tuple[int, ...]
) -> tuple[tuple[tuple[int, ...], Box], ...]:
    """Source parts that overlap one target part, with their intersections; `source`, `target`: parts per dim."""
    box = Piece(0, 0, parts).box(RVD(1, 1, target), shape)
    whole = RVD(1, 1, source)
    sizes = [size // k for size, k in zip(shape, source, strict=True)]
    near = product(*(range(a // size, -(-b // size)) for (a, b), size in zip(box, sizes, strict=True)))
    return tuple((theirs, _common(box, Piece(0, 0, theirs).box(whole, shape))) for theirs in near)


def _common(one: Box, other: Box) -> Box:
    return tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(one, other, strict=True))


def price_of(messages: tuple[PieceMessage, ...], source: State, target: State, tensor: Payload) -> int:
    """Price (ns) of simultaneous messages from `source` to `target`.

    Includes local copies for cutting, keeping and joining pieces; 0 if every device keeps its piece unchanged.
    """
    item, prices = tensor.itemsize, tensor.prices
    whole, new = (state.rvd.numel(tensor.shape) * item for state in (source, target))
    cut: dict[int, int] = defaultdict(int)
    came: dict[int, list[int]] = {device: [] for device in target.devices}
    going = []
    for message in messages:
        size = elements(message.box) * item
        stays = message.sender == message.receiver
        came[message.receiver].append(size if not stays or size == whole else 0)
        if not stays:
            going.append((message.sender, message.receiver, size))
            cut[message.sender] += size if size < whole else 0
    joined = (max(new, sum(sizes)) for sizes in came.values() if sizes != [new])
    copied = prices.local(max(cut.values(), default=0)) + prices.local(max(joined, default=0))
    return copied + prices.sends(*zip(*going, strict=True)) if going else copied


@lru_cache(maxsize=2**14)
def elements(box: Box) -> int:
    """Elements in a box."""
    return prod(stop - start for start, stop in box)
