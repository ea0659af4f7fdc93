"""What layers do to a shard: normalization, convolution, pooling, embedding and attention.

Spatial dims are whole where windows reach beyond a place. A causal attention and an embedding with split rows know
which part a task has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import product
from math import prod
from typing import Any

import numpy as np

from .arithmetic import Array
from .signature import (
    WHOLE,
    Attributes,
    Entry,
    Shape,
    Signature,
    Tasks,
    broadcast,
    finished,
    names,
    ranked,
    soft,
    some,
)
from .values import IllTyped

EPS = 1e-5


def _normalized(centered: bool) -> Entry:
    """Layer norm, or without the mean: RMS norm."""

    def entry(given: Attributes, shapes: Sequence[Shape]) -> Signature:
        operands = _operands(given, ("x", "w", "bias"), shapes)
        x, count = shapes[0], given.get("normalized", 1)
        if not 0 < count <= len(x) or any(shape != x[len(x) - count :] for shape in shapes[1:]):
            raise IllTyped(f"a norm of the last {count} dims of {x} with weights of shapes {list(shapes[1:])}")
        batch, whole = names(len(x) - count), (WHOLE,) * count
        dims = tuple(range(1 + len(batch), 1 + len(x)))

        def local(t: Tasks, a: list[Array]) -> list[Array]:
            f, values = t.arithmetic, dict(zip(operands, a, strict=True))
            y = _standardized(t, values["x"], dims, centered, given.get("eps", EPS))
            y = f.mul(y, ranked(values["w"], len(x))) if "w" in values else y
            return [f.add(y, ranked(values["bias"], len(x))) if "bias" in values else y]

        return Signature(((*batch, *whole), *(whole for _ in shapes[1:])), ((*batch, *whole),), local)

    return entry


def _standardized(t: Tasks, x: Array, dims: tuple[int, ...], centered: bool, eps: float) -> Array:
    f, share = t.arithmetic, Fraction(1, prod(x.shape[d] for d in dims))
    if centered:
        x = f.sub(x, f.scale(f.sum(x, dims, keepdims=True), share))
    variance = f.scale(f.sum(f.mul(x, x), dims, keepdims=True), share)
    return f.mul(x, _rsqrt(t, variance, eps))


def _rsqrt(t: Tasks, variance: Array, eps: float) -> Array:
    f = t.arithmetic
    return f.call(("rsqrt",), f.add(variance, f.constant(eps)))


def _operands(given: Attributes, every: tuple[str, ...], shapes: Sequence[Shape]) -> tuple[str, ...]:
    """The names of the operands, those of the attribute or the first."""
    found = tuple(given.get("operands") or every[: len(shapes)])
    if len(found) != len(shapes) or not set(found) <= set(every):
        raise IllTyped(f"operands {', '.join(found)} for {len(shapes)} tensors; there are {', '.join(every)}")
    return found


def _channels(x: Shape) -> tuple[str, ...]:
    if len(x) < 2:
        raise IllTyped(f"a tensor of shape {x} has no channels")
    return ("n", "c", *names(len(x) - 2))


def _moments(given: Attributes, shapes: Sequence[Shape]) -> Signature:
    """y[0, c] sums x, y[1, c] its squares."""
    (x,) = some(shapes, 1)
    letters = _channels(x)
    dims = tuple(d + 1 for d in range(len(x)) if d != 1)

    def local(t: Tasks, a: list[Array]) -> list[Array]:
        f = t.arithmetic
        return [np.stack([f.sum(a[0], dims), f.sum(f.mul(a[0], a[0]), dims)], 1)]

    return Signature((letters,), ((WHOLE, "c"),), local, tuple(name for name in letters if name != "c"))


def _batch_norm(local_statistics: bool) -> Entry:
    """By the statistics of a shard, or by sums of the whole batch; running statistics are only passed on."""
    first = ("x",) if local_statistics else ("x", "s")

    def entry(given: Attributes, shapes: Sequence[Shape]) -> Signature:
        every = (*first, "mean", "var", "w", "bias")
        operands = _operands(given, every, shapes) if "operands" in given else (*first, "w", "bias")[: len(shapes)]
        letters, x = _channels(shapes[0]), shapes[0]
        space = (WHOLE,) * (len(x) - 2) if local_statistics else letters[2:]
        wide = ("n", "c", *space)
        count = given.get("count", prod(x) // x[1])

        def local(t: Tasks, a: list[Array]) -> list[Array]:
            f, values = t.arithmetic, dict(zip(operands, a, strict=True))
            x = values["x"]
            if local_statistics:
                dims = tuple(d for d in range(1, x.ndim) if d != 2)
                y = _standardized(t, x, dims, True, given.get("eps", EPS))
            else:
                mean, square = np.moveaxis(f.scale(values["s"], Fraction(1, count)), 1, 0)
                variance = f.sub(square, f.mul(mean, mean))
                scale = _by_channel(_rsqrt(t, variance, given.get("eps", EPS)), x)
                y = f.mul(f.sub(x, _by_channel(mean, x)), scale)
            y = f.mul(y, _by_channel(values["w"], x)) if "w" in values else y
            return [f.add(y, _by_channel(values["bias"], x)) if "bias" in values else y]

        others = tuple((WHOLE, "c") if name == "s" else ("c",) for name in operands[1:])
        return Signature((wide, *others), (wide,), local)

    return entry


def _by_channel(a: Array, x: Array) -> Array:
    """[tasks, c] beside x [tasks, n, c, ..]."""
    return a.reshape(a.shape[0], 1, a.shape[1], *(1,) * (x.ndim - 3))


def _numbers(value: Any, count: int) -> tuple[int, ...]:
    numbers = (value,) * count if isinstance(value, int) else tuple(value)
    if len(numbers) != count:
        raise IllTyped(f"{value} is not a number for each of {count} spatial dims")
    return numbers


def _conv(given: Attributes, shapes: Sequence[Shape]) -> Signature:
    x, w, *bias = some(shapes, 2, 3)
    count, groups = len(x) - 2, given.get("groups", 1)
    if count < 1 or len(w) != len(x) or x[1] != w[1] * groups or w[0] % groups:
        raise IllTyped(f"a convolution in {groups} groups of {x} with {w}")
    stride, dilation = (_numbers(given.get(name, 1), count) for name in ("stride", "dilation"))
    pairs = _padding(given.get("padding", 0), w[2:], dilation)
    single = [k == 1 and s == 1 and p == (0, 0) for k, s, p in zip(w[2:], stride, pairs, strict=True)]
    space = tuple(name if one else WHOLE for name, one in zip(names(count), single, strict=True))
    inner, outer = ("g", "g") if groups > 1 else ("c", "o")
    filters = (outer, WHOLE if groups > 1 else "c", *(WHOLE,) * count)

    def local(t: Tasks, a: list[Array]) -> list[Array]:
        f, part = t.arithmetic, t.degree("g")
        if groups % part:
            raise IllTyped(f"{groups} groups cannot be split {part} times")
        here = groups // part
        tasks, samples, taps = a[0].shape[0], a[0].shape[1], a[1].shape[3:]
        wide = np.pad(a[0], ((0, 0), (0, 0), (0, 0), *pairs))
        wide = wide.reshape(tasks, samples, here, -1, *wide.shape[3:])
        kernel = a[1].reshape(tasks, here, -1, *a[1].shape[2:])
        places = _places(wide.shape[4:], taps, stride, dilation)
        y = None
        for tap in product(*map(range, taps)):
            seen = wide[_window(tap, places, stride, dilation)]
            seen = seen.reshape(*seen.shape[:4], -1)
            term = f.einsum("tngcs,tgoc->tngos", seen, kernel[_last(tap)])
            y = term if y is None else f.add(y, term)
        assert y is not None
        y = y.reshape(tasks, samples, -1, *places)
        return [finished(t, given, f.add(y, _by_channel(a[2], y)) if bias else y)]

    operands = (("n", inner, *space), filters, *((outer,) for _ in bias))
    return Signature(operands, (("n", outer, *space),), local, ("c",) * (groups == 1), frozenset("g"))


def _padding(padding: Any, taps: Shape, dilation: Shape) -> tuple[tuple[int, int], ...]:
    """What is added before and after each spatial dim."""
    if padding == "same":
        reach = [d * (k - 1) for k, d in zip(taps, dilation, strict=True)]
        return tuple((r // 2, r - r // 2) for r in reach)
    return tuple((p, p) for p in _numbers(0 if padding == "valid" else padding, len(taps)))


def _places(size: Shape, taps: Shape, stride: Shape, dilation: Shape) -> Shape:
    """How many windows there are along each dim."""
    found = tuple((n - d * (k - 1) - 1) // s + 1 for n, k, s, d in zip(size, taps, stride, dilation, strict=True))
    if min(found) < 1:
        raise IllTyped(f"a window of {taps} does not fit {size}")
    return found


def _window(tap: Shape, places: Shape, stride: Shape, dilation: Shape) -> Any:
    """Where one tap of all windows reads, as an index of the last dims."""
    sizes = zip(tap, places, stride, dilation, strict=True)
    return _last(tuple(slice(i * d, i * d + s * (n - 1) + 1, s) for i, n, s, d in sizes))


def _last(index: tuple[Any, ...]) -> Any:
    return (..., *index)


def _pool(largest: bool) -> Entry:
    def entry(given: Attributes, shapes: Sequence[Shape]) -> Signature:
        (x,) = some(shapes, 1)
        size = given["kernel_size"]
        count = len(x) - 2 if isinstance(size, int) else len(size)
        taps = _numbers(size, count)
        stride, dilation = _numbers(given.get("stride", taps), count), _numbers(given.get("dilation", 1), count)
        pairs = _padding(given.get("padding", 0), taps, dilation)
        if given.get("ceil_mode") or not given.get("count_include_pad", True) or given.get("divisor_override"):
            raise IllTyped("pooling is evaluated without ceil_mode, divisor_override, and with count_include_pad")
        letters = (*names(len(x) - count), *(WHOLE,) * count)

        def local(t: Tasks, a: list[Array]) -> list[Array]:
            f = t.arithmetic
            filled = f.lowest if largest else f.constant(0)
            wide = np.pad(a[0], ((0, 0),) * (a[0].ndim - count) + pairs, constant_values=filled)
            places = _places(wide.shape[wide.ndim - count :], taps, stride, dilation)
            seen = [wide[_window(tap, places, stride, dilation)] for tap in product(*map(range, taps))]
            if largest:
                return [np.max(seen, 0)]
            return [f.scale(f.sum(np.stack(seen), 0), Fraction(1, prod(taps)))]

        return Signature((letters,), (letters,), local)

    return entry


def _embedding(given: Attributes, shapes: Sequence[Shape]) -> Signature:
    """Rows by number; a shard of the rows adds what it has, zero elsewhere."""
    w, ids = some(shapes, 2)
    if len(w) != 2:
        raise IllTyped(f"an embedding takes w[rows, e], not {w}")
    batch = names(len(ids))
    return Signature((("v", "e"), batch), ((*batch, "e"),), lambda t, a: [_rows(t, a[0], a[1], w[0])], ("v",))


def _rows(t: Tasks, table: Array, ids: Array, total: int) -> Array:
    whole = ids.astype(np.int64)
    if whole.size and not 0 <= whole.min() <= whole.max() < total:
        raise IllTyped(f"ids from {whole.min()} to {whole.max()} in a table of {total} rows")
    here = table.shape[1]
    local = whole - (t.position("v") * here).reshape(-1, *(1,) * (ids.ndim - 1))
    inside = (local >= 0) & (local < here)
    tasks = np.arange(table.shape[0]).reshape(-1, *(1,) * (ids.ndim - 1))
    return np.asarray(table[tasks, np.where(inside, local, 0)] * inside[..., None])


def _embedding_bag(given: Attributes, shapes: Sequence[Shape]) -> Signature:
    """The sum of the rows of a bag, each times its weight where there are weights."""
    w, ids, *weights = some(shapes, 2, 3)
    if len(w) != 2 or len(ids) != 2 or any(shape != ids for shape in weights):
        raise IllTyped(f"a bag of embeddings takes w[rows, e], ids[b, l], weights[b, l], not {list(shapes)}")

    def local(t: Tasks, a: list[Array]) -> list[Array]:
        rows = _rows(t, a[0], a[1], w[0])
        rows = t.arithmetic.mul(rows, a[2][..., None]) if weights else rows
        return [t.arithmetic.sum(rows, 2)]

    bags = (("b", "l"),) * (1 + len(weights))
    return Signature((("v", "e"), *bags), (("b", "e"),), local, ("l", "v"))


def _attention(given: Attributes, shapes: Sequence[Shape]) -> Signature:
    """softmax(q kᵀ scale + bias) v; a causal mask counts queries from the start of the whole sequence."""
    q, k, v, *bias = some(shapes, 3, 4)
    rank = len(q)
    repeat = q[-3] // k[-3] if given.get("grouped") else 1
    if not rank == len(k) == len(v) >= 2 or q[-1] != k[-1] or k[-2] != v[-2]:
        raise IllTyped(f"attention of {q}, {k}, {v}")
    batch = names(rank - 2)
    grouped = frozenset(batch[-1:]) if repeat > 1 else frozenset[str]()
    inputs = ((*batch, "s", WHOLE), (*batch, WHOLE, WHOLE), (*batch, WHOLE, "e"))
    masks = tuple((*broadcast([q[:-2], m[:-2]], rank - 2)[1], "s", WHOLE) for m in bias)
    scale = given.get("scale") or q[-1] ** -0.5

    def local(t: Tasks, a: list[Array]) -> list[Array]:
        f, (queries, keys, values) = t.arithmetic, a[:3]
        if repeat > 1:
            keys, values = (np.repeat(x, repeat, axis=-3) for x in (keys, values))
        scores = f.sum(f.mul(queries[..., :, None, :], keys[..., None, :, :]), -1)
        scores = f.scale(scores, scale)
        scores = f.add(scores, ranked(a[3], rank)) if bias else scores
        powers, total = soft(t, scores, scores.ndim - 1) if not given.get("causal") else _causal(t, scores)
        shares = f.mul(powers, total)
        return [f.sum(f.mul(shares[..., :, :, None], values[..., None, :, :]), -2)]

    return Signature((*inputs, *masks), ((*batch, "s", "e"),), local, uneven=grouped)


def _causal(t: Tasks, scores: Array) -> tuple[Array, Array]:
    """As `soft`, where a query sees the keys up to its own place."""
    f, (here, keys) = t.arithmetic, scores.shape[-2:]
    place = (t.position("s") * here)[:, None] + np.arange(here)
    seen = (np.arange(keys) <= place[..., None]).reshape(-1, *(1,) * (scores.ndim - 3), here, keys)
    powers = f.call(("exp",), scores) * seen
    return powers, f.inverse(f.sum(powers, -1, keepdims=True))


LAYERS: Mapping[str, Entry] = {
    "layer_norm": _normalized(centered=True),
    "rms_norm": _normalized(centered=False),
    "moments": _moments,
    "batch_norm": _batch_norm(local_statistics=False),
    "local_batch_norm": _batch_norm(local_statistics=True),
    "conv": _conv,
    "max_pool": _pool(largest=True),
    "avg_pool": _pool(largest=False),
    "embedding": _embedding,
    "embedding_bag": _embedding_bag,
    "attention": _attention,
}
