"""Plans as values: choices, checks, files."""

from .plan import Plan

__all__ = ["Plan"]
