"""Scatters: index_add, index_put, scatter and the like become sums, replacements or extremes by ids along one dim."""

from collections.abc import Sequence

from ...graph.dtypes import FLOATS
from ..translation import A, Index, Rule, T, Value
from .lookups import counted, joined, look_up, narrow


def _sums(t: T, x: Index, dim: int, ids: Index, s: Index) -> Index:
    """`x` plus the entries of `s` at their ids; zeros are not added."""
    sums = t.add("scatter_add", ids, s, shape=t.shape(x), dtype=t.at(s).dtype, dim=dim)
    return sums if t.is_zero(x) else t.add("add", x, sums, shape=t.shape(x))


def _means(t: T, x: Index, dim: int, ids: Index, s: Index, include_self: bool) -> Index:
    """Sums over counts, which are sums of ones. Places without entries keep what they have."""
    dtype = t.at(s).dtype
    counts_shape = [n if d == dim else m for d, (n, m) in enumerate(zip(t.shape(x), t.shape(ids), strict=True))]
    ones = t.full(1.0, t.shape(ids), dtype)
    counts = t.add("scatter_add", ids, ones, shape=counts_shape, dtype=dtype, dim=dim)
    if include_self:
        return t.add("div", _sums(t, x, dim, ids, s), t.shift(counts, 1), shape=t.shape(x))
    sums = t.add("scatter_add", ids, s, shape=t.shape(x), dtype=dtype, dim=dim)
    at_least_one = t.add("clamp", counts, shape=counts_shape, min=1, max=None)
    means = t.add("div", sums, at_least_one, shape=t.shape(x))
    if t.is_zero(x):
        return means
    empty = t.add("compare", counts, shape=counts_shape, dtype="bool", relation="eq", value=0)
    return t.add("where", empty, x, means, shape=t.shape(x))


def _reduced(t: T, x: Index, dim: int, ids: Index, s: Index, reduce: str, include_self: bool = True) -> Value:
    """What scatter_reduce computes; `reduce` has the names of all of PyTorch's ways to call it."""
    reduce = {"add": "sum", "multiply": "prod"}.get(reduce, reduce)
    if reduce == "mean" and t.at(s).dtype not in FLOATS:
        return t.no("a mean of integers")
    if reduce == "mean":
        return _means(t, x, dim, ids, s, include_self)
    if reduce == "sum" and (include_self or t.is_zero(x)):
        return _sums(t, x, dim, ids, s)
    ids = t.expand(ids, t.shape(s))
    return t.add("scatter_reduce", x, ids, s, shape=t.shape(x), dim=dim, reduce=reduce, include_self=include_self)


def _operands(t: T, a: A, name: str) -> tuple[Index, int, Index, Index] | None:
    """(x, dim, ids, s) of a call in which ids have as many dims as `s`, cut to the shape of the ids.

    None where `x` has entries beside those that ids reach: along all dims but one they must have one size.
    """
    x, ids, s = a["self"], a["index"], a[name]
    if not t.shape(x) or not t.shape(ids):
        t.no("a tensor without dims")
        return None
    dim = a["dim"] % len(t.shape(x))
    if any(n != m for d, (n, m) in enumerate(zip(t.shape(x), t.shape(ids), strict=True)) if d != dim):
        t.no(f"ids of shape {t.shape(ids)} for a tensor of shape {t.shape(x)}: slice the tensor first")
        return None
    for d, size in enumerate(t.shape(ids)):
        s = t.slice(s, d, 0, size)
    t.limit(ids, t.shape(x)[dim])
    return x, dim, narrow(t, ids, dim), s


def _scatter_add(t: T, a: A) -> Value:
    found = _operands(t, a, "src")
    return None if found is None else _sums(t, *found)


def _scatter_reduce(t: T, a: A) -> Value:
    found = _operands(t, a, "src")
    return None if found is None else _reduced(t, *found, a["reduce"], a["include_self"])


def _scatter(t: T, a: A) -> Value:
    """With `src` or a number; with `reduce`, scatter_reduce by its former name."""
    if "src" not in a:
        if a.get("reduce") is not None:
            return t.no("scatter of a number with reduce; use scatter_reduce")
        found = _operands(t, a | {"src": a["index"]}, "src")
        if found is None:
            return None
        (x, dim, _, _), value = found, t.number(a["value"])
        return (
            t.no("a number that is computed")
            if value is None
            else t.add("scatter", x, a["index"], dim=dim, value=value)
        )
    found = _operands(t, a, "src")
    if found is None:
        return None
    if a.get("reduce") is not None:
        return _reduced(t, *found, a["reduce"])
    return _written(t, *found)


def _written(t: T, x: Index, dim: int, ids: Index, s: Index) -> Index:
    return t.add("scatter", x, ids, s, shape=t.shape(x), dim=dim)


