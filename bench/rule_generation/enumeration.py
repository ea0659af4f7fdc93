"""All graphs of up to n operators over an operator set, as applications to values by number (TASO §3, Unity §4).

A graph is a set of applications, listed in the one order in which each follows the last by its number or reads what the
last has made. Every value in it is new: one that equals an earlier one would be no part of a rule.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from .operator_sets import OperatorSet
from .pool import Pool

Application = tuple[int, ...]  # an operation, then its operands


@dataclass(frozen=True, slots=True)
class RuleGraph:
    """Applications in order, their results, and the values that none of them reads."""

    applications: tuple[Application, ...]
    results: tuple[tuple[int, ...], ...]
    sinks: tuple[int, ...]

    @property
    def reads(self) -> frozenset[int]:
        """All values that an application reads."""
        return frozenset(value for application in self.applications for value in application[1:])


def graphs(pool: Pool, chosen: OperatorSet, commutative: frozenset[int]) -> Iterator[RuleGraph]:
    """Every graph once; the operands of `commutative` operations are sorted."""
    variables = tuple(range(len(chosen.variables)))
    outputs = chosen.outputs
    yield from (RuleGraph((), (), (v,)) for v in variables)
    if outputs > 1:
        yield from (RuleGraph((), (), pair) for pair in product(variables, repeat=2) if pair[0] < pair[1])

    def extended(graph: RuleGraph, known: tuple[int, ...], left: int) -> Iterator[RuleGraph]:
        last = graph.applications[-1] if graph.applications else None
        made = graph.results[-1] if graph.applications else ()
        needed = set(graph.sinks) if left == 1 and outputs == 1 else set()
        for number, operation in enumerate(chosen.operations):
            for arguments in product(known, repeat=operation.arity):
                if needed and not needed.issubset(arguments):
                    continue
                application = (number, *arguments)
                if last is not None and application <= last and not any(a in made for a in arguments):
                    continue
                if number in commutative and arguments[0] > arguments[1]:
                    continue
                sinks = tuple(s for s in graph.sinks if s not in arguments)
                if len(sinks) + operation.results > outputs + left - 1:
                    continue
                results = pool.apply(number, arguments, keep=left > 1)
                if not results or len(set(results)) < len(results):
                    continue
                new = not any(result in known for result in results)
                total = RuleGraph((*graph.applications, application), (*graph.results, results), (*sinks, *results))
                complete = len(total.sinks) <= outputs
                if complete and (new or all(s in variables and s not in sinks for s in results)):
                    yield total
                if new and left > 1:
                    yield from extended(total, (*known, *results), left - 1)

    yield from extended(RuleGraph((), (), ()), variables, chosen.most)
