"""Fully sharded weights that travel in one message a layer, ahead of their use; gradients behind backward."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from partita import capture
from partita.bench import known_plans
from partita.codegen.plan.choice import Choice
from partita.codegen.plan.plan import Plan
from partita.codegen.plan.routes import route
from partita.codegen.verification.graph_module import trial_of
from partita.codegen.verification.threads import run_threads
from partita.codegen.verification.worker import Outcome, load_program, train
from partita.formulation.placement.placement import Placement, of_rows
from partita.formulation.strategies.strategy import rows
from partita.model.graph.atoms import atoms
from partita.model.graph.layout import B, Layout, S
from partita.model.graph.pcg import PCG, SOURCES
from partita.model.graph.segments import layer_elements, segments
from partita.model.machine.machine import Machine

LAYERS = 3
Judge = Callable[..., dict[str, Any]]


class Net(nn.Module):
    """An embedding, layers and a head, which may be the embedding."""

    def __init__(self, width: int, tied: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(15, width)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
            for _ in range(LAYERS)
        )
        self.head = nn.Linear(width, 15, bias=False)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        x = self.embedding(ids)
        for layer in self.layers:
            x = x + layer(x)
        return F.cross_entropy(self.head(x).flatten(0, 1), labels.flatten())


@cache
def graph_of(width: int, tied: bool = False) -> PCG:
    ids = torch.zeros(12, 2, dtype=torch.long)
    return capture(Net(width, tied), (ids, ids))


def sharded(graph: PCG, sizes: tuple[int, ...], *over: int, regather: bool = True) -> Plan:
    """Samples split over all axes, weights over some: by dims that divide, if there are any, one axis each."""
    known = atoms(graph)
    choices: dict[int, Choice] = {}
    for index, node in enumerate(graph.nodes):
        batch = [S(a) for a in range(len(known[index].sizes)) if a in known[index].batch]
        if node.op == "parameter":
            dims = range(len(known[index].sizes))
            by = sorted(dims, key=lambda a: (known[index].sizes[a] % sizes[over[0]] != 0, a))
            letters = {axis: S(by[k % len(by)]) for k, axis in enumerate(over)}
            layout = tuple(letters.get(axis, B) for axis in range(len(sizes)))
            choices[index] = Choice((), layout, regather=regather)
        elif node.op in SOURCES:
            choices[index] = Choice((), (batch[0],) * len(sizes))
        else:
            given = [B if graph.nodes[i].op == "parameter" else choices[i].output[0] for i in node.inputs]
            legal = [row for row in rows(graph, index) if list(row.inputs) == given and not row.special]
            row = max(legal, key=lambda row: row.output in batch)
            choices[index] = Choice(tuple((x,) * len(sizes) for x in row.inputs), (row.output,) * len(sizes))
    placement = Placement(sizes, tuple((size,) for size in sizes))
    machine = Machine.adhoc((placement.devices,))
    chosen = tuple(choices[i] for i in range(len(graph.nodes)))
    together = {segment.name: layer_elements(graph, segment) for segment in segments(graph)}
    return Plan(graph, machine, placement, 1, chosen, "float64", "adamw", together=together)


def over_levels(plan: Plan) -> Plan:
    """The plan on two nodes of two devices: one axis over both, whose collectives take two steps."""
    base = Machine.adhoc((2, 2))
    node, device = base.levels
    levels = (replace(node, latency_ns=0.1, bandwidth=node.bandwidth / 20), replace(device, latency_ns=0.1))
    machine = replace(base, levels=levels, device=replace(base.device, launch_ns=0.1))
    return replace(plan, machine=machine, placement=of_rows([(2, 2)]))


def recomputed(plan: Plan, *modes: str) -> Plan:
    """The plan with these modes of its layers in turn."""
    names = [segment.name for segment in segments(plan.graph)]
    found = {name: modes[k % len(modes)] for k, name in enumerate(names)}
    return replace(plan, recompute={name: mode for name, mode in found.items() if mode != "none"})


def biases_kept(plan: Plan) -> Plan:
    """The plan with weights of one dim kept for backward."""
    nodes = zip(plan.graph.nodes, plan.choices, strict=True)
    return replace(plan, choices=tuple(replace(c, regather=c.regather and len(node.shape) > 1) for node, c in nodes))


PLANS: dict[str, Callable[[], Plan]] = {
    "gathered again": lambda: sharded(graph_of(8), (2,), 0),
    "biases kept": lambda: biases_kept(sharded(graph_of(8), (2,), 0)),
    "biases kept, some recomputed": lambda: recomputed(biases_kept(sharded(graph_of(7), (2,), 0)), "none", "full"),
    "kept": lambda: sharded(graph_of(8), (2,), 0, regather=False),
    "parts of unequal length": lambda: sharded(graph_of(7), (2,), 0),
    "tied": lambda: sharded(graph_of(8, tied=True), (2,), 0),
    "one of two axes": lambda: sharded(graph_of(8), (2, 2), 1),
    "both axes": lambda: sharded(graph_of(8), (2, 2), 0, 1),
    "both axes, kept": lambda: sharded(graph_of(8), (2, 2), 1, 0, regather=False),
    "both axes, recomputed": lambda: recomputed(sharded(graph_of(12), (2, 2), 0, 1), "full", "none", "selective"),
    "over levels": lambda: over_levels(sharded(graph_of(8), (4,), 0)),
    "over levels, parts of unequal length": lambda: over_levels(sharded(graph_of(7), (4,), 0, regather=False)),
    "recomputed": lambda: recomputed(sharded(graph_of(8), (2,), 0, regather=False), "full"),
    "some recomputed": lambda: recomputed(sharded(graph_of(8), (2,), 0), "full", "none", "selective"),
}


@pytest.mark.parametrize("name", PLANS)
def test_programs_train_right(name: str, judge: Judge) -> None:
    judge(PLANS[name](), steps=3)


def trained(plan: Plan, folder: Path, shuffled: bool) -> list[Outcome]:
    """The outcome of three steps on every rank."""
    trial = trial_of(plan, folder / "program.py", 3)
    program = load_program(trial.path)

    def rank(_: int) -> Outcome:
        return train(program, trial.state, trial.batches, trial.truth.weights, torch.float64)

    usual = torch.get_default_dtype()
    try:
        return run_threads(rank, plan.ranks, timeout=60, shuffled=shuffled)
    finally:
        torch.set_default_dtype(usual)


def test_the_order_of_turns_changes_nothing(tmp_path: Path) -> None:
    plan = recomputed(sharded(graph_of(7), (2,), 0), "full", "none", "none")
    first, second = (trained(plan, tmp_path, shuffled)[0] for shuffled in (False, True))
    assert first.losses == second.losses
    assert all(torch.equal(x, second.weights[name]) for name, x in first.weights.items())


def test_weights_that_travel_together_share_the_latency_of_their_message() -> None:
    """Among 8 ranks of gloo it is cheaper to copy a small weight that travels alone, and to add up all its gradient."""
    plan = known_plans.planned("gpt, tiny", known_plans.GATHERED_AGAIN, Machine.load("cpu", nodes=8), 8)
    steps = {}
    for index in plan.graph.of("parameter"):
        reader = plan.graph.consumers[index][0]
        layout = plan.choices[reader].inputs[plan.graph.nodes[reader].inputs.index(index)]
        steps[plan.graph.nodes[index].name] = len(route(plan, index, plan.choices[index].output, layout))
    assert {steps[f"{place}norm.weight"] for place in ("layers.0.", "layers.1.", "")} == {1}
    assert len(route(replace(plan, together={}), index, plan.choices[index].output, layout)) == 2  # the last norm's
    assert "equal_to_broadcast(" not in plan.emit()  # the program gathers both, each with others


def events(plan: Plan, folder: Path) -> list[str]:
    """What rank 0 does in the third step: collectives that begin and end, and layers that compute."""
    plan.emit(folder / "program.py")
    program = load_program(folder / "program.py")
    found: list[str] = []

    class Watched:
        def __init__(self, what: str, work: Any) -> None:
            self.what, self.work = what, work

        def wait(self) -> None:
            self.work.wait()
            found.append(f"{self.what} ends")

    def watched(name: str) -> None:
        collective = getattr(program, name)

        def begin(made: Tensor, given: Tensor, group: Any, async_op: bool) -> Any:
            work = collective(made, given, group=group, async_op=async_op)
            if torch.distributed.get_rank():
                return work
            found.append(f"{name} begins")
            return Watched(name, work)

        setattr(program, name, begin)

    def ended(layer: nn.Module, _: Any, y: Tensor) -> None:
        found.append("a layer ends")
        y.register_hook(lambda _: found.append("its backward begins"))

    watched("all_gather")
    watched("reduce_scatter")

    def rank(number: int) -> None:
        mesh = program.Mesh()
        model = program.Model(mesh)
        with torch.no_grad():
            for part in model.parameters():
                part.fill_(0.1)
        optimizer = program.make_optimizer(model, mesh)
        for layer in model.layers if number == 0 else ():
            layer.register_forward_hook(ended)
        for step in range(3):
            if number == 0:
                found.clear()
            program.train_step(model, optimizer, program.synthetic(step), mesh, step)

    run_threads(rank, plan.ranks, timeout=60)
    return found


@pytest.mark.parametrize("name, gathers", [("gathered again", 2), ("biases kept", 2), ("kept", 1), ("recomputed", 2)])
def test_one_message_a_layer_ahead_of_its_use(name: str, gathers: int, tmp_path: Path) -> None:
    """Of embedding, layers and head: in forward, where they are not kept again in backward, and one reduction."""
    found = events(PLANS[name](), tmp_path)
    counts = Counter(found)
    parts = LAYERS + 2
    once = {"gathered again": 1, "biases kept": 1, "kept": 0, "recomputed": 2}[
        name
    ]  # backward needs no embedding, and here keeps the head
    assert counts["reduce_scatter begins"] == counts["reduce_scatter ends"] == parts
    assert counts["all_gather begins"] == counts["all_gather ends"] == gathers * parts - once
    forward = found[: found.index("reduce_scatter begins")]
    ends = [k for k, what in enumerate(forward) if what == "a layer ends"]
    assert len(ends) == LAYERS - 1  # the last one's addition is not read again: it is no turn of the loop
    for number, end in enumerate(ends):  # the weights of the next one are on their way
        assert forward[:end].count("all_gather begins") == forward[:end].count("all_gather ends") + 1 == number + 3
    ahead, most = 0, 0
    for what in found:
        ahead += {"all_gather begins": 1, "all_gather ends": -1}.get(what, 0)
        most = max(most, ahead)
    assert most == 1, "two layers' weights at once: those that compute, and those on their way"
    begin, end = (
        [k for k, what in enumerate(found) if what == f"reduce_scatter {when}"] for when in ("begins", "ends")
    )
    behind = ["its backward begins" in found[a:b] for a, b in zip(begin, end, strict=True)]
    assert sum(behind) == LAYERS - 1, "a layer's gradients are added up while the layer before goes backward"


def test_every_message_is_waited_for(tmp_path: Path) -> None:
    """The head gathers a tied weight again, so the recomputed layer after the embedding does not send for it."""
    plan = recomputed(sharded(graph_of(8, tied=True), (2,), 0), "none", "full", "full")
    counts = Counter(events(replace(plan, micro_batches=2), tmp_path))
    assert counts["all_gather begins"] == counts["all_gather ends"]


def test_collectives_of_several_steps_begin_ahead() -> None:
    text = PLANS["over levels"]().emit()
    assert "Steps(gather_in_steps(" in text and "Steps(scatter_in_steps(" in text
    assert '[("all_gather", "node"), ("all_gather", "gpu")]' in text, "the gatherings take two steps"


def test_random_plans(judge: Judge) -> None:
    """Weights split along any dims over any axes, gathered again or not, with any recomputation."""
    for seed in range(6):
        rng = random.Random(seed)
        sizes = rng.choice([(2,), (3,), (2, 2)])
        over = rng.sample(range(len(sizes)), rng.randint(1, len(sizes)))
        plan = sharded(graph_of(rng.choice([6, 7, 12]), rng.random() < 0.3), sizes, *over)
        choices = list(plan.choices)
        for index in plan.graph.of("parameter"):
            known = atoms(plan.graph)[index].sizes
            letters = [B, *(S(a) for a in range(len(known)) if known[a] >= 4)]
            layout: Layout = tuple(rng.choice(letters) for _ in sizes)
            apart = len({*layout} - {B}) == len(layout) - layout.count(B)  # no dim is split twice
            again = replace(choices[index], regather=rng.random() < 0.6)
            choices[index] = replace(again, output=layout) if apart else again
        modes = [rng.choice(["none", "full", "selective"]) for _ in range(LAYERS)]
        overlap = rng.random() < 0.8
        changed = replace(plan, choices=tuple(choices), overlap=overlap, together=plan.together if overlap else {})
        judge(recomputed(changed, *modes), steps=3)


def test_nothing_travels_ahead_without_overlap() -> None:
    text = replace(PLANS["gathered again"](), overlap=False, together={}).emit()
    assert "async_op" not in text and "Gathering" not in text
    assert "Gathering(" in PLANS["gathered again"]().emit()
