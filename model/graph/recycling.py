"""Recycling: passes without gradient over layers that one pass with gradient runs too (AlphaFold, Algorithm 2).

A node of such a pass is the *twin* of the node with gradient that does the same. Layouts are chosen for the pass with
gradient and its twins take the same, so weights are stored once and the search is as small as for one pass.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import TypeAlias

from ..operators.operator import operator
from .origin import origin
from .pcg import PCG, SOURCES, Node

Key: TypeAlias = tuple[object, ...]


def twins(pcg: PCG) -> Mapping[int, int]:
    """Node of a pass without gradient -> the node with gradient that it repeats, in the order of the graph.

    The k-th node with some place in the module, operator and shape in each pass repeats the k-th such node of the pass
    with gradient. A twin reads the same weights, or twins of what the other reads.
    """
    return _twins(origin(pcg))  # the same at any batch


@lru_cache(maxsize=16)
def _twins(pcg: PCG) -> Mapping[int, int]:
    with_gradient: dict[Key, list[int]] = {}
    without: dict[Key, list[int]] = {}
    for index, node in enumerate(pcg.nodes):
        if node.op not in SOURCES and not operator(node.op).creates:
            (with_gradient if node.gradient else without).setdefault(_key(node), []).append(index)
    found: dict[int, int] = {}
    for key, nodes in without.items():
        models = with_gradient.get(key, ())
        if models and len(nodes) % len(models) == 0:
            found |= {node: models[k % len(models)] for k, node in enumerate(nodes)}
    kept: dict[int, int] = {}
    for index in sorted(found):
        if _repeats(pcg, index, found[index], kept):
            kept[index] = found[index]
    return kept


def _key(node: Node) -> Key:
    attributes = tuple(a for a in node.attributes if a[0] != "site")
    return node.op, node.path, attributes, node.shape, node.dtype, len(node.inputs)


def _repeats(pcg: PCG, index: int, model: int, found: Mapping[int, int]) -> bool:
    """True if a node reads what `model` reads, or twins of it; `found` has the twins among earlier nodes."""
    alike = False
    for mine, other in zip(pcg.nodes[index].inputs, pcg.nodes[model].inputs, strict=True):
        if pcg.nodes[other].op in ("parameter", "buffer"):
            if mine != other:
                return False
            alike |= pcg.nodes[other].gradient
        alike |= found.get(mine) == other
    return alike
