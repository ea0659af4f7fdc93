"""Imports every family of operators, whose entries register themselves."""

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
