"""Buffers that an operator changes in place, in training: the running statistics of a batch norm.

Such a buffer has one reader, the operator that changes it, and is stored in the layout that this one asks: so every
rank updates the part that it has.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache

from ..errors import PartitaError
from ..operators.operator import operator
from .pcg import PCG, SOURCES, Node

STATISTICS = ("batch", "micro-batch", "local")
"""Over what a batch norm normalizes: the whole batch; each micro-batch, over all ranks; each rank's part of it."""


@lru_cache(maxsize=64)
def updated(pcg: PCG) -> Mapping[int, tuple[int, int]]:
    """Buffer -> the node that changes it, and at which operand it does."""
    return dict(_changes(pcg.nodes))


def check_updates(nodes: Sequence[Node]) -> None:
    """Raise PartitaError unless every operand that is changed is a buffer that nothing else reads."""
    for source, (index, _) in _changes(nodes):
        reader = nodes[index]
        if nodes[source].op != "buffer":
            raise PartitaError(f"{reader.name!r} ({reader.op}) changes {nodes[source].name!r}, which is no buffer")
        if sum(node.inputs.count(source) for node in nodes) > 1:
            raise PartitaError(
                f"the buffer {nodes[source].name!r} is changed by {reader.name!r} ({reader.op}) and read by others "
                "too; a module with running statistics is called once in a forward: use one module for every call"
            )


def _changes(nodes: Sequence[Node]) -> list[tuple[int, tuple[int, int]]]:
    found = []
    for index, node in enumerate(nodes):
        entry = None if node.op in SOURCES else operator(node.op)
        if entry is not None and entry.updates:
            places = [k for k, name in enumerate(entry.named(node)) if name in entry.updates]
            found += [(node.inputs[k], (index, k)) for k in places]
    return found
