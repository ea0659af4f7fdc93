"""Helpers for plans: layers, pipeline stages, their order on devices, even sharding.

for op in graph.forward:
    op_trans(op, split("batch", micros, "micro"))
parts = stages(graph, len(devices))
for ops, device in zip(parts, devices):
    op_assign(ops, device)
in_order(one_f_one_b(len(devices), micros), parts)
"""

import sys
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, groupby
from typing import TypeAlias

from ...model.errors import PartitaError
from ...model.graph.pcg import PCG, SOURCES
from ...model.graph.recycling import pass_numbers, twins
from ...model.machine.roofline import both_ways_flops
from ...model.wording import did_you_mean
from ..pipeline.orders import Orders, Slot
from .graph import Graph, Schedule
from .names import layer_in
from .op import Op
from .primitives import op_order
from .transformation import Transformation, replicate, split

TasksOf: TypeAlias = Callable[[Slot], Iterable["Op | None"]]
"""The operators of a slot; None is skipped."""


def layers(graph: Graph) -> list[list[Op]]:
    """Forward operators grouped by layer: an element of a module list (`encoder.3`), or the operators between two.

    A layer that runs several times (recycling) counts as several.
    """
    return [[op for node in run for op in graph.parts(node)] for run in _runs(graph.pcg, _nodes(graph.pcg))]


def stages(graph: Graph, count: int, ops: Iterable[Op] | None = None) -> list[list[Op]]:
    """Partition forward operators (or `ops`) into `count` consecutive groups with the least maximum work.

    Work counts forward and backward FLOPs. Cuts lie where the least data crosses within the adjacent layers, unless
    there are too few such places; ties go to the least data crossing. Repeated passes (recycling) join the group of the
    operator they repeat. Raises PartitaError for fewer operators than groups.
    """
    if count < 1:
        raise PartitaError(f"a pipeline has at least one stage, not {count}")
    pcg, repeats = graph.pcg, twins(graph.pcg)
    found = graph.forward if ops is None else tuple(ops)
    selected = sorted({op.node for op in found})
    nodes = [i for i in selected if i not in repeats]
    if len(nodes) < count:
        raise PartitaError(f"cannot split {len(nodes)} operators into {count} stages")
    work = dict.fromkeys(nodes, 0.0)
    for index in selected:
        work[repeats.get(index, index)] += both_ways_flops(pcg, index)
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
    """Per node, its recycling pass, from 0 (`model.graph.recycling`)."""
    return [*pass_numbers(graph.pcg)]


def in_order(orders: Orders, tasks: TasksOf | Sequence[Iterable[Op]], label: str = "micro") -> None:
    """Run the slots of every device one after another.

    `tasks` maps a slot to its operators, on any number of devices; or it lists the stages, whose micro-batches were
    made by the transformation `label`. Between devices only data dependencies hold. Raises PartitaError if stages or
    micro-batches of the order and the plan differ.
    """
    if callable(tasks):
        found = tasks
    else:
        groups = [list(ops) for ops in tasks]
        _check_named(orders, groups, label)
        looped = [op for ops in groups for op in ops if op.loop is not None]
        if looped:
            looped[0].graph.schedules.append(Schedule(orders, tuple(map(tuple, groups)), label))
            return
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
    """Raise PartitaError if the order misses operators or names missing ones; a group may be empty."""
    named = {(slot.stage, slot.micro) for order in orders for slot in order}
    most = max((stage for stage, _ in named), default=-1)
    if most >= len(groups):
        raise PartitaError(f"the order has stages 0 to {most}, the plan {len(groups)}")
    micros = [{_micros(op, label) for op in ops} for ops in groups]
    planned = {(stage, micro) for stage, own in enumerate(micros) for several in own for micro in several}
    for stage, micro in sorted(named ^ planned):
        if (stage, micro) in planned:
            raise PartitaError(f"the order lacks micro-batch {micro} of stage {stage} of the plan")
        if groups[stage]:
            labels = sorted({cut.label for ops in groups for op in ops for cut in op.cuts})
            raise PartitaError(
                f"the order has micro-batch {micro} of stage {stage}, the plan does not: pass the label of the "
                f"op_trans that made the micro-batches (now {label!r}); the operators have "
                f"{', '.join(map(repr, labels)) or 'none'}{did_you_mean(label, set(labels) - {label})}"
            )


def _micros(op: Op, label: str) -> range | tuple[int]:
    """The micro-batches of an operator: one, or all of a loop."""
    return range(op.loop.parts) if op.loop is not None and op.loop.label == label else (op.coordinate(label),)


def slots(groups: Sequence[Iterable[Op]], label: str = "micro") -> TasksOf:
    """Maps a slot to the operators of its stage (`groups`) and micro-batch (transformation `label`)."""
    parts: dict[tuple[int, int], list[Op]] = {}
    for stage, ops in enumerate(groups):
        for op in ops:
            parts.setdefault((stage, op.coordinate(label)), []).append(op)

    def tasks(slot: Slot) -> list[Op | None]:
        """Backward operators in reverse order, for messages."""
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
    """Split a parameter, given its update `op`, along its first divisible dim factor; replicate if there is none."""
    for dim, factors in enumerate(op.graph.atoms[op.node].dims):
        for factor, size in enumerate(factors):
            if size % parts == 0:
                return split((op.of.name, dim, factor), parts)
    return replicate(parts)


# Stages


def _nodes(pcg: PCG) -> list[int]:
    return [i for i, node in enumerate(pcg.nodes) if node.op not in SOURCES]


def _runs(pcg: PCG, nodes: Sequence[int]) -> list[list[int]]:
    return [list(run) for _, run in groupby(nodes, key=lambda i: layer_in(pcg, pcg.nodes[i].path))]


def _crossing(pcg: PCG, nodes: Sequence[int]) -> list[int]:
    """Elements crossing each place; place k lies before the k-th node.

    A tensor from outside `nodes` crosses from its first to its last reader.
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
    """The places where no more crosses than the minimum within the adjacent layers."""
    limit: list[int] = []
    for run in _runs(pcg, nodes):
        start, stop = len(limit), len(limit) + len(run)
        layer = layer_in(pcg, pcg.nodes[run[0]].path)
        found = [crossing[k] for k in (range(start, stop + 1) if layer else (start, stop)) if 0 < k < len(nodes)]
        limit += [(min if layer else max)(found, default=sys.maxsize)] * len(run)
    return [k for k in range(1, len(nodes)) if crossing[k] <= min(limit[k - 1], limit[k])]


def _cuts(work: Sequence[float], crossing: Sequence[int], places: Sequence[int], count: int) -> list[int]:
    """The `count` - 1 cuts with the least maximum work, then the most even groups, then the least data crossing."""
    total = list(accumulate(work, initial=0.0))

    def search(join: Callable[[float, float], float], most: float = float("inf")) -> tuple[float, int, tuple[int, ...]]:
        """(value, crossing, ends) of the best `count` groups of at most `most` work each."""
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
