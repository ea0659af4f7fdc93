"""Meanings of the parallel operators (Unity §3.3), concatenation, splitting and views.

Partition and pipeline push a digit of a dim, combine and batch pop it; values stay. Replicate copies along the replica
dim, reduce sums over it. Tile and fold do the same along a data dim, as in FlexFlow's published rules.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

from ..rule import REPLICA, Apply
from .indices import Index, case_of, every, into_case, take
from .scope import Scope, dim_of, whole_number
from .terms import Poly
from .types import Cases, Mismatch, Stuck, Type, Unifier, product_of, written
from .values import Digits, Symbolic, all_cuts, merged, put, same_digits


def _degree(scope: Scope, apply: Apply) -> Type:
    return scope.unifier.resolve(scope.type_of(apply["degree"], ordered=True))


def _dim(apply: Apply, value: Symbolic) -> int:
    if apply["dim"] == REPLICA:
        raise Mismatch(f"{apply.op}: the replica dim is not partitioned")
    return dim_of(apply["dim"], len(value.dims), apply.op)


def push(time: bool) -> Callable[[Scope, Apply, Sequence[Symbolic]], list[Symbolic]]:
    def meaning(scope: Scope, apply: Apply, values: Sequence[Symbolic]) -> list[Symbolic]:
        (value,) = values
        dim, degree = _dim(apply, value), _degree(scope, apply)
        digits = merged((*value.digits[dim], (degree, time)), scope.unifier)
        with suppress(Stuck):  # values stay; what needs the blocks one by one raises later
            scope.unifier.within(value.dims[dim], all_cuts(digits), f"{apply.op}: ")
        return [replace(value, digits=put(value.digits, dim, digits))]

    return meaning


def pop(time: bool) -> Callable[[Scope, Apply, Sequence[Symbolic]], list[Symbolic]]:
    def meaning(scope: Scope, apply: Apply, values: Sequence[Symbolic]) -> list[Symbolic]:
        (value,) = values
        dim, degree = _dim(apply, value), _degree(scope, apply)
        digits = merged(value.digits[dim], scope.unifier)
        if degree and (not digits or digits[-1][1] != time):
            raise Mismatch(
                f"{apply.op}: dim {dim} of {value.show(scope.unifier)} is not cut {'in time' if time else 'in space'}"
            )
        if degree:
            left = _without(digits[-1][0], degree, scope.unifier, apply.op)
            digits = merged((*digits[:-1], (left, time)), scope.unifier)
        return [replace(value, digits=put(value.digits, dim, digits))]

    return meaning


def _without(have: Type, degree: Type, unifier: Unifier, op: str) -> Type:
    """A product of degrees without a factor; degrees commute."""
    left = list(have)
    for radix in degree:
        for place in reversed(range(len(left))):
            mine = left[place]
            if mine == radix:
                del left[place]
                break
            if isinstance(mine, int) and isinstance(radix, int) and mine % radix == 0:
                left[place] = mine // radix
                break
        else:
            if len(left) == len(degree) == 1 and not all(isinstance(r, int) for r in (*left, *degree)):
                unifier.unify(tuple(left), degree, f"{op}, degree: ")
                return ()
            raise Mismatch(f"{op}: degree {written(have)} is not a multiple of {written(degree)}")
    return unifier.resolve(tuple(left))


def replicate(scope: Scope, apply: Apply, values: Sequence[Symbolic]) -> list[Symbolic]:
    (value,) = values
    degree = _degree(scope, apply)

    def at(replica: Index, indices: tuple[Index, ...]) -> Poly:
        return value.at(take(replica, scope.unifier.resolve(degree))[1], indices)

    return [replace(value, replicas=(*degree, *value.replicas), at=at)]


def reduce(scope: Scope, apply: Apply, values: Sequence[Symbolic]) -> list[Symbolic]:
    (value,) = values
    degree = _degree(scope, apply)
    rest = scope.unifier.within(value.replicas, degree, "reduce, replicas: ")

    def at(replica: Index, indices: tuple[Index, ...]) -> Poly:
        total = Poly()
        for copy, variables in every(scope.unifier.resolve(degree)):
            total = total + value.at(copy + replica, indices).total(variables)
        return total

    return [replace(value, replicas=rest, at=at)]


def tile(scope: Scope, apply: Apply, values: Sequence[Symbolic]) -> list[Symbolic]:
    """Concatenated copies, on `degree` times as many devices."""
    (value,) = values
    dim, degree = _dim(apply, value), _degree(scope, apply)

    def at(replica: Index, indices: tuple[Index, ...]) -> Poly:
        inner = take(indices[dim], scope.unifier.resolve(degree))[1]
        return value.at(replica, put(indices, dim, inner))

    dims = put(value.dims, dim, (*degree, *value.dims[dim]))
    digits = merged(((degree, False), *value.digits[dim]), scope.unifier)
    return [Symbolic(dims, put(value.digits, dim, digits), value.replicas, at)]


def fold(scope: Scope, apply: Apply, values: Sequence[Symbolic]) -> list[Symbolic]:
    """The sum of a dim's blocks; a cut dim is left on fewer devices."""
    (value,) = values
    dim, degree = _dim(apply, value), _degree(scope, apply)
    digits = merged(value.digits[dim], scope.unifier)
    if digits and digits[0][1]:
        raise Mismatch(f"fold: dim {dim} of {value.show(scope.unifier)} is cut in time")
    head: Digits = ((_without(digits[0][0], degree, scope.unifier, "fold"), False),) if digits else ()
    rest = scope.unifier.within(value.dims[dim], degree, "fold: ")

    def at(replica: Index, indices: tuple[Index, ...]) -> Poly:
        total = Poly()
        for block, variables in every(scope.unifier.resolve(degree)):
            place = put(indices, dim, block + indices[dim])
            total = total + value.at(replica, place).total(variables)
        return total

    left = merged((*head, *digits[1:]), scope.unifier)
    return [Symbolic(put(value.dims, dim, rest), put(value.digits, dim, left), value.replicas, at)]


