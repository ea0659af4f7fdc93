"""The table from ATen operators to those of a PCG. Arguments come by their ATen names, with defaults filled in.

A rule that returns None has no translation for the given arguments; the operator is then refused like an unknown one.
"""

from collections.abc import Callable
from math import inf, log, prod, sqrt
from typing import Any, TypeAlias

from .pcg import FLOATS
from .translate import Index, Rule, Translation, Value, dtype_name

T: TypeAlias = Translation
A: TypeAlias = dict[str, Any]


# -- elementwise ----------------------------------------------------------------------------------------------------


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
    """Whether adding zero changes the dtype."""
    return t.at(x).dtype != dtype_name(t.like.dtype)


def _reverse_sub(t: T, a: A) -> Value:
    """other - alpha * self."""
    return _sum_of(-1)(t, {"self": a["other"], "other": a["self"], "alpha": a["alpha"]})


def _mul(t: T, a: A) -> Value:
    for x, other in ((a["self"], a["other"]), (a["other"], a["self"])):
        number = t.number(other)
        if number is not None and t.number(x) is None:
            return x if number == 1 and not factor_changes(t, x) else t.add("scale", x, value=number)
    return t.add("mul", t.tensor(a["self"]), t.tensor(a["other"]))


def _div(t: T, a: A) -> Value:
    if a.get("rounding_mode"):
        return None
    number = t.number(a["other"])
    if number:
        return t.add("scale", a["self"], value=1 / number)
    return t.add("div", t.tensor(a["self"]), t.tensor(a["other"]))


def _pow(t: T, a: A) -> Value:
    base, exponent = t.number(a["self"]), t.number(a["exponent"])
    if exponent is not None:
        return a["self"] if exponent == 1 else t.add("pow", t.tensor(a["self"]), exponent=exponent)
    if base is None:
        return t.add("power", a["self"], a["exponent"])
    return t.add("exp", t.add("scale", a["exponent"], value=log(base))) if base > 0 else None


def _clamp(t: T, a: A) -> Value:
    low, high = a.get("min"), a.get("max")
    if isinstance(low, Index) or isinstance(high, Index):
        return None
    return t.add("clamp", a["self"], min=low, max=high)


def _compare(relation: str) -> Rule:
    def rule(t: T, a: A) -> Value:
        number = t.number(a["other"])
        if number is not None:
            return t.add("compare", a["self"], relation=relation, value=number)
        return t.add("relate", a["self"], a["other"], relation=relation)

    return rule


def _where(t: T, a: A) -> Value:
    dtype = dtype_name(t.like.dtype)
    return t.add("where", a["condition"], t.tensor(a["self"], dtype), t.tensor(a["other"], dtype))


def _masked_fill(t: T, a: A) -> Value:
    value = t.number(a["value"])
    filling = a["value"] if value is None else t.full(value, (), t.at(a["self"]).dtype)
    return t.add("where", a["mask"], filling, a["self"])


def _dropout(t: T, a: A) -> Value:
    if not a["train"] or not a["p"]:
        return a["input"]
    return dropout(t, a["input"], a["p"])


def dropout(t: T, x: Index, p: float) -> Index:
    """Call sites are numbered in the order of the calls."""
    t.sites += 1
    return t.add("dropout", x, shape=t.shape(x), p=p, site=t.sites - 1)


def _softplus(t: T, a: A) -> Value:
    return t.add("softplus", a["self"]) if (a["beta"], a["threshold"]) == (1, 20) else None


def _elu(t: T, a: A) -> Value:
    return t.add("elu", a["self"], alpha=a["alpha"]) if (a["scale"], a["input_scale"]) == (1, 1) else None


def _cast(t: T, a: A) -> Value:
    return t.to(a["self"], t.like.dtype)


def _same(name: str = "self") -> Rule:
    return lambda t, a: a[name]


def _detach(t: T, a: A) -> Value:
    return t.add("detach", a["self"], gradient=False) if t.at(a["self"]).gradient else a["self"]


# -- views ----------------------------------------------------------------------------------------------------------


def _view(name: str = "self") -> Rule:
    return lambda t, a: t.view(a[name], t.like.shape)


def _expand(t: T, a: A) -> Value:
    return t.expand(a["self"], tuple(int(size) for size in t.like.shape))


def _broadcast(t: T, a: A) -> Value:
    return [t.expand(x, tuple(int(size) for size in v.shape)) for x, v in zip(a["tensors"], t.like, strict=True)]


def _permute(t: T, a: A) -> Value:
    return t.permute(a["self"], [d % len(a["dims"]) for d in a["dims"]])


def _swap(first: str, second: str) -> Rule:
    return lambda t, a: t.transpose(a["self"], a[first], a[second])


