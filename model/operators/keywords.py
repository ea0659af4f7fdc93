"""Calls of `torch.nn.functional` whose keywords are a node's attributes, under the same names."""

from collections.abc import Mapping
from math import isfinite
from typing import Any

from ..graph.pcg import Node


def keywords(node: Node, defaults: Mapping[str, Any]) -> str:
    """`, stride=2, padding=(1, 0)`: the attributes that `defaults` names and the node has, unless they are the default.

    A tuple is the default where every entry is.
    """
    given = [(name, node[name], default) for name, default in defaults.items() if name in dict(node.attributes)]
    return "".join(f", {name}={text(value)}" for name, value, default in given if not _same(value, default))


def literal(name: str, value: Any) -> str:
    """An attribute as Python source; a relation names a function."""
    if name == "relation":
        return str(value)
    if isinstance(value, float) and not isfinite(value):
        return f'float("{value}")'
    return f'"{value}"' if isinstance(value, str) else repr(value)


def text(value: Any) -> str:
    """An attribute as Python source; a tuple of equal entries is one of them."""
    if isinstance(value, float) and not isfinite(value):
        return f'float("{value}")'
    return repr(value[0] if isinstance(value, tuple) and len(set(value)) == 1 else value)


def _same(value: Any, default: Any) -> bool:
    return value == default or (isinstance(value, tuple) and all(v == default for v in value))
