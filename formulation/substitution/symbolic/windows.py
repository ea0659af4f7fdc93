"""Convolution windows, padding and strided slices: places with offsets, and guards that are 0 outside the input."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from ..rule import Apply, Value
from ..sizes import Size
from .indices import Index, places
from .scope import Scope, whole_number
from .terms import Guard, Place, Poly, constant, factor
from .types import Cases, Mismatch, Stuck, Type, written
from .values import Application, ElementTask, Letters, Symbolic, merged

# The result's dim, stride, dilation, padding before, and slack: the largest offset of a window's first place for which
# all its taps are inside; None if they always are.
Window: TypeAlias = "tuple[Type, int, int, int, int | None]"


def shifted(index: Index, type_: Type, step: int, offset: int) -> Index:
    """The index `step * index + offset` along another dim. Raises Stuck for dims that are cut or joined."""
    _, found = places(index)
    if len(found) > 1 or any(not isinstance(d, Place) for _, d in index):
        raise Stuck("a shifted place in a dim that is cut or joined")
    place = found[0] if found else Place()
    return at_place(Place().plus(place, step, offset), type_)


def at_place(place: Place, type_: Type) -> Index:
    """A place as an index of a dim that is one atom or number. Raises Stuck otherwise."""
    if not type_ and place == Place():
        return ()
    if len(type_) != 1 or isinstance(type_[0], Cases) or (isinstance(type_[0], int) and place.terms):
        raise Stuck(f"a shifted place in a dim of {written(type_)}")
    return ((type_[0], place),)


def conv(scope: Scope, apply: Apply, values: Sequence[Symbolic]) -> list[Symbolic]:
    """y[n, (g o), s] = sum(c, k) x[n, (g c), stride*s + dilation*k - padding] * w[(g o), c, k] + bias[(g o)]."""
    if not 2 <= len(values) <= 3:
        raise Mismatch(f"conv takes two or three tensors, not {len(values)}")
    unifier, (x, w) = scope.unifier, values[:2]
    rank = len(x.dims) - 2
    if rank < 1 or len(w.dims) != rank + 2:
        raise Mismatch(f"conv of {x.show(unifier)} and {w.show(unifier)}")
    _kernel(scope, apply, w, rank)
    groups = _groups(scope, apply, x, w)
    g = ("g",) if groups else ()
    windows = [window(scope, apply, d, rank, x.dims[2 + d], w.dims[2 + d]) for d in range(rank)]
    space = [(f"s{d}",) for d in range(rank)]
    taps = tuple(f"k{d}" for d in range(rank))
    read: Letters = (("n",), (*g, "c"), *(s if win is None else () for s, win in zip(space, windows, strict=True)))
    inputs: list[Letters] = [read, ((*g, "o"), ("c",), *((k,) for k in taps))] + [((*g, "o"),)] * (len(values) > 2)
    application = Application(unifier, "conv: ", values, inputs, (("n",), (*g, "o"), *space), ("c", *taps))
    if groups:
        application.letter("g", x.digits[1]).type = groups
    application.infer()
    for name, win in zip(space, windows, strict=True):
        if win is not None:
            application.dim(win[0], (), name)

    def body(tasks: ElementTask) -> Poly:
        total = tasks.read(2, {}) if len(values) > 2 else Poly()
        for known, variables in tasks.over(("c", *taps)):
            product, whole = constant(1), list[Index]()
            for d, win in enumerate(windows):
                if win is not None:
                    dim = unifier.resolve(x.dims[2 + d])
                    inside, guard = seen(tasks.index[f"s{d}"], known[taps[d]], win, dim)
                    whole.append(inside)
                    product = product * guard
            if product.terms:
                total = total + (product * tasks.read(0, known, whole) * tasks.read(1, known)).total(variables)
        return total

    return [application.result(body)]


def _kernel(scope: Scope, apply: Apply, w: Symbolic, rank: int) -> None:
    """Require that a weight's spatial dims are whole and of the sizes that the rule states."""
    kernel = apply.get("kernel")
    for d in range(rank):
        if w.digits[2 + d]:
            raise Mismatch("conv: a window is not cut")
        if isinstance(kernel, tuple):
            taps = whole_number(kernel[d], "the window of a conv")
            scope.unifier.unify(w.dims[2 + d], scope.made(f"{taps} taps", Size.of(taps)), "conv, window: ")


def _groups(scope: Scope, apply: Apply, x: Symbolic, w: Symbolic) -> Type:
    """The number of groups: as stated, or the ratio of the input's channels to the weight's."""
    unifier, given = scope.unifier, apply.get("groups") or 1
    if given != "auto":
        groups = scope.type_of(given, ordered=True)
    else:
        groups = ()
        mine, its = unifier.resolve(x.dims[1]), unifier.resolve(w.dims[1])
        if mine != its and mine[len(mine) - len(its) :] == its:
            groups = mine[: len(mine) - len(its)]
        else:
            unifier.unify(mine, its, "conv, channels: ")
    scope.found[unifier.phase, apply.outputs[0]] = {"groups": groups, "kernel": None}
    return groups


