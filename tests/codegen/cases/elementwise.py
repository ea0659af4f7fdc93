"""Functions of one element, and of two."""

from typing import Any

from partita.model.graph.builder import Builder

from .build import BATCH, Build, Cases, leaf, unary, weight


def binary(op: str, **attributes: Any) -> Build:
    """The second operand lacks a dim, and has one that is broadcast."""

    def build(b: Builder) -> int:
        return b.add(op, leaf(b, BATCH, 5, 4), weight(b, 5, 1), shape=(BATCH, 5, 4), **attributes)

    return build


def both(op: str, **attributes: Any) -> Build:
    def build(b: Builder) -> int:
        a, c = leaf(b, BATCH, 5), leaf(b, BATCH, 5)
        if op in ("div", "power"):
            a, c = (b.add("shift", b.add("mul", x, x, shape=(BATCH, 5)), shape=(BATCH, 5), value=0.5) for x in (a, c))
        return b.add(op, a, c, shape=(BATCH, 5), **attributes)

    return build


def prelu(slopes: int) -> Build:
    return lambda b: b.add("prelu", leaf(b, BATCH, 5, 4), weight(b, slopes), shape=(BATCH, 5, 4))


def where(b: Builder) -> int:
    x = leaf(b, BATCH, 5)
    c = b.add("compare", x, shape=(BATCH, 5), dtype="bool", relation="gt", value=0.1)
    return b.add("where", c, x, weight(b, 5), shape=(BATCH, 5))


def condition(op: str) -> Build:
    """Operators without gradient decide between two operands."""

    def build(b: Builder) -> int:
        shape = (BATCH, 5)
        x = leaf(b, *shape)
        if op == "relate":
            return b.add("relate", x, leaf(b, *shape), shape=shape, dtype="bool", relation="lt")
        c = b.add("compare", x, shape=shape, dtype="bool", relation="le", value=0.0)
        return c if op == "compare" else b.add("logical_not", c, shape=shape)

    return build


NUMBERS: dict[str, dict[str, Any]] = {
    "uniform": {}, "normal": {}, "bernoulli": {"p": 0.3}, "integers": {"low": -3, "high": 2**20}
}  # fmt: skip


def drawn(kind: str) -> Build:
    def build(b: Builder) -> int:
        x = b.input("like", (BATCH, 5, 4))
        dtype = "int64" if kind == "integers" else None
        given = NUMBERS[kind]
        return b.add("random", x, shape=(BATCH, 5, 4), dtype=dtype, gradient=False, kind=kind, site=2, **given)

    return build


CASES: Cases = {
    **{op: (unary(op),) for op in ("relu", "silu", "tanh", "sigmoid", "softplus", "exp")},
    **{op: (unary(op),) for op in ("sin", "cos", "erf", "abs", "neg")},
    **{op: (unary(op, positive=True),) for op in ("log", "sqrt", "rsqrt", "reciprocal")},
    "gelu": (unary("gelu", approximate="none"), unary("gelu", approximate="tanh")),
    "unary": (unary("unary", function="expm1"),),
    "binary": (both("binary", function="hypot"),),
    "random": tuple(map(drawn, NUMBERS)),
    "leaky_relu": (unary("leaky_relu", slope=0.1),),
    "elu": (unary("elu", alpha=0.7),),
    **{op: (unary(op),) for op in ("selu", "mish", "relu6", "hardswish", "hardsigmoid", "logsigmoid")},
    "hardtanh": (unary("hardtanh", min_val=-0.3, max_val=0.2),),
    "prelu": (prelu(5), prelu(1)),
    "pow": (unary("pow", exponent=3), unary("pow", positive=True, exponent=-0.5)),
    "clamp": (unary("clamp", min=-0.3, max=0.4),),
    "shift": (unary("shift", value=0.3),),
    "scale": (unary("scale", value=0.25), unary("scale", value=-3)),
    "to": (unary("to", dtype="float64"),),
    "dropout": (unary("dropout", p=0.3, site=0),),
    "add": (binary("add"), both("add")),
    "sub": (binary("sub"), both("sub")),
    "mul": (binary("mul"), both("mul")),
    "div": (both("div"),),
    "maximum": (binary("maximum"), both("maximum")),
    "minimum": (binary("minimum"),),
    "power": (both("power"),),
    "where": (where,),
    "compare": (condition("compare"),),
    "relate": (condition("relate"),),
    "logical_not": (condition("logical_not"),),
}
