"""Batch norm: channels (dim 1) normalized by their mean and variance over all other dims.

`moments` sums x and x² over the batch, so that the statistics of a split batch are addends, and adding them up is a
conversion like any other. `batch_norm` takes them, and updates the running statistics `mean` and `var` in place.
`local_batch_norm` takes the statistics of what each rank has: `n` is free, though samples are normalized together.
"""

from collections.abc import Sequence
from math import prod

from ..graph.pcg import Node
from .operator import Operator, register

_OPERANDS = ("x", "mean", "var", "w", "bias")


def values_per_channel(x: Node) -> int:
    """How many values of `x` [n, c, d..] one mean is taken over."""
    return prod(x.shape) // x.shape[1]


def _moments(node: Node, inputs: tuple[Node, ...]) -> str:
    _check_count(inputs[0])
    return "y[k, c] = sum(n, d..) f(x[n, c, d..])[k]"


def _normalized(node: Node, inputs: tuple[Node, ...]) -> str:
    given = _given(node, ("x", "s"))
    arguments = ["x[n, c, d..]", "s[:, c]", *_running(given)]
    return f"y[n, c, d..] = f({', '.join(arguments)})" + _affine(given)


def _local(node: Node, inputs: tuple[Node, ...]) -> str:
    given = _given(node, ("x",))
    _check_count(inputs[0])
    rest = [f"d{i}" for i in range(len(node.shape) - 2)]
    arguments = [f"x[{', '.join(['n', 'c', *(':' for _ in rest)])}]", *_running(given)]
    inside = f"[{', '.join(rest)}]" if rest else ""
    return f"y[{', '.join(['n', 'c', *rest])}] = f({', '.join(arguments)}){inside}" + _affine(given)


def _given(node: Node, first: tuple[str, ...]) -> tuple[str, ...]:
    """The operands of a node; raises ValueError unless they are in order, with both running statistics or none."""
    given: tuple[str, ...] = node["operands"]
    allowed = (*first, *_OPERANDS[1:])
    if given[: len(first)] != first or given != tuple(name for name in allowed if name in given):
        raise ValueError(f"operands are some of {', '.join(allowed)} in this order, not {', '.join(given)}")
    if ("mean" in given) != ("var" in given):
        raise ValueError("of the running statistics there are both or none")
    return given


def _running(given: tuple[str, ...]) -> list[str]:
    return [f"{name}[c]" for name in ("mean", "var") if name in given]


def _affine(given: tuple[str, ...]) -> str:
    return (" * w[c]" if "w" in given else "") + (" + bias[c]" if "bias" in given else "")


def _check_count(x: Node) -> None:
    if len(x.shape) < 2:
        raise ValueError(f"a batch norm of shape {x.shape} has no channels")
    if values_per_channel(x) < 2:
        raise ValueError("a batch norm needs more than one value a channel")


def _emit_local(node: Node, names: Sequence[str]) -> str:
    given = dict(zip(node["operands"], names, strict=True))
    operands = ", ".join(given.get(name, "None") for name in _OPERANDS)
    return f"F.batch_norm({operands}, True, {node['momentum']!r}, {node['eps']!r})"


# Two reductions read the input once each.
register(
    Operator(
        "moments",
        ("x",),
        _moments,
        "moments({x})",
        saved=("x",),
        flops=lambda node, inputs: 3 * inputs[0].numel,
        passes=2,
    )
)
register(
    Operator(
        "batch_norm",
        ("x", "s", *_OPERANDS[1:]),
        _normalized,
        "batch_norm({x}, {s})",  # a helper of the program, which also takes the count
        saved=("x",),
        passes=1.5,
        updates=("mean", "var"),
    )
)
register(
    Operator(
        "local_batch_norm",
        _OPERANDS,
        _local,
        _emit_local,
        saved=("x",),
        passes=2,
        updates=("mean", "var"),
    )
)
