"""What the threads of a search share: the deadline, the incumbent and the bounds."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from threading import Event, Lock

from ...formulation.network.network import INFINITE
from ..elimination.kernels import Ints
from .form import Flat


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


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """The best choice with its cost, and the bound, each with the part that found it; parts whose bound was wrong."""

    choice: Ints | None
    cost: int | None
    finder: str
    bound: int
    prover: str
    refuted: tuple[str, ...]


class Incumbent:
    """The best choice of a network so far, and the bound proved by each part of a portfolio.

    A choice cheaper than a part's bound refutes it: that part is ignored from then on. `changed` is the time
    (perf_counter) of the last improvement.
    """

    def __init__(self, flat: Flat, bound: int = -INFINITE) -> None:
        self.flat, self.lock = flat, Lock()
        self.choice: Ints | None = None
        self.cost: int | None = None
        self.finder = ""
        self.bounds = {"reduction": bound}
        self.refuted: tuple[str, ...] = ()
        self.changed = time.perf_counter()

    @property
    def bound(self) -> int:
        return self.now().bound

    def now(self) -> Snapshot:
        """A consistent snapshot; of equal bounds, the first."""
        with self.lock:
            valid = {part: bound for part, bound in self.bounds.items() if part not in self.refuted}
            prover = max(valid, key=lambda part: valid[part], default="nobody")
            bound = valid.get(prover, -INFINITE)
            return Snapshot(self.choice, self.cost, self.finder, bound, prover, self.refuted)

    def take(self, choice: Ints | None, part: str) -> None:
        """Keep a choice if it is feasible and cheaper."""
        cost = None if choice is None else self.flat.price(choice)
        with self.lock:
            if cost is not None and (self.cost is None or cost < self.cost):
                self.choice, self.cost, self.finder = choice, cost, part
                self._changed()

    def prove(self, bound: int, part: str) -> None:
        """Record a lower bound of this part."""
        with self.lock:
            if bound > self.bounds.get(part, -INFINITE):
                self.bounds[part] = bound
                self._changed()

    def withdraw(self, part: str) -> None:
        """Ignore the bounds of this part."""
        with self.lock:
            if part in self.bounds and part not in self.refuted:
                self.refuted += (part,)

    def _changed(self) -> None:
        self.changed = time.perf_counter()
        if self.cost is not None:
            wrong = [part for part, bound in self.bounds.items() if bound > self.cost and part not in self.refuted]
            self.refuted += tuple(wrong)
