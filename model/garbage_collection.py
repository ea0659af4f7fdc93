"""Fewer runs of Python's cyclic garbage collector: with many live objects each run is slow and frees little."""

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@contextmanager
def without_collection() -> Iterator[None]:
    """Disable the collector where much is made that stays: it would look through all of it again and again.

    While a large file of small lists is read, it takes as long as the reading.
    """
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if running:
            gc.enable()


@contextmanager
def seldom_collected() -> Iterator[None]:
    """Run the collector seldom: with the nodes and tables of a large model it takes a fifth of the time.

    Thresholds are per process: the first thread to enter sets them, the last one to leave restores them.
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
                if self.before[0]:  # otherwise the collector is off
                    gc.set_threshold(*map(max, self.before, self.seldom))

    def leave(self) -> None:
        with self.lock:
            self.inside -= 1
            if not self.inside:
                gc.set_threshold(*self.before)


_thresholds = _Thresholds()
