"""Demands and supplies of the parts of a tensor (SuperScaler, section 3.3, step 1).

A demand is a vTensor that tasks of one device read; its value is the sum of terms, the vTensors that its producers
write. Terms of one box with the same writing devices and the same demands form one supply: they are added up before
they are sent, so the gradients of micro-batches are sent once. Gradients of a parameter that is fetched for each use
are sent for each use, so that no device keeps more of the sum than of the parameter.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import TypeVar

from .builder import START, WITH, EventBuilder, Part
from .mask import GRADIENT, Box, VTensor, hull, meet, within
from .materialized import Register
from .op import COMPUTES, Op, Phase
from .tasks import Need, Tasks, Via, stored_boxes

Item = TypeVar("Item")


@dataclass(eq=False, slots=True)
class Demand:
    """A vTensor that tasks of `device` read, first at `at` in the order.

    `terms`: the boxes taken of each term. `parts`: the pieces received. `within`: a larger demand of the device that
    contains it and is sliced instead.
    """

    device: int
    read: VTensor
    at: int
    terms: dict[VTensor, tuple[Box, ...]] = field(default_factory=dict)
    parts: list[Part] = field(default_factory=list)
    within: Demand | None = None

    @property
    def box(self) -> Box:
        return self.read.mask.box


@dataclass(eq=False, slots=True)
class Supply:
    """Terms that are added up on every device that writes them.

    `holders` have them in time for every remote demand; `local` demands lie on devices that write them in time.
    `takers`: the boxes taken by each demand. `merged`: the supplies that this one combines, adjacent or overlapping.
    `use`: the use of a fetched parameter whose gradient this is.
    """

    box: Box
    holders: tuple[int, ...]
    local: frozenset[Demand]
    takers: dict[Demand, tuple[Box, ...]]
    terms: list[VTensor] = field(default_factory=list)
    merged: list[Supply] = field(default_factory=list)
    sums: dict[int, Register] = field(default_factory=dict)
    use: Hashable = None


class Written:
    """The vTensors that tasks write, by whom and when, and the registers of those that are read."""

    def __init__(self, order: Sequence[Op], tasks: Tasks, builder: EventBuilder) -> None:
        self.builder, self.writes = builder, tasks.writes
        self.at = {op: place for place, op in enumerate(order)}
        self.at |= {op: self.at[met.ops[0]] for op, met in tasks.meetings.items()}  # they are one event
        self.by_op = {(op, w.tensor, w.via): w for op in order for w in self.writes[op]}
        self._writers: dict[VTensor, dict[int, Op]] = defaultdict(dict)
        for op in order:
            for written in self.writes[op]:
                self._writers[written].setdefault(device(op), op)
        self._places: dict[VTensor, dict[int, int]] = {}
        self._terms: dict[object, tuple[VTensor, ...]] = {}
        self._registers: dict[tuple[Op, VTensor], Register] = {}
        self._stored = stored_boxes(op for op in order if op.phase is Phase.STORE)
        self._last = defaultdict[int, int](int)  # by device, the place of the last task that computes
        self._last |= {device(op): place for op, place in self.at.items() if op.phase in COMPUTES}
        self.turns: dict[Op, int] = {}  # which part of its node on its device a task is, from 0
        turns: dict[object, int] = defaultdict(int)
        for op in order:
            self.turns[op] = turns[op.device, op.phase, op.node] = turns[op.device, op.phase, op.node] + 1

    def computed(self, devices: Iterable[int]) -> int:
        """The place after which these devices compute no more."""
        return max(self._last[on] for on in devices)

    def use(self, term: VTensor) -> Hashable:
        """The use of a parameter whose gradient a term is, if that is summed for every use.

        It is where no writer keeps all of the parameter's part, and where the plan shards gradients that several
        devices sum (`shard_gradients`); what one device has all of, it adds up in place.
        """
        if not self.builder.graph.of_parameter(term.tensor, GRADIENT):
            return None
        kept = (box for at in self._writers[term] for box in self._stored[term.tensor.node, at])
        if any(within(term.mask.box, box) for box in kept) and self._addends(term) not in self._divided:
            return None
        return self._use(term)

    def _use(self, term: VTensor) -> Hashable:
        first = next(iter(self._writers[term].values()))
        return None if term.tensor.node in self.builder.graph.shared else term.via, self.turns[first]

    def _addends(self, term: VTensor) -> Hashable:
        """Equal for the terms of a use that have one box."""
        return term.tensor, term.mask.box, self._use(term)

    @cached_property
    def _divided(self) -> frozenset[Hashable]:
        """Of parameters whose gradients the plan shards, the addends that no device has all of."""
        devices: dict[Hashable, list[set[int]]] = defaultdict(list)
        for term, writers in self._writers.items():
            if term.tensor.kind == GRADIENT and term.tensor.node in self.builder.graph.scattered:
                devices[self._addends(term)].append({*writers})
        return frozenset(key for key, own in devices.items() if not set.intersection(*own))

    def by_producers(self, need: Need) -> tuple[VTensor, ...]:
        """The different vTensors that the producers of a need write."""
        key = need.producers, need.tensor, need.via
        if key not in self._terms:
            terms = (self.by_op[op, need.tensor, need.via] for op in need.producers)
            self._terms[key] = tuple({id(term): term for term in terms}.values())
        return self._terms[key]

    def writers(self, term: VTensor) -> Mapping[int, Op]:
        """The first writer of a term on each device."""
        return self._writers[term]

    def places(self, term: VTensor) -> Mapping[int, int]:
        """The place of each device's first writer of a term."""
        if term not in self._places:
            self._places[term] = {device: self.at[op] for device, op in self._writers[term].items()}
        return self._places[term]

    def first(self, term: VTensor) -> int:
        """The place of the first of all writers of a term, whose devices are in their order."""
        return self.at[next(iter(self._writers[term].values()))]

    def register(self, term: VTensor, on: int) -> Register:
        """The register of a term on a device."""
        op = self._writers[term][on]
        if (op, term) not in self._registers:
            place = (self.at[op], WITH)
            made = self.builder.register(on, term.tensor, term.mask, term.via, place)
            self._registers[op, term] = made
        return self._registers[op, term]

    def outputs(self, op: Op) -> tuple[Register | None, ...]:
        """The registers that a task writes; None if unread."""
        return tuple(self._registers.get((op, written)) for written in self.writes[op])

    def ready(self, supply: Supply, on: int) -> int:
        """The place at which a device has all terms of a supply."""
        if on in supply.sums:
            return self.builder.ready[supply.sums[on].number][0]
        inner = [self.ready(one, on) for one in supply.merged]
        return max(inner + [self.at[self._writers[term][on]] for term in supply.terms])

    def sum(self, supply: Supply, on: int) -> Register:
        """The sum of the terms of a supply on a device."""
        if on not in supply.sums and supply.merged:
            parts = [(inner.box, self.sum(inner, on)) for inner in supply.merged]
            supply.sums[on] = self.builder.assemble(on, parts[0][1].tensor, supply.box, parts, START)
        elif on not in supply.sums:
            supply.sums[on] = self._sum([self.register(term, on) for term in supply.terms])
        return supply.sums[on]

    def _sum(self, registers: list[Register]) -> Register:
        tensor = registers[0].tensor
        if len(registers) == 1:
            return registers[0]
        if self.builder.graph.of_parameter(tensor, GRADIENT):
            return self.builder.accumulate(registers)
        first, *others = sorted(registers, key=lambda r: self.builder.ready[r.number])
        for other in others:  # not in place: several inputs may share a gradient
            first = self.builder.add((first, other), (-1, WITH))
        return first


