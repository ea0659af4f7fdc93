"""What the attributes of every operator are: checked where a graph comes from a file, since they end up in programs."""

import re
from collections.abc import Callable
from keyword import iskeyword
from math import isfinite
from typing import Any, TypeAlias

from ..operators.elementwise import BINARY, KINDS, UNARY
from ..operators.function import ITEM
from ..operators.operator import operator
from ..operators.recurrent import REVERSE, WEIGHTS
from ..operators.unknown import ARITHMETIC, MEMORY_FORMATS, is_call_notation, is_target
from .dtypes import ITEMSIZE
from .pcg import SOURCES, TRANSFERS, Node, is_name

Check: TypeAlias = Callable[[Any], bool]


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63


def _place(value: Any) -> bool:
    return _whole(value) and value >= 0


def _few(value: Any) -> bool:
    """A number of dims."""
    return _place(value) and value <= 64


def _number(value: Any) -> bool:
    return _whole(value) or isinstance(value, float)


def _amount(value: Any) -> bool:
    return _number(value) and isfinite(value) and value >= 0


def _flag(value: Any) -> bool:
    return isinstance(value, bool)


def _share(value: Any) -> bool:
    return _number(value) and 0 <= value < 1


def _word(*words: str) -> Check:
    return lambda value: value in words


def _tuple(check: Check) -> Check:
    return lambda value: isinstance(value, tuple) and all(map(check, value))


def _count(value: Any) -> bool:
    return _place(value) and value > 0


def _or_none(check: Check) -> Check:
    return lambda value: value is None or check(value)


def _constant(value: Any) -> bool:
    return _number(value) or _flag(value)


def _equation(value: Any) -> bool:
    return isinstance(value, str) and bool(re.fullmatch(r"[A-Za-z]*(,[A-Za-z]*)?->[A-Za-z]*", value))


def _argument(value: Any) -> bool:
    """As `translate` encodes it: numbers and words, or tagged tuples of inputs, dtypes and lists."""
    if isinstance(value, tuple) and value[:1] == ("@",):
        return len(value) == 2 and _place(value[1])
    if isinstance(value, tuple) and value[:1] == ("dtype",):
        return len(value) == 2 and value[1] in ITEMSIZE
    if isinstance(value, tuple) and value[:1] == ("memory_format",):
        return len(value) == 2 and value[1] in MEMORY_FORMATS
    if isinstance(value, tuple) and value[:1] == ("size",):
        return len(value) == 3 and _argument(value[1]) and _place(value[2])
    if isinstance(value, tuple):
        counts = {"complex": 1, "dtype_of": 1, "device_of": 1} | dict.fromkeys(ARITHMETIC, 2)
        return (value[:1] == ("list",) or counts.get(value[0]) == len(value) - 1) and all(map(_argument, value[1:]))
    return value is None or _constant(value) or (isinstance(value, str) and value.isidentifier())


def _arguments(value: Any) -> bool:
    """(keyword or nothing, argument) pairs, those without a keyword first."""
    pairs = _tuple(lambda pair: isinstance(pair, tuple) and len(pair) == 2 and _key(pair[0]) and _argument(pair[1]))
    return pairs(value) and [bool(key) for key, _ in value] == sorted(bool(key) for key, _ in value)


def _statements(value: Any) -> bool:
    """(operator, arguments) pairs."""
    pairs = _tuple(lambda pair: isinstance(pair, tuple) and len(pair) == 2)
    return pairs(value) and all((name == ITEM or is_target(name)) and _arguments(given) for name, given in value)


def _key(value: Any) -> bool:
    return value == "" or (isinstance(value, str) and value.isidentifier())


