"""Elementwise operators: opaque functions of one element, and the few that are linear."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..graph.pcg import Node
from .algebra import Algebra, RealFunction, Rewriting, broadcast_shape, equal_shapes
from .operator import Operator
from .sharded import (
    WHOLE,
    Arithmetic,
    Array,
    Attributes,
    IllTyped,
    Shape,
    ShardTasks,
    Signature,
    by_channel,
    elementwise,
    letters,
    operands,
    same_shape,
)

_OPAQUE = "y[i..] = f(x[i..])"
_LINEAR = "y[i..] = L(x[i..])"
_BINARY = "y[i..] = f(a[i..], b[i..])"
_SUM = "y[i..] = a[i..] + b[i..]"


def _sigmoid(a: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-a)))


def _softplus(a: Array) -> Array:
    return np.asarray(np.logaddexp(a, 0))


def _erf(a: Array) -> Array:
    return np.asarray(np.vectorize(math.erf, otypes=[np.float64])(a))


def _gelu(given: Attributes, a: Array) -> Array:
    if given.get("approximate", "none") == "tanh":
        return np.asarray(0.5 * a * (1 + np.tanh(math.sqrt(2 / math.pi) * (a + 0.044715 * a**3))))
    return np.asarray(0.5 * a * (1 + _erf(a / math.sqrt(2))))


def _elu(a: Array, alpha: float) -> Array:
    return np.where(a > 0, a, alpha * np.expm1(np.minimum(a, 0)))


_SELU_ALPHA, _SELU_SCALE = 1.6732632423543772, 1.0507009873554805


def _power(field: Arithmetic, given: Attributes, a: Array) -> Array | None:
    """A small whole power is a product; others are opaque."""
    exponent = given.get("exponent", 0)
    if exponent not in (1, 2, 3):
        return None
    result = a
    for _ in range(int(exponent) - 1):
        result = field.mul(result, a)
    return result


def _unary(
    name: str,
    emit: str,
    saved: str = "",
    real: RealFunction | None = None,
    *,
    notation: str = _OPAQUE,
    rewriting: Rewriting | None = None,
    **algebra: Any,
) -> Operator:
    """`saved`: what autograd keeps. Without `real`, the function in floats, only rules that are proved have it."""
    kept = (saved,) if saved else ()
    return Operator(
        *(name, ("x",), notation, emit), saved=kept, algebra=Algebra(real=real, **algebra), rewriting=rewriting
    )


def _prelu(node: Node, inputs: tuple[Node, ...]) -> str:
    """One slope, or one per channel."""
    return "y[n, c, d..] = f(x[n, c, d..], w[c])" if inputs[1].numel > 1 else "y[i..] = f(x[i..], w[:])"


def _prelu_shards(given: Attributes, shapes: Sequence[Shape]) -> Signature:
    x, w = operands(shapes, 2)
    if len(w) != 1 or (w[0] > 1 and (len(x) < 2 or x[1] != w[0])):
        raise IllTyped(f"prelu takes one slope, or one per channel, not {w} for {x}")
    named = letters(len(x))
    single = w[0] == 1

    def local(t: ShardTasks, a: list[Array]) -> list[Array]:
        slope = a[1].reshape(-1, *(1,) * len(x)) if single else by_channel(a[1], a[0])
        return [t.arithmetic.call(("prelu",), a[0], np.broadcast_to(slope, a[0].shape))]

    return Signature((named, (WHOLE,) if single else (named[1],)), (named,), local)


def _relation(given: Attributes, a: Array, b: Array) -> Array:
    return np.asarray(_RELATIONS[given["relation"]](a, b), np.float64)


_RELATIONS: Mapping[str, Callable[[Array, Array], Array]] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "lt": np.less,
    "le": np.less_equal,
}


UNARY = (
    "log1p", "log2", "log10", "expm1", "exp2", "tan", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh",
    "erfc", "erfinv", "lgamma", "digamma", "sinc", "logit", "floor", "ceil", "round", "trunc", "frac", "sign", "isnan",
    "isinf", "isfinite", "i0", "signbit",
)  # fmt: skip
"""Functions of `torch` of one element that are one operator, `unary`."""
BINARY = ("atan2", "hypot", "fmod", "remainder", "copysign", "xlogy", "floor_divide", "fmax", "fmin")
"""Functions of `torch` of two elements that are one operator, `binary`."""


KINDS: dict[str, tuple[str, ...]] = {"uniform": (), "normal": (), "bernoulli": ("p",), "integers": ("low", "high")}
"""What `random` draws, and the attributes that say more: from 0 up to 1; around 0 with deviation 1; 0 with probability
`p`, else 1; whole numbers from `low` up to `high`.
"""


def _named(node: Node, names: Sequence[str]) -> str:
    """A call of the function of torch that the node names."""
    return f"torch.{node['function']}({', '.join(names)})"


_LIKE_INPUT = Rewriting(equal_shapes, leading=True)
_SCALED = Rewriting(equal_shapes, {"value": None}, leading=True)
_APPROXIMATED = Rewriting(equal_shapes, {"approximate": None}, leading=True)

_ENTRIES = (
    _unary("relu", "F.relu({x})", "y", lambda _, a: np.maximum(a, 0), rewriting=_LIKE_INPUT),
    _unary("gelu", "F.gelu({x}, approximate={approximate})", "x", _gelu, rewriting=_APPROXIMATED),
    _unary("silu", "F.silu({x})", "x", lambda _, a: a * _sigmoid(a), rewriting=_LIKE_INPUT),
    _unary("tanh", "torch.tanh({x})", "y", lambda _, a: np.tanh(a), rewriting=_LIKE_INPUT),
    _unary("sigmoid", "torch.sigmoid({x})", "y", lambda _, a: _sigmoid(a), rewriting=_LIKE_INPUT),
    _unary("softplus", "F.softplus({x})", "x", lambda _, a: _softplus(a)),
    _unary(
        *("leaky_relu", "F.leaky_relu({x}, {slope})", "x"),
        lambda given, a: np.where(a > 0, a, given.get("slope", 0.01) * a),
    ),
    _unary("elu", "F.elu({x}, {alpha})", "x", lambda given, a: _elu(a, given.get("alpha", 1.0))),
    _unary("selu", "F.selu({x})", "x", lambda _, a: _SELU_SCALE * _elu(a, _SELU_ALPHA)),
    _unary("mish", "F.mish({x})", "x", lambda _, a: a * np.tanh(_softplus(a))),
    _unary(
        *("hardtanh", "F.hardtanh({x}, {min_val}, {max_val})", "x"),
        lambda given, a: np.clip(a, given.get("min_val", -1.0), given.get("max_val", 1.0)),
    ),
    _unary("relu6", "F.relu6({x})", "x", lambda _, a: np.clip(a, 0, 6)),
    _unary("hardswish", "F.hardswish({x})", "x", lambda _, a: a * np.clip(a + 3, 0, 6) / 6),
    _unary("hardsigmoid", "F.hardsigmoid({x})", "x", lambda _, a: np.clip(a + 3, 0, 6) / 6),
    _unary("logsigmoid", "F.logsigmoid({x})", "x", lambda _, a: -_softplus(-a)),
    _unary("exp", "torch.exp({x})", "y", lambda _, a: np.exp(a)),
    _unary("log", "torch.log({x})", "x", lambda _, a: np.log(a)),
    _unary("sqrt", "torch.sqrt({x})", "y", lambda _, a: np.sqrt(a)),
    _unary("rsqrt", "torch.rsqrt({x})", "y", lambda _, a: 1 / np.sqrt(a)),
    _unary("sin", "torch.sin({x})", "x", lambda _, a: np.sin(a)),
    _unary("cos", "torch.cos({x})", "x", lambda _, a: np.cos(a)),
    _unary("erf", "torch.erf({x})", "x", lambda _, a: _erf(a)),
    _unary("abs", "torch.abs({x})", "x", lambda _, a: np.abs(a)),
    _unary(
        *("reciprocal", "torch.reciprocal({x})", "y", lambda _, a: 1 / a),
        exact=lambda field, given, a: field.inverse(a),
    ),
    _unary("pow", "torch.pow({x}, {exponent})", "x", lambda given, a: a ** given["exponent"], exact=_power),
    _unary(
        *("clamp", "torch.clamp({x}, {min}, {max})", "x"),
        lambda given, a: np.clip(a, given.get("min"), given.get("max")),
    ),
    _unary(
        *("shift", "{x} + {value}", "", lambda given, a: a + given["value"]),
        exact=lambda field, given, a: field.add(a, field.constant(given["value"])),
    ),
    _unary("logical_not", "~{x}", "", lambda _, a: (a == 0).astype(np.float64)),
    _unary("compare", "torch.{relation}({x}, {value})", "", lambda given, a: _relation(given, a, given["value"])),
    _unary("scale", "{x} * {value}", notation=_LINEAR, rewriting=_SCALED, multiple="value"),
    _unary("neg", "-{x}", notation=_LINEAR, rewriting=_LIKE_INPUT, multiple=-1),
    _unary("to", "{x}.to({dtype})", notation=_LINEAR, evaluation=same_shape(lambda t, given, a: a)),
    Operator(
        "prelu",
        ("x", "w"),
        _prelu,
        "F.prelu({x}, {w})",
        saved=("x", "w"),
        algebra=Algebra(_prelu_shards, real=lambda _, a, w: np.where(a > 0, a, w * a)),
    ),
    *(
        Operator(
            *(name, ("a", "b"), notation, f"{{a}} {sign} {{b}}"),
            saved=("a", "b") if sign in "*/" else (),
            saved_for={"*": (("a", "b"), ("b", "a")), "/": (("a", "b"),)}.get(sign, ()),
            algebra=Algebra(elementwise(evaluate), function="reciprocal" if sign == "/" else ""),
            rewriting=None if sign == "/" else Rewriting(broadcast_shape, leading=True),
        )
        for name, notation, sign, evaluate in (
            ("add", _SUM, "+", lambda t, _, a, b: t.arithmetic.add(a, b)),
            ("sub", _SUM, "-", lambda t, _, a, b: t.arithmetic.sub(a, b)),
            ("mul", "y[i..] = a[i..] * b[i..]", "*", lambda t, _, a, b: t.arithmetic.mul(a, b)),
            (
                *("div", "y[i..] = a[i..] * f(b[i..])", "/"),
                lambda t, _, a, b: t.arithmetic.mul(a, t.arithmetic.inverse(b)),
            ),
        )
    ),
    *(
        # In a finite field, the order of representatives: a maximum is still associative.
        Operator(
            *(name, ("a", "b"), _BINARY, f"torch.{name}({{a}}, {{b}})"),
            saved=("a", "b"),
            algebra=Algebra(real=real, exact=lambda field, given, a, b, real=real: real(given, a, b)),
        )
        for name, real in (
            ("maximum", lambda _, a, b: np.maximum(a, b)),
            ("minimum", lambda _, a, b: np.minimum(a, b)),
        )
    ),
    Operator(
        *("power", ("a", "b"), _BINARY, "torch.pow({a}, {b})"),
        saved=("a", "b", "y"),
        algebra=Algebra(real=lambda _, a, b: a**b),
    ),
    Operator("unary", ("x",), _OPAQUE, _named, saved=("x",)),
    Operator("binary", ("a", "b"), _BINARY, _named, saved=("a", "b")),
    Operator("relate", ("a", "b"), _BINARY, "torch.{relation}({a}, {b})", algebra=Algebra(real=_relation)),
    Operator(
        *("where", ("c", "a", "b"), "y[i..] = f(c[i..], a[i..], b[i..])", "torch.where({c}, {a}, {b})"),
        saved=("c",),
        algebra=Algebra(real=lambda _, c, a, b: np.asarray(np.where(c != 0, a, b))),
    ),
    # Ranks with the same part have the same mask, so it is linear. Torch's own, in one kernel, reads and writes an
    # element and writes a byte of mask, 9 bytes in 32 bits, and as many backward; on a CPU the mask is a float, which
    # three kernels draw, scale and apply: 36 bytes in all, where one pass forward and two backward count as 24.
    # From counters, the mask is a function of the global element index. Drawing it, in 32-bit lanes, is most of the
    # work. Bytes per element: its number 8 (written), as int32 12, twice a mix of 100 and a key of 8, its upper half
    # 40, comparison 5, copy 2: 283. Applying it takes 9, and 9 backward, in 16 bits: 301 in all, where one pass
    # forward and two backward count as 3 times 4 bytes. In 32 bits half of that would do.
    Operator(
        "dropout",
        ("x",),
        _LINEAR,
        "dropout({x}, {p})",
        saved=("mask",),
        passes=25,
        native_passes=1.5,
        random="p",
        algebra=Algebra(unprovable="draws random numbers"),
    ),
    # Numbers for the elements of `x`, of which only the dtype matters: numbers that are compared are of float64, not
    # rounded to the plan's dtype. Drawing them as above, and about 40 bytes to make them floats; no backward.
    Operator(
        "random",
        ("x",),
        _OPAQUE,
        "{kind}({x})",
        passes=40,
        random="kind",
        algebra=Algebra(unprovable="draws random numbers"),
    ),
)

OPERATORS = tuple(replace(entry, fuses=not entry.random) for entry in _ENTRIES)
