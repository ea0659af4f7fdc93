"""Segments: the parts of a model whose forward may run again before their backward (activation checkpointing).

A segment is what the model computes in one entry of a list of layers (`layers.3`), with what the loop computes between
it and the next entry. It is recomputed from its inputs; its results, which others read, are kept.
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

from ..operators.loss import LOSSES
from ..operators.operator import operator
from .buffer_updates import updated
from .constants import built_once
from .origin import origin
from .pcg import PCG, SOURCES, TRANSFERS
from .recycling import twins
from .sparse_tables import sparse_tables

MODES = ("none", "full", "selective")
"""What a segment keeps: all that its backward needs; its inputs; its inputs and the results of its products."""

IN_PARTS = {f"{parts} parts": parts for parts in (2, 4, 8)}
"""Modes that keep its inputs, and compute it in parts of its samples, one after another (co-shard)."""

Entries: TypeAlias = Mapping[int, Sequence[int]]
"""Index in a list of layers -> the nodes in that entry."""

LIST_INDEX = re.compile(r"(?:^|\.)(\d+)(?=\.|$)")
_ONCE = (*TRANSFERS, *LOSSES)
"""Operators that must not run twice: transfers and losses."""


@dataclass(frozen=True, slots=True)
class Segment:
    """`name`: the entry's path in the user's model; `nodes`: in the order of the graph, without sources."""

    name: str
    nodes: tuple[int, ...]


def segments(pcg: PCG) -> tuple[Segment, ...]:
    """The segments of a graph, in its order; no two share a node.

    An entry is a segment if it computes products with a gradient, keeps something of its own for backward, and can run
    again: it updates no statistics, shares no weights, and nothing leads out of it and back in. An entry that only
    holds a list of equal entries stands for these. Passes without gradient have no segments.
    """
    return _segments(origin(pcg))  # the same at any batch


@lru_cache(maxsize=64)
def _segments(pcg: PCG) -> tuple[Segment, ...]:
    found = lists(pcg, [i for i in range(len(pcg.nodes)) if i not in twins(pcg) and not _outside(pcg, i)])
    above = {prefix: list_above(prefix, found) for prefix in found}
    named = [item for prefix in found if above[prefix] is None for item in _entries(pcg, prefix, found, above)]
    made = (Segment(name, tuple(sorted(nodes))) for name, nodes in named)
    return tuple(sorted((s for s in made if _runs_again(pcg, s.nodes)), key=lambda s: s.nodes[0]))


def places(pcg: PCG) -> Mapping[int, str | int]:
    """For every node but sources its segment, or the number of the run of nodes between segments that it is in."""
    return _places(origin(pcg))


@lru_cache(maxsize=64)
def _places(pcg: PCG) -> Mapping[int, str | int]:
    of_segment = {i: segment.name for segment in _segments(pcg) for i in segment.nodes}
    found: dict[int, str | int] = {}
    run = 0
    for index, node in enumerate(pcg.nodes):
        if index in of_segment:
            found[index] = of_segment[index]
            run = index + 1
        elif node.op not in SOURCES:
            found[index] = run
    return found


def is_product(pcg: PCG, index: int) -> bool:
    """True for products of matrices, convolutions and attention."""
    node = pcg.nodes[index]
    return node.op not in SOURCES and operator(node.op).matmul and len(node.inputs) > 1


def gives_product(pcg: PCG, index: int) -> bool:
    """True if mode selective keeps a node's result: a product itself, not fused with an activation or other steps."""
    if not is_product(pcg, index):
        return False
    entry = operator(pcg.nodes[index].op)
    return not entry.masked and entry.launches is None


def layer_weights(pcg: PCG, segment: Segment) -> list[int]:
    """The weights that a segment reads, and no pass that repeats it; without sparse tables, which never move."""
    inside = set(segment.nodes)
    read = dict.fromkeys(i for node in segment.nodes for i in pcg.nodes[node].inputs if pcg.nodes[i].op == "parameter")
    return [i for i in read if inside.issuperset(pcg.consumers[i]) and i not in sparse_tables(pcg)]


def layer_elements(pcg: PCG, segment: Segment) -> int:
    """The number of elements of those weights."""
    return sum(pcg.nodes[i].numel for i in layer_weights(pcg, segment))


def elements_of_layer(pcg: PCG) -> Mapping[int, int]:
    """For every weight of a layer the number of elements of the layer; that of the whole graph, if stages divide it."""
    return of_whole(pcg, _elements_of_layer)


def of_whole(pcg: PCG, found: Callable[[PCG], Mapping[int, int]]) -> Mapping[int, int]:
    """What is `found` for weights of the graph of which this one is a stage, or of this one if it is whole."""
    if (part := origin(pcg).part) is None:
        return found(origin(pcg))
    known = found(part[0])
    return {n: known[i] for n, i in enumerate(part[1]) if i in known and pcg.nodes[n].op == "parameter"}


@lru_cache(maxsize=64)
def _elements_of_layer(pcg: PCG) -> Mapping[int, int]:
    known = ((layer_weights(pcg, segment), layer_elements(pcg, segment)) for segment in _segments(pcg))
    return {i: elements for weights, elements in known for i in weights}


def divided_layers(pcg: PCG) -> frozenset[int]:
    """The nodes that are in other segments than in the whole graph, of which stages have parts; none of a whole graph.

    They may be in no segment where one of the whole graph ends with what its list computes between two entries.
    """
    at = origin(pcg)
    if at.part is None:
        return frozenset()
    places = {n: place for n, place in enumerate(at.part[1]) if at.nodes[n].op not in _ONCE}
    here, there = ({i: s.nodes for s in segments(graph) for i in s.nodes} for graph in (at, at.part[0]))

    def is_divided(n: int, place: int) -> bool:
        return [places[i] for i in here.get(n, ())] != [*there.get(place, ())]

    return frozenset(n for n, place in places.items() if is_divided(n, place))


