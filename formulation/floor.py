"""What no plan goes below: a node's time at an even share of its work, whatever the mesh, its placement and layouts."""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np
import numpy.typing as npt

from ..model.cost import Precision, backward_factor
from ..model.machine import Machine
from ..model.operator import operator
from ..model.pcg import PCG, SOURCES, form_of
from .bundles import find_bundles
from .classes import classes
from .ways import Ways


def floors_ns(pcg: PCG, machine: Machine, count: int, precision: Precision) -> npt.NDArray[np.int64]:
    """Of every node the least time on `count` of the devices, forward and backward, of one micro-batch (see `domain`).

    A device has at least its even share of the arithmetic and of every tensor, and launches every kernel; but of
    branches that may run side by side it may launch none. Of several ways to compute a node the quickest counts, and
    what some choice of ways does not need takes no time.
    """
    known = classes(pcg)
    beside = {i for bundle in find_bundles(pcg) for i in bundle.nodes}
    result = np.zeros(len(pcg.nodes), dtype=np.int64)
    found: dict[Hashable, int] = {}
    for index, *others in Ways(pcg, known).needed():
        if known.base[index] == index and not known.constant[index]:
            each = []
            for way in (index, *others):
                form = way in beside, form_of(pcg.nodes[way], [pcg.nodes[i] for i in pcg.nodes[way].inputs])
                if form not in found:
                    found[form] = _floor_ns(pcg, way, machine, count, precision, way in beside)
                each.append(found[form])
            result[index] = min(each)
    return result


def _floor_ns(pcg: PCG, index: int, machine: Machine, count: int, precision: Precision, beside: bool) -> int:
    """The least time of one node; `beside` others it may launch nothing."""
    node, device = pcg.nodes[index], machine.device
    if node.op in SOURCES or not operator(node.op).passes:
        return 0
    entry, sources = operator(node.op), tuple(pcg.nodes[i] for i in node.inputs)
    flops, bandwidth = device.flops(precision.compute), device.memory_bandwidth
    looked_up = entry.looked_up(node, sources)
    read = [n.numel for n in sources]
    if looked_up:  # not the table, but what is looked up
        read[looked_up[0]] = looked_up[1]
    traffic = sum(n * precision.itemsize(x.dtype) for n, x in zip((node.numel, *read), (node, *sources), strict=True))
    work, moved = entry.work(node, sources) / count / flops, traffic * entry.passes / count / bandwidth
    launch = 0.0 if beside else device.launch_ns
    time = max(work, moved) * 1e9 + launch
    if node.gradient:
        time += max(work * backward_factor(node, sources, entry.matmul), 2 * moved) * 1e9 + launch
    return int(time * (1 - 1e-9))
