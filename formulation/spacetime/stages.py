"""What several plans need: layers, stages of a pipeline, their order on devices, an even way to shard a tensor.

for op in graph.forward:
    op_trans(op, split("batch", micros, "micro"))
parts = stages(graph, len(devices))
for ops, device in zip(parts, devices):
    op_assign(ops, device)
in_order(one_f_one_b(len(devices), micros), parts)
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, groupby
from typing import TypeAlias

from ...model.errors import PartitaError
from ...model.graph.pcg import PCG, SOURCES
from ...model.graph.recycling import twins
from ...model.machine.roofline import backward_factor
from ...model.operators.operator import operator
from ..pipeline.orders import Orders, Slot
from .graph import Graph
from .op import Op, layer_of
from .primitives import op_order
from .transformation import Transformation, replicate, split

TasksOf: TypeAlias = Callable[[Slot], Iterable["Op | None"]]
"""The operators of a slot; None's among them are left out."""


def layers(graph: Graph) -> list[list[Op]]:
    """Forward operators in runs of one layer each: a layer is a module of a list (`encoder.3`), or what lies between.

    A layer that runs several times (recycling) is several.
    """
    return [[op for node in run for op in graph.parts(node)] for run in _runs(graph.pcg, _nodes(graph.pcg))]


def stages(graph: Graph, count: int, ops: Iterable[Op] | None = None) -> list[list[Op]]:
    """Forward operators, or some of them, in `count` consecutive groups, the largest with as little work as possible.

    Work is arithmetic, forward and backward. Cuts lie where as little crosses them as anywhere in the layers beside
    them, unless there are too few such places; among cuts that are as good the least crosses. What an earlier pass
    repeats (recycling) is in the group of what it repeats. Raises PartitaError where there are fewer operators.
    """
    if count < 1:
        raise PartitaError(f"a pipeline has at least one stage, not {count}")
    pcg, repeats = graph.pcg, twins(graph.pcg)
    found = graph.forward if ops is None else tuple(ops)
    among = sorted({op.node for op in found})
    nodes = [i for i in among if i not in repeats]
    if len(nodes) < count:
        raise PartitaError(f"{len(nodes)} operators make no {count} stages")
    work = dict.fromkeys(nodes, 0.0)
    for index in among:
        work[repeats.get(index, index)] += _work(pcg, index)
    crossing = _crossing(pcg, nodes)
    places = _narrow(pcg, nodes, crossing)
    if len(places) < count - 1:
        places = list(range(1, len(nodes)))
    cuts = _cuts([work[i] for i in nodes], crossing, places, count)
    stage = {i: sum(cut <= at for cut in cuts) for at, i in enumerate(nodes)}
    groups: list[list[Op]] = [[] for _ in range(count)]
    for op in found:
        groups[stage[repeats.get(op.node, op.node)]].append(op)
    return groups


def passes(graph: Graph) -> list[int]:
    """For every node the number of its pass, from 0: what recycling runs again and again (`model.recycling`)."""
    again: dict[int, list[int]] = {}
    for index, model in twins(graph.pcg).items():
        again.setdefault(model, []).append(index)
    count = max(map(len, again.values()), default=0)
    last = [max(repeats[p] for repeats in again.values() if len(repeats) == count) for p in range(count)]
    return [sum(end < index for end in last) for index in range(len(graph.pcg.nodes))]


def in_order(orders: Orders, tasks: TasksOf | Sequence[Iterable[Op]], label: str = "micro") -> None:
    """Every device runs its slots one after another, all of one before all of the next that it has a part in.

    `tasks` gives the operators of a slot, on however many devices; or it is the stages, whose micro-batches the
    transformation `label` made. Between devices nothing is ordered: there the data decide. Raises PartitaError for an
    order of other stages or micro-batches than there are.
    """
    if callable(tasks):
        found = tasks
    else:
        groups = [list(ops) for ops in tasks]
        _check_named(orders, groups, label)
        found = slots(groups, label)
    done: set[tuple[int | None, Slot, Slot]] = set()
    for order in orders:
        before: dict[int | None, tuple[Slot, list[Op]]] = {}
        for slot in order:
            here: dict[int | None, list[Op]] = {}
            for op in found(slot):
                if op is not None:
                    here.setdefault(op.device, []).append(op)
            for device, ops in here.items():
                if device in before:
                    last, earlier = before[device]
                    if (device, last, slot) not in done:
                        done.add((device, last, slot))
                        op_order(earlier, ops)
                before[device] = slot, ops


