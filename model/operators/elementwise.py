"""Elementwise operators: opaque functions of one element, and the few that are linear."""

from ..graph.pcg import Node
from .operator import Operator, register

_OPAQUE = "y[i..] = f(x[i..])"
_LINEAR = "y[i..] = L(x[i..])"
_BINARY = "y[i..] = f(a[i..], b[i..])"

# name, notation, emission, what autograd keeps
_UNARY = (
    ("relu", _OPAQUE, "F.relu({x})", ("y",)),
    ("gelu", _OPAQUE, "F.gelu({x}, approximate={approximate})", ("x",)),
    ("silu", _OPAQUE, "F.silu({x})", ("x",)),
    ("tanh", _OPAQUE, "torch.tanh({x})", ("y",)),
    ("sigmoid", _OPAQUE, "torch.sigmoid({x})", ("y",)),
    ("softplus", _OPAQUE, "F.softplus({x})", ("x",)),
    ("leaky_relu", _OPAQUE, "F.leaky_relu({x}, {slope})", ("x",)),
    ("elu", _OPAQUE, "F.elu({x}, {alpha})", ("x",)),
    ("selu", _OPAQUE, "F.selu({x})", ("x",)),
    ("mish", _OPAQUE, "F.mish({x})", ("x",)),
    ("hardtanh", _OPAQUE, "F.hardtanh({x}, {min_val}, {max_val})", ("x",)),
    ("relu6", _OPAQUE, "F.relu6({x})", ("x",)),
    ("hardswish", _OPAQUE, "F.hardswish({x})", ("x",)),
    ("hardsigmoid", _OPAQUE, "F.hardsigmoid({x})", ("x",)),
    ("logsigmoid", _OPAQUE, "F.logsigmoid({x})", ("x",)),
    ("exp", _OPAQUE, "torch.exp({x})", ("y",)),
    ("log", _OPAQUE, "torch.log({x})", ("x",)),
    ("sqrt", _OPAQUE, "torch.sqrt({x})", ("y",)),
    ("rsqrt", _OPAQUE, "torch.rsqrt({x})", ("y",)),
    ("sin", _OPAQUE, "torch.sin({x})", ("x",)),
    ("cos", _OPAQUE, "torch.cos({x})", ("x",)),
    ("erf", _OPAQUE, "torch.erf({x})", ("x",)),
    ("abs", _OPAQUE, "torch.abs({x})", ("x",)),
    ("reciprocal", _OPAQUE, "torch.reciprocal({x})", ("y",)),
    ("pow", _OPAQUE, "torch.pow({x}, {exponent})", ("x",)),
    ("clamp", _OPAQUE, "torch.clamp({x}, {min}, {max})", ("x",)),
    ("shift", _OPAQUE, "{x} + {value}", ()),
    ("logical_not", _OPAQUE, "~{x}", ()),
    ("compare", _OPAQUE, "torch.{relation}({x}, {value})", ()),
    ("scale", _LINEAR, "{x} * {value}", ()),
    ("neg", _LINEAR, "-{x}", ()),
    ("to", _LINEAR, "{x}.to({dtype})", ()),
)
for _name, _notation, _emit, _saved in _UNARY:
    register(Operator(_name, ("x",), _notation, _emit, saved=_saved))


def _prelu(node: Node, inputs: tuple[Node, ...]) -> str:
    """One slope, or one a channel."""
    return "y[n, c, d..] = f(x[n, c, d..], w[c])" if inputs[1].numel > 1 else "y[i..] = f(x[i..], w[:])"


register(Operator("prelu", ("x", "w"), _prelu, "F.prelu({x}, {w})", saved=("x", "w")))

register(Operator("add", ("a", "b"), "y[i..] = a[i..] + b[i..]", "{a} + {b}"))
register(Operator("sub", ("a", "b"), "y[i..] = a[i..] + b[i..]", "{a} - {b}"))
register(
    Operator(
        "mul",
        ("a", "b"),
        "y[i..] = a[i..] * b[i..]",
        "{a} * {b}",
        saved=("a", "b"),
        saved_for=(("a", "b"), ("b", "a")),
    )
)
register(
    Operator(
        "div",
        ("a", "b"),
        "y[i..] = a[i..] * f(b[i..])",
        "{a} / {b}",
        saved=("a", "b"),
        saved_for=(("a", "b"),),
    )
)
register(Operator("maximum", ("a", "b"), _BINARY, "torch.maximum({a}, {b})", saved=("a", "b")))
register(Operator("minimum", ("a", "b"), _BINARY, "torch.minimum({a}, {b})", saved=("a", "b")))
register(Operator("power", ("a", "b"), _BINARY, "torch.pow({a}, {b})", saved=("a", "b", "y")))
register(Operator("relate", ("a", "b"), _BINARY, "torch.{relation}({a}, {b})"))
register(
    Operator("where", ("c", "a", "b"), "y[i..] = f(c[i..], a[i..], b[i..])", "torch.where({c}, {a}, {b})", saved=("c",))
)
# The mask is a function of the global element index (drawn from counters by codegen): the same on all ranks, so linear.
# Drawing it is most of the work, in 32-bit lanes. Bytes an element: its number 8 (written), as int32 12, twice a mix of
# 100 and a key of 8, its upper half 40, compared 5, copied 2: 283. Applying it 9, and 9 backward, in 16 bits: 301 in
# all, where one pass forward and two backward count as 3 times 4 bytes. In 32 bits half of that would do.
register(Operator("dropout", ("x",), _LINEAR, "dropout({x}, {p})", saved=("mask",), passes=25))
