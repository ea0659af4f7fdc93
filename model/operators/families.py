"""Registers the operators of every family."""

from . import (
    attention,
    batch_norm,
    buffers,
    contraction,
    convolution,
    creation,
    elementwise,
    embedding,
    function,
    loss,
    normalization,
    order,
    recurrent,
    reduction,
    scatter,
    space,
    transfer,
    unknown,
    views,
)
from .operator import register

_PRODUCTS = (attention, contraction, convolution, embedding, recurrent)
_OTHERS = (
    batch_norm,
    buffers,
    creation,
    elementwise,
    function,
    loss,
    normalization,
    order,
    reduction,
    scatter,
    space,
    transfer,
    unknown,
    views,
)

for _family in (*_PRODUCTS, *_OTHERS):
    for _entry in _family.OPERATORS:
        register(_entry)
