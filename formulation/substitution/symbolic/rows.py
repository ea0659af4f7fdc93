"""Definitions of operators whose notation names a function of rows: reductions, pooling, norms.

A proof reads them only where names are not enough (`Scope.defined`), since what they write out can be long.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import product
from math import inf, prod
from typing import TypeAlias

from ....model.operators.normalization import EPS
from ....model.operators.operator import algebra_of
from ..rule import Apply
from .derive import derived
from .functions import positivity
from .indices import Index, every, number_of
from .maxima import Candidate
from .scope import Scope, dim_of, whole_number
from .terms import Place, Poly, constant, from_end
from .types import Mismatch, Stuck, Type, product_of
from .values import Application, ElementTask, Letters, Symbolic, merged
from .windows import numbers, seen, window

Meaning: TypeAlias = Callable[[Scope, Apply, Sequence[Symbolic]], list[Symbolic]]
Places: TypeAlias = "list[tuple[list[Index], tuple[tuple[str, str], ...]]]"
"""All indices along whole dims, with the variables that count them."""


def _one(values: Sequence[Symbolic], op: str) -> Symbolic:
    if len(values) != 1:
        raise Mismatch(f"{op} takes one tensor, not {len(values)}")
    return values[0]


def _places(scope: Scope, dims: Sequence[Type]) -> Places:
    options = [list(every(scope.unifier.resolve(t))) for t in dims]
    return [([i for i, _ in choice], tuple(v for _, vs in choice for v in vs)) for choice in product(*options)]


def reduced(combine: Callable[[Scope, Apply, list[Candidate]], Poly]) -> Meaning:
    """One number of every row along `dims`."""

    def meaning(scope: Scope, apply: Apply, values: Sequence[Symbolic]) -> list[Symbolic]:
        value = _one(values, apply.op)
        rank, given = len(value.dims), apply.get("dims")
        dims = {dim_of(d, rank, apply.op) for d in (given if isinstance(given, tuple) else (given,))}
        names: Letters = tuple(() if d in dims else (f"d{d}",) for d in range(rank))
        kept = tuple(name for name in names if name or apply.get("keepdim"))
        application = Application(scope.unifier, f"{apply.op}: ", values, [names], kept, ())
        application.infer()

        def body(tasks: ElementTask) -> Poly:
            places = _places(scope, [value.dims[d] for d in sorted(dims)])
            return combine(
                scope, apply, [Candidate(tasks.read(0, {}, index), variables) for index, variables in places]
            )

        return [application.result(body)]

    return meaning


def _logsumexp(scope: Scope, apply: Apply, row: list[Candidate]) -> Poly:
    return scope.function("log", sum((scope.function("exp", c.value).total(c.variables) for c in row), Poly()))


def _norm(scope: Scope, apply: Apply, row: list[Candidate]) -> Poly:
    order = apply.get("ord", 2)
    if order == 2:
        return scope.function("sqrt", sum(((c.value * c.value).total(c.variables) for c in row), Poly()))
    sizes = [replace(c, value=scope.function("abs", c.value)) for c in row]
    if order == 1:
        return sum((c.value.total(c.variables) for c in sizes), Poly())
    if order == inf:
        return scope.largest(sizes)
    raise Stuck(f"a norm of order {order}")


def pooled(largest: bool) -> Meaning:
    """The maximum of a window's places inside the input, or their sum over `divisor_override`, the number of taps, or
    without `count_include_pad` the number of places inside."""

    def meaning(scope: Scope, apply: Apply, values: Sequence[Symbolic]) -> list[Symbolic]:
        value = _one(values, apply.op)
        if apply.get("ceil_mode"):
            return derived(scope, apply, values)
        size = apply["kernel_size"]
        rank = len(size) if isinstance(size, tuple) else len(value.dims) - 2
        taps = numbers(size, rank, 1)
        _check_window(apply, taps)
        if apply.get("stride") is None:
            apply = Apply(apply.op, apply.inputs, apply.outputs, (*apply.attributes, ("stride", size)))
        outer = len(value.dims) - rank
        spatial = value.dims[outer:]
        windows = [window(scope, apply, d, rank, spatial[d], (taps[d],)) for d in range(rank)]
        batch = [(f"d{d}",) for d in range(outer)]
        space = [(f"s{d}",) for d in range(rank)]
        own = [name if w is None else () for name, w in zip(space, windows, strict=True)]
        application = Application(scope.unifier, f"{apply.op}: ", values, [(*batch, *own)], (*batch, *space), ())
        application.infer()
        for name, w in zip(space, windows, strict=True):
            if w is not None:
                application.dim(w[0], (), name)

        def body(tasks: ElementTask) -> Poly:
            found = list[Candidate]()
            for tap in product(*map(range, taps)):
                whole, guard = list[Index](), constant(1)
                for d, w in enumerate(windows):
                    if w is not None:
                        digit = ((taps[d], Place(offset=tap[d])),) if taps[d] > 1 else ()
                        inside, counts = seen(tasks.index[f"s{d}"], digit, w, scope.unifier.resolve(spatial[d]))
                        whole.append(inside)
                        guard = guard * counts
                if guard.terms:
                    found.append(Candidate(tasks.read(0, {}, whole), (), guard))
            if largest:
                return scope.largest(found)
            return _mean(scope, apply, found, prod(taps))

        return [application.result(body)]

    return meaning


def _check_window(apply: Apply, taps: Sequence[int]) -> None:
    """Raise Mismatch for pooling that PyTorch refuses: pads of more than half a window, a divisor of 0."""
    padding = apply.get("padding", 0)
    pads = numbers(padding, len(taps), 0) if isinstance(padding, int | tuple) else [0] * len(taps)
    for before, count in zip(pads, taps, strict=True):
        if 2 * before > count:
            raise Mismatch(f"{apply.op}: padding by {before} is more than half a window of {count}")
    if apply.get("divisor_override") == 0:
        raise Mismatch(f"{apply.op}: divisor_override is 0")


def _mean(scope: Scope, apply: Apply, found: Sequence[Candidate], taps: int) -> Poly:
    """The sum of a window's places inside the input over the divisor that the attributes say."""
    total, divisor = sum((c.value * c.guard for c in found), Poly()), apply.get("divisor_override")
    if divisor is not None:
        return total.times(Fraction(1, whole_number(divisor, "a divisor")))
    inside = constant(taps) if apply.get("count_include_pad", True) else sum((c.guard for c in found), Poly())
    return total.times(Fraction(1, taps)) if inside == constant(taps) else total * scope.function("reciprocal", inside)


