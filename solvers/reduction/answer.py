"""What a solver of reduction programs gives."""

from __future__ import annotations

from dataclasses import dataclass

from ...formulation.reduction.program import ReductionProgram
from ..protocol import Status


@dataclass(frozen=True, slots=True)
class Answer:
    """Why the solver stopped, the best program found and its ns (None: none found), and the ns that are proved needed.

    Costs are rounded to whole units, so both times are exact to about a part in 10^8.
    """

    status: Status
    program: ReductionProgram | None
    ns: float | None
    bound: float
