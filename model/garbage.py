"""When Python looks for cyclic garbage: among many objects that stay, each look takes long and finds little."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_SELDOM = 200_000, 50, 1000


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
    """Look for garbage seldom meanwhile: among the nodes and tables of a large model it takes a fifth of the time."""
    before = gc.get_threshold()
    gc.set_threshold(*map(max, before, _SELDOM))
    try:
        yield
    finally:
        gc.set_threshold(*before)
