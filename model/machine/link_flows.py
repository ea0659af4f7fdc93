"""How long messages between devices take that flow at the same time and share links.

A message goes over the link of the sender's unit and over that of the receiver's unit on every level on which they are
in different units; where a level is wired, over its links and switches. The busiest resource decides.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from .machine import Level, Machine
from .wiring import Switch, Wiring

Numbers = NDArray[np.int64]


def busiest(machine: Machine, source: Numbers, target: Numbers, size: NDArray[np.float64]) -> float:
    """Seconds until every device `source[i]` has sent `size[i]` bytes to `target[i]`."""
    seconds = 0.0
    for number, level in enumerate(machine.levels):
        below = machine.devices_below(number)
        sender, receiver = source // below, target // below
        apart = sender != receiver
        if apart.any():
            work = _switch if level.wiring is None else _wired
            seconds = max(seconds, work(level, sender[apart], receiver[apart], size[apart]))
    return seconds


def streamed(machine: Machine, source: Numbers, target: Numbers, size: float, after: Numbers) -> float:
    """Seconds until all messages of `size` bytes have come, if each starts when message `after[i]` has (-1: at once).

    Those under way share every resource fairly, as TCP does. For a few hundred messages.
    """
    load = _loads(machine, source, target)
    left, arrived, seconds = np.full(len(source), size), np.zeros(len(source), np.bool_), 0.0
    while not arrived.all():
        going = np.flatnonzero(~arrived & ((after < 0) | arrived[after]))
        rate = _fair(load[going])
        needs = left[going] / rate
        step = float(needs.min())
        # Never none: whatever rounding does, the first to come is among them.
        come = needs <= step * (1 + 1e-9)
        arrived[going[come]] = True
        left[going[~come]] -= rate[~come] * step
        seconds += step
    return seconds


def _fair(load: NDArray[np.float64]) -> NDArray[np.float64]:
    """[messages]: bytes/s that each has if all grow alike until a resource is full ("max-min fair")."""
    rate, free = np.zeros(len(load)), np.ones(load.shape[1])
    open_ = np.ones(len(load), np.bool_)
    while open_.any():
        wanted = load[open_].sum(axis=0)
        used = np.flatnonzero(wanted)
        if not len(used):
            rate[open_] = np.inf
            break
        with np.errstate(over="ignore"):  # what is as good as free has an infinite rate
            grows = free[used] / wanted[used]
        more = float(grows.min())
        rate[open_] += more
        free[used] = np.maximum(free[used] - wanted[used] * more, 0.0)
        open_ &= ~(load[:, used[grows <= more * (1 + 1e-9)]] > 0).any(axis=1)
    return rate


def _loads(machine: Machine, source: Numbers, target: Numbers) -> NDArray[np.float64]:
    """[messages, resources]: seconds that a byte of every message takes of every resource."""
    columns = []
    for number, level in enumerate(machine.levels):
        below = machine.devices_below(number)
        sender, receiver = source // below, target // below
        apart = sender != receiver
        parents, places = (sender // level.size, receiver // level.size), (sender % level.size, receiver % level.size)
        if level.wiring is None:
            table = routes(Wiring((), (Switch(1, level.bandwidth),)), level.size)
        else:
            table = routes(level.wiring, level.size)
        leaves = parents[0] != parents[1]
        up = table[places[0], np.where(leaves, level.size, places[1])] * apart[:, None]
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
    # A message within one unit of the next outer level is one entry there; any other is one entry at either end.
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
    """[size + 1, size + 1, resources]: seconds that a byte from one unit to another takes of every resource.

    Number `size` stands for everything outside. A resource is one direction of a link or of an uplink, an uplink, or
    the shared medium.
    """
    columns: list[NDArray[np.float64]] = []

    def resource(used: NDArray[np.bool_], bandwidth: float) -> None:
        columns.append(used / bandwidth)

    places = np.arange(size + 1)
    source, target = np.meshgrid(places, places, indexing="ij")
    climbs = source != target
    for link in wiring.links:
        for a, b in link.pairs:
            for ends in ((a, b), (b, a)):
                only = (source == ends[0]) & (target == ends[1])
                climbs &= ~only
                resource(only, link.bandwidth)
    for switch in wiring.switches:
        for first in range(0, size, switch.units):
            here, there = ((x >= first) & (x < first + switch.units) for x in (source, target))
            up, down = climbs & here & ~there, climbs & ~here & there
            for used in (up, down) if switch.duplex else (up | down,):
                resource(used, switch.bandwidth)
    if wiring.shared is not None:
        resource(climbs, wiring.shared)
    return np.stack(columns, axis=-1) if columns else np.zeros((size + 1, size + 1, 1))
