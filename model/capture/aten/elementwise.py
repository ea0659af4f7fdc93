"""Elementwise operators, casts and dropout."""

from math import log

from ...graph.dtypes import FLOATS
from ...operators.elementwise import BINARY, UNARY
from ..known_values import once
from ..translation import A, Index, Rule, T, Value, broadcast, dtype_name
from . import data_dependent
from .folds import batch_mean, rms_norm


def _unary(op: str, **renamed: str) -> Rule:
    """One operand; `renamed` maps the attributes of the operator to ATen's argument names."""
    return lambda t, a: t.add(op, a["self"], **{ours: a[theirs] for ours, theirs in renamed.items()})


def _binary(op: str) -> Rule:
    return lambda t, a: t.add(op, t.tensor(a["self"]), t.tensor(a["other"]))


def _sum_of(sign: int) -> Rule:
    """self + sign * alpha * other."""

    def rule(t: T, a: A) -> Value:
        x, other, factor = a["self"], a["other"], sign * a.get("alpha", 1)
        number, base = t.number(other), t.number(x)
        if number is not None:
            return t.add("shift", t.tensor(x), value=factor * number) if number or factor_changes(t, x) else x
        if base is not None:
            return t.add("shift", t.scale(other, factor), value=base)
        if factor in (1, -1):
            return t.add("add" if factor == 1 else "sub", x, other)
        return t.add("add", x, t.scale(other, factor))

    return rule


def factor_changes(t: T, x: Value) -> bool:
    """True if adding zero changes the dtype."""
    return t.at(x).dtype != dtype_name(t.like.dtype)


def _reverse_sub(t: T, a: A) -> Value:
    """other - alpha * self."""
    return _sum_of(-1)(t, {"self": a["other"], "other": a["self"], "alpha": a["alpha"]})


def _mul(t: T, a: A) -> Value:
    for x, other in ((a["self"], a["other"]), (a["other"], a["self"])):
        number = t.number(other)
        if number is not None and t.number(x) is None:
            return x if number == 1 and not factor_changes(t, x) else t.add("scale", x, value=number)
    x, other = t.tensor(a["self"]), t.tensor(a["other"])
    folded = rms_norm(t, x, other)
    folded = rms_norm(t, other, x) if folded is None else folded
    return t.add("mul", x, other) if folded is None else folded


def _div(t: T, a: A) -> Value:
    if a.get("rounding_mode"):
        return None
    number = t.number(a["other"])
    if number:
        folded = batch_mean(t, a["self"], number)
        return t.add("scale", a["self"], value=1 / number) if folded is None else folded
    return t.add("div", t.tensor(a["self"]), t.tensor(a["other"]))


def _pow(t: T, a: A) -> Value:
    base, exponent = t.number(a["self"]), t.number(a["exponent"])
    if exponent is not None:
        return a["self"] if exponent == 1 else t.add("pow", t.tensor(a["self"]), exponent=exponent)
    if base is None or base <= 0 or dtype_name(t.like.dtype) not in FLOATS:
        return t.add("power", t.tensor(a["self"]), a["exponent"])
    return t.add("exp", t.add("scale", a["exponent"], value=log(base)))


def _clamp(t: T, a: A) -> Value:
    low, high = a.get("min"), a.get("max")
    if isinstance(low, Index) or isinstance(high, Index):
        return None
    return t.add("clamp", a["self"], min=low, max=high)


def _function(name: str) -> Rule:
    """A function of torch of one element; a function with options is decomposed if they are given."""

    def rule(t: T, a: A) -> Value:
        if any(a[option] for option in a if option != "self"):
            return t.no("with options")
        return t.add("unary", a["self"], function=name)

    return rule


def _function_of_two(name: str) -> Rule:
    return lambda t, a: t.add("binary", t.tensor(a["self"]), t.tensor(a["other"]), function=name)


def _compare(relation: str) -> Rule:
    def rule(t: T, a: A) -> Value:
        x, other = _unrounded(t, a["self"]), _unrounded(t, a["other"])
        number = t.number(other)
        dtype = None if relation.startswith("bitwise") else "bool"
        if number is None or relation.startswith("logical"):  # of tensors only
            return t.add("relate", x, other, dtype=dtype, relation=relation)
        return t.add("compare", x, dtype=dtype, relation=relation, value=number)

    return rule


def _unrounded(t: T, x: Value) -> Value:
    """Random numbers that are compared, as with a probability, before they are rounded to the plan's dtype."""
    node = t.at(x) if isinstance(x, Index) else None
    if node is None or node.op != "random" or node["kind"] != "uniform" or node.dtype != "float32":
        return x
    blank = t.expand(t.full(0.0, (), "float64"), node.shape)
    return t.add("random", blank, shape=node.shape, dtype="float64", **dict(node.attributes) | {"gradient": False})


def _not(t: T, a: A) -> Value:
    """Negation of truth values; for numbers, comparison with zero."""
    x = a["self"]
    if t.at(x).dtype == "bool":
        return t.add("logical_not", x)
    return t.add("compare", x, dtype="bool", relation="eq", value=0)


def _invert(t: T, a: A) -> Value:
    return _not(t, a) if t.at(a["self"]).dtype == "bool" else t.no("the bits of integers")


