"""Bundles: one more option of every variable inside parallel branches, for each axis over which they can be placed.

A bundled option stands for an ordinary one: computed whole on the axis (x at B, weights at B), its samples split on all
others. It costs what that one does if its branch is at the slowest coordinate, else nothing, since it runs in parallel;
memory likewise, at the fullest coordinate. It is compatible only with options of the same bundle and axis. A `cat` pays
the exchange; a sum gives addends, P on the axis. A bundle inside a branch may lie on a second axis.
"""

from collections import defaultdict
from collections.abc import Sequence
from itertools import product
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ...bundles.branch_options import BundleCandidate
from ...network.network import INFINITE, Edge, Variable
from .bundle_candidates import BundleCandidates
from .encoding_pass import EncodingPass

Array = npt.NDArray[np.int64]

Further = Sequence[tuple[BundleCandidate, int]]
"""The further options of a variable: each a candidate, and the ordinary option that it stands for."""


class _Longer(NamedTuple):
    """The tables of a lengthened edge: time and bytes; the first n and m options of its ends are ordinary."""

    cost: Array
    use: Array
    n: int
    m: int


class Bundles(EncodingPass):
    """Lengthens variables and edges once all others are there."""

    def finish(self) -> None:
        builder = self.builder
        if not builder.options.space.bundles:
            return
        self.candidates = BundleCandidates(builder)
        self.choosing = {*builder.alternatives.values()}
        further: dict[int, list[tuple[BundleCandidate, int]]] = defaultdict(list)
        for candidate in self.candidates.all():
            join = builder.operators[candidate.outer.join][0]
            for v, option in (*candidate.options.items(), *((join, option) for option in candidate.ends)):
                further[v].append((candidate, option))
        for v, options in further.items():
            builder.variables[v] = self._longer(builder.variables[v], v, options)
        builder.edges[:] = [
            self._edge(number, edge, further.get(edge.u, ()), further.get(edge.v, ()))
            for number, edge in enumerate(builder.edges)
        ]
        builder.bundled = {v: tuple(c.placed(v, option) for c, option in options) for v, options in further.items()}

    def _longer(self, old: Variable, v: int, further: Further) -> Variable:
        operators = self.builder.operators
        cost, use = [], []
        for candidate, option in further:
            if v in candidate.layouts:  # its join has the costs
                cost.append(0)
                use.append(np.zeros_like(old.use[0]))
                continue
            paid = candidate.stored.get(v, option)
            own = 0 if v in candidate.adders else int(old.cost[paid])
            if v not in candidate.path:
                cost.append(own + candidate.ends[option])
                use.append(old.use[option] + candidate.held_bytes)
                continue
            joining = sum(x.exchange_ns for join, x in candidate.levels.items() if operators[join][0] == v)
            cost.append((own + joining + self.candidates.adding_ns(candidate, v)) * candidate.slow(v))
            use.append(old.use[paid] * candidate.full(v))
        longer = np.concatenate([old.cost, np.array(cost, np.int64)]), np.concatenate([old.use, use])
        return Variable(old.name, *map(self.builder.interned, longer))

    def _edge(self, number: int, edge: Edge, left: Further, right: Further) -> Edge:
        """An edge with the further options of both ends, most of which exclude each other."""
        if not left and not right:
            return edge
        n, m = edge.cost.shape
        cost = np.full((n + len(left), m + len(right)), INFINITE, np.int64)
        cost[:n, :m] = edge.cost
        old = np.zeros((n, m, 1), np.int64) if edge.use is None else edge.use
        use = np.zeros((*cost.shape, 1), np.int64)
        use[:n, :m] = old
        longer = _Longer(cost, use, n, m)
        self._leave(edge, old, left, longer)
        self._enter(number, old, right, longer)
        for (x, (candidate, one)), (y, (other, two)) in product(enumerate(left, n), enumerate(right, m)):
            if candidate is other and edge.u in candidate.layouts:
                cost[x, y] = 0
            elif candidate is other and edge.u in candidate.path:
                counts = edge.v not in candidate.path or candidate.slow(edge.v)
                if self.candidates.joins(candidate, edge):
                    cost[x, y] = self.candidates.join_ns(candidate, number, one, two) if counts else 0
                    continue
                cost[x, y] = edge.cost[one, two] if counts else 0
                if candidate.full(edge.v):
                    use[x, y] = old[one, two]
            elif candidate is not other and edge.u not in candidate.path:  # what one bundle gives enters another
                cost[x, y], use[x, y] = cost[one, y], use[one, y]
        interned = self.builder.interned
        return Edge(edge.u, edge.v, interned(cost), None if edge.use is None else interned(use))

    def _leave(self, edge: Edge, old: Array, left: Further, longer: _Longer) -> None:
        """From further options to what is not in their bundles."""
        cost, use, m = longer.cost, longer.use, longer.m
        for x, (candidate, option) in enumerate(left, longer.n):
            if edge.u not in candidate.path:  # the outermost join, read as always
                cost[x, :m], use[x, :m] = edge.cost[option], old[option]
            elif edge.v in self.builder.optional:  # unused, it does not read what is inside
                cost[x, m - 1] = 0
            elif edge.v in self.choosing and edge.v not in candidate.options:  # what is taken elsewhere
                cost[x, :m] = edge.cost[option]

    def _enter(self, number: int, old: Array, right: Further, longer: _Longer) -> None:
        """From what is not in a bundle to further options."""
        edge, cost, use, n = self.builder.edges[number], longer.cost, longer.use, longer.n
        for y, (candidate, option) in enumerate(right, longer.m):
            if edge.u in candidate.options:
                continue
            if edge.v in candidate.path or (edge.v in candidate.adders and number in self.builder.conversions):
                # From outside: in the required layout, nothing is converted inside a bundle.
                same = self.candidates.enters(candidate, number, option)
                cost[:n, y][same] = 0
                if candidate.full(edge.v) and edge.v not in candidate.layouts:
                    use[:n, y][same] = old[same, option]
            elif edge.u in self.builder.optional:
                cost[n - 1, y] = edge.cost[n - 1, option]  # another alternative of a branch, unused
            elif number not in self.builder.conversions:  # which alternative is taken
                cost[:n, y], use[:n, y] = edge.cost[:, option], old[:, option]
