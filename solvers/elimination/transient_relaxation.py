"""Relaxations of transient memory, whose maximum over switches becomes means over groups g of switches.

    use_0(x) + Σ_(s ∈ g) extra_s(x) / |g| ≤ M_0     ∀ g                                  (means)

Each group has a row of its own in place of capacity 0, so that prices weight the groups. If the largest transient use
is known to be in [lo, hi], lo is subtracted from capacity 0, and what exceeds hi is forbidden:

    use_0(x) ≤ M_0 - lo;   Σ_(s ∈ g) extra_s(x) ≤ |g| hi   ∀ g;   no entry forces extra_s beyond hi   (interval)

besides the means, which hold as well: where lo and hi are far apart they bound more than both ends. How many switches
of a group take a mode can be bounded, too:

    lo ≤ Σ_(s ∈ g) [z_s = m] ≤ hi                                                     (counts)
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from ...formulation.network.network import Network, Table, extras
from .circuit import Circuit
from .factors import Factor
from .kernels import Floats

Groups = Sequence[frozenset[int]]  # of switches, by their variables

_MAX_GROUPS = 3
_LEVELS = 1 << 10  # parts of the capacity, of which transient uses are told apart
_ALIKE = 1.25  # largest ratio of successive transient uses in a group, but where there are too many groups


class Interval(NamedTuple):
    """Where the largest transient use lies, in bytes, both ends included."""

    low: int
    high: int


class Count(NamedTuple):
    """How many switches of a group, by its number, take a mode: from `low` to `high`."""

    group: int
    mode: int
    low: int
    high: int


class Region(NamedTuple):
    """The solutions whose largest transient use lies in an interval, and whose switches take modes so often."""

    interval: Interval
    counts: tuple[Count, ...] = ()


def groups_of(network: Network) -> tuple[frozenset[int], ...]:
    """Switches of similar transient use, such as the layers of one kind, the largest first; none without any.

    A mean over layers of two kinds would let those that use more exceed what there is.
    """
    largest: dict[int, int] = {}

    def max_extra(extra: Table | None) -> int:
        if extra is None:
            return 0
        if id(extra) not in largest:
            largest[id(extra)] = int(extra.max(initial=0))
        return largest[id(extra)]

    tables = [((*s.variables.values(), *s.edges.values()), s.variable) for s in network.switches]
    summed = ((sum(max_extra(extra) for _, _, extra in parts), z) for parts, z in tables)
    sizes = sorted(((size, z) for size, z in summed if size), reverse=True)
    steps = sorted(range(1, len(sizes)), key=lambda k: sizes[k][0] / sizes[k - 1][0])  # the steepest first
    cuts = sorted(k for k in steps[: _MAX_GROUPS - 1] if sizes[k][0] * _ALIKE < sizes[k - 1][0])
    ends = pairwise((0, *cuts, len(sizes)))
    return tuple(frozenset(z for _, z in sizes[first:end]) for first, end in ends if first < end)


def _row(f: Factor, groups: Groups) -> int:
    """The group of a factor's switch; -1 if it has no transient use."""
    return -1 if f.extra is None else next((g for g, group in enumerate(groups) if f.scope[0] in group), -1)


def relax_transient(circuit: Circuit, groups: Groups) -> Circuit:
    """The relaxed circuit: a row for each group, then those of the other capacities."""

    def relaxed(f: Factor) -> Factor:
        if f.use is None and f.extra is None:
            return f
        row = _row(f, groups)
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


def unrelaxed(circuit: Circuit, groups: Groups) -> Circuit:
    """The circuit that `relax_transient` relaxed over groups."""

    def plain(f: Factor) -> Factor:
        if f.use is None:
            return f
        key = id(f.use), id(f.extra)
        if key not in uses:
            uses[key] = f.use[..., len(groups) - 1 :].copy()
            uses[key][..., 0] = f.use[..., 0]
            if f.extra is not None and f.scope[0] in groups[0]:
                uses[key][..., 0] -= share(f, groups[0])
        return replace(f, use=uses[key])

    uses: dict[tuple[int, int], Floats] = {}
    rows = circuit.network.capacities[len(groups) - 1 :]
    return with_factors(circuit, rows, [plain(f) for f in circuit.factors])


def relax_region(circuit: Circuit, groups: Groups, region: Region) -> Circuit:
    """The circuit relaxed over a region.

    Its rows are the capacities, then the mean of each group, then two for each count, then the sum of each group.
    """

    def relaxed(f: Factor) -> Factor:
        own = counted.get(f.scope[0], ()) if len(f.scope) == 1 else ()
        if f.use is None and f.extra is None and not own:
            return f
        row = _row(f, groups)
        others = rest.get(id(f), np.zeros(0))
        key = id(f.time), id(f.use), id(f.extra), row, others.tobytes(), own
        if key not in known:
            use = np.zeros((*f.time.shape, width + 2 * len(groups) + 2 * len(region.counts)))
            if f.use is not None:
                use[..., :width] = f.use
                use[..., width : width + len(groups)] = f.use[..., :1]
            if row >= 0:
                use[..., width + row] += share(f, groups[row])
                use[..., row - len(groups)] = f.extra
            time = f.time if f.extra is None else np.where(f.extra + others > interval.high, np.inf, f.time)
            modes = circuit.kept[circuit.domain[f.scope[0]]]
            for k in own:
                count, unit = region.counts[k], _unit(first, groups[region.counts[k].group])
                of_mode = modes == count.mode
                use[..., width + len(groups) + 2 * k] = np.where(of_mode, unit, 0)
                use[..., width + len(groups) + 2 * k + 1] = np.where(of_mode, 0, unit)
                forbidden = of_mode if not count.high else ~of_mode
                if not count.high or count.low == len(groups[count.group]):
                    time = np.where(forbidden, np.inf, time)
            known[key] = time, use
        time, use = known[key]
        return replace(f, time=time, use=use)

    known: dict[tuple[object, ...], tuple[Floats, Floats]] = {}
    rest, interval = _least_rest(circuit), region.interval
    width = len(circuit.network.capacities)
    first, *others = circuit.network.capacities
    numbers = range(len(region.counts))
    counted = {z: tuple(k for k in numbers if z in groups[region.counts[k].group]) for group in groups for z in group}
    limits = [_unit(first, groups[c.group]) * n for c in region.counts for n in (c.high, len(groups[c.group]) - c.low)]
    sums = [len(group) * interval.high for group in groups]
    rows = (first - interval.low, *others, *[first] * len(groups), *limits, *sums)
    return with_factors(circuit, rows, [relaxed(f) for f in circuit.factors])


