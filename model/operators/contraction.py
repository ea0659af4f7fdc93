"""Products of matrices."""

from ..operator import Operator, register
from ..pcg import Node

register(
    Operator(
        "linear",
        ("x", "w", "bias"),
        "y[b.., o] = sum(i) x[b.., i] * w[o, i] + bias[o]",
        lambda node, names: f"F.linear({', '.join(names)})",
        saved=("x", "w"),
        matmul=True,
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


register(Operator("matmul", ("a", "b"), _matmul, "{a} @ {b}", saved=("a", "b"), matmul=True))
