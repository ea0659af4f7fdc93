"""Graphs whose tensors may have several alternatives to compute them (`PCG.alternatives`): what every choice needs.

A choice takes one alternative of every tensor that it needs, from the loss on. Tensors that only some choices need are
*conditional*: their variables have one more option in a cost network, "unused".
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, reduce
from itertools import combinations
from operator import and_, or_
from typing import TypeAlias

from ...model.graph.pcg import PCG
from .tensor_classes import Classes, Use

_Taken: TypeAlias = Mapping[int, frozenset[int]]
"""Tensors with several alternatives, each with those of which one is taken."""


class Alternatives:
    """Facts about all choices of alternatives of a graph. Tensors are named by the base of their class."""

    def __init__(self, pcg: PCG, classes: Classes) -> None:
        self.pcg, self.classes = pcg, classes

    def of(self, node: int) -> tuple[int, ...]:
        """The alternatives of a tensor class: nodes of which one computes it, the base first."""
        return self.pcg.members.get(node, (node,))

    def needed(self) -> Iterator[tuple[int, ...]]:
        """The alternatives of every tensor that all choices compute."""
        others, base = self.classes.alternative_of, self.classes.base
        return (self.of(i) for i in range(len(self.pcg.nodes)) if i not in others and base[i] not in self.conditional)

    @cached_property
    def conditional(self) -> frozenset[int]:
        """Bases that some choice does not need."""
        if not self.pcg.alternatives:
            return frozenset()
        needed = self._read_by_all(lambda node, operand, base: True)
        return frozenset(self._bases) - _bits(needed) - {self.classes.base[i] for i in self.pcg.results}

    def always_read(self, holds: Callable[[int, int, int], bool]) -> frozenset[int]:
        """The bases that every choice reads by some (node, operand, base) for which `holds` is true."""
        return _bits(self._read_by_all(holds))

    def read_together(self, uses: Sequence[Use]) -> bool:
        """True if some choice takes two of these reads."""
        if not self.pcg.alternatives:
            return len(uses) > 1
        return any(self._can_both_be_taken(a.node, b.node) for a, b in combinations(uses, 2))

    def _can_both_be_taken(self, a: int, b: int) -> bool:
        one, other = self._implied[a], self._implied[b]
        return not any(taken.isdisjoint(other.get(tensor, taken)) for tensor, taken in one.items())

    @cached_property
    def _bases(self) -> Sequence[int]:
        """The tensors that are computed or stored, in order."""
        others, base = self.classes.alternative_of, self.classes.base
        return [i for i in range(len(self.pcg.nodes)) if base[i] == i and i not in others]

    def _reads(self, node: int) -> Iterator[tuple[int, int]]:
        """(operand, base) of all that a node reads."""
        return ((p, self.classes.base[i]) for p, i in enumerate(self.pcg.nodes[node].inputs))

    def _read_by_all(self, holds: Callable[[int, int, int], bool]) -> int:
        """`always_read` as bits, from the results on."""
        found: dict[int, int] = {}
        for base in self._bases:  # an alternative precedes its tensor, so all that it reads has been seen
            found[base] = reduce(and_, (self._read_by(node, holds, found) for node in self.of(base)))
        return reduce(or_, (found[self.classes.base[i]] for i in self.pcg.results))

    def _read_by(self, node: int, holds: Callable[[int, int, int], bool], found: Mapping[int, int]) -> int:
        bits = 0
        for operand, base in self._reads(node):
            bits |= found[base] | (holds(node, operand, base) << base)
        return bits

    @cached_property
    def _implied(self) -> Mapping[int, _Taken]:
        """For every node, of tensors with several alternatives those of which choices with this node take one."""
        found: dict[int, _Taken] = {}
        readers: dict[int, list[int]] = {}
        for base in reversed(self._bases):
            choices = [found[reader] for reader in readers.get(base, ())]
            common = dict(_any_of(choices)) if choices else {}
            for node in self.of(base):
                found[node] = {**common, base: frozenset({node})} if base in self.pcg.members else common
                for source in {source for _, source in self._reads(node)}:
                    readers.setdefault(source, []).append(node)
        return found


def _any_of(choices: Iterable[_Taken]) -> Iterator[tuple[int, frozenset[int]]]:
    """What one of these, at least, takes: known of tensors of which each takes an alternative."""
    first, *others = choices
    for tensor, taken in first.items():
        if all(tensor in other for other in others):
            yield tensor, taken.union(*(other[tensor] for other in others))


def _bits(number: int) -> frozenset[int]:
    return frozenset(i for i in range(number.bit_length()) if number >> i & 1)
