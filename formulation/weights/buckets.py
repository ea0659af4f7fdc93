"""Flat buckets in which gradients are summed over ranks, and updated weights gathered."""

import math
from collections.abc import Iterable

from ...model.machine.collective_price import ROUNDING_NS, CollectivePrice

BUCKET_BYTES = 25_000_000
"""Gradients are synchronized in flat buckets of this size; a weight pays its share of what a full bucket costs."""


def cut_into_buckets(weights: Iterable[tuple[int, int]]) -> list[list[int]]:
    """Weights in lists of at most a bucket each, in their order, given with their bytes; a larger one is alone.

    >>> cut_into_buckets([(0, 20_000_000), (1, 5_000_000), (2, 1), (3, 30_000_000)])
    [[0, 1], [2], [3]]
    """
    buckets: list[list[int]] = []
    room = 0
    for weight, size in weights:
        room -= size
        if not buckets or room < 0:
            buckets.append([])
            room = BUCKET_BYTES - size
        buckets[-1].append(weight)
    return buckets


def bucketed(numel: int, *moved: tuple[CollectivePrice, int]) -> int:
    """Time in ns that `numel` elements add to flat buckets; `moved`: collectives and their bytes per element."""
    latency = sum(line.latency_ns * item for line, item in moved)
    rate = sum(line.ns_per_byte * item for line, item in moved)
    return math.ceil(latency * numel / BUCKET_BYTES + rate * numel - ROUNDING_NS)
