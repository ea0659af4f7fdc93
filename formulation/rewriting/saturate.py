"""Equality saturation of a graph (egglog): everything that rules can make of it, in one e-graph.

Nodes that rules may rewrite are terms, all others leaves. Each round applies all rules everywhere at once, also rules
of several patterns (weights that share an input); operators' `Rewriting` gives the shapes of new terms. Every e-node of
the e-graph becomes a node of the union (`union`), every e-class one tensor with several alternatives.
"""

import json
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...model.graph.pcg import PCG, Node
from ...model.graph.recycling import twins
from ...model.operators.operator import rewriting_of
from ...model.operators.sharded import Shape
from ..strategies.tensor_classes import classes
from ..substitution.rule import Rule
from .pattern import Pattern, constructor, declaration, term, term_attributes, value_of
from .saturation_limits import DEFAULT_LIMITS, SaturationLimits
from .union import Ref, Union


@dataclass(frozen=True)
class Rewritten:
    """A graph with all its rewritings, and counts of what saturation did and dropped."""

    graph: PCG
    rounds: int = 0
    classes: int = 0
    nodes: int = 0
    ways: int = 0
    dropped: int = 0
    limits_hit: tuple[str, ...] = ()
    applied: Mapping[str, int] = field(default_factory=dict)
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        names = ("rounds", "classes", "nodes", "ways", "dropped")
        numbers = {name: getattr(self, name) for name in names}
        return numbers | {"limits_hit": list(self.limits_hit), "applied": dict(self.applied), "seconds": self.seconds}


def rewritings(
    pcg: PCG, rules: Sequence[Rule], limits: SaturationLimits = DEFAULT_LIMITS, kept: Collection[str] = ()
) -> Rewritten:
    """All rewritings of a graph by rules. Raises PartitaError for a rule with operators that cannot be rewritten.

    Nodes named in `kept` are never rewritten: rules see them as leaves. A graph with passes without gradient
    (`recycling`) stays as it is, since repeated passes must keep their form.
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
            return Rewritten(self.pcg, limits_hit=limit, seconds=round(time.monotonic() - start, 3))
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
            graph,
            rounds=rounds,
            classes=len(classes_),
            nodes=sum(len(each.nodes) for each in classes_.values()),
            ways=len(graph.alternatives),
            dropped=union.dropped,
            limits_hit=tuple(self.hit),
            applied=applied,
            seconds=round(time.monotonic() - start, 3),
        )

    def _term(self, index: int) -> str | None:
        """A node's term; None for a leaf."""
        node = self.pcg.nodes[index]
        given, names = _attributes(node), term_attributes(node.op)
        if names is None or given.keys() != {*names} or not node.inputs or node.name in self.kept:
            return None
        return term(node.op, [f"(node {i})" for i in node.inputs], given)

    def _saturate(self, start: float) -> int:
        """Run rounds to the fixed point or a limit; returns their number."""
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
class ENode:
    """An operator, the e-classes of its inputs, and its attributes."""

    op: str
    inputs: tuple[str, ...]
    attributes: tuple[tuple[str, Any], ...]


@dataclass
class EClass:
    """One e-class: the graph's nodes in it, and its e-nodes. `known`: egglog has its shape."""

    origins: list[int] = field(default_factory=list)
    nodes: list[ENode] = field(default_factory=list)
    known: bool = False


_AT_ONCE = 100


