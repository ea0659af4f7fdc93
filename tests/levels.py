"""Two levels of tests: `pytest` runs a share of the cases of long tests, `EXHAUSTIVE=1 pytest` runs every case."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TypeVar

import pytest

T = TypeVar("T")
EXHAUSTIVE = os.environ.get("EXHAUSTIVE", "") not in ("", "0")
exhaustive = pytest.mark.skipif(not EXHAUSTIVE, reason="only with EXHAUSTIVE=1")
"""Marks a long test whose subject shorter tests cover."""


def some(cases: Iterable[T], every: int = 3) -> list[T]:
    """One in `every` cases, from the first; all of them at the exhaustive level. For cases of one kind only."""
    return list(cases)[:: 1 if EXHAUSTIVE else every]


def example_count(count: int, every: int = 3) -> int:
    """The number of random examples: `count` at the exhaustive level, else `count / every`, rounded up."""
    return count if EXHAUSTIVE else -(-count // every)