def _check_named(orders: Orders, groups: Sequence[Sequence[Op]], label: str) -> None:
    """Refuse an order that leaves out operators, or names some that are not there; a group may have none."""
    named = {(slot.stage, slot.micro) for order in orders for slot in order}
    most = max((stage for stage, _ in named), default=-1)
    if most >= len(groups):
        raise PartitaError(f"the order has stages 0 to {most}, the plan {len(groups)}")
    there = {(stage, op.coordinate(label)) for stage, ops in enumerate(groups) for op in ops}
    for stage, micro in sorted(named ^ there):
        if (stage, micro) in there:
            raise PartitaError(f"the order has no micro-batch {micro} of stage {stage}, which the plan has")
        if groups[stage]:
            raise PartitaError(
                f"the order has micro-batch {micro} of stage {stage}, the plan has not: say which op_trans made them, "
                f"here those of the label {label!r}"
            )


def slots(groups: Sequence[Iterable[Op]], label: str = "micro") -> TasksOf:
    """What a slot stands for: its stage of `groups`, its micro-batch by the transformation `label`."""
    parts: dict[tuple[int, int], list[Op]] = {}
    for stage, ops in enumerate(groups):
        for op in ops:
            parts.setdefault((stage, op.coordinate(label)), []).append(op)

    def tasks(slot: Slot) -> list[Op | None]:
        """The backward in the reverse order, as messages are to name it."""
        ops = parts.get((slot.stage, slot.micro), [])
        return [_PHASES[slot.kind](op) for op in (ops if slot.kind in "FR" else reversed(ops))]

    return tasks


_PHASES: dict[str, Callable[[Op], Op | None]] = {
    "F": lambda op: op,
    "R": lambda op: op.recomputed,
    "B": lambda op: op.backward,
    "W": lambda op: op.weight,
}


def evenly(op: Op, parts: int) -> Transformation:
    """The first factor of a dim of a parameter that can be cut in so many equal parts; replicas where none can.

    `op` is the parameter's update.
    """
    for dim, factors in enumerate(op.graph.atoms[op.node].dims):
        for factor, size in enumerate(factors):
            if size % parts == 0:
                return split((op.of.name, dim, factor), parts)
    return replicate(parts)


# Stages


def _nodes(pcg: PCG) -> list[int]:
    return [i for i, node in enumerate(pcg.nodes) if node.op not in SOURCES]


def _runs(pcg: PCG, nodes: Sequence[int]) -> list[list[int]]:
    return [list(run) for _, run in groupby(nodes, key=lambda i: layer_of(pcg.nodes[i].path))]


def _work(pcg: PCG, index: int) -> float:
    node = pcg.nodes[index]
    sources = tuple(pcg.nodes[i] for i in node.inputs)
    entry = operator(node.op)
    return entry.work(node, sources) * (1 + backward_factor(node, sources, entry.matmul))


def _crossing(pcg: PCG, nodes: Sequence[int]) -> list[int]:
    """Elements that go from before each place to after it: place k lies before the k-th node.

    What comes from elsewhere goes from its first reader to its last.
    """
    position = {index: at for at, index in enumerate(nodes)}
    difference = [0] * (len(nodes) + 1)
    for index in _nodes(pcg):
        readers = [position[j] for j in pcg.consumers[index] if j in position]
        if readers:
            difference[position.get(index, min(readers)) + 1] += pcg.nodes[index].numel
            difference[max(readers) + 1] -= pcg.nodes[index].numel
    return list(accumulate(difference))


def _narrow(pcg: PCG, nodes: Sequence[int], crossing: Sequence[int]) -> list[int]:
    """The places where as little crosses as anywhere in the layers beside them, or as beside what lies between two."""
    limit: list[int] = []
    for run in _runs(pcg, nodes):
        start, stop = len(limit), len(limit) + len(run)
        layer = layer_of(pcg.nodes[run[0]].path)
        found = [crossing[k] for k in (range(start, stop + 1) if layer else (start, stop)) if 0 < k < len(nodes)]
        limit += [(min if layer else max)(found, default=sys.maxsize)] * len(run)
    return [k for k in range(1, len(nodes)) if crossing[k] <= min(limit[k - 1], limit[k])]


def _cuts(work: Sequence[float], crossing: Sequence[int], places: Sequence[int], count: int) -> list[int]:
    """The `count` - 1 places with the least largest group, then the evenest, then with the least that crosses."""
    total = list(accumulate(work, initial=0.0))

    def search(join: Callable[[float, float], float], most: float = float("inf")) -> tuple[float, int, tuple[int, ...]]:
        """The least value of `count` groups of at most that work, what crosses, and where they end."""
        found: dict[int, tuple[float, int, tuple[int, ...]]] = {0: (0.0, 0, ())}
        for last in (*[False] * (count - 1), True):
            found = {
                end: min(options)
                for end in ([len(work)] if last else places)
                if (
                    options := [
                        (join(value, total[end] - total[start]), crossed + crossing[end], (*cuts, end))
                        for start, (value, crossed, cuts) in found.items()
                        if start < end and total[end] - total[start] <= most
                    ]
                )
            }
        return found[len(work)]

    most, _, _ = search(max)
    *_, cuts = search(lambda value, group: value + group**2, most)
    return list(cuts[:-1])
