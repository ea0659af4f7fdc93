"""Equality saturation of a graph (egglog): everything that rules can make of it, in one e-graph.

Nodes that rules may rewrite are terms, all others leaves. Each round applies all rules everywhere at once, also rules
of several patterns (weights that share an input); operators' `Rewriting` gives the shapes of new terms. Every e-node of
the e-graph becomes a node of the union (`union`), every e-class one tensor with several alternatives. Generated rules
are bounded: by what they may cost, how often they match, and how many alternatives a tensor has.
"""

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from ...model.graph.pcg import PCG, Node
from ...model.graph.recycling import twins
from ..strategies.tensor_classes import classes
from ..substitution.rule import Rule
from .cost_bound import CostBound, KernelCost
from .egraph import EClass, Egraph, ENode
from .pattern import Pattern, term, term_attributes
from .saturation_limits import DEFAULT_LIMITS, SaturationLimits
from .union import VIEWS, Ref, Union

AGAIN = " (again)"


@dataclass(frozen=True)
class Rewritten:
    """A graph with all its rewritings, and counts of what saturation did and dropped.

    `applied`: matches by rule. `made_by`: the rule that made an added node, by the node's name. Of the bounded rules,
    `often` names those with too many matches to be applied, `unproved` those that match but are not proved. `costly`:
    e-nodes beyond the cost bound. `more`: alternatives beyond the limit. `rules`: which rules were given and skipped.
    """

    graph: PCG
    rounds: int = 0
    classes: int = 0
    nodes: int = 0
    ways: int = 0
    dropped: int = 0
    limits_hit: tuple[str, ...] = ()
    applied: Mapping[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    made_by: Mapping[str, str] = field(default_factory=dict)
    often: tuple[str, ...] = ()
    unproved: tuple[str, ...] = ()
    costly: int = 0
    more: int = 0
    bounded: bool = False
    rules: Mapping[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        names = ("rounds", "classes", "nodes", "ways", "dropped")
        numbers = {name: getattr(self, name) for name in names}
        bounded = {
            "unproved": list(self.unproved),
            "too_often": list(self.often),
            "too_costly": self.costly,
            "beyond_limit": self.more,
        }
        return (
            numbers
            | {"limits_hit": list(self.limits_hit), "applied": dict(self.applied), "seconds": self.seconds}
            | (bounded if self.bounded else {})
            | ({} if self.rules is None else {"rules": dict(self.rules)})
        )


def rewritings(
    pcg: PCG,
    rules: Sequence[Rule],
    limits: SaturationLimits = DEFAULT_LIMITS,
    kept: Collection[str] = (),
    bounded: Sequence[Rule] = (),
    cost: KernelCost | None = None,
    proved: Callable[[Rule], bool] = lambda rule: True,
) -> Rewritten:
    """All rewritings of a graph by rules. Raises PartitaError for a rule with operators that cannot be rewritten.

    Nodes named in `kept` are never rewritten: rules see them as leaves. A graph with passes without gradient
    (`recycling`) stays as it is, since repeated passes must keep their form. `bounded` rules, for which `cost` is
    needed, are applied afterwards, together with `rules`, within the bounds of `limits`, and if they are `proved`: only
    those that match are asked for.
    """
    assert cost is not None or not bounded
    return _Saturation(pcg, rules, limits, kept=frozenset(kept), bounded=bounded, cost=cost, proved=proved).run()


@dataclass
class _Saturation:
    pcg: PCG
    rules: Sequence[Rule]
    limits: SaturationLimits
    kept: frozenset[str]
    bounded: Sequence[Rule]
    cost: KernelCost | None
    proved: Callable[[Rule], bool]
    hit: list[str] = field(default_factory=list)
    often: list[str] = field(default_factory=list)
    unproved: list[str] = field(default_factory=list)
    costly: int = 0

    def run(self) -> Rewritten:
        start = time.process_time()
        again = [rule for rule in self.rules if self.bounded]
        numbered = [*self.rules, *self.bounded, *again]
        patterns = [Pattern(rule) for rule in self.rules]
        bounded = [Pattern(rule) for rule in self.bounded] + [Pattern(rule, AGAIN) for rule in again]
        if not numbered or twins(self.pcg):
            limit = ("recycling",) if numbered else ()
            return Rewritten(self.pcg, limits_hit=limit, seconds=round(time.process_time() - start, 3))
        self.terms = {i: self._term(i) for i in range(len(self.pcg.nodes))}
        kinds = {(self.pcg.nodes[i].op, len(self.pcg.nodes[i].inputs)) for i, t in self.terms.items() if t}
        self.egraph = Egraph(kinds, patterns, bounded)
        for index, node in enumerate(self.pcg.nodes):
            term = self.terms[index]
            self.egraph.fact(f"(set (number (node {index})) {index})")
            if term:
                self.egraph.fact(f"(union (node {index}) {term})")
            self.egraph.shape(f"(node {index})", node.shape)
        rounds = self._saturate(start)
        if bounded:
            rounds += self._saturate_bounded(start)
        found, union = self.egraph.read(), Union(self.pcg)
        made = {node: numbered[n].name for node, n in self.egraph.made_by.items()}
        first = frozenset(node for node, n in self.egraph.made_by.items() if n < len(self.rules))
        order = self._order(found) if bounded else None
        most = self.limits.alternatives
        extraction = _Extraction(self.pcg, union, found, order, first=first, most=most)
        extraction.run()
        graph = union.build()
        if extraction.more:
            self.hit.append("alternatives")
        if extraction.views:
            self.hit.append("views")
        names = {node.name for node in graph.nodes} - {node.name for node in self.pcg.nodes}
        added = ((union.names.get(ref, ""), made.get(node)) for node, ref in extraction.made.items())
        fired = Counter[str]()
        for name, count in self.egraph.fired.items():
            fired[name.removesuffix(AGAIN)] += count
        return Rewritten(
            graph,
            rounds=rounds,
            classes=len(found),
            nodes=sum(len(each.nodes) for each in found.values()),
            ways=len(graph.alternatives),
            dropped=union.dropped,
            limits_hit=tuple(self.hit),
            applied={rule.name: fired[rule.name] for rule in (*self.rules, *self.bounded) if fired[rule.name]},
            seconds=round(time.process_time() - start, 3),
            made_by={name: rule for name, rule in added if name in names and rule is not None},
            often=tuple(self.often),
            unproved=tuple(self.unproved),
            costly=self.costly,
            more=extraction.more,
            bounded=bool(bounded),
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
            found = self.egraph.read()
            self.egraph.add_shapes(self.pcg, found)
            if self._ends(found, start):
                return number + 1
        self.hit.append("rounds")
        return self.limits.rounds

    def _ends(self, found: Mapping[str, EClass], start: float) -> bool:
        """True, and noted, if the e-graph is too large or the time is up."""
        limit = ""
        if sum(len(one.nodes) for one in found.values()) > self.limits.nodes:
            limit = "nodes"
        elif time.process_time() - start > self.limits.seconds:
            limit = "seconds"
        if limit and limit not in self.hit:
            self.hit.append(limit)
        return bool(limit)

    def _saturate_bounded(self, start: float) -> int:
        """Run rounds of the bounded rules, those that match too often left out; returns their number."""
        most, never = self.limits.matches * len(self.pcg.nodes), set[int]()
        every, used = [*self.bounded, *self.rules], set[int]()
        for number in range(self.limits.bounded_rounds):
            for rule, count in self.egraph.counts().items():
                if rule in used or rule in never or not count:
                    continue
                if count > most:
                    self.often.append(every[rule].name)
                elif rule < len(self.bounded) and not self.proved(every[rule]):
                    self.unproved.append(every[rule].name)
                else:
                    used.add(rule)
                    continue
                never.add(rule)
            if not used or not self.egraph.round(sorted(used)):
                return number
            if self._ends(self._within_bound(), start):
                return number + 1
        return self.limits.bounded_rounds

    def _within_bound(self) -> Mapping[str, EClass]:
        """The classes, after e-nodes beyond the cost bound are deleted and new shapes are asserted."""
        found = self.egraph.read()
        shapes, terms = self.egraph.terms(self.pcg, found)
        bound = self._cost_bound
        excess, slack = bound.excess(found, shapes, self._leaves), bound.slack
        safe = {node for node, number in self.egraph.made_by.items() if number < len(self.rules)}
        beyond = [
            e_node
            for name, one in found.items()
            for e_node in one.nodes
            if e_node not in safe and e_node in self.egraph.made_by
            and excess.get((name, e_node), slack + 1) > slack
            and all(child in terms for child in e_node.inputs)
        ]  # fmt: skip
        self.costly += len(beyond)
        self.egraph.remove(beyond, terms)
        found = self.egraph.read()
        self.egraph.add_shapes(self.pcg, found)
        return found

    def _order(self, found: Mapping[str, EClass]) -> Mapping[tuple[str, ENode], float]:
        """The excess of every e-node, by which alternatives are taken."""
        return self._cost_bound.excess(found, self.egraph.terms(self.pcg, found)[0], self._leaves)

    @property
    def _cost_bound(self) -> CostBound:
        assert self.cost is not None
        return CostBound(self.pcg, self.cost, self.limits.alpha)

    @property
    def _leaves(self) -> frozenset[int]:
        return frozenset(index for index, term in self.terms.items() if term is None)


def _attributes(node: Node) -> dict[str, Any]:
    """A node's attributes as a term has them; of a view, its shape."""
    if node.op == "view":
        return {"shape": node.shape}
    return {name: value for name, value in node.attributes if name != "site"}


class _Extraction:
    """Adds the e-classes to the union.

    Without an `order` every e-node becomes an alternative. With one, the e-nodes in `first` do, and in the order of
    their excess at most `most` others of a tensor; `more` counts those left out.

    Views are no alternatives: a network decides on a tensor and its views together. Mostly nothing is lost, since the
    tensor shown is computed by operators that also compute the view, of the same operands up to views; `views` counts
    the classes of which something is.
    """

    def __init__(
        self,
        pcg: PCG,
        union: Union,
        found: Mapping[str, EClass],
        order: Mapping[tuple[str, ENode], float] | None,
        first: Collection[ENode],
        most: int,
    ) -> None:
        self.pcg, self.union, self.found = pcg, union, found
        self.order, self.first, self.most = order, first, most
        self.base = classes(pcg).base
        self.class_of = {node: name for name, one in found.items() for node in one.origins}
        self.refs: dict[str, Ref | None] = {}
        self.made: dict[ENode, Ref] = {}
        self.more = self.views = 0
        self.shown = _shown_together(found)
        self.computed: dict[str, set[object]] = {}  # by which operators of what, for tensors shown together
        for name, one in found.items():
            self.computed.setdefault(self.shown[name], set()).update(self._computations(one))

    def run(self) -> None:
        for node, name in sorted(self.class_of.items()):
            if self.base[node] == node and self.pcg.nodes[node].inputs:
                own = self._own(node)
                for e_node in self._taken(name, own):
                    self._add_alternative(self._e_node(e_node), node)

    def _taken(self, name: str, own: ENode | None = None) -> list[ENode]:
        """The e-nodes of a class that become nodes of the union, other than its own and views."""
        one = self.found[name]
        every = [e_node for e_node in one.nodes if e_node != own]
        nodes = [e_node for e_node in every if e_node.op not in VIEWS]
        if len(nodes) < len(every) and (nodes or own is not None):
            self.views += not self.computed[self.shown[name]] <= self._computations(one)
        if self.order is None:
            return nodes
        chosen, others = [n for n in nodes if n in self.first], list[ENode]()
        known = {self._computation(e_node) for e_node in (*chosen, *([] if own is None else [own]))}
        for e_node in nodes:
            if e_node not in self.first and self._computation(e_node) not in known:
                known.add(self._computation(e_node))
                others.append(e_node)
        priced = [n for n in others if (name, n) in self.order]
        priced.sort(key=lambda n: (self.order or {})[name, n])
        most = max(self.most, 1 if own is None and not chosen else 0)
        self.more += len(priced[most:])
        return chosen + priced[:most]

    def _computations(self, one: EClass) -> set[object]:
        return {self._computation(e_node) for e_node in one.nodes if e_node.op not in VIEWS}

    def _computation(self, e_node: ENode) -> object:
        """An operator and its operands, up to views and their order: in one class, these are equally good."""
        return e_node.op, *sorted(self.shown[child] for child in e_node.inputs)

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
        if name not in self.found:
            return None  # all its e-nodes were deleted
        if name not in self.refs:
            one = self.found[name]
            self.refs[name] = one.origins[0] if one.origins else None  # None during the search, so that cycles end
            if not one.origins:
                views = (e_node for e_node in one.nodes if e_node.op in VIEWS)
                made = list(self._made(self._taken(name))) or list(islice(self._made(views), 1))
                self.refs[name] = made[0] if made else None
                for ref in made[1:]:
                    self._add_alternative(ref, made[0])
        return self.refs[name]

    def _made(self, e_nodes: Iterable[ENode]) -> Iterator[Ref]:
        """The nodes of those e-nodes that can be made."""
        return (ref for ref in map(self._e_node, e_nodes) if ref is not None)

    def _e_node(self, e_node: ENode) -> Ref | None:
        inputs = [self._class(child) for child in e_node.inputs]
        known = [ref for ref in inputs if ref is not None]
        if len(known) < len(inputs):
            return None
        ref = self.made[e_node] = self.union.add(e_node.op, known, e_node.attributes)
        return ref


def _shown_together(found: Mapping[str, EClass]) -> Mapping[str, str]:
    """For every class one of those that views connect it with, also for operands of which all e-nodes were deleted."""
    parent = {child: child for one in found.values() for e_node in one.nodes for child in e_node.inputs}
    parent |= {name: name for name in found}

    def first(name: str) -> str:
        while parent[name] != name:
            parent[name] = parent[parent[name]]
            name = parent[name]
        return name

    for name, one in found.items():
        for e_node in one.nodes:
            if e_node.op in VIEWS:
                parent[first(name)] = first(e_node.inputs[0])
    return {name: first(name) for name in parent}