def device(op: Op) -> int:
    assert op.device is not None, op
    return op.device


def demand_of(task: Op, read: VTensor, needs: Iterable[Need], written: Written, chosen: Mapping[Need, Op]) -> Demand:
    """The demand of a task for a vTensor, from its needs."""
    found = Demand(device(task), read, written.at[task])
    cells: dict[VTensor, list[Box]] = defaultdict(list)
    for need in needs:
        cells[_term(need, found, written, chosen)].append(need.box)
    for term, boxes in cells.items():
        shared = _shared(term.mask.box, found.box)
        whole = boxes == [shared] or sum(map(volume, boxes)) == volume(shared)
        found.terms[term] = (shared,) if whole else tuple(boxes)
    return found


def _term(need: Need, demand: Demand, written: Written, chosen: Mapping[Need, Op]) -> VTensor:
    """The vTensor that serves a need: the one on the demand's own device, else the chosen producer's."""
    terms = written.by_producers(need)
    if len(terms) == 1:
        return terms[0]
    for term in terms:
        if _own(demand, term, written):
            return term
    return written.by_op[chosen[need], need.tensor, need.via]


def _shared(a: Box, b: Box) -> Box:
    shared = a if a == b else meet(a, b)
    assert shared is not None, (a, b)
    return shared


def volume(box: Box) -> int:
    """Entries in a box."""
    return prod(stop - start for start, stop in box)


