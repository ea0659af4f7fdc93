"""The time of simultaneous messages between devices that share links.

A message loads the links of the sender's and of the receiver's unit on every level where these units differ; on a
wired level it loads the resources on its route. The busiest resource decides.
"""

from collections.abc import Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

from .collective_patterns import Shape
from .link_kinds import Switch
from .machine import Level, Machine
from .wiring import Wiring

Numbers = NDArray[np.int64]


def busiest(machine: Machine, source: Numbers, target: Numbers, size: NDArray[np.float64]) -> float:
    """Seconds until every device `source[i]` has sent `size[i]` bytes to `target[i]`."""
    seconds = 0.0
    for number, level in enumerate(machine.levels):
        below = machine.devices_below(number)
        sender, receiver = source // below, target // below
        crosses = sender != receiver
        if crosses.any():
            busy = _switch if level.wiring is None else _wired
            seconds = max(seconds, busy(level, sender[crosses], receiver[crosses], size[crosses]))
    return seconds


def busiest_of_groups(machine: Machine, groups: Numbers, shape: Shape) -> float:
    """Seconds per byte per member until all groups [groups, members] have sent the messages of a shape at once."""
    share = np.broadcast_to(shape.share, (len(groups), len(shape.share))).ravel()
    return busiest(machine, groups[:, shape.source].ravel(), groups[:, shape.target].ravel(), share)


def streamed(machine: Machine, source: Numbers, target: Numbers, size: float, after: Numbers) -> float:
    """Seconds until all messages of `size` bytes have arrived, each starting when message `after[i]` has (-1: at once).

    Messages under way share every resource fairly, as TCP does. Meant for a few hundred messages.
    """
    load = _loads(machine, source, target)
    left, arrived, seconds = np.full(len(source), size), np.zeros(len(source), np.bool_), 0.0
    while not arrived.all():
        going = np.flatnonzero(~arrived & ((after < 0) | arrived[after]))
        rate = _fair(load[going])
        needs = left[going] / rate
        step = float(needs.min())
        # Never empty: the first to arrive is among them, whatever the rounding.
        done = needs <= step * (1 + 1e-9)
        arrived[going[done]] = True
        left[going[~done]] -= rate[~done] * step
        seconds += step
    return seconds


def streamed_of_groups(machine: Machine, groups: Numbers, shapes: Sequence[Shape]) -> float:
    """Seconds per byte per member until all groups [groups, members] have sent shapes whose rounds overlap.

    A member starts the sends of all shapes once it has the data, which it receives once; the first has it from the
    start.
    """
    source, target = (np.concatenate([getattr(shape, end) for shape in shapes]) for end in ("source", "target"))
    arrival = np.full(groups.shape[1], -1)  # index of the message that delivers a member's data
    arrival[target] = np.arange(len(target))
    first = len(target) * np.arange(len(groups))[:, None]
    after = np.where(arrival[source] < 0, -1, arrival[source] + first)
    return streamed(machine, groups[:, source].ravel(), groups[:, target].ravel(), 1.0, after.ravel())


def _fair(load: NDArray[np.float64]) -> NDArray[np.float64]:
    """[messages]: max-min fair rates in bytes/s: all grow alike until a resource is full."""
    rate, free = np.zeros(len(load)), np.ones(load.shape[1])
    open_ = np.ones(len(load), np.bool_)
    while open_.any():
        wanted = load[open_].sum(axis=0)
        used = np.flatnonzero(wanted)
        if not len(used):
            rate[open_] = np.inf
            break
        with np.errstate(over="ignore"):  # rates on resources that are as good as free are infinite
            grows = free[used] / wanted[used]
        more = float(grows.min())
        rate[open_] += more
        free[used] = np.maximum(free[used] - wanted[used] * more, 0.0)
        open_ &= ~(load[:, used[grows <= more * (1 + 1e-9)]] > 0).any(axis=1)
    return rate


def _loads(machine: Machine, source: Numbers, target: Numbers) -> NDArray[np.float64]:
    """[messages, resources]: seconds of the resource that a byte of the message takes."""
    columns = []
    for number, level in enumerate(machine.levels):
        below = machine.devices_below(number)
        sender, receiver = source // below, target // below
        crosses = sender != receiver
        parents, places = (sender // level.size, receiver // level.size), (sender % level.size, receiver % level.size)
        if level.wiring is None:
            table = routes(Wiring((Switch(level.bandwidth, 1),)), level.size)
        else:
            table = routes(level.wiring, level.size)
        leaves = parents[0] != parents[1]
        up = table[places[0], np.where(leaves, level.size, places[1])] * crosses[:, None]
        down = table[np.full_like(places[1], level.size), places[1]] * leaves[:, None]
        for unit in np.unique(np.concatenate(parents)):
            columns.append(up * (parents[0] == unit)[:, None] + down * (parents[1] == unit)[:, None])
    return np.concatenate(columns, axis=1)


def _switch(level: Level, sender: Numbers, receiver: Numbers, size: NDArray[np.float64]) -> float:
    return float(max(np.bincount(end, size).max() for end in (sender, receiver))) / level.bandwidth


def _wired(level: Level, sender: Numbers, receiver: Numbers, size: NDArray[np.float64]) -> float:
    assert level.wiring is not None
    of_pair = routes(level.wiring, level.size)
    outside, places = level.size, level.size + 1
    parents = sender // outside, receiver // outside
    sent, received = sender % outside, receiver % outside
    leaves = parents[0] != parents[1]
    # A message inside a unit of the next outer level is one entry there; any other message is one at either end.
    entries = np.concatenate(
        [
            (parents[0] * places + sent) * places + np.where(leaves, outside, received),
            ((parents[1] * places + outside) * places + received)[leaves],
        ]
    )
    units = int(max(parents[0].max(), parents[1].max())) + 1
    load = np.bincount(entries, np.concatenate([size, size[leaves]]), units * places**2)
    return float((load.reshape(units, -1) @ of_pair.reshape(places**2, -1)).max())


@cache
def routes(wiring: Wiring, size: int) -> NDArray[np.float64]:
    """[size + 1, size + 1, resources]: seconds of each resource that a byte from one unit to another takes.

    Unit number `size` stands for everything outside. See `link_kinds` for the resources of every kind of link.
    """
    places = np.arange(size + 1)
    source, target = np.meshgrid(places, places, indexing="ij")
    climbs = source != target
    for a, b in (pair for link in wiring.links for pair in link.direct):
        climbs &= ~(((source == a) & (target == b)) | ((source == b) & (target == a)))
    columns = [used / link.bandwidth for link in wiring.links for used in link.resources(size, source, target, climbs)]
    return np.stack(columns, axis=-1) if columns else np.zeros((size + 1, size + 1, 1))
