"""The mean of what switches use for a while, which is no more than the largest: a network without extras.

    use_0(x) + Σ_(s ∈ g) extra_s(x) / |g| ≤ M_0     ∀ groups g of switches

Each group has a row of its own in the place of capacity 0, so that their prices weigh the groups.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ...formulation.network.network import Network, Table
from .circuit import Circuit
from .factors import Factor
from .kernels import Floats

Groups = Sequence[frozenset[int]]  # of switches, by their variables

_MOST_GROUPS = 3
_ALIKE = 1.5  # by which factor extras of one group may differ from the next


def groups_of(network: Network) -> tuple[frozenset[int], ...]:
    """Switches that use about as much for a while, those of most first; those that use nothing are in no group."""
    known: dict[int, int] = {}

    def most(extra: Table | None) -> int:
        if extra is None:
            return 0
        if id(extra) not in known:
            known[id(extra)] = int(extra.max(initial=0))
        return known[id(extra)]

    sizes = [
        (sum(most(t[2]) for t in (*s.variables.values(), *s.edges.values())), s.variable) for s in network.switches
    ]
    groups: list[set[int]] = []
    last = 0
    for size, z in sorted(sizes, reverse=True):
        if size and (not groups or (size * _ALIKE < last and len(groups) < _MOST_GROUPS)):
            groups.append(set())
        if size:
            groups[-1].add(z)
            last = size
    return tuple(map(frozenset, groups))


def with_means(circuit: Circuit, groups: Groups) -> Circuit:
    """The circuit with a row for each group, then those of the other capacities."""

    def counted(f: Factor) -> Factor:
        if f.use is None and f.extra is None:
            return f
        row = -1 if f.extra is None else next((g for g, group in enumerate(groups) if f.scope[0] in group), -1)
        key = id(f.use), id(f.extra), row
        if key not in known:
            use = np.zeros((*f.time.shape, width)) if f.use is None else f.use
            known[key] = np.concatenate([*[use[..., :1]] * len(groups), use[..., 1:]], axis=-1)
            if row >= 0:
                known[key][..., row] += share(f, groups[row])
        return replace(f, use=known[key])

    known: dict[tuple[int, int, int], Floats] = {}
    width = len(circuit.network.capacities)
    first, *others = circuit.network.capacities
    return with_factors(circuit, (*[first] * len(groups), *others), [counted(f) for f in circuit.factors])


def share(f: Factor, group: frozenset[int]) -> Floats:
    """What the extra of a factor adds to the row of its group."""
    assert f.extra is not None
    return f.extra // len(group)


def with_factors(circuit: Circuit, capacities: tuple[int, ...], factors: Sequence[Factor]) -> Circuit:
    """The circuit with other tables of the same forms."""
    network = replace(circuit.network, capacities=capacities)
    leaves = tuple(f.narrow() for f in factors)
    return replace(circuit, network=network, factors=tuple(factors), leaves=leaves)
