"""Operators that move elements without computing: views, permutations, slices, concatenation."""

from collections.abc import Sequence
from math import prod

import numpy as np

from ..graph.pcg import Node
from . import sharded
from .algebra import Algebra, Rewriting, require
from .keywords import keywords
from .operator import Operator, along, along_dim
from .sharded import WHOLE, Array, Attributes, IllTyped, Shape, ShardTasks, Signature


def _permute(node: Node, inputs: tuple[Node, ...]) -> str:
    names = sharded.letters(len(node.shape))
    return f"y[{', '.join(names[d] for d in node['dims'])}] = L(x[{', '.join(names)}])"


def _part(node: Node, inputs: tuple[Node, ...]) -> str:
    """The part number is whole, the index inside free: a rank has its share of every part."""
    x, dim, of, number = inputs[0].shape, node["dim"], node["of"], node["number"]
    if not 0 <= dim < len(x) or not 0 <= number < of or x[dim] != of * node.shape[dim]:
        raise ValueError(f"there is no part {number} of {of} of dim {dim} of shape {x} with shape {node.shape}")
    names = sharded.letters(len(x))
    inside = ", ".join(f"(: {name})" if d == dim else name for d, name in enumerate(names))
    return f"y[{', '.join(names)}] = L(x[{inside}])"


def _one(numbers: tuple[int, ...]) -> int | tuple[int, ...]:
    """A tuple of one number as the number."""
    return numbers[0] if len(numbers) == 1 else numbers


def _padded(node: Node, inputs: tuple[Node, ...]) -> str:
    """Whole along the dims that grow or shrink; linear unless another number than zero is filled in."""
    grown = [d for d in range(len(node.shape)) if _padding(node, d) != (0, 0)]
    return along(node, grown, "f" if node["value"] else "L")


def _padding(node: Node, dim: int) -> tuple[int, int]:
    """Entries before and after a dim; the attribute holds pairs, the last dim first."""
    pairs = node["pad"] + (0, 0) * len(node.shape)
    place = 2 * (len(node.shape) - 1 - dim)
    return pairs[place], pairs[place + 1]


def _slice(node: Node, names: Sequence[str]) -> str:
    where = ", ".join([":"] * node["dim"] + [_range(node["start"], node["stop"], node["step"])])
    return f"{names[0]}[{where}]"


def _range(start: int, stop: int, step: int) -> str:
    return f"{start or ''}:{stop}" + (f":{step}" if step != 1 else "")


def permute_shards(given: Attributes, shapes: Sequence[Shape]) -> Signature:
    (shape,) = sharded.operands(shapes, 1)
    dims = tuple(sharded.dim_of(d, len(shape)) for d in given["dims"])
    if sorted(dims) != list(range(len(shape))):
        raise IllTyped(f"{given['dims']} is not a permutation of {len(shape)} dims")
    named = sharded.letters(len(shape))
    order = (0, *(d + 1 for d in dims))
    return Signature((named,), (tuple(named[d] for d in dims),), lambda t, a: [a[0].transpose(order)])


