"""Meanings that no notation states, as sums of products: softmax, slices, attention, activations.

`COMPUTE` is keyed by operator; the meanings of all others follow from their notation (`derive`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import reduce

from ..rule import Apply, Value
from ..sizes import Size
from .derive import derived
from .indices import Index, case_of, every, into_case, places
from .moves import MOVES, split
from .rows import DEFINED, group_norm
from .scope import Scope, dim_of, inverse_size, whole_number
from .terms import NOT_LATER, Fn, Poly, constant, factor, opaque
from .types import Cases, Mismatch, Stuck, Type
from .values import Application, ElementTask, Letters, Symbolic, merged, put
from .windows import conv, pad, shifted

Meaning = Callable[[Scope, Apply, Sequence[Symbolic]], list[Symbolic]]


def letters(count: int, start: int = 0) -> list[tuple[str, ...]]:
    return [(f"d{i}",) for i in range(start, start + count)]


def _one(values: Sequence[Symbolic], op: str) -> Symbolic:
    if len(values) != 1:
        raise Mismatch(f"{op} takes one tensor, not {len(values)}")
    return values[0]


def softmax(logarithm: bool) -> Meaning:
    """EXP(x) * INV(sum EXP(x)), or x - LOG(sum EXP(x))."""

    def meaning(scope: Scope, apply: Apply, values: Sequence[Symbolic]) -> list[Symbolic]:
        value = _one(values, apply.op)
        dim = dim_of(apply.get("dim", -1), len(value.dims), apply.op)
        names = letters(len(value.dims))
        application = Application(
            scope.unifier, f"{apply.op}: ", values, [(*names[:dim], (), *names[dim + 1 :])], tuple(names), ()
        )
        application.infer()
        application.dim(value.dims[dim], (), names[dim])

        def body(tasks: ElementTask) -> Poly:
            total = Poly()
            for index, variables in every(scope.unifier.resolve(value.dims[dim])):
                total = total + scope.function("exp", tasks.read(0, {}, [index])).total(variables)
            here = tasks.read(0, {}, [tasks.index[names[dim][0]]])
            if logarithm:
                return here + scope.function("log", total).times(-1)
            return scope.function("exp", here) * scope.function("reciprocal", total)

        return [application.result(body)]

    return meaning


def transpose(scope: Scope, apply: Apply, values: Sequence[Symbolic]) -> list[Symbolic]:
    """The last two dims swapped."""
    rank = len(_one(values, "transpose").dims)
    if rank < 2:
        raise Mismatch("transpose takes at least two dims")
    order = (*range(rank - 2), rank - 1, rank - 2)
    return permute(scope, replace(apply, attributes=(("dims", order),)), values)


def permute(scope: Scope, apply: Apply, values: Sequence[Symbolic]) -> list[Symbolic]:
    rank = len(_one(values, "permute").dims)
    given = apply["dims"]
    order = [dim_of(d, rank, "permute") for d in given] if isinstance(given, tuple) else []
    if sorted(order) != list(range(rank)):
        raise Mismatch(f"permute: {given!r} is not a permutation of {rank} dims")
    return derived(scope, replace(apply, op="permute", attributes=(("dims", tuple(order)),)), values)


def expand(scope: Scope, apply: Apply, values: Sequence[Symbolic]) -> list[Symbolic]:
    """Repeat along dims of size 1 and along new leading dims."""
    value, shape = _one(values, "expand"), apply["shape"]
    if not isinstance(shape, tuple) or len(shape) < len(value.dims):
        raise Mismatch(f"expand: {shape!r} is not a shape of at least {len(value.dims)} dims")
    wanted = [scope.type_of(s) for s in shape]
    new = len(wanted) - len(value.dims)
    resolve = scope.unifier.resolve
    grown = [not resolve(t) and bool(resolve(a)) for t, a in zip(value.dims, wanted[new:], strict=True)]
    for type_, size, grows in zip(value.dims, wanted[new:], grown, strict=True):
        if not grows:
            scope.unifier.unify(type_, size, "expand: ")
    dims = (*wanted[:new], *(a if g else t for t, a, g in zip(value.dims, wanted[new:], grown, strict=True)))

    def at(replica: Index, indices: tuple[Index, ...]) -> Poly:
        return value.at(replica, tuple(() if g else i for i, g in zip(indices[new:], grown, strict=True)))

    return [Symbolic(dims, ((),) * new + value.digits, value.replicas, at)]


def slice_(scope: Scope, apply: Apply, values: Sequence[Symbolic]) -> list[Symbolic]:
    """Every `step`-th place from `start` up to `stop`, along a whole dim."""
    unifier, value = scope.unifier, _one(values, "slice")
    dim = dim_of(apply["dim"], len(value.dims), "slice")
    if merged(value.digits[dim], unifier):
        raise Mismatch("slice: needs a dim whole that is cut")
    type_ = unifier.resolve(value.dims[dim])
    size = unifier.size(type_)
    start, stop = _place(scope, apply.get("start"), Size()), _place(scope, apply.get("stop"), size)
    step = whole_number(apply.get("step", 1), "the step of a slice")
    if start == Size() and stop == size and step == 1:
        return [value]
    taken = _aligned(unifier.size, type_, start, stop) if step == 1 else []
    if taken:
        return [_cases(value, dim, type_, taken)]
    length = stop - start
    if step == 1 and _cut_at(scope, type_, start, length, size - stop):
        type_ = unifier.resolve(type_)
        return [_cases(value, dim, type_, _aligned(unifier.size, type_, start, stop))]
    if step != 1:
        if length.number is None:
            raise Stuck("a slice with a step between symbolic places")
        length = Size.of(-(-length.number // step))
    if start.number is None or start.number < 0 or (length.number is not None and length.number < 1):
        raise Stuck(f"a slice from {start} to {stop}")
    if size.number is not None and stop.number is not None and stop.number > size.number:
        raise Mismatch(f"slice: no places {start} to {stop} in a dim of {size}")
    made = unifier.of_size(length, declared=False)
    offset = start.number

    def at(replica: Index, indices: tuple[Index, ...]) -> Poly:
        place = shifted(indices[dim], unifier.resolve(type_), step, offset)
        return value.at(replica, put(indices, dim, place))

    return [replace(value, dims=put(value.dims, dim, made), at=at)]


def _cut_at(scope: Scope, type_: Type, *sizes: Size) -> bool:
    """Make a dim of unknown parts a concatenation of parts of these sizes, at least one of them a symbol's."""
    unifier = scope.unifier
    known = [s for s in sizes if s.terms]
    if len(known) < 2 or len(type_) != 1 or not isinstance(type_[0], str) or type_[0] not in unifier.sizes:
        return False
    if any(len(s.terms) != 1 or s.terms[0][1] < 1 for s in known) or all(s.number is not None for s in known):
        return False
    unifier.unify(type_, (Cases(tuple(unifier.of_size(s, declared=False) for s in known)),), "slice: ")
    return True