def _module(value: Any) -> bool:
    """The name of a module, which programs import."""
    return isinstance(value, str) and bool(re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", value, re.ASCII))


def _class_name(value: Any) -> bool:
    return isinstance(value, str) and value.isidentifier() and value.isascii() and not iskeyword(value)


def _sizes(value: Any) -> bool:
    """One entry for every spatial dim."""
    return _tuple(_place)(value) and 1 <= len(value) <= 3


def _padding(value: Any) -> bool:
    return value == "same" or _sizes(value)


def _highs(value: Any) -> bool:
    """One for all, or one for every entry of a dim."""
    return _place(value) or (bool(value) and _tuple(_place)(value))


def _joined(value: Any) -> bool:
    """(name, rows) pairs."""
    pairs = _tuple(lambda pair: isinstance(pair, tuple) and len(pair) == 2 and is_name(pair[0]) and _place(pair[1]))
    return bool(value) and pairs(value)


def _factors(value: Any) -> bool:
    """The factors of every dim, 0 for the samples."""
    return _tuple(_tuple(_place))(value)


_CONVOLUTION: dict[str, Check] = {"stride": _sizes, "dilation": _sizes, "groups": _place}
_WINDOW: dict[str, Check] = {"kernel_size": _sizes, "stride": _sizes, "padding": _sizes, "ceil_mode": _flag}
_RELATIONS = ("eq", "ne", "lt", "le", "gt", "ge", "bitwise_and", "bitwise_or")
_RELATION = _word(*_RELATIONS)
_RELATE = _word(*_RELATIONS, "logical_and", "logical_or", "logical_xor", "bitwise_xor")
_REDUCTION: dict[str, Check] = {"reduction": _word("none", "mean", "sum")}
_WEIGHTED: dict[str, Check] = {"operands": _tuple(_word("x", "t", "weight", "pos_weight"))}
_CLASSES: dict[str, Check] = {**_REDUCTION, "ignore_index": _whole}
_OPERANDS = _tuple(_word("x", "w", "bias"))
_BATCH_NORM: dict[str, Check] = {
    "operands": _tuple(_word("x", "s", "mean", "var", "w", "bias")),
    "momentum": _number,
    "eps": _number,
    "site": _place,
}
_NORM: dict[str, Check] = {"normalized": _few, "eps": _number}
_REDUCED: dict[str, Check] = {"dims": _tuple(_place), "keepdim": _flag}
_RECURRENT: dict[str, Check] = {
    "batch_first": _flag,
    "operands": _tuple(_word("x", *WEIGHTS, *REVERSE, "h", "c")),
}
_ONE: dict[str, Check] = {"dim": _place, "keepdim": _flag}

REQUIRED: dict[str, dict[str, Check]] = {
    "gelu": {"approximate": _word("none", "tanh")},
    "leaky_relu": {"slope": _number},
    "elu": {"alpha": _number},
    "hardtanh": {"min_val": _number, "max_val": _number},
    "pow": {"exponent": _number},
    "unary": {"function": _word(*UNARY)},
    "binary": {"function": _word(*BINARY)},
    "clamp": {"min": _or_none(_number), "max": _or_none(_number)},
    "shift": {"value": _number},
    "scale": {"value": _number},
    "compare": {"relation": _RELATION, "value": _constant},
    "relate": {"relation": _RELATE},
    "dropout": {"p": _share, "site": _place},
    "random": {"kind": _word(*KINDS), "site": _place},
    "einsum": {"equation": _equation},
    "attention": {"causal": _flag, "scale": _or_none(_number)},
    "full": {"value": _constant},
    "arange": {"start": _number, "stop": _number, "step": _number},
    "constant": {"values": _tuple(_constant)},
    "tril": {"diagonal": _whole},
    "triu": {"diagonal": _whole},
    "conv": _CONVOLUTION | {"padding": _padding},
    "conv_transpose": _CONVOLUTION | {"padding": _sizes, "output_padding": _sizes},
    "max_pool": _WINDOW | {"dilation": _sizes},
    "avg_pool": _WINDOW | {"count_include_pad": _flag},
    "adaptive_max_pool": {"output_size": _sizes},
    "adaptive_avg_pool": {"output_size": _sizes},
    "interpolate": {
        "size": _or_none(_sizes),
        "scale_factor": _or_none(_tuple(_number)),
        "mode": _word("nearest", "nearest-exact", "linear", "bilinear", "bicubic", "trilinear"),
        "align_corners": _or_none(_flag),
    },
    "layer_norm": _NORM,
    "group_norm": {"groups": _place, "eps": _number},
    "rms_norm": _NORM | {"eps": _or_none(_number)},
    "moments": {"statistics": _word("batch", "micro-batch"), "site": _place},
    "batch_norm": _BATCH_NORM,
    "local_batch_norm": _BATCH_NORM,
    "softmax": {"dim": _place},
    "log_softmax": {"dim": _place},
    "cumsum": {"dim": _place},
    "cumprod": {"dim": _place},
    "logcumsumexp": {"dim": _place},
    "sum": _REDUCED,
    "mean": _REDUCED | {"count": _place},
    "amax": _REDUCED,
    "amin": _REDUCED,
    "logsumexp": _REDUCED,
    "norm": _REDUCED | {"ord": _number},
    "flip": {"dims": _tuple(_place)},
    "roll": {"dims": _tuple(_place), "shifts": _tuple(_whole)},
    "pad": {"pad": _tuple(_whole), "mode": _word("constant", "reflect", "replicate", "circular"), "value": _number},
    "gather": {"dim": _place},
    "argsort": {"dim": _place, "descending": _flag, "stable": _flag},
    "cummax": {"dim": _place},
    "cummin": {"dim": _place},
    **dict.fromkeys(("argmax", "argmin", "median", "mode"), _ONE),
    "kthvalue": _ONE | {"k": _place},
    "ctc_loss": {"blank": _place, "zero_infinity": _flag},
    "lstm": _RECURRENT,
    "gru": _RECURRENT,
    "rnn": _RECURRENT,
    "topk": {"k": _place, "dim": _place, "largest": _flag},
    "index": {"dim": _place},
    "scatter_add": {"dim": _place},
    "scatter": {"dim": _place},
    "scatter_reduce": {"dim": _place, "reduce": _word("amax", "amin", "prod", "sum"), "include_self": _flag},
    "permute": {"dims": _tuple(_place)},
    "part": {"dim": _place, "of": _place, "number": _place},
    "slice": {"dim": _place, "start": _place, "stop": _place, "step": _place},
    "cat": {"dim": _place},
    "projection": {"site": _place},
    **{name: {"peer": is_name} for name in TRANSFERS},
    "function": {
        "title": _class_name,
        "body": _statements,
        "results": _tuple(_place),
        "gradients": _tuple(_or_none(_place)),
        "output": _place,
        "linear": _flag,
    },
    "opaque": {"target": is_target, "arguments": _arguments, "output": _or_none(_place)},
}
OPTIONAL: dict[str, dict[str, Check]] = {
    "embedding": {"sparse": _flag},
    "embedding_bag": {"sparse": _flag},
    "input": {"batch_dim": _or_none(_place), "high": _highs, "high_dim": _place},
    "buffer": {"persistent": _flag},
    "parameter": {"tables": _joined, "joined": _joined, "stages": _place, "ends": _flag},
    "avg_pool": {"divisor_override": _place},
    "moments": {"parts": _count},
    "layer_norm": {"operands": _OPERANDS},
    "rms_norm": {"operands": _OPERANDS},
    "cross_entropy": _CLASSES | {"label_smoothing": _number},
    "nll_loss": _CLASSES,
    "mse_loss": _REDUCTION,
    "l1_loss": _REDUCTION,
    "smooth_l1_loss": _REDUCTION | {"beta": _number},
    "huber_loss": _REDUCTION | {"delta": _number},
    "kl_div": {"reduction": _word("none", "mean", "sum", "batchmean"), "log_target": _flag},
    "binary_cross_entropy": _REDUCTION | _WEIGHTED,
    "binary_cross_entropy_with_logits": _REDUCTION | _WEIGHTED,
    "attention": {"grouped": _flag, "p": _share, "site": _place, "native": _flag},
    "lstm": {"memory": _flag},
    "rnn": {"relu": _flag},
    "scatter": {"value": _constant},
    "opaque": {"notation": is_call_notation, "intensity": _amount, "library": _module, "complex": _flag},
    "dropout": {"native": _flag},
    "random": {"p": _share, "low": _whole, "high": _whole},
    "searchsorted": {"right": _flag},
    "function": {"notation": is_call_notation},
}

_ANY: dict[str, Check] = {"atoms": _factors}
"""Of any node: see `stages`."""


def check_attributes(node: Node) -> None:
    """Raise ValueError unless a node has the attributes of its operator, each of its kind, and no others."""
    required, optional = REQUIRED.get(node.op, {}), OPTIONAL.get(node.op, {})
    if node.op not in SOURCES:
        required = required | dict.fromkeys(operator(node.op).attributes, _constant)
    found = dict(node.attributes)
    for name in required:
        if name not in found:
            raise ValueError(f"attribute {name!r} is missing")
    for name, value in found.items():
        check = required.get(name) or optional.get(name) or _ANY.get(name)
        if check is None:
            raise ValueError(f"{node.op} has no attribute {name!r}")
        if not check(value):
            raise ValueError(f"attribute {name} cannot be {value!r:.60}")
    if node.op == "attention" and (found.get("native") or found.get("p")) and not {"p", "site"} <= found.keys():
        raise ValueError("attention with dropout needs the attributes p and site")
    high: Any = found.get("high")
    dim: Any = found.get("high_dim", len(node.shape))
    if isinstance(high, tuple) and (node.shape[dim : dim + 1] != (len(high),) or dim == found.get("batch_dim")):
        raise ValueError(f"attribute high is not one number for each entry of a dim of {node.shape}")
