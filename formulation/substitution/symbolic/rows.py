"""Definitions of operators whose notation names a function of rows: reductions, pooling, norms.

A proof reads them only where names are not enough (`Scope.defined`), since what they write out can be long.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from itertools import product
from math import inf, prod
from typing import TypeAlias

from ....model.operators.normalization import EPS
from ....model.operators.operator import algebra_of
from ..rule import Apply
from .derive import derived, inverse_size
from .functions import absolute, exp, inverse, log, root
from .indices import Index, every
from .maxima import Candidate, maximum
from .scope import Scope, dim_of, whole_number
from .terms import Place, Poly, constant
from .types import Mismatch, Stuck, Type, product_of
from .values import Application, ElementTask, Letters, Symbolic
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


def reduced(combine: Callable[[Apply, list[Candidate]], Poly]) -> Meaning:
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
            return combine(apply, [Candidate(tasks.read(0, {}, index), variables) for index, variables in places])

        return [application.result(body)]

    return meaning


def _logsumexp(apply: Apply, row: list[Candidate]) -> Poly:
    return log(sum((exp(c.value).total(c.variables) for c in row), Poly()))


def _norm(apply: Apply, row: list[Candidate]) -> Poly:
    order = apply.get("ord", 2)
    if order == 2:
        return root(sum(((c.value * c.value).total(c.variables) for c in row), Poly()))
    if order == 1:
        return sum((absolute(c.value).total(c.variables) for c in row), Poly())
    if order == inf:
        return maximum([Candidate(absolute(c.value), c.variables) for c in row])
    raise Stuck(f"a norm of order {order}")


def pooled(largest: bool) -> Meaning:
    """The maximum of a window's places inside the input, or their sum over the number of taps (padding counts)."""

    def meaning(scope: Scope, apply: Apply, values: Sequence[Symbolic]) -> list[Symbolic]:
        value = _one(values, apply.op)
        if any(apply.get(key) for key in ("ceil_mode", "divisor_override")) or not apply.get("count_include_pad", True):
            return derived(scope, apply, values)
        size = apply["kernel_size"]
        rank = len(size) if isinstance(size, tuple) else len(value.dims) - 2
        taps = numbers(size, rank, 1)
        if apply.get("stride") is None:
            apply = Apply(apply.op, apply.inputs, apply.outputs, (*apply.attributes, ("stride", size)))
        if largest and isinstance(apply.get("padding", 0), int | tuple):
            for before, count in zip(numbers(apply.get("padding"), rank, 0), taps, strict=True):
                if 2 * before > count:
                    raise Mismatch(f"{apply.op}: padding by {before} is more than half a window of {count}")
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
                return maximum(found)
            return sum((c.value * c.guard for c in found), Poly()).times(Fraction(1, prod(taps)))

        return [application.result(body)]

    return meaning


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
            share = inverse_size(scope.unifier.resolve(product_of(rows)))
            mean, squares = Poly(), Poly()
            for index, variables in _places(scope, rows):
                x = tasks.read(0, {}, index)
                mean = mean + x.total(variables)
                squares = squares + (x * x).total(variables)
            mean = mean * share if centred else Poly()
            variance = squares * share + (mean * mean).times(-1)
            here = tasks.read(0, {}, [tasks.index[name] for (name,) in inner])
            result = (here + mean.times(-1)) * inverse(root(variance + eps))
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
        share = inverse_size(unifier.resolve(product_of(rows)))
        mean, squares = Poly(), Poly()
        for (channel, *places), variables in _places(scope, rows):
            x = tasks.read(0, {"c": channel}, places)
            mean, squares = mean + x.total(variables), squares + (x * x).total(variables)
        mean = mean * share
        here = tasks.read(0, {}, [tasks.index[name] for name in space])
        result = (here + mean.times(-1)) * inverse(root(squares * share + (mean * mean).times(-1) + eps))
        result = result * tasks.read(1, {}) if len(values) > 1 else result
        return result + tasks.read(2, {}) if len(values) > 2 else result

    return [application.result(body)]


DEFINED: Mapping[str, Meaning] = {
    "amax": reduced(lambda apply, row: maximum(row)),
    "logsumexp": reduced(_logsumexp),
    "norm": reduced(_norm),
    "max_pool": pooled(largest=True),
    "avg_pool": pooled(largest=False),
    "layer_norm": normalized(centred=True),
    "rms_norm": normalized(centred=False),
}
