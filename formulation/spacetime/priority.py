"""Default priorities of unordered tasks: depth first, one micro-batch after the other.

Parts of an operator on the same device are split in time: accumulated micro-batches run forward 0, backward 0,
forward 1, backward 1. Within a micro-batch, forwards run in topological order, then backwards in reverse: also where
other devices are in their backwards already, which may wait for those of all.
"""

from collections import Counter, defaultdict
from typing import TypeAlias

from .names import BATCH
from .op import Op, Phase
from .tasks import Tasks
from .transformation import splits

Label: TypeAlias = tuple[str, int]
"""A transformation's label and its occurrence number on the operator."""

_ENDS = {Phase.STORE: 0, Phase.UPDATE: 2, Phase.KEEP: 3}  # before and after all micro-batches, which are 1
_TURN = {Phase.OFFLOAD: 0} | dict.fromkeys((Phase.FORWARD, *_ENDS), 1)  # 2: what belongs to backward
_AFTER = {Phase.BACKWARD: 1, Phase.WEIGHT: 2}  # recomputation and reload of a node come before its backward


def priorities(tasks: Tasks) -> list[int]:
    """A rank per task; of the ready tasks the lowest runs first."""
    times, last = _times(tasks), len(tasks.graph.pcg.nodes)

    def key(at: int) -> tuple[int, tuple[int, ...], int, int, int, int]:
        op = tasks.ops[at]
        turn = _TURN.get(op.phase, 2)
        node = last - op.node if turn == 2 else op.node
        return _ENDS.get(op.phase, 1), times[at], turn, node, _AFTER.get(op.phase, 0), at

    found = [0] * len(tasks.ops)
    for rank, at in enumerate(sorted(range(len(tasks.ops)), key=key)):
        found[at] = rank
    return found


def _times(tasks: Tasks) -> list[tuple[int, ...]]:
    """Per task, its part numbers along temporal labels: batch splits first, then outermost first.

    A label is temporal for parts of a node on one device that differ in it alone; they are numbered from 0.
    """
    labels = [{label: cut.number for label, cut in op.labels.items()} for op in tasks.ops]
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
            batches[label] += op.is_forward and splits(tasks.graph, op.node, op.cuts[place].row, samples)
    ranked = sorted(depth, key=lambda label: (not batches[label], depth[label]))
    found = []
    for op, numbers in zip(tasks.ops, labels, strict=True):
        numbered = {
            label: sum(other < mine for other in siblings[_siblings(op, numbers, label)])
            for label, mine in numbers.items()
        }
        found.append(tuple(numbered.get(label, 0) for label in ranked))
    return found


def _siblings(op: Op, numbers: dict[Label, int], label: Label) -> object:
    """Key shared by parts of one node, phase and device that differ in `label` alone."""
    return op.node, op.phase, op.device, label, tuple(item for item in numbers.items() if item[0] != label)
