"""The ordinary options of what is inside of parallel branches: whole on the axis, samples split on all others."""

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from ....model.graph.layout import Layout, R
from ...bundles.branch_options import BundleCandidate
from ...bundles.bundles import Branch, batch_row, whole_row
from ...strategies.tensor_classes import Use
from ..builder import NetworkBuilder

Path = tuple[tuple[int, int], ...]
"""The bundles that a variable is inside of, by their join, each with its branch."""


class InsideOptions:
    """Finds the options in the network of a builder."""

    def __init__(self, builder: NetworkBuilder) -> None:
        self.builder, self.pcg, self.classes, self.costs = builder, builder.pcg, builder.classes, builder.costs
        self.operators, self.weights, self.hubs = builder.operators, builder.weights, builder.hubs
        self.sizes = builder.placement.sizes
        self.reads: dict[int, list[tuple[int, Use]]] = defaultdict(list)  # of each node: the tensor, and how
        for (base, node, _), use in self.costs.uses.items():
            self.reads[node].append((base, use))

    def required(self, base: int, use: Use, option: int) -> Layout:
        """The layout of a tensor that an option of its reader requires."""
        return self.costs.space(base).layout(int(self.costs.required(use)[option]))

    def option(
        self, candidate: BundleCandidate, node: int, whole: Sequence[int], at: Mapping[int, int | None]
    ) -> int | None:
        """A node's option: whole on some axes, samples split on all others; `at` names the rows of axes."""
        rows = [(batch_row if candidate.samples else whole_row)(self.pcg, node)] * len(self.sizes)
        for axis, row in {**dict.fromkeys(whole, whole_row(self.pcg, node)), **at}.items():
            rows[axis] = row
        if None in rows:
            return None
        where = np.flatnonzero((self.operators[node][1].choice == np.array(rows)).all(axis=1))
        return int(where[0]) if len(where) else None

    def enter(self, candidate: BundleCandidate, path: Path, node: int, option: int | None) -> bool:
        """Enter a node, its hub, and the weights that it reads; False if one has no option."""
        if option is None:
            return False
        variable, found = self.operators[node]
        candidate.options[variable], candidate.path[variable] = option, path
        tensor = self.classes.variable(node)
        if tensor in self.hubs:
            hub = self.hubs[tensor][0]
            candidate.options[hub] = self.hub_option(candidate, tensor, int(found.output[option]))
            candidate.path[hub] = path
        return all(
            self._enter_weight(candidate, path, base, use, self.required(base, use, option))
            for base, use in self.reads[node]
            if base in self.weights
        )

    def _enter_weight(self, candidate: BundleCandidate, path: Path, base: int, use: Use, required: Layout) -> bool:
        """Enter a weight, and its hub if it has one; False if it has no option, or several readers inside."""
        weight, storage = self.weights[base]
        alone = list(required)
        for join, _ in path:
            alone[candidate.axes[join][1]] = R
        code = storage.space.code(required)
        read, paid = (
            np.flatnonzero(storage.plain & (storage.codes == x)) for x in (code, storage.space.code(tuple(alone)))
        )
        if not len(read) or not len(paid):
            return False
        if base in self.hubs:
            hub, table = self.hubs[base]
            readers = [u for u in self.classes.uses[base] if u.node in candidate.outer.nodes]
            if readers != [use] or table.position[code] < 0:
                return False
            candidate.options[hub], candidate.path[hub] = self.hub_option(candidate, base, code), path
        candidate.options[weight], candidate.stored[weight] = int(read[0]), int(paid[0])
        candidate.path[weight] = path
        return True

    def hub_option(self, candidate: BundleCandidate, base: int, code: int) -> int:
        """The option of a hub with a layout: of two the one that is kept for backward, if a reader keeps it."""
        retention, table = self.builder.retention, self.hubs[base][1]
        readers = retention.keepers(base) if retention.by_alternatives(base) else frozenset()
        kept = not readers.isdisjoint((*candidate.outer.nodes, candidate.outer.join))
        return int(table.position[code]) + len(table.codes) * kept

    def by_node(self, branch: Branch, time: Mapping[int, int]) -> Mapping[int, int]:
        """ns of every node and weight of a branch, given those of variables; a hub counts with the node."""
        found = {}
        for i in (*branch.nodes, *branch.weights):
            hub = self.classes.variable(i)
            variables = (of[n][0] for of, n in ((self.operators, i), (self.weights, i), (self.hubs, hub)) if n in of)
            found[i] = sum(time.get(v, 0) for v in variables)
        return found