class _Egraph:
    """An egglog e-graph, driven by program text and read as JSON."""

    def __init__(self, kinds: Sequence[tuple[str, int]], rules: Sequence[str]) -> None:
        from egglog.bindings import EGraph  # takes a moment to import

        self.graph, self.facts = EGraph(), list[str]()
        self.kinds = {constructor(op, inputs): (op, inputs) for op, inputs in kinds}
        self.fired = dict[str, int]()
        self.run(
            "(sort T) (constructor node (i64) T) (ruleset rewrite)",
            "(function number (T) i64 :merge (min old new)) (function rank (T) i64 :merge (min old new))",
            "(function size (T i64) i64 :merge (min old new))",
            *(declaration(op, inputs) for op, inputs in kinds),
            *rules,
        )

    def fact(self, text: str) -> None:
        """Queue a fact for the next round."""
        self.facts.append(text)

    def shape(self, term: str, shape: Shape) -> None:
        self.fact(f"(set (rank {term}) {len(shape)})")
        self.facts += [f"(set (size {term} {dim}) {size})" for dim, size in enumerate(shape)]

    def run(self, *program: str) -> list[Any]:
        """Run egglog commands."""
        return list(self.graph.run_program(*self.graph.parse_program("\n".join(program))))

    def assert_facts(self) -> None:
        """Assert the queued facts in chunks: egglog parses a program in time quadratic in its length."""
        for start in range(0, len(self.facts), _AT_ONCE):
            self.run(*self.facts[start : start + _AT_ONCE])
        self.facts = []

    def round(self) -> bool:
        """Apply all rules once. True if anything changed."""
        self.assert_facts()
        report = self.run("(run-schedule (run rewrite))")[-1].report
        for name, count in report.num_matches_per_rule.items():
            self.fired[name] = self.fired.get(name, 0) + count
        return bool(report.updated)

    def read(self) -> dict[str, EClass]:
        """All e-classes of tensors."""
        found = json.loads(self.graph.serialize([]).to_json())["nodes"]
        classes_: dict[str, EClass] = {}
        for node in found.values():
            children = [found[child] for child in node["children"]]
            if node["op"] == "node":
                classes_.setdefault(node["eclass"], EClass()).origins.append(int(children[0]["op"]))
            elif node["op"] == "rank":
                classes_.setdefault(children[0]["eclass"], EClass()).known = True
            elif node["op"] in self.kinds:
                op, inputs = self.kinds[node["op"]]
                names = zip(term_attributes(op) or (), children[inputs:], strict=True)
                attributes = tuple((name, value_of(name, child["op"])) for name, child in names)
                tensors = tuple(child["eclass"] for child in children[:inputs])
                classes_.setdefault(node["eclass"], EClass()).nodes.append(ENode(op, tensors, attributes))
        for one in classes_.values():
            one.origins.sort()
            one.nodes.sort(key=lambda node: (node.op, node.attributes, node.inputs))
        return classes_

    def add_shapes(self, pcg: PCG) -> int:
        """Assert the shapes of new e-classes; returns the number of e-nodes."""
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
                shapes[name] = shape
                terms[name] = term(node.op, [terms[child] for child in node.inputs], dict(node.attributes))
                if not found[name].known:
                    self.shape(terms[name], shape)
            if len(left) == len(waiting):
                break  # cycles, or operators that do not take these operands
            waiting = left
        return sum(len(one.nodes) for one in found.values())


def _attributes(node: Node) -> dict[str, Any]:
    """A node's attributes as a term has them; of a view, its shape."""
    if node.op == "view":
        return {"shape": node.shape}
    return {name: value for name, value in node.attributes if name != "site"}


def _shape(node: ENode, shapes: Mapping[str, Shape]) -> Shape | None:
    if not all(child in shapes for child in node.inputs):
        return None
    rewriting = rewriting_of(node.op)
    assert rewriting is not None  # an e-node is a term
    return rewriting.shape_of([shapes[child] for child in node.inputs], dict(node.attributes))


class _Extraction:
    """Adds the e-classes to the union."""

    def __init__(self, pcg: PCG, union: Union, found: Mapping[str, EClass]) -> None:
        self.pcg, self.union, self.found = pcg, union, found
        self.base = classes(pcg).base
        self.class_of = {node: name for name, one in found.items() for node in one.origins}
        self.refs: dict[str, Ref | None] = {}
        self.made: dict[tuple[str, ENode], Ref | None] = {}

    def run(self) -> None:
        for node, name in sorted(self.class_of.items()):
            if self.base[node] == node and self.pcg.nodes[node].inputs:
                own = self._own(node)
                for e_node in self.found[name].nodes:
                    if e_node != own:
                        self._add_alternative(self._e_node(e_node), node)

    def _own(self, node: int) -> ENode:
        """The e-node of a node of the graph."""
        this = self.pcg.nodes[node]
        inputs = tuple(self.class_of[i] for i in this.inputs)
        return ENode(
            this.op, inputs, tuple((name, _attributes(this).get(name)) for name in term_attributes(this.op) or ())
        )

    def _add_alternative(self, ref: Ref | None, node: Ref) -> None:
        if ref is not None and ref != node:
            self.union.add_alternative(ref, node)

    def _class(self, name: str) -> Ref | None:
        """The node that represents a class: the graph's own, or else the first that can be made."""
        if name not in self.refs:
            one = self.found[name]
            self.refs[name] = one.origins[0] if one.origins else None  # None during the search, so that cycles end
            if not one.origins:
                made = [ref for ref in map(self._e_node, one.nodes) if ref is not None]
                self.refs[name] = made[0] if made else None
                for ref in made[1:]:
                    self._add_alternative(ref, made[0])
        return self.refs[name]

    def _e_node(self, e_node: ENode) -> Ref | None:
        inputs = [self._class(child) for child in e_node.inputs]
        known = [ref for ref in inputs if ref is not None]
        return self.union.add(e_node.op, known, e_node.attributes) if len(known) == len(inputs) else None
