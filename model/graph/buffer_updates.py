"""Buffers that training updates in place: the running statistics of a batch norm, and what `store` writes.

The operator that updates a statistic is its only reader. `store` comes after all readers, which read a `clone`. A
buffer is stored in the layout that the operator needs which updates it, so every rank updates its own part.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache

from ..errors import PartitaError
from ..operators.operator import operator
from .pcg import PCG, SOURCES, Node

STATISTICS = ("batch", "micro-batch", "local")
"""What a batch norm normalizes over: the whole batch; each micro-batch on all ranks; each rank's part of it."""


@lru_cache(maxsize=64)
def updated(pcg: PCG) -> Mapping[int, tuple[int, int]]:
    """Buffer -> (the node that updates it, the operand)."""
    return dict(_changes(pcg.nodes))


def check_updates(nodes: Sequence[Node]) -> None:
    """Raise PartitaError unless every updated operand is a buffer that nothing else reads; `store` admits copies."""
    for source, (index, _) in _changes(nodes):
        reader = nodes[index]
        if nodes[source].op != "buffer":
            raise PartitaError(f"{reader.name!r} ({reader.op}) updates {nodes[source].name!r}, which is not a buffer")
        copies = reader.op == "store" and all(nodes[i].op == "clone" for i in range(index) if source in nodes[i].inputs)
        if sum(node.inputs.count(source) for node in nodes if not (copies and node.op == "clone")) > 1:
            raise PartitaError(
                f"the buffer {nodes[source].name!r} is updated by {reader.name!r} ({reader.op}) and read elsewhere; "
                "a module with running statistics can be called once per forward: use one module for each call"
            )


def _changes(nodes: Sequence[Node]) -> list[tuple[int, tuple[int, int]]]:
    found = []
    for index, node in enumerate(nodes):
        entry = None if node.op in SOURCES else operator(node.op)
        if entry is not None and entry.updates:
            places = [k for k, name in enumerate(entry.named(node)) if name in entry.updates]
            found += [(node.inputs[k], (index, k)) for k in places]
    return found
