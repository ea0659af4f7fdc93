"""Convolutions of 1 to 3 spatial dims: whole along space where windows reach beyond a place, a product elsewhere.

Unfolding a window, or folding it back, is linear and needs all of space. What is left is a product over the channels of
each group, so samples, groups, output channels and (as addends) input channels can be split, and places where windows
are single ones. Attributes are called as the keywords of `torch.nn.functional`.
"""

from collections.abc import Callable, Sequence
from math import prod

from ..graph.pcg import Node
from .keywords import keywords
from .operator import Operator, register

CONVOLUTIONS = ("conv", "conv_transpose")
_DEFAULTS = {"stride": 1, "padding": 0, "output_padding": 0, "groups": 1, "dilation": 1}


def _product(channels: str) -> Callable[[Node, tuple[Node, ...]], str]:
    """The notation where the kernel has these channel dims: `c` into, `o` out of each group `g`."""

    def notation(node: Node, inputs: tuple[Node, ...]) -> str:
        dims = range(len(node.shape) - 2)
        single = [_single(node, inputs[1].shape[2 + d], d) for d in dims]
        space, taps = (", ".join(f"{letter}{d}" for d in dims) for letter in "sk")
        read = ", ".join(f"s{d}" if single[d] else ":" for d in dims)
        unfolded = ", ".join(f"{letter}{d}" for letter in "sk" for d in dims if not single[d])
        x = f"x[n, (g c), {read}]" if all(single) else f"L(x[n, (g c), {read}])[{unfolded}]"
        line = f"y[n, (g o), {space}] = sum(c, {taps}) {x} * w[{channels}, {taps}] + bias[(g o)]"
        return line if node["groups"] > 1 else line.replace("(g c)", "c").replace("(g o)", "o")

    return notation


def _single(node: Node, taps: int, d: int) -> bool:
    """Whether every place along a spatial dim is made of the same place alone."""
    return taps == 1 and node["stride"][d] == 1 and (node["padding"] == "same" or not node["padding"][d])


def _work(node: Node, inputs: tuple[Node, ...]) -> int:
    """Every tap meets every place of the output (transposed: of the input), for all channels across from it."""
    x, w = inputs[:2]
    places = x if node.op == "conv_transpose" else node
    return 2 * places.numel * w.shape[1] * prod(w.shape[2:]) + node.numel


def _emit(node: Node, names: Sequence[str]) -> str:
    return f"F.{node.op}{len(node.shape) - 2}d({', '.join(names)}{keywords(node, _DEFAULTS)})"


for _name, _channels in zip(CONVOLUTIONS, ("(g o), c", "(g c), o"), strict=True):
    _notation = _product(_channels)
    register(Operator(_name, ("x", "w", "bias"), _notation, _emit, saved=("x", "w"), flops=_work, matmul=True))
