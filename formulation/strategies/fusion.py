"""What `torch.compile` fuses in the layers of a compiled program, as far as prices count it.

Elementwise functions and normalizations (`Operator.fuses`) that follow each other in a layer are one kernel: what one
of them hands to the next is not read again, and the next launches nothing. So it is backward.
"""

from collections.abc import Mapping
from functools import lru_cache

from ...model.graph.origin import origin
from ...model.graph.pcg import PCG, SOURCES
from ...model.graph.segments import segments
from ...model.operators.operator import operator
from ..bundles.bundles import find_bundles
from .tensor_classes import classes

Fused = Mapping[int, frozenset[int]]
"""Node -> the operands that the kernel which computes them hands on."""


def fused_operands(pcg: PCG) -> Fused:
    """The operands that need not be read: computed in the same layer (a segment), as large as the result.

    No operator that does not fuse, such as a product, is on a way from one to the other. None in a graph with parallel
    branches. A stage of a pipeline has those of the whole graph, also where it begins within a layer: so a node costs
    the same in every stage.
    """
    at = origin(pcg)
    if at.part is None:
        return _of_whole(at)
    whole, places = at.part
    found = _of_whole(origin(whole))
    same = (n for n, place in enumerate(places) if place in found and pcg.nodes[n].op == whole.nodes[place].op)
    return {n: found[places[n]] for n in same}


@lru_cache(maxsize=16)
def _of_whole(pcg: PCG) -> Fused:
    if find_bundles(pcg):
        return {}
    layer, base = {i: segment.name for segment in segments(pcg) for i in segment.nodes}, classes(pcg).base
    level = _levels(pcg)
    found: dict[int, frozenset[int]] = {}
    for index in layer:
        node = pcg.nodes[index]
        made = [(place, base[i]) for place, i in enumerate(node.inputs) if layer.get(base[i]) == layer[index]]
        alike = [(place, i) for place, i in made if _fuses(pcg, i) and pcg.nodes[i].numel == node.numel]
        places = frozenset(place for place, i in alike if level[i] == level[index])
        if places and _fuses(pcg, index):
            found[index] = places
    return found


def _levels(pcg: PCG) -> list[int]:
    """For every node, the most operators that do not fuse on a path to it: between two of one level there is none."""
    found: list[int] = []
    for index, node in enumerate(pcg.nodes):
        apart = node.op not in SOURCES and not operator(node.op).view and not _fuses(pcg, index)
        found.append(max((found[i] for i in node.inputs), default=0) + apart)
    return found


def _fuses(pcg: PCG, index: int) -> bool:
    op = pcg.nodes[index].op
    return op not in SOURCES and operator(op).fuses
