"""Model families, each at its full size and at a small one."""

from .entry import Entry
from .registry import build, entry, zoo

__all__ = ["Entry", "build", "entry", "zoo"]
