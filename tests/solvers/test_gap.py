"""A gap is a share of the objective, "above the optimum" a share of the optimum."""

from __future__ import annotations

import pytest

from partita.solvers.gap import relative_gap, share_above
from partita.solvers.protocol import Solution, Status


@pytest.mark.parametrize(
    ("objective", "bound", "gap", "above"),
    [(200, 100, 0.5, 1.0), (100, 100, 0, 0), (0, 0, 0, 0), (5, 0, 1, None), (-4, -6, 0.5, None), (4, 5, 0, 0)],
)
def test_the_two_shares(objective: int, bound: int, gap: float, above: float | None) -> None:
    assert (relative_gap(objective, bound), share_above(objective, bound)) == (gap, above)
    assert Solution(Status.FEASIBLE, (0,), objective, bound, 0.0, "").gap == gap
