"""Lower bound on a stage's finish time where the step is priced slot by slot (ZB-H1, registered schedules).

With f, b and w a stage's forward, backward to the stage before and backward to weights, of one micro-batch, stage s of
p begins when those ahead have passed the first one on, and has it back when all others have gone there and back too.
Until then it has run m forwards (of ZB-H1 min(K, p - s)), so all else that makes it busy is still to be done:

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
    """`forward`, `backward` and `inward` [n]: the least ns of everything before a boundary.

    `ahead`: forwards that every stage runs before its first backward, at the most.
    """

    forward: Times
    backward: Times
    inward: Times
    ahead: tuple[int, ...]
    micro_batches: int

    def until(self, stage: int, i: Index, j: Index, busy: Times | int) -> Times:
        """No step is shorter if this stage, from boundary i to j, is busy so long; any shapes that go together."""
        ahead = self.ahead[stage]
        own, rest = np.asarray(busy), self.micro_batches - ahead
        begun = self.forward[i] + own
        others = self.forward[-1] + self.inward[-1] - self.inward[j]
        back = others + own // self.micro_batches * rest + ahead * (self.backward[j] - self.backward[i])
        return np.where(own >= INFINITE, INFINITE, np.maximum(begun, back))