def _last_two(t: T, a: A) -> Value:
    return t.transpose(a["self"], -2, -1) if len(t.shape(a["self"])) > 1 else a["self"]


def _reverse_dims(t: T, a: A) -> Value:
    return t.permute(a["self"], list(reversed(range(len(t.shape(a["self"]))))))


def _move_dims(t: T, a: A) -> Value:
    rank = len(t.shape(a["self"]))
    source, target = (
        [d % rank for d in (dims if isinstance(dims, list) else [dims])] for dims in (a["source"], a["destination"])
    )
    rest = iter(d for d in range(rank) if d not in source)
    return t.permute(a["self"], [source[target.index(d)] if d in target else next(rest) for d in range(rank)])


def _slice(t: T, a: A) -> Value:
    stop = a["end"]
    return t.slice(a["self"], a["dim"], a["start"] or 0, 2**62 if stop is None else stop, a["step"])


def _select(t: T, a: A) -> Value:
    x, dim, index = a["self"], a["dim"], a["index"]
    index %= t.shape(x)[dim]
    return t.view(t.slice(x, dim, index, index + 1), t.like.shape)


def _narrow(t: T, a: A) -> Value:
    return None if isinstance(a["start"], Index) else t.slice(a["self"], a["dim"], a["start"], a["start"] + a["length"])


def _split(t: T, a: A) -> Value:
    sizes = [int(v.shape[a["dim"]]) for v in t.like]
    return t.pieces(a["self"], a["dim"], sizes)


def _unbind(t: T, a: A) -> Value:
    x = a["self"]
    shape = t.shape(x)
    dim = a["dim"] % len(shape)
    return [t.view(t.slice(x, dim, i, i + 1), shape[:dim] + shape[dim + 1 :]) for i in range(shape[dim])]


def _cat(t: T, a: A) -> Value:
    parts = [x for x in a["tensors"] if prod(t.shape(x))]
    dim = a["dim"] % len(t.like.shape)
    return parts[0] if len(parts) == 1 else t.add("cat", *parts, dim=dim)


def _stack(t: T, a: A) -> Value:
    dim = a["dim"] % len(t.like.shape)
    parts = [t.view(x, (*t.shape(x)[:dim], 1, *t.shape(x)[dim:])) for x in a["tensors"]]
    return parts[0] if len(parts) == 1 else t.add("cat", *parts, dim=dim)


def _repeat(t: T, a: A) -> Value:
    x, repeats = a["self"], a["repeats"]
    shape = (1,) * (len(repeats) - len(t.shape(x))) + t.shape(x)
    apart = t.view(x, [size for s in shape for size in (1, s)])
    return t.view(t.expand(apart, tuple(size for r, s in zip(repeats, shape, strict=True) for size in (r, s))), t.like.shape)


def _repeat_interleave(t: T, a: A) -> Value:
    x, repeats = a["self"], a["repeats"]
    if isinstance(repeats, Index):
        return None
    flat = a["dim"] is None
    x = t.view(x, (prod(t.shape(x)),)) if flat else x
    dim = 0 if flat else a["dim"] % len(t.shape(x))
    return t.view(interleave(t, x, dim, repeats), t.like.shape)


def interleave(t: T, x: Index, dim: int, repeats: int) -> Index:
    """Every entry along `dim` `repeats` times in a row."""
    shape = t.shape(x)
    apart = t.view(x, (*shape[: dim + 1], 1, *shape[dim + 1 :]))
    spread = t.expand(apart, (*shape[: dim + 1], repeats, *shape[dim + 1 :]))
    return t.view(spread, (*shape[:dim], shape[dim] * repeats, *shape[dim + 1 :]))


# -- creation -------------------------------------------------------------------------------------------------------


def _full(name: str | float) -> Rule:
    def rule(t: T, a: A) -> Value:
        value = t.number(a[name]) if isinstance(name, str) else name
        if value is None:
            return None
        dtype = dtype_name(t.like.dtype)
        exact = float(value) if dtype in FLOATS else bool(value) if dtype == "bool" else int(value)
        return t.full(exact, tuple(int(s) for s in t.like.shape), dtype)

    return rule


def _arange(t: T, a: A) -> Value:
    numbers = (a.get("start") or 0, a["end"], a.get("step") or 1)
    start, stop, step = numbers
    return t.add("arange", start=start, stop=stop, step=step)


def _eye(t: T, a: A) -> Value:
    """Where the row's number is the column's."""
    rows, columns = t.like.shape
    numbers = [t.add("arange", shape=(n,), dtype="int64", start=0, stop=n, step=1) for n in (rows, columns)]
    equal = t.add("relate", t.view(numbers[0], (rows, 1)), numbers[1], shape=t.like.shape, dtype="bool", relation="eq")
    return t.to(equal, t.like.dtype)


