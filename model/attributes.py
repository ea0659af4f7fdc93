"""What the attributes of every operator are: checked where a graph comes from a file, since they end up in programs."""

import re
from collections.abc import Callable
from typing import Any, TypeAlias

from .cost import ITEMSIZE
from .pcg import Node

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


def _flag(value: Any) -> bool:
    return isinstance(value, bool)


def _share(value: Any) -> bool:
    return _number(value) and 0 <= value < 1


def _word(*words: str) -> Check:
    return lambda value: value in words


def _tuple(check: Check) -> Check:
    return lambda value: isinstance(value, tuple) and all(map(check, value))


def _or_none(check: Check) -> Check:
    return lambda value: value is None or check(value)


def _constant(value: Any) -> bool:
    return _number(value) or _flag(value)


def _equation(value: Any) -> bool:
    return isinstance(value, str) and bool(re.fullmatch(r"[A-Za-z]*(,[A-Za-z]*)?->[A-Za-z]*", value))


def _target(value: Any) -> bool:
    return isinstance(value, str) and bool(re.fullmatch(r"[A-Za-z_]\w*(\.\w+)+", value, re.ASCII))


def _argument(value: Any) -> bool:
    """As `translate` encodes it: numbers and words, or tagged tuples of inputs, dtypes and lists."""
    if isinstance(value, tuple) and value[:1] == ("@",):
        return len(value) == 2 and _place(value[1])
    if isinstance(value, tuple) and value[:1] == ("dtype",):
        return len(value) == 2 and value[1] in ITEMSIZE
    if isinstance(value, tuple):
        return value[:1] == ("list",) and all(map(_argument, value[1:]))
    return value is None or _constant(value) or (isinstance(value, str) and value.isidentifier())


def _arguments(value: Any) -> bool:
    """(keyword or nothing, argument) pairs, those without a keyword first."""
    pairs = _tuple(lambda pair: isinstance(pair, tuple) and len(pair) == 2 and _key(pair[0]) and _argument(pair[1]))
    return pairs(value) and [bool(key) for key, _ in value] == sorted(bool(key) for key, _ in value)


def _key(value: Any) -> bool:
    return value == "" or (isinstance(value, str) and value.isidentifier())


_RELATION = _word("eq", "ne", "lt", "le", "gt", "ge")
_REDUCTION = _word("mean", "sum")
_OPERANDS = _tuple(_word("x", "w", "bias"))
_NORM: dict[str, Check] = {"normalized": _few, "eps": _number}
_REDUCED: dict[str, Check] = {"dims": _tuple(_place), "keepdim": _flag}

REQUIRED: dict[str, dict[str, Check]] = {
    "gelu": {"approximate": _word("none", "tanh")},
    "leaky_relu": {"slope": _number},
    "elu": {"alpha": _number},
    "pow": {"exponent": _number},
    "clamp": {"min": _or_none(_number), "max": _or_none(_number)},
    "shift": {"value": _number},
    "scale": {"value": _number},
    "compare": {"relation": _RELATION, "value": _constant},
    "relate": {"relation": _RELATION},
    "dropout": {"p": _share, "site": _place},
    "einsum": {"equation": _equation},
    "attention": {"causal": _flag, "scale": _or_none(_number)},
    "full": {"value": _constant},
    "arange": {"start": _number, "stop": _number, "step": _number},
    "constant": {"values": _tuple(_constant)},
    "tril": {"diagonal": _whole},
    "triu": {"diagonal": _whole},
    "layer_norm": _NORM,
    "rms_norm": _NORM,
    "softmax": {"dim": _place},
    "log_softmax": {"dim": _place},
    "cumsum": {"dim": _place},
    "sum": _REDUCED,
    "mean": _REDUCED | {"count": _place},
    "amax": _REDUCED,
    "permute": {"dims": _tuple(_place)},
    "slice": {"dim": _place, "start": _place, "stop": _place, "step": _place},
    "cat": {"dim": _place},
    "projection": {"site": _place},
    "opaque": {"target": _target, "arguments": _arguments, "output": _or_none(_place)},
}
OPTIONAL: dict[str, dict[str, Check]] = {
    "input": {"batch_dim": _or_none(_place), "high": _place},
    "layer_norm": {"operands": _OPERANDS},
    "rms_norm": {"operands": _OPERANDS},
    "cross_entropy": {"reduction": _REDUCTION, "ignore_index": _whole},
    "mse_loss": {"reduction": _REDUCTION},
}


def check_attributes(node: Node) -> None:
    """Raise ValueError unless a node has the attributes of its operator, each of its kind, and no others."""
    required, optional = REQUIRED.get(node.op, {}), OPTIONAL.get(node.op, {})
    found = dict(node.attributes)
    for name in required:
        if name not in found:
            raise ValueError(f"attribute {name!r} is missing")
    for name, value in found.items():
        check = required.get(name) or optional.get(name)
        if check is None:
            raise ValueError(f"{node.op} has no attribute {name!r}")
        if not check(value):
            raise ValueError(f"attribute {name} cannot be {value!r:.60}")
