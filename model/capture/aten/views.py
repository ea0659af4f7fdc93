"""Views, slices, concatenation and constants."""

from math import prod

from ...graph.dtypes import FLOATS
from ..translation import A, Index, Rule, T, Value, dtype_name


def _view(t: T, a: A) -> Value:
    return t.no("bits read as another dtype") if "dtype" in a else t.view(a["self"], t.like.shape)


def _expand(t: T, a: A) -> Value:
    return t.expand(a["self"], tuple(int(size) for size in t.like.shape))


def _broadcast(t: T, a: A) -> Value:
    return [t.expand(x, tuple(int(size) for size in v.shape)) for x, v in zip(a["tensors"], t.like, strict=True)]


def _permute(t: T, a: A) -> Value:
    return t.permute(a["self"], [d % len(a["dims"]) for d in a["dims"]])


def _swap(first: str, second: str) -> Rule:
    return lambda t, a: t.transpose(a["self"], a[first], a[second])


def _last_two(t: T, a: A) -> Value:
    return t.transpose(a["self"], -2, -1) if len(t.shape(a["self"])) > 1 else a["self"]


def _reverse_dims(t: T, a: A) -> Value:
    return t.permute(a["self"], list(reversed(range(len(t.shape(a["self"]))))))


def _move_dims(t: T, a: A) -> Value:
    rank = len(t.shape(a["self"]))
    source, target = (
        [d % rank for d in (dims if isinstance(dims, list) else [dims])] for dims in (a["source"], a["destination"])
    )
    rest = iter(d for d in range(rank) if d not in source)
    return t.permute(a["self"], [source[target.index(d)] if d in target else next(rest) for d in range(rank)])


def _slice(t: T, a: A) -> Value:
    stop = a["end"]
    return t.slice(a["self"], a["dim"], a["start"] or 0, 2**62 if stop is None else stop, a["step"])


def _select(t: T, a: A) -> Value:
    x, dim, index = a["self"], a["dim"], a["index"]
    index %= t.shape(x)[dim]
    return t.view(t.slice(x, dim, index, index + 1), t.like.shape)


def _narrow(t: T, a: A) -> Value:
    return None if isinstance(a["start"], Index) else t.slice(a["self"], a["dim"], a["start"], a["start"] + a["length"])


def _split(t: T, a: A) -> Value:
    sizes = [int(v.shape[a["dim"]]) for v in t.like]
    return t.pieces(a["self"], a["dim"], sizes)


def _unbind(t: T, a: A) -> Value:
    x = a["self"]
    shape = t.shape(x)
    dim = a["dim"] % len(shape)
    return [t.view(t.slice(x, dim, i, i + 1), shape[:dim] + shape[dim + 1 :]) for i in range(shape[dim])]


def _cat(t: T, a: A) -> Value:
    parts = [x for x in a["tensors"] if prod(t.shape(x))]
    dim = a["dim"] % len(t.like.shape)
    return parts[0] if len(parts) == 1 else t.add("cat", *parts, dim=dim)


def _stack(t: T, a: A) -> Value:
    dim = a["dim"] % len(t.like.shape)
    parts = [t.view(x, (*t.shape(x)[:dim], 1, *t.shape(x)[dim:])) for x in a["tensors"]]
    return parts[0] if len(parts) == 1 else t.add("cat", *parts, dim=dim)


def _slice_scatter(t: T, a: A) -> Value:
    """`x` with `src` in the place of a slice: the entries before it, those of each step, and those after it."""
    x, src, dim = a["self"], a["src"], a["dim"] % len(t.shape(a["self"]))
    size, step = t.shape(x)[dim], a["step"]
    start, stop, _ = slice(a["start"], a["end"], step).indices(size)
    count = len(range(start, stop, step))
    if not count:
        return x
    parts = [t.slice(x, dim, 0, start)] if start else []
    turns = count if start + count * step <= size else count - 1  # those with all entries up to the next one
    if step == 1:
        parts.append(src)
    elif turns:
        before, after = t.shape(x)[:dim], t.shape(x)[dim + 1 :]
        rest = t.slice(
            t.view(t.slice(x, dim, start, start + turns * step), (*before, turns, step, *after)), dim + 1, 1, step
        )
        first = t.view(t.slice(src, dim, 0, turns), (*before, turns, 1, *after))
        both = t.add("cat", first, rest, shape=(*before, turns, step, *after), dim=dim + 1)
        parts.append(t.view(both, (*before, turns * step, *after)))
    end = start + turns * step
    if turns < count:
        parts.append(t.slice(src, dim, turns, count))
        end += 1
    if end < size:
        parts.append(t.slice(x, dim, end, size))
    return parts[0] if len(parts) == 1 else t.add("cat", *parts, shape=t.shape(x), dtype=t.at(x).dtype, dim=dim)


