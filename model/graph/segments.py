"""Segments: the parts of a model whose forward may run once more before their backward (recomputation).

A segment is what the model computes below one entry of a list of layers (`layers.3`), with what the loop computes
between it and the next entry. Its results are given to others, and what it keeps for backward besides can be brought
back from what enters it.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

from ..operators.loss import LOSSES
from ..operators.operator import operator
from .buffer_updates import updated
from .origin import origin
from .pcg import PCG, SOURCES
from .recycling import twins

MODES = ("none", "full", "selective")
"""What is kept of a segment: all that its backward needs; what enters it; that, and what its products give."""

Entries: TypeAlias = Mapping[int, Sequence[int]]
"""Number in a list -> the nodes below that entry."""

NUMBER = re.compile(r"(?:^|\.)(\d+)(?=\.|$)")
_ONCE = ("opaque", "receive", "send", *LOSSES)
"""Operators that do not run twice: what is not known to give the same again, what others wait for, and losses."""


@dataclass(frozen=True, slots=True)
class Segment:
    """`name` is that of the entry in the user's model; `nodes` in the order of the graph, without what is stored."""

    name: str
    nodes: tuple[int, ...]


def segments(pcg: PCG) -> tuple[Segment, ...]:
    """The segments of a graph, in its order; no two share a node.

    An entry is one if it computes products with a gradient, keeps something of its own for backward, and can run again:
    it changes no statistics, has its weights for itself, and nothing leads out of it and back. An entry that only holds
    a list of alike entries stands for these. Of passes without gradient there are none.
    """
    return _segments(origin(pcg))  # the same at any batch


@lru_cache(maxsize=64)
def _segments(pcg: PCG) -> tuple[Segment, ...]:
    found = lists(pcg, [i for i in range(len(pcg.nodes)) if i not in twins(pcg) and not _stays(pcg, i)])
    above = {prefix: list_above(prefix, found) for prefix in found}
    named = [item for prefix in found if above[prefix] is None for item in _entries(pcg, prefix, found, above)]
    made = (Segment(name, tuple(sorted(nodes))) for name, nodes in named)
    return tuple(sorted((s for s in made if _runs_again(pcg, s.nodes)), key=lambda s: s.nodes[0]))


def is_product(pcg: PCG, index: int) -> bool:
    """Whether a node is a product of matrices, a convolution or an attention."""
    node = pcg.nodes[index]
    return node.op not in SOURCES and operator(node.op).matmul and len(node.inputs) > 1


def gives_product(pcg: PCG, index: int) -> bool:
    """Whether mode selective keeps what a node gives: a product itself, not what a larger operator makes of it."""
    return is_product(pcg, index) and not operator(pcg.nodes[index].op).masked


# Lists of layers


def lists(pcg: PCG, nodes: Collection[int]) -> dict[str, dict[int, list[int]]]:
    """By the path of every list in the module its entries, each with those of `nodes` that are below it."""
    found: dict[str, dict[int, list[int]]] = {}
    for index in nodes:
        path = pcg.nodes[index].path
        for match in NUMBER.finditer(path):
            found.setdefault(path[: match.start()], {}).setdefault(int(match[1]), []).append(index)
    return found


def list_above(prefix: str, known: Mapping[str, object]) -> str | None:
    """The innermost list of whose entries a list is part: `stages` of `stages.0.blocks`."""
    places = [match.start() for match in NUMBER.finditer(prefix)]
    return next((prefix[:place] for place in reversed(places) if prefix[:place] in known), None)


def with_glue(pcg: PCG, prefix: str, entries: Entries) -> Entries:
    """What the loop itself computes between two entries (an activation, a residual sum) belongs to the former."""
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


def _stays(pcg: PCG, index: int) -> bool:
    """Sources and scalar constants, which belong to no segment."""
    node = pcg.nodes[index]
    return node.op in SOURCES or node.op in ("receive", "send") or (node.op == "full" and not node.shape)


def _entries(
    pcg: PCG, prefix: str, found: Mapping[str, Entries], above: Mapping[str, str | None]
) -> Iterator[tuple[str, Sequence[int]]]:
    """Names and nodes of the entries of a list; of one that only holds a list of alike entries those of that list."""
    for number, nodes in with_glue(pcg, prefix, found[prefix]).items():
        name = f"{prefix}.{number}" if prefix else str(number)
        below = [p for p in found if above[p] == prefix and f"{p}.".startswith(f"{name}.")]
        inner = next((p for p in below if _only_holds(pcg, found[p], nodes)), None)
        if inner is None:
            yield name, nodes
        else:
            yield from _entries(pcg, inner, found, above)


def _only_holds(pcg: PCG, entries: Entries, nodes: Sequence[int]) -> bool:
    """Whether all products among `nodes` are those of the entries, which have as many each, and several."""
    counts = [sum(is_product(pcg, i) for i in inside) for inside in entries.values()]
    return sum(counts) == sum(is_product(pcg, i) for i in nodes) and len({*counts}) == 1 and counts[0] > 1


# What can run again


def _runs_again(pcg: PCG, nodes: Sequence[int]) -> bool:
    inside, changing = set(nodes), {reader for reader, _ in updated(pcg).values()}
    return (
        any(is_product(pcg, i) and pcg.nodes[i].gradient for i in nodes)
        and not any(pcg.nodes[i].op in _ONCE for i in nodes)
        and inside.isdisjoint(changing)
        and _own_weights(pcg, inside)
        and not _returns(pcg, inside)
        and _keeps(pcg, inside)
    )


def _own_weights(pcg: PCG, inside: Collection[int]) -> bool:
    """Whether all its weights are read here only, but for passes without gradient; nothing comes from such a pass."""
    twin, sources = twins(pcg), {i for n in inside for i in pcg.nodes[n].inputs}
    weights = (i for i in sources if pcg.nodes[i].op == "parameter")
    return sources.isdisjoint(twin) and all(c in inside or c in twin for w in weights for c in pcg.consumers[w])


def _returns(pcg: PCG, inside: Collection[int]) -> bool:
    """Whether something between its first and its last node is computed from it, and leads back into it."""
    reached: set[int] = set()
    for index in range(min(inside), max(inside) + 1):
        sources = pcg.nodes[index].inputs
        if index in inside and not reached.isdisjoint(sources):
            return True
        if index not in inside and any(i in reached or i in inside for i in sources):
            reached.add(index)
    return False


def _keeps(pcg: PCG, inside: Collection[int]) -> bool:
    """Whether it keeps something for backward that is not a result, which may be kept by those who read it."""
    results = {_shown(pcg, i) for i in inside if not set(pcg.consumers[i]) <= set(inside)}
    for index in inside:
        node = pcg.nodes[index]
        entry = operator(node.op)
        saved = entry.kept(node, tuple(pcg.nodes[i] for i in node.inputs))
        named = zip(entry.named(node), node.inputs, strict=True)
        kept = {_shown(pcg, i) for name, i in named if name in saved} | ({index} if "y" in saved else set())
        if (kept & set(inside)) - results or {"mask", "noise", "indices"} & {*saved}:
            return True
    return False


def _shown(pcg: PCG, index: int) -> int:
    """The tensor that a view shows."""
    while pcg.nodes[index].op not in SOURCES and operator(pcg.nodes[index].op).view:
        index = pcg.nodes[index].inputs[0]
    return index
