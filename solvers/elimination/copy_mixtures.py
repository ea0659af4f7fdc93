"""Solutions mixed from others: what is outside of chains from one, each copy of a chain from any.

At a price of memory all equal copies choose alike, and use too much memory or too much time. The solutions found at
several prices hold what the copies of a good one take; an integer program counts how many take each:

    min  Σ t[o] y[o] + Σ t[c,k] n[c,k]                                         (ns)
    s.t. y, n as x, n of `counted.py`, o being what is outside of chains
         Σ m[o] y[o] + Σ m[c,k] n[c,k] + Σ τ_l z[l] ≤ M,   Σ z[l] = 1          (bytes)
         n[c,k] ≤ L_c Σ z[l] over the l with e[c,k] ≤ τ_l                      ∀ labels of transient use e

It has a column per label, a few dozen, so that it takes milliseconds.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import TypeAlias

import numpy as np

from ...formulation.network.network import INFINITE, Network, chain_edges, window_terms
from ..decomposition.counted import CopyLabels, CountedProgram, build, trail
from ..decomposition.counted_linear import linear, unit_of
from ..protocol import Search
from ..wide.highs import good_point
from ..work import spend
from .factors import Factor

_CUTS = 4  # of cycles, after which a mixture is given up
_GAP, _NODES, _SECONDS = 1e-4, 200, 10.0
_LABELS = 400  # of a program; older ones are left out
_COLUMN = 1e-4  # seconds for each


@dataclass(frozen=True, slots=True)
class _Label:
    """What one part of a solution costs (ns), uses, and needs for a while (bytes); `options` of the part's variables,
    after those `around` it.
    """

    around: tuple[int, ...]
    options: tuple[int, ...]
    time: int
    use: tuple[int, ...]
    extra: int


@dataclass(frozen=True, slots=True)
class _Part:
    """Variables that a label decides, those around it, and the numbers of its terms and its windows."""

    variables: tuple[int, ...]
    around: tuple[int, ...]
    terms: tuple[int, ...]
    windows: tuple[int, ...]


_Labels: TypeAlias = dict[tuple[tuple[int, ...], tuple[int, ...]], _Label]
"""By what is around and the options."""


class Mixtures:
    """The labels of solutions of a network, and the best solution that they can be mixed to."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.terms, self.windows = list(network.terms()), window_terms(network)
        self.outside, self.copies = _parts(network)
        self.of_outside: _Labels = {}
        self.of_copies: list[_Labels] = [{} for _ in network.chains]
        self.new = False

    def add(self, assignment: Sequence[int]) -> None:
        """Add the labels of a solution, whether it fits the capacities or not."""
        if not (self.network.chains and self.network.capacities):
            return
        for labels, parts in zip((self.of_outside, *self.of_copies), ([self.outside], *self.copies), strict=True):
            for part in parts:  # copies agree position by position, so that the first one's label is all others'
                self._add(labels, part, assignment)

    def add_copy(self, c: int, options: Sequence[int]) -> None:
        """Add the label of one copy of a chain, by the options of its variables, then of those around it."""
        if self.network.capacities:
            part, assignment = self.copies[c][0], [0] * len(self.network.variables)
            for v, option in zip((*part.variables, *part.around), options, strict=True):
                assignment[v] = option
            self._add(self.of_copies[c], part, assignment)

    def _add(self, labels: _Labels, part: _Part, assignment: Sequence[int]) -> None:
        key = tuple([assignment[v] for v in part.around]), tuple([assignment[v] for v in part.variables])
        if key not in labels and (label := self._label(part, assignment, *key)).time < INFINITE:
            labels[key], self.new = label, True

    def offer_best(self, search: Search) -> None:
        """Offer the best mixture, if there are labels that were not yet mixed."""
        if not self.new or search.left <= 0 or not all((self.of_outside, *self.of_copies)):
            return
        self.new = False
        program, outside, labels = self._program()
        spend(_COLUMN * len(program.upper))
        scale = unit_of(program)
        for _ in range(_CUTS):
            point = good_point(linear(program, scale, whole=True), _GAP, _NODES, min(search.left, _SECONDS))
            if point is None:
                return
            value: Callable[[int], int] = np.round(point).astype(np.int64).tolist().__getitem__
            if not program.cut_cycles(value):
                picks, counts = program.read(value)
                cost = outside[picks[len(self.network.variables)]].time
                for own, ns in zip(labels, counts, strict=True):
                    cost += sum(label.time * n for label, n in zip(own, ns, strict=True))
                if search.better(self.network.constant + cost):
                    search.offer(self._assignment(program, picks, counts, outside, labels))
                return

    def _label(
        self, part: _Part, assignment: Sequence[int], around: tuple[int, ...], options: tuple[int, ...]
    ) -> _Label:
        cost, use, needs = 0, np.zeros(len(self.network.capacities), np.int64), dict[int, int]()
        for term in (self.terms[k] for k in part.terms):
            entry = tuple([assignment[v] for v in term.scope])
            cost += term.cost.item(entry)
            if term.use is not None:
                use += term.use[entry]
            if term.extra is not None:
                needs[term.scope[0]] = needs.get(term.scope[0], 0) + term.extra.item(entry)
        for terms in (self.windows[w] for w in part.windows):
            met = [(table, [assignment[v] for v in scope]) for scope, table in terms]
            cost += max(sum(table.item((k, *entry)) for table, entry in met) for k in range(len(met[0][0])))
        return _Label(around, options, cost, tuple(use.tolist()), max(needs.values(), default=0))

    def _program(self) -> tuple[CountedProgram, list[_Label], list[list[_Label]]]:
        """The program over the latest labels, and these: of what is outside, and of the copies of each chain."""
        network = self.network
        outside, *labels = ([*of.values()][-_LABELS:] for of in (self.of_outside, *self.of_copies))
        levels = np.unique([label.extra for of in (outside, *labels) for label in of])
        chosen, level = len(network.variables), len(network.variables) + 1
        size = {chosen: len(outside), level: len(levels)}
        use = np.zeros((len(levels), len(network.capacities)))
        use[:, 0] = levels
        above = np.array([label.extra for label in outside])[:, None] > levels
        factors = [
            Factor((chosen,), _floats([x.time for x in outside]), _floats([x.use for x in outside])),
            Factor((level,), np.zeros(len(levels)), use),
            Factor((chosen, level), np.where(above, inf, 0.0), None),
        ]
        at = {v: n for n, v in enumerate(self.outside.variables)}
        for v in dict.fromkeys(v for chain in network.chains for v in (*chain.boundaries[:: len(chain)], *chain.reads)):
            size[v] = len(network.variables[v].cost)
            taken = np.array([x.options[at[v]] for x in outside])[:, None] == np.arange(size[v])
            factors.append(Factor((chosen, v), np.where(taken, 0.0, inf), None))
        chains = []
        for chain, own in zip(network.chains, labels, strict=True):
            around = np.array([x.around for x in own]).T
            reads = dict(zip(chain.reads, around[2:], strict=True))
            times, uses = np.array([x.time for x in own]), np.array([x.use for x in own])
            first, last = chain.boundaries[0], chain.boundaries[-1]
            chains.append(CopyLabels(first, last, len(chain), around[:2], times, use=uses, reads=reads))
        program = build(factors, size, network.capacities, chains)
        for chain, own, columns in zip(network.chains, labels, program.counts, strict=True):
            for label, n in zip(own, columns, strict=True):
                enough = [(-len(chain), program.x[level][k]) for k in np.flatnonzero(levels >= label.extra).tolist()]
                if len(enough) < len(levels):
                    program.at_most([(1, n), *enough], 0)
        return program, outside, labels

    def _assignment(
        self,
        program: CountedProgram,
        picks: Mapping[int, int],
        counts: Sequence[Sequence[int]],
        outside: list[_Label],
        labels: list[list[_Label]],
    ) -> tuple[int, ...]:
        """The assignment that a solution of the program stands for."""
        found = [0] * len(self.network.variables)

        def put(variables: Sequence[int], options: Sequence[int]) -> None:
            for v, option in zip(variables, options, strict=True):
                found[v] = option

        put(self.outside.variables, outside[picks[len(found)]].options)
        for copies, own, chain, ns in zip(self.copies, labels, program.chains, counts, strict=True):
            walk, _ = trail(picks[chain.first], chain.ends, ns)
            for part, k in zip(copies, walk, strict=True):
                put(part.around, own[k].around)
                put(part.variables, own[k].options)
        return tuple(found)