def normalized(centred: bool) -> Meaning:
    """(x - mean) / sqrt(variance + eps) * weight + bias over the last dims; without `centred` the mean counts as 0."""

    def meaning(scope: Scope, apply: Apply, values: Sequence[Symbolic]) -> list[Symbolic]:
        if apply.get("operands") is not None or not 1 <= len(values) <= (3 if centred else 2):
            return derived(scope, apply, values)
        given = {**algebra_of(apply.op).defaults, **dict(apply.attributes)}
        count, eps = whole_number(given["normalized"], "the number of normalized dims"), scope.number(given["eps"])
        value = values[0]
        outer = len(value.dims) - count
        if outer < 0 or count < 1:
            raise Mismatch(f"{apply.op}: {count} normalized dims of {value.show(scope.unifier)}")
        batch = tuple((f"d{d}",) for d in range(outer))
        inner = tuple((f"j{d}",) for d in range(count))
        inputs: list[Letters] = [(*batch, *((),) * count), *(inner for _ in values[1:])]
        application = Application(scope.unifier, f"{apply.op}: ", values, inputs, (*batch, *inner), ())
        application.infer()
        rows = value.dims[outer:]
        for type_, name in zip(rows, inner, strict=True):
            application.dim(type_, (), name)

        def body(tasks: ElementTask) -> Poly:
            share = scope.share(product_of(rows))
            mean, squares = Poly(), Poly()
            for index, variables in _places(scope, rows):
                x = tasks.read(0, {}, index)
                mean = mean + x.total(variables)
                squares = squares + (x * x).total(variables)
            mean = mean * share if centred else Poly()
            variance = squares * share + (mean * mean).times(-1)
            here = tasks.read(0, {}, [tasks.index[name] for (name,) in inner])
            result = (here + mean.times(-1)) * scope.function("rsqrt", variance + eps)
            result = result * tasks.read(1, {}) if len(values) > 1 else result
            return result + tasks.read(2, {}) if len(values) > 2 else result

        return [application.result(body)]

    return meaning