def _unit(capacity: int, group: frozenset[int]) -> int:
    """The bytes that stand for a switch in rows of counts, whose prices are then of the size of others."""
    return max(1, capacity // len(group))


def _of_switches(circuit: Circuit) -> list[list[tuple[Factor, Floats]]]:
    """The factors with transient use of each switch, and that; equal copies once."""
    found: dict[int, list[tuple[Factor, Floats]]] = {}
    for f in circuit.factors:
        if f.extra is not None:
            found.setdefault(f.scope[0], []).append((f, f.extra))
    return list(found.values())


def _least_rest(circuit: Circuit) -> dict[int, Floats]:
    """For every factor with transient use, by id, what the others of its switch use at least: [modes, 1, ...]."""
    found = {}
    for own in _of_switches(circuit):
        uses = [np.where(f.time < np.inf, extra, np.inf) for f, extra in own]
        least = [use.min(axis=tuple(range(1, use.ndim))) for use in uses]
        for k, (f, _) in enumerate(own):
            rest = sum((m for other, m in enumerate(least) if other != k), np.zeros(len(f.time)))
            found[id(f)] = rest.reshape(-1, *[1] * (f.time.ndim - 1))
    return found


def transient_levels(circuit: Circuit, capacity: int) -> tuple[Interval, ...]:
    """Where the transient use of a switch can lie: disjoint intervals, ascending.

    Uses closer than a small share of the capacity are in one interval.
    """
    apart, found = capacity // _LEVELS, list[Floats]()
    for own in _of_switches(circuit):
        for mode in range(len(own[0][0].time)):
            sums = np.zeros((1, 2))
            for f, extra in own:
                uses = np.unique(extra[mode][f.time[mode] < np.inf])
                sums = _joined((sums[:, None] + uses[None, :, None]).reshape(-1, 2), apart)
            found.append(sums)
    ends = _joined(np.concatenate(found or [np.zeros((1, 2))]), apart).astype(np.int64).tolist()
    return tuple(Interval(low, high) for low, high in ends)


def snapped(interval: Interval, levels: Sequence[Interval]) -> Interval:
    """The interval from the first to the last transient use in it that some level has; empty if none has."""
    met = [Interval(max(interval.low, x.low), min(interval.high, x.high)) for x in levels]
    met = [x for x in met if x.low <= x.high]
    return Interval(met[0].low, met[-1].high) if met else Interval(interval.high + 1, interval.high)


def _joined(intervals: Floats, apart: int) -> Floats:
    """Intervals [N, 2], ascending, those closer than `apart` joined."""
    if not len(intervals):
        return intervals
    intervals = intervals[np.argsort(intervals[:, 0])]
    ends = np.maximum.accumulate(intervals[:, 1])
    starts = np.flatnonzero(np.concatenate([[True], intervals[1:, 0] > ends[:-1] + apart]))
    return np.stack([intervals[starts, 0], np.maximum.reduceat(intervals[:, 1], starts)], axis=1)


def relaxed_use(
    network: Network, groups: Groups, region: Region | None, assignment: Sequence[int], use: Sequence[int]
) -> tuple[int, ...]:
    """What an assignment takes of the rows of a relaxation, over a region or by means, given its `use`."""
    if not groups:
        return tuple(use)
    needs = extras(network, assignment)
    first, sums = use[0] - max(needs.values(), default=0), [sum(needs[z] for z in group) for group in groups]
    means = [first + total // len(group) for total, group in zip(sums, groups, strict=True)]
    if region is None:
        return (*means, *use[1:])
    counts = []
    for count in region.counts:
        group = groups[count.group]
        many, unit = taking(count.mode, group, assignment), _unit(network.capacities[0], group)
        counts += [unit * many, unit * (len(group) - many)]
    return (first, *use[1:], *means, *counts, *sums)


def taking(mode: int, group: frozenset[int], assignment: Sequence[int]) -> int:
    """How many switches of a group take a mode."""
    return sum(assignment[z] == mode for z in group)


def share(f: Factor, group: frozenset[int]) -> Floats:
    """What a factor's transient use adds to the row of its group."""
    assert f.extra is not None
    return f.extra // len(group)


def with_factors(circuit: Circuit, capacities: tuple[int, ...], factors: Sequence[Factor]) -> Circuit:
    """The circuit with other factors of the same scopes and shapes."""
    network = replace(circuit.network, capacities=capacities)
    leaves = tuple(f.narrow() for f in factors)
    return replace(circuit, network=network, factors=tuple(factors), leaves=leaves)
