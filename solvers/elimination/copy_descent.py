"""Descent: a solution improved by changing one option at a time, in all copies of a chain alike.

At the weights that bound windows best, a solution has one stream of a window much longer than the other, since ties
between options are broken all one way: all weights of a layer are stored whole, or all are gathered. Changes of single
options balance the streams:

    x_v ← argmin over options o of  Σ_f L_f c_f(o) + Σ_w L_w max_k S_wk(o)          v by v, until none changes

f being the tables around v, each as often (L) as its chain has copies. Changes that would exceed a capacity are left
out.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np

from ..protocol import Search
from ..work import CALL, ENTRY, spend
from .circuit import Circuit
from .factors import Factor
from .kernels import Bools, Floats, Ints

_SWEEPS = 10  # over all variables; two to four suffice mostly


@dataclass(frozen=True, slots=True, eq=False)
class _Term:
    """A factor over domains, which equal variables share, and how many copies have it."""

    scope: tuple[int, ...]
    factor: Factor
    many: int


def offer_descended(circuit: Circuit, assignment: Sequence[int], search: Search) -> tuple[int, ...] | None:
    """Offer what changes of single options make of an assignment; None if its copies differ in ways that are forbidden,
    or no change makes it cheaper.

    The circuit has its factors unpriced, with their streams, and the options of the assignment.
    """
    cost, found = descended(circuit, assignment)
    if found == tuple(assignment) or cost == inf:
        return None
    if search.better(int(cost) + circuit.network.constant):
        search.offer(found)
    return found


def descended(circuit: Circuit, assignment: Sequence[int]) -> tuple[float, tuple[int, ...]]:
    """What changes of single options make of an assignment, if it is permitted, and its cost without the constant."""
    descent = _Descent(circuit, assignment)
    found = descent.assignment if descent.cost < inf and descent.descended() else tuple(assignment)
    return descent.cost, found


class _Descent:
    """An assignment of all domains, and what it adds up to."""

    def __init__(self, circuit: Circuit, assignment: Sequence[int]) -> None:
        self.circuit, self.windows = circuit, circuit.repeats
        self.capacities = np.array(circuit.network.capacities, np.float64)
        many = [1] * len(circuit.factors)
        for chain, one in zip(circuit.network.chains, circuit.copies, strict=True):
            for slot in circuit.below([one]):
                if slot < len(many):
                    many[slot] = len(chain)
        of = circuit.domain
        self.terms = [_Term(tuple(of[v] for v in f.scope), f, n) for f, n in zip(circuit.factors, many, strict=True)]
        self.around: dict[int, list[_Term]] = {}
        for term in self.terms:
            for d in dict.fromkeys(term.scope):
                self.around.setdefault(d, []).append(term)
        first = {d: v for v, d in reversed([*enumerate(of)])}  # of the variables that share a domain
        self.picks = {d: int(np.searchsorted(circuit.kept[d], assignment[v])) for d, v in first.items()}
        self._add_up()

    @property
    def assignment(self) -> tuple[int, ...]:
        kept = self.circuit.kept
        return tuple(int(kept[d][self.picks[d]]) for d in self.circuit.domain)

    def _add_up(self) -> None:
        """Cost, uses, transient use by switch, and streams of the assignment."""
        self.use, self.extras = np.zeros(len(self.capacities)), dict[int, float]()
        self.streams: dict[int, Ints] = {}
        time = 0.0
        for scope, f, many in ((t.scope, t.factor, t.many) for t in self.terms):
            at: tuple[Any, ...] = tuple(self.picks[d] for d in scope)
            time += many * float(f.time[at])
            if f.use is not None:
                self.use = self.use + many * f.use[at]
            if f.extra is not None:
                self.extras[scope[0]] = self.extras.get(scope[0], 0.0) + float(f.extra[at])
            for w, table in f.streams:
                self.streams[w] = self.streams.get(w, 0) + table[(slice(None), *at)]
        self.cost = time + sum(self.windows[w] * int(own.max()) for w, own in self.streams.items())

    def descended(self) -> bool:
        """Change options until no single change makes it cheaper; True if one was changed."""
        before = self.cost
        for _ in range(_SWEEPS):
            if not sum([self._change(d) for d in self.around if len(self.circuit.kept[d]) > 1]):
                break
        self._add_up()
        return self.cost < before

    def _change(self, d: int) -> bool:
        """Take the best option of a domain; True if that is another one."""
        now, count = self.picks[d], len(self.circuit.kept[d])
        cost, use = np.zeros(count), np.zeros((count, len(self.capacities)))
        needs: dict[int, Floats] = {}
        streams: dict[int, Ints] = {}
        for term in self.around[d]:
            f, many = term.factor, term.many
            at: tuple[Any, ...] = tuple(self._at(term, d))
            cost += many * f.time[at]
            if f.use is not None:
                use += many * f.use[at]
            if f.extra is not None:
                needs[term.scope[0]] = needs.get(term.scope[0], 0) + f.extra[at]
            for w, table in f.streams:
                streams[w] = streams.get(w, 0) + table[(slice(None), *at)]
        spend(CALL * len(self.around[d]) / 4 + ENTRY * count * len(self.around[d]))
        moved = {w: self.streams[w][:, None] + own - own[:, [now]] for w, own in streams.items()}
        for w, own in moved.items():
            cost += self.windows[w] * own.max(axis=0)
        use += self.use - use[now]
        extras = {z: self.extras[z] + own - own[now] for z, own in needs.items()}
        cost[~self._fits(use, extras)] = inf
        best = int(cost.argmin())
        if not cost[best] < cost[now]:
            return False
        self.picks[d], self.use = best, use[best]
        self.extras |= {z: float(own[best]) for z, own in extras.items()}
        self.streams |= {w: own[:, best] for w, own in moved.items()}
        return True

    def _at(self, term: _Term, d: int) -> Iterator[slice | Ints | int]:
        """The entries of a term for every option of a domain, on the diagonal where two of its variables share that."""
        twice = term.scope.count(d) > 1
        every = np.arange(len(self.circuit.kept[d])) if twice else slice(None)
        for other in term.scope:
            yield every if other == d else self.picks[other]

    def _fits(self, use: Floats, extras: dict[int, Floats]) -> Bools:
        """[options]: whether the uses, with the largest transient use, are within the capacities."""
        if len(self.capacities) and (extras or self.extras):
            rest = max((need for z, need in self.extras.items() if z not in extras), default=0.0)
            largest = np.full(len(use), rest)
            for own in extras.values():
                largest = np.maximum(largest, own)
            use = use.copy()
            use[:, 0] += largest
        found: Bools = np.logical_and.reduce(use <= self.capacities, axis=1)
        return found
