"""Reductions, products, normalizations, attention and losses."""

from collections.abc import Callable
from math import inf, sqrt
from typing import Any, TypeAlias

from ..pcg import FLOATS
from ..translate import Index, Rule, Translation, Value
from .elementwise import dropout
from .views import interleave

T: TypeAlias = Translation
A: TypeAlias = dict[str, Any]


def _reduce(op: str) -> Rule:
    def rule(t: T, a: A) -> Value:
        x = t.to(a["self"], a.get("dtype"))
        dims = a.get("dim")
        return t.reduce(op, x, [dims] if isinstance(dims, int) else dims, a.get("keepdim", False))

    return rule


def _max(t: T, a: A) -> Value:
    if "other" in a:
        return t.add("maximum", a["self"], a["other"])
    if "dim" in a:
        return [t.reduce("amax", a["self"], [a["dim"]], a["keepdim"]), None]
    return t.reduce("amax", a["self"], None, False)


def _variance(t: T, a: A) -> Index:
    x, dims, correction = a["self"], a.get("dim"), a.get("correction")
    correction = int(a.get("unbiased", True)) if correction is None else correction
    mean = t.reduce("mean", x, dims, True)
    centred = t.add("sub", x, mean, shape=t.shape(x))
    square = t.add("pow", centred, shape=t.shape(x), exponent=2)
    total = t.reduce("mean", square, dims, a.get("keepdim", False))
    count = t.at(mean)["count"]
    return t.scale(total, count / (count - correction))


def _deviation(t: T, a: A) -> Value:
    return t.add("sqrt", _variance(t, a))


def _softmax(op: str, x: str = "self") -> Rule:
    def rule(t: T, a: A) -> Value:
        inner = t.to(a[x], a.get("dtype"))
        return t.add(op, inner, dim=a["dim"] % max(1, len(t.shape(inner))))

    return rule


def _linear(t: T, a: A) -> Value:
    return t.add("linear", *(x for x in (a["input"], a["weight"], a["bias"]) if x is not None))


def _matmul(t: T, a: A) -> Value:
    return t.add("matmul", a["self"], a["other"] if "other" in a else a["mat2"])


def _add_matmul(first: str, second: str) -> Rule:
    """beta * self + alpha * first @ second; Hugging Face's Conv1D arrives as one."""

    def rule(t: T, a: A) -> Value:
        product = t.scale(t.add("matmul", a[first], a[second]), a["alpha"])
        return t.add("add", product, t.scale(a["self"], a["beta"])) if a["beta"] else product

    return rule


def _einsum(t: T, a: A) -> Value:
    equation, operands = a["equation"].replace(" ", ""), a["tensors"]
    inputs, _, output = equation.partition("->")
    terms = inputs.split(",")
    free = set(output) - set(inputs)
    repeated = any(len(set(term)) < len(term) for term in (*terms, output))
    if "->" not in equation or "." in equation or free or repeated or len(operands) > 2:
        return None
    return t.add("einsum", *operands, equation=equation)


def _layer_norm(t: T, a: A) -> Value:
    given = [("x", a["input"]), ("w", a["weight"]), ("bias", a["bias"])]
    given = [(name, x) for name, x in given if x is not None]
    return t.add(
        "layer_norm",
        *(x for _, x in given),
        like=a.get("like"),
        normalized=len(a["normalized_shape"]),
        eps=a["eps"],
        operands=tuple(name for name, _ in given),
    )


def _rms_norm(t: T, a: A) -> Value:
    inputs = [x for x in (a["input"], a["weight"]) if x is not None]
    return t.add("rms_norm", *inputs, normalized=len(a["normalized_shape"]), eps=a["eps"])


def _embedding(t: T, a: A) -> Value:
    """The row of the padding index gets no gradient: its look-ups are detached."""
    if a["scale_grad_by_freq"]:
        return None
    ids, padding = a["indices"], a["padding_idx"]
    rows = t.add("embedding", a["weight"], ids)
    if padding < 0 or not t.at(rows).gradient:
        return rows
    where = t.add("compare", ids, shape=t.shape(ids), dtype="bool", relation="eq", value=padding)
    return t.add("where", t.view(where, (*t.shape(ids), 1)), t.add("detach", rows, gradient=False), rows)


