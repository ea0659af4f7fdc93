"""What a stage of a pipeline is handed by the one before it, and hands on to the next: see `model.stages`.

Both may have any layout without addends, each side the same. `peer` is the tensor's name in the whole graph, `atoms`
are the factors of its dims there, 0 for the samples. A `loose` receive may have addends too: it stands for what is
inside of a larger part, where bounds are sought.
"""

from .operator import Operator, register

register(Operator("receive", (), "y[i..] = f()", flops=lambda node, inputs: 0, passes=0, transfer=True))
register(Operator("send", ("x",), "y[i..] = f(x[i..])", "{x}", flops=lambda node, inputs: 0, passes=0, transfer=True))
