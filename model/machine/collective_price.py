"""The price of a collective, linear in its bytes.

`collective_patterns` and `link_flows` say what is sent over which links; `formulation/reduction/cost.py` prices the
groups of mesh axes under a placement.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

ROUNDING_NS = 1e-6  # floating-point noise below this does not start another nanosecond


@dataclass(frozen=True, slots=True)
class CollectivePrice:
    """Time of a collective: latency_ns + ns_per_byte * bytes."""

    latency_ns: float
    ns_per_byte: float

    def ns(self, size_bytes: int) -> int:
        """Time for `size_bytes`, rounded up to whole nanoseconds."""
        if size_bytes < 0:
            raise ValueError(f"a collective of {size_bytes} bytes")
        return math.ceil(self.latency_ns + self.ns_per_byte * size_bytes - ROUNDING_NS)

    def ns_array(self, sizes_bytes: NDArray[np.int64]) -> NDArray[np.int64]:
        """`ns` of every element."""
        times: NDArray[np.float64] = np.ceil(self.latency_ns + self.ns_per_byte * sizes_bytes - ROUNDING_NS)
        return times.astype(np.int64)

    def of_share(self, share: float) -> CollectivePrice:
        """The price where only this share of the bytes takes part."""
        return CollectivePrice(self.latency_ns, self.ns_per_byte * share)

    def __add__(self, other: CollectivePrice) -> CollectivePrice:
        return CollectivePrice(self.latency_ns + other.latency_ns, self.ns_per_byte + other.ns_per_byte)


FREE = CollectivePrice(0.0, 0.0)