def cat(scope: Scope, apply: Apply, values: Sequence[Symbolic]) -> list[Symbolic]:
    """Concatenation, local to each shard: along a cut dim every shard has its part of all operands."""
    unifier, first = scope.unifier, values[0]
    if not values or any(len(v.dims) != len(first.dims) for v in values):
        raise Mismatch("cat: tensors of different ranks")
    dim = None if apply["dim"] == REPLICA else dim_of(apply["dim"], len(first.dims), "cat")
    for value in values[1:]:
        for k, (a, b) in enumerate(zip(first.dims, value.dims, strict=True)):
            if k != dim:
                unifier.unify(a, b, f"cat, dim {k}: ")
            same_digits(first.digits[k], value.digits[k], unifier, "cat: ")
        if dim is not None:
            unifier.unify(first.replicas, value.replicas, "cat, replicas: ")
    if dim is None:
        copies = [v.replicas for v in values]

        def at_replica(replica: Index, indices: tuple[Index, ...]) -> Poly:
            number, inner = case_of(replica, [unifier.resolve(c) for c in copies])
            return values[number].at(inner, indices)

        return [replace(first, replicas=(Cases(tuple(copies)),), at=at_replica)]
    cuts = all_cuts(first.digits[dim])
    locals_ = [unifier.within(v.dims[dim], cuts, "cat: ") if cuts else v.dims[dim] for v in values]

    def at(replica: Index, indices: tuple[Index, ...]) -> Poly:
        head, rest = take(indices[dim], unifier.resolve(cuts))
        number, inner = case_of(rest, [unifier.resolve(t) for t in locals_])
        return values[number].at(replica, put(indices, dim, head + inner))

    return [replace(first, dims=put(first.dims, dim, (*cuts, Cases(tuple(locals_)))), at=at)]


