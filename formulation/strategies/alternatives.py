"""Graphs in which some nodes can be computed in several ways: what any choice of ways needs, and what none has both of.

One way of every node that is needed is taken, from the loss on (`PCG.alternatives`). What only some choices need is
*conditional*: in a cost network its variables have one more option, which is to be unused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, reduce
from itertools import combinations
from operator import or_

from ...model.graph.pcg import PCG
from .tensor_classes import Classes, Use

Taken = Mapping[int, int]
"""Nodes that are computed in several ways, each with the one that is taken."""


class Alternatives:
    """What holds for all choices of ways to compute a graph. Tensors are named by their class's base."""

    def __init__(self, pcg: PCG, classes: Classes) -> None:
        self.pcg, self.classes = pcg, classes

    def of(self, node: int) -> tuple[int, ...]:
        """The nodes of which one computes a tensor class: the base, then its alternatives."""
        return self.pcg.members.get(node, (node,))

    def needed(self) -> Iterator[tuple[int, ...]]:
        """The nodes that every choice computes, each with the ways to compute it."""
        ways, base = self.classes.alternative_of, self.classes.base
        return (self.of(i) for i in range(len(self.pcg.nodes)) if i not in ways and base[i] not in self.conditional)

    @cached_property
    def conditional(self) -> frozenset[int]:
        """Bases that some choice does not need."""
        if not self.pcg.alternatives:
            return frozenset()
        needed = self._surely(lambda way, position, base: True)
        return frozenset(self._bases) - _bits(needed) - {self.classes.base[i] for i in self.pcg.results}

    def surely(self, holds: Callable[[int, int, int], bool]) -> frozenset[int]:
        """The bases that are read, in every choice, by a way (node, operand, base) of which `holds` is true."""
        return _bits(self._surely(holds))

    def together(self, uses: Sequence[Use]) -> bool:
        """Whether some choice takes two of these reads."""
        if not self.pcg.alternatives:
            return len(uses) > 1
        return any(self._together(a.node, b.node) for a, b in combinations(uses, 2))

    def _together(self, a: int, b: int) -> bool:
        one, other = self._implied[a], self._implied[b]
        return not any(other.get(node, way) != way for node, way in one.items())

    @cached_property
    def _bases(self) -> Sequence[int]:
        """The tensors that are computed or stored, in order."""
        ways, base = self.classes.alternative_of, self.classes.base
        return [i for i in range(len(self.pcg.nodes)) if base[i] == i and i not in ways]

    def _reads(self, way: int) -> Iterator[tuple[int, int]]:
        """(operand, base) of all that a node reads."""
        return ((p, self.classes.base[i]) for p, i in enumerate(self.pcg.nodes[way].inputs))

    def _surely(self, holds: Callable[[int, int, int], bool]) -> int:
        """As bits the bases that every choice reads so, from the results on."""
        found: dict[int, int] = {}
        for base in self._bases:  # a way stands before what it computes, so all that it reads has been seen
            of_ways = [self._read_by(way, holds, found) for way in self.of(base)]
            common = of_ways[0]
            for bits in of_ways[1:]:
                common &= bits
            found[base] = common
        return reduce(or_, (found[self.classes.base[i]] for i in self.pcg.results))

    def _read_by(self, way: int, holds: Callable[[int, int, int], bool], found: Mapping[int, int]) -> int:
        bits = 0
        for position, base in self._reads(way):
            bits |= found[base] | (holds(way, position, base) << base)
        return bits

    @cached_property
    def _implied(self) -> Mapping[int, Taken]:
        """For every node the ways that are taken wherever it is."""
        found: dict[int, Taken] = {}
        readers: dict[int, list[int]] = {}
        for base in reversed(self._bases):
            whys = [found[reader] for reader in readers.get(base, ())]
            common = dict(_common(whys)) if whys else {}
            for way in self.of(base):
                found[way] = {**common, base: way} if base in self.pcg.members else common
                for source in {source for _, source in self._reads(way)}:
                    readers.setdefault(source, []).append(way)
        return found


def _common(whys: Iterable[Taken]) -> Iterator[tuple[int, int]]:
    first, *others = whys
    return ((node, way) for node, way in first.items() if all(other.get(node) == way for other in others))


def _bits(number: int) -> frozenset[int]:
    return frozenset(i for i in range(number.bit_length()) if number >> i & 1)
