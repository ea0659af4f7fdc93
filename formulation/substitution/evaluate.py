"""Runs rules on concrete parallel tensors, in a finite field or in floats.

Compute operators apply shard by shard, vectorized over tasks. One rule says which states fit: an index has the same
digits in all operands that have it; the replica dim of an operand holds the space digits of the indices that it lacks
(the output's, then the summed ones), outermost first, then a surplus that is equal for all. The output carries the
digits of its indices, and its replica dim those of the summed ones, then the surplus. For a product:

    matmul x[B:a, K:b, rep:(c,e)] w[K:b, N:c, rep:(a,e)] -> y[B:a, N:c, rep:(b,e)]

Steps in time share their operands without copies, so time digits need no replicas, and an index that has one cannot be
summed. The evaluation does not use the prover's meanings of operators: the two check each other.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from math import prod
from typing import Any, TypeAlias

import numpy as np

from ...model.errors import PartitaError
from ...model.operators.operator import Operator, find_operator, operators
from ...model.operators.sharded import (
    WHOLE,
    Arithmetic,
    Array,
    Attributes,
    Digits,
    Evaluation,
    IllTyped,
    Letters,
    Shape,
    ShardTasks,
    Signature,
    count,
    dim_of,
    elementwise,
    letters,
    operands,
    same_shape,
)
from ...model.operators.views import permute_shards
from .moves import ALONG_REPLICAS, MOVES
from .rule import REPLICA, Apply
from .sizes import Size
from .values import ParallelValue, merged, part_sizes

Values: TypeAlias = Sequence[ParallelValue]


def applied(op: str, attributes: Mapping[str, Any], values: Values, f: Arithmetic) -> list[ParallelValue]:
    """Apply one operator. Raises IllTyped if it does not apply, PartitaError if it has no evaluation."""
    return prepared(op, attributes, values, f)(values)


def prepared(
    op: str, attributes: Mapping[str, Any], values: Values, f: Arithmetic
) -> Callable[[Values], list[ParallelValue]]:
    """An operator specialized to the states of `values`, whose entries are not read. Raises as `applied`."""
    if op in MOVES:
        if len(values) != 1:
            raise IllTyped(f"{op} takes one tensor, not {len(values)}")
        return lambda given: [MOVES[op](given[0], attributes, f)]
    if op in ALONG_REPLICAS and attributes.get("dim") == REPLICA:
        return lambda given: ALONG_REPLICAS[op](given, attributes)
    signature, tasks, cuts, joins = by_shards(op, attributes, values, f)

    def run(given: Values) -> list[ParallelValue]:
        results = signature.local(tasks, [cut(value.array) for cut, value in zip(cuts, given, strict=True)])
        return [join(result) for join, result in zip(joins, results, strict=True)]

    return run


def by_shards(
    op: str, attributes: Mapping[str, Any], values: Values, f: Arithmetic
) -> tuple[Signature, ShardTasks, list[Callable[[Array], Array]], list[Callable[[Array], ParallelValue]]]:
    """How an operator applies to shards: its signature, its tasks, functions that cut each operand into
    [tasks, *local shape], and functions that join such results. Raises as `applied`."""
    evaluate_shards = evaluation(op)
    if evaluate_shards is None:
        raise PartitaError(f"no evaluation of the operator {op}; there is one of {', '.join(evaluated())}")
    signature = evaluate_shards(attributes, [value.shape for value in values])
    digits = _digits(op, signature, values)
    tasks = ShardTasks(f, digits, _surplus(op, signature, digits, values))
    cuts = [_cut(value, names, tasks) for value, names in zip(values, signature.inputs, strict=True)]
    return signature, tasks, cuts, [_join(names, signature, tasks) for names in signature.outputs]


def _digits(op: str, signature: Signature, values: Values) -> dict[str, Digits]:
    """The digits of every letter, in task order."""
    found: dict[str, tuple[int, Digits]] = {}
    for value, names in zip(values, signature.inputs, strict=True):
        if len(names) != len(value.shape):
            raise IllTyped(f"{op} takes a tensor of {len(names)} dims, not {value}")
        for dim, letter in enumerate(names):
            size, digits = value.shape[dim], value.digits[dim]
            if letter == WHOLE:
                if digits:
                    raise IllTyped(f"{op} needs dim {dim} of {value} whole")
                continue
            known_size, known = found.setdefault(letter, (size, digits))
            if known != digits:
                raise IllTyped(f"{op} of {' and '.join(map(str, values))}: dims that go together are cut differently")
            if known_size != size and letter not in signature.uneven:
                raise IllTyped(f"{op} of {' and '.join(map(str, values))}: sizes {known_size} and {size} do not agree")
    order = signature.letters
    for letter, (_, digits) in found.items():
        if digits and letter not in order:
            raise IllTyped(f"{op} of {' and '.join(map(str, values))} needs a dim whole that is cut")
        if letter in signature.summed and any(digit.time for digit in digits):
            raise IllTyped(f"{op} of {' and '.join(map(str, values))} sums over steps in time")
    return {letter: found[letter][1] for letter in order if letter in found}


def _surplus(op: str, signature: Signature, digits: Mapping[str, Digits], values: Values) -> int:
    """Replicas beyond those that hold the digits of indices that operands lack."""
    left = set()
    for value, names in zip(values, signature.inputs, strict=True):
        required = prod(d.degree for letter, ds in digits.items() if letter not in names for d in ds if not d.time)
        if value.replicas % required:
            raise IllTyped(f"{op} of {' and '.join(map(str, values))}: {value} needs {required} replicas or a multiple")
        left.add(value.replicas // required)
    if len(left) > 1:
        raise IllTyped(f"{op} of {' and '.join(map(str, values))}: replicas do not fit")
    return left.pop() if left else 1


def _cut(value: ParallelValue, names: Letters, tasks: ShardTasks) -> Callable[[Array], Array]:
    """A function from an array of this state to the shards of all tasks, [tasks, *local shape]."""
    if not tasks.axes:
        return lambda array: array
    replica = [d.degree for letter, d in tasks.axes if letter not in names and not d.time] + [tasks.surplus]
    split = [(*(d.degree for d in ds), n // count(ds)) for n, ds in zip(value.shape, value.digits, strict=True)]
    fine = (*replica, *(size for sizes in split for size in sizes))
    at, places, local = len(replica), dict[str, list[int]](), list[int]()
    for letter, sizes in zip(names, split, strict=True):
        places[letter] = list(range(at, at + len(sizes) - 1))
        local.append(at + len(sizes) - 1)
        at += len(sizes)
    lacking = iter(range(len(replica)))
    order: list[int | None] = []
    for letter, digit in tasks.axes:
        order.append(places[letter].pop(0) if letter in names else None if digit.time else next(lacking))
    order.append(next(lacking))
    moved = [place for place in (*order, *local) if place is not None]
    spread = tuple(None if place is None else slice(None) for place in order)
    shape = tuple(sizes[-1] for sizes in split)
    whole = (*tasks.sizes, *shape)
    return lambda a: np.broadcast_to(a.reshape(fine).transpose(moved)[spread], whole).reshape(-1, *shape)


def _join(names: Letters, signature: Signature, tasks: ShardTasks) -> Callable[[Array], ParallelValue]:
    """A function from shards [tasks, *local shape] to their parallel tensor."""
    digits = tuple(merged(tasks.digits.get(letter, ())) for letter in names)
    if not tasks.axes:
        return lambda result: ParallelValue(result, digits)
    rank = len(tasks.sizes)
    order = [i for i, (letter, _) in enumerate(tasks.axes) if letter in signature.summed] + [rank - 1]
    for dim, letter in enumerate(names):
        order += [i for i, (name, _) in enumerate(tasks.axes) if name == letter] + [rank + dim]
    parts = [count(ds) for ds in digits]

    def join(result: Array) -> ParallelValue:
        local = result.shape[1:]
        shape = [n * part for n, part in zip(local, parts, strict=True)]
        return ParallelValue(result.reshape(*tasks.sizes, *local).transpose(order).reshape(-1, *shape), digits)

    return join


def _transpose(given: Attributes, shapes: Sequence[Shape]) -> Signature:
    """The last two dims swapped."""
    rank = len(operands(shapes, 1)[0])
    if rank < 2:
        raise IllTyped("transpose takes at least two dims")
    return permute_shards({"dims": (*range(rank - 2), rank - 1, rank - 2)}, shapes)


def _split(given: Attributes, shapes: Sequence[Shape]) -> Signature:
    (shape,) = operands(shapes, 1)
    if given.get("rank", len(shape)) != len(shape):
        raise IllTyped(f"split takes a tensor of {given['rank']} dims, not of shape {shape}")
    dim, named = dim_of(given["dim"], len(shape)), letters(len(shape))
    sizes = part_sizes(given, shape[dim])

    def local(t: ShardTasks, a: list[Array]) -> list[Array]:
        degree = t.degree(named[dim])
        if any(size % degree for size in sizes):
            raise IllTyped(f"parts {sizes} of a dim that is cut {degree} times are not whole shards")
        return np.split(a[0], np.cumsum([size // degree for size in sizes])[:-1], dim + 1)

    return Signature((named,), (named,) * len(sizes), local)


_RULE_OPERATORS: Mapping[str, Evaluation] = {"split": _split, "transpose": _transpose}


def evaluation(op: str) -> Evaluation | None:
    """An operator's evaluation; None if its rules can only be proved."""
    if op in _RULE_OPERATORS:
        return _RULE_OPERATORS[op]
    entry = find_operator(op)
    return None if entry is None else entry.algebra.evaluation or _by_notation(entry)


