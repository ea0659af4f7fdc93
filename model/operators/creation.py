"""Constants made from attributes alone: whole on every rank, sliced where they are used."""

from collections.abc import Callable, Sequence

import numpy as np

from .algebra import Algebra
from .operator import Operator
from .sharded import Array, Attributes, Evaluation, IllTyped, Shape, Signature, operands, whole_along


def _triangle_shards(function: Callable[..., Array]) -> Evaluation:
    def evaluation(given: Attributes, shapes: Sequence[Shape]) -> Signature:
        (shape,) = operands(shapes, 1)
        if len(shape) < 2:
            raise IllTyped(f"a tensor of shape {shape} is no matrix")
        whole = whole_along(shape, len(shape) - 2, len(shape) - 1)
        return Signature((whole,), (whole,), lambda t, a: [function(a[0], given.get("diagonal", 0))])

    return evaluation


OPERATORS = (
    Operator("full", (), emit="torch.full({shape}, {value}, dtype={dtype})", creates=True, passes=0),
    Operator("arange", (), emit="torch.arange({start}, {stop}, {step}, dtype={dtype})", creates=True, passes=0),
    # Values in row-major order; capture stores only small tensors this way.
    Operator("constant", (), emit="torch.tensor({values}, dtype={dtype}).reshape({shape})", creates=True, passes=0),
    *(
        Operator(
            *(name, ("x",), "y[b.., m, n] = f(x[b.., :, :])[m, n]", f"torch.{name}({{x}}, {{diagonal}})"),
            algebra=Algebra(_triangle_shards(function), keeps_sizes=True),
        )
        for name, function in (("tril", np.tril), ("triu", np.triu))
    ),
)
