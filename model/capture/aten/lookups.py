"""Look-ups: embeddings, embedding bags, gather, indexing by integer tensors."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch

from ..translation import A, Index, Rule, T, Value, broadcast
from .bounds import bounds


def _embedding(t: T, a: A) -> Value:
    """The row of the padding index gets no gradient: its look-ups are detached."""
    if a["scale_grad_by_freq"]:
        return t.no("scale_grad_by_freq")
    ids, padding = a["indices"], a["padding_idx"]
    t.limit(ids, t.shape(a["weight"])[0])
    rows = t.add("embedding", a["weight"], ids, **_sparse(a))
    if padding < 0 or not t.at(rows).gradient:
        return rows
    where = t.add("compare", ids, shape=t.shape(ids), dtype="bool", relation="eq", value=padding)
    return t.add("where", t.view(where, (*t.shape(ids), 1)), t.add("detach", rows, gradient=False), rows)


def _sparse(a: A) -> dict[str, bool]:
    return {"sparse": True} if a["sparse"] else {}


def _embedding_bag(t: T, a: A) -> Value:
    """Bags of equal size, from flat ids and the offsets of bags; a mean is a scaled sum."""
    table, ids, mode = a["weight"], a["indices"], ("sum", "mean", "max")[a["mode"]]
    offsets, bags = t.at(a["offsets"]), t.shape(a["offsets"])[0]
    padding = a.get("padding_idx")
    if mode == "max" or a["scale_grad_by_freq"] or (padding is not None and padding >= 0):
        return t.no("only sums and means of bags without padding are known")
    if offsets.op != "arange" or offsets["start"] or offsets["step"] * bags != t.shape(ids)[0]:
        return t.no("bags must be of one size: give the ids as a matrix, without offsets")
    size = offsets["step"]
    ids = t.view(ids, (bags, size))
    t.limit(ids, t.shape(table)[0])
    weights = [t.view(p, (bags, size)) for p in (a["per_sample_weights"],) if p is not None]
    bag = t.add("embedding_bag", table, ids, *weights, like=t.like[0], **_sparse(a))
    return [t.scale(bag, 1 / size) if mode == "mean" else bag, None, None, None]


def look_up(t: T, op: str, x: Index, ids: Index, **attributes: Any) -> Index:
    """Look truth values up as numbers, since the hits of several ranks are added up."""
    if t.at(x).dtype != "bool":
        return t.add(op, x, ids, **attributes)
    return t.to(t.add(op, t.to(x, "uint8"), ids, dtype="uint8", **attributes), "bool")


def _gather(t: T, a: A) -> Value:
    """Gather; dims other than `dim` are cut to the size of the ids."""
    x, ids = a["self"], a["index"]
    if not t.shape(x) or not t.shape(ids):
        return t.no("a tensor without dims")
    dim = a["dim"] % len(t.shape(x))
    for d, size in enumerate(t.shape(ids)):
        x = x if d == dim else t.slice(x, d, 0, size)
    return _take_along(t, x, t.to(narrow(t, ids, dim), "int64"), dim)


def narrow(t: T, ids: Index, dim: int) -> Index:
    """Ids before an expansion along dims other than `dim`, which the operator broadcasts itself."""
    node = t.at(ids)
    source = Index(node.inputs[0]) if node.op == "expand" else ids
    same = len(t.shape(source)) == len(node.shape) and t.shape(source)[dim] == node.shape[dim]
    return source if same else ids


def _along(t: T, a: A) -> Value:
    """take_along_dim: dims other than `dim` are broadcast; without `dim`, both tensors are flattened."""
    x, ids, dim = a["self"], a["indices"], a["dim"]
    if dim is None:
        x, ids, dim = (*(t.view(i, (t.at(i).numel,)) for i in (x, ids)), 0)
    return _take_along(t, x, ids, dim % len(t.shape(x)))


def _take_along(t: T, x: Index, ids: Index, dim: int) -> Index:
    t.limit(ids, t.shape(x)[dim])
    return look_up(t, "gather", x, ids, dim=dim)


@dataclass(frozen=True)
class Joined:
    """Several index tensors as one, `ids`, into one dim of `x` made of theirs; `before` and `after`: its other dims."""

    x: Index
    ids: Index
    before: tuple[int, ...]
    after: tuple[int, ...]
    sizes: tuple[int, ...]
    order: tuple[int, ...]

    def back(self, t: T, y: Index) -> Index:
        """A tensor like `x` with the dims that the indexed tensor has."""
        y = t.view(y, (*self.before, *self.sizes, *self.after))
        return t.permute(y, [self.order.index(d) for d in range(len(self.order))])


def joined(t: T, x: Index, indices: Sequence[Index | None]) -> Joined:
    """Index tensors of some dims of `x`; dims that are not adjacent are moved to the front, as PyTorch does."""
    given = [d for d, i in enumerate(indices) if i is not None]
    tensors = [i for i in indices if i is not None]
    order = tuple(range(len(t.shape(x))))
    if given != list(range(given[0], given[-1] + 1)):
        order = (*given, *(d for d in order if d not in given))
        given = list(range(len(given)))
    x = t.permute(x, order)
    shape = t.shape(x)
    sizes = [shape[d] for d in given]
    ids, size = counted(t, tensors[0], sizes[0]), sizes[0]
    for other, more in zip(tensors[1:], sizes[1:], strict=True):
        inner = counted(t, other, more)
        both = broadcast(t.shape(ids), t.shape(inner))
        ids, size = t.add("add", t.scale(ids, more), inner, shape=both), size * more
    before, after = shape[: given[0]], shape[given[-1] + 1 :]
    return Joined(t.view(x, (*before, size, *after)), ids, before, after, tuple(sizes), order)


def _index(t: T, a: A) -> Value:
    """`x[:, i, j]`."""
    x, indices = a["self"], a["indices"]
    if any(i is not None and t.at(i).dtype in ("bool", "uint8") for i in indices):
        raise t.refusal(
            "indexing by a boolean mask, whose size depends on the data,",
            "use torch.where(mask, x, 0), and divide by mask.sum() for a mean",
        )
    whole = _whole(t, x, indices)
    if whole is not None:
        return whole
    at = joined(t, x, indices)
    return _rows(t, at.x, len(at.before), at.ids)


def _whole(t: T, x: Index, indices: Sequence[Index | None]) -> Index | None:
    """`x[i, j]` where each index counts all of its dim, along a dim of its own of the result: the dims of `x`, moved.

    So masks of transformers read an attention mask, for each sample and key. None for other indices.
    """
    axes: dict[int, int] = {}
    shape: tuple[int, ...] = ()
    for dim, index in enumerate(indices):
        if index is None:
            continue
        axis = _counted_axis(t, index, t.shape(x)[dim])
        if axis is None or axis in axes.values():
            return None
        axes[dim] = axis
        shape = broadcast(shape, t.shape(index))
    if prod(shape) != prod(t.shape(x)[dim] for dim in axes):
        return None
    dims, others = sorted(axes), [d for d in range(len(t.shape(x))) if d not in axes]
    first = dims[0] if dims == list(range(dims[0], dims[-1] + 1)) else 0  # PyTorch puts separate ones to the front
    before, after = others[:first], others[first:]
    sizes = t.shape(x)
    y = t.permute(x, (*before, *sorted(dims, key=axes.__getitem__), *after))
    return t.view(y, (*(sizes[d] for d in before), *shape, *(sizes[d] for d in after)))


def _counted_axis(t: T, index: Index, size: int) -> int | None:
    """The dim, counted from the back, along which an index is 0 to size - 1 and equal along all others."""
    known = t.known.of(index) if prod(t.shape(index)) == size > 1 else None
    if known is None or not torch.equal(known.flatten(), torch.arange(size)):
        return None
    return t.shape(index).index(size) - known.dim()


def counted(t: T, ids: Index, size: int) -> Index:
    """Ids counted from the start of a dim: the size is added to negative ones."""
    t.limit(ids, size)
    node = t.at(ids)
    if bounds(t, ids)[0] >= 0:
        return ids
    if node.op == "constant":
        return t.add("constant", shape=node.shape, dtype=node.dtype, values=tuple(v % size for v in node["values"]))
    negative = t.add("compare", ids, shape=node.shape, dtype="bool", relation="lt", value=0)
    counted = t.add("shift", ids, shape=node.shape, dtype=node.dtype, value=size)
    return t.add("where", negative, counted, ids, shape=node.shape, dtype=node.dtype)


def _rows(t: T, x: Index, dim: int, ids: Index) -> Index:
    """Rows of `x` along `dim`; for a matrix, an embedding."""
    if dim == 0 and len(t.shape(x)) == 2:
        return look_up(t, "embedding", x, ids)
    return look_up(t, "index", x, ids, dim=dim)


def _index_select(t: T, a: A) -> Value:
    x, ids = a["self"], a["index"]
    if not t.shape(x):
        return t.no("a tensor without dims")
    dim = a["dim"] % len(t.shape(x))
    return _rows(t, x, dim, counted(t, t.view(ids, (t.at(ids).numel,)), t.shape(x)[dim]))


def _take(t: T, a: A) -> Value:
    x, size = a["self"], t.at(a["self"]).numel
    return _rows(t, t.view(x, (size,)), 0, counted(t, a["index"], size))


TABLE: dict[str, Rule] = {
    "embedding": _embedding,
    "embedding_bag": _embedding_bag,
    "gather": _gather,
    "take_along_dim": _along,
    "index": _index,
    "index_select": _index_select,
    "take": _take,
}
