"""The graph of a pipeline stage: the nodes between two boundaries of a graph.

It starts with a `receive` for every tensor that crosses the first boundary, and ends with a `send` for every one that
crosses the second, or with the loss; a tensor that crosses both unread is received and sent on. Inputs, constants and
what is cheap to compute from them are in every stage that reads them, as are parameters that several stages read.

A stage has the atoms of the whole graph, so both sides of a boundary have the same layouts, and the analyses of the
whole graph's nodes hold for those of a stage (`PCG.part`).
"""

from collections.abc import Hashable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import lru_cache

from .atoms import Atoms, atoms
from .boundaries import MAX_CROSSING, Boundary, boundaries, boundaries_at, needed, stage_local
from .origin import origin
from .pcg import PCG, SOURCES, Attribute, Node
from .segments import LIST_INDEX, elements_of_layer
from .verification import verify

__all__ = ["MAX_CROSSING", "Boundary", "Stage", "boundaries", "boundaries_at", "stage", "stage_kind"]


@dataclass(frozen=True)
class Stage:
    """The graph between two boundaries. `nodes`: every node's index in the whole graph.

    A `receive` or `send` has the index of its tensor.
    """

    graph: PCG
    nodes: tuple[int, ...]


def stage(pcg: PCG, first: int, last: int) -> Stage:
    """The graph between two boundaries, counted from 0; ValueError if there are no such boundaries.

    A parameter that other stages may hold too has an attribute `stages`: how many may hold it; and `ends` if this is
    the first or the last stage, and only the one at the other end has it too.
    """
    count = len(boundaries(pcg))
    if not 0 <= first < last < count:
        raise ValueError(f"no stage from boundary {first} to {last} of {count}")
    if (first, last) == (0, count - 1):
        return Stage(pcg, tuple(range(len(pcg.nodes))))
    return _stage(pcg, first, last)


def stage_kind(pcg: PCG, first: int, last: int) -> Hashable:
    """Equal for stages of a graph that are the same up to names, such as equal layers.

    Their cost networks are equal up to the order of variables.
    """
    at, seen, found = origin(pcg), dict[Hashable, int](), []
    for number in range(first, last):
        signature, shared = _signatures(at)[number]
        found.append((signature, tuple(seen.setdefault(key, len(seen)) for key in shared)))
    elsewhere = ((index, _holders(at, index, first, last)) for index in _shared_parameters(at))
    tied = tuple((seen[i], n, _at_ends(at, i, first, last)) for i, n in elsewhere if n > 1 and i in seen)
    return tuple(found), tied, _across(at, first, last)


# The graph of a stage


@dataclass(frozen=True)
class _StageNodes:
    """The nodes of a stage in order, as indices in the whole graph; received and sent tensors; further attributes.

    Sources come first, then computed nodes in the order of the whole graph; nodes that every stage computes itself
    come right before their first reader, so that equal layers are equal stages.
    """

    order: tuple[int, ...]
    received: tuple[int, ...]
    sent: tuple[int, ...]
    attributes: Mapping[int, Mapping[str, Attribute]]


@lru_cache(maxsize=1024)
def _stage_nodes(pcg: PCG, first: int, last: int) -> _StageNodes:
    bounds, known, held = boundaries(pcg), atoms(pcg), _held(pcg)
    received, sent = bounds[first].crossing, bounds[last].crossing
    inside = needed(pcg, _results(pcg, first, last), {*received})
    if pcg.alternatives:
        inside = _with_alternatives(pcg, inside, {*received}, first, last)
    order = _ordered(pcg, {*inside, *received}, received)
    attributes: dict[int, dict[str, Attribute]] = {}
    for index in {*order, *received, *sent}:
        if index in received or index in sent or (len(held.get(index, ())) > 1 and _has_factors(known[index])):
            attributes[index] = {"atoms": _factors(known[index])}
        count = _holders(pcg, index, first, last)
        if pcg.nodes[index].op == "parameter" and pcg.nodes[index].gradient and count > 1:
            ends = {"ends": True} if _at_ends(pcg, index, first, last) else {}
            attributes[index] = {"stages": count, **ends, **attributes.get(index, {})}
    return _StageNodes(order, received, sent, attributes)


def _results(pcg: PCG, first: int, last: int) -> tuple[int, ...]:
    """What a stage computes for others: what crosses its end, or the loss, and what a pass hands to the next."""
    bounds = boundaries(pcg)
    inside = range(bounds[first].position, bounds[last].position)
    return (*(bounds[last].crossing or (pcg.loss,)), *(i for i in pcg.of("to_pass") if i in inside))