def evaluated() -> tuple[str, ...]:
    """The names of all operators that are evaluated."""
    return tuple(
        sorted({*_RULE_OPERATORS, *(entry.name for entry in operators() if evaluation(entry.name) is not None)})
    )


def _by_notation(entry: Operator) -> Evaluation | None:
    """The evaluation of an elementwise operator by the `f` or `L` that its entry defines."""
    if entry.algebra.multiple is not None:
        return same_shape(partial(_multiplied, entry.algebra.multiple))
    if entry.algebra.real is None:
        return None
    if len(entry.operands) == 1:
        return same_shape(partial(_called, entry.name))
    return elementwise(partial(_called, entry.name), len(entry.operands))


def _multiplied(multiple: int | str, t: ShardTasks, given: Attributes, a: Array) -> Array:
    return a if multiple == 1 else t.arithmetic.scale(a, given[multiple] if isinstance(multiple, str) else multiple)


def _called(name: str, t: ShardTasks, given: Attributes, *a: Array) -> Array:
    return t.arithmetic.call((name, *sorted(given.items())), *a)


def bound(value: Any, sizes: Mapping[str, int]) -> Any:
    """An attribute with its size expressions evaluated; other words stay."""
    if isinstance(value, tuple | list):
        return tuple(bound(v, sizes) for v in value)
    if isinstance(value, str) and any(name in sizes for name in names_of_size(value)):
        return Size.of(value).at(sizes)
    return value


def names_of_size(text: str) -> frozenset[str]:
    """The symbols of an attribute; none if it is not a size."""
    try:
        return Size.of(text).symbols
    except PartitaError:  # not a size: an equation, `none`
        return frozenset()


def evaluate(
    applies: Iterable[Apply],
    values: Mapping[str, ParallelValue],
    arithmetic: Arithmetic,
    sizes: Mapping[str, int] | None = None,
) -> dict[str, ParallelValue]:
    """All values of a graph, the given ones included; `sizes` are the values of symbols in attributes.

    Raises IllTyped that names the application that does not fit.
    """
    known = dict(values)
    for apply in applies:
        attributes = {name: bound(value, sizes or {}) for name, value in apply.attributes}
        try:
            results = applied(apply.op, attributes, [known[name] for name in apply.inputs], arithmetic)
        except IllTyped as error:
            raise IllTyped(f"{', '.join(apply.outputs)}: {error}") from None
        if len(results) != len(apply.outputs):
            raise IllTyped(f"{apply.op} makes {len(results)} results, not {', '.join(apply.outputs)}")
        known |= dict(zip(apply.outputs, results, strict=True))
    return known