def _select_scatter(t: T, a: A) -> Value:
    x, shape, dim = a["self"], t.shape(a["self"]), a["dim"] % len(t.shape(a["self"]))
    index = a["index"] % shape[dim]
    src = t.view(a["src"], (*shape[:dim], 1, *shape[dim + 1 :]))
    return _slice_scatter(t, {"self": x, "src": src, "dim": dim, "start": index, "end": index + 1, "step": 1})


def _repeat(t: T, a: A) -> Value:
    x, repeats = a["self"], a["repeats"]
    shape = (1,) * (len(repeats) - len(t.shape(x))) + t.shape(x)
    unit = t.view(x, [size for s in shape for size in (1, s)])
    repeated = t.expand(unit, tuple(size for r, s in zip(repeats, shape, strict=True) for size in (r, s)))
    return t.view(repeated, t.like.shape)


def _repeat_interleave(t: T, a: A) -> Value:
    x, repeats = a.get("self"), a["repeats"]
    if x is None or isinstance(repeats, Index):
        return t.no("with repeats given by a tensor")
    flat = a["dim"] is None
    x = t.view(x, (prod(t.shape(x)),)) if flat else x
    dim = 0 if flat else a["dim"] % len(t.shape(x))
    return t.view(interleave(t, x, dim, repeats), t.like.shape)


def interleave(t: T, x: Index, dim: int, repeats: int) -> Index:
    """Repeat every entry along `dim` `repeats` times."""
    shape = t.shape(x)
    unit = t.view(x, (*shape[: dim + 1], 1, *shape[dim + 1 :]))
    repeated = t.expand(unit, (*shape[: dim + 1], repeats, *shape[dim + 1 :]))
    return t.view(repeated, (*shape[:dim], shape[dim] * repeats, *shape[dim + 1 :]))


def _pad(t: T, a: A) -> Value:
    """Padding; by zero entries it is the identity."""
    pad, mode, value = tuple(a["pad"]), a["mode"], a["value"] or 0.0
    return t.add("pad", a["self"], pad=pad, mode=mode, value=float(value)) if any(pad) else a["self"]


def _flip(*dims: int) -> Rule:
    def rule(t: T, a: A) -> Value:
        chosen = dims or a["dims"]
        rank = len(t.shape(a["self"]))
        return t.add("flip", a["self"], dims=tuple(d % rank for d in chosen)) if chosen else a["self"]

    return rule


def _roll(t: T, a: A) -> Value:
    """Roll; without dims, the flattened tensor."""
    x, shifts, dims = a["self"], tuple(a["shifts"]), a["dims"]
    shape = t.shape(x)
    if dims:
        return t.add("roll", x, shifts=shifts, dims=tuple(d % len(shape) for d in dims))
    flat = (prod(shape),)
    return t.view(t.add("roll", t.view(x, flat), shape=flat, shifts=shifts, dims=(0,)), shape)


def _full(name: str | float) -> Rule:
    def rule(t: T, a: A) -> Value:
        value = t.number(a[name]) if isinstance(name, str) else name
        if value is None:
            return None
        dtype = dtype_name(t.like.dtype)
        exact = float(value) if dtype in FLOATS else bool(value) if dtype == "bool" else int(value)
        return t.full(exact, tuple(int(s) for s in t.like.shape), dtype)

    return rule


def _arange(t: T, a: A) -> Value:
    return t.add("arange", start=a.get("start") or 0, stop=a["end"], step=a.get("step") or 1)


