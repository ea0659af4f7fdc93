"""Recycling: passes without gradient over layers that one pass with gradient runs too (AlphaFold, Algorithm 2).

A node of such a pass is the *twin* of the node with gradient that does the same. Layouts are chosen for the pass with
gradient and its twins take the same, so weights are stored once and the search is as small as for one pass.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import TypeAlias

from ..operators.operator import operator
from .origin import origin
from .pcg import PCG, SOURCES, TRANSFERS, Node

Key: TypeAlias = tuple[object, ...]


def twins(pcg: PCG) -> Mapping[int, int]:
    """Node of a pass without gradient -> the node with gradient that it repeats, in the order of the graph.

    The k-th node with some place in the module, operator and shape in each pass repeats the k-th such node of the pass
    with gradient. A twin reads the same weights, or twins of what the other reads.
    """
    return _twins(origin(pcg))  # the same at any batch


def pass_numbers(pcg: PCG) -> tuple[int, ...]:
    """Per node, the pass that it belongs to, from 0; those before the first pass are in it, those after in the last."""
    return _pass_numbers(origin(pcg))


@lru_cache(maxsize=16)
def _pass_numbers(pcg: PCG) -> tuple[int, ...]:
    if pcg.part is not None:
        whole = _pass_numbers(origin(pcg.part[0]))
        return tuple(whole[i] for i in pcg.part[1])
    repeated: dict[int, list[int]] = {}
    for index, model in twins(pcg).items():
        repeated.setdefault(model, []).append(index)
    count = max(map(len, repeated.values()), default=0)
    last = [max(repeats[p] for repeats in repeated.values() if len(repeats) == count) for p in range(count)]
    return tuple(sum(end < index for end in last) for index in range(len(pcg.nodes)))


@lru_cache(maxsize=16)
def _twins(pcg: PCG) -> Mapping[int, int]:
    if pcg.part is not None:
        return _twins_of_part(pcg, *pcg.part)
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


def _twins_of_part(pcg: PCG, whole: PCG, places: tuple[int, ...]) -> Mapping[int, int]:
    """The twins of the graph that this is a part of; a tensor that is handed over repeats the one of its model."""
    kinds = [node.op if node.op in TRANSFERS else "" for node in pcg.nodes]
    number = {(place, kind): index for index, (place, kind) in enumerate(zip(places, kinds, strict=True))}
    models = _twins(origin(whole))
    pairs = ((n, number.get((models.get(i, -1), kind))) for n, (i, kind) in enumerate(zip(places, kinds, strict=True)))
    return {index: model for index, model in pairs if model is not None}


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
