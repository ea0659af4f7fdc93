"""Equality saturation of a graph (egglog): all that its rules can make of it, in one e-graph.

Every node that a rule may rewrite is a term, all others are leaves. In each round all rules are applied everywhere at
once, also several patterns at a time (weights that share an input); shapes of what is made follow from `shapes`. Of the
e-graph every e-node becomes a node of the union (`union`), every e-class one tensor with several ways to compute it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...model.graph.pcg import PCG, Node
from ...model.graph.recycling import twins
from ..strategies.tensor_classes import classes
from ..substitution.rule import Rule
from .pattern import SIGNATURES, Pattern, constructor, declaration, literal, value_of
from .saturation_limits import DEFAULT_LIMITS, SaturationLimits
from .shapes import Shape, shape_of
from .union import Ref, Union


@dataclass(frozen=True)
class Rewritten:
    """A graph with all its rewritings; what saturation did, and what it left out."""

    graph: PCG
    rounds: int
    classes: int
    nodes: int
    ways: int
    dropped: int
    limits_hit: tuple[str, ...]
    applied: Mapping[str, int]
    seconds: float

    def to_json(self) -> dict[str, Any]:
        names = ("rounds", "classes", "nodes", "ways", "dropped")
        numbers = {name: getattr(self, name) for name in names}
        return numbers | {"limits_hit": list(self.limits_hit), "applied": dict(self.applied), "seconds": self.seconds}


def rewritings(
    pcg: PCG, rules: Sequence[Rule], limits: SaturationLimits = DEFAULT_LIMITS, kept: Collection[str] = ()
) -> Rewritten:
    """All rewritings of a graph by rules. PartitaError: a rule with operators that rewriting does not know.

    Operators whose names are `kept` are part of all of them, since no rule sees what they are.
    A graph with passes without gradient (`recycling`) stays as it is: what they repeat has to keep its form.
    """
    return _Saturation(pcg, rules, limits, frozenset(kept)).run()


@dataclass
class _Saturation:
    pcg: PCG
    rules: Sequence[Rule]
    limits: SaturationLimits
    kept: frozenset[str]
    hit: list[str] = field(default_factory=list)

    def run(self) -> Rewritten:
        start = time.monotonic()
        patterns = [Pattern(rule) for rule in self.rules]
        texts = [pattern.text() for pattern in patterns]
        used = {kind for pattern in patterns for kind in pattern.used}
        if not texts or twins(self.pcg):
            limit = ("recycling",) if texts else ()
            return Rewritten(self.pcg, 0, 0, 0, 0, 0, limit, {}, round(time.monotonic() - start, 3))
        self.terms = {i: self._term(i) for i in range(len(self.pcg.nodes))}
        kinds = used | {(self.pcg.nodes[i].op, len(self.pcg.nodes[i].inputs)) for i, t in self.terms.items() if t}
        self.egraph = _Egraph(sorted(kinds), texts)
        for index, node in enumerate(self.pcg.nodes):
            term = self.terms[index]
            self.egraph.fact(f"(set (number (node {index})) {index})")
            if term:
                self.egraph.fact(f"(union (node {index}) {term})")
            self.egraph.shape(f"(node {index})", node.shape)
        rounds = self._saturate(start)
        classes_, union = self.egraph.read(), Union(self.pcg)
        _Extraction(self.pcg, union, classes_).run()
        graph = union.build()
        applied = {rule.name: n for rule in self.rules if (n := self.egraph.fired.get(rule.name))}
        return Rewritten(
            graph, rounds, len(classes_), sum(len(c.nodes) for c in classes_.values()), len(graph.alternatives),
            union.dropped, tuple(self.hit), applied, round(time.monotonic() - start, 3),
        )  # fmt: skip

    def _term(self, index: int) -> str | None:
        """A node as a term; None for a leaf."""
        node = self.pcg.nodes[index]
        given = _attributes(node)
        fits = node.op in SIGNATURES and given.keys() == {*SIGNATURES[node.op]} and bool(node.inputs)
        if node.name in self.kept or not fits:
            return None
        values = [literal(name, given[name]) for name in SIGNATURES[node.op]]
        return (
            f"({constructor(node.op, len(node.inputs))} {' '.join([*(f'(node {i})' for i in node.inputs), *values])})"
        )

    def _saturate(self, start: float) -> int:
        """Rounds until nothing new is found, or a limit is hit; how many."""
        for number in range(self.limits.rounds):
            if not self.egraph.round():
                return number
            size = self.egraph.add_shapes(self.pcg)
            if size > self.limits.nodes:
                self.hit.append("nodes")
                return number + 1
            if time.monotonic() - start > self.limits.seconds:
                self.hit.append("seconds")
                return number + 1
        self.hit.append("rounds")
        return self.limits.rounds


@dataclass(frozen=True, slots=True)
class Enode:
    """An operator, the e-classes of its inputs, and its attributes."""

    op: str
    inputs: tuple[str, ...]
    attributes: tuple[tuple[str, Any], ...]


@dataclass
class Class:
    """One e-class: the nodes of the graph in it, and its e-nodes; `known`: its shape was told."""

    origins: list[int] = field(default_factory=list)
    nodes: list[Enode] = field(default_factory=list)
    known: bool = False


_AT_ONCE = 100


class _Egraph:
    """egglog's e-graph, told by text and read as JSON."""

    def __init__(self, kinds: Sequence[tuple[str, int]], rules: Sequence[str]) -> None:
        from egglog.bindings import EGraph  # takes a moment to import

        self.graph, self.facts, self.kinds = EGraph(), list[str](), dict(_constructors(kinds))
        self.fired = dict[str, int]()
        self.tell(
            "(sort T) (constructor node (i64) T) (ruleset rewrite)",
            "(function number (T) i64 :merge (min old new)) (function rank (T) i64 :merge (min old new))",
            "(function size (T i64) i64 :merge (min old new))",
            *(declaration(op, inputs) for op, inputs in kinds),
            *rules,
        )

    def fact(self, text: str) -> None:
        """Remember what is so; it is told with the next round."""
        self.facts.append(text)

    def shape(self, term: str, shape: Shape) -> None:
        self.fact(f"(set (rank {term}) {len(shape)})")
        self.facts += [f"(set (size {term} {dim}) {size})" for dim, size in enumerate(shape)]

    def tell(self, *program: str) -> list[Any]:
        """Run commands."""
        return list(self.graph.run_program(*self.graph.parse_program("\n".join(program))))

    def tell_facts(self) -> None:
        """Tell what was remembered, a little at a time: reading a program takes egglog the square of its length."""
        for start in range(0, len(self.facts), _AT_ONCE):
            self.tell(*self.facts[start : start + _AT_ONCE])
        self.facts = []

    def round(self) -> bool:
        """Apply all rules once; whether anything changed."""
        self.tell_facts()
        report = self.tell("(run-schedule (run rewrite))")[-1].report
        for name, count in report.num_matches_per_rule.items():
            self.fired[name] = self.fired.get(name, 0) + count
        return bool(report.updated)

    def read(self) -> dict[str, Class]:
        """All e-classes of tensors."""
        found = json.loads(self.graph.serialize([]).to_json())["nodes"]
        classes_: dict[str, Class] = {}
        for node in found.values():
            children = [found[child] for child in node["children"]]
            if node["op"] == "node":
                classes_.setdefault(node["eclass"], Class()).origins.append(int(children[0]["op"]))
            elif node["op"] == "rank":
                classes_.setdefault(children[0]["eclass"], Class()).known = True
            elif node["op"] in self.kinds:
                op, inputs = self.kinds[node["op"]]
                names = zip(SIGNATURES[op], children[inputs:], strict=True)
                attributes = tuple((name, value_of(name, child["op"])) for name, child in names)
                tensors = tuple(child["eclass"] for child in children[:inputs])
                classes_.setdefault(node["eclass"], Class()).nodes.append(Enode(op, tensors, attributes))
        for one in classes_.values():
            one.origins.sort()
            one.nodes.sort(key=lambda node: (node.op, node.attributes, node.inputs))
        return classes_

    def add_shapes(self, pcg: PCG) -> int:
        """Tell the shapes of what was made; how many e-nodes there are."""
        found = self.read()
        terms = {name: f"(node {one.origins[0]})" for name, one in found.items() if one.origins}
        shapes = {name: pcg.nodes[one.origins[0]].shape for name, one in found.items() if one.origins}
        waiting = [name for name in found if name not in terms]
        while waiting:
            left = []
            for name in waiting:
                made = ((node, shape) for node in found[name].nodes if (shape := _shape(node, shapes)) is not None)
                node, shape = next(made, (None, None))
                if node is None or shape is None:
                    left.append(name)
                    continue
                values = [literal(key, value) for key, value in node.attributes]
                inputs = [terms[child] for child in node.inputs]
                shapes[name] = shape
                terms[name] = f"({constructor(node.op, len(inputs))} {' '.join([*inputs, *values])})"
                if not found[name].known:
                    self.shape(terms[name], shape)
            if len(left) == len(waiting):
                break  # circles, or operators that do not take what they are given
            waiting = left
        return sum(len(one.nodes) for one in found.values())


