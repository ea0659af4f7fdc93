"""What every compute operator does to a shard, in the registry's names and attributes.

An entry of `SIGNATURES` takes the attributes and the operands' global shapes and says which dims go together and what
a shard's result is. Dims without a letter must be undivided.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from math import prod

import numpy as np

from .arithmetic import Array
from .local_layers import LAYERS
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
from .values import IllTyped, dim_of, part_sizes

# fmt: off
UNARY = (
    "relu", "gelu", "silu", "tanh", "sigmoid", "softplus", "leaky_relu", "elu", "selu", "mish", "hardtanh", "relu6",
    "hardswish", "hardsigmoid", "logsigmoid", "exp", "log", "sqrt", "rsqrt", "sin", "cos", "erf", "abs", "reciprocal",
    "pow", "clamp", "shift",
)
# fmt: on
BINARY = ("maximum", "minimum", "power")


def _unary(name: str) -> Entry:
    def entry(given: Attributes, shapes: Sequence[Shape]) -> Signature:
        key = (name, *sorted(given.items()))
        return _same(shapes, lambda t, a: [t.arithmetic.call(key, a[0])])

    return entry


def _same(shapes: Sequence[Shape], local: Callable[[Tasks, list[Array]], list[Array]]) -> Signature:
    """One operand, one result of its shape, all dims alike."""
    (shape,) = some(shapes, 1)
    return Signature((names(len(shape)),), (names(len(shape)),), local)


def _elementwise(function: Callable[..., Array], count: int = 2) -> Entry:
    """`function(tasks, attributes, *operands)`, broadcast."""

    def entry(given: Attributes, shapes: Sequence[Shape]) -> Signature:
        rank = max(map(len, some(shapes, count)))
        return Signature(
            broadcast(shapes, rank),
            (names(rank),),
            lambda t, a: [finished(t, given, function(t, given, *(ranked(x, rank) for x in a)))],
        )

    return entry


def _binary(name: str) -> Entry:
    return _elementwise(lambda t, given, a, b: t.arithmetic.call((name, *sorted(given.items())), a, b))


def _scale(given: Attributes, shapes: Sequence[Shape]) -> Signature:
    return _same(shapes, lambda t, a: [t.arithmetic.scale(a[0], given["value"])])


def _identity(given: Attributes, shapes: Sequence[Shape]) -> Signature:
    return _same(shapes, lambda t, a: a)


def _neg(given: Attributes, shapes: Sequence[Shape]) -> Signature:
    return _same(shapes, lambda t, a: [t.arithmetic.scale(a[0], -1)])


def _linear(given: Attributes, shapes: Sequence[Shape]) -> Signature:
    x, w, *bias = some(shapes, 2, 3)
    if not x or len(w) != 2:
        raise IllTyped(f"linear takes x[.., i] and w[o, i], not {x} and {w}")
    batch = names(len(x) - 1)

    def local(t: Tasks, a: list[Array]) -> list[Array]:
        f, flat = t.arithmetic, a[0].reshape(a[0].shape[0], -1, a[0].shape[-1])
        y = f.einsum("tbi,toi->tbo", flat, a[1]).reshape(*a[0].shape[:-1], a[1].shape[1])
        return [finished(t, given, f.add(y, ranked(a[2], len(x))) if bias else y)]

    return Signature(((*batch, "i"), ("o", "i"), *(("o",) for _ in bias)), ((*batch, "o"),), local, ("i",))


def _linear_relu(given: Attributes, shapes: Sequence[Shape]) -> Signature:
    """As one operator it needs whole what it sums over."""
    plain = _linear({**given, "activation": "relu"}, shapes)
    inputs = tuple(tuple(WHOLE if name == "i" else name for name in names) for names in plain.inputs)
    return Signature(inputs, plain.outputs, plain.local)


def _matmul(given: Attributes, shapes: Sequence[Shape]) -> Signature:
    a, b = some(shapes, 2)
    if not a or not b:
        raise IllTyped(f"matmul takes tensors of at least one dim, not {a} and {b}")
    rows, columns = ("m",) * (len(a) > 1), ("n",) * (len(b) > 1)
    rank = max(len(a), len(b), 2) - 2
    batches = [shape[: max(len(shape) - 2, 0)] for shape in (a, b)]
    left, right = broadcast(batches, rank)

    def local(t: Tasks, args: list[Array]) -> list[Array]:
        x = ranked(args[0] if rows else args[0][:, None, :], rank + 2)
        w = ranked(args[1] if columns else args[1][:, :, None], rank + 2)
        y = t.arithmetic.sum(t.arithmetic.mul(x[..., :, :, None], w[..., None, :, :]), -2)
        y = y if columns else y[..., 0]
        y = y if rows else y[..., 0, :] if columns else y[..., 0]
        return [finished(t, given, y)]

    inputs = ((*left, *rows, "k"), (*right, "k", *columns))
    return Signature(inputs, ((*names(rank), *rows, *columns),), local, ("k",))


def _einsum(given: Attributes, shapes: Sequence[Shape]) -> Signature:
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


def _softmax(given: Attributes, shapes: Sequence[Shape]) -> Signature:
    (shape,) = some(shapes, 1)
    dim = dim_of(given["dim"], len(shape))
    letters = tuple(WHOLE if i == dim else name for i, name in enumerate(names(len(shape))))

    def local(t: Tasks, a: list[Array]) -> list[Array]:
        return [t.arithmetic.mul(*soft(t, a[0], dim + 1))]

    return Signature((letters,), (letters,), local)


def _log_softmax(given: Attributes, shapes: Sequence[Shape]) -> Signature:
    plain = _softmax(given, shapes)
    dim = dim_of(given["dim"], len(shapes[0])) + 1

    def local(t: Tasks, a: list[Array]) -> list[Array]:
        f = t.arithmetic
        total = f.sum(f.call(("exp",), a[0]), (dim,), keepdims=True)
        return [f.sub(a[0], f.call(("log",), total))]

    return Signature(plain.inputs, plain.outputs, local)


def _reduced(mean: bool) -> Entry:
    def entry(given: Attributes, shapes: Sequence[Shape]) -> Signature:
        (shape,) = some(shapes, 1)
        given_dims = given["dims"] if isinstance(given["dims"], tuple) else (given["dims"],)
        dims, keep = {dim_of(d, len(shape)) for d in given_dims}, bool(given.get("keepdim", False))
        all_names = names(len(shape))
        kept = tuple(WHOLE if i in dims else n for i, n in enumerate(all_names) if keep or i not in dims)
        divisor = given.get("count", prod(shape[d] for d in dims)) if mean else 1

        def local(t: Tasks, a: list[Array]) -> list[Array]:
            total = t.arithmetic.sum(a[0], tuple(d + 1 for d in sorted(dims)), keepdims=keep)
            return [t.arithmetic.scale(total, Fraction(1, divisor)) if mean else total]

        return Signature((all_names,), (kept,), local, tuple(all_names[d] for d in sorted(dims)))

    return entry


def _amax(given: Attributes, shapes: Sequence[Shape]) -> Signature:
    summed = _reduced(False)(given, shapes)
    gone, keep = summed.summed, bool(given.get("keepdim", False))
    letters = tuple(WHOLE if name in gone else name for name in summed.inputs[0])
    dims = tuple(i + 1 for i, name in enumerate(summed.inputs[0]) if name in gone)
    return Signature((letters,), summed.outputs, lambda t, a: [a[0].max(dims, keepdims=keep)])


def _cumsum(given: Attributes, shapes: Sequence[Shape]) -> Signature:
    (shape,) = some(shapes, 1)
    dim = dim_of(given["dim"], len(shape))
    letters = tuple(WHOLE if i == dim else name for i, name in enumerate(names(len(shape))))
    return Signature((letters,), (letters,), lambda t, a: [t.arithmetic.reduced(np.cumsum(a[0], dim + 1))])


def _permute(given: Attributes, shapes: Sequence[Shape]) -> Signature:
    (shape,) = some(shapes, 1)
    dims = tuple(dim_of(d, len(shape)) for d in given["dims"])
    if sorted(dims) != list(range(len(shape))):
        raise IllTyped(f"{given['dims']} is no permutation of {len(shape)} dims")
    letters = names(len(shape))
    order = (0, *(d + 1 for d in dims))
    return Signature((letters,), (tuple(letters[d] for d in dims),), lambda t, a: [a[0].transpose(order)])


def _transpose(given: Attributes, shapes: Sequence[Shape]) -> Signature:
    """The last two dims swapped."""
    rank = len(some(shapes, 1)[0])
    if rank < 2:
        raise IllTyped("transpose takes at least two dims")
    return _permute({"dims": (*range(rank - 2), rank - 1, rank - 2)}, shapes)


def _view(given: Attributes, shapes: Sequence[Shape]) -> Signature:
    """Dims that are merged or split pass their digits where the outermost of them has them."""
    (shape,) = some(shapes, 1)
    asked: Shape = tuple(given["shape"])
    if prod(asked) != prod(shape):
        raise IllTyped(f"a view of {shape} cannot have shape {asked}")
    inside, outside = [WHOLE] * len(shape), [WHOLE] * len(asked)
    for place, (i, o) in enumerate(_outermost(shape, asked)):
        inside[i] = outside[o] = f"g{place}"

    def local(t: Tasks, a: list[Array]) -> list[Array]:
        sizes = []
        for size, letter in zip(asked, outside, strict=True):
            if size % t.degree(letter):
                raise IllTyped(f"a dim of size {size} of the view {asked} cannot be cut {t.degree(letter)} times")
            sizes.append(size // t.degree(letter))
        return [a[0].reshape(a[0].shape[0], *sizes)]

    return Signature((tuple(inside),), (tuple(outside),), local)


def _outermost(before: Shape, after: Shape) -> list[tuple[int, int]]:
    """The outermost dim, of more than one element, of every group of dims that have as many elements, on both sides."""
    i = o = 0
    pairs = []
    while i < len(before) and o < len(after):
        if before[i] == 1 or after[o] == 1:
            i, o = i + (before[i] == 1), o + (before[i] != 1)
            continue
        pairs.append((i, o))
        left, right = before[i], after[o]
        i, o = i + 1, o + 1
        while left != right:
            if left < right:
                left, i = left * before[i], i + 1
            else:
                right, o = right * after[o], o + 1
    return pairs


def _expand(given: Attributes, shapes: Sequence[Shape]) -> Signature:
    (shape,) = some(shapes, 1)
    asked: Shape = tuple(given["shape"])
    letters = broadcast([shape, asked], len(asked))[0]

    def local(t: Tasks, a: list[Array]) -> list[Array]:
        sizes = [n // t.degree(name) for n, name in zip(asked, names(len(asked)), strict=True)]
        return [np.broadcast_to(ranked(a[0], len(asked)), (a[0].shape[0], *sizes))]

    if len(asked) < len(shape) or any(n not in (1, m) for n, m in zip(shape[::-1], asked[::-1], strict=False)):
        raise IllTyped(f"a tensor of shape {shape} cannot be expanded to {asked}")
    return Signature((letters,), (names(len(asked)),), local)


def _cat(given: Attributes, shapes: Sequence[Shape]) -> Signature:
    """Local: with a dim that is cut, the blocks of the operands take turns."""
    if not shapes or len({len(shape) for shape in shapes}) > 1 or given.get("rank", len(shapes[0])) != len(shapes[0]):
        raise IllTyped(f"cat of tensors of shapes {', '.join(map(str, shapes))}")
    dim, letters = dim_of(given["dim"], len(shapes[0])), names(len(shapes[0]))
    return Signature(
        (letters,) * len(shapes),
        (letters,),
        lambda t, a: [np.concatenate(a, dim + 1)],
        uneven=frozenset({letters[dim]}),
    )


def _split(given: Attributes, shapes: Sequence[Shape]) -> Signature:
    (shape,) = some(shapes, 1)
    if given.get("rank", len(shape)) != len(shape):
        raise IllTyped(f"split takes a tensor of {given['rank']} dims, not of shape {shape}")
    dim, letters = dim_of(given["dim"], len(shape)), names(len(shape))
    sizes = part_sizes(given, shape[dim])

    def local(t: Tasks, a: list[Array]) -> list[Array]:
        degree = t.degree(letters[dim])
        if any(size % degree for size in sizes):
            raise IllTyped(f"parts {sizes} of a dim that is cut {degree} times are not whole shards")
        return np.split(a[0], np.cumsum([size // degree for size in sizes])[:-1], dim + 1)

    return Signature((letters,), (letters,) * len(sizes), local)


def _slice(given: Attributes, shapes: Sequence[Shape]) -> Signature:
    (shape,) = some(shapes, 1)
    dim = dim_of(given["dim"], len(shape))
    start, stop, step = given.get("start", 0), given.get("stop", shape[dim]), given.get("step", 1)
    if not 0 <= start < stop <= shape[dim] or step < 1:
        raise IllTyped(f"there is no slice {start}:{stop}:{step} of a dim of size {shape[dim]}")
    letters = tuple(WHOLE if i == dim else name for i, name in enumerate(names(len(shape))))
    where = (slice(None),) * (dim + 1) + (slice(start, stop, step),)
    return Signature((letters,), (letters,), lambda t, a: [a[0][where]])


def _pad(given: Attributes, shapes: Sequence[Shape]) -> Signature:
    """Zeros or another number; the attribute holds pairs, the last dim first."""
    (shape,) = some(shapes, 1)
    flat = tuple(given["pad"]) + (0, 0) * len(shape)
    pairs = [flat[2 * i : 2 * i + 2] for i in range(len(shape))][::-1]
    if min(flat) < 0 or given.get("mode", "constant") != "constant":
        raise IllTyped(f"padding by {given['pad']} in mode {given.get('mode', 'constant')} is not evaluated")
    letters = tuple(name if pair == (0, 0) else WHOLE for name, pair in zip(names(len(shape)), pairs, strict=True))

    def local(t: Tasks, a: list[Array]) -> list[Array]:
        value = t.arithmetic.constant(given.get("value", 0))
        return [np.pad(a[0], ((0, 0), *pairs), constant_values=value)]

    return Signature((letters,), (letters,), local)


SIGNATURES: Mapping[str, Entry] = {
    **{name: _unary(name) for name in UNARY},
    **{name: _binary(name) for name in BINARY},
    "add": _elementwise(lambda t, _, a, b: t.arithmetic.add(a, b)),
    "sub": _elementwise(lambda t, _, a, b: t.arithmetic.sub(a, b)),
    "mul": _elementwise(lambda t, _, a, b: t.arithmetic.mul(a, b)),
    "div": _elementwise(lambda t, _, a, b: t.arithmetic.mul(a, t.arithmetic.inverse(b))),
    "scale": _scale,
    "neg": _neg,
    "to": _identity,
    "contiguous": _identity,
    "detach": _identity,
    "linear": _linear,
    "linear_relu": _linear_relu,
    "matmul": _matmul,
    "einsum": _einsum,
    "softmax": _softmax,
    "log_softmax": _log_softmax,
    "sum": _reduced(mean=False),
    "mean": _reduced(mean=True),
    "amax": _amax,
    "cumsum": _cumsum,
    "permute": _permute,
    "transpose": _transpose,
    "view": _view,
    "expand": _expand,
    "cat": _cat,
    "split": _split,
    "slice": _slice,
    "pad": _pad,
    **LAYERS,
}
