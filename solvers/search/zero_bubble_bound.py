"""Until when a stage works at the least, where backwards are split (ZB-H1): what bounds a step without its order.

With f, b and w a stage's forward, backward to the stage before and backward to weights, of one micro-batch, stage s of
p begins when those ahead have passed the first one on, and has it back when all others have gone there and back too.
Until then it has begun with m = min(K, p - s) micro-batches, so all else that makes it busy is still to be done:

    step ≥ Σ_(r < s) f_r + W_s        step ≥ Σ_r f_r + Σ_(r > s) b_r + W_s - m f_s,    f_s ≤ W_s / K - b_s - w_s

f, b and b + w of any part have a floor: the time of its nodes at an even share (`strategies/node_floors.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ...formulation.network.network import INFINITE
from .shortest_cut import Times

Index = npt.NDArray[np.int64] | int


@dataclass(frozen=True, eq=False)
class ZeroBubbleBound:
    """`forward`, `backward` and `inward` [n] are what everything before a boundary takes at the least, in ns."""

    forward: Times
    backward: Times
    inward: Times
    devices: int
    micro_batches: int

    def until(self, stage: int, i: Index, j: Index, busy: Times | int) -> Times:
        """No step is shorter if this stage, from boundary i to j, is busy so long; any shapes that go together."""
        ahead = min(self.micro_batches, self.devices - stage)
        own, rest = np.asarray(busy), self.micro_batches - ahead
        begun = self.forward[i] + own
        others = self.forward[-1] + self.inward[-1] - self.inward[j]
        back = others + own // self.micro_batches * rest + ahead * (self.backward[j] - self.backward[i])
        return np.where(own >= INFINITE, INFINITE, np.maximum(begun, back))
