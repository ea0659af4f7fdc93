"""Graphs that test every operator, one module per family as in `model/operators/`."""

from . import (
    attention,
    batch_norm,
    buffers,
    contraction,
    convolution,
    creation,
    elementwise,
    embedding,
    loss,
    normalization,
    order,
    recurrent,
    reduction,
    scatter,
    space,
    unknown,
    views,
)

FAMILIES = (
    attention.CASES,
    batch_norm.CASES,
    buffers.CASES,
    contraction.CASES,
    convolution.CASES,
    creation.CASES,
    elementwise.CASES,
    embedding.CASES,
    loss.CASES,
    normalization.CASES,
    order.CASES,
    recurrent.CASES,
    reduction.CASES,
    scatter.CASES,
    space.CASES,
    unknown.CASES,
    views.CASES,
)
CASES = {op: builds for family in FAMILIES for op, builds in family.items()}
