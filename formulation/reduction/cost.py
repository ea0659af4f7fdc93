"""Prices of the steps of a reduction program: messages over the links that all groups share (P², section 5).

All groups of all reduction groups run a step at once. On a machine whose levels are all switches, the link of a unit of
level l carries what one group sends through it, times the number of groups that cross the unit:

    prod over machine levels q > l of  (devices at q outside the reduction)
                                     * (1 where the step's groups spread over q or only digit 0 takes part, else the
                                        reduction's size there)

and the step takes as long as its busiest link, plus hops and one launch. If a level is wired, every message of every
group is routed over links and switches instead; on a machine of switches both computations agree. So are the groups of
a reduction whose members are numbered by its axes: they may span more levels than their step names.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ...model.errors import PartitaError
from ...model.machine.collective_patterns import MOST_STREAMED, PATTERNS, STREAMED, Pattern, Shape
from ...model.machine.collective_price import FREE, CollectivePrice
from ...model.machine.link_flows import busiest_of_groups, streamed_of_groups
from ...model.machine.machine import LIBRARIES, PROFILES, Machine
from .program import Collective, Reduction, ReductionProgram, Step

Over: TypeAlias = tuple[int, int, tuple[int, ...]]
"""First and last level of a step, and the levels on which only digit 0 takes part."""


def step_price(
    machine: Machine, reduction: Reduction, step: Step, share: float, profile: str | None = None
) -> CollectivePrice:
    """Price of one step, launch included, as a line in D0, the bytes of a device before the reduction.

    `share`: the fraction of D0 on a device before the step (all-gather: after it). PartitaError: an unknown profile, a
    reduction of another machine, a step outside the reduction's levels.
    """
    return _line(machine, reduction, (step.first, step.last, step.zero), step.collective, profile).of_share(share)


def exchange_price(
    machine: Machine, reduction: Reduction, kind: Literal["all_to_all", "send"], profile: str | None = None
) -> CollectivePrice:
    """Price, launch included, of an all-to-all in every group or of sending to the next member.

    A line in the bytes of a device before the all-to-all, or sent. Free for a group of one device.
    """
    depth = len(reduction.sizes)
    return _line(machine, reduction, (0, depth - 1, ()), kind, profile) if depth else FREE


def program_price(
    machine: Machine, reduction: Reduction, program: ReductionProgram, profile: str | None = None
) -> CollectivePrice:
    """Total price of the steps."""
    steps = with_shares(program, reduction.sizes)
    return sum((step_price(machine, reduction, step, share, profile) for step, share in steps), FREE)


def with_shares(program: ReductionProgram, sizes: Sequence[int], share: float = 1.0) -> Iterator[tuple[Step, float]]:
    """Every step with the share of the buffer on a member before it (all-gather: after it).

    A reduce-scatter in groups of m divides the share by m; an all-gather multiplies it. `share`: before the first step.
    """
    for step in program:
        members = math.prod(sizes[step.first : step.last + 1])
        if step.collective is Collective.ALL_GATHER:
            share *= members
        yield step, share
        if step.collective is Collective.REDUCE_SCATTER:
            share /= members


def _line(machine: Machine, reduction: Reduction, over: Over, kind: str, profile: str | None) -> CollectivePrice:
    """Price for a share of 1."""
    machine = machine.carrying(kind)
    name, row = profile or LIBRARIES[machine.collectives][0], reduction.row
    _check(machine, row, over, name)
    if reduction.numbering == "axes":
        return listed(machine, reduction, over, kind, name)
    if (name, kind) in STREAMED and over[0] < over[1] and reduction.placement.devices <= MOST_STREAMED:
        return _streamed(machine, reduction, over, kind, name)
    wired = any(level.wiring for level in machine.levels[reduction.machine_levels[over[0]] :])
    return routed(machine, reduction, over, kind, name) if wired else symmetric(machine, row, over, kind, name)


@cache
def _streamed(machine: Machine, reduction: Reduction, over: Over, kind: str, profile: str) -> CollectivePrice:
    """Price for a share of 1 when the rounds of a collective overlap on the links."""
    members = _members(reduction, over)
    phases = PATTERNS[profile][kind](reduction.sizes[over[0] : over[1] + 1], 0)
    seconds = streamed_of_groups(machine, members, [phase.shape for phase in phases])
    return CollectivePrice(routed(machine, reduction, over, kind, profile).latency_ns, 1e9 * seconds)


@cache
def symmetric(machine: Machine, row: tuple[int, ...], over: Over, kind: str, profile: str) -> CollectivePrice:
    """Price for a share of 1 if every level is a switch: all units of a level carry equal traffic."""
    levels = [level for level, m in enumerate(row) if m > 1]
    first, last, zero = over
    spread, alone = levels[first : last + 1], [levels[i] for i in zero]

    def seconds(shape: Shape) -> float:
        most = 0.0
        for level in range(spread[0], len(row)):
            inside = math.prod(row[q] for q in spread if q > level)
            groups = math.prod(
                machine.hierarchy[q] // (row[q] if q in spread or q in alone else 1) for q in range(level + 1, len(row))
            )
            most = max(most, _through(shape, inside) * groups / machine.levels[level].bandwidth)
        return most

    return _price(machine, row, spread, PATTERNS[profile][kind], seconds)


@cache
def routed(machine: Machine, reduction: Reduction, over: Over, kind: str, profile: str) -> CollectivePrice:
    """Price for a share of 1 on any machine, routing the messages of all groups."""
    groups = _members(reduction, over)
    spread = list(reduction.machine_levels[over[0] : over[1] + 1])
    seconds = partial(busiest_of_groups, machine, groups)
    return _price(machine, reduction.row, spread, PATTERNS[profile][kind], seconds)


@cache
def listed(machine: Machine, reduction: Reduction, over: Over, kind: str, profile: str) -> CollectivePrice:
    """Price for a share of 1 of a reduction whose members are numbered by axes."""
    return price_of_groups(machine, _members(reduction, over), kind, profile)


def price_of_groups(
    machine: Machine, groups: NDArray[np.int64], kind: str, profile: str | None = None
) -> CollectivePrice:
    """Price, launch included, of a collective in groups [groups, members] that are given by their devices alone.

    NCCL orders a ring by the machine, not by the list of devices, so it passes every unit once. It starts at the
    group's first device, which is the lowest. PartitaError: units of one level have unequal parts of a group.
    """
    machine = machine.carrying(kind)
    groups = np.sort(groups, axis=1)
    row: list[int] = []
    for level in range(len(machine.levels)):
        units = groups // machine.devices_below(level)
        count = len(np.unique(units[0]))
        parts = units.reshape(len(groups), count, -1) if groups.shape[1] % count == 0 else units[:, None]
        if (parts != parts[:, :, :1]).any():
            raise PartitaError(
                f"units of {machine.name} have unequal parts of the groups of a step, such as of devices "
                f"{', '.join(map(str, groups[0]))}, which has no price; number members by levels"
            )
        row.append(count // math.prod(row))
    spread = [level for level, size in enumerate(row) if size > 1]
    pattern = PATTERNS[profile or LIBRARIES[machine.collectives][0]][kind]
    return _price(machine, tuple(row), spread, pattern, partial(busiest_of_groups, machine, groups))


def _members(reduction: Reduction, over: Over) -> NDArray[np.int64]:
    """[groups, members]: the devices of all groups of a step, level-major."""
    sizes = reduction.sizes
    first, last, zero = over
    digits = reduction.members().reshape(-1, *sizes)
    for level in zero:
        digits = digits.take([0], axis=level + 1)
    inner = range(first + 1, last + 2)
    outer = [axis for axis in range(digits.ndim) if axis not in inner]
    return digits.transpose(*outer, *inner).reshape(-1, math.prod(sizes[first : last + 1]))


def _price(
    machine: Machine, row: tuple[int, ...], spread: list[int], pattern: Pattern, seconds: Callable[[Shape], float]
) -> CollectivePrice:
    """Launch, hops and phases' bytes; `seconds(shape)`: time per byte per device."""
    phases = pattern(tuple(row[level] for level in spread), sum(level <= machine.node_level for level in spread))
    delay = [machine.latency_ns(level) for level in spread]
    hops = sum(x.laps * sum(n * ns for n, ns in zip(x.shape.hops, delay, strict=True)) for x in phases)
    return CollectivePrice(machine.device.launch_ns + hops, 1e9 * sum(x.share * seconds(x.shape) for x in phases))


@cache
def _through(shape: Shape, inside: int) -> float:
    """Maximum sent or received by a unit of `inside` consecutive members, in D."""
    source, target = shape.source // inside, shape.target // inside
    remote = source != target
    return float(max(np.bincount(end[remote], shape.share[remote], 1).max() for end in (source, target)))


def _check(machine: Machine, row: tuple[int, ...], over: Over, profile: str) -> None:
    if profile not in PROFILES:
        raise PartitaError(f"unknown collectives {profile!r:.60}; known: {', '.join(PROFILES)}")
    if len(row) != len(machine.levels) or any(h % m for h, m in zip(machine.hierarchy, row, strict=True)):
        raise PartitaError(
            f"a reduction over {row} units does not fit the hierarchy {machine.hierarchy} of {machine.name}"
        )
    depth = sum(m > 1 for m in row)
    first, last, zero = over
    if not 0 <= first <= last < depth or any(not 0 <= level < depth or first <= level <= last for level in zero):
        raise PartitaError(f"a step over levels {first} to {last} (0 of {zero}) of a reduction that has {depth} levels")
