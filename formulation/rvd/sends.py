"""Device-to-device messages between states, and their price (SuperScaler, section 3.3).

Every device fetches the overlaps of its box from devices that hold them, then concatenates and adds them. Of several
holders of a replica it prefers itself, then the nearest, then the one that has sent least.
"""

from __future__ import annotations

from collections import defaultdict
from functools import lru_cache
from itertools import product
from math import prod

from .path import Message
from .prices import Prices
from .state import RVD, Box, Piece, State


def fetch(source: State, target: State, shape: tuple[int, ...], prices: Prices) -> tuple[Message, ...]:
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
        for value, (parts, common) in product(values, _overlaps(shape, source.rvd.d, target.rvd.d, piece.parts)):
            having = holders[value, parts]
            sender = having[0]
            if len(having) > 1:
                sender = min(having, key=lambda h: (prices.distance(h, device), sent[h], h))
            sent[sender] += elements(common) if sender != device else 0
            messages.append(Message(sender, device, common))
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


def price_of(
    messages: tuple[Message, ...], source: State, target: State, shape: tuple[int, ...], item: int, prices: Prices
) -> int:
    """Price (ns) of simultaneous messages from `source` to `target`; `item`: bytes per element.

    Includes local copies for cutting, keeping and joining pieces; 0 if every device keeps its piece unchanged.
    """
    whole, new = source.rvd.numel(shape) * item, target.rvd.numel(shape) * item
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
