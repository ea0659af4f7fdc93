"""What depends on no input, weight or buffer: computed once, when the program's module is built, whole on every rank.

Equal and consecutive numbers, which are no work, and views, which are no memory, are made where they are read.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from ..operators.operator import is_random, operator
from .origin import origin
from .pcg import PCG, SOURCES, Node

_PLAIN = ("full", "arange")


def built_once(pcg: PCG) -> frozenset[int]:
    """The nodes that are computed when the module is built, and nowhere else."""
    return _found(origin(pcg))[0]


def held(pcg: PCG) -> tuple[int, ...]:
    """Those of `built_once` that other nodes read: the module holds them."""
    return _found(origin(pcg))[1]


@lru_cache(maxsize=16)
def _found(pcg: PCG) -> tuple[frozenset[int], tuple[int, ...]]:
    made, views, plain = _made(pcg.nodes)
    read = {pcg.loss}  # outside of what is built
    for index in reversed(range(len(pcg.nodes))):
        if index not in made and (index in read or index not in views | plain):
            read.update(pcg.nodes[index].inputs)
    return frozenset(made | ((views | plain) - read)), tuple(sorted(made & read))


def _made(nodes: Sequence[Node]) -> tuple[set[int], set[int], set[int]]:
    """The nodes that are computed once, views of these, and equal or consecutive numbers with their views."""
    made, views, plain = set[int](), set[int](), set[int]()
    for index, node in enumerate(nodes):
        if node.op in SOURCES or is_random(node):
            continue
        entry = operator(node.op)
        given = set(node.inputs)
        if entry.transfer or entry.updates or not (given or entry.creates) or not given <= made | views | plain:
            continue
        shows = node.op in _PLAIN or (bool(given) and not entry.passes)
        kind = made if not shows else plain if given <= plain else views
        kind.add(index)
    return made, views, plain


def shared(nodes: Sequence[Node]) -> list[Node]:
    """The nodes, with each constant that equals an earlier one read there: equal layers then have one mask."""
    made, views, plain = _made(nodes)
    known = made | views | plain
    first: dict[object, int] = {}
    same: dict[int, int] = {}  # node -> the first that is equal
    for index, node in enumerate(nodes):
        if index in known:
            inputs = tuple(same.get(i, i) for i in node.inputs)
            key = node.op, inputs, node.shape, node.dtype, repr(node.attributes)
            same[index] = first.setdefault(key, index)
    moved = {index: other for index, other in same.items() if index in made}
    return [replace(node, inputs=tuple(moved.get(i, i) for i in node.inputs)) for node in nodes]