def numbers(value: Value | None, rank: int, default: int) -> list[int]:
    """An attribute, per spatial dim."""
    if isinstance(value, tuple):
        if len(value) != rank:
            raise Mismatch(f"conv: {value!r} for {rank} spatial dims")
        return [whole_number(v, "an attribute of a conv") for v in value]
    return [default if value is None else whole_number(value, "an attribute of a conv")] * rank


def window(scope: Scope, apply: Apply, d: int, rank: int, dim: Type, taps: Type) -> Window | None:
    """The window along a spatial dim; None if each place reads itself alone."""
    unifier = scope.unifier
    dim, taps = unifier.resolve(dim), unifier.resolve(taps)
    stride, dilation = (numbers(apply.get(key), rank, 1)[d] for key in ("stride", "dilation"))
    if stride < 1 or dilation < 1:
        raise Mismatch(f"conv: stride {stride}, dilation {dilation}")
    padding, size = apply.get("padding", 0), unifier.size(taps)
    reach = (size - 1) * dilation
    if padding == "same":
        if reach.number is None:
            raise Stuck("padding of a window of unknown size")
        before = reach.number // 2
        both = reach.number if stride == 1 else 2 * before
    else:
        before = 0 if padding == "valid" else numbers(padding, rank, 0)[d]
        both = 2 * before
    if stride == 1 and not both and size.number == 1:
        return None
    slack = reach.number - both if both and reach.number is not None else -1 if both else None
    if stride == 1 and reach.number == both:
        return dim, stride, dilation, before, slack
    length = unifier.size(dim) - reach + both
    if length.number is not None and length.number < 1:
        raise Mismatch("conv: the window is larger than the input")
    return scope.quotient(length, stride), stride, dilation, before, slack


def seen(index: Index, tap: Index, win: Window, dim: Type) -> tuple[Index, Poly]:
    """The input place that a tap reads, and a factor that is 1 inside the input, 0 outside."""
    _, stride, dilation, before, slack = win
    first = Place(offset=-before).plus(_single(tap), dilation)
    place = first.plus(_single(index), stride)
    if slack is None or (not first.terms and 0 <= first.offset <= slack):
        return at_place(place, dim), constant(1)
    return _guarded(place, dim)


def _single(index: Index) -> Place:
    """The place along a dim that is not joined. Raises Stuck otherwise."""
    name, found = places(index)
    if name or len(found) > 1:
        raise Stuck("a window or padding of a dim that is joined")
    return found[0] if found else Place()


def _guarded(place: Place, dim: Type) -> tuple[Index, Poly]:
    """A place as an index of a dim, and a factor that is 1 inside, 0 outside."""
    if not dim or isinstance(dim[0], int):
        size = dim[0] if dim and isinstance(dim[0], int) else 1
        if len(dim) > 1 or place.terms:
            raise Stuck("a window or padding of a dim that is joined")
        within = 0 <= place.offset < size
        return (((size, place),) if dim else ()), constant(1 if within else 0)
    return at_place(place, dim), factor(Guard(place, str(dim[0])))


def pad(scope: Scope, apply: Apply, values: Sequence[Symbolic]) -> list[Symbolic]:
    """y[.., i, ..] = x[.., i - before, ..] inside, otherwise the fill value."""
    unifier, (value,) = scope.unifier, values
    dims, padded = list(value.dims), dict[int, int]()
    for d, (before, after) in enumerate(_pairs(apply, len(dims))):
        if not before and not after:
            continue
        if merged(value.digits[d], unifier):
            raise Mismatch(f"pad: needs dim {d} of {value.show(unifier)} whole")
        dims[d] = scope.quotient(unifier.size(dims[d]) + before + after, 1)
        padded[d] = before
    fill = scope.number(apply.get("value") or 0)

    def at(replica: Index, indices: tuple[Index, ...]) -> Poly:
        guard, moved = constant(1), list(indices)
        for d, before in padded.items():
            place = _single(indices[d]).plus(Place(), offset=-before)
            moved[d], inside = _guarded(place, unifier.resolve(value.dims[d]))
            guard = guard * inside
        if not guard.terms:
            return fill
        return value.at(replica, tuple(moved)) * guard + fill + (fill * guard).times(-1)

    return [Symbolic(tuple(dims), value.digits, value.replicas, at)]


def _pairs(apply: Apply, rank: int) -> list[tuple[int, int]]:
    """Entries before and after every dim; the attribute holds pairs, the last dim first."""
    given = apply["pad"]
    flat = [whole_number(n, "an entry of a padding") for n in (given if isinstance(given, tuple) else (given,))]
    if len(flat) % 2 or len(flat) > 2 * rank:
        raise Mismatch(f"pad: {given!r} for {rank} dims")
    flat += [0] * (2 * rank - len(flat))
    return [(flat[2 * d], flat[2 * d + 1]) for d in reversed(range(rank))]
