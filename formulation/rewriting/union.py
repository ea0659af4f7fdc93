"""All rewritings of a graph in one: its nodes, further ones, and which of these compute the same (`PCG.alternatives`).

Concatenated weights become one weight that is stored joined, under the names of its pieces: optimizers work element by
element, so it is trained as its pieces would be.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import TypeAlias

from ...model.graph.atoms import atoms
from ...model.graph.dtypes import FLOATS
from ...model.graph.pcg import PCG, SOURCES, Attribute, Node
from ...model.graph.verification import verify
from .shapes import shape_of

Ref: TypeAlias = int
"""A node: of the graph (from 0), or a further one (from -1 downwards)."""


@dataclass(frozen=True, slots=True)
class Further:
    """A node that no graph had yet."""

    op: str
    inputs: tuple[Ref, ...]
    attributes: tuple[tuple[str, Attribute], ...] = ()


@dataclass
class Union:
    """Collects further nodes, and what they are another way to compute; `build` makes the graph of all.

    `dropped` counts what could not be taken in: ways that read what is computed from them, that no operator allows, or
    that would cut the dims of the graph's tensors finer.
    """

    pcg: PCG
    nodes: dict[Further, Ref] = field(default_factory=dict)
    ways: dict[tuple[Ref, Ref], None] = field(default_factory=dict)
    dropped: int = 0

    def add(self, op: str, inputs: Iterable[Ref], attributes: Iterable[tuple[str, Attribute]] = ()) -> Ref:
        """A further node; the same one for equal ones."""
        return self.nodes.setdefault(Further(op, tuple(inputs), tuple(sorted(attributes))), -1 - len(self.nodes))

    def way(self, ref: Ref, node: Ref) -> None:
        """Node `ref` computes `node` too."""
        self.ways[ref, node] = None

    def build(self) -> PCG:
        """The graph of all; the given one where nothing can be added."""
        made = _Made(self.pcg, tuple(self.nodes))
        fitting = _widest([way for way in self.ways if all(map(made.can, way)) and made.alike(*way)], made)
        taken = _all_that(fitting, lambda ways: _order(made, ways) is not None)
        taken = _all_that(taken, lambda ways: not ways or not _finer(self.pcg, _graph(made, ways)))
        self.dropped = len(self.ways) - len(taken)
        return _graph(made, taken) if taken else self.pcg


def _widest(ways: Sequence[tuple[Ref, Ref]], made: _Made) -> list[tuple[Ref, Ref]]:
    """The ways without those that join some of the weights that another of the same kind joins all of.

    Of n operators on one input 2^n sets could be merged; the largest saves most, and each makes the network wider.
    Equal parts are as good as slices, and can be split.
    """
    joined = {way: (made.kind(way[0]), made.below(way[0])) for way in ways}
    found: dict[Ref, list[tuple[str, frozenset[int]]]] = {}
    for way, of_way in joined.items():
        found.setdefault(way[1], []).append(of_way)

    def beaten(way: tuple[Ref, Ref]) -> bool:
        kind, weights = joined[way]
        return any(
            weights < other if kind == its else kind == "slice" and its == "part" and bool(weights) and weights <= other
            for its, other in found[way[1]]
        )

    return [way for way in ways if not beaten(way)]


def _all_that(
    ways: Sequence[tuple[Ref, Ref]], fit: Callable[[Sequence[tuple[Ref, Ref]]], bool]
) -> Sequence[tuple[Ref, Ref]]:
    """The ways without those that do not go together with the ones before them."""
    if fit(ways):
        return ways
    taken: list[tuple[Ref, Ref]] = []
    for way in ways:
        if fit([*taken, way]):
            taken.append(way)
    return taken


class _Made:
    """Further nodes with shapes and names, made when they are first asked for."""

    def __init__(self, pcg: PCG, further: Sequence[Further]) -> None:
        self.pcg, self.further = pcg, further
        self.known: dict[Ref, Node | None] = dict(enumerate(pcg.nodes))
        self.names = {node.name for node in pcg.nodes}
        tied = {name for _, name in pcg.aliases}
        self.joinable = {
            i
            for i in pcg.of("parameter")
            if pcg.nodes[i].name not in tied and not pcg.nodes[i].get("tables") and pcg.nodes[i].shape
        }

    def __getitem__(self, ref: Ref) -> Node:
        node = self.known[ref]
        assert node is not None
        return node

    def can(self, ref: Ref) -> bool:
        """Whether a node can be made: its inputs can, and its operator takes them."""
        if ref not in self.known:
            further = self.further[-1 - ref]
            self.known[ref] = self._node(ref, further) if all(map(self.can, further.inputs)) else None
        return self.known[ref] is not None

    def alike(self, ref: Ref, node: Ref) -> bool:
        a, b = self[ref], self[node]
        return (a.shape, a.dtype, a.gradient) == (b.shape, b.dtype, b.gradient)

    def joins(self, ref: Ref) -> tuple[int, ...]:
        """The parameters that a node is nothing but the concatenation of, along dim 0; none otherwise."""
        if ref >= 0:
            return ()
        further = self.further[-1 - ref]
        if further.op != "cat" or dict(further.attributes)["dim"] != 0 or not set(further.inputs) <= self.joinable:
            return ()
        nodes = [self[i] for i in further.inputs]
        kinds = {(node.dtype, node.gradient, node.shape[1:]) for node in nodes}
        return further.inputs if len(kinds) == 1 and len({*further.inputs}) == len(nodes) else ()

    def below(self, ref: Ref) -> frozenset[int]:
        """The parameters of the weights that a further node, and the further ones that it reads, join."""
        if ref >= 0:
            return frozenset()
        return frozenset(self.joins(ref)).union(*map(self.below, self.inputs(ref)))

    def kind(self, ref: Ref) -> str:
        return self.further[-1 - ref].op if ref < 0 else ""

    def inputs(self, ref: Ref) -> tuple[Ref, ...]:
        return self.pcg.nodes[ref].inputs if ref >= 0 else () if self.joins(ref) else self.further[-1 - ref].inputs

    def _node(self, ref: Ref, further: Further) -> Node | None:
        sources = [self[i] for i in further.inputs]
        pieces = [self[i] for i in self.joins(ref)]
        shape = shape_of(further.op, [node.shape for node in sources], dict(further.attributes))
        if shape is None:
            return None
        dtype = next((node.dtype for node in sources if node.dtype in FLOATS), sources[0].dtype)
        gradient = dtype in FLOATS and any(node.gradient for node in sources)
        if pieces:
            name = self._free(_joined(node.name for node in pieces))
            joined = tuple((node.name, node.shape[0]) for node in pieces)
            path = name.rpartition(".")[0]
            return Node("parameter", name, (), shape, dtype, (("joined", joined),), gradient, path)
        weights = [node.path for node in sources if node.op in SOURCES and node.path]
        path = _common(weights or [node.path for node in sources])
        name = self._free(path if weights and path else f"{path}.{further.op}" if path else further.op)
        attributes = () if further.op == "view" else further.attributes  # its shape says it
        return Node(further.op, name, (), shape, dtype, attributes, gradient, path)

    def _free(self, wish: str) -> str:
        name, count = wish, 1
        while name in self.names:
            count += 1
            name = f"{wish}_{count}"
        self.names.add(name)
        return name


def _order(made: _Made, ways: Sequence[tuple[Ref, Ref]]) -> list[Ref] | None:
    """All nodes that are needed, each after what it reads and after the ways to compute it; None for a circle.

    Nodes of the graph keep their order where they can, further ones stand right before what they are a way to compute.
    """
    of_node: dict[Ref, list[Ref]] = {}
    for ref, node in ways:
        of_node.setdefault(node, []).append(ref)
    place: dict[Ref, tuple[int, int]] = {i: (i, 1) for i in range(len(made.pcg.nodes))}
    for node in sorted(node for node in of_node if node >= 0):
        waiting = list(of_node[node])
        while waiting:
            ref = waiting.pop()
            if ref not in place:
                place[ref] = node, 0
                waiting += [i for i in (*made.inputs(ref), *of_node.get(ref, ())) if i < 0]
    before = {ref: {*made.inputs(ref), *of_node.get(ref, ())} for ref in place}
    after: dict[Ref, list[Ref]] = {}
    for ref, those in before.items():
        for i in those:
            after.setdefault(i, []).append(ref)
    ready = [(*place[ref], -ref, ref) for ref, those in before.items() if not those]
    heapq.heapify(ready)
    order, count = [], {ref: len(those) for ref, those in before.items()}
    while ready:
        *_, ref = heapq.heappop(ready)
        order.append(ref)
        for other in after.get(ref, ()):
            count[other] -= 1
            if not count[other]:
                heapq.heappush(ready, (*place[other], -other, other))
    return order if len(order) == len(place) else None


def _graph(made: _Made, ways: Sequence[tuple[Ref, Ref]]) -> PCG:
    order = _order(made, ways)
    assert order is not None
    number = {ref: new for new, ref in enumerate(order)}
    nodes = tuple(replace(made[ref], inputs=tuple(number[i] for i in made.inputs(ref))) for ref in order)
    pcg = made.pcg
    pairs = tuple((number[ref], number[node]) for ref, node in ways if node in number)  # else nothing reads it
    graph = PCG(nodes, number[pcg.loss], pcg.batch, pcg.aliases, (), None, pairs)
    verify(graph)
    return graph


def _finer(pcg: PCG, graph: PCG) -> bool:
    """Whether the further nodes cut dims of the graph's tensors finer: their layouts would mean something else."""
    place = {node.name: i for i, node in enumerate(graph.nodes)}
    old, new = atoms(pcg), atoms(graph)
    return any(old[i] != new[place[node.name]] for i, node in enumerate(pcg.nodes))


def _joined(names: Iterable[str]) -> str:
    """One name for weights that are stored as one: `a.query_key.weight` for `a.query.weight` and `a.key.weight`."""
    parts = [name.split(".") for name in names]
    shortest = min(map(len, parts))
    first = next((n for n in range(shortest) if len({part[n] for part in parts}) > 1), shortest)
    last = int(first < shortest - 1 and len({part[-1] for part in parts}) == 1)
    middle = "_".join("_".join(part[first : len(part) - last]) for part in parts)
    return ".".join([*parts[0][:first], middle, *parts[0][len(parts[0]) - last :]])


def _common(paths: Iterable[str]) -> str:
    """How dotted paths begin alike."""
    parts = zip(*(path.split(".") for path in paths), strict=False)
    return ".".join(part[0] for part in takewhile(lambda part: len({*part}) == 1, parts))
