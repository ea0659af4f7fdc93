"""When to stop: a time, or sooner, at a word that all threads of a search share."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from threading import Event


@dataclass(frozen=True, slots=True)
class Deadline:
    """Past at the time `at` (of perf_counter); before that too, once somebody has set `ended`."""

    at: float = math.inf
    ended: Event = field(default_factory=Event)

    @property
    def past(self) -> bool:
        return self.ended.is_set() or time.perf_counter() >= self.at

    def within(self, seconds: float) -> Deadline:
        """At most so many seconds from now, under the same word."""
        return Deadline(min(self.at, time.perf_counter() + seconds), self.ended)


NEVER = Deadline()
