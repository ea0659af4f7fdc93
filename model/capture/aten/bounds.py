"""Bounds of the integers of a node, as far as the graph tells."""

from collections.abc import Callable
from math import inf
from typing import TypeAlias

from ...graph.dtypes import FLOATS
from ...graph.input_ranges import PASSING
from ...graph.pcg import Node
from ..translation import Index, Translation

Bounds: TypeAlias = tuple[float, float]

UNKNOWN: Bounds = (-inf, inf)
_POSITIONS = ("topk", "argsort", "cummax", "cummin", "argmax", "argmin", "kthvalue", "median", "mode")
_LOOKUPS = frozenset(["embedding", "index", "gather"])


def bounds(t: Translation, x: Index) -> Bounds:
    """The least and the largest value of an integer node; inputs, and buffers without values, are not negative."""
    node = t.at(x)
    if node.dtype in FLOATS:
        return UNKNOWN
    if node.op == "input":
        return (0, inf)
    if node.op == "buffer":
        return t.known.least(x), inf
    if node.dtype == "bool":
        return (0, 1)
    if node.op in _CONSTANTS:
        values = _CONSTANTS[node.op](node)
        return min(values), max(values)
    given = [bounds(t, Index(i)) for i in (node.inputs[:1] if node.op in _LOOKUPS else node.inputs)]
    if node.op in PASSING or node.op in _LOOKUPS:
        return min(low for low, _ in given), max(high for _, high in given)
    return _COMPUTED[node.op](node, *given) if node.op in _COMPUTED else UNKNOWN


def _arange(node: Node) -> tuple[float, ...]:
    numbers = range(node["start"], node["stop"], node["step"])
    return numbers[0], numbers[-1]


def _scaled(node: Node, x: Bounds) -> Bounds:
    low, high = sorted(node["value"] * end if end else 0 for end in x)
    return low, high


_CONSTANTS: dict[str, Callable[[Node], tuple[float, ...]]] = {
    "full": lambda node: (node["value"],),
    "constant": lambda node: node["values"],
    "arange": _arange,
}
_COMPUTED: dict[str, Callable[..., Bounds]] = {
    "shift": lambda node, x: (x[0] + node["value"], x[1] + node["value"]),
    "scale": _scaled,
    "add": lambda node, a, b: (a[0] + b[0], a[1] + b[1]),
    "sub": lambda node, a, b: (a[0] - b[1], a[1] - b[0]),
    "mul": lambda node, a, b: (0, inf) if a[0] >= 0 and b[0] >= 0 else UNKNOWN,
    "sum": lambda node, x: (0, inf) if x[0] >= 0 else UNKNOWN,
    "cumsum": lambda node, x: (0, inf) if x[0] >= 0 else UNKNOWN,
    "clamp": lambda node, x: (x[0] if node["min"] is None else max(x[0], node["min"]), x[1]),
    **dict.fromkeys(_POSITIONS, lambda node, x: (0, inf)),
    "searchsorted": lambda node, x, v: (0, inf),
    "maximum": lambda node, a, b: (max(a[0], b[0]), max(a[1], b[1])),
    "minimum": lambda node, a, b: (min(a[0], b[0]), min(a[1], b[1])),
}