def _place(scope: Scope, given: Value | None, default: Size) -> Size:
    """A place along a dim, as a size over free atoms."""
    if given is None:
        return default
    if isinstance(given, bool) or not isinstance(given, int | str):
        raise Mismatch(f"slice: {given!r} is not a place")
    size = Size.of(given)
    scope.unifier.declared |= size.symbols
    return size.substitute({name: scope.unifier.size((name,)) for name in size.symbols})


def _aligned(measure: Callable[[Type], Size], type_: Type, start: Size, stop: Size) -> list[tuple[int, Type]]:
    """The numbered cases of a dim that fill the range between two places; none if the range splits a case."""
    if len(type_) != 1 or not isinstance(type_[0], Cases):
        return []
    before = Size()
    taken: list[tuple[int, Type]] = []
    for number, element in enumerate(type_[0].elements):
        if taken or before == start:
            taken.append((number, element))
        before = before + measure(element)
        if taken and before == stop:
            return taken
    return []


def _cases(value: Symbolic, dim: int, type_: Type, taken: list[tuple[int, Type]]) -> Symbolic:
    """Consecutive cases of a concatenation."""
    whole = type_[0]
    assert isinstance(whole, Cases)
    kept = [element for _, element in taken]
    made: Type = (Cases(tuple(kept)),) if len(kept) > 1 else kept[0]

    def at(replica: Index, indices: tuple[Index, ...]) -> Poly:
        number, inner = case_of(indices[dim], kept)
        place = into_case(whole.elements, taken[0][0] + number, inner)
        return value.at(replica, put(indices, dim, place))

    return replace(value, dims=put(value.dims, dim, made), at=at)