def nested(demands: Iterable[Demand], written: Written) -> list[Demand]:
    """Demands not contained in another demand of their device, so that nothing is received twice.

    A contained demand is sliced from the larger one if that can be complete in time.
    """
    outer: dict[object, list[Demand]] = defaultdict(list)
    for demand in sorted(demands, key=lambda q: -volume(q.box)):
        if all(_own(demand, term, written) for term in demand.terms):
            continue
        larger = outer[demand.device, demand.read.mask.addends]
        for other in larger:
            if within(demand.box, other.box) and _earliest(other, written) < demand.at:
                demand.within, other.at = other, min(other.at, demand.at)
                break
        else:
            larger.append(demand)
    return [demand for demand in demands if demand.within is None]


def _own(demand: Demand, term: VTensor, written: Written) -> bool:
    """True if the demand's own device writes the term in time."""
    return written.places(term).get(demand.device, demand.at) < demand.at


def _earliest(demand: Demand, written: Written) -> int:
    """Lower bound on the place of the last task that a demand waits for."""
    places = {term: written.places(term) for term in demand.terms}
    return max(
        (at[demand.device] if _own(demand, term, written) else min(at.values()) for term, at in places.items()),
        default=-1,
    )


def supplies(demands: Sequence[Demand], written: Written) -> list[Supply]:
    """The supplies for the demands of one tensor, in the order in which they are written."""
    takers: dict[VTensor, dict[Demand, tuple[Box, ...]]] = defaultdict(dict)
    for demand in demands:
        for term, boxes in demand.terms.items():
            takers[term][demand] = boxes
    found: dict[object, Supply] = {}
    for term in sorted(takers, key=written.first):
        at, wanted = written.places(term), takers[term]
        local = frozenset(q for q in wanted if at.get(q.device, q.at) < q.at)
        latest = min((q.at for q in wanted if q not in local), default=-1)
        holders = tuple(sorted(device for device, place in at.items() if place < latest))
        assert holders or len(local) == len(wanted), term
        use = written.use(term)
        key = (term.mask.box, holders, local, tuple(wanted.items()), use)
        if key not in found:
            found[key] = Supply(term.mask.box, holders, local, wanted, use=use)
        found[key].terms.append(term)
    return merged(found.values())


def merged(found: Iterable[Supply]) -> list[Supply]:
    """Combine supplies of the same devices and demands if their bounding box is no larger than their sum."""
    groups: dict[object, list[Supply]] = defaultdict(list)
    for supply in found:
        regular = all(boxes == (meet(supply.box, q.box),) for q, boxes in supply.takers.items())
        sent = len(supply.local) < len(supply.takers)
        key = (supply.holders, supply.local, frozenset(supply.takers), supply.use) if regular and sent else supply
        groups[key].append(supply)
    result = []
    for group in groups.values():
        first, box = group[0], hull([supply.box for supply in group])
        if len(group) == 1 or sum(volume(supply.box) for supply in group) < volume(box):
            result += group
            continue
        takers: dict[Demand, tuple[Box, ...]] = {q: (_shared(box, q.box),) for q in first.takers}
        result.append(Supply(box, first.holders, first.local, takers, merged=group, use=first.use))
    return result


def terms(supply: Supply) -> list[VTensor]:
    """The terms of a supply and of those that it combines."""
    return [*supply.terms, *(term for inner in supply.merged for term in terms(inner))]


def readers(supply: Supply) -> set[Via]:
    """Whose gradients a supply adds up: readers that fetch a weight together may be in different groups."""
    return {term.via for term in terms(supply)}


def tied(found: Iterable[Supply]) -> bool:
    """True for gradients of a weight that different operators read on different devices, as stages do."""
    here: dict[int, set[Via]] = defaultdict(set)
    for supply in found:
        for holder in supply.holders:
            here[holder] |= readers(supply)
    groups = {frozenset(own) for own in here.values()}
    return len(groups) > 1 and sum(map(len, groups)) == len(frozenset[Via]().union(*groups))


def components(found: Sequence[Supply]) -> list[list[Supply]]:
    """Supplies that must be sent, grouped by shared demands and uses."""
    sent = [supply for supply in found if len(supply.local) < len(supply.takers)]
    remote = {demand for supply in sent for demand in supply.takers if demand not in supply.local}
    return connected({supply: [(q, supply.use) for q in supply.takers if q in remote] for supply in sent})


def connected(links: Mapping[Item, Iterable[object]]) -> list[list[Item]]:
    """Connected components of items that share links."""
    group_of: dict[object, list[Item]] = {}
    groups: dict[int, list[Item]] = {}
    for item, shared in links.items():
        group = [item]
        for link in shared:
            other = group_of.get(link, group)
            if other is not group:
                groups.pop(id(other), None)
                group[:0] = [member for member in other if member not in group]
            group_of[link] = group
        for member in group:
            group_of.update(dict.fromkeys(links[member], group))
        groups[id(group)] = group
    return list(groups.values())
