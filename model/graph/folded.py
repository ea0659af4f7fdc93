"""The graph of a pipeline that every micro-batch passes several times: the passes of a model that recycles, folded.

A model that recycles (`recycling`) runs its layers F - 1 times without gradient before the pass with gradient. One
after another its passes cannot be cut into stages between the layers: each reads what the pass before found at the end.
Folded, a node without gradient stands right before the node with gradient that it repeats, so a part of the graph has
the same layers of all passes; and what a pass hands to the next goes back `to_pass` where it is computed, and comes
`from_pass` where it is read.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import TypeAlias

from ..errors import PartitaError
from .boundaries import needed, stage_local
from .origin import origin
from .pcg import PCG, SOURCES
from .recycling import pass_numbers, twins
from .stages import Stage, graph_of

Place: TypeAlias = tuple[int, int, int, int]
"""Of a node in a folded graph: the node beside which it is, whether before it (0), in its place (1) or after it (2),
its pass, and its index."""


def passes(pcg: PCG) -> int:
    """How often a micro-batch goes forward: F, of which the last has a gradient; 1 where a model does not recycle."""
    return 1 + max(pass_numbers(pcg), default=0)


def folded(pcg: PCG) -> Stage:
    """The graph in which the passes are folded. PartitaError: a pass reads the one before in another way."""
    at = origin(pcg)
    chosen = _chosen(at)
    return graph_of(pcg, chosen, None if at is pcg else folded(at).graph)


def pass_of(pcg: PCG) -> tuple[int, ...]:
    """Per node of a graph to fold, or of a folded one or a stage of it, the pass that it is computed in, from 0."""
    return _pass_of(origin(pcg))


@lru_cache(maxsize=64)
def _pass_of(pcg: PCG) -> tuple[int, ...]:
    if pcg.part is not None:
        whole = _pass_of(origin(pcg.part[0]))
        return tuple(whole[i] for i in pcg.part[1])
    place = _places(pcg)
    return tuple(place[i][2] if i in place else 0 for i in range(len(pcg.nodes)))


def is_folded(pcg: PCG) -> bool:
    """True if a graph is folded, or a stage of such a graph."""
    at = origin(pcg)
    return bool(at.of("from_pass")) or (at.part is not None and is_folded(at.part[0]))


@lru_cache(maxsize=16)
def _chosen(pcg: PCG) -> tuple[tuple[int, str], ...]:
    """The nodes of the folded graph in order: pairs of an index and the operator that it has there, if another one."""
    if passes(pcg) == 1:
        raise PartitaError("3F1B pipelines need a model that recycles: it runs layers without gradient, then with it")
    alive = needed(pcg, (pcg.loss,))
    place = _places(pcg)
    handed = {
        i: min(place[n] for n in pcg.consumers[i] if n in place and place[n] < place[i])
        for i in place
        if any(n in place and place[n] < place[i] for n in pcg.consumers[i])
    }
    for index in handed:
        node, after = pcg.nodes[index], place[index][2] + 1
        readers = [place[n] for n in pcg.consumers[index] if n in place]
        if node.gradient or any((x < place[index]) != (x[2] == after) or x[2] > after for x in readers):
            raise PartitaError(
                f"3F1B pipelines: {node.op} {node.name!r} of a pass is read in another place than the beginning of the "
                "next one: plan with another --schedule"
            )
    order = sorted(place, key=lambda i: place[i])
    found = [(i, "") for i in sorted(alive) if pcg.nodes[i].op in SOURCES]
    coming = sorted((reader, i) for i, reader in handed.items())
    for index in order:
        while coming and coming[0][0] <= place[index]:
            found.append((coming.pop(0)[1], "from_pass"))
        found.append((index, ""))
        if index in handed:
            found.append((index, "to_pass"))
    return tuple(found)


@lru_cache(maxsize=16)
def _places(pcg: PCG) -> Mapping[int, Place]:
    """The place of every computed node: beside what it repeats, or before what reads it first.

    What makes less of a tensor before it is handed on, such as a row of it, is done where that is computed.
    """
    repeats, number, local = twins(pcg), pass_numbers(pcg), stage_local(pcg)
    found: dict[int, Place] = {}
    moving: list[int] = []
    for index in sorted(needed(pcg, (pcg.loss,)), reverse=True):
        node = pcg.nodes[index]
        if node.op in SOURCES:
            continue
        read = [found[n] for n in pcg.consumers[index] if n in found]
        if index not in repeats and not node.gradient and read:
            found[index] = (min(read)[0], 0, number[index], index)
            moving += [index] if index not in local else []
        else:
            found[index] = (repeats.get(index, index), 1, number[index], index)
    for index in reversed(moving):
        made = [i for i in pcg.nodes[index].inputs if i in found and i not in local]
        if len(made) == 1 and found[made[0]] > found[index] and pcg.nodes[index].numel < pcg.nodes[made[0]].numel:
            at, _, before, _ = found[made[0]]
            found[index] = (at, 2, before, index)
    return found
