"""An e-graph of egglog: every e-class one tensor, every e-node one way to compute it."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...model.graph.pcg import PCG
from ...model.operators.operator import rewriting_of
from ...model.operators.sharded import Shape
from .pattern import COUNTED, MADE_BY, Pattern, constructor, declaration, made_by, term, term_attributes, value_of


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


_AT_ONCE = 20


class Egraph:
    """An egglog e-graph, driven by program text and read as JSON.

    `rules` are applied in every round that names no bounded ones, the others where `round` names them. `made_by` has
    the number of the first rule, bounded ones after the others, that made an e-node.
    """

    def __init__(self, kinds: Iterable[tuple[str, int]], rules: Sequence[Pattern], bounded: Sequence[Pattern]) -> None:
        from egglog.bindings import EGraph  # takes a moment to import

        self.graph, self.facts = EGraph(), list[str]()
        every = {*kinds, *(kind for pattern in (*rules, *bounded) for kind in pattern.used)}
        self.kinds = {constructor(op, inputs): (op, inputs) for op, inputs in sorted(every)}
        self.fired = dict[str, int]()
        self.rounds = 0
        self.made_by = dict[ENode, int]()
        self.run(
            "(sort T) (constructor node (i64) T) (ruleset rewrite) (ruleset count)",
            "(function number (T) i64 :merge (min old new)) (function rank (T) i64 :merge (min old new))",
            "(function size (T i64) i64 :merge (min old new)) (function lead (T i64) String :merge old)",
            *(declaration(op, inputs) for op, inputs in sorted(every)),
            *(made_by(op, inputs) for op, inputs in sorted(every)),
            *(f"(ruleset bounded_{number})" for number in range(len(bounded))),
        )
        texts = [pattern.text("rewrite", number) for number, pattern in enumerate(rules)]
        for number, pattern in enumerate(bounded):
            texts.append(pattern.text(f"bounded_{number}", len(rules) + number))
            texts.append(pattern.text("count", acts=False))
        self._run_all(texts)
        self.bounded = [pattern.name for pattern in bounded]

    def fact(self, text: str) -> None:
        """Queue a fact for the next round."""
        self.facts.append(text)

    def shape(self, term: str, shape: Shape) -> None:
        self.fact(f"(set (rank {term}) {len(shape)})")
        self.facts += [f"(set (size {term} {dim}) {size})" for dim, size in enumerate(shape)]
        self.facts += [f"(set (lead {term} {last}) {_quoted(shape[:-last])})" for last in range(1, len(shape))]

    def run(self, *program: str) -> list[Any]:
        """Run egglog commands."""
        return list(self.graph.run_program(*self.graph.parse_program("\n".join(program))))

    def assert_facts(self) -> None:
        """Assert the queued facts."""
        facts, self.facts = self.facts, []
        self._run_all(facts)

    def _run_all(self, program: Sequence[str]) -> None:
        """Run commands in chunks: egglog parses a program in time quadratic in its length."""
        for start in range(0, len(program), _AT_ONCE):
            self.run(*program[start : start + _AT_ONCE])

    def counts(self) -> dict[int, int]:
        """The new matches of every bounded rule, by its number; these are not counted again."""
        self.assert_facts()
        found = self.run("(run-schedule (run count))")[-1].report.num_matches_per_rule
        return {n: found.get(f"{name}{COUNTED}", 0) for n, name in enumerate(self.bounded)}

    def round(self, bounded: Iterable[int] = ()) -> bool:
        """Apply all rules once, or the bounded ones that are named. True if anything changed."""
        self.assert_facts()
        names, ruleset = [f"bounded_{number}" for number in bounded], "rewrite"
        if names:
            self.rounds += 1
            ruleset = f"round_{self.rounds}"
            self.run(f"(unstable-combined-ruleset {ruleset} {' '.join(names)})")
        report = self.run(f"(run-schedule (run {ruleset}))")[-1].report
        for name, count in report.num_matches_per_rule.items():
            self.fired[name] = self.fired.get(name, 0) + count
        return bool(report.updated)

    def read(self) -> dict[str, EClass]:
        """All e-classes of tensors."""
        found = json.loads(self.graph.serialize([]).to_json())["nodes"]
        literals = {node["eclass"]: node["op"] for node in found.values() if not node["children"]}
        classes_: dict[str, EClass] = {}
        self.made_by = {}
        for node in found.values():
            children = [found[child] for child in node["children"]]
            if node["op"] == "node":
                classes_.setdefault(node["eclass"], EClass()).origins.append(int(children[0]["op"]))
            elif node["op"] == "rank":
                classes_.setdefault(children[0]["eclass"], EClass()).known = True
            elif node["op"] in self.kinds:
                e_node = self._e_node(node["op"], children)
                classes_.setdefault(node["eclass"], EClass()).nodes.append(e_node)
            elif node["op"].startswith(MADE_BY):
                made = int(literals[node["eclass"]])
                self.made_by[self._e_node(node["op"].removeprefix(MADE_BY), children)] = made
        for one in classes_.values():
            one.origins.sort()
            one.nodes.sort(key=lambda node: (node.op, node.attributes, node.inputs))
        return classes_

    def _e_node(self, name: str, children: Sequence[Mapping[str, Any]]) -> ENode:
        op, inputs = self.kinds[name]
        names = zip(term_attributes(op) or (), children[inputs:], strict=True)
        attributes = tuple((name, value_of(name, child["op"])) for name, child in names)
        return ENode(op, tuple(child["eclass"] for child in children[:inputs]), attributes)

    def terms(self, pcg: PCG, found: Mapping[str, EClass]) -> tuple[dict[str, Shape], dict[str, str]]:
        """The shape of every class whose shape can be computed, and a term in it."""
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
            if len(left) == len(waiting):
                break  # cycles, or operators that do not take these operands
            waiting = left
        return shapes, terms

    def add_shapes(self, pcg: PCG, found: Mapping[str, EClass]) -> None:
        """Assert the shapes of new e-classes."""
        shapes, terms = self.terms(pcg, found)
        for name, one in found.items():
            if not one.known and name in terms:
                self.shape(terms[name], shapes[name])

    def remove(self, e_nodes: Iterable[ENode], terms: Mapping[str, str]) -> None:
        """Delete e-nodes whose operands have these terms."""
        made = (term(node.op, [terms[child] for child in node.inputs], dict(node.attributes)) for node in e_nodes)
        self._run_all([f"(delete {text})" for text in made])


def _quoted(shape: Shape) -> str:
    return json.dumps(",".join(map(str, shape)))


def _shape(node: ENode, shapes: Mapping[str, Shape]) -> Shape | None:
    if not all(child in shapes for child in node.inputs):
        return None
    rewriting = rewriting_of(node.op)
    assert rewriting is not None  # an e-node is a term
    return rewriting.shape_of([shapes[child] for child in node.inputs], dict(node.attributes))