# Lists of layers


def lists(pcg: PCG, nodes: Collection[int]) -> dict[str, dict[int, list[int]]]:
    """Path of every list of layers -> its entries, each with those of `nodes` that are in it."""
    found: dict[str, dict[int, list[int]]] = {}
    for index in nodes:
        path = pcg.nodes[index].path
        for match in LIST_INDEX.finditer(path):
            found.setdefault(path[: match.start()], {}).setdefault(int(match[1]), []).append(index)
    return found


def list_above(prefix: str, known: Mapping[str, object]) -> str | None:
    """The innermost list with an entry that holds this list: `stages` for `stages.0.blocks`."""
    places = [match.start() for match in LIST_INDEX.finditer(prefix)]
    return next((prefix[:place] for place in reversed(places) if prefix[:place] in known), None)


def with_glue(pcg: PCG, prefix: str, entries: Entries) -> Entries:
    """The entries with what the loop computes after each (an activation, a residual sum)."""
    result = {number: list(nodes) for number, nodes in entries.items()}
    for number, nodes in sorted(result.items()):
        following = set(result.get(number + 1, ()))
        grown = bool(following)
        while grown:
            inside = set(nodes)
            known = inside | {i for n in nodes for i in pcg.nodes[n].inputs}
            readers = {c for n in nodes for c in pcg.consumers[n]} - inside - following
            glue = [
                c
                for c in sorted(readers)
                if set(pcg.nodes[c].inputs) <= known and pcg.consumers[c] and prefix.startswith(pcg.nodes[c].path)
            ]
            grown = bool(glue)
            nodes += glue[:1]
    return result


def _outside(pcg: PCG, index: int) -> bool:
    """True for sources, transfers, scalars and what is computed once, which belong to no segment."""
    node = pcg.nodes[index]
    scalar = node.op == "full" and not node.shape
    return node.op in SOURCES or node.op in TRANSFERS or scalar or index in built_once(pcg)


def _entries(
    pcg: PCG, prefix: str, found: Mapping[str, Entries], above: Mapping[str, str | None]
) -> Iterator[tuple[str, Sequence[int]]]:
    """Names and nodes of a list's entries; an entry that only holds a list of equal entries is replaced by those."""
    for number, nodes in with_glue(pcg, prefix, found[prefix]).items():
        name = f"{prefix}.{number}" if prefix else str(number)
        below = [p for p in found if above[p] == prefix and f"{p}.".startswith(f"{name}.")]
        inner = next((p for p in below if _only_holds(pcg, found[p], nodes)), None)
        if inner is None:
            yield name, nodes
        else:
            yield from _entries(pcg, inner, found, above)


def _only_holds(pcg: PCG, entries: Entries, nodes: Sequence[int]) -> bool:
    """True if all products among `nodes` are in the entries, which have equally many each, and several."""
    counts = [sum(is_product(pcg, i) for i in inside) for inside in entries.values()]
    return sum(counts) == sum(is_product(pcg, i) for i in nodes) and len({*counts}) == 1 and counts[0] > 1


# What can run again


def _runs_again(pcg: PCG, nodes: Sequence[int]) -> bool:
    inside, updating = set(nodes), {reader for reader, _ in updated(pcg).values()}
    return (
        any(is_product(pcg, i) and pcg.nodes[i].gradient for i in nodes)
        and not any(pcg.nodes[i].op in _ONCE for i in nodes)
        and inside.isdisjoint(updating)
        and _own_weights(pcg, inside)
        and not _returns(pcg, inside)
        and _keeps(pcg, inside)
    )


def _own_weights(pcg: PCG, inside: Collection[int]) -> bool:
    """True if all weights are read here alone, except by passes without gradient, and no such pass is read."""
    twin, sources = twins(pcg), {i for n in inside for i in pcg.nodes[n].inputs}
    weights = (i for i in sources if pcg.nodes[i].op == "parameter")
    return sources.isdisjoint(twin) and all(c in inside or c in twin for w in weights for c in pcg.consumers[w])


def _returns(pcg: PCG, inside: Collection[int]) -> bool:
    """True if a node outside is computed from the segment and read by it."""
    reached: set[int] = set()
    for index in range(min(inside), max(inside) + 1):
        sources = pcg.nodes[index].inputs
        if index in inside and not reached.isdisjoint(sources):
            return True
        if index not in inside and any(i in reached or i in inside for i in sources):
            reached.add(index)
    return False


def _keeps(pcg: PCG, inside: Collection[int]) -> bool:
    """True if it keeps something for backward that is not a result, which its readers may keep."""
    results = {_viewed(pcg, i) for i in inside if not set(pcg.consumers[i]) <= set(inside)}
    for index in inside:
        node = pcg.nodes[index]
        entry = operator(node.op)
        saved = entry.kept(node, tuple(pcg.nodes[i] for i in node.inputs))
        named = zip(entry.named(node), node.inputs, strict=True)
        kept = {_viewed(pcg, i) for name, i in named if name in saved} | ({index} if "y" in saved else set())
        if (kept & set(inside)) - results or {"mask", "noise", "indices", "gate"} & {*saved}:
            return True
    return False


def _viewed(pcg: PCG, index: int) -> int:
    """The tensor that a node is a view of, or the node itself."""
    while pcg.nodes[index].op not in SOURCES and operator(pcg.nodes[index].op).view:
        index = pcg.nodes[index].inputs[0]
    return index
