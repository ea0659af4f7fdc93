"""Constants made from attributes alone: whole on every rank, sliced where they are used."""

from .algebra import Algebra
from .operator import Operator, register

register(Operator("full", (), emit="torch.full({shape}, {value}, dtype={dtype})", creates=True, passes=0))
register(Operator("arange", (), emit="torch.arange({start}, {stop}, {step}, dtype={dtype})", creates=True, passes=0))
# Values in row-major order; capture stores only small tensors this way.
register(
    Operator("constant", (), emit="torch.tensor({values}, dtype={dtype}).reshape({shape})", creates=True, passes=0)
)
for _name in ("tril", "triu"):
    _call = f"torch.{_name}({{x}}, {{diagonal}})"
    register(Operator(_name, ("x",), "y[b.., m, n] = f(x[b.., :, :])[m, n]", _call, algebra=Algebra(keeps_sizes=True)))
