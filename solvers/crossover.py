"""Solutions between two solutions: one up to a variable, the other from there on.

Under a price of memory equal layers all choose alike: either too much memory, or more time than need be. Of a network
whose variables stand in the order of its layers, the best mixture of the two at one place is found by running sums.
"""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from ..formulation.network import INFINITE, Network, Term


def crossed(network: Network, before: Sequence[int], after: Sequence[int]) -> tuple[int, tuple[int, ...]] | None:
    """The cheapest feasible assignment that is `before` in its first variables and `after` in the rest, with its cost.

    None where none is feasible; what switches use for a while is left out.
    """
    count = len(network.capacities)
    known: dict[object, tuple[int, ...]] = {}  # (forbidden, cost, uses) of an entry; equal layers share tables
    base: Counter[tuple[int, ...]] = Counter()
    places: list[int] = []
    changes: list[tuple[int, ...]] = []

    def value_of(term: Term, entry: Sequence[int]) -> tuple[int, ...]:
        key = id(term.cost), id(term.use), *entry
        if key not in known:
            cost = term.cost.item(*entry)
            use = (0,) * count if term.use is None else tuple(term.use[*entry].tolist())
            known[key] = (1, 0, *use) if cost >= INFINITE else (0, cost, *use)
        return known[key]

    for term in network.terms():
        entry = [after[v] for v in term.scope]
        value = value_of(term, entry)
        base[value] += 1
        for v, k in sorted((v, k) for k, v in enumerate(term.scope) if before[v] != after[v]):
            entry[k] = before[v]  # the ends switch one after the other
            last, value = value, value_of(term, entry)
            if value != last:
                places.append(v + 1)
                changes.append(tuple(n - o for o, n in zip(last, value, strict=True)))
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