def _view_shards(given: Attributes, shapes: Sequence[Shape]) -> Signature:
    """Merged or split dims keep their digits if the outermost of them has them."""
    (shape,) = sharded.operands(shapes, 1)
    wanted: Shape = tuple(given["shape"])
    if prod(wanted) != prod(shape):
        raise IllTyped(f"a view of {shape} cannot have shape {wanted}")
    inside, outside = [WHOLE] * len(shape), [WHOLE] * len(wanted)
    for place, (i, o) in enumerate(_outermost(shape, wanted)):
        inside[i] = outside[o] = f"g{place}"

    def local(t: ShardTasks, a: list[Array]) -> list[Array]:
        sizes = []
        for size, letter in zip(wanted, outside, strict=True):
            if size % t.degree(letter):
                raise IllTyped(f"a dim of size {size} of the view {wanted} cannot be cut {t.degree(letter)} times")
            sizes.append(size // t.degree(letter))
        return [a[0].reshape(a[0].shape[0], *sizes)]

    return Signature((tuple(inside),), (tuple(outside),), local)


def _outermost(before: Shape, after: Shape) -> list[tuple[int, int]]:
    """Pairs of the outermost dims, larger than 1, of groups of dims with equally many elements on both sides."""
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


def _flip_shards(given: Attributes, shapes: Sequence[Shape]) -> Signature:
    (shape,) = sharded.operands(shapes, 1)
    named = given["dims"] if isinstance(given["dims"], tuple) else (given["dims"],)
    dims = tuple(sharded.dim_of(d, len(shape)) for d in named)
    whole = sharded.whole_along(shape, *dims)
    return Signature((whole,), (whole,), lambda t, a: [np.flip(a[0], tuple(d + 1 for d in dims))])


def _part_shards(given: Attributes, shapes: Sequence[Shape]) -> Signature:
    """A shard has its share of every part."""
    (shape,) = sharded.operands(shapes, 1)
    dim, of, number = sharded.dim_of(given["dim"], len(shape)), given["of"], given["number"]
    if not 0 <= number < of or shape[dim] % of:
        raise IllTyped(f"there is no part {number} of {of} of a dim of size {shape[dim]}")
    named = sharded.letters(len(shape))

    def local(t: ShardTasks, a: list[Array]) -> list[Array]:
        if a[0].shape[dim + 1] % of:
            raise IllTyped(f"{of} parts of a dim that is cut {t.degree(named[dim])} times are not whole shards")
        return [np.split(a[0], of, dim + 1)[number]]

    return Signature((named,), (named,), local)


def _expand_shards(given: Attributes, shapes: Sequence[Shape]) -> Signature:
    (shape,) = sharded.operands(shapes, 1)
    wanted: Shape = tuple(given["shape"])
    inside = sharded.broadcast([shape, wanted], len(wanted))[0]

    def local(t: ShardTasks, a: list[Array]) -> list[Array]:
        sizes = [n // t.degree(name) for n, name in zip(wanted, sharded.letters(len(wanted)), strict=True)]
        return [np.broadcast_to(sharded.ranked(a[0], len(wanted)), (a[0].shape[0], *sizes))]

    if len(wanted) < len(shape) or any(n not in (1, m) for n, m in zip(shape[::-1], wanted[::-1], strict=False)):
        raise IllTyped(f"a tensor of shape {shape} cannot be expanded to {wanted}")
    return Signature((inside,), (sharded.letters(len(wanted)),), local)


def _cat_shards(given: Attributes, shapes: Sequence[Shape]) -> Signature:
    """Local: along a cut dim the operands' blocks alternate."""
    if not shapes or len({len(shape) for shape in shapes}) > 1 or given.get("rank", len(shapes[0])) != len(shapes[0]):
        raise IllTyped(f"cat of tensors of shapes {', '.join(map(str, shapes))}")
    dim, named = sharded.dim_of(given["dim"], len(shapes[0])), sharded.letters(len(shapes[0]))
    return Signature(
        (named,) * len(shapes),
        (named,),
        lambda t, a: [np.concatenate(a, dim + 1)],
        uneven=frozenset({named[dim]}),
    )


def _slice_shards(given: Attributes, shapes: Sequence[Shape]) -> Signature:
    (shape,) = sharded.operands(shapes, 1)
    dim = sharded.dim_of(given["dim"], len(shape))
    start, stop, step = given.get("start", 0), given.get("stop", shape[dim]), given.get("step", 1)
    if not 0 <= start < stop <= shape[dim] or step < 1:
        raise IllTyped(f"there is no slice {start}:{stop}:{step} of a dim of size {shape[dim]}")
    whole = sharded.whole_along(shape, dim)
    where = (slice(None),) * (dim + 1) + (slice(start, stop, step),)
    return Signature((whole,), (whole,), lambda t, a: [a[0][where]])


def _pad_shards(given: Attributes, shapes: Sequence[Shape]) -> Signature:
    """Constant padding; the attribute holds pairs, the last dim first."""
    (shape,) = sharded.operands(shapes, 1)
    flat = tuple(given["pad"]) + (0, 0) * len(shape)
    pairs = [flat[2 * i : 2 * i + 2] for i in range(len(shape))][::-1]
    if min(flat) < 0 or given.get("mode", "constant") != "constant":
        raise IllTyped(f"padding by {given['pad']} in mode {given.get('mode', 'constant')} is not evaluated")
    whole = sharded.whole_along(shape, *(d for d, pair in enumerate(pairs) if pair != (0, 0)))

    def local(t: ShardTasks, a: list[Array]) -> list[Array]:
        value = t.arithmetic.constant(given.get("value", 0))
        return [np.pad(a[0], ((0, 0), *pairs), constant_values=value)]

    return Signature((whole,), (whole,), local)


def _cat_shape(shapes: Sequence[Shape], attributes: Attributes) -> Shape:
    dim = attributes["dim"]
    require(len({(*s[:dim], *s[dim + 1 :]) for s in shapes}) == 1 and 0 <= dim < len(shapes[0]))
    return (*shapes[0][:dim], sum(s[dim] for s in shapes), *shapes[0][dim + 1 :])


def _slice_shape(shapes: Sequence[Shape], attributes: Attributes) -> Shape:
    (x,), dim = shapes, attributes["dim"]
    start, stop, step = attributes["start"], attributes["stop"], attributes["step"]
    require(0 <= start < stop <= x[dim] and step == 1)
    return (*x[:dim], stop - start, *x[dim + 1 :])


def _part_shape(shapes: Sequence[Shape], attributes: Attributes) -> Shape:
    (x,), dim, of = shapes, attributes["dim"], attributes["of"]
    require(x[dim] % of == 0 and 0 <= attributes["number"] < of)
    return (*x[:dim], x[dim] // of, *x[dim + 1 :])


def _permute_shape(shapes: Sequence[Shape], attributes: Attributes) -> Shape:
    (x,) = shapes
    require(sorted(attributes["dims"]) == list(range(len(x))))
    return tuple(x[d] for d in attributes["dims"])


def _pad_shape(shapes: Sequence[Shape], attributes: Attributes) -> Shape:
    (x,), pairs = shapes, tuple(attributes["pad"])
    require(len(pairs) % 2 == 0 and len(pairs) <= 2 * len(x))
    grown = [sum(pairs[2 * d : 2 * d + 2]) for d in range(len(pairs) // 2)][::-1]  # the last dim comes first
    shape = (*x[: len(x) - len(grown)], *(size + by for size, by in zip(x[len(x) - len(grown) :], grown, strict=True)))
    require(all(size > 0 for size in shape))
    return shape


def _view_shape(shapes: Sequence[Shape], attributes: Attributes) -> Shape:
    shape: Shape = attributes["shape"]
    require(prod(shape) == prod(shapes[0]))
    return shape


_SAME = Algebra(multiple=1)


OPERATORS = (
    Operator(
        "view",
        ("x",),
        view=True,
        passes=0,
        reference=lambda node, x: x[0].reshape(node.shape),
        algebra=Algebra(_view_shards, changes_rank=True),
        rewriting=Rewriting(_view_shape, {"shape": None}),  # a node's own shape
    ),
    Operator(
        "permute",
        ("x",),
        _permute,
        "{x}.permute{dims}",
        passes=0,
        algebra=Algebra(permute_shards, multiple=1),
        rewriting=Rewriting(_permute_shape, {"dims": None}),
    ),
    Operator(
        "expand",
        ("x",),
        "y[i..] = L(x[i..])",
        passes=0,
        reference=lambda node, x: x[0].expand(node.shape),
        algebra=Algebra(_expand_shards, changes_rank=True),
    ),
    Operator(
        "slice",
        ("x",),
        along_dim("L"),
        _slice,
        passes=0,
        algebra=Algebra(_slice_shards),
        rewriting=Rewriting(_slice_shape, {"dim": None, "start": None, "step": 1, "stop": None}),
    ),
    # One of `of` equal parts along a dim, counted from 0.
    Operator(
        "part",
        ("x",),
        _part,
        "{x}.chunk({of}, {dim})[{number}]",
        passes=0,
        algebra=Algebra(_part_shards),
        rewriting=Rewriting(_part_shape, {"dim": None, "number": None, "of": None}),
    ),
    Operator(
        "cat",
        ("x",),
        along_dim("L"),
        lambda node, names: f"torch.cat(({', '.join(names)}), {node['dim']})",
        variadic=True,
        algebra=Algebra(_cat_shards),
        rewriting=Rewriting(_cat_shape, {"dim": None}),
    ),
    *(
        Operator(
            *(name, ("x",), lambda node, inputs: along(node, node["dims"], "L"), emit),
            algebra=Algebra(shards, keeps_sizes=True),
        )
        for name, emit, shards in (
            ("flip", lambda node, names: f"{names[0]}.flip({_one(node['dims'])})", _flip_shards),
            ("roll", lambda node, names: f"{names[0]}.roll({_one(node['shifts'])}, {_one(node['dims'])})", None),
        )
    ),
    Operator(
        "pad",
        ("x",),
        _padded,
        lambda node, names: f"F.pad({names[0]}, {node['pad']}{keywords(node, {'mode': 'constant', 'value': 0.0})})",
        algebra=Algebra(_pad_shards),
        rewriting=Rewriting(_pad_shape, {"mode": "constant", "pad": None, "value": None}),
    ),
    Operator("contiguous", ("x",), "y[i..] = L(x[i..])", "{x}.contiguous()", algebra=_SAME),
    Operator(
        "detach",
        ("x",),
        "y[i..] = L(x[i..])",
        "{x}.detach()",
        passes=0,
        algebra=Algebra(multiple=1, unprovable="has no gradient, which proofs of values do not see"),
    ),
)
