"""Convolutions of 1 to 3 spatial dims: whole along space, a product elsewhere.

Unfolding a window, or folding it back, is linear and needs all of space. What is left is a product over the channels of
each group, so samples, groups, output channels and (as addends) input channels can be split. Attributes are called as
the keywords of `torch.nn.functional`.
"""

from collections.abc import Callable, Sequence
from math import prod

from ..operator import Operator, register
from ..pcg import Node
from .keywords import keywords

CONVOLUTIONS = ("conv", "conv_transpose")
_DEFAULTS = {"stride": 1, "padding": 0, "output_padding": 0, "groups": 1, "dilation": 1}


def _product(channels: str) -> Callable[[Node, tuple[Node, ...]], str]:
    """The notation where the kernel has these channel dims: `c` into, `o` out of each group `g`."""

    def notation(node: Node, inputs: tuple[Node, ...]) -> str:
        rank = len(node.shape) - 2
        space, taps = (", ".join(f"{letter}{d}" for d in range(rank)) for letter in "sk")
        line = (
            f"y[n, (g o), {space}] = sum(c, {taps}) L(x[n, (g c), {', '.join(':' * rank)}])[{space}, {taps}]"
            f" * w[{channels}, {taps}] + bias[(g o)]"
        )
        return line if node["groups"] > 1 else line.replace("(g c)", "c").replace("(g o)", "o")

    return notation


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
