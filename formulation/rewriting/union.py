"""The union of all rewritings of a graph: its nodes, added ones, and which compute the same (`PCG.alternatives`).

Concatenated weights become one weight that is stored joined, under the names of its pieces: optimizers work
elementwise, so it is trained as its pieces would be.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import TypeAlias

from ...model.graph.atoms import atoms
from ...model.graph.builder import free_name
from ...model.graph.dtypes import FLOATS
from ...model.graph.pcg import PCG, SOURCES, Attribute, Node
from ...model.graph.verification import verify
from ...model.operators.operator import rewriting_of

VIEWS = ("view", "permute")

Ref: TypeAlias = int
"""A node: of the graph (0, 1, ..), or an added one (-1, -2, ..)."""


@dataclass(frozen=True, slots=True)
class AddedNode:
    """A node that the graph does not have."""

    op: str
    inputs: tuple[Ref, ...]
    attributes: tuple[tuple[str, Attribute], ...] = ()


@dataclass
class Union:
    """Collects added nodes and which nodes they are alternatives of; `build` makes the graph of all.

    `dropped` counts alternatives left out: cyclic ones, those whose operators do not take their operands, those that
    would factor the dims of the graph's tensors more finely, and those of an added view, which shows another tensor.
    """

    pcg: PCG
    nodes: dict[AddedNode, Ref] = field(default_factory=dict)
    alternatives: dict[tuple[Ref, Ref], None] = field(default_factory=dict)
    dropped: int = 0
    names: dict[Ref, str] = field(default_factory=dict)  # of the added nodes in the graph that was built

    def add(self, op: str, inputs: Iterable[Ref], attributes: Iterable[tuple[str, Attribute]] = ()) -> Ref:
        """Add a node; equal ones are added once."""
        return self.nodes.setdefault(AddedNode(op, tuple(inputs), tuple(sorted(attributes))), -1 - len(self.nodes))

    def add_alternative(self, ref: Ref, node: Ref) -> None:
        """Node `ref` is an alternative of `node`."""
        self.alternatives[ref, node] = None

    def build(self) -> PCG:
        """The graph with all alternatives; the given graph if there are none."""
        made = _AddedNodes(self.pcg, tuple(self.nodes))
        possible = [
            (ref, node)
            for ref, node in self.alternatives
            if made.can(ref) and made.can(node) and made.alike(ref, node) and made.kind(node) not in VIEWS
        ]
        taken = _compatible(_widest(possible, made), lambda pairs: _order(made, pairs) is not None)
        taken = _compatible(taken, lambda pairs: not pairs or not _finer(self.pcg, _graph(made, pairs)))
        self.dropped = len(self.alternatives) - len(taken)
        self.names = {ref: node.name for ref, node in made.known.items() if ref < 0 and node is not None}
        return _graph(made, taken) if taken else self.pcg


def _widest(alternatives: Sequence[tuple[Ref, Ref]], made: _AddedNodes) -> list[tuple[Ref, Ref]]:
    """Drop alternatives that join a subset of the weights that another of the same kind joins.

    n operators on one input have 2^n mergeable sets; the largest saves most, and each widens the network. Equal parts
    are as good as slices, and can be split.
    """
    joined = {alternative: (made.kind(alternative[0]), made.below(alternative[0])) for alternative in alternatives}
    found: dict[Ref, list[tuple[str, frozenset[int]]]] = {}
    for alternative, weights_joined in joined.items():
        found.setdefault(alternative[1], []).append(weights_joined)

    def subsumed(alternative: tuple[Ref, Ref]) -> bool:
        kind, weights = joined[alternative]
        return any(
            weights < other if kind == its else kind == "slice" and its == "part" and bool(weights) and weights <= other
            for its, other in found[alternative[1]]
        )

    return [alternative for alternative in alternatives if not subsumed(alternative)]


def _compatible(
    alternatives: Sequence[tuple[Ref, Ref]], fit: Callable[[Sequence[tuple[Ref, Ref]]], bool]
) -> Sequence[tuple[Ref, Ref]]:
    """The alternatives, in order, without those that do not fit with the ones before them.

    Whatever fits also fits with fewer of them, so that runs of alternatives are tried at once.
    """
    taken: list[tuple[Ref, Ref]] = []
    waiting = [list(alternatives)]
    while waiting:
        run = waiting.pop()
        if fit([*taken, *run]):
            taken += run
        elif len(run) > 1:
            waiting += [run[len(run) // 2 :], run[: len(run) // 2]]
    return taken


class _AddedNodes:
    """Added nodes with shapes and names, made on demand."""

    def __init__(self, pcg: PCG, added: Sequence[AddedNode]) -> None:
        self.pcg, self.added = pcg, added
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
        """True if a node can be made: its inputs can, and its operator takes them."""
        if ref not in self.known:
            added = self.added[-1 - ref]
            self.known[ref] = self._node(ref, added) if all(map(self.can, added.inputs)) else None
        return self.known[ref] is not None

    def alike(self, ref: Ref, node: Ref) -> bool:
        a, b = self[ref], self[node]
        return (a.shape, a.dtype, a.gradient) == (b.shape, b.dtype, b.gradient)

    def joins(self, ref: Ref) -> tuple[int, ...]:
        """The parameters that a node concatenates along dim 0, if it does nothing else."""
        if ref >= 0:
            return ()
        added = self.added[-1 - ref]
        if added.op != "cat" or dict(added.attributes)["dim"] != 0 or not set(added.inputs) <= self.joinable:
            return ()
        nodes = [self[i] for i in added.inputs]
        kinds = {(node.dtype, node.gradient, node.shape[1:]) for node in nodes}
        return added.inputs if len(kinds) == 1 and len({*added.inputs}) == len(nodes) else ()

    def below(self, ref: Ref) -> frozenset[int]:
        """The parameters that an added node joins, itself or in the added nodes it reads."""
        if ref >= 0:
            return frozenset()
        return frozenset(self.joins(ref)).union(*map(self.below, self.inputs(ref)))

    def kind(self, ref: Ref) -> str:
        return self.added[-1 - ref].op if ref < 0 else ""

    def inputs(self, ref: Ref) -> tuple[Ref, ...]:
        return self.pcg.nodes[ref].inputs if ref >= 0 else () if self.joins(ref) else self.added[-1 - ref].inputs

    def _node(self, ref: Ref, added: AddedNode) -> Node | None:
        sources = [self[i] for i in added.inputs]
        pieces = [self[i] for i in self.joins(ref)]
        rewriting = rewriting_of(added.op)
        assert rewriting is not None  # e-nodes are terms
        shape = rewriting.shape_of([node.shape for node in sources], dict(added.attributes))
        if shape is None:
            return None
        dtype = next((node.dtype for node in sources if node.dtype in FLOATS), sources[0].dtype)
        gradient = dtype in FLOATS and any(node.gradient for node in sources)
        if pieces:
            name = self._free(_joined(node.name for node in pieces))
            joined = tuple((node.name, node.shape[0]) for node in pieces)
            path = name.rpartition(".")[0]
            return Node("parameter", name, (), shape, dtype, (("joined", joined),), gradient=gradient, path=path)
        weights = [node.path for node in sources if node.op in SOURCES and node.path]
        path = _common(weights or [node.path for node in sources])
        name = self._free(path if weights and path else f"{path}.{added.op}" if path else added.op)
        attributes = () if added.op == "view" else added.attributes  # its shape says it
        return Node(added.op, name, (), shape, dtype, attributes, gradient=gradient, path=path)

    def _free(self, wish: str) -> str:
        name = free_name(wish, self.names)
        self.names.add(name)
        return name


def _order(made: _AddedNodes, alternatives: Sequence[tuple[Ref, Ref]]) -> list[Ref] | None:
    """All needed nodes, each after its inputs and its alternatives; None if they are cyclic.

    Nodes of the graph keep their order where possible; added ones stand right before the node they are alternatives of.
    """
    of_node: dict[Ref, list[Ref]] = {}
    for ref, node in alternatives:
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


def _graph(made: _AddedNodes, alternatives: Sequence[tuple[Ref, Ref]]) -> PCG:
    order = _order(made, alternatives)
    assert order is not None
    number = {ref: new for new, ref in enumerate(order)}
    nodes = tuple(replace(made[ref], inputs=tuple(number[i] for i in made.inputs(ref))) for ref in order)
    pcg = made.pcg
    pairs = tuple((number[ref], number[node]) for ref, node in alternatives if node in number)  # else nothing reads it
    graph = PCG(nodes, number[pcg.loss], pcg.batch, pcg.aliases, alternatives=pairs)
    verify(graph)
    return graph


def _finer(pcg: PCG, graph: PCG) -> bool:
    """True if added nodes factor dims of the graph's tensors more finely, so that layouts would change meaning."""
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
    """The common prefix of dotted paths."""
    parts = zip(*(path.split(".") for path in paths), strict=False)
    return ".".join(part[0] for part in takewhile(lambda part: len({*part}) == 1, parts))
