"""Solutions between two solutions: one up to a variable, the other from there on.

Under a price of memory equal layers all choose alike: either too much memory, or more time than need be. Of a network
whose variables stand in the order of its layers, the best mixture of the two at one place is found by running sums.
"""

from collections.abc import Sequence

import numpy as np

from ..formulation.network import INFINITE, Network


def crossed(network: Network, before: Sequence[int], after: Sequence[int]) -> tuple[int, tuple[int, ...]] | None:
    """The cheapest feasible assignment that is `before` in its first variables and `after` in the rest, with its cost.

    None where none is feasible.
    """
    count = len(network.capacities)
    steps = np.zeros((len(network.variables) + 1, 2 + count), dtype=np.int64)  # changes of [forbidden, cost, uses]

    def parts(cost: int, use: Sequence[int]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        return np.array([cost >= INFINITE, 0 if cost >= INFINITE else cost, *use], dtype=np.int64)

    nothing = (0,) * count
    for v, (x, y) in enumerate(zip(before, after, strict=True)):
        variable = network.variables[v]
        old, new = (parts(variable.cost.item(i), variable.use[i].tolist()) for i in (y, x))
        steps[0] += old
        steps[v + 1] += new - old
    for e in network.edges:
        ends = sorted(((e.u, 0), (e.v, 1)))
        values = []
        for switched in range(3):  # how many of the ends are among the first variables
            pair = [0, 0]
            for rank, (v, side) in enumerate(ends):
                pair[side] = before[v] if rank < switched else after[v]
            use = nothing if e.use is None else e.use[pair[0], pair[1]].tolist()
            values.append(parts(e.cost.item(*pair), use))
        steps[0] += values[0]
        for rank, (v, _) in enumerate(ends):
            steps[v + 1] += values[rank + 1] - values[rank]
    totals = steps.cumsum(axis=0)
    fine = (totals[:, 0] == 0) & (totals[:, 2:] <= np.array(network.capacities)).all(axis=1)
    if not fine.any():
        return None
    place = int(np.where(fine, totals[:, 1], INFINITE).argmin())
    return network.constant + int(totals[place, 1]), (*before[:place], *after[place:])
