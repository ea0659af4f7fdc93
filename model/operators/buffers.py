"""Buffers that forward changes, other than statistics of batch norms: step counters, moving averages, power iterations.

`store` is the loss; in training the buffers get their new values, which were computed before. `clone` is what forward
reads of such a buffer: backward may need the old value. All of it is whole on every rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..graph.pcg import Node
from .operator import Operator

if TYPE_CHECKING:
    from torch import Tensor

MOST = 256
"""Most buffers that a forward may change."""


def _notation(node: Node, inputs: tuple[Node, ...]) -> str:
    if len(inputs) < 3 or len(inputs) % 2 == 0:
        raise ValueError(f"store takes a loss, and a buffer and a value for each change, not {len(inputs)} inputs")
    for buffer, value in zip(inputs[1::2], inputs[2::2], strict=True):
        if (buffer.shape, buffer.dtype) != (value.shape, value.dtype):
            raise ValueError(f"the buffer {buffer.name!r} gets a value of another shape or dtype")
    given = zip(_OPERANDS[1:], inputs[1:], strict=False)
    read = ", ".join(f"{name}[{', '.join(':' * len(x.shape))}]" for name, x in given)
    return f"y[] = x[] + f({read})"


def _reference(node: Node, given: Sequence[Tensor]) -> Tensor:
    import torch

    with torch.no_grad():
        for buffer, value in zip(given[1::2], given[2::2], strict=True):
            buffer.copy_(value)
    return given[0]


def _call(node: Node, names: Sequence[str]) -> str:
    changes = ", ".join(f"({b}, {v})" for b, v in zip(names[1::2], names[2::2], strict=True))
    return f"stored({names[0]}, self.training, {changes})"


_OPERANDS = ("x", *(f"{kind}{number}" for number in range(MOST) for kind in ("buffer", "value")))

OPERATORS = (
    Operator(
        "store",
        _OPERANDS,
        _notation,
        _call,
        updates=_OPERANDS[1::2],
        flops=lambda node, inputs: sum(x.numel for x in inputs),
        reference=_reference,
    ),
    Operator("clone", ("x",), "y[i..] = L(x[i..])", "{x}.clone()", flops=lambda node, inputs: 0),
)
