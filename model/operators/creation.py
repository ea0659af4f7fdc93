"""Constants made from attributes alone: whole on every rank, cut where they are used."""

from .operator import Operator, register

register(Operator("full", (), emit="torch.full({shape}, {value}, dtype={dtype})", creates=True, passes=0))
register(Operator("arange", (), emit="torch.arange({start}, {stop}, {step}, dtype={dtype})", creates=True, passes=0))
# The values in row-major order, as many as the shape asks; capture keeps only small tensors so.
register(
    Operator("constant", (), emit="torch.tensor({values}, dtype={dtype}).reshape({shape})", creates=True, passes=0)
)
register(Operator("tril", ("x",), "y[b.., m, n] = f(x[b.., :, :])[m, n]", "torch.tril({x}, {diagonal})"))
register(Operator("triu", ("x",), "y[b.., m, n] = f(x[b.., :, :])[m, n]", "torch.triu({x}, {diagonal})"))
