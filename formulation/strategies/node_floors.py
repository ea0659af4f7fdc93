"""Lower bounds on the time of nodes: an even share of the work, whatever the mesh, its placement and layouts."""

from collections.abc import Hashable
from functools import lru_cache
from math import ceil
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ...model.graph.boundaries import stage_local
from ...model.graph.pcg import PCG, SOURCES, form_of
from ...model.graph.sparse_tables import sparse_tables
from ...model.machine.machine import Machine
from ...model.machine.precision import Precision
from ...model.machine.precision import precision as precision_of
from ...model.machine.roofline import backward_factor, least_ratios, passes_ns
from ...model.operators.operator import operator
from ...model.optimizers import optimizer_states
from ...model.training import Training
from ..bundles.bundles import find_bundles
from .alternatives import Alternatives
from .fusion import fused_operands
from .tensor_classes import classes, trains


class Floor(NamedTuple):
    """Lower bounds for one micro-batch (ns); only `both` is positive for nodes that may run in parallel branches."""

    both: int = 0
    forward: int = 0
    backward: int = 0
    inward: int = 0  # of backward, what does not lead to weights alone


def floors_ns(
    pcg: PCG, machine: Machine, count: int, precision: Precision, compiled: bool = False
) -> npt.NDArray[np.int64]:
    """[4, n]: of every node a `Floor`, on `count` of the devices.

    A device has at least its even share of the arithmetic and of every tensor, and launches every kernel, except of
    parallel branches, of which it may have none. Rows that are looked up count with their own bytes, not with those of
    whole transactions. Of several alternatives the fastest counts; tensors that some choice
    does not need count 0, as do those that every stage may compute for itself (`free`). `compiled`: layers are fused.
    """
    fused = fused_operands(pcg) if compiled else None
    result = np.zeros((len(Floor._fields), len(pcg.nodes)), dtype=np.int64)
    for group in _alike(pcg, compiled):
        each = []
        for way in group.ways:
            own = None if fused is None else fused.get(way, frozenset())
            each.append(_floor_ns(pcg, way, machine, count, precision, parallel=group.parallel, fused=own))
        result[:, group.nodes] = np.min(each, axis=0)[:, None]
    return result


class _Group(NamedTuple):
    """Nodes whose floors are equal on any devices: `ways` are the alternatives of the first one, itself included."""

    ways: tuple[int, ...]
    parallel: bool
    nodes: list[int]


@lru_cache(maxsize=64)
def _alike(pcg: PCG, compiled: bool) -> tuple[_Group, ...]:
    """All nodes whose floors count, by what decides them."""
    known, everywhere = classes(pcg), stage_local(pcg)
    parallel = {i for bundle in find_bundles(pcg) for i in bundle.nodes}
    fused = fused_operands(pcg) if compiled else {}
    forms = [
        (trains(pcg, i), fused.get(i, frozenset()), form_of(node, [pcg.nodes[j] for j in node.inputs]))
        for i, node in enumerate(pcg.nodes)
    ]
    found: dict[Hashable, _Group] = {}
    for ways in Alternatives(pcg, known).needed():
        index = ways[0]
        if known.base[index] == index and not known.constant[index] and index not in everywhere:
            key = index in parallel, *(forms[way] for way in ways)
            found.setdefault(key, _Group(tuple(ways), index in parallel, [])).nodes.append(index)
    return tuple(found.values())


def update_floor_ns(pcg: PCG, machine: Machine, count: int, training: Training, bundles: bool) -> int:
    """Lower bound on the update of the weights of a graph on `count` of the devices, once a step.

    Without weights that other stages have too, or some alternative does without, and tables with sparse gradients;
    `bundles`: none where only some devices may have those of parallel branches.
    """
    if bundles and find_bundles(pcg):
        return 0
    moved = precision_of(training.dtype).update_traffic(optimizer_states(training.optimizer))
    every = ({*pcg.of("parameter")} & pcg.plain) - sparse_tables(pcg).keys()
    own = (pcg.nodes[i].numel for i in every if pcg.nodes[i].gradient and pcg.nodes[i].get("stages", 1) == 1)
    rate = machine.device.memory_bandwidth / 1e9 * count
    return sum(ceil(moved * numel / rate * (1 - 1e-9)) for numel in own)


def _floor_ns(
    pcg: PCG,
    index: int,
    machine: Machine,
    count: int,
    precision: Precision,
    *,
    parallel: bool,
    fused: frozenset[int] | None,
) -> Floor:
    """The bounds of one node; a `parallel` one may launch nothing, and one with `fused` operands does not.

    None: layers are not compiled.
    """
    node, device = pcg.nodes[index], machine.device
    if node.op in SOURCES or not operator(node.op).passes:
        return Floor()
    entry, sources = operator(node.op), tuple(pcg.nodes[i] for i in node.inputs)
    flops, bandwidth = device.flops(precision.compute), device.memory_bandwidth
    looked_up = entry.looked_up(node, sources)
    read = [0 if place in (fused or ()) else n.numel for place, n in enumerate(sources)]
    if looked_up:  # not the table, but what is looked up
        read[looked_up[0]] = looked_up[1]
    traffic = sum(n * precision.itemsize(x.dtype) for n, x in zip((node.numel, *read), (node, *sources), strict=True))
    work = entry.work(node, sources) * device.work_factor(node.op) / count / flops
    moved = traffic * entry.moved(node) / count / bandwidth
    launch = 0.0 if parallel or fused else device.launch_ns * entry.kernels(node, sources)
    factor = backward_factor(node, sources, entry.matmul) if node.gradient else None
    forward, backward = passes_ns(
        work, moved, factor, launch, least_ratios(node, machine, precision.compute, fused is not None)
    )
    inward = backward / 2 if entry.matmul and trains(pcg, index) else backward
    exact = (forward + backward, *((0.0, 0.0, 0.0) if parallel else (forward, backward, inward)))
    return Floor(*(int(time * (1 - 1e-9)) for time in exact))
