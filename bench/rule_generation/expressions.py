"""Graphs as expressions, and their names up to renaming of variables.

An expression is a variable's number, or (operation, which of its results, *operands). A pair of sides is the same rule
as another if exchanging variables of one state, its outputs or its sides makes it so.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import permutations, product
from typing import Any, TypeAlias

from ...formulation.substitution.rule import Tensor
from .enumeration import RuleGraph

Expression: TypeAlias = Any  # int | tuple[int, int, Expression, ...]
Side: TypeAlias = tuple[Expression, ...]  # one expression per output
Pair: TypeAlias = tuple[Side, Side]


def side(graph: RuleGraph, outputs: Sequence[int]) -> Side:
    """The expressions of a graph's values; values that it does not make are variables."""
    made: dict[int, Expression] = {}
    for (operation, *arguments), results in zip(graph.applications, graph.results, strict=True):
        operands = [made.get(a, a) for a in arguments]
        made |= {value: (operation, place, *operands) for place, value in enumerate(results)}
    return tuple(made.get(value, value) for value in outputs)


def translated(one: Side, operations: Sequence[int], numbers: Sequence[int]) -> Side:
    """Renumber operations and variables."""

    def of(expression: Expression) -> Expression:
        if isinstance(expression, int):
            return numbers[expression]
        return (operations[expression[0]], expression[1], *map(of, expression[2:]))

    return tuple(map(of, one))


def walk(one: Side) -> Iterator[Expression]:
    """All expressions in a side, operands first."""
    for expression in one:
        if not isinstance(expression, int):
            yield from walk(expression[2:])
        yield expression


@lru_cache(maxsize=1 << 18)
def variables(expression: Expression) -> frozenset[int]:
    """The variables of an expression."""
    if isinstance(expression, int):
        return frozenset((expression,))
    return frozenset[int]().union(*map(variables, expression[2:]))


def read(one: Side) -> frozenset[int]:
    return frozenset[int]().union(*map(variables, one))


@lru_cache(maxsize=1 << 18)
def operators(expression: Expression) -> frozenset[Expression]:
    """All applications in an expression, as expressions."""
    if isinstance(expression, int):
        return frozenset()
    return frozenset((_application(expression),)).union(*map(operators, expression[2:]))


def _application(expression: Expression) -> Expression:
    """The application of a result: all results of one application are alike."""
    return (expression[0], 0, *expression[2:])


def size(one: Side) -> int:
    """The number of distinct applications."""
    return len(frozenset[Any]().union(*map(operators, one)))


def renamed(expression: Expression, names: Mapping[int, int], commutative: frozenset[int]) -> Expression:
    """Rename variables; sort the operands of commutative operations."""
    if isinstance(expression, int):
        return names.get(expression, expression)
    operands = [renamed(e, names, commutative) for e in expression[2:]]
    if expression[0] in commutative:
        operands.sort(key=_key)
    return (*expression[:2], *operands)


def _key(expression: Expression) -> Any:
    """An order of expressions: variables first."""
    return (0, expression) if isinstance(expression, int) else (1, len(expression), tuple(map(_key, expression)))


def kinds_of(variables: Sequence[Tensor]) -> list[list[int]]:
    """Groups of variables of equal sizes and state."""
    kinds: dict[object, list[int]] = {}
    for number, v in enumerate(variables):
        kinds.setdefault((v.dims, v.degrees, v.replicas), []).append(number)
    return list(kinds.values())


def canonical(pair: Pair, kinds: Sequence[Sequence[int]], commutative: frozenset[int]) -> Pair:
    """The canonical form of a pair up to renaming; variables of one of the `kinds` are interchangeable."""
    return min(_names(pair, kinds, commutative), key=lambda found: tuple(tuple(map(_key, one)) for one in found))


def _names(pair: Pair, kinds: Sequence[Sequence[int]], commutative: frozenset[int]) -> Iterator[Pair]:
    used = read(pair[0]) | read(pair[1])
    groups = [[v for v in kind if v in used] for kind in kinds]
    for orders in product(*(permutations(kind[: len(group)]) for kind, group in zip(kinds, groups, strict=True))):
        names = {
            old: new for group, order in zip(groups, orders, strict=True) for old, new in zip(group, order, strict=True)
        }
        sides = [[renamed(e, names, commutative) for e in one] for one in pair]
        for outputs in permutations(range(len(sides[0]))):
            a, b = (tuple(one[i] for i in outputs) for one in sides)
            yield a, b
            yield b, a


def identified(pair: Pair, kinds: Sequence[Sequence[int]], commutative: frozenset[int]) -> Iterator[Pair]:
    """The pair with some variables of one state identified, in every proper way."""
    used = read(pair[0]) | read(pair[1])
    groups = [[v for v in kind if v in used] for kind in kinds]
    for choices in product(*(list(_partitions(group)) for group in groups)):
        names = dict(item for choice in choices for item in choice.items())
        if any(old != new for old, new in names.items()):
            a, b = (tuple(renamed(e, names, commutative) for e in one) for one in pair)
            yield a, b


def _partitions(group: Sequence[int]) -> Iterator[dict[int, int]]:
    """Every variable's representative, for all ways to identify some of them."""
    if not group:
        yield {}
        return
    *others, last = group
    for names in _partitions(others):
        yield from ({**names, last: kept} for kept in dict.fromkeys(names.values()))
        yield {**names, last: last}
