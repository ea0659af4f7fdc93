"""Checks of single values read from JSON: each returns the value itself or raises ValueError."""

from typing import Any


def whole(value: Any) -> int:
    """An integer of 64 bits."""
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) >= 2**63:
        raise ValueError(f"{value!r:.60} is not an integer of 64 bits")
    return value


def number(value: Any) -> float:
    """A finite number of 0 or more."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e30:
        raise ValueError(f"{value!r:.60} is not a number of 0 or more")
    return value


def rate(value: Any) -> float:
    """A finite number above 0."""
    found = number(value)
    if not found:
        raise ValueError(f"{value!r:.60} is not a rate above 0")
    return found


def flag(value: Any) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        raise ValueError(f"{value!r:.60} is neither true nor false")
    return value


def title(value: Any) -> str:
    """One line of at most 200 printable characters: names of machines, levels, devices, dtypes."""
    if not isinstance(value, str) or not value.isprintable() or len(value) > 200:
        raise ValueError(f"{value!r:.60} is not a name")
    return value
