"""Lower bounds on a step that is timed slot by slot: of 3F1B and of Chimera.

Where micro-batches go forward several times before they go back (3F1B), stage s begins once the stages before it have
run the first pass of a micro-batch, f_r each. Its last task is a backward of some micro-batch, which then goes back
through the stages before it, b_r each; updates follow the last task of all, so that the update in the busy time W_s
comes after these too. And a micro-batch alone goes through all stages, t_r each in all its passes and backward, of
which stage s takes W_s / K or more with its update. Whatever the order:

    step ≥ Σ_(r < s) (f_r + b_r) + W_s        step ≥ Σ_(r ≠ s) t_r + W_s / K

Floors of f, b and t of any part: the times of its nodes at an even share (`strategies/node_floors.py`).
"""

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from ...formulation.network.network import INFINITE
from .shortest_cut import Times
from .zero_bubble_bound import Index, ZeroBubbleBound


@dataclass(frozen=True, eq=False)
class RepeatedBound:
    """Lower bounds [n] in ns on what one micro-batch takes before a boundary.

    `around`: in the first pass and in backward; `once`: in all passes and backward.
    """

    around: Times
    once: Times
    micro_batches: int

    def finish_time(self, stage: int, i: Index, j: Index, busy: Times | int) -> Times:
        """Lower bound on the step if this stage, from boundary i to j, is busy so long; arguments broadcast."""
        own = np.asarray(busy)
        alone = self.once[-1] - (self.once[j] - self.once[i]) + own // self.micro_batches
        return np.where(own >= INFINITE, INFINITE, np.maximum(self.around[i] + own, alone))


class BothWaysBound(RepeatedBound):
    """The same of stages in two directions (Chimera), where devices s and p - 1 - s both have these two stages.

    A stage's W is that of one of its devices, with the K micro-batches of one direction, and with an update for the
    first and the last stage alone: the last task of all is a backward of the first stage, on a device that has both and
    ends with their updates. With s < p / 2, both devices begin with a forward of one of their stages, whose micro-batch
    has passed the s stages before, and end with a backward of one:

        step ≥ Σ_(r < s) (f_r + b_r) + W_s + W_(p - 1 - s)
    """


FinishBound: TypeAlias = ZeroBubbleBound | RepeatedBound
"""Bound on when a stage has finished, of a schedule that is priced slot by slot."""
