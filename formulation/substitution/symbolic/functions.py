"""What proofs know of functions of numbers, beyond their names. Each line is an axiom with its side condition.

Functions are total here: what a function is where it is not defined (log of 0, 1 / 0) is left open as far as the axioms
allow, so no rule is proved by such a value. `>` marks side conditions; `content.positive` decides them.

    exp         exp(a + b) = exp(a) exp(b), exp(0) = 1, exp(log a) = a > a above 0
    1 /         1 / (a b) = (1 / a) (1 / b), 1 / (1 / a) = a, 1 / exp(a) = exp(-a), a (1 / a) = 1 > a above 0 (`decide`)
    log         log(a b) = log(a) + log(b) > a above 0; log(exp a) = a
    sqrt        sqrt(a b) = sqrt(a) sqrt(b) > a above 0; sqrt(a a) = |a|; rsqrt(a) = 1 / sqrt(a)
    sigmoid     1 / (1 + exp(-a)); sigmoid(-a) = 1 - sigmoid(a)
    softplus    log(1 + exp(a)); softplus(-a) = softplus(a) - a
    erf, sin    odd; cos is even
    maximum     see `maxima`; relu, abs, clamp and their like are maxima of numbers
    f that never decreases: max of f over a row or window = f(max) (`grows`)
    pow         a product > the exponent is a whole number; a root for halves
    where       a + (b - a) [c = 0]

A function of what is chosen by a condition, or read from a table by an id, is chosen or read after the function:
f(where(c, a, b)) = where(c, f(a), f(b)), f(w[id]) = (f of w)[id]. `solvers.proof` checks that ids are row numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction
from math import isqrt
from typing import Any, TypeAlias

from .by_case import by_case
from .content import (
    INVERSE,
    LOG,
    ROOT,
    SIGMOID,
    SOFTPLUS,
    components,
    content,
    is_number,
    leading,
    positive,
    power,
    sigmoid,
    softplus,
)
from .maxima import largest
from .terms import (
    EXP,
    IS_POSITIVE,
    Count,
    Fn,
    Poly,
    conditional,
    constant,
    factor,
    is_zero,
    opaque,
)
from .terms import SymbolicTerm as Term

Function: TypeAlias = Callable[..., Poly]
"""(attributes, *values) -> the value."""

MAX_POWER = 8  # the largest exponent that is written out as a product


def exp(value: Poly) -> Poly:
    """exp(sum) as a product; of logarithms, as what they are logarithms of."""
    left, product = list[tuple[Term, Fraction]](), constant(1)
    for term, number in value.terms:
        single = term.factors[0] if len(term.factors) == 1 and not term.variables else None
        base = None
        if isinstance(single, Fn) and single.name in (LOG, SOFTPLUS):
            inner = single.arguments[0].value
            base = inner if single.name == LOG else constant(1) + exp(inner)
        if base is not None and positive(base) and number.denominator == 1 and abs(number) <= MAX_POWER:
            product = product * whole_power(base, int(number))
        else:
            left.append((term, number))
    return product * power(Poly(tuple(left)))


def whole_power(value: Poly, exponent: int) -> Poly:
    base = value if exponent >= 0 else inverse(value)
    total = constant(1)
    for _ in range(abs(exponent)):
        total = total * base
    return total


def inverse(value: Poly) -> Poly:
    """1 / value: factor by factor, and of what is left."""
    if not value.terms:
        return opaque(INVERSE, value)
    parts = content(value)
    total = constant(1 / parts.number) * power(parts.power.times(-1))
    for f in parts.factors:
        if isinstance(f, Count):
            total = total * factor(Count(f.atom, -f.power))
        elif isinstance(f, Fn) and f.name == INVERSE:
            total = total * f.arguments[0].value
        elif conditional(f):
            total = total * factor(f)
        elif isinstance(f, Fn) and f.name == SIGMOID:
            total = total * (constant(1) + exp(f.arguments[0].value.times(-1)))
        else:
            total = total * opaque(INVERSE, factor(f))
    if is_number(parts.rest) == 1:
        return total
    for rest in components(parts.rest):
        exponent, chance = _above_one(rest), _below_one(rest)
        if exponent is not None:
            total = total * sigmoid(exponent.times(-1))
        elif chance is not None:
            total = total * (constant(1) + exp(chance))
        else:
            total = total * opaque(INVERSE, rest)
    return total


def _below_one(value: Poly) -> Poly | None:
    """The argument a of 1 - sigmoid(a), as 1 / (1 + exp(a)); None for others."""
    rest = [(t.factors, c) for t, c in (constant(1) + value.times(-1)).terms]
    only = rest[0][0][0] if len(rest) == 1 and rest[0][1] == 1 and len(rest[0][0]) == 1 else None
    return only.arguments[0].value if isinstance(only, Fn) and only.name == SIGMOID else None


def _above_one(value: Poly) -> Poly | None:
    """The exponent a of 1 + exp(a); None for others."""
    if len(value.terms) != 2 or any(c != 1 or t.variables for t, c in value.terms):
        return None
    rest = [t.factors for t, _ in value.terms if t.factors]
    only = rest[0][0] if len(rest) == 1 and len(rest[0]) == 1 else None
    return only.arguments[0].value if isinstance(only, Fn) and only.name == EXP else None


def log(value: Poly) -> Poly:
    if not value.terms:
        return opaque(LOG, value)
    parts = content(value)
    total = parts.power + _log_number(abs(parts.number))
    rest = parts.rest.times(1 if parts.number > 0 else -1)
    for f in parts.factors:
        if isinstance(f, Count):
            total = total + opaque(LOG, factor(Count(f.atom, 1))).times(f.power)
        elif not positive(factor(f)):
            rest = rest * factor(f)
        elif isinstance(f, Fn) and f.name == SIGMOID:
            total = total + softplus(f.arguments[0].value.times(-1)).times(-1)
        elif isinstance(f, Fn) and f.name == INVERSE:
            total = total + log(f.arguments[0].value).times(-1)
        else:
            total = total + opaque(LOG, factor(f))
    if is_number(rest) == 1:
        return total
    exponent = _above_one(rest)
    return total + (opaque(LOG, rest) if exponent is None else softplus(exponent))


def _log_number(number: Fraction) -> Poly:
    logs = [opaque(LOG, constant(n)) if n > 1 else Poly() for n in (number.numerator, number.denominator)]
    return logs[0] + logs[1].times(-1)


def root(value: Poly) -> Poly:
    """The square root: of squares and positive factors apart from the rest."""
    if not value.terms:
        return Poly()
    parts = content(value)
    number = abs(parts.number)
    inside, total = list(parts.factors), power(parts.power.times(Fraction(1, 2)))
    rest = parts.rest.times(1 if parts.number > 0 else -1)
    for f in parts.factors:
        if isinstance(f, Count):
            inside.remove(f)
            half, odd = divmod(f.power, 2)
            total = total * (factor(Count(f.atom, half)) if half else constant(1))
            total = total * (opaque(ROOT, factor(Count(f.atom, 1))) if odd else constant(1))
        elif positive(factor(f)):
            inside.remove(f)
            total = total * opaque(ROOT, factor(f))
    if rest == constant(1) and len(inside) == 2 and inside[0] == inside[1]:
        total, inside = total * absolute(factor(inside[0])), []
    for f in inside:
        rest = rest * factor(f)
    return total * _root_number(number) * (constant(1) if is_number(rest) == 1 else opaque(ROOT, rest))


def _root_number(number: Fraction) -> Poly:
    top = number.numerator * number.denominator
    half = isqrt(top)
    if half * half == top:
        return constant(Fraction(half, number.denominator))
    return opaque(ROOT, constant(top)).times(Fraction(1, number.denominator))


def tanh(value: Poly) -> Poly:
    return sigmoid(value.times(2)).times(2) + constant(-1)


def _odd(name: str) -> Function:
    def function(given: Mapping[str, Any], value: Poly) -> Poly:
        if not value.terms:
            return Poly()
        sign = 1 if leading(value) > 0 else -1
        return opaque(name, value.times(sign)).times(sign)

    return function


def _cos(given: Mapping[str, Any], value: Poly) -> Poly:
    return opaque("cos", value.times(-1) if value.terms and leading(value) < 0 else value)


def absolute(value: Poly) -> Poly:
    """|a b| = |a| |b|."""
    if len(value.terms) == 1 and not value.terms[0][0].variables:
        (term, number), total = value.terms[0], constant(1)
        for f in term.factors:
            one = factor(f)
            total = total * (one if positive(one) else largest([one, one.times(-1)]))
        return total.times(abs(number))
    return largest([value, value.times(-1)])


def relu(value: Poly) -> Poly:
    return largest([value, Poly()])


def smallest(values: list[Poly]) -> Poly:
    return largest([v.times(-1) for v in values]).times(-1)


def clamp(value: Poly, low: object, high: object) -> Poly:
    if low is not None:
        value = largest([value, _number(low)])
    return value if high is None else smallest([value, _number(high)])


def _number(value: object) -> Poly:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _Opaque
    return constant(literal(value))


def literal(value: float) -> Fraction:
    """A number in a rule: the simplest fraction that has this value in floating point, 1/10 for 0.1."""
    simple = Fraction(value).limit_denominator(1_000_000)
    return simple if float(simple) == value else Fraction(str(value))


class _Opaque(Exception):  # noqa: N818
    """Nothing is known of a function with these attributes."""


def _rational(value: object, default: float) -> Fraction:
    return is_number(_number(default if value is None else value)) or Fraction(0)


def _leaky(given: Mapping[str, Any], value: Poly) -> Poly:
    return relu(value) + relu(value.times(-1)).times(-_rational(given.get("slope"), 0.01))


def _elu(value: Poly, alpha: Fraction) -> Poly:
    return relu(value) + (exp(smallest([value, Poly()])) + constant(-1)).times(alpha)


def _gelu(given: Mapping[str, Any], value: Poly) -> Poly:
    """x / 2 plus an even function."""
    if given.get("approximate", "none") not in ("none", "tanh"):
        raise _Opaque
    if not value.terms:
        return value
    sign = -1 if leading(value) < 0 else 1
    name = f"even part of gelu, {given.get('approximate', 'none')}"
    return value.times(Fraction(1, 2)) + opaque(name, value.times(sign))


def _pow(given: Mapping[str, Any], value: Poly) -> Poly:
    exponent = Fraction(is_number(_number(given.get("exponent"))) or 0)
    if abs(exponent) > MAX_POWER or exponent.denominator > 2:
        raise _Opaque
    if exponent.denominator == 1:
        return whole_power(value, int(exponent))
    if abs(exponent) != Fraction(1, 2):
        raise _Opaque
    return root(value) if exponent > 0 else inverse(root(value))


def positivity(value: Poly) -> Poly:
    """1 if a value is above 0, otherwise 0."""
    number = is_number(value)
    if number is not None:
        return constant(1 if number > 0 else 0)
    return opaque(IS_POSITIVE, value.times(1 / abs(leading(value))))


def zero(value: Poly) -> Poly:
    """1 if a value is 0, otherwise 0."""
    number = is_number(value)
    if number is not None:
        return constant(0 if number else 1)
    return is_zero(value.times(1 / leading(value)))


def _relation(given: Mapping[str, Any], a: Poly, b: Poly | None = None) -> Poly:
    gap = a + (_number(given.get("value")) if b is None else b).times(-1)
    opposite = gap.times(-1)
    found: Mapping[object, Callable[[], Poly]] = {
        "eq": lambda: zero(gap),
        "ne": lambda: constant(1) + zero(gap).times(-1),
        "gt": lambda: positivity(gap),
        "lt": lambda: positivity(opposite),
        "ge": lambda: constant(1) + positivity(opposite).times(-1),
        "le": lambda: constant(1) + positivity(gap).times(-1),
    }
    if given.get("relation") not in found:
        raise _Opaque
    return found[given.get("relation")]()


def _where(given: Mapping[str, Any], condition: Poly, a: Poly, b: Poly) -> Poly:
    return a + (b + a.times(-1)) * zero(condition)


_SELU = Fraction(1.6732632423543772), Fraction(1.0507009873554805)
_SIXTH = Fraction(1, 6)

FUNCTIONS: Mapping[str, Function] = {
    "exp": lambda given, x: exp(x),
    "log": lambda given, x: log(x),
    "reciprocal": lambda given, x: inverse(x),
    "sqrt": lambda given, x: root(x),
    "rsqrt": lambda given, x: inverse(root(x)),
    "sigmoid": lambda given, x: sigmoid(x),
    "tanh": lambda given, x: tanh(x),
    "silu": lambda given, x: x * sigmoid(x),
    "softplus": lambda given, x: softplus(x),
    "logsigmoid": lambda given, x: softplus(x.times(-1)).times(-1),
    "mish": lambda given, x: x * tanh(softplus(x)),
    "gelu": _gelu,
    "erf": _odd("erf"),
    "sin": _odd("sin"),
    "cos": _cos,
    "relu": lambda given, x: relu(x),
    "abs": lambda given, x: absolute(x),
    "maximum": lambda given, a, b: largest([a, b]),
    "minimum": lambda given, a, b: smallest([a, b]),
    "clamp": lambda given, x: clamp(x, given.get("min"), given.get("max")),
    "relu6": lambda given, x: clamp(x, 0, 6),
    "hardtanh": lambda given, x: clamp(x, given.get("min_val", -1), given.get("max_val", 1)),
    "hardsigmoid": lambda given, x: clamp(x + constant(3), 0, 6).times(_SIXTH),
    "hardswish": lambda given, x: (x * clamp(x + constant(3), 0, 6)).times(_SIXTH),
    "leaky_relu": _leaky,
    "prelu": lambda given, x, w: relu(x) + (w * relu(x.times(-1))).times(-1),
    "elu": lambda given, x: _elu(x, _rational(given.get("alpha"), 1)),
    "selu": lambda given, x: _elu(x, _SELU[0]).times(_SELU[1]),
    "pow": _pow,
    "compare": _relation,
    "relate": _relation,
    "logical_not": lambda given, x: zero(x),
    "where": _where,
}


def grows(name: str, given: Mapping[str, Any]) -> bool:
    """True for functions that never decrease: max(f(a), f(b)) = f(max(a, b))."""
    slope = {"leaky_relu": given.get("slope", 0.01), "elu": given.get("alpha", 1.0)}.get(name, 1)
    return name in _GROWING and isinstance(slope, int | float) and slope >= 0


_GROWING = (
    *("relu", "relu6", "clamp", "hardtanh", "hardsigmoid", "leaky_relu", "elu", "selu"),
    *("exp", "sigmoid", "tanh", "softplus", "logsigmoid", "erf"),
)


def apply(name: str, given: Mapping[str, Any], values: tuple[Poly, ...], unknown: Function) -> Poly:
    """A function of numbers. Of what has no definition `unknown` makes an opaque one, also with these attributes."""
    known = FUNCTIONS.get(name)

    def function(*arguments: Poly) -> Poly:
        try:
            return unknown(*arguments) if known is None else known(given, *arguments)
        except _Opaque:
            return unknown(*arguments)

    return by_case(function, values)
