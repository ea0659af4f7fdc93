"""Tensors that a pipeline stage receives from the stage before and sends to the next: see `model.graph.stages`.

Both may have any layout without addends, the same on each side. `peer` is the tensor's name in the whole graph, `atoms`
are the factors of its dims there, 0 for the samples. A `loose` receive may have addends too: it stands for a tensor
inside a larger part when bounds are computed.

In an interlaced pipeline (`model.graph.interlaced`) a stage has tensors `from_all` devices, or gives one `to_all`: what
these compute together sends and receives the messages, so a stage takes no time for them.

Where micro-batches pass the pipeline several times (`model.graph.folded`), what a pass hands to the next goes back
`to_pass`, and comes `from_pass`, without gradient.
"""

from .operator import Operator


def _handed_over(name: str, message: bool) -> Operator:
    given = name in ("receive", "from_all", "from_pass")
    operands, notation, emit = ((), "y[i..] = f()", "") if given else (("x",), "y[i..] = f(x[i..])", "{x}")
    return Operator(
        name, operands, notation, emit, flops=lambda node, inputs: 0, passes=0, transfer=True, message=message
    )


OPERATORS = (
    _handed_over("receive", message=True),
    _handed_over("send", message=True),
    _handed_over("from_all", message=False),
    _handed_over("to_all", message=False),
    _handed_over("from_pass", message=True),
    _handed_over("to_pass", message=True),
)
