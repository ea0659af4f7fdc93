"""One-point crossover of two solutions: the first up to some variable, the second from there on.

Under a price of memory all equal layers choose alike: too much memory or too much time. With variables in the order of
layers, running sums find the best crossover point.
"""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from ...formulation.network.network import INFINITE, CostTerm, Network, WindowStreams, streams_by_part


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
    streams = [np.zeros((window.streams, len(order) + 1), np.int64) for window in network.windows]  # likewise

    def value_of(term: CostTerm, entry: Sequence[int]) -> tuple[int, ...]:
        key = id(term.cost), id(term.use), id(term.extra), *entry
        if key not in cache:
            cost = term.cost.item(*entry)
            use = (0,) * count if term.use is None else tuple(term.use[*entry].tolist())
            extra = 0 if term.extra is None else term.extra.item(*entry)
            cache[key] = (1, 0, *use, extra) if cost >= INFINITE else (0, cost, *use, extra)
        return cache[key]

    def change(own: WindowStreams, n: int, entry: Sequence[int], sign: int) -> None:
        for w, table in own:
            streams[w][:, n] += [sign * stream.item(*entry) for stream in table]

    of_variable, of_edge = streams_by_part(network)
    windows = [of_variable.get(v, ()) for v in range(len(network.variables))]
    windows += [of_edge.get(k, ()) for k in range(len(network.edges))]
    for term, own in zip(network.terms(), windows, strict=True):
        entry = [after[v] for v in term.scope]
        value = value_of(term, entry)
        change(own, 0, entry, 1)
        base[value[:-1]] += 1
        row = switch.get(term.scope[0], 0) if term.extra is not None else 0
        if value[-1]:
            extras[row, 0] += value[-1]
        for n, k in sorted((place[v], k) for k, v in enumerate(term.scope) if before[v] != after[v]):
            change(own, n, entry, -1)
            entry[k] = before[term.scope[k]]  # the ends change one after the other
            change(own, n, entry, 1)
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
    for steps_of_window in streams:
        totals[:, 1] += steps_of_window.cumsum(axis=1).max(axis=0)
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


def _order(network: Network) -> list[int]:
    """The variables, each switch before the first that it decides."""
    first = {s.variable: min(s.variables, default=s.variable) - 0.5 for s in network.switches}
    return sorted(range(len(network.variables)), key=lambda v: first.get(v, v))
