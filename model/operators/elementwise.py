"""Elementwise operators: opaque functions of one element, and the few that are linear."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..graph.pcg import Node
from .algebra import Algebra, RealFunction, Rewriting, broadcast_shape, equal_shapes
from .operator import Operator, register
from .sharded import Arithmetic, Array, Attributes, elementwise, same_shape

_OPAQUE = "y[i..] = f(x[i..])"
_LINEAR = "y[i..] = L(x[i..])"
_BINARY = "y[i..] = f(a[i..], b[i..])"

_LIKE_INPUT = Rewriting(equal_shapes, leading=True)
_REWRITING: Mapping[str, Rewriting] = {
    **dict.fromkeys(("relu", "silu", "tanh", "sigmoid", "neg"), _LIKE_INPUT),
    "gelu": Rewriting(equal_shapes, {"approximate": None}, leading=True),
    "scale": Rewriting(equal_shapes, {"value": None}, leading=True),
}


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


# name, notation, emission, what autograd keeps, the function in floats (None: only rules that are proved have it)
_UNARY: tuple[tuple[str, str, str, tuple[str, ...], RealFunction | None], ...] = (
    ("relu", _OPAQUE, "F.relu({x})", ("y",), lambda _, a: np.maximum(a, 0)),
    ("gelu", _OPAQUE, "F.gelu({x}, approximate={approximate})", ("x",), _gelu),
    ("silu", _OPAQUE, "F.silu({x})", ("x",), lambda _, a: a * _sigmoid(a)),
    ("tanh", _OPAQUE, "torch.tanh({x})", ("y",), lambda _, a: np.tanh(a)),
    ("sigmoid", _OPAQUE, "torch.sigmoid({x})", ("y",), lambda _, a: _sigmoid(a)),
    ("softplus", _OPAQUE, "F.softplus({x})", ("x",), lambda _, a: _softplus(a)),
    (
        *("leaky_relu", _OPAQUE, "F.leaky_relu({x}, {slope})", ("x",)),
        lambda given, a: np.where(a > 0, a, given.get("slope", 0.01) * a),
    ),
    ("elu", _OPAQUE, "F.elu({x}, {alpha})", ("x",), lambda given, a: _elu(a, given.get("alpha", 1.0))),
    ("selu", _OPAQUE, "F.selu({x})", ("x",), lambda _, a: _SELU_SCALE * _elu(a, _SELU_ALPHA)),
    ("mish", _OPAQUE, "F.mish({x})", ("x",), lambda _, a: a * np.tanh(_softplus(a))),
    (
        *("hardtanh", _OPAQUE, "F.hardtanh({x}, {min_val}, {max_val})", ("x",)),
        lambda given, a: np.clip(a, given.get("min_val", -1.0), given.get("max_val", 1.0)),
    ),
    ("relu6", _OPAQUE, "F.relu6({x})", ("x",), lambda _, a: np.clip(a, 0, 6)),
    ("hardswish", _OPAQUE, "F.hardswish({x})", ("x",), lambda _, a: a * np.clip(a + 3, 0, 6) / 6),
    ("hardsigmoid", _OPAQUE, "F.hardsigmoid({x})", ("x",), lambda _, a: np.clip(a + 3, 0, 6) / 6),
    ("logsigmoid", _OPAQUE, "F.logsigmoid({x})", ("x",), lambda _, a: -_softplus(-a)),
    ("exp", _OPAQUE, "torch.exp({x})", ("y",), lambda _, a: np.exp(a)),
    ("log", _OPAQUE, "torch.log({x})", ("x",), lambda _, a: np.log(a)),
    ("sqrt", _OPAQUE, "torch.sqrt({x})", ("y",), lambda _, a: np.sqrt(a)),
    ("rsqrt", _OPAQUE, "torch.rsqrt({x})", ("y",), lambda _, a: 1 / np.sqrt(a)),
    ("sin", _OPAQUE, "torch.sin({x})", ("x",), lambda _, a: np.sin(a)),
    ("cos", _OPAQUE, "torch.cos({x})", ("x",), lambda _, a: np.cos(a)),
    ("erf", _OPAQUE, "torch.erf({x})", ("x",), lambda _, a: _erf(a)),
    ("abs", _OPAQUE, "torch.abs({x})", ("x",), lambda _, a: np.abs(a)),
    ("reciprocal", _OPAQUE, "torch.reciprocal({x})", ("y",), lambda _, a: 1 / a),
    ("pow", _OPAQUE, "torch.pow({x}, {exponent})", ("x",), lambda given, a: a ** given["exponent"]),
    (
        *("clamp", _OPAQUE, "torch.clamp({x}, {min}, {max})", ("x",)),
        lambda given, a: np.clip(a, given.get("min"), given.get("max")),
    ),
    ("shift", _OPAQUE, "{x} + {value}", (), lambda given, a: a + given["value"]),
    ("logical_not", _OPAQUE, "~{x}", (), None),
    ("compare", _OPAQUE, "torch.{relation}({x}, {value})", (), None),
    ("scale", _LINEAR, "{x} * {value}", (), None),
    ("neg", _LINEAR, "-{x}", (), None),
    ("to", _LINEAR, "{x}.to({dtype})", (), None),
)
_MULTIPLE: Mapping[str, int | str] = {"scale": "value", "neg": -1}
# In a finite field these are more than names.
_EXACT: Mapping[str, Any] = {
    "reciprocal": lambda field, given, a: field.inverse(a),
    "shift": lambda field, given, a: field.add(a, field.constant(given["value"])),
    "pow": _power,
}
for _name, _notation, _emit, _saved, _real in _UNARY:
    _algebra = Algebra(
        evaluation=same_shape(lambda t, given, a: a) if _name == "to" else None,
        real=_real,
        exact=_EXACT.get(_name),
        multiple=_MULTIPLE.get(_name),
    )
    register(
        Operator(*(_name, ("x",), _notation, _emit), saved=_saved, algebra=_algebra, rewriting=_REWRITING.get(_name))
    )


def _prelu(node: Node, inputs: tuple[Node, ...]) -> str:
    """One slope, or one per channel."""
    return "y[n, c, d..] = f(x[n, c, d..], w[c])" if inputs[1].numel > 1 else "y[i..] = f(x[i..], w[:])"


register(Operator("prelu", ("x", "w"), _prelu, "F.prelu({x}, {w})", saved=("x", "w")))

for _name, _notation, _sign, _evaluate in (
    ("add", "y[i..] = a[i..] + b[i..]", "+", lambda t, given, a, b: t.arithmetic.add(a, b)),
    ("sub", "y[i..] = a[i..] + b[i..]", "-", lambda t, given, a, b: t.arithmetic.sub(a, b)),
    ("mul", "y[i..] = a[i..] * b[i..]", "*", lambda t, given, a, b: t.arithmetic.mul(a, b)),
    ("div", "y[i..] = a[i..] * f(b[i..])", "/", lambda t, given, a, b: t.arithmetic.mul(a, t.arithmetic.inverse(b))),
):
    register(
        Operator(
            *(_name, ("a", "b"), _notation, f"{{a}} {_sign} {{b}}"),
            saved=("a", "b") if _sign in "*/" else (),
            saved_for={"*": (("a", "b"), ("b", "a")), "/": (("a", "b"),)}.get(_sign, ()),
            algebra=Algebra(elementwise(_evaluate), function="reciprocal" if _sign == "/" else ""),
            rewriting=None if _sign == "/" else Rewriting(broadcast_shape, leading=True),
        )
    )
for _name, _emit, _saved, _real in (
    ("maximum", "torch.maximum({a}, {b})", ("a", "b"), lambda _, a, b: np.maximum(a, b)),
    ("minimum", "torch.minimum({a}, {b})", ("a", "b"), lambda _, a, b: np.minimum(a, b)),
    ("power", "torch.pow({a}, {b})", ("a", "b", "y"), lambda _, a, b: a**b),
):
    # In a finite field, the order of representatives: a maximum is still associative.
    _exact = None if _name == "power" else lambda field, given, a, b, real=_real: real(given, a, b)
    register(Operator(_name, ("a", "b"), _BINARY, _emit, saved=_saved, algebra=Algebra(real=_real, exact=_exact)))
register(Operator("relate", ("a", "b"), _BINARY, "torch.{relation}({a}, {b})"))
register(
    Operator("where", ("c", "a", "b"), "y[i..] = f(c[i..], a[i..], b[i..])", "torch.where({c}, {a}, {b})", saved=("c",))
)
# The mask is a function of the global element index (drawn from counters by codegen): the same on all ranks, so linear.
# Drawing it, in 32-bit lanes, is most of the work. Bytes per element: its number 8 (written), as int32 12, twice a mix
# of 100 and a key of 8, its upper half 40, comparison 5, copy 2: 283. Applying it takes 9, and 9 backward, in 16 bits:
# 301 in all, where one pass forward and two backward count as 3 times 4 bytes. In 32 bits half of that would do.
register(
    Operator(
        "dropout",
        ("x",),
        _LINEAR,
        "dropout({x}, {p})",
        saved=("mask",),
        passes=25,
        algebra=Algebra(unprovable="draws random numbers"),
    )
)
