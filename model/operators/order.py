"""Positions of the largest entries, and insertion positions in a sorted order: integers without gradient."""

from ..graph.pcg import Node
from .keywords import keywords
from .operator import Operator, register


def _largest(node: Node, inputs: tuple[Node, ...]) -> str:
    """Whole along `dim`, free elsewhere."""
    names = [f"d{i}" for i in range(len(node.shape))]
    inside = ", ".join(":" if d == node["dim"] else name for d, name in enumerate(names))
    return f"y[{', '.join(names)}] = f(x[{inside}])[{names[node['dim']]}]"


register(
    Operator(
        "topk",
        ("x",),
        _largest,
        lambda node, names: f"{names[0]}.topk({node['k']}, {node['dim']}{keywords(node, {'largest': True})}).indices",
    )
)
register(
    Operator(
        "searchsorted",
        ("x", "v"),
        "y[b.., i] = f(x[b.., :], v[b.., i])",
        "torch.searchsorted({x}.contiguous(), {v}.contiguous())",
    )
)
