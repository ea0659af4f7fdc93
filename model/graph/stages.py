"""Stages of a pipeline: the graph of what lies between two boundaries of a graph.

It starts with a `receive` for every tensor that crosses the first, and ends with a `send` for every one that crosses
the second, or with the loss; what crosses both unread is received and sent on. Inputs, constants and what follows from
them cheaply are in every stage that reads them, as are parameters that several stages read.

A stage has the atoms of the whole graph, so that both sides of a boundary know the same layouts, and whatever is known
of the whole graph's nodes holds for those of a stage (`PCG.part`).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise

from .atoms import Atoms, atoms
from .boundaries import MOST_CROSSING, Boundary, boundaries, free, needed
from .origin import origin
from .pcg import PCG, SOURCES, Attribute, Node
from .segments import NUMBER
from .verification import verify

__all__ = ["MOST_CROSSING", "Boundary", "Stage", "boundaries", "kind", "stage"]


@dataclass(frozen=True)
class Stage:
    """What lies between two boundaries. `nodes`: for every node of `graph` its index in the whole graph.

    For a `receive` or `send` that of the tensor.
    """

    graph: PCG
    nodes: tuple[int, ...]


def stage(pcg: PCG, first: int, last: int) -> Stage:
    """The graph between two boundaries, counted from 0; all of it is the graph itself. ValueError: no such boundaries.

    A parameter that other stages may have too is told in how many there may be (`stages`).
    """
    count = len(boundaries(pcg))
    if not 0 <= first < last < count:
        raise ValueError(f"no stage from boundary {first} to {last} of {count}")
    if (first, last) == (0, count - 1):
        return Stage(pcg, tuple(range(len(pcg.nodes))))
    return _stage(pcg, first, last)


def kind(pcg: PCG, first: int, last: int) -> Hashable:
    """Equal for those stages of a graph that are the same up to names: layers of equal shapes, say.

    Their cost networks are equal, up to the order of variables.
    """
    at, seen, found = origin(pcg), dict[Hashable, int](), []
    for number in range(first, last):
        signature, shared = _signatures(at)[number]
        found.append((signature, tuple(seen.setdefault(thing, len(seen)) for thing in shared)))
    elsewhere = ((index, _holders(at, index, first, last)) for index in _shared_parameters(at))
    tied = tuple((seen[index], n) for index, n in elsewhere if n > 1 and index in seen)
    return tuple(found), tied, _across(at, first, last)


# The graph of a stage


@dataclass(frozen=True)
class _Plan:
    """What a stage has: nodes of the whole graph in order, received and sent tensors, and what is said of nodes.

    First comes what is stored or given, then what is computed in the order of the whole graph; but what every stage
    computes for itself right before it is first read, so that equal layers are equal stages.
    """

    order: tuple[int, ...]
    received: tuple[int, ...]
    sent: tuple[int, ...]
    said: Mapping[int, Mapping[str, Attribute]]


@lru_cache(maxsize=1024)
def _plan(pcg: PCG, first: int, last: int) -> _Plan:
    bounds, known, held = boundaries(pcg), atoms(pcg), _held(pcg)
    received, sent = bounds[first].crossing, bounds[last].crossing
    inside = needed(pcg, sent or (pcg.loss,), {*received})
    if pcg.alternatives:
        inside = _in_all_ways(pcg, inside, {*received}, first, last)
    order = _ordered(pcg, {*inside, *received}, received)
    said: dict[int, dict[str, Attribute]] = {}
    for index in {*order, *received, *sent}:
        if index in received or index in sent or (len(held.get(index, ())) > 1 and _has_factors(known[index])):
            said[index] = {"atoms": _factors(known[index])}
        count = _holders(pcg, index, first, last)
        if pcg.nodes[index].op == "parameter" and pcg.nodes[index].gradient and count > 1:
            said[index] = {"stages": count, **said.get(index, {})}
    return _Plan(order, received, sent, said)


def _in_all_ways(pcg: PCG, inside: Set[int], received: Set[int], first: int, last: int) -> set[int]:
    """With what else computes the tensors of a stage from what it has, and joins no weights that other stages have."""
    own = range(first, last)
    elsewhere = {
        name
        for index, numbers in _held(pcg).items()
        if pcg.nodes[index].op == "parameter" and not all(number in own for number in numbers)
        for name in pcg.nodes[index].originals
    }

    def fits(index: int) -> bool:
        node = pcg.nodes[index]
        joined = index not in pcg.plain and not elsewhere.isdisjoint(node.originals)
        return index in free(pcg) or (not joined if node.op in SOURCES else index not in pcg.plain)

    found = {*inside}
    for way, node in sorted(pcg.alternatives, key=lambda pair: -pair[1]):
        if node in found and node not in free(pcg):
            cone = needed(pcg, (way,), found | received)
            found |= cone if all(map(fits, cone)) else set()
    return found


def _ordered(pcg: PCG, nodes: Set[int], received: Sequence[int]) -> tuple[int, ...]:
    """The nodes of a stage in its order."""
    anywhere = free(pcg)
    found = dict.fromkeys(i for i in sorted(nodes) if pcg.nodes[i].op in SOURCES)

    def place(index: int) -> None:
        for source in pcg.nodes[index].inputs if index not in received else ():
            if source in anywhere and source not in found:
                place(source)
        found[index] = None

    for index in sorted(nodes):
        if index not in anywhere and index not in found:
            place(index)
    return tuple(found)


@lru_cache(maxsize=256)
def _stage(pcg: PCG, first: int, last: int) -> Stage:
    at = origin(pcg)
    plan = _plan(at, first, last)
    number = {old: new for new, old in enumerate(plan.order)}
    nodes: list[Node] = []
    for old in plan.order:
        node = pcg.nodes[old]
        if old in plan.received:
            nodes.append(_transfer("receive", node, plan.said[old], ()))
            continue
        said = {} if old in plan.sent else plan.said.get(old, {})
        attributes = tuple(sorted((*node.attributes, *said.items()))) if said else node.attributes
        nodes.append(replace(node, inputs=tuple(number[i] for i in node.inputs), attributes=attributes))
    nodes += (_transfer("send", pcg.nodes[old], plan.said[old], (number[old],)) for old in plan.sent)
    places = (*plan.order, *plan.sent)
    names = {name for node in nodes if node.op == "parameter" for name in node.originals}
    graph = PCG(
        tuple(nodes),
        len(nodes) - 1 if plan.sent else number[pcg.loss],
        pcg.batch,
        tuple(pair for pair in pcg.aliases if pair[1] in names),
        tuple(pcg.samples[i] for i in places) if pcg.samples else (),
        None if at is pcg else _stage(at, first, last).graph,
        tuple((number[a], number[b]) for a, b in pcg.alternatives if a in number and b in number),
        (pcg, places) if at is pcg else None,
    )
    if at is pcg:
        verify(graph)
    return Stage(graph, places)


def _transfer(op: str, node: Node, said: Mapping[str, Attribute], inputs: tuple[int, ...]) -> Node:
    name = f"{node.name} {'received' if op == 'receive' else 'sent'}"
    return Node(op, name, inputs, node.shape, node.dtype, (("atoms", said["atoms"]), ("peer", node.name)), True)


def _has_factors(known: Atoms) -> bool:
    return any(len(sizes) > 1 for sizes in known.dims)


def _factors(known: Atoms) -> tuple[tuple[int, ...], ...]:
    """The factors of every dim, 0 for the samples."""
    return tuple(
        tuple(0 if atom in known.batch else known.sizes[atom] for atom in known.of_dim(dim))
        for dim in range(len(known.dims))
    )


# What stages share


@lru_cache(maxsize=16)
def _held(pcg: PCG) -> Mapping[int, tuple[int, ...]]:
    """For every node the boundaries after which it is needed before the next, tensors that cross on both sides."""
    found: dict[int, list[int]] = {}
    for number, (here, there) in enumerate(pairwise(boundaries(pcg))):
        inside = needed(pcg, there.crossing or (pcg.loss,), {*here.crossing})
        for index in {*inside, *here.crossing}:
            found.setdefault(index, []).append(number)
    return {index: tuple(numbers) for index, numbers in found.items()}


def _holders(pcg: PCG, index: int, first: int, last: int) -> int:
    """How many stages may have a parameter of this one: itself, and all others between two neighbouring boundaries."""
    return 1 + sum(not first <= number < last for number in _held(pcg).get(index, ()))


@lru_cache(maxsize=16)
def _shared_parameters(pcg: PCG) -> tuple[int, ...]:
    held = _held(pcg)
    return tuple(i for i in pcg.of("parameter") if len(held.get(i, ())) > 1)


def _across(pcg: PCG, first: int, last: int) -> Hashable:
    """The stage itself, if there are ways to compute it that reach over boundaries inside of it."""
    if not pcg.alternatives:
        return None
    apart = {index for number in range(first, last) for index in _plan(pcg, number, number + 1).order}
    return None if apart.issuperset(_plan(pcg, first, last).order) else (first, last)


@lru_cache(maxsize=16)
def _signatures(pcg: PCG) -> tuple[tuple[int, tuple[Hashable, ...]], ...]:
    """For every two neighbouring boundaries a number that equal stages between them share, and what of them others
    have too: nodes of the whole graph, and entries of lists of modules; in an order that equal stages share.
    """
    known, held, numbers = atoms(pcg), _held(pcg), dict[Hashable, int]()
    found = []
    for first in range(len(boundaries(pcg)) - 1):
        plan, entries = _plan(pcg, first, first + 1), dict[str, int]()
        place = {index: number for number, index in enumerate(plan.order)}
        signature = tuple(
            (known[index], pcg.nodes[index].shape, pcg.nodes[index].dtype, index in plan.sent)
            if index in plan.received
            else (
                *_looks(pcg.nodes[index], known[index], entries),
                tuple(place[i] for i in pcg.nodes[index].inputs),
                tuple(place.get(way, -1) for way in pcg.members.get(index, ())),
                (index in plan.sent, index == pcg.loss),
            )
            for index in plan.order
        )
        number = numbers.setdefault((signature, tuple(place[i] for i in plan.sent)), len(numbers))
        found.append((number, (*(i for i in plan.order if len(held.get(i, ())) > 1), *entries)))
    return tuple(found)


def _looks(node: Node, known: Atoms, entries: dict[str, int]) -> Iterator[Hashable]:
    """What a node is, without its name; `entries` of lists of modules are counted as they appear."""
    attributes = tuple(a for a in node.attributes if a[0] != "site")
    yield from (node.op, node.shape, node.dtype, node.gradient, attributes, known)
    path = node.path if node.op != "parameter" else node.name
    ends = [match.end(1) for match in NUMBER.finditer(path)]
    yield tuple(entries.setdefault(path[:end], len(entries)) for end in ends)
    yield NUMBER.sub(".#", path)