def attention(scope: Scope, apply: Apply, values: Sequence[Symbolic]) -> list[Symbolic]:
    """softmax(scale * q k^T + bias) v, causal or not; with `grouped`, head (g r) of queries reads head g of keys.

    Without definitions, grouped heads follow from the notation.
    """
    grouped = bool(apply.get("grouped"))
    if grouped and not scope.defined:
        return derived(scope, apply, values)
    if not 3 <= len(values) <= 4:
        raise Mismatch(f"attention takes three or four tensors, not {len(values)}")
    unifier, q = scope.unifier, values[0]
    if any(len(v.dims) != len(q.dims) for v in values[:3]) or len(q.dims) < 2 + grouped:
        raise Mismatch("attention takes queries, keys and values of equal rank")
    batch = [*letters(len(q.dims) - 3), ("g", "r")] if grouped else letters(len(q.dims) - 2)
    keys_of = [*batch[:-1], ("g",)] if grouped else batch
    inputs: list[Letters] = [(*batch, ("s",), ()), (*keys_of, (), ()), (*keys_of, (), ("e",))]
    if len(values) > 3:
        inputs.append(_bias(scope, values[3], batch))
    application = Application(unifier, "attention: ", values, inputs, (*batch, ("s",), ("e",)), ())
    application.infer()
    width, keys = q.dims[-1], values[1].dims[-2]
    unifier.unify(width, values[1].dims[-1], "attention, width: ")
    unifier.unify(keys, values[2].dims[-2], "attention, keys: ")
    if len(values) > 3:
        unifier.unify(keys, values[3].dims[-1], "attention, bias: ")
    given, resolve = apply.get("scale"), unifier.resolve

    def weight(tasks: ElementTask, key: Index) -> Poly:
        """exp of the score of one key."""
        score = Poly()
        for e, variables in every(resolve(width)):
            score = score + (tasks.read(0, {}, [e]) * tasks.read(1, {}, [key, e])).total(variables)
        score = score * (opaque("rsqrt", _size(resolve(width))) if given is None else scope.number(given))
        if len(values) > 3:
            score = score + tasks.read(3, {}, [*[() for d in inputs[3][:-1] if not d], key])
        value = scope.function("exp", score)
        if not apply.get("causal"):
            return value
        names = [places(tasks.index["s"]), places(key)]
        cases = " ".join(n for n, _ in names) if any(n for n, _ in names) else ""
        return value * factor(Fn(NOT_LATER + cases, (), tuple(p for _, ps in names for p in ps)))

    def body(tasks: ElementTask) -> Poly:
        total, mixed = Poly(), Poly()
        for key, variables in every(resolve(keys)):
            total = total + weight(tasks, key).total(variables)
            mixed = mixed + (weight(tasks, key) * tasks.read(2, {}, [key])).total(variables)
        return scope.function("reciprocal", total) * mixed

    return [application.result(body)]


def _bias(scope: Scope, value: Symbolic, batch: list[tuple[str, ...]]) -> Letters:
    """The letters of an additive mask, which may lack leading dims, or be broadcast over heads and queries."""
    count = len(value.dims)
    if not 2 <= count <= len(batch) + 2:
        raise Stuck(f"the bias of an attention has {count} dims")
    names = [*batch[len(batch) - (count - 2) :], ("s",)]
    own = [() if not scope.unifier.resolve(t) else name for t, name in zip(value.dims[:-1], names, strict=True)]
    return (*own, ())


def _size(type_: Type) -> Poly:
    sizes = [inverse_size((r,)) for r in type_]
    return opaque("reciprocal", reduce(lambda a, b: a * b, sizes, constant(1)))


def _linear_relu(scope: Scope, apply: Apply, values: Sequence[Symbolic]) -> list[Symbolic]:
    """The contracted dim must be whole: ReLU applies to the sum."""
    for value in values[:2]:
        if value.digits and value.digits[-1]:
            raise Mismatch("linear_relu: the contracted dim is cut")
    return meaning(scope, replace(apply, op="linear", attributes=(*apply.attributes, ("activation", "relu"))), values)


def _part(scope: Scope, apply: Apply, values: Sequence[Symbolic]) -> list[Symbolic]:
    """Part `number` of `of` equal parts."""
    count, number = (whole_number(apply[key], "an attribute of a part") for key in ("of", "number"))
    if not 0 <= number < count:
        raise Mismatch(f"part: no part {number} of {count}")
    names = tuple(f"{apply.outputs[0]} {k}" for k in range(count))
    return [
        split(scope, Apply("split", apply.inputs, names, (("dim", apply["dim"]), ("parts", count))), values)[number]
    ]


def _pad(scope: Scope, apply: Apply, values: Sequence[Symbolic]) -> list[Symbolic]:
    """Constant padding; other modes and cropping follow from the notation."""
    given = apply["pad"]
    crops = any(isinstance(n, int) and n < 0 for n in (given if isinstance(given, tuple) else (given,)))
    plain = not crops and apply.get("mode", "constant") == "constant"
    return (pad if plain else derived)(scope, apply, [_one(values, "pad")])


COMPUTE: Mapping[str, Meaning] = {
    "softmax": softmax(logarithm=False),
    "log_softmax": softmax(logarithm=True),
    "permute": permute,
    "transpose": transpose,
    "expand": expand,
    "slice": slice_,
    "conv": conv,
    "pad": _pad,
    "attention": attention,
    "group_norm": group_norm,
    "linear_relu": _linear_relu,
    "part": _part,
    **MOVES,
}


def meaning(scope: Scope, apply: Apply, values: Sequence[Symbolic]) -> list[Symbolic]:
    """The results of an application. Raises Mismatch if it does not type-check, Stuck if its meaning is unknown.

    An attribute `activation` names an opaque function that is applied to every shard of the result.
    """
    name = apply.get("activation")
    if name is not None:
        apply = replace(apply, attributes=tuple((k, v) for k, v in apply.attributes if k != "activation"))
    known = DEFINED.get(apply.op, COMPUTE.get(apply.op)) if scope.defined else COMPUTE.get(apply.op)
    made = (known or derived)(scope, apply, values)
    return made if name in (None, "none") else [_activated(scope, str(name), value) for value in made]


def _activated(scope: Scope, name: str, value: Symbolic) -> Symbolic:
    return replace(value, at=lambda replica, indices: scope.function(name, value.at(replica, indices)))
