"""Reductions over dims, and running sums and products.

A mean divides by the whole count, also where the dim is split.
"""

from collections.abc import Sequence
from fractions import Fraction
from math import inf, prod

import numpy as np

from ..graph.pcg import Node
from . import sharded
from .algebra import Algebra
from .operator import Operator, along_dim
from .sharded import WHOLE, Array, Attributes, Evaluation, IllTyped, Shape, ShardTasks, Signature


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


def _sum_shards(mean: bool) -> Evaluation:
    def evaluation(given: Attributes, shapes: Sequence[Shape]) -> Signature:
        (shape,) = sharded.operands(shapes, 1)
        given_dims = given["dims"] if isinstance(given["dims"], tuple) else (given["dims"],)
        dims, keep = {sharded.dim_of(d, len(shape)) for d in given_dims}, bool(given.get("keepdim", False))
        all_names = sharded.letters(len(shape))
        kept = tuple(WHOLE if i in dims else n for i, n in enumerate(all_names) if keep or i not in dims)
        divisor = given.get("count", prod(shape[d] for d in dims)) if mean else 1

        def local(t: ShardTasks, a: list[Array]) -> list[Array]:
            total = t.arithmetic.sum(a[0], tuple(d + 1 for d in sorted(dims)), keepdims=keep)
            return [t.arithmetic.scale(total, Fraction(1, divisor)) if mean else total]

        return Signature((all_names,), (kept,), local, tuple(all_names[d] for d in sorted(dims)))

    return evaluation


def _amax_shards(given: Attributes, shapes: Sequence[Shape]) -> Signature:
    summed = _sum_shards(False)(given, shapes)
    gone, keep = summed.summed, bool(given.get("keepdim", False))
    whole = tuple(WHOLE if name in gone else name for name in summed.inputs[0])
    dims = tuple(i + 1 for i, name in enumerate(summed.inputs[0]) if name in gone)
    return Signature((whole,), summed.outputs, lambda t, a: [a[0].max(dims, keepdims=keep)])


def _logsumexp_shards(given: Attributes, shapes: Sequence[Shape]) -> Signature:
    whole = _amax_shards(given, shapes)
    dims = tuple(i + 1 for i, name in enumerate(whole.inputs[0]) if name == WHOLE)
    keep = bool(given.get("keepdim", False))

    def local(t: ShardTasks, a: list[Array]) -> list[Array]:
        f = t.arithmetic
        return [f.call(("log",), f.sum(f.call(("exp",), a[0]), dims, keepdims=keep))]

    return Signature(whole.inputs, whole.outputs, local)


def _norm_shards(given: Attributes, shapes: Sequence[Shape]) -> Signature:
    """Of order 1, 2 or infinity."""
    whole = _amax_shards(given, shapes)
    dims = tuple(i + 1 for i, name in enumerate(whole.inputs[0]) if name == WHOLE)
    order, keep = given.get("ord", 2), bool(given.get("keepdim", False))
    if order not in (1, 2, inf):
        raise IllTyped(f"a norm of order {order} is not evaluated")

    def local(t: ShardTasks, a: list[Array]) -> list[Array]:
        f = t.arithmetic
        if order == 2:
            return [f.call(("sqrt",), f.sum(f.mul(a[0], a[0]), dims, keepdims=keep))]
        sizes = f.call(("abs",), a[0])
        return [f.sum(sizes, dims, keepdims=keep) if order == 1 else sizes.max(dims, keepdims=keep)]

    return Signature(whole.inputs, whole.outputs, local)


def _cumsum_shards(given: Attributes, shapes: Sequence[Shape]) -> Signature:
    (shape,) = sharded.operands(shapes, 1)
    dim = sharded.dim_of(given["dim"], len(shape))
    whole = sharded.whole_along(shape, dim)
    return Signature((whole,), (whole,), lambda t, a: [t.arithmetic.reduced(np.cumsum(a[0], dim + 1))])


_KEEPDIM = {"keepdim": False}


OPERATORS = (
    Operator(
        "cumsum", ("x",), along_dim("L"), "torch.cumsum({x}, {dim})", algebra=Algebra(_cumsum_shards, keeps_sizes=True)
    ),
    Operator(
        "cumprod",
        ("x",),
        along_dim("f"),
        "torch.cumprod({x}, {dim})",
        saved=("x", "y"),
        algebra=Algebra(keeps_sizes=True),
    ),
    Operator(
        "logcumsumexp",
        ("x",),
        along_dim("f"),
        "torch.logcumsumexp({x}, {dim})",
        saved=("x", "y"),
        algebra=Algebra(keeps_sizes=True),
    ),
    *(
        Operator(name, ("x",), _reduced, emit, algebra=Algebra(_sum_shards(mean), defaults=_KEEPDIM, changes_rank=True))
        for name, emit, mean in (
            ("sum", "{x}.sum({dims}, keepdim={keepdim})", False),
            ("mean", "{x}.sum({dims}, keepdim={keepdim}) / {count}", True),
        )
    ),
    *(
        Operator(
            *(name, ("x",), _whole, emit),
            saved=("x", "y"),
            algebra=Algebra(shards, defaults=_KEEPDIM, any_order=True, changes_rank=True),
        )
        for name, emit, shards in (
            ("amax", "{x}.amax({dims}, keepdim={keepdim})", _amax_shards),
            ("amin", "{x}.amin({dims}, keepdim={keepdim})", None),
            ("logsumexp", "{x}.logsumexp({dims}, keepdim={keepdim})", _logsumexp_shards),
            ("norm", "torch.linalg.vector_norm({x}, {ord}, {dims}, keepdim={keepdim})", _norm_shards),
        )
    ),
)