def _triangle(op: str) -> Rule:
    return lambda t, a: t.add(op, a["self"], diagonal=a["diagonal"])


# -- reductions -----------------------------------------------------------------------------------------------------


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


# -- layers ---------------------------------------------------------------------------------------------------------


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


def _layer_norm(t: T, a: A) -> Value:
    given = [("x", a["input"]), ("w", a["weight"]), ("bias", a["bias"])]
    given = [(name, x) for name, x in given if x is not None]
    return t.add(
        "layer_norm",
        *(x for _, x in given),
        like=a["like"] if "like" in a else None,
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


# -- losses ---------------------------------------------------------------------------------------------------------

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


TABLE: dict[str, Rule] = {
    # elementwise
    **{
        name: _unary(name)
        for name in "relu silu tanh sigmoid exp log sqrt rsqrt sin cos erf abs reciprocal logical_not".split()
    },
    "bitwise_not": _unary("logical_not"),
    "gelu": _unary("gelu", approximate="approximate"),
    "leaky_relu": _unary("leaky_relu", slope="negative_slope"),
    "elu": _elu,
    "softplus": _softplus,
    "square": lambda t, a: t.add("pow", a["self"], exponent=2),
    "neg": _unary("neg"),
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
    **{name: _compare(name) for name in "eq ne lt le gt ge logical_and logical_or bitwise_and bitwise_or".split()},
    "__and__": _compare("bitwise_and"),
    "__or__": _compare("bitwise_or"),
    "where": _where,
    "masked_fill": _masked_fill,
    "dropout": _dropout,
    "to": _cast,
    "_to_copy": _cast,
    "type_as": _cast,
    **{name: _same() for name in "clone contiguous alias lift_fresh lift_fresh_copy".split()},
    "detach": _detach,
    "detach_": _detach,
    # views
    **{
        name: _view()
        for name in "view reshape _unsafe_view view_as reshape_as flatten unflatten squeeze unsqueeze ravel".split()
    },
    "expand": _expand,
    "expand_as": _expand,
    "broadcast_to": _expand,
    "broadcast_tensors": _broadcast,
    "permute": _permute,
    "transpose": _swap("dim0", "dim1"),
    "swapaxes": _swap("axis0", "axis1"),
    "swapdims": _swap("dim0", "dim1"),
    "t": _last_two,
    "mT": _last_two,
    "numpy_T": _reverse_dims,
    "movedim": _move_dims,
    "moveaxis": _move_dims,
    "slice": _slice,
    "select": _select,
    "narrow": _narrow,
    **{name: _split for name in "split split_with_sizes chunk tensor_split".split()},
    "unbind": _unbind,
    "cat": _cat,
    "concat": _cat,
    "concatenate": _cat,
    "stack": _stack,
    "repeat": _repeat,
    "repeat_interleave": _repeat_interleave,
    # creation
    **{name: _full("fill_value") for name in "full full_like new_full".split()},
    **{name: _full(1) for name in "ones ones_like new_ones".split()},
    **{name: _full(0) for name in "zeros zeros_like new_zeros".split()},
    "scalar_tensor": _full("s"),
    "arange": _arange,
    "eye": _eye,
    "tril": _triangle("tril"),
    "triu": _triangle("triu"),
    # reductions
    "sum": _reduce("sum"),
    "mean": _reduce("mean"),
    "amax": _reduce("amax"),
    "max": _max,
    "var": lambda t, a: _variance(t, a),
    "std": _deviation,
    "softmax": _softmax("softmax"),
    "_softmax": _softmax("softmax"),
    "log_softmax": _softmax("log_softmax"),
    "_log_softmax": _softmax("log_softmax"),
    # layers
    "linear": _linear,
    "matmul": _matmul,
    "mm": _matmul,
    "bmm": _matmul,
    "mv": lambda t, a: t.add("matmul", a["self"], a["vec"]),
    "dot": lambda t, a: t.add("matmul", a["self"], a["tensor"]),
    "addmm": _add_matmul("mat1", "mat2"),
    "baddbmm": _add_matmul("batch1", "batch2"),
    "layer_norm": _layer_norm,
    "native_layer_norm": lambda t, a: [_layer_norm(t, a | {"like": t.like[0]}), None, None],
    "rms_norm": _rms_norm,
    "embedding": _embedding,
    "scaled_dot_product_attention": _attention,
    # losses
    "cross_entropy_loss": _cross_entropy,
    "nll_loss_nd": _nll,
    "nll_loss": _nll,
    "mse_loss": _mse,
    "l1_loss": _l1,
}
