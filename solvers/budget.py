"""What a search may spend: time, workers, a gap; which solver it uses, and where answers are kept."""

from __future__ import annotations

import math
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..model.errors import PartitaError
from ..model.options import check_count, option

if TYPE_CHECKING:
    from .cache.store import Store
    from .protocol import Solver

MAX_WORKERS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What a search may spend.

    `time_limit` is in seconds; a plan with a relative `gap` of at most this ends the search. Parts of it go to
    `executor`, or to as many processes as `workers` (None: one for every core). Answers of `solver` are kept in
    `store`. PartitaError: a value out of range.
    """

    solver: str = field(
        default="auto", metadata=option(str, "auto, elimination, cpsat, or any other that is installed.")
    )
    time_limit: float | None = field(
        default=None, metadata=option(float, "Seconds; the best answer so far and its bound are kept.")
    )
    gap: float = field(
        default=0.0,
        metadata=option(float, "Stop once the gap, (objective - bound) / objective, is at most this, such as 0.01."),
    )
    workers: int | None = field(default=None, metadata=option(int, "Search processes; by default one per core."))
    executor: Executor | None = None
    store: Store | None = None

    def __post_init__(self) -> None:
        if self.time_limit is not None and not 0 < self.time_limit < math.inf:
            raise PartitaError(f"--time-limit {self.time_limit}: a positive number of seconds is needed")
        if not 0 <= self.gap < 1:
            raise PartitaError(f"--gap {self.gap}: a share from 0 to less than 1 is needed, such as 0.01")
        check_count("--workers", self.workers, MAX_WORKERS)

    @property
    def seconds(self) -> float:
        """The time limit, infinite without."""
        return self.time_limit or math.inf

    def backend(self) -> Solver:
        """The solver, with its answers kept if there is a store. PartitaError: an unknown name."""
        from .cache.cached_solver import Cached  # they load NumPy, which `--help` need not
        from .protocol import solver

        found = solver(self.solver)
        return found if self.store is None else Cached(found, self.store)


UNLIMITED = Budget()
"""Until the optimum is proved, on every core."""
