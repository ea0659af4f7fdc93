"""Finds candidates that follow from smaller rules: rewrites both sides until they meet (as Ruler does).

A step replaces one side of a rule by the other anywhere in an expression. A path counts only if all its expressions
have the value of its ends, so that a rule proved for unpartitioned variables may be used where states allow.
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any

from .expressions import Expression, Pair, renamed, size, variables
from .pool import Pool

STEPS_EACH = 2  # from the source and from the target


class Rewriter:
    """Rules as rewritings in both directions, indexed by the root operation of the replaced side."""

    def __init__(self, commutative: frozenset[int], pool: Pool) -> None:
        self.commutative, self.pool = commutative, pool
        self._ranks = [len(variable.dims) for variable in pool.variables]
        self._rules: dict[tuple[int, int], dict[tuple[Expression, Expression], None]] = {}
        self._known = lru_cache(maxsize=1 << 17)(self._rewritings)

    def add(self, pair: Pair) -> None:
        """Add every output of a rule as a pair of its own."""
        self._known.cache_clear()
        for a, b in zip(*pair, strict=True):
            for before, after in ((a, b), (b, a)):
                if not isinstance(before, int) and variables(after) <= variables(before):
                    self._rules.setdefault(before[:2], {})[before, after] = None

    def joins(self, a: Expression, b: Expression) -> bool:
        """True if rewriting leads from one expression to the other."""
        if a == b:
            return True
        paths: tuple[dict[Expression, Expression], ...] = ({a: None}, {b: None})
        edges = [[a], [b]]
        for _ in range(STEPS_EACH):
            for mine, (path, other) in enumerate((paths, paths[::-1])):
                edges[mine] = list(self._extended(edges[mine], path))
                met = next((e for e in edges[mine] if e in other and self._valid(e, paths)), None)
                if met is not None:
                    return True
        return False

    def _extended(self, edge: Iterable[Expression], path: dict[Expression, Expression]) -> Iterator[Expression]:
        for expression in edge:
            for made in self._known(expression):
                if made not in path:
                    path[made] = expression
                    yield made

    def _valid(self, met: Expression, paths: Iterable[Mapping[Expression, Expression]]) -> bool:
        """True if all expressions from both ends to the middle have one value."""
        values = set()
        for path in paths:
            at = met
            while at is not None:
                values.add(self._value(at))
                at = path[at]
        return len(values) == 1 and None not in values

    def _value(self, expression: Expression) -> int | None:
        if isinstance(expression, int):
            return expression
        operands = [self._value(e) for e in expression[2:]]
        found = [value for value in operands if value is not None]
        if len(found) < len(operands):
            return None
        made = self.pool.apply(expression[0], tuple(found))
        return made[expression[1]] if made else None

    def _rewritings(self, expression: Expression) -> tuple[Expression, ...]:
        """All expressions one step away, with the operands of commutative operations sorted."""
        if isinstance(expression, int):
            return ()
        found: dict[Expression, None] = {}
        for before, after in self._rules.get(expression[:2], ()):
            for names in self._matches(before, expression, {}):
                found[self._ordered(_instance(after, names))] = None
        for place, operand in enumerate(expression[2:], 2):
            for made in self._known(operand):
                found[self._ordered((*expression[:place], made, *expression[place + 1 :]))] = None
        return tuple(found)

    def _ordered(self, expression: Expression) -> Expression:
        return renamed(expression, {}, self.commutative)

    def _matches(self, pattern: Expression, at: Expression, names: dict[int, Expression]) -> Iterator[dict[int, Any]]:
        if isinstance(pattern, int):
            if names.get(pattern, at) == at and self._ranks[pattern] == self._rank(at):
                yield {**names, pattern: at}
            return
        if isinstance(at, int) or at[:2] != pattern[:2]:
            return
        orders = [at[2:], at[:1:-1]] if at[0] in self.commutative and at[2] != at[3] else [at[2:]]
        for operands in orders:
            yield from self._all(pattern[2:], operands, names)

    def _rank(self, expression: Expression) -> int:
        """The rank: all operators of the sets keep that of their operands."""
        while not isinstance(expression, int):
            expression = expression[2]
        return self._ranks[expression]

    def _all(
        self, patterns: tuple[Expression, ...], operands: tuple[Expression, ...], names: dict[int, Expression]
    ) -> Iterator[dict[int, Any]]:
        if not patterns:
            yield names
            return
        for bound in self._matches(patterns[0], operands[0], names):
            yield from self._all(patterns[1:], operands[1:], bound)


def _instance(pattern: Expression, names: Mapping[int, Expression]) -> Expression:
    if isinstance(pattern, int):
        return names[pattern]
    return (*pattern[:2], *(_instance(e, names) for e in pattern[2:]))


def basic(pairs: Iterable[Pair], commutative: frozenset[int], pool: Pool) -> list[Pair]:
    """The pairs that do not follow from smaller ones, smallest first.

    With several outputs all are kept: such a rule merges operators, which rewriting one expression does not do.
    """
    rewriter = Rewriter(commutative, pool)
    by_size: dict[int, list[Pair]] = {}
    for pair in pairs:
        by_size.setdefault(size(pair[0]) + size(pair[1]), []).append(pair)
    kept = []
    for _, alike in sorted(by_size.items()):
        new = [pair for pair in alike if len(pair[0]) > 1 or not rewriter.joins(pair[0][0], pair[1][0])]
        for pair in new:
            rewriter.add(pair)
        kept += new
    return kept
