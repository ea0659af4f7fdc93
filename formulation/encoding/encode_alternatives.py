"""What an encoder adds where tensors can be computed in several ways: modes, and the option to be unused."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import combinations, product

import numpy as np

from ...model.graph.pcg import PCG
from ..network.network import INFINITE, Edge, Variable
from ..network.optional_variables import Taken, UnusedOptions
from ..strategies.alternatives import Alternatives
from ..strategies.operand_cost import EdgeTables, OperandCosts
from ..strategies.operator_options import LOSS_TRANSIENTS, OperatorOptions
from ..strategies.tensor_classes import Classes
from ..strategies.transitions import Table
from ..weights.storage import Storage


class Modal:
    """The part of the encoder that knows ways. `saved`: tensors that every choice of ways keeps for backward."""

    pcg: PCG
    classes: Classes
    reads: OperandCosts
    ways: Alternatives
    saved: frozenset[int]
    variables: list[Variable]
    edges: list[Edge]
    cache: dict[object, EdgeTables]
    operators: dict[int, tuple[int, OperatorOptions]]
    weights: dict[int, tuple[int, Storage]]
    hubs: dict[int, tuple[int, Table]]
    modes: dict[int, int]
    loose: set[int]
    shows: set[int]

    def _mode(self, node: int) -> Variable:
        """The variable that says in which way a tensor is computed; in none, where some choice does not need it."""
        size = len(self.ways.of(node)) + (node in self.ways.conditional)
        key = "mode", size
        if key not in self.cache:
            self.cache[key] = np.zeros(size, np.int64), np.zeros((size, 1), np.int64)
        cost, use = self.cache[key]
        assert use is not None
        return Variable(f"{self.pcg.nodes[node].name} way", cost, use)

    def _optional(self) -> frozenset[int]:
        """Give what some choice of ways does not need the option to be unused; which variables have it."""
        if not self.pcg.alternatives:
            return frozenset()
        several = {way for ways in self.pcg.members.values() for way in ways}
        kinds = (self.operators, self.weights, self.hubs)
        found = [v for kind in kinds for base, (v, _) in kind.items() if base in self.ways.conditional]
        optional = frozenset([*found, *(self.operators[way][0] for way in several)])
        lengthened = UnusedOptions(self.variables, self.edges, optional, self.loose, self.shows)
        lengthened.lengthen()
        lengthened.modes({mode: [self.operators[way][0] for way in self.ways.of(n)] for n, mode in self.modes.items()})
        lengthened.needs(self._needs())
        lengthened.apart(self._apart())
        return optional

    def _needs(self) -> Iterator[tuple[int, int]]:
        """Modes that may be to compute nothing, with what then is not used: the hub, or all readers."""
        for node in self.modes.keys() & self.ways.conditional:
            if node in self.hubs:
                yield self.modes[node], self.hubs[node][0]
            else:
                readers = dict.fromkeys(
                    self.operators[self.classes.decides(u.node)][0] for u in self.classes.uses.get(node, ())
                )
                yield from ((self.modes[node], v) for v in readers)

    def _apart(self) -> Iterator[tuple[Taken, Taken]]:
        """The readers of a weight, and those of one that joins it: each value is trained in one place."""
        holders: dict[str, list[int]] = {}
        for base in self.weights:
            for name in self.pcg.nodes[base].originals:
                holders.setdefault(name, []).append(base)
        pairs = dict.fromkeys(pair for those in holders.values() for pair in combinations(those, 2))
        readers = {base: [u.node for u in self.classes.uses[base]] for pair in pairs for base in pair}
        found = ((self._taken(a), self._taken(b)) for x, y in pairs for a, b in product(readers[x], readers[y]))
        yield from dict.fromkeys(pair for pair in found if pair[0].variable != pair[1].variable)

    def _taken(self, way: int) -> Taken:
        """That a node is computed, said by the variable with the fewest options."""
        node = self.classes.variable(way)
        if node in self.modes:
            return Taken(self.modes[node], self.ways.of(node).index(way))
        return Taken((self.hubs if node in self.hubs else self.operators)[node][0])

    def _keepers(self) -> Mapping[int, frozenset[int]]:
        """Of the hubs that say themselves whether they are kept for backward, the nodes that keep what they read."""
        doubled = [base for base in self.hubs if self._doubled(base)]
        return {
            base: frozenset(u.node for u in self.classes.uses[base] if self._kept_by_reader(u.node, u.operand, base))
            for base in doubled
        }

    def _kept_by_reader(self, way: int, operand: int, base: int) -> bool:
        """Whether a node keeps what it reads for backward, as it is."""
        use = self.reads.uses.get((base, way, operand))
        return use is not None and self.reads.saves(use) and self.pcg.nodes[way].op not in LOSS_TRANSIENTS

    def _doubled(self, base: int) -> bool:
        """Whether a shared layout is kept for backward by some choices of ways only: then it says so itself.

        Its first options are not kept, and those that keep what they read do not take them; the others are.
        """
        kept = any(self._kept_by_reader(u.node, u.operand, base) for u in self.classes.uses.get(base, ()))
        computed = base in self.operators or base in self.weights
        return computed and bool(self.pcg.alternatives) and kept and base not in self.saved

    def _twice(self, key: object, forbidden: bool) -> object:
        """The key of a table for the options of a hub that are not kept, then those that are."""
        both = (key, "twice", forbidden)
        if both not in self.cache:
            cost, use = self.cache[key]
            first = np.full_like(cost, INFINITE) if forbidden else cost
            self.cache[both] = np.concatenate([first, cost]), None if use is None else np.concatenate([use, use])
        return both