def _floats(numbers: Sequence[object]) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    return np.array(numbers, np.float64)


def _parts(network: Network) -> tuple[_Part, list[list[_Part]]]:
    """What is outside of the copies of chains, and every copy of every chain."""
    edges, rest = chain_edges(network)
    count = len(network.variables)
    place = {v: (c, i) for c, chain in enumerate(network.chains) for i, copy in enumerate(chain.copies) for v in copy}
    between = {k: (c, i) for c, of in enumerate(edges) for i, own in enumerate(of) for k in own}
    windows: dict[tuple[int, int] | None, list[int]] = {}
    for w, window in enumerate(network.windows):
        met = [place.get(v) for v in window.variables] + [between.get(k) for k in window.edges]
        windows.setdefault(next((p for p in met if p is not None), None), []).append(w)
    inner = {
        v for chain in network.chains for v in (*chain.boundaries[1:-1], *(v for copy in chain.copies for v in copy))
    }

    def part(at: tuple[int, int] | None, own: Sequence[int], around: tuple[int, ...], among: Sequence[int]) -> _Part:
        terms = [*own, *(count + k for k in among)]
        return _Part(tuple(own), around, tuple(terms), tuple(windows.get(at, ())))

    outside = part(None, [v for v in range(count) if v not in inner], (), rest)
    return outside, [
        [part((c, i), copy, chain.around(i), edges[c][i]) for i, copy in enumerate(chain.copies)]
        for c, chain in enumerate(network.chains)
    ]
