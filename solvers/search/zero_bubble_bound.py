"""Lower bound on a stage's finish time where the step is priced slot by slot (ZB-H1, registered schedules).

Let f, b and w be a stage's forward, input gradient and weight gradient for one micro-batch, and W its busy time. Stage
s of p starts once the stages before it have run the first forward, and sees its first gradient once all stages after
it have run forward and backward. Until then it has run at most m forwards (ZB-H1: min(K, p - s)); the rest follows:

    step ≥ Σ_(r < s) f_r + W_s        step ≥ Σ_r f_r + Σ_(r > s) b_r + W_s - m f_s,    f_s ≤ W_s / K - b_s - w_s

Floors of f, b and b + w of any part: the times of its nodes at an even share (`strategies/node_floors.py`).
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ...formulation.network.network import INFINITE
from .shortest_cut import Times

Index = npt.NDArray[np.int64] | int


@dataclass(frozen=True, eq=False)
class ZeroBubbleBound:
    """`forward`, `backward` and `inward` (input gradient) [n]: lower bounds in ns on everything before a boundary.

    `ahead`: the most forwards that each stage runs before its first backward.
    """

    forward: Times
    backward: Times
    inward: Times
    ahead: tuple[int, ...]
    micro_batches: int

    def finish_time(self, stage: int, i: Index, j: Index, busy: Times | int) -> Times:
        """Lower bound on the step if this stage, from boundary i to j, is busy so long; arguments broadcast."""
        ahead = self.ahead[stage]
        own, rest = np.asarray(busy), self.micro_batches - ahead
        begun = self.forward[i] + own
        others = self.forward[-1] + self.inward[-1] - self.inward[j]
        back = others + own // self.micro_batches * rest + ahead * (self.backward[j] - self.backward[i])
        return np.where(own >= INFINITE, INFINITE, np.maximum(begun, back))
