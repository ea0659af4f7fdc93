"""Special strategies: their registry, and those of the package."""

from .registry import (
    Message,
    Part,
    Situation,
    Special,
    Splits,
    part_of,
    register_strategy,
    special_rows,
    special_rows_fit,
    special_strategies,
    special_strategy,
)

__all__ = [
    "Message",
    "Part",
    "Situation",
    "Special",
    "Splits",
    "part_of",
    "register_strategy",
    "special_rows",
    "special_rows_fit",
    "special_strategies",
    "special_strategy",
]