def _rows(t: T, a: A) -> tuple[Index, int, Index] | None:
    """(x, dim, ids) of a call with one id for a whole row of `x`; ids get size 1 along the other dims."""
    x, ids = a["self"], a["index"]
    if not t.shape(x):
        t.no("a tensor without dims")
        return None
    dim, count = a["dim"] % len(t.shape(x)), t.at(ids).numel
    flat = counted(t, t.view(ids, (count,)), t.shape(x)[dim])
    return x, dim, t.view(flat, [count if d == dim else 1 for d in range(len(t.shape(x)))])


def _index_add(t: T, a: A) -> Value:
    found = _rows(t, a)
    return None if found is None else _sums(t, *found, t.scale(a["source"], a["alpha"]))


def _index_copy(t: T, a: A) -> Value:
    found = _rows(t, a)
    return None if found is None else _written(t, *found, a["source"])


def _index_reduce(t: T, a: A) -> Value:
    found = _rows(t, a)
    return None if found is None else _reduced(t, *found, a["source"], a["reduce"], a["include_self"])


def _index_fill(t: T, a: A) -> Value:
    found = _rows(t, a)
    if found is None:
        return None
    (x, dim, ids), value = found, a["value"]
    number = t.number(value)
    if number is not None:
        s = [t.at(ids).numel if d == dim else n for d, n in enumerate(t.shape(x))]
        return _written(t, x, dim, ids, t.expand(t.full(number, (), t.at(x).dtype), s))
    # An id that occurs twice must not give the value's gradient twice.
    shape = [n if d == dim else 1 for d, n in enumerate(t.shape(x))]
    ones = t.full(1.0, t.shape(ids), "float32")
    counts = t.add("scatter_add", ids, ones, shape=shape, dtype="float32", dim=dim)
    filled = t.add("compare", counts, shape=shape, dtype="bool", relation="gt", value=0)
    return t.add("where", filled, t.to(value, t.at(x).dtype), x, shape=t.shape(x), dtype=t.at(x).dtype)


def _index_put(t: T, a: A) -> Value:
    """`x[:, i, j] = values`, or `+=` with `accumulate`."""
    x, indices, values = a["self"], a["indices"], t.to(a["values"], t.at(a["self"]).dtype)
    if any(i is not None and t.at(i).dtype in ("bool", "uint8") for i in indices):
        return _masked_put(t, x, indices, values, a["accumulate"])
    at = joined(t, x, indices)
    before, after, count = at.before, at.after, t.at(at.ids).numel
    s = t.view(t.expand(values, (*before, *t.shape(at.ids), *after)), (*before, count, *after))
    ids = t.view(at.ids, (*(1 for _ in before), count, *(1 for _ in after)))
    made = (_sums if a["accumulate"] else _written)(t, at.x, len(before), ids, s)
    return at.back(t, made)


def _masked_put(t: T, x: Index, indices: Sequence[Index | None], values: Index, accumulate: bool) -> Value:
    """`x[mask] = values` with values that are the same however many places the mask has."""
    given = [d for d, i in enumerate(indices) if i is not None]
    mask = indices[given[0]]
    assert mask is not None
    dim, rank, shape = given[0], len(t.shape(mask)), t.shape(x)
    behind = shape[dim + rank :]
    several = len(t.shape(values)) > len(behind) and t.shape(values)[-len(behind) - 1] != 1
    if len(given) > 1 or (several or (dim and t.shape(values))):
        raise t.refusal(
            "an assignment to a boolean mask of values whose number depends on the data",
            "write torch.where(mask, values, x) with values of the shape of x",
        )
    mask = t.view(mask, (*(1 for _ in range(dim)), *t.shape(mask), *(1 for _ in behind)))
    values = t.view(values, t.shape(values)[-len(behind) :] if behind else ())
    if accumulate:
        values = t.add("add", x, values, shape=shape)
    return t.add("where", mask, values, x, shape=shape)


def _masked_scatter(t: T, a: A) -> Value:
    """The entries of `source` in order, where the mask is true: entry number n where it is true for the n-th time."""
    shape, count = tuple(int(size) for size in t.like.shape), t.at(a["source"]).numel
    x = t.expand(a["self"], shape)
    mask = t.expand(a["mask"], shape)
    number = t.to(t.view(mask, (t.at(mask).numel,)), "int64")
    number = t.shift(t.add("cumsum", number, shape=t.shape(number), dtype="int64", dim=0), -1)
    number = t.add("clamp", number, shape=t.shape(number), dtype="int64", min=0, max=count - 1)
    entries = look_up(t, "index", t.view(a["source"], (count,)), number, shape=t.shape(number), dim=0)
    return t.add("where", mask, t.view(entries, shape), x)


TABLE: dict[str, Rule] = {
    "scatter_add": _scatter_add,
    "scatter_reduce": _scatter_reduce,
    "scatter": _scatter,
    "masked_scatter": _masked_scatter,
    "index_add": _index_add,
    "index_copy": _index_copy,
    "index_fill": _index_fill,
    "index_reduce": _index_reduce,
    "index_put": _index_put,
    "_index_put_impl": _index_put,
    "_unsafe_index_put": _index_put,
}
