"""The operators, one family a file; importing this package registers them all."""

from . import (
    attention,
    batch_norm,
    contraction,
    convolution,
    creation,
    elementwise,
    embedding,
    loss,
    normalization,
    order,
    reduction,
    space,
    transfer,
    unknown,
    views,
)

__all__ = [
    "attention",
    "batch_norm",
    "contraction",
    "convolution",
    "creation",
    "elementwise",
    "embedding",
    "loss",
    "normalization",
    "order",
    "reduction",
    "space",
    "transfer",
    "unknown",
    "views",
]
