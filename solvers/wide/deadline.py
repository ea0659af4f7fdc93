"""A deadline with a stop event that all threads of a search share."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from threading import Event


@dataclass(frozen=True, slots=True)
class Deadline:
    """Past from the time `at` (of perf_counter), or once `ended` is set."""

    at: float = math.inf
    ended: Event = field(default_factory=Event)

    @property
    def past(self) -> bool:
        return self.ended.is_set() or time.perf_counter() >= self.at

    def within(self, seconds: float) -> Deadline:
        """A deadline at most `seconds` from now, with the same event."""
        return Deadline(min(self.at, time.perf_counter() + seconds), self.ended)


NEVER = Deadline()
