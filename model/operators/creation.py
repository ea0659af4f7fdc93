"""Constants made from attributes alone: whole on every rank, sliced where they are used."""

from .algebra import Algebra
from .operator import Operator

OPERATORS = (
    Operator("full", (), emit="torch.full({shape}, {value}, dtype={dtype})", creates=True, passes=0),
    Operator("arange", (), emit="torch.arange({start}, {stop}, {step}, dtype={dtype})", creates=True, passes=0),
    # Values in row-major order; capture stores only small tensors this way.
    Operator("constant", (), emit="torch.tensor({values}, dtype={dtype}).reshape({shape})", creates=True, passes=0),
    *(
        Operator(
            *(name, ("x",), "y[b.., m, n] = f(x[b.., :, :])[m, n]", f"torch.{name}({{x}}, {{diagonal}})"),
            algebra=Algebra(keeps_sizes=True),
        )
        for name in ("tril", "triu")
    ),
)
