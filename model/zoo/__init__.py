"""Model families, each at its full size and at a small one."""

from .registry import Entry, build, entry, zoo

__all__ = ["Entry", "build", "entry", "zoo"]