def split(scope: Scope, apply: Apply, values: Sequence[Symbolic]) -> list[Symbolic]:
    """The inverse of cat: parts of the stated sizes, of a concatenation's cases, or equal ones."""
    unifier, (value,) = scope.unifier, values
    dim = None if apply["dim"] == REPLICA else dim_of(apply["dim"], len(value.dims), "split")
    cuts = () if dim is None else all_cuts(value.digits[dim])
    rest = value.replicas if dim is None else value.dims[dim]
    rest = unifier.within(rest, cuts, "split: ") if cuts else rest
    locals_ = _parts(scope, apply, rest, cuts)
    scope.found[scope.unifier.phase, apply.outputs[0]] = {"sizes": tuple((*cuts, *t) for t in locals_), "parts": None}

    def part(number: int) -> Symbolic:
        def at(replica: Index, indices: tuple[Index, ...]) -> Poly:
            types = [unifier.resolve(t) for t in locals_]
            if dim is None:
                return value.at(into_case(types, number, replica), indices)
            head, inner = take(indices[dim], unifier.resolve(cuts))
            return value.at(replica, put(indices, dim, head + into_case(types, number, inner)))

        own = locals_[number]
        if dim is None:
            return replace(value, replicas=own, at=at)
        return replace(value, dims=put(value.dims, dim, (*cuts, *own)), at=at)

    return [part(number) for number in range(len(locals_))]


def _parts(scope: Scope, apply: Apply, rest: Type, cuts: Type) -> list[Type]:
    unifier, sizes = scope.unifier, apply.get("sizes")
    count = len(apply.outputs)
    if sizes is not None:
        if not isinstance(sizes, tuple) or len(sizes) != count:
            raise Mismatch(f"split: {count} results of sizes {sizes!r}")
        parts = [unifier.within(scope.type_of(s), cuts, "split: ") for s in sizes]
        unifier.unify(rest, (Cases(tuple(parts)),), "split: ")
        return parts
    if whole_number(apply.get("parts", count), "the parts of a split") != count:
        raise Mismatch(f"split: {apply['parts']} parts are {count} results")
    known = unifier.resolve(rest)
    for joined in (rest, known):  # the last concatenation alone, or nested ones flattened
        if len(joined) == 1 and isinstance(joined[0], Cases) and len(joined[0].elements) == count:
            return list(joined[0].elements)
    part = unifier.fresh(next(iter(a for a in known if isinstance(a, str)), "n"), loose=True)
    unifier.unify(rest, (count, part), "split: ")
    return [(part,)] * count


def view(scope: Scope, apply: Apply, values: Sequence[Symbolic]) -> list[Symbolic]:
    """The elements in row-major order under another shape; a cut dim is the outermost of those it joins or makes."""
    unifier, (value,) = scope.unifier, values
    shape = apply["shape"]
    if not isinstance(shape, tuple):
        raise Mismatch(f"view: {shape!r} is not a shape")
    wanted = [scope.type_of(s) for s in shape]
    unifier.unify(product_of(value.dims), product_of(wanted), "view: ")
    digits = _passed(unifier, value, wanted)

    def at(replica: Index, indices: tuple[Index, ...]) -> Poly:
        flat = tuple(d for index in indices for d in index)
        out = []
        for type_ in value.dims:
            mine, flat = take(flat, unifier.resolve(type_))
            out.append(mine)
        return value.at(replica, tuple(out))

    return [Symbolic(tuple(wanted), digits, value.replicas, at)]


def _passed(unifier: Unifier, value: Symbolic, wanted: Sequence[Type]) -> tuple[Digits, ...]:
    """The digits of a view's dims. Raises Mismatch if a cut dim is not outermost in its group."""
    digits: list[Digits] = [()] * len(wanted)
    before, after = _before(unifier, value.dims), _before(unifier, wanted)
    for dim, mine in enumerate(value.digits):
        if not merged(mine, unifier):
            continue
        places = [k for k in range(len(wanted)) if after[k] == before[dim] and unifier.resolve(wanted[k])]
        if not places:
            raise Mismatch(f"view: the cut dim {dim} of {value.show(unifier)} is not outermost in its group")
        digits[places[0]] = mine
        unifier.within(wanted[places[0]], all_cuts(mine), "view: ")
    return tuple(digits)


def _before(unifier: Unifier, dims: Sequence[Type]) -> list[str]:
    """For every dim the product of those before it, as text."""
    return [str(unifier.size(product_of(dims[:k]))) for k in range(len(dims))]


MOVES = {
    "partition": push(time=False),
    "combine": pop(time=False),
    "pipeline": push(time=True),
    "batch": pop(time=True),
    "replicate": replicate,
    "reduce": reduce,
    "tile": tile,
    "fold": fold,
    "cat": cat,
    "split": split,
    "view": view,
}
