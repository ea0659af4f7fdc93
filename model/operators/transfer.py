"""Tensors that a pipeline stage receives from the stage before and sends to the next: see `model.graph.stages`.

Both may have any layout without addends, the same on each side. `peer` is the tensor's name in the whole graph, `atoms`
are the factors of its dims there, 0 for the samples. A `loose` receive may have addends too: it stands for a tensor
inside a larger part when bounds are computed.
"""

from .operator import Operator

OPERATORS = (
    Operator("receive", (), "y[i..] = f()", flops=lambda node, inputs: 0, passes=0, transfer=True),
    Operator("send", ("x",), "y[i..] = f(x[i..])", "{x}", flops=lambda node, inputs: 0, passes=0, transfer=True),
)