def _where(t: T, a: A) -> Value:
    if "self" not in a:
        return data_dependent.TABLE["nonzero"](t, a)
    dtype = dtype_name(t.like.dtype)
    return chosen(t, a["condition"], t.tensor(a["self"], dtype), t.tensor(a["other"], dtype))


def chosen(t: T, condition: Index, x: Index, other: Index) -> Index:
    """torch.where; of a condition that is known to be the same everywhere, one of the two."""
    known = t.known.of(condition)
    shape = broadcast(t.shape(condition), t.shape(x), t.shape(other))
    if known is not None:
        small = once(known)
        if bool(small.all()) or not bool(small.any()):
            return t.expand(t.to(x if bool(small.all()) else other, t.like.dtype), shape)
    return t.add("where", condition, x, other)


def _masked_fill(t: T, a: A) -> Value:
    value = t.number(a["value"])
    filling = a["value"] if value is None else t.full(value, (), t.at(a["self"]).dtype)
    return chosen(t, a["mask"], filling, a["self"])


def _dropout(t: T, a: A) -> Value:
    if not a["train"] or not a["p"]:
        return a["input"]
    return dropout(t, a["input"], a["p"])


def dropout(t: T, x: Index, p: float) -> Index:
    """Call sites are numbered in the order of the calls; p = 1 needs no random numbers."""
    if p == 1:
        return t.add("scale", x, shape=t.shape(x), value=0.0)
    return t.add("dropout", x, shape=t.shape(x), **dropout_site(t, p))


def dropout_site(t: T, p: float) -> A:
    """The attributes of the next call that drops a share `p`."""
    t.sites += 1
    return {"p": p, "site": t.sites - 1} | ({"native": True} if t.dropout == "torch" else {})


def _softplus(t: T, a: A) -> Value:
    return t.add("softplus", a["self"]) if (a["beta"], a["threshold"]) == (1, 20) else None


def _elu(t: T, a: A) -> Value:
    return t.scale(t.add("elu", a["self"], alpha=a["alpha"]), a["scale"]) if a["input_scale"] == 1 else None


def _celu(t: T, a: A) -> Value:
    """alpha * elu(x / alpha)."""
    inner = t.add("elu", t.scale(a["self"], 1 / a["alpha"]), alpha=1.0)
    return t.scale(inner, a["alpha"])


def _hardtanh(t: T, a: A) -> Value:
    low, high = a["min_val"], a["max_val"]
    if (low, high) == (0, 6):
        return t.add("relu6", a["self"])
    return t.add("hardtanh", a["self"], min_val=low, max_val=high)


def _cast(t: T, a: A) -> Value:
    return t.to(a["self"], t.like.dtype)


def _same(name: str = "self") -> Rule:
    return lambda t, a: a[name]


def _detach(t: T, a: A) -> Value:
    return t.add("detach", a["self"], gradient=False) if t.at(a["self"]).gradient else a["self"]


TABLE: dict[str, Rule] = {
    **{name: _unary(name) for name in ["relu", "relu6", "selu", "mish", "hardswish", "hardsigmoid", "silu"]},
    **{name: _unary(name) for name in ["tanh", "sigmoid", "exp", "log", "sqrt", "rsqrt", "sin", "cos"]},
    **{name: _unary(name) for name in ["erf", "abs", "neg", "reciprocal"]},
    "logical_not": _not,
    "bitwise_not": _invert,
    "gelu": _unary("gelu", approximate="approximate"),
    "leaky_relu": _unary("leaky_relu", slope="negative_slope"),
    "elu": _elu,
    "celu": _celu,
    "hardtanh": _hardtanh,
    "log_sigmoid": _unary("logsigmoid"),
    "prelu": lambda t, a: t.add("prelu", a["self"], t.view(a["weight"], (t.at(a["weight"]).numel,))),
    "softplus": _softplus,
    "square": lambda t, a: t.add("pow", a["self"], exponent=2),
    "add": _sum_of(1),
    "sub": _sum_of(-1),
    "subtract": _sum_of(-1),
    "rsub": _reverse_sub,
    "mul": _mul,
    "multiply": _mul,
    "div": _div,
    "divide": _div,
    "true_divide": _div,
    "pow": _pow,
    "clamp": _clamp,
    "clamp_min": _clamp,
    "clamp_max": _clamp,
    "maximum": _binary("maximum"),
    "minimum": _binary("minimum"),
    **{
        name: _compare(name)
        for name in ["eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or", "bitwise_and", "bitwise_or"]
    },
    **{name: _function(name) for name in UNARY},
    **{f"special_{name}": _function(name) for name in ("log1p", "expm1", "exp2", "erfc", "erfinv", "digamma", "sinc")},
    **{name: _function_of_two(name) for name in BINARY},
    **{name: _compare(name) for name in ("logical_xor", "bitwise_xor")},
    "__xor__": _compare("bitwise_xor"),
    "__and__": _compare("bitwise_and"),
    "__or__": _compare("bitwise_or"),
    "where": _where,
    "masked_fill": _masked_fill,
    "dropout": _dropout,
    "to": _cast,
    "_to_copy": _cast,
    "type_as": _cast,
    **{name: _same() for name in ["clone", "contiguous", "alias", "lift_fresh", "lift_fresh_copy"]},
    "detach": _detach,
    "detach_": _detach,
}
