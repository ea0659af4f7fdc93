"""Losses. Every mean divides by a global count: of the whole batch, over all ranks and micro-batches.

`projection` stands for the loss of a module that returns tensors: their sum with fixed random weights, which are a
function of the global element index.
"""

from ..graph.dtypes import FLOATS
from ..graph.pcg import Node
from .operator import Operator, register

POINTWISE = {
    "mse_loss": ("x", "t"),
    "l1_loss": ("x", "t"),
    "smooth_l1_loss": ("x", "t"),
    "huber_loss": ("x", "t"),
    "kl_div": ("x", "t"),
    "binary_cross_entropy": ("x", "t", "weight"),
    "binary_cross_entropy_with_logits": ("x", "t", "weight", "pos_weight"),
}
"""Functions of `torch.nn.functional` of one element of every operand, then reduced."""

CLASSIFIED = ("cross_entropy", "nll_loss")
"""Functions of the scores of all classes of a sample, and its label (or, of a cross entropy, its probabilities)."""

LOSSES = (*POINTWISE, *CLASSIFIED, "projection")


def _pointwise(node: Node, inputs: tuple[Node, ...]) -> str:
    names = node.get("operands") or POINTWISE[node.op][: len(inputs)]
    loss = f"f({', '.join(f'{name}[i..]' for name in names)})"
    return f"y[i..] = {loss}" if node.get("reduction") == "none" else f"y[] = sum(i..) {loss}"


def _classes(node: Node, inputs: tuple[Node, ...]) -> str:
    """Scores [n, classes, d..] against labels [n, d..] or probabilities; `weight` [classes] is read whole."""
    soft = ":, " if inputs[1].dtype in FLOATS else ""
    weight = ", weight[:]" if len(inputs) > 2 else ""
    if len(inputs[0].shape) == 1:
        return f"y[] = f(x[:], t[{soft}]{weight})"
    loss = f"f(x[n, :, d..], t[n, {soft}d..]{weight})"
    return f"y[n, d..] = {loss}" if node.get("reduction") == "none" else f"y[] = sum(n, d..) {loss}"


# Their divisors depend on the plan: emitted by `codegen.program.losses`.
for _name, _operands in POINTWISE.items():
    register(Operator(_name, _operands, _pointwise, saved=_operands))
for _name in CLASSIFIED:
    register(Operator(_name, ("x", "t", "weight"), _classes, saved=("x", "t"), passes=3))
register(Operator("projection", ("x",), "y[] = sum(i..) L(x[i..])", "projection({x})", saved=("noise",)))