def _attention(t: T, a: A) -> Value:
    q, k, v, mask, p = (a[name] for name in ("query", "key", "value", "attn_mask", "dropout_p"))
    if a["enable_gqa"] and t.shape(q)[-3] != t.shape(k)[-3]:
        k, v = (interleave(t, x, len(t.shape(x)) - 3, t.shape(q)[-3] // t.shape(x)[-3]) for x in (k, v))
    if not p:
        operands = (q, k, v) if mask is None else (q, k, v, mask)
        return t.add("attention", *operands, causal=a["is_causal"], scale=a["scale"])
    shape = (*t.shape(q)[:-1], t.shape(k)[-2])
    scores = t.add("matmul", q, t.transpose(k, -2, -1), shape=shape)
    scores = t.scale(scores, 1 / sqrt(t.shape(q)[-1]) if a["scale"] is None else a["scale"])
    mask = t.causal(*shape[-2:]) if a["is_causal"] else mask
    if mask is not None and t.at(mask).dtype == "bool":
        scores = t.add("where", mask, scores, t.full(-inf), shape=shape)
    elif mask is not None:
        scores = t.add("add", scores, mask, shape=shape)
    weights = dropout(t, t.add("softmax", scores, shape=shape, dim=len(shape) - 1), p)
    return t.add("matmul", weights, v)


_REDUCTIONS = ("none", "mean", "sum")


def _cross_entropy(t: T, a: A) -> Value:
    x, target, weight = a["self"], a["target"], a["weight"]
    reduction = _REDUCTIONS[a["reduction"]]
    if a.get("label_smoothing") or reduction == "none":
        return None
    if t.at(target).dtype in FLOATS:  # probabilities
        if weight is not None:
            return None
        dim = min(1, len(t.shape(x)) - 1)
        logs = t.add("log_softmax", x, shape=t.shape(x), dim=dim)
        total = t.reduce(reduction, t.add("mul", logs, target, shape=t.shape(x)), None, False)
        return t.scale(total, -t.shape(x)[dim] if reduction == "mean" else -1)  # a mean is over samples, not classes
    operands = (x, target) if weight is None else (x, target, weight)
    return t.add("cross_entropy", *operands, reduction=reduction, ignore_index=a["ignore_index"])


def _nll(t: T, a: A) -> Value:
    """The log-softmax of a log-softmax is itself, so a negative log likelihood of one is a cross entropy."""
    source = t.at(a["self"])
    if source.op != "log_softmax" or source["dim"] != min(1, len(source.shape) - 1):
        return None
    return _cross_entropy(t, a | {"self": Index(source.inputs[0])})


def _difference(op: str, **attributes: Any) -> Callable[[T, Index, Index], Index]:
    return lambda t, x, y: t.add(op, t.add("sub", x, y, shape=t.shape(x)), shape=t.shape(x), **attributes)


def _mse(t: T, a: A) -> Value:
    x, target, reduction = a["self"], a["target"], _REDUCTIONS[a["reduction"]]
    if reduction == "none" or t.shape(x) != t.shape(target):
        square = _difference("pow", exponent=2)(t, x, target)
        return square if reduction == "none" else t.reduce(reduction, square, None, False)
    return t.add("mse_loss", x, target, reduction=reduction)


def _l1(t: T, a: A) -> Value:
    distance, reduction = _difference("abs")(t, a["self"], a["target"]), _REDUCTIONS[a["reduction"]]
    return distance if reduction == "none" else t.reduce(reduction, distance, None, False)


def _binary_cross_entropy(t: T, a: A) -> Value:
    """softplus(x) - x * target."""
    x, target, reduction = a["self"], a["target"], _REDUCTIONS[a["reduction"]]
    if a["weight"] is not None or a["pos_weight"] is not None:
        return None
    shape = t.shape(x)
    rise = t.add("softplus", x, shape=shape)
    loss = t.add("sub", rise, t.add("mul", x, target, shape=shape), shape=shape)
    return loss if reduction == "none" else t.reduce(reduction, loss, None, False)


TABLE: dict[str, Rule] = {
    "sum": _reduce("sum"),
    "mean": _reduce("mean"),
    "amax": _reduce("amax"),
    "cumsum": lambda t, a: t.add("cumsum", t.to(a["self"], a["dtype"]), dim=a["dim"] % max(1, len(t.like.shape))),
    "max": _max,
    "var": lambda t, a: _variance(t, a),
    "std": _deviation,
    "softmax": _softmax("softmax"),
    "_softmax": _softmax("softmax"),
    "log_softmax": _softmax("log_softmax"),
    "_log_softmax": _softmax("log_softmax"),
    "linear": _linear,
    "matmul": _matmul,
    "mm": _matmul,
    "bmm": _matmul,
    "einsum": _einsum,
    "mv": lambda t, a: t.add("matmul", a["self"], a["vec"]),
    "dot": lambda t, a: t.add("matmul", a["self"], a["tensor"]),
    "addmm": _add_matmul("mat1", "mat2"),
    "baddbmm": _add_matmul("batch1", "batch2"),
    "layer_norm": _layer_norm,
    "native_layer_norm": lambda t, a: [_layer_norm(t, a | {"like": t.like[0]}), None, None],
    "rms_norm": _rms_norm,
    "embedding": _embedding,
    "scaled_dot_product_attention": _attention,
    "cross_entropy_loss": _cross_entropy,
    "nll_loss_nd": _nll,
    "nll_loss": _nll,
    "mse_loss": _mse,
    "l1_loss": _l1,
    "binary_cross_entropy_with_logits": _binary_cross_entropy,
}
