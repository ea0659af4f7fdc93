"""Flat buckets in which gradients are summed over ranks, and updated weights gathered."""

import math

from ...model.machine.collective_price import ROUNDING_NS, CollectivePrice

BUCKET_BYTES = 25_000_000
"""Gradients are synchronized in flat buckets of this size; a weight pays its share of what a full bucket costs."""


def bucketed(numel: int, *moved: tuple[CollectivePrice, int]) -> int:
    """Time in ns that `numel` elements add to flat buckets; `moved`: collectives and their bytes per element."""
    latency = sum(line.latency_ns * item for line, item in moved)
    rate = sum(line.ns_per_byte * item for line, item in moved)
    return math.ceil(latency * numel / BUCKET_BYTES + rate * numel - ROUNDING_NS)
