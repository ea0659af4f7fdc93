"""Losses. Every mean divides by the count of the whole batch, over all ranks and micro-batches.

`projection` stands for the loss of a module that returns tensors: their sum with fixed random weights, which are a
function of the global element index.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..graph.dtypes import FLOATS
from ..graph.pcg import Node
from .algebra import Algebra
from .operator import Operator, operator

if TYPE_CHECKING:
    from torch import Tensor

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


def _reference(node: Node, x: Sequence[Tensor]) -> Tensor:
    """PyTorch's loss; operands after the target, and attributes, are keywords."""
    import torch.nn.functional as F

    attributes = {name: value for name, value in node.attributes if name != "operands"}
    weights = dict(zip(operator(node.op).named(node)[2:], x[2:], strict=True))
    result: Tensor = getattr(F, node.op)(x[0], x[1], **weights, **attributes)
    return result


def _states(node: Node, inputs: tuple[Node, ...]) -> int:
    """Places that the paths of a sample can be at: at every step a label, or the blank around it."""
    steps, _, _ = inputs[0].shape
    return steps * (2 * inputs[1].shape[1] + 1)


def _ctc(node: Node, names: Sequence[str]) -> str:
    options = f"blank={node['blank']}, " if node["blank"] else ""
    options += 'reduction="none"' + (", zero_infinity=True" if node["zero_infinity"] else "")
    return f"F.ctc_loss({', '.join(names)}, {options})"


def _ctc_reference(node: Node, x: Sequence[Tensor]) -> Tensor:
    """On meta only the shape: PyTorch has no kernel there."""
    import torch.nn.functional as F

    if x[0].is_meta:
        return x[0].new_empty(node.shape)
    options = {"blank": node["blank"], "zero_infinity": node["zero_infinity"]}
    return F.ctc_loss(x[0], x[1], x[2], x[3], reduction="none", **options)


OPERATORS = (
    # Their divisors depend on the plan: `codegen/emission/common/losses.py` writes their lines.
    *(Operator(name, names, _pointwise, saved=names, reference=_reference) for name, names in POINTWISE.items()),
    *(
        Operator(name, ("x", "t", "weight"), _classes, saved=("x", "t"), passes=3, reference=_reference)
        for name in CLASSIFIED
    ),
    # The sum over all paths, forward (which autograd keeps) and backward: three predecessors of a place, an exponential
    # of each, a logarithm. Autograd writes both sums and reads them again.
    Operator(
        "ctc_loss",
        ("x", "t", "steps", "labels"),
        "y[n] = f(x[:, n, :], t[n, :], steps[n], labels[n])",
        _ctc,
        saved=("x", "t", "steps", "labels", "gate"),
        gates=lambda node, inputs: 1 + _states(node, inputs),
        flops=lambda node, inputs: 10 * node.numel * _states(node, inputs),
        scratch=lambda node, inputs: 2 * node.numel * _states(node, inputs),
        reference=_ctc_reference,
    ),
    Operator(
        "projection",
        ("x",),
        "y[] = sum(i..) L(x[i..])",
        "projection({x})",
        saved=("noise",),
        algebra=Algebra(unprovable="draws random numbers"),
    ),
)
