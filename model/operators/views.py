"""Operators that move elements without computing: views, permutations, slices, concatenation."""

from collections.abc import Sequence

from ..operator import Operator, register
from ..pcg import Node


def _names(count: int) -> list[str]:
    return [f"d{i}" for i in range(count)]


def _permute(node: Node, inputs: tuple[Node, ...]) -> str:
    names = _names(len(node.shape))
    return f"y[{', '.join(names[d] for d in node['dims'])}] = L(x[{', '.join(names)}])"


def _along(node: Node, inputs: tuple[Node, ...]) -> str:
    """Whole along `dim`, free elsewhere."""
    names = _names(len(node.shape))
    inside = ", ".join(":" if d == node["dim"] else name for d, name in enumerate(names))
    arguments = ", ".join(f"{x}[{inside}]" for x in _operands(node, inputs))
    return f"y[{', '.join(names)}] = L({arguments})[{names[node['dim']]}]"


def _operands(node: Node, inputs: tuple[Node, ...]) -> list[str]:
    return ["x"] if len(inputs) == 1 and node.op != "cat" else [f"x{i}" for i in range(len(inputs))]


def _slice(node: Node, names: Sequence[str]) -> str:
    where = ", ".join([":"] * node["dim"] + [_range(node["start"], node["stop"], node["step"])])
    return f"{names[0]}[{where}]"


def _range(start: int, stop: int, step: int) -> str:
    return f"{start or ''}:{stop}" + (f":{step}" if step != 1 else "")


register(Operator("view", ("x",), view=True, passes=0))
register(Operator("permute", ("x",), _permute, "{x}.permute{dims}", passes=0))
register(Operator("expand", ("x",), "y[i..] = L(x[i..])", passes=0))
register(Operator("slice", ("x",), _along, _slice, passes=0))
register(
    Operator(
        "cat", ("x",), _along, lambda node, names: f"torch.cat(({', '.join(names)}), {node['dim']})", variadic=True
    )
)
register(Operator("contiguous", ("x",), "y[i..] = L(x[i..])", "{x}.contiguous()"))
register(Operator("detach", ("x",), "y[i..] = L(x[i..])", "{x}.detach()", passes=0))
