"""Losses. Every mean divides by a global count: of the whole batch, over all ranks and micro-batches.

`projection` stands for the loss of a module that returns tensors: their sum with fixed random weights, which are a
function of the global element index.
"""

from ..operator import Operator, register
from ..pcg import Node


def _classes(node: Node, inputs: tuple[Node, ...]) -> str:
    """Scores [n, classes, d..] against class indices [n, d..]; `weight` [classes] is read whole."""
    if len(inputs[0].shape) == 1:
        return "y[] = f(x[:], t[])"
    weight = ", weight[:]" if len(inputs) > 2 else ""
    return f"y[] = sum(n, d..) f(x[n, :, d..], t[n, d..]{weight})"


register(
    Operator(
        "cross_entropy",
        ("x", "t", "weight"),
        _classes,
        "cross_entropy({x}, {t})",
        saved=("x", "t"),
        passes=3,
    )
)
register(Operator("mse_loss", ("x", "t"), "y[] = sum(i..) f(x[i..], t[i..])", "mse({x}, {t})", saved=("x", "t")))
register(Operator("projection", ("x",), "y[] = sum(i..) L(x[i..])", "projection({x})", saved=("noise",)))
