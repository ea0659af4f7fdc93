"""Default priorities of unordered tasks: depth first, one micro-batch after the other.

Parts of an operator on the same device are split in time: accumulated micro-batches run forward 0, backward 0,
forward 1, backward 1. Within a micro-batch, forwards run in topological order, then backwards in reverse: also where
other devices are in their backwards already, which may wait for those of all. Constants, which are computed once, come
before all micro-batches.
"""

from collections import defaultdict
from typing import TypeAlias

from ...model.graph.constants import built_once
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
    constants = built_once(tasks.graph.pcg)

    def key(at: int) -> tuple[int, tuple[int, ...], int, int, int, int]:
        op = tasks.ops[at]
        turn = _TURN.get(op.phase, 2)
        node = last - op.node if turn == 2 else op.node
        end = 0 if op.is_forward and op.node in constants else _ENDS.get(op.phase, 1)
        return end, times[at], turn, node, _AFTER.get(op.phase, 0), at

    found = [0] * len(tasks.ops)
    for rank, at in enumerate(sorted(range(len(tasks.ops)), key=key)):
        found[at] = rank
    return found


def _times(tasks: Tasks) -> list[tuple[int, ...]]:
    """Per task, its part numbers along temporal labels: batch splits first, then outermost first.

    A label is temporal for parts of a node on one device that differ in it alone; they are numbered from 0.
    """
    siblings: dict[object, set[int]] = defaultdict(set)
    numbers: list[list[tuple[Label, int, set[int]]]] = []  # by task: its labels with its number and that of the others
    samples = tasks.graph.dimension(BATCH)
    batches: set[Label] = set()
    depth: dict[Label, int] = {}
    at = dict[Op, int]()
    for op in tasks.ops:
        at[op] = len(numbers)
        if op.phase is Phase.BACKWARD and op.forward is not None:  # all parts of a node have one, with the same cuts
            numbers.append(numbers[at[op.forward]])
            continue
        own = {label: cut.number for label, cut in op.labels.items()}
        numbers.append([])
        for place, (label, number) in enumerate(own.items()):
            others = tuple(item for item in own.items() if item[0] != label)
            alike = siblings[op.node, op.phase, op.device, label, others]  # in all but this label
            alike.add(number)
            numbers[-1].append((label, number, alike))
            depth[label] = min(depth.get(label, place), place)
            if op.is_forward and label not in batches and splits(tasks.graph, op.node, op.cuts[place].row, samples):
                batches.add(label)
    ranked = sorted(depth, key=lambda label: (label not in batches, depth[label]))
    found = []
    for given in numbers:
        numbered = {label: sum(other < mine for other in alike) for label, mine, alike in given if len(alike) > 1}
        found.append(tuple([numbered.get(label, 0) for label in ranked]))
    return found
