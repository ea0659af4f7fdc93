"""Two levels of tests: each session runs a share of the cases of long tests, `EXHAUSTIVE=1` all of them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TypeVar

import pytest

T = TypeVar("T")
EXHAUSTIVE = os.environ.get("EXHAUSTIVE", "") not in ("", "0")
exhaustive = pytest.mark.skipif(not EXHAUSTIVE, reason="only with EXHAUSTIVE=1")
"""Marks a long test of what shorter ones test too."""


def some(cases: Iterable[T], every: int = 3) -> list[T]:
    """Every so manyth of the cases; all of them at the exhaustive level."""
    return list(cases)[:: 1 if EXHAUSTIVE else every]


def example_count(count: int, every: int = 3) -> int:
    """So many random examples at the exhaustive level, otherwise one of `every`, rounded up."""
    return count if EXHAUSTIVE else -(-count // every)