def _attributes(node: Node) -> dict[str, Any]:
    """What tells a node from others of its operator; a view, its shape."""
    if node.op == "view":
        return {"shape": node.shape}
    return {name: value for name, value in node.attributes if name != "site"}


def _shape(node: Enode, shapes: Mapping[str, Shape]) -> Shape | None:
    if not all(child in shapes for child in node.inputs):
        return None
    return shape_of(node.op, [shapes[child] for child in node.inputs], dict(node.attributes))


def _constructors(kinds: Sequence[tuple[str, int]]) -> Iterator[tuple[str, tuple[str, int]]]:
    return ((constructor(op, inputs), (op, inputs)) for op, inputs in kinds)


class _Extraction:
    """Brings the e-classes into the union."""

    def __init__(self, pcg: PCG, union: Union, found: Mapping[str, Class]) -> None:
        self.pcg, self.union, self.found = pcg, union, found
        self.base = classes(pcg).base
        self.class_of = {node: name for name, one in found.items() for node in one.origins}
        self.refs: dict[str, Ref | None] = {}
        self.made: dict[tuple[str, Enode], Ref | None] = {}

    def run(self) -> None:
        for node, name in sorted(self.class_of.items()):
            if self.base[node] == node and self.pcg.nodes[node].inputs:
                own = self._own(node)
                for enode in self.found[name].nodes:
                    if enode != own:
                        self._way(self._enode(enode), node)

    def _own(self, node: int) -> Enode:
        """The e-node that a node of the graph was."""
        this = self.pcg.nodes[node]
        inputs = tuple(self.class_of[i] for i in this.inputs)
        return Enode(
            this.op, inputs, tuple((name, _attributes(this).get(name)) for name in SIGNATURES.get(this.op, ()))
        )

    def _way(self, ref: Ref | None, node: Ref) -> None:
        if ref is not None and ref != node:
            self.union.way(ref, node)

    def _class(self, name: str) -> Ref | None:
        """The node that stands for a class: the graph's own, or the first that can be made; the others are its ways."""
        if name not in self.refs:
            one = self.found[name]
            self.refs[name] = one.origins[0] if one.origins else None  # none while it is looked for: no circles
            if not one.origins:
                made = [ref for ref in map(self._enode, one.nodes) if ref is not None]
                self.refs[name] = made[0] if made else None
                for ref in made[1:]:
                    self._way(ref, made[0])
        return self.refs[name]

    def _enode(self, enode: Enode) -> Ref | None:
        inputs = [self._class(child) for child in enode.inputs]
        known = [ref for ref in inputs if ref is not None]
        return self.union.add(enode.op, known, enode.attributes) if len(known) == len(inputs) else None
