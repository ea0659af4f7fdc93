"""Where the random numbers of a graph come from: torch's own generators, or counters that give all plans the same."""

from dataclasses import replace
from functools import lru_cache

from ..operators.operator import is_native
from .pcg import PCG, Node


def draws_natively(pcg: PCG) -> bool:
    """True if torch's own generators draw some masks of dropout."""
    return any(map(is_native, pcg.nodes))


@lru_cache(maxsize=64)  # one object a graph: analyses are cached by graph
def from_counters(pcg: PCG) -> PCG:
    """The same graph with all masks from counters."""
    if not draws_natively(pcg):
        return pcg
    origin = None if pcg.origin is None else from_counters(pcg.origin)
    part = None if pcg.part is None else (from_counters(pcg.part[0]), pcg.part[1])
    return replace(pcg, nodes=tuple(map(_counted, pcg.nodes)), origin=origin, part=part)


def _counted(node: Node) -> Node:
    if not is_native(node):
        return node
    return replace(node, attributes=tuple(pair for pair in node.attributes if pair[0] != "native"))
