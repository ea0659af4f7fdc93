"""Positions in an order: integers without gradient, for a dim that is whole.

The values that they name are looked up, which is where gradients flow: to one of several equal entries. Which one is
PyTorch's choice for the whole dim, so the same for any split of the others: `argmax` and `argmin` take the first,
`cummax` and `cummin` the last so far, `argsort` keeps the order of equal entries if it is `stable`; else PyTorch does
not say.
"""

from collections.abc import Sequence

from ..graph.pcg import Node
from .keywords import keywords
from .operator import Operator, along_dim


def _one(node: Node, inputs: tuple[Node, ...]) -> str:
    """One position along `dim`, which the result has with size 1 or not at all."""
    dims = range(len(inputs[0].shape))
    inside = ", ".join(":" if d == node["dim"] else f"d{d}" for d in dims)
    kept = [f"o{d}" if d == node["dim"] else f"d{d}" for d in dims if node["keepdim"] or d != node["dim"]]
    return f"y[{', '.join(kept)}] = f(x[{inside}])"


def _topk(node: Node, names: Sequence[str]) -> str:
    return f"{names[0]}.topk({node['k']}, {node['dim']}{keywords(node, {'largest': True})}).indices"


def _argsort(node: Node, names: Sequence[str]) -> str:
    order = keywords(node, {"descending": False, "stable": False})
    return f"{names[0]}.argsort(dim={node['dim']}{order})"


def _searched(node: Node, inputs: tuple[Node, ...]) -> str:
    """Every row has its own values, or one row is searched for all of them."""
    return f"y[b.., i] = f(x[{':' if len(inputs[0].shape) == 1 else 'b.., :'}], v[b.., i])"


def _searchsorted(node: Node, names: Sequence[str]) -> str:
    rows, values = names
    return f"torch.searchsorted({rows}.contiguous(), {values}.contiguous(){keywords(node, {'right': False})})"


OPERATORS = (
    Operator("topk", ("x",), along_dim("f"), _topk),
    Operator("argsort", ("x",), along_dim("f"), _argsort),
    *(Operator(name, ("x",), along_dim("f"), f"torch.{name}({{x}}, {{dim}}).indices") for name in ("cummax", "cummin")),
    *(Operator(name, ("x",), _one, f"{{x}}.{name}({{dim}}, keepdim={{keepdim}})") for name in ("argmax", "argmin")),
    *(
        Operator(name, ("x",), _one, f"{{x}}.{name}({arguments}, keepdim={{keepdim}}).indices")
        for name, arguments in (("kthvalue", "{k}, {dim}"), ("median", "{dim}"), ("mode", "{dim}"))
    ),
    Operator("searchsorted", ("x", "v"), _searched, _searchsorted),
)
