"""One-point crossover of two solutions: the first up to some variable, the second from there on.

Under a price of memory all equal layers choose alike: too much memory or too much time. With variables in the order of
layers, running sums find the best crossover point.
"""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from ...formulation.network.network import INFINITE, CostTerm, Network, WindowStreams, streams_by_part
from .kernels import Ints


def crossed(network: Network, before: Sequence[int], after: Sequence[int]) -> tuple[int, tuple[int, ...]] | None:
    """The cheapest feasible assignment of `before` in the first variables and `after` in the rest, with its cost.

    A switch precedes the variables it decides. None if no crossover is feasible.
    """
    count, order = len(network.capacities), _order(network)
    place = {v: n for n, v in enumerate(order, 1)}
    switch = {s.variable: k for k, s in enumerate(network.switches)}
    cache: dict[object, tuple[int, ...]] = {}  # (forbidden, cost, uses, extra) of an entry; equal layers share tables
    base: Counter[tuple[int, ...]] = Counter()
    places: list[int] = []
    changes: list[tuple[int, ...]] = []  # of (forbidden, cost, uses)
    extras = np.zeros((len(switch), len(order) + 1), np.int64)  # changes as well
    streams = _Streams(network, len(order) + 1)

    def value_of(term: CostTerm, entry: Sequence[int]) -> tuple[int, ...]:
        key = id(term.cost), id(term.use), id(term.extra), *entry
        if key not in cache:
            cost = term.cost.item(*entry)
            use = (0,) * count if term.use is None else tuple(term.use[*entry].tolist())
            extra = 0 if term.extra is None else term.extra.item(*entry)
            cache[key] = (1, 0, *use, extra) if cost >= INFINITE else (0, cost, *use, extra)
        return cache[key]

    of_variable, of_edge = streams_by_part(network)
    windows = [of_variable.get(v, ()) for v in range(len(network.variables))]
    windows += [of_edge.get(k, ()) for k in range(len(network.edges))]
    for term, own in zip(network.terms(), windows, strict=True):
        entry = [after[v] for v in term.scope]
        value = value_of(term, entry)
        streams.change(own, 0, entry, 1)
        base[value[:-1]] += 1
        row = switch.get(term.scope[0], 0) if term.extra is not None else 0
        if value[-1]:
            extras[row, 0] += value[-1]
        for n, k in sorted((place[v], k) for k, v in enumerate(term.scope) if before[v] != after[v]):
            streams.change(own, n, entry, -1)
            entry[k] = before[term.scope[k]]  # the ends change one after the other
            streams.change(own, n, entry, 1)
            last, value = value, value_of(term, entry)
            if value[:-1] != last[:-1]:
                places.append(n)
                changes.append(tuple(new - old for old, new in zip(last[:-1], value[:-1], strict=True)))
            if value[-1] != last[-1]:
                extras[row, n] += value[-1] - last[-1]
    steps = np.zeros((len(order) + 1, 2 + count), dtype=np.int64)
    steps[0] = [sum(n * value[k] for value, n in base.items()) for k in range(2 + count)]
    if places:
        np.add.at(steps, places, np.array(changes, dtype=np.int64))
    totals = steps.cumsum(axis=0)
    totals[:, 1] += streams.longest()
    if count:
        totals[:, 2] += extras.cumsum(axis=1).max(axis=0, initial=0)
    feasible = (totals[:, 0] == 0) & (totals[:, 2:] <= np.array(network.capacities)).all(axis=1)
    if not feasible.any():
        return None
    best = int(np.where(feasible, totals[:, 1], INFINITE).argmin())
    mixed = list(after)
    for v in order[:best]:
        mixed[v] = before[v]
    return network.constant + int(totals[best, 1]), tuple(mixed)


class _Streams:
    """What crossover points change of the streams of a network's windows."""

    def __init__(self, network: Network, places: int) -> None:
        self.places = places
        self.first: list[int] = np.cumsum([0, *(window.streams for window in network.windows)]).tolist()
        self.known: dict[object, list[tuple[int, int]]] = {}  # streams and ns of an entry; equal layers share tables
        self.moved: list[tuple[int, int, int]] = []  # (stream, place, change)

    def change(self, own: WindowStreams, place: int, entry: Sequence[int], sign: int) -> None:
        """Add what an entry of the tables `own` adds to their streams, or take it away."""
        if not own:
            return
        start = self.first[own[0][0]]
        key = *(x for w, table in own for x in (self.first[w] - start, id(table))), *entry
        if key not in self.known:
            added = [(self.first[w] - start + k, t[k].item(*entry)) for w, t in own for k in range(len(t))]
            self.known[key] = [(stream, ns) for stream, ns in added if ns]
        self.moved.extend((start + stream, place, sign * ns) for stream, ns in self.known[key])

    def longest(self) -> Ints:
        """The sum of the windows' longest streams at every place."""
        if not self.moved:
            return np.zeros(self.places, np.int64)
        streams = np.zeros((self.first[-1], self.places), np.int64)
        rows, columns, ns = np.array(self.moved, np.int64).T
        np.add.at(streams, (rows, columns), ns)
        found: Ints = np.maximum.reduceat(streams.cumsum(axis=1), self.first[:-1], axis=0).sum(axis=0)
        return found


def _order(network: Network) -> list[int]:
    """The variables, each switch before the first that it decides."""
    first = {s.variable: min(s.variables, default=s.variable) - 0.5 for s in network.switches}
    return sorted(range(len(network.variables)), key=lambda v: first.get(v, v))