def _with_alternatives(pcg: PCG, inside: Set[int], received: Set[int], first: int, last: int) -> set[int]:
    """The nodes `inside` and the alternatives that the stage can compute without weights of other stages."""
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
        return index in stage_local(pcg) or (not joined if node.op in SOURCES else index not in pcg.plain)

    found = {*inside}
    for alternative, node in sorted(pcg.alternatives, key=lambda pair: -pair[1]):
        if node in found and node not in stage_local(pcg):
            cone = needed(pcg, (alternative,), found | received)
            found |= cone if all(map(fits, cone)) else set()
    return found


def _ordered(pcg: PCG, nodes: Set[int], received: Sequence[int]) -> tuple[int, ...]:
    """The nodes of a stage in its order."""
    local = stage_local(pcg)
    found = dict.fromkeys(i for i in sorted(nodes) if pcg.nodes[i].op in SOURCES)

    def place(index: int) -> None:
        for source in pcg.nodes[index].inputs if index not in received else ():
            if source in local and source not in found:
                place(source)
        found[index] = None

    for index in sorted(nodes):
        if index not in local and index not in found:
            place(index)
    return tuple(found)


@lru_cache(maxsize=256)
def _stage(pcg: PCG, first: int, last: int) -> Stage:
    at = origin(pcg)
    chosen = _stage_nodes(at, first, last)
    number = {old: new for new, old in enumerate(chosen.order)}
    nodes: list[Node] = []
    for old in chosen.order:
        node = pcg.nodes[old]
        if old in chosen.received:
            nodes.append(transfer(pcg, old, "receive", ()))
            continue
        further = {} if old in chosen.sent else chosen.attributes.get(old, {})
        attributes = tuple(sorted((*node.attributes, *further.items()))) if further else node.attributes
        nodes.append(replace(node, inputs=tuple(number[i] for i in node.inputs), attributes=attributes))
    nodes += (transfer(pcg, old, "send", (number[old],)) for old in chosen.sent)
    places = (*chosen.order, *chosen.sent)
    names = {name for node in nodes if node.op == "parameter" for name in node.originals}
    graph = PCG(
        tuple(nodes),
        loss=len(nodes) - 1 if chosen.sent else number[pcg.loss],
        batch=pcg.batch,
        aliases=tuple(pair for pair in pcg.aliases if pair[1] in names),
        samples=tuple(pcg.samples[i] for i in places) if pcg.samples else (),
        origin=None if at is pcg else _stage(at, first, last).graph,
        alternatives=tuple((number[a], number[b]) for a, b in pcg.alternatives if a in number and b in number),
        part=(pcg, places) if at is pcg else None,
    )
    if at is pcg:
        verify(graph)
    return Stage(graph, places)


def graph_of(pcg: PCG, chosen: Sequence[tuple[int, str]], made_from: PCG | None) -> Stage:
    """The graph of these nodes, some of which are transfers: pairs of an index and the operator it has here."""
    number: dict[int, int] = {}
    nodes: list[Node] = []
    for old, op in chosen:
        node = pcg.nodes[old]
        if op in ("send", "to_all", "to_pass"):
            nodes.append(transfer(pcg, old, op, (number[old],)))
            continue
        if op:
            nodes.append(transfer(pcg, old, op, ()))
        else:
            nodes.append(replace(node, inputs=tuple(number[i] for i in node.inputs)))
        number[old] = len(nodes) - 1
    names = {name for node in nodes if node.op == "parameter" for name in node.originals}
    graph = PCG(
        tuple(nodes),
        loss=number.get(pcg.loss, len(nodes) - 1),
        batch=pcg.batch,
        aliases=tuple(pair for pair in pcg.aliases if pair[1] in names),
        samples=tuple(pcg.samples[i] for i, _ in chosen) if pcg.samples else (),
        origin=made_from,
        part=(pcg, tuple(i for i, _ in chosen)) if made_from is None else None,
    )
    if made_from is None:
        verify(graph)
    return Stage(graph, tuple(i for i, _ in chosen))


def transfer(pcg: PCG, index: int, op: str, inputs: tuple[int, ...]) -> Node:
    """A node that hands a tensor of a graph over (`operators/transfer.py`)."""
    node = pcg.nodes[index]
    pairs = (("atoms", _factors(atoms(origin(pcg))[index])), ("peer", node.name))
    name = f"{node.name} {_HANDED[op]}"
    return Node(op, name, inputs, node.shape, node.dtype, attributes=pairs, gradient=node.gradient)


