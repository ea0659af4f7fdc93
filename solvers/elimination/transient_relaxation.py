"""Relaxation of transient memory: the maximum over switches becomes the means over groups of switches.

    use_0(x) + Σ_(s ∈ g) extra_s(x) / |g| ≤ M_0     ∀ groups g of switches

Each group has a row of its own in place of capacity 0, so that prices weight the groups.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ...formulation.network.network import Network, Table
from .circuit import Circuit
from .factors import Factor
from .kernels import Floats

Groups = Sequence[frozenset[int]]  # of switches, by their variables

_MAX_GROUPS = 3
_ALIKE = 1.5  # largest ratio of successive transient uses in a group


def groups_of(network: Network) -> tuple[frozenset[int], ...]:
    """Switches of similar transient use, the largest first; those without any are in no group."""
    largest: dict[int, int] = {}

    def max_extra(extra: Table | None) -> int:
        if extra is None:
            return 0
        if id(extra) not in largest:
            largest[id(extra)] = int(extra.max(initial=0))
        return largest[id(extra)]

    tables = [((*s.variables.values(), *s.edges.values()), s.variable) for s in network.switches]
    sizes = [(sum(max_extra(extra) for _, _, extra in parts), z) for parts, z in tables]
    groups: list[set[int]] = []
    last = 0
    for size, z in sorted(sizes, reverse=True):
        if size and (not groups or (size * _ALIKE < last and len(groups) < _MAX_GROUPS)):
            groups.append(set())
        if size:
            groups[-1].add(z)
            last = size
    return tuple(map(frozenset, groups))


def relax_transient(circuit: Circuit, groups: Groups) -> Circuit:
    """The relaxed circuit: a row for each group, then those of the other capacities."""

    def relaxed(f: Factor) -> Factor:
        if f.use is None and f.extra is None:
            return f
        row = -1 if f.extra is None else next((g for g, group in enumerate(groups) if f.scope[0] in group), -1)
        key = id(f.use), id(f.extra), row
        if key not in uses:
            use = np.zeros((*f.time.shape, width)) if f.use is None else f.use
            uses[key] = np.concatenate([*[use[..., :1]] * len(groups), use[..., 1:]], axis=-1)
            if row >= 0:
                uses[key][..., row] += share(f, groups[row])
        return replace(f, use=uses[key])

    uses: dict[tuple[int, int, int], Floats] = {}
    width = len(circuit.network.capacities)
    first, *others = circuit.network.capacities
    return with_factors(circuit, (*[first] * len(groups), *others), [relaxed(f) for f in circuit.factors])


def share(f: Factor, group: frozenset[int]) -> Floats:
    """What a factor's transient use adds to the row of its group."""
    assert f.extra is not None
    return f.extra // len(group)


def with_factors(circuit: Circuit, capacities: tuple[int, ...], factors: Sequence[Factor]) -> Circuit:
    """The circuit with other factors of the same scopes and shapes."""
    network = replace(circuit.network, capacities=capacities)
    leaves = tuple(f.narrow() for f in factors)
    return replace(circuit, network=network, factors=tuple(factors), leaves=leaves)
