"""At which price of memory the copies that were found cost most.

Of every kind k of copies, n[k] are taken. At a price λ they cost about what the best label found of each kind does:

    Σ n[k] min over its labels l of (t[l] + λ m[l])  -  λ M                       (ns)

That is concave: a linear program finds its top.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum, inf

import numpy as np

from ..work import LINEAR_PROGRAM, spend
from .kernels import Floats
from .memory_price import LP_SECONDS

_STEP = 1.6  # farthest from all prices before, as a ratio
_FIRST = 0.1  # of the cost: what the largest price may add at least


@dataclass(frozen=True, slots=True, eq=False)
class Kind:
    """Copies of one kind: their number, and cost and uses of every label found."""

    many: int
    labels: list[tuple[float, Floats]]


@dataclass(frozen=True, slots=True, eq=False)
class FoundCopies:
    """What was found of some kinds of copies, under capacities."""

    kinds: Sequence[Kind]
    capacities: Floats

    def at(self, price: Floats) -> float:
        """What they cost at a price; infinite if some kind has no label."""
        least = (
            kind.many * min((time + float(use @ price) for time, use in kind.labels), default=inf)
            for kind in self.kinds
        )
        return fsum(least) - float(self.capacities @ price)

    def dearest(self, prices: Sequence[Sequence[float]], scale: float) -> tuple[Floats, float]:
        """The price near `prices` at which they cost most, and that; -inf if some kind has no label.

        `scale`: about what they cost.
        """
        from scipy.optimize import linprog

        before = np.array(prices)
        if not all(kind.labels for kind in self.kinds):
            return before[0], -inf
        spend(LINEAR_PROGRAM)
        high = np.maximum(before.max(axis=0) * _STEP, _FIRST * scale / np.maximum(1.0, self.capacities))
        many = [kind.many for kind in self.kinds]
        rows, right = [], []
        for k, kind in enumerate(self.kinds):
            for time, use in kind.labels:
                rows.append([*(np.arange(len(many)) == k), *(-use * high / scale)])
                right.append(time / scale)
        slope = np.array([*(-n for n in many), *(self.capacities * high / scale)])
        answer = linprog(
            slope,
            A_ub=np.array(rows),
            b_ub=right,
            bounds=[(None, None)] * len(many) + [(x, 1.0) for x in before.min(axis=0) / _STEP / high],
            method="highs",
            options={"time_limit": LP_SECONDS},
        )
        if answer.x is None:
            return before[0], -inf
        price: Floats = np.maximum(answer.x[len(many) :], 0.0) * high
        return price, -float(np.dot(answer.x, slope)) * scale
