"""The operators, one family a file; importing this package registers them all."""

from . import attention, contraction, creation, elementwise, embedding, loss, normalization, reduction, unknown, views

__all__ = [
    "attention",
    "contraction",
    "creation",
    "elementwise",
    "embedding",
    "loss",
    "normalization",
    "reduction",
    "unknown",
    "views",
]
