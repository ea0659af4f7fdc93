"""Operators that move elements without computing: views, permutations, slices, concatenation."""

from collections.abc import Sequence

from ..graph.pcg import Node
from .keywords import keywords
from .operator import Operator, register


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


def _part(node: Node, inputs: tuple[Node, ...]) -> str:
    """Which of the parts is whole, what is in them free: of equal parts a rank has its share of each."""
    x, dim, of, number = inputs[0].shape, node["dim"], node["of"], node["number"]
    if not 0 <= dim < len(x) or not 0 <= number < of or x[dim] != of * node.shape[dim]:
        raise ValueError(f"there is no part {number} of {of} of dim {dim} of shape {x} with shape {node.shape}")
    names = _names(len(x))
    inside = ", ".join(f"(: {name})" if d == dim else name for d, name in enumerate(names))
    return f"y[{', '.join(names)}] = L(x[{inside}])"


def _operands(node: Node, inputs: tuple[Node, ...]) -> list[str]:
    return ["x"] if len(inputs) == 1 and node.op != "cat" else [f"x{i}" for i in range(len(inputs))]


def _moved(node: Node, inputs: tuple[Node, ...]) -> str:
    """Whole along `dims`, free elsewhere."""
    names = _names(len(node.shape))
    inside = ", ".join(":" if d in node["dims"] else name for d, name in enumerate(names))
    return f"y[{', '.join(names)}] = L(x[{inside}])[{', '.join(names[d] for d in node['dims'])}]"


def _one(numbers: tuple[int, ...]) -> int | tuple[int, ...]:
    """A tuple of one number as the number."""
    return numbers[0] if len(numbers) == 1 else numbers


def _padded(node: Node, inputs: tuple[Node, ...]) -> str:
    """Whole along the dims that grow or shrink; linear unless another number than zero is filled in."""
    names = _names(len(node.shape))
    grown = [d for d in range(len(names)) if _padding(node, d) != (0, 0)]
    inside = ", ".join(":" if d in grown else name for d, name in enumerate(names))
    function = "f" if node["value"] else "L"
    return f"y[{', '.join(names)}] = {function}(x[{inside}])[{', '.join(names[d] for d in grown)}]"


def _padding(node: Node, dim: int) -> tuple[int, int]:
    """Entries before and after a dim; the attribute holds pairs, the last dim first."""
    pairs = node["pad"] + (0, 0) * len(node.shape)
    place = 2 * (len(node.shape) - 1 - dim)
    return pairs[place], pairs[place + 1]


def _slice(node: Node, names: Sequence[str]) -> str:
    where = ", ".join([":"] * node["dim"] + [_range(node["start"], node["stop"], node["step"])])
    return f"{names[0]}[{where}]"


def _range(start: int, stop: int, step: int) -> str:
    return f"{start or ''}:{stop}" + (f":{step}" if step != 1 else "")


register(Operator("view", ("x",), view=True, passes=0))
register(Operator("permute", ("x",), _permute, "{x}.permute{dims}", passes=0))
register(Operator("expand", ("x",), "y[i..] = L(x[i..])", passes=0))
register(Operator("slice", ("x",), _along, _slice, passes=0))
# One of `of` equal parts along a dim, counted from 0.
register(Operator("part", ("x",), _part, "{x}.chunk({of}, {dim})[{number}]", passes=0))
register(
    Operator(
        "cat", ("x",), _along, lambda node, names: f"torch.cat(({', '.join(names)}), {node['dim']})", variadic=True
    )
)
register(Operator("flip", ("x",), _moved, lambda node, names: f"{names[0]}.flip({_one(node['dims'])})"))
register(
    Operator(
        "roll", ("x",), _moved, lambda node, names: f"{names[0]}.roll({_one(node['shifts'])}, {_one(node['dims'])})"
    )
)
register(
    Operator(
        "pad",
        ("x",),
        _padded,
        lambda node, names: f"F.pad({names[0]}, {node['pad']}{keywords(node, {'mode': 'constant', 'value': 0.0})})",
    )
)
register(Operator("contiguous", ("x",), "y[i..] = L(x[i..])", "{x}.contiguous()"))
register(Operator("detach", ("x",), "y[i..] = L(x[i..])", "{x}.detach()", passes=0))
