"""Default priorities of unordered tasks: depth first, one micro-batch after the other.

Parts of an operator on the same device are split in time: accumulated micro-batches run forward 0, backward 0,
forward 1, backward 1. Within a micro-batch, forwards run in topological order and backwards in reverse.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TypeAlias

from ...model.graph.layout import atom_of, is_split
from .graph import Graph
from .op import Op, Phase
from .tasks import Tasks
from .transformation import BATCH

Label: TypeAlias = tuple[str, int]
"""A transformation's label and its occurrence number on the operator."""

_CLASS = {
    Phase.STORE: 0,
    Phase.RECOMPUTE: 1,
    Phase.OFFLOAD: 1,
    Phase.RELOAD: 1,
    Phase.BACKWARD: 1,
    Phase.WEIGHT: 1,
    Phase.FORWARD: 2,
    Phase.UPDATE: 3,
    Phase.KEEP: 4,
}
_AFTER = {Phase.BACKWARD: 1, Phase.WEIGHT: 2}  # recomputation and reload of a node come before its backward


def priorities(tasks: Tasks) -> list[int]:
    """A rank per task; of the ready tasks the lowest runs first."""
    times, last = _times(tasks), len(tasks.graph.pcg.nodes)

    def key(at: int) -> tuple[int, tuple[int, ...], int, int, int]:
        op = tasks.ops[at]
        node = last - op.node if _CLASS[op.phase] == 1 else op.node
        return _CLASS[op.phase], times[at], node, _AFTER.get(op.phase, 0), at

    found = [0] * len(tasks.ops)
    for rank, at in enumerate(sorted(range(len(tasks.ops)), key=key)):
        found[at] = rank
    return found


def _times(tasks: Tasks) -> list[tuple[int, ...]]:
    """Per task, its part numbers along temporal labels: batch splits first, then outermost first.

    A label is temporal for parts of a node on one device that differ in it alone; they are numbered from 0.
    """
    labels = [_labels(op) for op in tasks.ops]
    siblings: dict[object, set[int]] = defaultdict(set)
    for op, numbers in zip(tasks.ops, labels, strict=True):
        for label, number in numbers.items():
            siblings[_siblings(op, numbers, label)].add(number)
    samples = tasks.graph.dimension(BATCH)
    batches: Counter[Label] = Counter()
    depth: dict[Label, int] = {}
    for op, numbers in zip(tasks.ops, labels, strict=True):
        for place, label in enumerate(numbers):
            depth[label] = min(depth.get(label, place), place)
            batches[label] += _splits(tasks.graph, op, place, samples)
    ranked = sorted(depth, key=lambda label: (not batches[label], depth[label]))
    found = []
    for op, numbers in zip(tasks.ops, labels, strict=True):
        numbered = {
            label: sum(other < mine for other in siblings[_siblings(op, numbers, label)])
            for label, mine in numbers.items()
        }
        found.append(tuple(numbered.get(label, 0) for label in ranked))
    return found


def _labels(op: Op) -> dict[Label, int]:
    seen: Counter[str] = Counter()
    found = {}
    for cut in op.cuts:
        found[cut.label, seen[cut.label]] = cut.number
        seen[cut.label] += 1
    return found


def _siblings(op: Op, numbers: dict[Label, int], label: Label) -> object:
    """Key shared by parts of one node, phase and device that differ in `label` alone."""
    return op.node, op.phase, op.device, label, tuple(item for item in numbers.items() if item[0] != label)


def _splits(graph: Graph, op: Op, place: int, dims: frozenset[int]) -> bool:
    if op.phase is not Phase.FORWARD:
        return False
    row = op.cuts[place].row
    return any(
        is_split(letter) and graph.dimensions[node][atom_of(letter)] in dims
        for letter, node in zip((*row.inputs, row.output), (*op.of.inputs, op.node), strict=True)
    )
