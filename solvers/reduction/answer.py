"""Results of the solvers of reduction programs."""

from __future__ import annotations

from dataclasses import dataclass

from ...formulation.reduction.program import ReductionProgram
from ..protocol import Status


@dataclass(frozen=True, slots=True)
class Answer:
    """Status, the best program and its ns (None: none found), and a proved lower bound in ns.

    Costs are rounded to whole units: both times are exact to about 1e-8, relative.
    """

    status: Status
    program: ReductionProgram | None
    ns: float | None
    bound: float
