"""Losses."""

from ...graph.dtypes import FLOATS
from ...operators.loss import POINTWISE
from ..translation import A, Index, Rule, T, Value, broadcast, present

_REDUCTIONS = ("none", "mean", "sum")


def _pointwise(op: str, *options: str) -> Rule:
    """A loss of input and target, broadcast to one shape, with optional weights."""

    def rule(t: T, a: A) -> Value:
        x, target = a["self"], a["target"]
        shape = broadcast(t.shape(x), t.shape(target))
        given = {"x": t.expand(x, shape), "t": t.expand(t.to(target, t.at(x).dtype), shape)}
        given |= {name: a[name] for name in POINTWISE[op][2:] if a[name] is not None}
        attributes = {name: a[name] for name in options}
        if len(POINTWISE[op]) > 2:
            attributes["operands"] = tuple(given)
        return t.add(op, *given.values(), reduction=_REDUCTIONS[a["reduction"]], **attributes)

    return rule


def _cross_entropy(t: T, a: A) -> Value:
    """Cross entropy with labels, some of which may be ignored, or with probabilities."""
    x, target, weight = a["self"], a["target"], a["weight"]
    attributes: A = {"reduction": _REDUCTIONS[a["reduction"]]}
    if t.at(target).dtype not in FLOATS:
        attributes["ignore_index"] = a["ignore_index"]
        t.limit(target, _classes(t, x))
    if a.get("label_smoothing"):
        attributes["label_smoothing"] = a["label_smoothing"]
    return t.add("cross_entropy", *present(x, target, weight), **attributes)


def _nll(t: T, a: A) -> Value:
    """Negative log likelihood; of a log-softmax it is a cross entropy."""
    source = t.at(a["self"])
    if source.op == "log_softmax" and source["dim"] == min(1, len(source.shape) - 1):
        return _cross_entropy(t, a | {"self": Index(source.inputs[0])})
    t.limit(a["target"], _classes(t, a["self"]))
    attributes: A = {"reduction": _REDUCTIONS[a["reduction"]], "ignore_index": a["ignore_index"]}
    return t.add("nll_loss", *present(a["self"], a["target"], a["weight"]), **attributes)


def _classes(t: T, scores: Index) -> int:
    shape = t.shape(scores)
    return shape[min(1, len(shape) - 1)]


TABLE: dict[str, Rule] = {
    "cross_entropy_loss": _cross_entropy,
    "nll_loss_nd": _nll,
    "nll_loss": _nll,
    "mse_loss": _pointwise("mse_loss"),
    "l1_loss": _pointwise("l1_loss"),
    "smooth_l1_loss": _pointwise("smooth_l1_loss", "beta"),
    "huber_loss": _pointwise("huber_loss", "delta"),
    "kl_div": _pointwise("kl_div", "log_target"),
    "binary_cross_entropy": _pointwise("binary_cross_entropy"),
    "binary_cross_entropy_with_logits": _pointwise("binary_cross_entropy_with_logits"),
}
