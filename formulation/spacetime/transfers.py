"""Transfers of a tensor between devices: split, send and receive, or a collective (SuperScaler, sections 3.3 and 4)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ...model.cost import ITEMSIZE
from ...model.machine import Machine
from ..rvd.path import Path
from ..rvd.search import search
from ..rvd.state import State
from .aligned import match
from .builder import Builder, Place
from .mask import Box, meet
from .program import Register
from .regular import Regular, follow, ready, regular
from .supplies import Demand, Supply, Written, connected, hull


@dataclass(frozen=True, slots=True)
class Source:
    """A supply on the device that gives it."""

    supply: Supply
    device: int


def distance(machine: Machine | None, a: int, b: int) -> int:
    """In how many of a machine's levels two devices are in different units."""
    if machine is None:
        return int(a != b)
    sizes = (machine.devices_below(level) for level in range(len(machine.levels)))
    return sum(a // below != b // below for below in sizes)


def choose(supply: Supply, demands: Iterable[Demand], machine: Machine | None) -> dict[Demand, int]:
    """Which device gives a supply to each demand: its own, or the nearest, of these the one that gives least often."""
    found: dict[Demand, int] = {}
    given: dict[int, int] = defaultdict(int)
    for demand in sorted((q for q in demands if q in supply.takers), key=lambda q: q.device):
        if demand in supply.local:
            found[demand] = demand.device
            continue
        found[demand] = min(supply.holders, key=lambda p: (distance(machine, p, demand.device), given[p], p))
        given[found[demand]] += 1
    return found


class Transfers:
    """Writes transfers into a program; `communication` as for `materialize`."""

    def __init__(self, builder: Builder, written: Written, machine: Machine | None, communication: str) -> None:
        self.builder, self.written, self.machine, self.communication = builder, written, machine, communication
        self._paths: dict[tuple[State, State, tuple[int, ...], int], Path] = {}

    def local(self, supply: Supply) -> None:
        """Parts of demands whose device writes a supply itself."""
        for demand in supply.local:
            self._give(demand, supply, self.written.sum(supply, demand.device))

    def _give(self, demand: Demand, supply: Supply, register: Register) -> None:
        demand.parts += [(box, register) for box in supply.takers[demand]]

    def component(self, supplies: Sequence[Supply], floor: Place) -> None:
        """Supplies that share demands: each group of devices that exchange something, as a collective or by sends."""
        remote = dict.fromkeys(q for supply in supplies for q in supply.takers if q not in supply.local)
        for supply in supplies:
            for demand in supply.local:
                if demand not in remote:
                    self._give(demand, supply, self.written.sum(supply, demand.device))
        if self._path(supplies, list(remote), floor):
            return
        takers: dict[Source, list[Demand]] = defaultdict(list)
        for supply in supplies:
            for demand, device in choose(supply, remote, self.machine).items():
                takers[Source(supply, device)].append(demand)
        for sources in connected(takers):
            flow = {source: takers[source] for source in sources}
            if self.communication == "p2p" or not self._collective(flow, floor):
                self._sends(flow, floor)

    def _path(self, supplies: Sequence[Supply], demands: Sequence[Demand], floor: Place) -> bool:
        """A path that the search finds, where the layouts are regular and it is there in time: whether one was."""
        if self.machine is None or self.communication == "p2p":
            return False
        found = regular(supplies, demands)
        if found is None or (self.communication == "intra" and found.supplies.keys() != found.demands.keys()):
            return False
        path = self._search(found)
        if len(path.steps) == 1 and path.steps[0].messages:
            return False  # nothing but sends: maybe a broadcast
        held = {device: self.written.sum(supply, device) for device, supply in found.supplies.items()}
        times = ready(path, {device: self.builder.ready[register.number][0] for device, register in held.items()})
        if any(times[device] >= demand.at for device, demand in found.demands.items()):
            return False
        boxes = found.region.boxes(found.source)
        cut = {device: self.builder.slice(register, boxes[device], floor) for device, register in held.items()}
        made = follow(path, found.region, cut, self.builder, floor)
        for device, box in found.region.boxes(found.target).items():
            found.demands[device].parts.append((box, made[device]))
        return True

    def _search(self, found: Regular) -> Path:
        """The cheapest path; equal transfers of other micro-batches and layers have the same."""
        assert self.machine is not None
        node = self.builder.graph.pcg.nodes[next(iter(found.demands.values())).read.tensor.node]
        key = (found.source, found.target, found.region.shape, found.region.rest * ITEMSIZE[node.dtype])
        if key not in self._paths:
            self._paths[key] = search(*key, self.machine)
        return self._paths[key]

    def _sends(self, flow: Mapping[Source, Sequence[Demand]], floor: Place) -> None:
        """Every part is cut out and sent on its own."""
        for source, demands in flow.items():
            held = self.written.sum(source.supply, source.device)
            for demand in demands:
                for box in source.supply.takers[demand]:
                    register = held
                    if demand.device != source.device:
                        register = self.builder.send(self.builder.slice(held, box, floor), demand.device, floor)
                    demand.parts.append((box, register))

    def _collective(self, flow: Mapping[Source, Sequence[Demand]], floor: Place) -> bool:
        """One collective for all, where a pattern fits: whether one did."""
        sources = {source.device: source for source in flow}
        everyone = set().union(*flow.values())
        demands = {demand.device: demand for demand in everyone}
        if len(sources) < len(flow) or len(demands) < len(everyone):
            return False
        given: dict[int, list[Box]] = defaultdict(list)
        got: dict[int, list[Box]] = defaultdict(list)
        for source, taken in flow.items():
            for demand in taken:
                given[source.device] += source.supply.takers[demand]
                got[demand.device] += source.supply.takers[demand]
        before, after = ({device: hull(boxes) for device, boxes in side.items()} for side in (given, got))
        for source, taken in flow.items():  # everyone takes its part of all, once
            if len(taken) < len(everyone) or any(
                source.supply.takers[q] != (meet(before[source.device], after[q.device]),) for q in taken
            ):
                return False
        pattern = match(before, after)
        if pattern is None or (self.communication == "intra" and before.keys() != after.keys()):
            return False
        held = {
            device: self.builder.slice(self.written.sum(source.supply, device), before[device], floor)
            for device, source in sources.items()
        }
        made = self.builder.collective(pattern, held, after, floor)
        for device, demand in demands.items():
            demand.parts.append((after[device], made[device]))
        return True
