"""When Python looks for cyclic garbage: among many objects that stay, each look takes long and finds little."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@contextmanager
def without_collection() -> Iterator[None]:
    """Not look for garbage meanwhile: among the many small lists of a large file that takes as long as reading it."""
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if running:
            gc.enable()


@contextmanager
def seldom_collected() -> Iterator[None]:
    """Look for garbage seldom meanwhile: among the nodes and tables of a large model it takes a fifth of the time.

    Thresholds are those of the process: the first of all threads sets them, the last one puts back what was there.
    """
    _thresholds.enter()
    try:
        yield
    finally:
        _thresholds.leave()


@dataclass(slots=True)
class _Thresholds:
    seldom: tuple[int, int, int] = (200_000, 50, 1000)
    before: tuple[int, int, int] = (0, 0, 0)
    inside: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def enter(self) -> None:
        with self.lock:
            self.inside += 1
            if self.inside == 1:
                self.before = gc.get_threshold()
                if self.before[0]:  # else nobody looks at all
                    gc.set_threshold(*map(max, self.before, self.seldom))

    def leave(self) -> None:
        with self.lock:
            self.inside -= 1
            if not self.inside:
                gc.set_threshold(*self.before)


_thresholds = _Thresholds()
