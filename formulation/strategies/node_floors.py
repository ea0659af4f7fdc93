"""What no plan goes below: a node's time at an even share of its work, whatever the mesh, its placement and layouts."""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ...model.graph.boundaries import stage_local
from ...model.graph.pcg import PCG, SOURCES, form_of
from ...model.machine.machine import Machine
from ...model.machine.precision import Precision
from ...model.machine.roofline import backward_factor
from ...model.operators.operator import operator
from ..bundles.bundles import find_bundles
from .alternatives import Alternatives
from .tensor_classes import classes, trains


class Floor(NamedTuple):
    """The least times of a node, of one micro-batch (ns); where branches may run side by side only those of both."""

    both: int = 0
    forward: int = 0
    backward: int = 0
    inward: int = 0  # of backward, what does not lead to weights alone


def floors_ns(pcg: PCG, machine: Machine, count: int, precision: Precision) -> npt.NDArray[np.int64]:
    """[4, n]: of every node a `Floor`, on `count` of the devices (see `domain`).

    A device has at least its even share of the arithmetic and of every tensor, and launches every kernel; but of
    branches that may run side by side it may launch none. Of several ways to compute a node the quickest counts, and
    what some choice of ways does not need takes no time. Nor does what every stage of a pipeline computes itself where
    it reads it (`free`): those before it need not.
    """
    known, everywhere = classes(pcg), stage_local(pcg)
    beside = {i for bundle in find_bundles(pcg) for i in bundle.nodes}
    result = np.zeros((len(Floor._fields), len(pcg.nodes)), dtype=np.int64)
    found: dict[Hashable, Floor] = {}
    for index, *others in Alternatives(pcg, known).needed():
        if known.base[index] == index and not known.constant[index] and index not in everywhere:
            each = []
            for way in (index, *others):
                form = (
                    way in beside,
                    trains(pcg, way),
                    form_of(pcg.nodes[way], [pcg.nodes[i] for i in pcg.nodes[way].inputs]),
                )
                if form not in found:
                    found[form] = _floor_ns(pcg, way, machine, count, precision, way in beside)
                each.append(found[form])
            result[:, index] = np.min(each, axis=0)
    return result


def _floor_ns(pcg: PCG, index: int, machine: Machine, count: int, precision: Precision, beside: bool) -> Floor:
    """The least time of one node; `beside` others it may launch nothing."""
    node, device = pcg.nodes[index], machine.device
    if node.op in SOURCES or not operator(node.op).passes:
        return Floor()
    entry, sources = operator(node.op), tuple(pcg.nodes[i] for i in node.inputs)
    flops, bandwidth = device.flops(precision.compute), device.memory_bandwidth
    looked_up = entry.looked_up(node, sources)
    read = [n.numel for n in sources]
    if looked_up:  # not the table, but what is looked up
        read[looked_up[0]] = looked_up[1]
    traffic = sum(n * precision.itemsize(x.dtype) for n, x in zip((node.numel, *read), (node, *sources), strict=True))
    work, moved = entry.work(node, sources) / count / flops, traffic * entry.passes / count / bandwidth
    launch = 0.0 if beside else device.launch_ns
    forward, backward = max(work, moved) * 1e9 + launch, 0.0
    if node.gradient:
        backward = max(work * backward_factor(node, sources, entry.matmul), 2 * moved) * 1e9 + launch
    inward = backward / 2 if entry.matmul and trains(pcg, index) else backward
    exact = (forward + backward, *((0.0, 0.0, 0.0) if beside else (forward, backward, inward)))
    return Floor(*(int(time * (1 - 1e-9)) for time in exact))
