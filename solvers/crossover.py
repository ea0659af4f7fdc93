"""Solutions between two solutions: one up to a variable, the other from there on.

Under a price of memory equal layers all choose alike: either too much memory, or more time than need be. Of a network
whose variables stand in the order of its layers, the best mixture of the two at one place is found by running sums.
"""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from ..formulation.network import INFINITE, Edge, Network, Variable


def crossed(network: Network, before: Sequence[int], after: Sequence[int]) -> tuple[int, tuple[int, ...]] | None:
    """The cheapest feasible assignment that is `before` in its first variables and `after` in the rest, with its cost.

    None where none is feasible.
    """
    count = len(network.capacities)
    known: dict[object, tuple[int, ...]] = {}  # (forbidden, cost, uses) of an entry; equal layers share tables
    base: Counter[tuple[int, ...]] = Counter()
    places: list[int] = []
    changes: list[tuple[int, ...]] = []

    def parts(of: Variable | Edge, entry: tuple[int, ...]) -> tuple[int, ...]:
        key = id(of.cost), id(of.use), entry
        if key not in known:
            cost = int(of.cost[entry])
            use = (0,) * count if of.use is None else tuple(of.use[entry].tolist())
            known[key] = (1, 0, *use) if cost >= INFINITE else (0, cost, *use)
        return known[key]

    def change(place: int, old: tuple[int, ...], new: tuple[int, ...]) -> None:
        if old != new:
            places.append(place)
            changes.append(tuple(n - o for o, n in zip(old, new, strict=True)))

    for v, (x, y) in enumerate(zip(before, after, strict=True)):
        old = parts(network.variables[v], (y,))
        base[old] += 1
        if x != y:
            change(v + 1, old, parts(network.variables[v], (x,)))
    for e in network.edges:
        entry = after[e.u], after[e.v]
        value = parts(e, entry)
        base[value] += 1
        if entry == (before[e.u], before[e.v]):
            continue
        for v in sorted((e.u, e.v)):  # the ends switch one after the other
            entry = (before[v], entry[1]) if v == e.u else (entry[0], before[v])
            last, value = value, parts(e, entry)
            change(v + 1, last, value)
    steps = np.zeros((len(network.variables) + 1, 2 + count), dtype=np.int64)  # changes of (forbidden, cost, uses)
    steps[0] = [sum(n * value[k] for value, n in base.items()) for k in range(2 + count)]
    if places:
        np.add.at(steps, places, np.array(changes, dtype=np.int64))
    totals = steps.cumsum(axis=0)
    fine = (totals[:, 0] == 0) & (totals[:, 2:] <= np.array(network.capacities)).all(axis=1)
    if not fine.any():
        return None
    place = int(np.where(fine, totals[:, 1], INFINITE).argmin())
    return network.constant + int(totals[place, 1]), (*before[:place], *after[place:])