def _eye(t: T, a: A) -> Value:
    """The identity matrix: 1 where row and column are equal."""
    rows, columns = t.like.shape
    numbers = [t.add("arange", shape=(n,), dtype="int64", start=0, stop=n, step=1) for n in (rows, columns)]
    equal = t.add("relate", t.view(numbers[0], (rows, 1)), numbers[1], shape=t.like.shape, dtype="bool", relation="eq")
    return t.to(equal, t.like.dtype)


def _one_hot(t: T, a: A) -> Value:
    ids, classes = a["self"], a["num_classes"]
    t.limit(ids, classes)
    return t.to(hits(t, t.view(ids, (*t.shape(ids), 1)), len(t.shape(ids)), classes), "int64") if classes > 0 else None


def hits(t: T, ids: Index, dim: int, size: int) -> Index:
    """True where the position along `dim` equals the id; `ids` has size 1 there."""
    shape = t.shape(ids)
    numbers = t.add("arange", shape=(size,), dtype="int64", start=0, stop=size, step=1)
    numbers = t.view(numbers, (size, *(1 for _ in shape[dim + 1 :])))
    found = (*shape[:dim], size, *shape[dim + 1 :])
    return t.add("relate", ids, numbers, shape=found, dtype="bool", relation="eq")


def _diagonal(t: T, a: A) -> Value:
    """Every (columns + 1)th entry of the flattened matrix."""
    x, rank, offset = a["self"], len(t.shape(a["self"])), a["offset"]
    dims = [a["dim1"] % rank, a["dim2"] % rank]
    x = t.permute(x, [*(d for d in range(rank) if d not in dims), *dims])
    *before, rows, columns = t.shape(x)
    start = offset if offset >= 0 else -offset * columns
    count, step = int(t.like.shape[-1]), columns + 1
    flat = t.view(x, (*before, rows * columns))
    return t.slice(flat, -1, start, start + (count - 1) * step + 1, step) if count else t.no("of no entry")


def _triangle(op: str) -> Rule:
    return lambda t, a: t.add(op, a["self"], diagonal=a["diagonal"])


TABLE: dict[str, Rule] = {
    **dict.fromkeys(["view", "view_as", "_unsafe_view", "reshape", "reshape_as"], _view),
    **dict.fromkeys(["flatten", "unflatten", "ravel", "squeeze", "unsqueeze"], _view),
    "expand": _expand,
    "expand_as": _expand,
    "broadcast_to": _expand,
    "broadcast_tensors": _broadcast,
    "permute": _permute,
    "transpose": _swap("dim0", "dim1"),
    "swapaxes": _swap("axis0", "axis1"),
    "swapdims": _swap("dim0", "dim1"),
    "t": _last_two,
    "mT": _last_two,
    "numpy_T": _reverse_dims,
    "movedim": _move_dims,
    "moveaxis": _move_dims,
    "slice": _slice,
    "slice_scatter": _slice_scatter,
    "select": _select,
    "select_scatter": _select_scatter,
    "narrow": _narrow,
    **dict.fromkeys(["split", "split_with_sizes", "chunk", "tensor_split"], _split),
    "unbind": _unbind,
    "cat": _cat,
    "concat": _cat,
    "concatenate": _cat,
    "stack": _stack,
    "repeat": _repeat,
    "repeat_interleave": _repeat_interleave,
    **{name: _full("fill_value") for name in ["full", "full_like", "new_full"]},
    **{name: _full(1) for name in ["ones", "ones_like", "new_ones"]},
    **{name: _full(0) for name in ["zeros", "zeros_like", "new_zeros", "zero"]},
    **{name: _full(0) for name in ["empty", "empty_like", "empty_strided", "empty_permuted", "new_empty"]},
    "fill": _full("value"),
    "copy": lambda t, a: t.expand(t.to(a["src"], t.like.dtype), tuple(int(s) for s in t.like.shape)),
    "scalar_tensor": _full("s"),
    "arange": _arange,
    "eye": _eye,
    **dict.fromkeys(["diagonal", "diagonal_copy"], _diagonal),
    "one_hot": _one_hot,
    "pad": _pad,
    "constant_pad_nd": lambda t, a: _pad(t, a | {"mode": "constant"}),
    "flip": _flip(),
    "fliplr": _flip(1),
    "flipud": _flip(0),
    "roll": _roll,
    "tril": _triangle("tril"),
    "triu": _triangle("triu"),
}
