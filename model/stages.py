"""Stages of a pipeline: where a graph can be cut, and the graph of what lies between two cuts.

A boundary lies between two entries of a list of layers (`layers.3` and `layers.4`), or outside of lists between two
products (a linear, a convolution, a look-up) where a single tensor leads on. What is computed before it and read after
it *crosses*: tensors with a gradient, at most `MOST_CROSSING`. Inputs, parameters, constants and what follows from
inputs cheaply do not: each stage reads or computes them itself.

What lies between two boundaries is a graph of its own: it starts with a `receive` for every tensor that crosses the
first, and ends with a `send` for every one that crosses the second, or with the loss. Atoms are those of the whole
graph, so that both sides of a boundary know the same layouts.

No boundary separates a pass without gradient from the pass with gradient that it repeats (recycling, see `recycling`):
then every pass would have to go through the whole pipeline, which a single graph a stage cannot say. So a model that
recycles all of its layers has boundaries only before and after them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise, takewhile
from typing import TypeAlias

from .atoms import Atoms, atoms
from .batch import origin, with_batch
from .merge import table_rows
from .operator import operator
from .pcg import FLOATS, PCG, SOURCES, Attribute, Node, verify
from .recycling import twins
from .sparse import sparse_tables

MOST_CROSSING = 2
"""Tensors that cross a boundary at the most: the decoder of a translator also reads what the encoder gives."""

Entry: TypeAlias = tuple[str, int]
"""An entry of a list of modules: the list's path, and the number."""

_NUMBER = re.compile(r"(?:^|\.)(\d+)(?=\.|$)")


@dataclass(frozen=True, slots=True)
class Boundary:
    """A place between nodes: those with an index below `position` come before. `crossing`: the tensors handed on.

    These are never views: views are taken on the other side.
    """

    position: int
    crossing: tuple[int, ...] = ()


@dataclass(frozen=True)
class Stage:
    """What lies between two boundaries. `nodes`: for every node of `graph` its index in the whole graph.

    For a `receive` or `send` that of the tensor.
    """

    graph: PCG
    nodes: tuple[int, ...]


def boundaries(pcg: PCG) -> tuple[Boundary, ...]:
    """The places where a graph can be cut, in order, with its start and its end, which nothing crosses.

    They are the same at any batch.
    """
    return _boundaries(origin(pcg))


def stage(pcg: PCG, first: int, last: int) -> Stage:
    """The graph between two boundaries, counted from 0; all of it is the graph itself. ValueError: no such boundaries.

    A parameter that other stages may have too is told in how many there may be (`stages`).
    """
    count = len(boundaries(pcg))
    if not 0 <= first < last < count:
        raise ValueError(f"no stage from boundary {first} to {last} of {count}")
    if (first, last) == (0, count - 1):
        return Stage(pcg, tuple(range(len(pcg.nodes))))
    found = _stage(origin(pcg), first, last)
    return Stage(with_batch(found.graph, pcg.batch), found.nodes)


# Where a graph can be cut


@lru_cache(maxsize=16)
def _boundaries(pcg: PCG) -> tuple[Boundary, ...]:
    crossing = _Crossing(pcg)
    keys = _entries(pcg, crossing)
    found = [Boundary(0)]
    for (here, a), (there, b) in pairwise(keys):
        most = _allowed(a, b)
        places = [p for p in range(here + 1, there + 1) if most and crossing.fits(p, most)]
        if not a[0][0] and not b[0][0]:
            places = [p for p in places if crossing.leads(p, there)]
        best = min(places, key=lambda p: (*crossing.size(p), -p), default=None)
        if best is not None:
            found.append(Boundary(best, crossing.at(best)))
    return (*found, Boundary(len(pcg.nodes)))


def _allowed(a: tuple[Entry, ...], b: tuple[Entry, ...]) -> int:
    """How many tensors may cross between products of two entries; 0: there is no boundary.

    Between entries of an outermost list more than one; of a list inside of another, or outside of lists, only one.
    """
    depth = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))
    if depth in (len(a), len(b)):  # one is inside of the other, or they are the same
        return 0
    if depth:
        return int(a[depth][0] == b[depth][0])
    return MOST_CROSSING if a[0][0] or b[0][0] else 1


def _entries(pcg: PCG, crossing: _Crossing) -> list[tuple[int, tuple[Entry, ...]]]:
    """Where in a graph which entries of lists are run, from the outermost list inwards, in order.

    Only entries that hold products count; what lies between them belongs to those before. A product outside of lists
    stands for itself.
    """
    products = [i for i in crossing.computed if _is_product(pcg, i)]
    holding = {entry for i in products for entry in _lists(pcg.nodes[i].path)}
    found: list[tuple[int, tuple[Entry, ...]]] = []
    apart = {*products}
    for index in crossing.computed:
        key = tuple(entry for entry in _lists(pcg.nodes[index].path) if entry in holding)
        if key or index in apart:
            found.append((index, key or (("", index),)))
    return found


