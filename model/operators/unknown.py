"""Opaque operators: every rank computes the whole result from whole inputs."""

import re
from collections.abc import Sequence
from typing import Any

from ..graph.pcg import Node
from .operator import Operator


def _whole(node: Node, inputs: tuple[Node, ...]) -> str:
    if not re.fullmatch(r"[a-z_]\w*(\.\w+)+", node["target"], re.ASCII | re.IGNORECASE):
        raise ValueError(f"{node['target']!r} is not an operator")
    if any(i >= len(inputs) for _, value in node["arguments"] for i in _numbers(value)):
        raise ValueError(f"the call reads more than its {len(inputs)} inputs")
    arguments = ", ".join(f"x{i}[{', '.join(':' * len(source.shape))}]" for i, source in enumerate(inputs))
    names = ", ".join(f"d{d}" for d in range(len(node.shape)))
    return f"y[{names}] = f({arguments})[{names}]"


def _numbers(value: Any) -> list[int]:
    """The inputs that an argument refers to."""
    if not isinstance(value, tuple):
        return []
    tag, *rest = value
    return list(rest) if tag == "@" else [i for v in rest for i in _numbers(v)]


def _source(value: Any, names: Sequence[str]) -> str:
    """Python source of an argument that capture encoded: tensors, lists and dtypes are tagged tuples."""
    if not isinstance(value, tuple):
        return repr(value)
    tag, *rest = value
    if tag == "@":
        return names[rest[0]]
    if tag == "dtype":
        if not re.fullmatch(r"[a-z]+\d*", rest[0], re.ASCII):
            raise ValueError(f"{rest[0]!r} is not a dtype")
        return f"torch.{rest[0]}"
    return f"[{', '.join(_source(v, names) for v in rest)}]"


def _call(node: Node, names: Sequence[str]) -> str:
    call = [(key, _source(value, names)) for key, value in node["arguments"]]
    arguments = [f"{key}={text}" if key.isidentifier() else text for key, text in call]
    part = "" if node["output"] is None else f"[{node['output']}]"
    return f"torch.ops.{node['target']}({', '.join(arguments)}){part}"


OPERATORS = (Operator("opaque", ("x",), _whole, _call, saved=("x0", "x1", "x2", "x3", "y"), variadic=True),)
