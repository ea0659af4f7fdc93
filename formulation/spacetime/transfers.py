"""Transfers of a tensor between devices: slice, send and receive, or a collective (SuperScaler, sections 3.3 and 4)."""

from collections import defaultdict
from collections.abc import Callable, Container, Hashable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass

from ...model.machine.machine import Machine
from ..rvd.prices import ROOTED
from ..rvd.search import search
from ..rvd.state import Path, State
from .aligned import match
from .builder import AFTER, START, EventBuilder, Place
from .mask import Box, PTensor, hull, meet
from .materialized import Register
from .regular import Regular, follow, ready, regular
from .supplies import Demand, Supply, Written, components, connected, tied


@dataclass(frozen=True, slots=True)
class Source:
    """A supply on the device that sends it."""

    supply: Supply
    device: int


def distance(machine: Machine | None, a: int, b: int) -> int:
    """The number of machine levels on which two devices are in different units."""
    if machine is None:
        return int(a != b)
    sizes = (machine.devices_below(level) for level in range(len(machine.levels)))
    return sum(a // below != b // below for below in sizes)


def choose(supply: Supply, demands: Iterable[Demand], machine: Machine | None) -> dict[Demand, int]:
    """The sender of a supply to each demand: its own device, else the nearest; ties go to the one that sends least."""
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
    """Adds transfers to a program; `communication` as for `materialize`; `item`: bytes of an element of a tensor."""

    def __init__(
        self,
        builder: EventBuilder,
        written: Written,
        machine: Machine | None,
        communication: str,
        item: Callable[[PTensor], int],
    ) -> None:
        self.builder, self.written, self.machine, self.communication = builder, written, machine, communication
        self.item = item
        self._paths: dict[tuple[State, State, tuple[int, ...], int], Path] = {}

    def all_local(self, demands: Sequence[Demand]) -> bool:
        """Satisfy demands each of which takes of one term that its device writes in time; True if all do."""
        found = []
        for demand in demands:
            if len(demand.terms) > 1 or not demand.terms:
                return False
            ((term, boxes),) = demand.terms.items()
            if self.written.places(term).get(demand.device, demand.at) >= demand.at:
                return False
            found.append((self.written.first(term), demand, term, boxes))
        for _, demand, term, boxes in sorted(found, key=lambda own: own[0]):
            self._take(demand, boxes, self.written.register(term, demand.device), self.written.use(term))
        return True

    def _take(self, demand: Demand, boxes: Sequence[Box], held: Register, use: Hashable) -> None:
        """Give a demand boxes that its device holds; of gradients of fetched parameters copies, to free the rest."""
        if use is not None:
            demand.parts += [(box, self.builder.slice(held, box, START, copied=True)) for box in boxes]
        else:
            demand.parts += [(box, held) for box in boxes]

    def local(self, supply: Supply, remote: Container[Demand] = ()) -> None:
        """Satisfy the demands whose device writes the supply itself, except those in `remote`."""
        for demand, boxes in supply.takers.items():
            if demand in supply.local and demand not in remote:
                self._take(demand, boxes, self.written.sum(supply, demand.device), supply.use)

    def bring(self, found: Sequence[Supply], floor: Place) -> None:
        """Satisfy all demands of the supplies of one tensor."""
        groups = components(found)
        sent = {supply for group in groups for supply in group}
        for supply in found:
            if supply not in sent:
                self.local(supply)
        for group in groups:
            self.component(group, floor)

    def component(self, supplies: Sequence[Supply], floor: Place) -> None:
        """Transfer supplies that share demands, per group of communicating devices, by a collective or by sends."""
        remote = dict.fromkeys(q for supply in supplies for q in supply.takers if q not in supply.local)
        for supply in supplies:
            self.local(supply, remote)
        _among_readers(supplies, {demand.device for demand in remote})
        floor = max(floor, self._floor(supplies))
        if self._path(supplies, list(remote), floor):
            return
        takers: dict[Source, list[Demand]] = defaultdict(list)
        for supply in supplies:
            for demand, device in choose(supply, remote, self.machine).items():
                takers[Source(supply, device)].append(demand)
        for sources in connected(takers):
            flow = {source: takers[source] for source in sources}
            if self.communication == "p2p" or not (self._gather(flow, floor) or self._collective(flow, floor)):
                self._sends(flow, floor)

    def _floor(self, supplies: Sequence[Supply]) -> Place:
        """Where a transfer may begin: no device waits for gradients of a tied weight while it has more to compute."""
        if not tied(supplies):
            return START
        takers = {demand for supply in supplies for demand in supply.takers}
        devices = {demand.device for demand in takers}.union(*(supply.holders for supply in supplies))
        last = self.written.computed(devices)
        return (last, AFTER) if all(last < demand.at for demand in takers) else START

    def _path(self, supplies: Sequence[Supply], demands: Sequence[Demand], floor: Place) -> bool:
        """Transfer along an RVD path if the layouts are regular and it arrives in time; True if done."""
        if self.machine is None or self.communication == "p2p":
            return False
        found = regular(supplies, demands)
        if found is None or (self.communication == "intra" and found.supplies.keys() != found.demands.keys()):
            return False
        path = self._search(found)
        if len(path.steps) == 1 and path.steps[0].messages and path.steps[0].kind not in ROOTED:
            return False  # sends only: of a part of them a collective may match
        times = ready(path, {device: self.written.ready(supply, device) for device, supply in found.supplies.items()})
        if any(times[device] >= demand.at for device, demand in found.demands.items()):
            return False
        held = self._cut(found.supplies, found.region.boxes(found.source), floor)

        def own(device: int, box: Box) -> Register:
            return self._own(found.demands[device], box, floor)

        made = follow(path, found.region, held, self.builder, floor, own)
        for device, box in found.region.boxes(found.target).items():
            found.demands[device].parts.append((box, made[device]))
        return True

    def _cut(self, supplies: Mapping[int, Supply], boxes: Mapping[int, Box], floor: Place) -> dict[int, Register]:
        """Per device, the part of its supply in a box."""
        return {
            device: self.builder.slice(self.written.sum(supply, device), boxes[device], floor, supply.use is not None)
            for device, supply in supplies.items()
        }

    def _own(self, demand: Demand, box: Box, floor: Place) -> Register:
        """The addend of a box that the demand's device has itself, no longer a part of its own; else zeros."""
        for part in demand.parts:
            if part[0] == box:
                demand.parts.remove(part)
                return self.builder.slice(part[1], box, floor)
        return self.builder.zeros(demand.device, demand.read.tensor, box, floor)

    def _search(self, found: Regular) -> Path:
        """The cheapest path, cached for equal transfers of other micro-batches and layers."""
        assert self.machine is not None
        tensor = next(iter(found.demands.values())).read.tensor
        key = (found.source, found.target, found.region.shape, found.region.rest * self.item(tensor))
        if key not in self._paths:
            self._paths[key] = search(*key, self.machine)
        return self._paths[key]

    def _sends(self, flow: Mapping[Source, Sequence[Demand]], floor: Place) -> None:
        """Slice and send every part on its own."""
        for source, demands in flow.items():
            held = self.written.sum(source.supply, source.device)
            cut: dict[Box, Register] = {}
            for demand in demands:
                for box in source.supply.takers[demand]:
                    register = held
                    if demand.device != source.device:
                        if box not in cut:
                            cut[box] = self.builder.slice(held, box, floor)
                        register = self.builder.send(cut[box], demand.device, floor)
                    demand.parts.append((box, register))

    def _gather(self, flow: Mapping[Source, Sequence[Demand]], floor: Place) -> bool:
        """Gather a weight that one device reads on all that keep a part of it, with others of its layer; True if done.

        The others release it at once.
        """
        reading = {demand for taken in flow.values() for demand in taken}
        demand = next(iter(reading))
        own = dict(demand.parts)
        if len(reading) > 1 or len(own) != 1 or not self.builder.graph.of_parameter(demand.read.tensor):
            return False
        boxes = {source.device: source.supply.takers[demand] for source in flow} | {demand.device: tuple(own)}
        if len(boxes) <= len(flow) or any(len(taken) > 1 for taken in boxes.values()):
            return False
        before = {device: box for device, (box,) in boxes.items()}
        whole = hull(list(before.values()))
        pattern = match(before, dict.fromkeys(before, whole))
        if pattern is None:
            return False
        held = self._cut({source.device: source.supply for source in flow}, before, floor)
        held[demand.device] = self._own(demand, before[demand.device], floor)
        made = self.builder.collective(pattern, held, dict.fromkeys(before, whole), floor)
        demand.parts.append((whole, made[demand.device]))
        return True

    def _collective(self, flow: Mapping[Source, Sequence[Demand]], floor: Place) -> bool:
        """Transfer by one collective if every demand takes of every source and a pattern matches; True if done."""
        everyone = dict.fromkeys(demand for taken in flow.values() for demand in taken)
        sources = {source.device: source.supply for source in flow}
        demands = {demand.device: demand for demand in everyone}
        if len(sources) < len(flow) or len(demands) < len(everyone):
            return False
        if any(len(taken) < len(everyone) for taken in flow.values()):
            return False
        given: dict[int, list[Box]] = defaultdict(list)
        got: dict[int, list[Box]] = defaultdict(list)
        for source, taken in flow.items():
            for demand in taken:
                given[source.device] += source.supply.takers[demand]
                got[demand.device] += source.supply.takers[demand]
        before, after = ({device: hull(boxes) for device, boxes in side.items()} for side in (given, got))
        for device, supply in sources.items():
            if any(supply.takers.get(q) != (meet(before[device], after[q.device]),) for q in everyone):
                return False
        pattern = match(before, after)
        if pattern is None or (self.communication == "intra" and before.keys() != after.keys()):
            return False
        held = self._cut(sources, before, floor)
        if pattern.kind == "reduce" and pattern.group[0] not in held:
            (demand,) = everyone
            held[demand.device] = self._own(demand, after[demand.device], floor)
        made = self.builder.collective(pattern, held, after, floor)
        for device, demand in demands.items():
            demand.parts.append((after[device], made[device]))
        return True


def _among_readers(supplies: Iterable[Supply], readers: Set[int]) -> None:
    """Leave out holders that read nothing, if the readers have all supplies among them, and each has some."""
    if readers <= {device for supply in supplies for device in supply.holders} and all(
        not readers.isdisjoint(supply.holders) for supply in supplies
    ):
        for supply in supplies:
            supply.holders = tuple(device for device in supply.holders if device in readers)
