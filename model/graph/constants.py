"""What depends on no input, weight or buffer: computed once, when the program's module is built, whole on every rank.

Fills, ranges and views cost next to nothing and are made again where they are read.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from ..operators.operator import is_random, operator
from .origin import origin
from .pcg import PCG, SOURCES, Node

_FILLS = ("full", "arange")
ELEMENTWISE = frozenset([
    "add", "sub", "mul", "div", "maximum", "minimum", "relate", "compare", "where", "shift", "scale", "neg", "to",
    "logical_not", "unary", "binary", "detach",
])  # fmt: skip
"""Elementwise operators, which broadcast their operands."""


def built_once(pcg: PCG) -> frozenset[int]:
    """The nodes that are computed when the module is built, and nowhere else."""
    return _found(origin(pcg))[0]


def held(pcg: PCG) -> tuple[int, ...]:
    """Those of `built_once` that other nodes read: the module holds them."""
    return _found(origin(pcg))[1]


def fills(pcg: PCG) -> frozenset[int]:
    """Fills, ranges and their views: any part of them is made where it is read, at no cost."""
    return _found(origin(pcg))[2]


@lru_cache(maxsize=16)
def _found(pcg: PCG) -> tuple[frozenset[int], tuple[int, ...], frozenset[int]]:
    made, views, plain = _made(pcg.nodes)
    read = {pcg.loss}  # outside of what is built
    for index in reversed(range(len(pcg.nodes))):
        if index not in made and (index in read or index not in views | plain):
            read.update(pcg.nodes[index].inputs)
    return frozenset(made | ((views | plain) - read)), tuple(sorted(made & read)), frozenset(plain)


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
        shows = node.op in _FILLS or (bool(given) and not entry.passes)
        kind = made if not shows else plain if given <= plain else views
        kind.add(index)
    return made, views, plain


def shared(nodes: Sequence[Node]) -> list[Node]:
    """Merge equal constants, so that equal layers read one mask; the nodes, of which duplicates are read no more."""
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


def expanded_last(nodes: Sequence[Node]) -> tuple[list[Node], list[int]]:
    """Expand constants after computing them, so that a mask that all samples share is held once.

    Returns the nodes, and for each old one its new number.
    """
    import numpy as np  # not where only help is printed

    made, _, _ = _made(nodes)
    found: list[Node] = []
    number: list[int] = []
    for index, node in enumerate(nodes):
        node = replace(node, inputs=tuple(number[i] for i in node.inputs))
        given = [found[i] for i in node.inputs]
        small = [_before(x, found) for x in given]
        shape = np.broadcast_shapes(*small) if index in made and node.op in ELEMENTWISE else node.shape
        if shape == node.shape or len(shape) > len(node.shape):
            number.append(len(found))
            found.append(node)
            continue
        inputs = tuple(i if x.shape == s else x.inputs[0] for i, x, s in zip(node.inputs, given, small, strict=True))
        found.append(replace(node, inputs=inputs, shape=shape))
        found.append(
            replace(
                node, op="expand", name=f"{node.name}.expand", inputs=(len(found) - 1,), attributes=(), gradient=False
            )
        )
        number.append(len(found) - 1)
    return found, number


def _before(node: Node, nodes: Sequence[Node]) -> tuple[int, ...]:
    """The shape of what a node expands, or its own."""
    return nodes[node.inputs[0]].shape if node.op == "expand" else node.shape