def _lists(path: str) -> list[Entry]:
    return [(path[: match.start(1)], int(match[1])) for match in _NUMBER.finditer(path)]


def _is_product(pcg: PCG, index: int) -> bool:
    node = pcg.nodes[index]
    entry, sources = operator(node.op), tuple(pcg.nodes[i] for i in node.inputs)
    return entry.matmul or entry.looked_up(node, sources) is not None


class _Crossing:
    """Which tensors are computed before a place and read after it.

    `free` are nodes that every stage computes itself, `base` what a node is a view of, `computed` all other nodes.
    """

    def __init__(self, pcg: PCG) -> None:
        self.pcg = pcg
        self.free, self.base = _free(pcg), _bases(pcg)
        ways = dict(pcg.alternatives)
        self.computed = [
            i for i, n in enumerate(pcg.nodes) if n.op not in SOURCES and i not in self.free and self.base[i] == i
        ]
        last: dict[int, int] = {}
        for reader in self.computed:
            for i in pcg.nodes[reader].inputs:
                last[self.base[i]] = reader
            if reader in ways:  # where the tensor stands that this is another way to compute
                last[reader] = ways[reader]
        self.sets: list[tuple[int, ...]] = [()]
        alive: list[int] = []
        for index in range(len(pcg.nodes)):
            if last.get(index, -1) > index and index in last and self._own(index):
                alive.append(index)
            alive = [i for i in alive if last[i] > index]
            self.sets.append(tuple(alive))
        # Between the ends of each pair nothing is cut.
        together = [*twins(pcg).items(), *_parted_parameters(pcg)]
        steps = [0] * (len(pcg.nodes) + 2)
        for a, b in together:
            steps[min(a, b) + 1] += 1
            steps[max(a, b) + 1] -= 1
        self.closed = [False]
        depth = 0
        for step in steps[1:]:
            depth += step
            self.closed.append(depth > 0)
        self.ways = ways

    def _own(self, index: int) -> bool:
        return self.pcg.nodes[index].op not in SOURCES and index not in self.free

    def at(self, position: int) -> tuple[int, ...]:
        return self.sets[position]

    def fits(self, position: int, most: int) -> bool:
        """Whether a graph can be cut at a place that at most so many tensors cross."""
        tensors = self.at(position)
        nodes = [self.pcg.nodes[i] for i in tensors]
        alike = all(n.gradient and n.dtype in FLOATS for n in nodes) and not self.ways.keys() & {*tensors}
        return 0 < len(tensors) <= most and alike and not self.closed[position]

    def leads(self, position: int, node: int) -> bool:
        """Whether a node is computed from what crosses."""
        return not _needed(self.pcg, set(), (node,)).isdisjoint(self.at(position))

    def size(self, position: int) -> tuple[int, int]:
        """How many tensors cross, and how many elements they have."""
        tensors = self.at(position)
        return len(tensors), sum(self.pcg.nodes[i].numel for i in tensors)


def _free(pcg: PCG) -> frozenset[int]:
    """What every stage computes itself where it reads it: what follows from inputs and constants by cheap operators.

    Cheap are those that compute a little for every element; products, look-ups and what is drawn are not.
    """
    found: set[int] = set()
    for index, node in enumerate(pcg.nodes):
        if node.op in SOURCES or node.gradient:
            continue
        entry = operator(node.op)
        sources = [pcg.nodes[i] for i in node.inputs]
        own = all(n.op in ("input", "buffer") or i in found for i, n in zip(node.inputs, sources, strict=True))
        if own and not entry.transfer and (entry.creates or _is_cheap(pcg, index)):
            found.add(index)
    return frozenset(found)


MOST_PASSES = 3
"""Of a cheap operator over its inputs and output."""


def _is_cheap(pcg: PCG, index: int) -> bool:
    entry = operator(pcg.nodes[index].op)
    return not (entry.matmul or entry.updates) and entry.passes <= MOST_PASSES


def _bases(pcg: PCG) -> list[int]:
    """For every node the tensor that it is a view of, if it is one; else itself."""
    base: list[int] = []
    for index, node in enumerate(pcg.nodes):
        shows = node.op not in SOURCES and _is_view(pcg, index)
        base.append(base[node.inputs[0]] if shows else index)
    return base


