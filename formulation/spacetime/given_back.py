"""Gradients of a parameter that several groups of devices keep, as stages with a tied table do, and fetch for each use.

Each group adds up what its own uses give back, part by part; the sums of the groups are added up once a step.
"""

from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import replace

from .builder import Place
from .supplies import Demand, Supply, connected, readers, terms
from .transfers import Transfers


def summed_in_groups(found: Sequence[Supply], transfers: Transfers, floor: Place) -> list[Supply]:
    """The supplies of one gradient, with the sum of each group instead of what its uses give back."""
    uses: dict[Hashable, list[Supply]] = defaultdict(list)
    for supply in found:
        if supply.use is not None:
            uses[supply.use].append(supply)
    groups: dict[frozenset[Demand], list[Supply]] = defaultdict(list)
    for given in uses.values():
        for group in connected({supply: readers(supply) for supply in given}):
            if keepers := _keepers(group):
                groups[keepers] += group
    inside = {id(supply) for given in groups.values() for supply in given}
    made = [supply for supply in found if id(supply) not in inside]
    for keepers, given in groups.items():
        takers = dict.fromkeys(demand for supply in given for demand in supply.takers)
        transfers.bring([_for(supply, keepers) for supply in given], floor)
        sums: dict[object, list[Demand]] = defaultdict(list)
        for demand in takers:
            if demand in keepers:
                sums[demand.box].append(demand)
        for own in sums.values():
            summed = _sum(own, [demand for demand in takers if demand.box == own[0].box], transfers, floor)
            summed.terms += [term for supply in given for term in terms(supply)]
            made.append(summed)
    return made


def _keepers(given: Sequence[Supply]) -> frozenset[Demand]:
    """The demands of the devices that give back the gradient of a use, if they take all that others take, too."""
    givers = {device for supply in given for device in supply.holders}
    takers = {demand for supply in given for demand in supply.takers}
    keepers = frozenset(demand for demand in takers if demand.device in givers)
    others = {demand.box for demand in takers - keepers}
    return keepers if others and others <= {demand.box for demand in keepers} else frozenset()


def _for(supply: Supply, keepers: frozenset[Demand]) -> Supply:
    """A supply for these demands alone."""
    takers = {demand: boxes for demand, boxes in supply.takers.items() if demand in keepers}
    return replace(supply, local=supply.local & keepers, takers=takers)


def _sum(own: Sequence[Demand], takers: Sequence[Demand], transfers: Transfers, floor: Place) -> Supply:
    """What the devices of a group have got of a box, as a supply for all that take it."""
    box, sums = own[0].box, {}
    for demand in own:
        sums[demand.device] = transfers.builder.assemble(demand.device, demand.read.tensor, box, demand.parts, floor)
        demand.parts = []
    holders = tuple(sorted(sums))
    return Supply(box, holders, frozenset(own), dict.fromkeys(takers, (box,)), sums=sums)
