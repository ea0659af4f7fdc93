"""Which hubs choose whether their tensor is kept for backward: those that only some decisions need kept.

Such a hub has every layout twice: first not kept, then kept. It is chosen if only some alternatives keep what they
read (the readers that do exclude the first half), or if only the recomputation of a segment needs the tensor.
"""

from functools import cached_property

import numpy as np

from ...model.graph.pcg import PCG
from ..network.network import INFINITE
from ..strategies.alternatives import Alternatives
from ..strategies.operand_cost import EdgeTables, OperandCosts
from .recomputable_segments import RecomputableSegments


class HubRetention:
    """The hubs of a graph that have every layout twice."""

    def __init__(
        self, pcg: PCG, costs: OperandCosts, alternatives: Alternatives, segments: RecomputableSegments
    ) -> None:
        self.pcg, self.costs, self.alternatives, self.segments = pcg, costs, alternatives, segments
        self.uses = costs.classes.uses

    @cached_property
    def _always_kept(self) -> frozenset[int]:
        """Tensors that every choice of alternatives keeps for backward."""
        return self.alternatives.always_read(self.keeps)

    def keeps(self, node: int, operand: int, base: int) -> bool:
        """True if a node keeps the tensor that it reads for backward, as it is."""
        use = self.costs.uses.get((base, node, operand))
        return use is not None and self.costs.keeps_unchanged(use)

    def keepers(self, base: int) -> frozenset[int]:
        """The readers that keep a tensor for backward, as it is."""
        return frozenset(u.node for u in self.uses.get(base, ()) if self.costs.keeps_unchanged(u))

    def by_alternatives(self, base: int) -> bool:
        """True if some alternatives keep a tensor, but not every choice of them does."""
        return bool(self.pcg.alternatives) and bool(self.keepers(base)) and base not in self._always_kept

    def is_chosen(self, base: int) -> bool:
        """True if the hub of a tensor has every layout twice."""
        return self.by_alternatives(base) or bool(self.segments.outside_readers(base))


def read_twice(tables: EdgeTables, excluded: bool) -> EdgeTables:
    """The tables of an edge from a hub, for its layouts not kept and kept; `excluded`: the reader needs it kept."""
    cost, use = tables
    first = np.full_like(cost, INFINITE) if excluded else cost
    return np.concatenate([first, cost]), None if use is None else np.concatenate([use, use])


def fill_both(first: EdgeTables, second: EdgeTables) -> EdgeTables:
    """The tables of an edge to a hub, for its layouts not kept, then kept."""
    uses = [np.zeros((*cost.shape, 1), np.int64) if use is None else use for cost, use in (first, second)]
    return np.concatenate([first[0], second[0]], axis=1), np.concatenate(uses, axis=1)
