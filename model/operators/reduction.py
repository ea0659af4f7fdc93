"""Sums and means over dims; a mean divides by the whole count, also where the dim is split."""

from ..graph.pcg import Node
from .operator import Operator, register


def _reduced(node: Node, inputs: tuple[Node, ...]) -> str:
    rank, dims = len(inputs[0].shape), node["dims"]
    names = [f"d{i}" for i in range(rank)]
    kept = [f"o{i}" if i in dims else names[i] for i in range(rank) if node["keepdim"] or i not in dims]
    gone = ", ".join(names[d] for d in dims)
    return f"y[{', '.join(kept)}] = sum({gone}) x[{', '.join(names)}]"


def _whole(node: Node, inputs: tuple[Node, ...]) -> str:
    rank, dims = len(inputs[0].shape), node["dims"]
    inside = ", ".join(":" if i in dims else f"d{i}" for i in range(rank))
    kept = [f"o{i}" if i in dims else f"d{i}" for i in range(rank) if node["keepdim"] or i not in dims]
    return f"y[{', '.join(kept)}] = f(x[{inside}])"


def _along(node: Node, inputs: tuple[Node, ...]) -> str:
    """Whole along `dim`, free elsewhere."""
    names = [f"d{i}" for i in range(len(node.shape))]
    inside = ", ".join(":" if i == node["dim"] else name for i, name in enumerate(names))
    function = "L" if node.op == "cumsum" else "f"
    return f"y[{', '.join(names)}] = {function}(x[{inside}])[{names[node['dim']]}]"


register(Operator("cumsum", ("x",), _along, "torch.cumsum({x}, {dim})"))
register(Operator("cumprod", ("x",), _along, "torch.cumprod({x}, {dim})", saved=("x", "y")))
register(Operator("sum", ("x",), _reduced, "{x}.sum({dims}, keepdim={keepdim})"))
register(Operator("mean", ("x",), _reduced, "{x}.sum({dims}, keepdim={keepdim}) / {count}"))
register(Operator("amax", ("x",), _whole, "{x}.amax({dims}, keepdim={keepdim})", saved=("x", "y")))
register(Operator("logsumexp", ("x",), _whole, "{x}.logsumexp({dims}, keepdim={keepdim})", saved=("x", "y")))
register(
    Operator(
        "norm",
        ("x",),
        _whole,
        "torch.linalg.vector_norm({x}, {ord}, {dims}, keepdim={keepdim})",
        saved=("x", "y"),
    )
)
