"""Table look-ups: an access indexed by another.

Ids count from the start of the whole table and are not negative. The table's gradient is dense, as large as the table,
or, for a `sparse` embedding, the rows looked up with their ids. Autograd keeps the ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..graph.pcg import Node
from . import sharded
from .algebra import Algebra
from .operator import Operator
from .sharded import Array, Attributes, IllTyped, Shape, ShardTasks, Signature

if TYPE_CHECKING:
    from torch import Tensor


def _embedding(node: Node, names: Sequence[str]) -> str:
    table, ids = names
    return f"F.embedding({ids}, {table}{_sparse(node)})"


def _sparse(node: Node) -> str:
    return ", sparse=True" if node.get("sparse") else ""


def _bag(node: Node, inputs: tuple[Node, ...]) -> str:
    """The weighted sum of the rows that a bag of ids names."""
    return "y[b, e] = sum(l) w[ids[b, l], e]" + (" * p[b, l]" if len(inputs) > 2 else "")


def _bag_work(node: Node, inputs: tuple[Node, ...]) -> int:
    return 2 * inputs[1].numel * node.shape[-1]


def _bag_call(node: Node, names: Sequence[str]) -> str:
    table, ids, *weights = names
    weighted = "".join(f", per_sample_weights={w}" for w in weights)
    return f'F.embedding_bag({ids}, {table}, mode="sum"{_sparse(node)}{weighted})'


def _gather(node: Node, inputs: tuple[Node, ...]) -> str:
    """One entry along `dim` per id; other dims of ids and tensor match or are broadcast."""
    names = [f"d{i}" for i in range(len(node.shape))]
    ids = f"ids[{', '.join(names)}]"
    inside = ", ".join(ids if d == node["dim"] else name for d, name in enumerate(names))
    return f"y[{', '.join(names)}] = x[{inside}]"


def _index(node: Node, inputs: tuple[Node, ...]) -> str:
    """The dims of the ids replace `dim`."""
    x, dim = inputs[0], node["dim"]
    names = [f"d{i}" for i in range(len(x.shape))]
    ids = [f"i{k}" for k in range(len(inputs[1].shape))]
    inside = [*names[:dim], f"ids[{', '.join(ids)}]", *names[dim + 1 :]]
    return f"y[{', '.join([*names[:dim], *ids, *names[dim + 1 :]])}] = x[{', '.join(inside)}]"


def _index_call(node: Node, names: Sequence[str]) -> str:
    x, ids = names
    return f"{x}[{':, ' * node['dim']}{ids}]"


def _embedding_shards(given: Attributes, shapes: Sequence[Shape]) -> Signature:
    """Rows by number; a shard of the table contributes its rows, zero for others."""
    w, ids = sharded.operands(shapes, 2)
    if len(w) != 2:
        raise IllTyped(f"an embedding takes w[rows, e], not {w}")
    batch = sharded.letters(len(ids))
    return Signature((("v", "e"), batch), ((*batch, "e"),), lambda t, a: [_rows(t, a[0], a[1], w[0])], ("v",))


def _rows(t: ShardTasks, table: Array, ids: Array, total: int) -> Array:
    whole = ids.astype(np.int64)
    if whole.size and not 0 <= whole.min() <= whole.max() < total:
        raise IllTyped(f"ids from {whole.min()} to {whole.max()} in a table of {total} rows")
    here = table.shape[1]
    local = whole - (t.position("v") * here).reshape(-1, *(1,) * (ids.ndim - 1))
    inside = (local >= 0) & (local < here)
    tasks = np.arange(table.shape[0]).reshape(-1, *(1,) * (ids.ndim - 1))
    return np.asarray(table[tasks, np.where(inside, local, 0)] * inside[..., None])


def _bag_shards(given: Attributes, shapes: Sequence[Shape]) -> Signature:
    """The sum of a bag's rows, weighted if there are weights."""
    w, ids, *weights = sharded.operands(shapes, 2, 3)
    if len(w) != 2 or len(ids) != 2 or any(shape != ids for shape in weights):
        raise IllTyped(f"a bag of embeddings takes w[rows, e], ids[b, l], weights[b, l], not {list(shapes)}")

    def local(t: ShardTasks, a: list[Array]) -> list[Array]:
        rows = _rows(t, a[0], a[1], w[0])
        rows = t.arithmetic.mul(rows, a[2][..., None]) if weights else rows
        return [t.arithmetic.sum(rows, 2)]

    bags = (("b", "l"),) * (1 + len(weights))
    return Signature((("v", "e"), *bags), (("b", "e"),), local, ("l", "v"))


def _bag_reference(node: Node, x: Sequence[Tensor]) -> Tensor:
    rows = x[0][x[1]]
    return (rows * x[2].unsqueeze(-1) if len(x) > 2 else rows).sum(1)


OPERATORS = (
    Operator(
        "embedding",
        ("w", "ids"),
        "y[b.., e] = w[ids[b..], e]",
        _embedding,
        saved=("ids",),
        reference=lambda node, x: x[0][x[1]],
        algebra=Algebra(_embedding_shards, table=True, changes_rank=True),
    ),
    Operator(
        "embedding_bag",
        ("w", "ids", "p"),
        _bag,
        _bag_call,
        saved=("ids", "p"),
        flops=_bag_work,
        reference=_bag_reference,
        algebra=Algebra(_bag_shards, table=True),
    ),
    Operator(
        "gather",
        ("x", "ids"),
        _gather,
        lambda node, names: f"{names[0]}.take_along_dim({names[1]}, {node['dim']})",
        saved=("ids",),
    ),
    Operator("index", ("x", "ids"), _index, _index_call, saved=("ids",), algebra=Algebra(changes_rank=True)),
)
