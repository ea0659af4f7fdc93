"""Pooling and resampling of the last dims: whole along them, free elsewhere.

Attributes are called as the keywords of `torch.nn.functional`.
"""

from collections.abc import Callable, Sequence
from math import prod

from ..graph.pcg import Node
from .keywords import keywords, text
from .operator import Operator, register


def _over_last(function: str, rank: Callable[[Node], int]) -> Callable[[Node, tuple[Node, ...]], str]:
    """`f` or `L` over the last `rank(node)` dims."""

    def notation(node: Node, inputs: tuple[Node, ...]) -> str:
        count = rank(node)
        space = ", ".join(f"s{d}" for d in range(count))
        return f"y[b.., {space}] = {function}(x[b.., {', '.join(':' * count)}])[{space}]"

    return notation


def _window_rank(node: Node) -> int:
    return len(node["kernel_size"])


def _adaptive_rank(node: Node) -> int:
    return len(node["output_size"])


def _window(node: Node, names: Sequence[str]) -> str:
    size = node["kernel_size"]
    defaults = {"stride": size, "padding": 0, "dilation": 1, "ceil_mode": False, "count_include_pad": True}
    given = keywords(node, defaults | {"divisor_override": None})
    return f"F.{node.op}{len(size)}d({names[0]}, {text(size)}{given})"


def _adaptive(node: Node, names: Sequence[str]) -> str:
    return f"F.{node.op}{_adaptive_rank(node)}d({names[0]}, {text(node['output_size'])})"


def _window_work(node: Node, inputs: tuple[Node, ...]) -> int:
    taps: int = prod(node["kernel_size"])
    return node.numel * taps


def _adaptive_work(node: Node, inputs: tuple[Node, ...]) -> int:
    return inputs[0].numel


def _interpolate(node: Node, names: Sequence[str]) -> str:
    defaults = {"size": None, "scale_factor": None, "mode": "nearest", "align_corners": None}
    return f"F.interpolate({names[0]}{keywords(node, defaults)})"


# What is linear moves its input and output once forward, and their gradients once backward; one pass would be three
# times both. A maximum also writes, keeps and reads int64 indices, which make up for that with windows of 2 x 2 in 32
# bits. Autograd keeps the input of a mean too, though only for its shape.
_LINEAR_PASSES = 2 / 3
for _name, _rank, _emit, _flops in (
    ("{}_pool", _window_rank, _window, _window_work),
    ("adaptive_{}_pool", _adaptive_rank, _adaptive, _adaptive_work),
):
    _largest, _mean = _over_last("f", _rank), _over_last("L", _rank)
    register(Operator(_name.format("max"), ("x",), _largest, _emit, saved=("x", "indices"), flops=_flops))
    register(Operator(_name.format("avg"), ("x",), _mean, _emit, saved=("x",), flops=_flops, passes=_LINEAR_PASSES))
_resampled = _over_last("L", lambda node: len(node.shape) - 2)
register(Operator("interpolate", ("x",), _resampled, _interpolate, passes=_LINEAR_PASSES))