_HANDED = {
    "receive": "received", "send": "sent", "from_all": "from all", "to_all": "to all",
    "from_pass": "from pass", "to_pass": "to pass",
}  # fmt: skip


def _has_factors(known: Atoms) -> bool:
    return any(len(sizes) > 1 for sizes in known.dims)


def _factors(known: Atoms) -> tuple[tuple[int, ...], ...]:
    """The atoms of every dim, 0 for the samples."""
    return tuple(
        tuple(0 if atom in known.batch else known.sizes[atom] for atom in known.of_dim(dim))
        for dim in range(len(known.dims))
    )


# What stages share


@lru_cache(maxsize=16)
def _held(pcg: PCG) -> Mapping[int, tuple[int, ...]]:
    """Node -> the boundaries b such that it is needed between b and b + 1; crossing tensors on both sides."""
    found: dict[int, list[int]] = {}
    for number, here in enumerate(boundaries(pcg)[:-1]):
        inside = needed(pcg, _results(pcg, number, number + 1), {*here.crossing})
        for index in {*inside, *here.crossing}:
            found.setdefault(index, []).append(number)
    return {index: tuple(numbers) for index, numbers in found.items()}


def _holders(pcg: PCG, index: int, first: int, last: int) -> int:
    """How many stages may hold a parameter: this one, and each other one between two neighbouring boundaries."""
    return 1 + sum(not first <= number < last for number in _held(pcg).get(index, ()))


def _at_ends(pcg: PCG, index: int, first: int, last: int) -> bool:
    """True if a stage at one end of the graph has a parameter that is else only needed at the other end."""
    end = len(boundaries(pcg)) - 2
    others = {number for number in _held(pcg)[index] if not first <= number < last}
    return (first == 0 and others == {end}) or (last == end + 1 and others == {0})


@lru_cache(maxsize=16)
def _shared_parameters(pcg: PCG) -> tuple[int, ...]:
    held = _held(pcg)
    return tuple(i for i in pcg.of("parameter") if len(held.get(i, ())) > 1)


def _across(pcg: PCG, first: int, last: int) -> Hashable:
    """(first, last) if the stage has alternatives that reach over boundaries inside of it, else None."""
    if not pcg.alternatives:
        return None
    separate = {index for number in range(first, last) for index in _stage_nodes(pcg, number, number + 1).order}
    return None if separate.issuperset(_stage_nodes(pcg, first, last).order) else (first, last)


@lru_cache(maxsize=16)
def _signatures(pcg: PCG) -> tuple[tuple[int, tuple[Hashable, ...]], ...]:
    """For every two neighbouring boundaries: the number of the stage's kind, and what it shares with other stages.

    Shared are nodes of the whole graph and entries of lists of modules, in the same order for stages of one kind.
    """
    known, held, numbers = atoms(pcg), _held(pcg), dict[Hashable, int]()
    of_layer = elements_of_layer(pcg)
    found = []
    for first in range(len(boundaries(pcg)) - 1):
        chosen, entries = _stage_nodes(pcg, first, first + 1), dict[str, int]()
        place = {index: number for number, index in enumerate(chosen.order)}
        signature = tuple(
            (known[index], pcg.nodes[index].shape, pcg.nodes[index].dtype, index in chosen.sent)
            if index in chosen.received
            else (
                *_description(pcg.nodes[index], known[index], entries),
                tuple(place[i] for i in pcg.nodes[index].inputs),
                tuple(place.get(member, -1) for member in pcg.members.get(index, ())),
                (index in chosen.sent, index == pcg.loss, of_layer.get(index)),
            )
            for index in chosen.order
        )
        number = numbers.setdefault((signature, tuple(place[i] for i in chosen.sent)), len(numbers))
        found.append((number, (*(i for i in chosen.order if len(held.get(i, ())) > 1), *entries)))
    return tuple(found)


def _description(node: Node, known: Atoms, entries: dict[str, int]) -> Iterator[Hashable]:
    """A node without its name; `entries` of lists of modules are numbered as they appear."""
    attributes = tuple(a for a in node.attributes if a[0] != "site")
    yield from (node.op, node.shape, node.dtype, node.gradient, attributes, known)
    path = node.path if node.op != "parameter" else node.name
    ends = [match.end(1) for match in LIST_INDEX.finditer(path)]
    yield tuple(entries.setdefault(path[:end], len(entries)) for end in ends)
    yield LIST_INDEX.sub(".#", path)
