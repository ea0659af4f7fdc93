"""Losses."""

from typing import Any

from ...graph.dtypes import FLOATS
from ...operators.loss import POINTWISE
from ..translation import A, Index, Rule, T, Value, broadcast, present
from .data_dependent import Selected
from .lookups import look_up

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


def _ctc(t: T, a: A) -> Value:
    """The losses of the samples; PyTorch divides each by the number of its labels before it takes the mean."""
    x, dtype = a["log_probs"], t.at(a["log_probs"]).dtype
    if len(t.shape(x)) != 3:
        raise t.refusal("ctc_loss without a dim of samples", "give log_probs of shape [steps, samples, classes]")
    steps, samples, classes = t.shape(x)
    labels = a["targets"]
    lengths, counts = (_lengths(t, a[name], samples) for name in ("input_lengths", "target_lengths"))
    targets = _targets(t, labels, counts, samples)
    t.limit(labels.x if isinstance(labels, Selected) else labels, classes)
    for numbers, most in ((lengths, steps + 1), (counts, t.shape(targets)[1] + 1)):
        t.limit(numbers, most)
    options = {"blank": a["blank"], "zero_infinity": bool(a["zero_infinity"])}
    losses = t.add("ctc_loss", x, targets, lengths, counts, shape=(samples,), dtype=dtype, **options)
    reduction = _REDUCTIONS[a["reduction"]]
    if reduction == "none":
        return losses
    if reduction == "mean":
        divisors = t.to(t.add("clamp", counts, shape=(samples,), dtype=t.at(counts).dtype, min=1, max=None), dtype)
        losses = t.add("div", losses, divisors, shape=(samples,), dtype=dtype)
    return t.reduce(reduction, losses, 0, False)


def _lengths(t: T, given: Any, samples: int) -> Index:
    """Lengths as a tensor; Python numbers are one for each sample."""
    if isinstance(given, Index):
        return t.expand(given, (samples,))
    if len(set(given)) == 1:
        return t.expand(t.full(given[0], (), "int64"), (samples,))
    return t.listed("lengths", given, "int64")


def _targets(t: T, given: Index | Selected, counts: Index, samples: int) -> Index:
    """The labels of every sample in a row of their own, behind them anything.

    Labels that a mask selected are behind one another, in the order of rows, if the mask also gives their numbers.
    """
    if isinstance(given, Index):
        if len(t.shape(given)) == 2:
            return given
        raise t.refusal("ctc_loss of the labels of all samples behind one another", "give them as [samples, labels]")
    while t.at(counts).op == "to":
        counts = Index(t.at(counts).inputs[0])
    number = t.at(counts)
    if number.op != "sum" or number.inputs != (int(given.mask),) or number["dims"] != (1,):
        raise t.refusal("ctc_loss of labels that a mask selects", "give mask.sum(-1) as their numbers (target_lengths)")
    shape = t.shape(given.x)
    if len(shape) != 2 or shape[0] != samples:
        raise t.refusal("ctc_loss of labels that a mask selects", "give them as [samples, labels]")
    chosen = t.to(given.mask, "int64")
    order = t.add("argsort", chosen, shape=shape, dtype="int64", dim=1, descending=True, stable=True)
    return look_up(t, "gather", given.x, order, shape=shape, dtype=t.at(given.x).dtype, dim=1)


TABLE: dict[str, Rule] = {
    "ctc_loss": _ctc,
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
