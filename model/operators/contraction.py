"""Products of matrices."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..graph.pcg import Node
from . import sharded
from .algebra import Algebra, Rewriting, require
from .operator import Operator
from .sharded import WHOLE, Array, Attributes, IllTyped, Shape, ShardTasks, Signature

if TYPE_CHECKING:
    from torch import Tensor


def _linear_shards(given: Attributes, shapes: Sequence[Shape]) -> Signature:
    x, w, *bias = sharded.operands(shapes, 2, 3)
    if not x or len(w) != 2:
        raise IllTyped(f"linear takes x[.., i] and w[o, i], not {x} and {w}")
    batch = sharded.letters(len(x) - 1)

    def local(t: ShardTasks, a: list[Array]) -> list[Array]:
        f, flat = t.arithmetic, a[0].reshape(a[0].shape[0], -1, a[0].shape[-1])
        y = f.einsum("tbi,toi->tbo", flat, a[1]).reshape(*a[0].shape[:-1], a[1].shape[1])
        return [sharded.activated(t, given, f.add(y, sharded.ranked(a[2], len(x))) if bias else y)]

    return Signature(((*batch, "i"), ("o", "i"), *(("o",) for _ in bias)), ((*batch, "o"),), local, ("i",))


def _linear_relu_shards(given: Attributes, shapes: Sequence[Shape]) -> Signature:
    """The contracted dim must be whole."""
    plain = _linear_shards({**given, "activation": "relu"}, shapes)
    inputs = tuple(tuple(WHOLE if name == "i" else name for name in operand) for operand in plain.inputs)
    return Signature(inputs, plain.outputs, plain.local)


def _matmul_shards(given: Attributes, shapes: Sequence[Shape]) -> Signature:
    a, b = sharded.operands(shapes, 2)
    if not a or not b:
        raise IllTyped(f"matmul takes tensors of at least one dim, not {a} and {b}")
    rows, columns = ("m",) * (len(a) > 1), ("n",) * (len(b) > 1)
    rank = max(len(a), len(b), 2) - 2
    batches = [shape[: max(len(shape) - 2, 0)] for shape in (a, b)]
    left, right = sharded.broadcast(batches, rank)

    def local(t: ShardTasks, args: list[Array]) -> list[Array]:
        x = sharded.ranked(args[0] if rows else args[0][:, None, :], rank + 2)
        w = sharded.ranked(args[1] if columns else args[1][:, :, None], rank + 2)
        y = t.arithmetic.sum(t.arithmetic.mul(x[..., :, :, None], w[..., None, :, :]), -2)
        y = y if columns else y[..., 0]
        y = y if rows else y[..., 0, :] if columns else y[..., 0]
        return [sharded.activated(t, given, y)]

    inputs = ((*left, *rows, "k"), (*right, "k", *columns))
    return Signature(inputs, ((*sharded.letters(rank), *rows, *columns),), local, ("k",))


def _einsum_shards(given: Attributes, shapes: Sequence[Shape]) -> Signature:
    equation = given["equation"].replace(" ", "")
    sources, _, output = equation.partition("->")
    terms = sources.split(",")
    if [len(set(term)) for term in terms] != [len(shape) for shape in shapes]:
        raise IllTyped(f"{equation} does not fit tensors of shapes {', '.join(map(str, shapes))}")
    gone = tuple(dict.fromkeys(c for c in "".join(terms) if c not in output))
    tasks = next(c for c in map(chr, range(0x100, 0x200)) if c not in equation)
    with_tasks = ",".join(tasks + term for term in terms) + "->" + tasks + output
    return Signature(
        tuple(map(tuple, terms)), (tuple(output),), lambda t, a: [t.arithmetic.einsum(with_tasks, *a)], gone
    )


def _linear_shape(shapes: Sequence[Shape], attributes: Attributes) -> Shape:
    x, w, *bias = shapes
    require(len(w) == 2 and x[-1] == w[1] and all(b == (w[0],) for b in bias))
    return (*x[:-1], w[0])


def _matmul_shape(shapes: Sequence[Shape], attributes: Attributes) -> Shape:
    a, b = shapes
    require(len(a) >= 2 and len(a) == len(b) and a[:-2] == b[:-2] and a[-1] == b[-2])
    return (*a[:-1], b[-1])


_LINEAR_REWRITING = Rewriting(_linear_shape, leading=True)


def _with_relu(node: Node, inputs: tuple[Node, ...]) -> str:
    """ReLU is opaque, so the sum inside cannot be split into addends: `i` is whole."""
    if inputs[0].shape[-1:] != inputs[1].shape[-1:]:
        raise ValueError(f"a weight of shape {inputs[1].shape} cannot multiply shape {inputs[0].shape}")
    return f"y[b.., o] = f(x[b.., :], w[o, :]{', bias[o]' if len(inputs) > 2 else ''})"


def _linear_work(node: Node, inputs: tuple[Node, ...]) -> int:
    """The work of the linear alone."""
    return node.numel * (2 * inputs[0].shape[-1] + 1)


def _linear_relu(node: Node, x: Sequence[Tensor]) -> Tensor:
    import torch.nn.functional as F

    return F.linear(*x).relu()


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
    """The equation itself, one letter per index; those that the output lacks are summed."""
    sources, _, output = node["equation"].partition("->")
    terms = sources.split(",")
    if not re.fullmatch(r"[A-Za-z]*(,[A-Za-z]*)?->[A-Za-z]*", node["equation"]) or len(terms) != len(inputs):
        raise ValueError(f"{node['equation']!r} is not an equation of {len(inputs)} operands")
    gone = [letter for letter in dict.fromkeys("".join(terms)) if letter not in output]
    product = " * ".join(f"{name}[{', '.join(term)}]" for name, term in zip("ab", terms, strict=False))
    return f"y[{', '.join(output)}] = " + (f"sum({', '.join(gone)}) " if gone else "") + product


def _equation(node: Node, names: Sequence[str]) -> str:
    return f'torch.einsum("{node["equation"]}", {", ".join(names)})'


def _grouped_work(node: Node, inputs: tuple[Node, ...]) -> int:
    """Every row meets one matrix."""
    return 2 * inputs[0].numel * node.shape[1]


def grouped_product(a: Tensor, b: Tensor, ends: Tensor) -> Tensor:
    """`torch._grouped_mm` in any dtype: each group multiplies its part of the dim that `ends` cuts.

    That is the rows of `a` (2 by 3 dims), the columns of `b` (3 by 2), or what is summed (2 by 2). What is behind the
    last end is zero.
    """
    import torch

    stops = ends.tolist()
    if a.dim() == b.dim() == 2:
        pairs = zip(a.tensor_split(stops, 1)[:-1], b.tensor_split(stops, 0)[:-1], strict=True)
        return torch.stack([x @ y for x, y in pairs])
    if b.dim() == 3:
        *parts, rest = a.tensor_split(stops)
        made = [x @ y for x, y in zip(parts, b, strict=True)]
        return torch.cat([*made, rest.new_zeros(rest.shape[0], b.shape[2])])
    *parts, rest = b.tensor_split(stops, 1)
    made = [x @ y for x, y in zip(a, parts, strict=True)]
    return torch.cat([*made, rest.new_zeros(a.shape[1], rest.shape[1])], 1)


def _gradients(node: Node, inputs: tuple[Node, ...]) -> int:
    """A product, or the sum for a bias, for every input with a gradient."""
    return sum(source.gradient for source in inputs)


OPERATORS = (
    # Rows in groups, each with a matrix of its own; group e ends before row ends[e].
    Operator(
        "grouped_product",
        ("x", "w", "ends"),
        "y[s, o] = sum(i, e) x[s, i] * w[e, i, o] * f(ends[:])[s, e]",
        lambda node, names: f"grouped_product({', '.join(names)})",  # a helper of the program
        saved=("x", "w", "ends"),
        saved_for=(("x", "w"), ("w", "x")),
        flops=_grouped_work,
        matmul=True,
        called_back=_gradients,
        reference=lambda node, x: grouped_product(*x),
        captures="transformers::grouped_mm_fallback",
    ),
    Operator(
        "linear",
        ("x", "w", "bias"),
        "y[b.., o] = sum(i) x[b.., i] * w[o, i] + bias[o]",
        lambda node, names: f"F.linear({', '.join(names)})",
        saved=("x", "w"),
        saved_for=(("x", "w"), ("w", "x")),
        matmul=True,
        called_back=_gradients,
        algebra=Algebra(_linear_shards, changes_rank=True),
        rewriting=_LINEAR_REWRITING,
    ),
    # The sum before ReLU never reaches memory. Backward sets the gradient to zero where y is, in a kernel of its own.
    Operator(
        "linear_relu",
        ("x", "w", "bias"),
        _with_relu,
        lambda node, names: f"linear_relu({', '.join(names)})",  # a helper of the program
        saved=("x", "w", "y"),
        flops=_linear_work,
        matmul=True,
        called_back=_gradients,
        masked=True,
        reference=_linear_relu,
        algebra=Algebra(_linear_relu_shards),
        rewriting=_LINEAR_REWRITING,
    ),
    *(
        Operator(
            *(name, ("a", "b"), notation, emit),
            saved=("a", "b"),
            saved_for=(("a", "b"), ("b", "a")),
            matmul=True,
            called_back=_gradients,
            algebra=Algebra(shards, changes_rank=name == "einsum"),
            rewriting=rewriting,
        )
        for name, notation, emit, shards, rewriting in (
            ("einsum", _einsum, _equation, _einsum_shards, None),
            ("matmul", _matmul, "{a} @ {b}", _matmul_shards, Rewriting(_matmul_shape)),
        )
    ),
)
