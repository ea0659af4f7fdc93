"""What rules make of graphs trains as the graphs did: every rule by itself, the small twins with as many as fit."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import pytest

from partita.codegen.plan.plan import Plan
from partita.codegen.planner.context import Context
from partita.codegen.planner.plan_graph import plan_graph
from partita.codegen.planner.rewritten_graph import taken_graph
from partita.formulation.rewriting.pattern import leading
from partita.formulation.rewriting.rules import planner_rules
from partita.formulation.rewriting.saturate import SaturationLimits, rewritings
from partita.formulation.search_space import SearchSpace
from partita.formulation.strategies.strategy import row_names
from partita.formulation.substitution.rule import Apply, Rule
from partita.formulation.substitution.text import write_rule
from partita.model.capture.capture import capture
from partita.model.graph.batch import with_batch
from partita.model.graph.builder import Builder
from partita.model.graph.pcg import PCG
from partita.model.machine.machine import Machine
from partita.model.operators.operator import rewriting_of
from partita.model.training import Training
from partita.model.zoo import build
from partita.model.zoo.registry import entry

from ..levels import some

Judge = Callable[..., dict[str, Any]]
Force = Callable[..., Plan]

BATCH = 4
SIZES = {"b": BATCH, "i": 6, "j": 4, "k": 2, "o": 8, "p": 4, "q": 12}
OF_IMAGES = {"n": BATCH, "c": 4, "h": 5, "l": 4, "k": 3, "m": 3, "o": 4, "q": 2, "r": 6}
WINDOW = {"s": (1, 1), "p": (1, 1), "e": (1, 1)}
RULES = {rule.name: rule for rule in planner_rules()}


class Source:
    """The source of a rule as a graph: what is no weight is an input times a weight, so that gradients reach it."""

    def __init__(self, rule: Rule, lead: tuple[int, ...], groups: int = 1) -> None:
        self.rule, self.lead, self.b = rule, lead, Builder(BATCH)
        self.images = any(apply.op == "conv" for apply in rule.source)
        self.sizes = {**OF_IMAGES, "d": OF_IMAGES["c"] // groups} if self.images else SIZES
        self.words: Mapping[str, Any] = {**WINDOW, "g": groups}
        self.free = leading(rule, (*rule.source, *rule.target))
        self.weights = {name for a in rule.source for name in a.inputs[1:] if a.op in ("linear", "conv")}
        self.weights |= {a.inputs[0] for a in rule.source if a.op in ("view", "pad")}

    def graph(self) -> PCG:
        known = {t.name: self.tensor(t.name, t.dims) for t in self.rule.inputs}
        for apply in self.rule.source:
            known[apply.outputs[0]] = self.apply(apply, [known[name] for name in apply.inputs])
        ends = [known[name] for name, _ in self.rule.outputs]
        ends = [self.b.add("tanh", y, shape=self.b.nodes[y].shape) for y in ends]
        dim = 1 if self.images else len(self.b.nodes[ends[0]].shape) - 1
        y = self.add("cat", ends, {"dim": dim}) if len(ends) > 1 else ends[0]
        return self.b.build(self.b.add("projection", y, shape=(), site=0))

    def number(self, text: Any) -> int:
        return int(eval(str(text), {"__builtins__": {}}, dict(self.sizes)))

    def tensor(self, name: str, dims: Sequence[str]) -> int:
        shape = tuple(self.number(text) for text in dims)
        if name in self.weights:
            return self.b.parameter(f"{name}.weight", shape)
        if name in self.free:
            shape = (*self.lead, *shape[1:])
        scale = self.b.parameter(f"{name}.scale", shape[-1:])
        return self.b.add("mul", self.b.input(name, shape), scale, shape=shape)

    def apply(self, apply: Apply, inputs: Sequence[int]) -> int:
        given = {name: self.value(name, value) for name, value in apply.attributes}
        if "dim" in given and apply.inputs[0] in self.free:
            given["dim"] += len(self.lead) - 1
        self.free |= set(apply.outputs) if set(apply.inputs) & self.free else set()
        return self.add(apply.op, inputs, given)

    def value(self, name: str, value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(self.number(size) for size in value)
        return self.words.get(value, value) if isinstance(value, str) and self.images else value

    def add(self, op: str, inputs: Sequence[int], given: Mapping[str, Any]) -> int:
        rewriting = rewriting_of(op)
        shapes = [self.b.nodes[i].shape for i in inputs]
        shape = (rewriting.shape_of(shapes, given) if rewriting else None) or shapes[0]
        return self.b.add(op, *inputs, shape=shape, **({} if op == "view" else given))


def consistent(graph: PCG) -> bool:
    """Whether no weight is held twice."""
    held = [name for i in graph.of("parameter") for name in graph.nodes[i].originals]
    return len({*held}) == len(held)


def units(graph: PCG) -> Iterator[dict[int, int]]:
    """Ways that go together: all the parts of one merged operator, or one way alone."""
    found: dict[object, dict[int, int]] = {}
    for way, node in graph.alternatives:
        this = graph.nodes[way]
        found.setdefault(this.inputs if this.op in ("part", "slice") else way, {})[node] = way
    yield from sorted(found.values(), key=len, reverse=True)


def forced(graph: PCG, rng: random.Random | None = None) -> PCG:
    """The graph with as many ways other than its own as go together."""
    those, taken = list(units(graph)), dict[int, int]()
    if rng is not None:
        rng.shuffle(those)
    for unit in those:
        more = {node: way for node, way in unit.items() if node not in taken}
        if len(more) == len(unit) and consistent(taken_graph(graph, taken | more)[0]):
            taken |= more
    return taken_graph(graph, taken)[0]


@pytest.mark.parametrize("name", some(RULES, 4))
def test_every_rule(name: str, judge: Judge, force: Force) -> None:
    """Its source as a graph, rewritten by it alone, under random plans, and the best one."""
    rule, rng = RULES[name], random.Random(name)
    images = any(apply.op == "conv" for apply in rule.source)
    leads = [(BATCH,)] if images else [(BATCH,), (BATCH, 3)]
    for lead in leads:
        grouped = rng.choice((1, 2)) if "groups=g" in write_rule(rule) else 1
        before = Source(rule, lead, grouped).graph()
        found = rewritings(before, [rule], SaturationLimits(rounds=1))
        after = forced(found.graph)
        assert found.applied == {name: 1} and after != before
        assert {node.op for node in after.nodes} >= {a.op for a in rule.target if a.op not in ("split", "cat", "view")}
        for sizes in ((2,), (3,), (2, 2)):
            for _ in range(2):
                plan = force(after, sizes, rng, None, rng.choice((1, 2)), rng.choice(("sgd", "adamw")))
                judge(plan, with_batch(before, plan.batch))
        training, space = Training(BATCH, "float64", "adamw"), SearchSpace(mesh=(2, 2), micro_batches=1, stages=1)
        judge(plan_graph(after, Machine.adhoc((2, 2)), training, space), before)


@cache
def small(name: str) -> tuple[PCG, PCG]:
    """A small twin, and the graph with all its rewritings."""
    module, inputs = build(name, small=True)
    graph = capture(module, inputs, batch=BATCH)
    return graph, rewritings(graph, planner_rules()).graph


FAMILIES = ("mlp", "bert-large", "dlrm", "candle-uno", "llama-7b", "resnext-50")


def planned(name: str, graph: PCG, mesh: tuple[int, ...], rules: tuple[Rule, ...] = ()) -> Plan:
    """A plan beside the module itself."""
    training, space = Training(BATCH, "float64", entry(name).optimizer), SearchSpace(mesh=mesh, rules=rules, stages=1)
    model = {"reference": name, "small": True, "sequence": None, "batch": BATCH}
    plan = plan_graph(graph, Machine.adhoc(mesh), training, space, context=Context(model))
    verdict = plan.verify()
    assert verdict["ok"], f"{verdict['failure']}\n{plan}"
    return plan


@pytest.mark.parametrize("name", some(FAMILIES))
def test_a_small_twin_with_as_many_rewritings_as_fit(name: str) -> None:
    graph, union = small(name)
    after = forced(union)
    assert after != graph
    planned(name, after, (2,))


@pytest.mark.parametrize(("name", "mesh"), [("bert-large", (2,)), ("candle-uno", (2, 2)), ("mlp", (2, 2))])
def test_a_small_twin_as_it_is_planned(name: str, mesh: tuple[int, ...]) -> None:
    plan = planned(name, small(name)[0], mesh, planner_rules())
    assert plan.report["rewritten"] and plan.report["status"] == "optimal"


def test_what_is_fixed_is_kept() -> None:
    """A layer whose ReLU would be fused, if neither its strategy nor that of its ReLU were fixed."""
    graph = small("mlp")[0]
    relu = graph.of("relu")[0]
    linear = graph.nodes[relu].inputs[0]

    def fused(*fixed: int) -> list[str]:
        fix = tuple((graph.nodes[i].name, row_names(graph, i)[0]) for i in fixed)
        training = Training(BATCH, "float64", "sgd")
        space = SearchSpace(mesh=(2,), micro_batches=1, fix=fix, rules=planner_rules(), stages=1)
        plan = plan_graph(graph, Machine.adhoc((2,)), training, space)
        kept = {(node.op, node.name) for node in plan.graph.nodes}
        assert all((graph.nodes[i].op, graph.nodes[i].name) in kept for i in fixed)
        return [change["name"] for change in plan.report["rewritten"]]

    assert graph.nodes[relu].name in fused()
    assert graph.nodes[relu].name not in fused(relu)
    assert graph.nodes[relu].name not in fused(linear)