def _is_view(pcg: PCG, index: int) -> bool:
    """Whether a node shows all elements of what it reads under another shape, at no cost."""
    node = pcg.nodes[index]
    entry = operator(node.op)
    if entry.passes or entry.transfer or len(node.inputs) != 1 or index in dict(pcg.alternatives):
        return False
    source = pcg.nodes[node.inputs[0]]
    return source.numel == node.numel and source.gradient == node.gradient


def _parted_parameters(pcg: PCG) -> Iterator[tuple[int, int]]:
    """The first and the last reader of parameters that only one stage can have, since gradients are sparse or tables
    are spread."""
    for index in pcg.of("parameter"):
        readers = pcg.consumers[index]
        if len(readers) > 1 and (index in sparse_tables(pcg) or table_rows(pcg.nodes[index])):
            yield readers[0], readers[-1]


# What lies between two cuts


@lru_cache(maxsize=512)
def _stage(pcg: PCG, first: int, last: int) -> Stage:
    """A stage of a graph at its origin's batch."""
    bounds = _boundaries(pcg)
    received, sent = bounds[first].crossing, bounds[last].crossing
    inside = _needed(pcg, {*received}, sent or (pcg.loss,))
    known, held = atoms(pcg), _holders(pcg)
    order = sorted({*inside, *received})
    number = {old: new for new, old in enumerate(order)}
    nodes: list[Node] = []
    for old in order:
        node = pcg.nodes[old]
        if old in received:
            nodes.append(_transfer("receive", node, known[old], ()))
            continue
        elsewhere = [k for k in held.get(old, ()) if not first <= k < last]
        if elsewhere and node.gradient:
            node = _with(node, stages=1 + len(elsewhere))
        nodes.append(replace(node, inputs=tuple(number[i] for i in node.inputs)))
    for old in sent:
        nodes.append(_transfer("send", pcg.nodes[old], known[old], (number[old],)))
    names = {name for node in nodes if node.op == "parameter" for name in node.originals}
    aliases = tuple(pair for pair in pcg.aliases if pair[1] in names)
    ways = tuple((number[a], number[b]) for a, b in pcg.alternatives if a in number and b in number)
    loss = len(nodes) - 1 if sent else number[pcg.loss]
    places = (*order, *sent)
    graph = PCG(tuple(nodes), loss, pcg.batch, aliases, (), None, ways)
    graph = _with_factors(graph, [known[i] for i in places])
    verify(graph)
    return Stage(graph, places)


def _needed(pcg: PCG, received: set[int], results: tuple[int, ...]) -> set[int]:
    """The nodes that results need, without what they are received from."""
    found: set[int] = set()
    stack = list(results)
    while stack:
        index = stack.pop()
        if index in found or index in received:
            continue
        found.add(index)
        stack += pcg.nodes[index].inputs
        stack += pcg.members.get(index, ())
    return found


@lru_cache(maxsize=16)
def _holders(pcg: PCG) -> Mapping[int, tuple[int, ...]]:
    """For every parameter the boundaries after which it is read before the next."""
    found: dict[int, list[int]] = {}
    for number, (here, there) in enumerate(pairwise(_boundaries(pcg))):
        for index in _needed(pcg, {*here.crossing}, there.crossing or (pcg.loss,)):
            if pcg.nodes[index].op == "parameter":
                found.setdefault(index, []).append(number)
    return {index: tuple(numbers) for index, numbers in found.items()}


def _transfer(op: str, node: Node, known: Atoms, inputs: tuple[int, ...]) -> Node:
    name = f"{node.name} {'received' if op == 'receive' else 'sent'}"
    attributes = ("atoms", _factors(known)), ("peer", node.name)
    return Node(op, name, inputs, node.shape, node.dtype, attributes, node.gradient)


def _factors(known: Atoms) -> tuple[tuple[int, ...], ...]:
    """The factors of every dim, 0 for the samples."""
    return tuple(
        tuple(0 if atom in known.batch else known.sizes[atom] for atom in known.of_dim(dim))
        for dim in range(len(known.dims))
    )


def _with(node: Node, **attributes: Attribute) -> Node:
    return replace(node, attributes=tuple(sorted({**dict(node.attributes), **attributes}.items())))


def _with_factors(graph: PCG, known: list[Atoms]) -> PCG:
    """The graph with the factors of sources written down where views that other stages have tell them."""
    found = atoms(graph)
    nodes = tuple(
        _with(node, atoms=_factors(whole)) if node.op in SOURCES and here != whole else node
        for node, here, whole in zip(graph.nodes, found, known, strict=True)
    )
    return graph if nodes == graph.nodes else replace(graph, nodes=nodes)