def group_norm(scope: Scope, apply: Apply, values: Sequence[Symbolic]) -> list[Symbolic]:
    """Each group of channels of a sample normalized over its channels and space, then scaled by channel.

    Shards have whole groups. The notation depends on numbers of channels, which are symbols here.
    """
    value, unifier = values[0], scope.unifier
    if not 1 <= len(values) <= 3 or len(value.dims) < 2:
        raise Mismatch(f"group_norm takes x[n, c, ..], weight[c], bias[c], not {len(values)} tensors")
    space = tuple(f"s{d}" for d in range(len(value.dims) - 2))
    channels = ("g", "c")
    inputs: list[Letters] = [(("n",), channels, *((),) * len(space)), *((channels,) for _ in values[1:])]
    application = Application(
        unifier, "group_norm: ", values, inputs, (("n",), channels, *((name,) for name in space)), ()
    )
    application.letter("g", value.digits[1]).type = scope.type_of(apply["groups"], ordered=True)
    application.infer()
    for type_, name in zip(value.dims[2:], space, strict=True):
        application.dim(type_, (), (name,))
    eps = scope.number(dict(apply.attributes).get("eps", EPS))

    def body(tasks: ElementTask) -> Poly:
        rows = [application.letters["c"].type, *value.dims[2:]]
        share = scope.share(product_of(rows))
        mean, squares = Poly(), Poly()
        for (channel, *places), variables in _places(scope, rows):
            x = tasks.read(0, {"c": channel}, places)
            mean, squares = mean + x.total(variables), squares + (x * x).total(variables)
        mean = mean * share
        here = tasks.read(0, {}, [tasks.index[name] for name in space])
        result = (here + mean.times(-1)) * scope.function("rsqrt", squares * share + (mean * mean).times(-1) + eps)
        result = result * tasks.read(1, {}) if len(values) > 1 else result
        return result + tasks.read(2, {}) if len(values) > 2 else result

    return [application.result(body)]


def triangle(lower: bool) -> Meaning:
    """x[i, j] where j - i is at most `diagonal` (lower), or at least; 0 elsewhere."""

    def meaning(scope: Scope, apply: Apply, values: Sequence[Symbolic]) -> list[Symbolic]:
        value = _one(values, apply.op)
        diagonal = whole_number(apply.get("diagonal", 0), "a diagonal")
        if len(value.dims) < 2:
            raise Mismatch(f"{apply.op} takes a matrix")
        if merged(value.digits[-1], scope.unifier) or merged(value.digits[-2], scope.unifier):
            raise Mismatch(f"{apply.op}: needs a dim whole that is cut")

        def at(replica: Index, indices: tuple[Index, ...]) -> Poly:
            row, column = (number_of(index, scope.unifier) for index in indices[-2:])
            if row is None or column is None:
                raise Stuck(f"{apply.op}: a place along a dim that is cut or joined")
            gap = (column + row.times(-1)).times(-1 if lower else 1)
            return value.at(replica, indices) * positivity(gap + constant(1 + (diagonal if lower else -diagonal)))

        return [replace(value, at=at)]

    return meaning


def flip(scope: Scope, apply: Apply, values: Sequence[Symbolic]) -> list[Symbolic]:
    """Places counted from the other end, along dims of one atom or number."""
    value, given = _one(values, apply.op), apply["dims"]
    dims = {dim_of(d, len(value.dims), apply.op) for d in (given if isinstance(given, tuple) else (given,))}
    if any(merged(value.digits[d], scope.unifier) for d in dims):
        raise Mismatch("flip: needs a dim whole that is cut")

    def other(index: Index) -> Index:
        if not index:
            return index
        ((radix, digit), *more) = index
        if more or not isinstance(digit, Place):
            raise Stuck("flip of a dim that is cut or joined")
        if isinstance(radix, int):
            return ((radix, Place(offset=radix - 1).plus(digit, -1)),)
        return ((radix, from_end(digit, str(radix))),)

    def at(replica: Index, indices: tuple[Index, ...]) -> Poly:
        return value.at(replica, tuple(other(i) if d in dims else i for d, i in enumerate(indices)))

    return [replace(value, at=at)]


def adaptive(name: str) -> Meaning:
    """Pooling of everything into one place."""

    def meaning(scope: Scope, apply: Apply, values: Sequence[Symbolic]) -> list[Symbolic]:
        size = apply["output_size"]
        sizes = size if isinstance(size, tuple) else (size,) * (len(_one(values, apply.op).dims) - 2)
        if any(n != 1 for n in sizes):
            return derived(scope, apply, values)
        dims = tuple(range(len(values[0].dims) - len(sizes), len(values[0].dims)))
        whole = Apply(name, apply.inputs, apply.outputs, (("dims", dims), ("keepdim", True)))
        return DEFINED.get(name, derived)(scope, whole, values)

    return meaning


DEFINED: Mapping[str, Meaning] = {
    "amax": reduced(lambda scope, apply, row: scope.largest(row)),
    "logsumexp": reduced(_logsumexp),
    "norm": reduced(_norm),
    "max_pool": pooled(largest=True),
    "avg_pool": pooled(largest=False),
    "adaptive_max_pool": adaptive("amax"),
    "adaptive_avg_pool": adaptive("mean"),
    "flip": flip,
    "tril": triangle(lower=True),
    "triu": triangle(lower=False),
    "layer_norm": normalized(centred=True),
    "rms_norm": normalized(centred=False),
}
