"""Products of matrices."""

import re
from collections.abc import Sequence

from ..graph.pcg import Node
from .operator import Operator, register

register(
    Operator(
        "linear",
        ("x", "w", "bias"),
        "y[b.., o] = sum(i) x[b.., i] * w[o, i] + bias[o]",
        lambda node, names: f"F.linear({', '.join(names)})",
        saved=("x", "w"),
        saved_for=(("x", "w"), ("w", "x")),
        matmul=True,
    )
)


def _with_relu(node: Node, inputs: tuple[Node, ...]) -> str:
    """Nothing is known of ReLU, so the sum within is no sum of addends over ranks: `i` is whole."""
    if inputs[0].shape[-1:] != inputs[1].shape[-1:]:
        raise ValueError(f"a weight of shape {inputs[1].shape} cannot multiply shape {inputs[0].shape}")
    return f"y[b.., o] = f(x[b.., :], w[o, :]{', bias[o]' if len(inputs) > 2 else ''})"


def _linear_work(node: Node, inputs: tuple[Node, ...]) -> int:
    """As of the linear alone."""
    return node.numel * (2 * inputs[0].shape[-1] + 1)


# The sum before ReLU never reaches memory. Backward sets the gradient to zero where y is, in a kernel of its own.
register(
    Operator(
        "linear_relu",
        ("x", "w", "bias"),
        _with_relu,
        lambda node, names: f"linear_relu({', '.join(names)})",  # a helper of the program
        saved=("x", "w", "y"),
        flops=_linear_work,
        matmul=True,
        masked=True,
    )
)


def _matmul(node: Node, inputs: tuple[Node, ...]) -> str:
    a, b = (len(i.shape) for i in inputs)
    if a == 1 and b == 1:
        return "y[] = sum(k) a[k] * b[k]"
    if b == 1:
        return "y[b.., m] = sum(k) a[b.., m, k] * b[k]"
    if a == 1:
        return "y[b.., n] = sum(k) a[k] * b[b.., k, n]"
    return "y[b.., m, n] = sum(k) a[b.., m, k] * b[b.., k, n]"


def _einsum(node: Node, inputs: tuple[Node, ...]) -> str:
    """The equation itself, a letter an index; what the output lacks is summed."""
    sources, _, output = node["equation"].partition("->")
    terms = sources.split(",")
    if not re.fullmatch(r"[A-Za-z]*(,[A-Za-z]*)?->[A-Za-z]*", node["equation"]) or len(terms) != len(inputs):
        raise ValueError(f"{node['equation']!r} is no equation of {len(inputs)} operands")
    gone = [letter for letter in dict.fromkeys("".join(terms)) if letter not in output]
    product = " * ".join(f"{name}[{', '.join(term)}]" for name, term in zip("ab", terms, strict=False))
    return f"y[{', '.join(output)}] = " + (f"sum({', '.join(gone)}) " if gone else "") + product


def _equation(node: Node, names: Sequence[str]) -> str:
    return f'torch.einsum("{node["equation"]}", {", ".join(names)})'


for _name, _notation, _emit in (("einsum", _einsum, _equation), ("matmul", _matmul, "{a} @ {b}")):
    register(
        Operator(
            _name,
            ("a", "b"),
            _notation,
            _emit,
            saved=("a", "b"),
            saved_for=(("a", "b"), ("b", "a")),
            matmul=True,
        )
    )
