"""Rewritten graphs, with parameters joined, enlarged or folded and operators fused, train as those they replace."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from partita import PartitaError
from partita.codegen.plan.plan import Plan
from partita.codegen.planner.plan_graph import plan_graph
from partita.codegen.planner.rewritten_graph import taken_graph
from partita.codegen.pricing.stage_price import stage_price
from partita.codegen.verification.verify import verify
from partita.formulation.search_space import SearchSpace
from partita.formulation.strategies.strategy import row_names, rows
from partita.model.capture.capture import capture
from partita.model.capture.load import load_module
from partita.model.graph.atoms import atoms
from partita.model.graph.batch import with_batch
from partita.model.graph.builder import Builder
from partita.model.graph.graph_file import graph_from_json, graph_to_json
from partita.model.graph.pcg import PCG
from partita.model.graph.stages import boundaries, stage
from partita.model.machine.machine import Machine
from partita.model.training import Training

from ..levels import some
from .beginnings import begun, saved
from .cases.rewritten import BATCH, PAIRS, attention, branches, layers, nested, perceptron

Judge = Callable[..., dict[str, Any]]
Force = Callable[..., Plan]
Pair: TypeAlias = tuple[PCG, PCG]
"""A graph, and one that computes the same in another way."""


def forced(pair: Pair, judge: Judge, force: Force, sizes: tuple[int, ...], rng: random.Random, **wishes: Any) -> None:
    """The rewritten graph, planned at random, beside the graph that it replaces."""
    before, after = pair
    micro_batches = rng.choice((1, 2))
    plan = force(after, sizes, rng, wishes.get("wishes"), micro_batches, rng.choice(("sgd", "adamw")))
    judge(plan, with_batch(before, plan.batch))


@pytest.mark.parametrize("name", some(PAIRS))
def test_every_row_of_what_is_new(name: str, judge: Judge, force: Force) -> None:
    """Of the operators that only the rewritten graph has, and of what they read, which has every way to be stored."""
    before, after = PAIRS[name](False), PAIRS[name](True)
    known = {(n.op, n.name) for n in before.nodes}
    new = [i for i, n in enumerate(after.nodes) if (n.op, n.name) not in known and n.op != "view"]
    new += [i for n in new for i in after.nodes[n].inputs if after.nodes[i].op == "parameter" and i not in new]
    rng, done = random.Random(name), set()
    for index in new:
        for number, row in enumerate(rows(after, index)):
            for size in (2, 3) if number % 2 else (3, 2):  # the other where that leaves a rank empty
                try:
                    forced((before, after), judge, force, (size,), rng, wishes={index: (number,)})
                except ValueError as error:
                    assert "leave a rank empty" in str(error)
                    continue
                done.add((index, row))
                break
    assert all((i, row) in done for i in new for row in rows(after, i))


@pytest.mark.parametrize("sizes", some([(4,), (2, 2), (3, 2)]))
@pytest.mark.parametrize("name", PAIRS)
def test_any_plan(name: str, sizes: tuple[int, ...], judge: Judge, force: Force) -> None:
    """Several axes, also on one dim; weights gathered for use, states sharded, micro-batches."""
    pair, rng = (PAIRS[name](False), PAIRS[name](True)), random.Random(f"{name} {sizes}")
    for _ in range(3):
        forced(pair, judge, force, sizes, rng)


@pytest.mark.parametrize("name", PAIRS)
def test_the_optimum(name: str, judge: Judge) -> None:
    """Planned by the solver, at the price that is found again without it, in several precisions."""
    before, after = PAIRS[name](False), PAIRS[name](True)
    for mesh, micro_batches, dtype in (((2,), 1, "float64"), ((2, 2), 2, "float64"), ((2,), 1, "mixed-bfloat16")):
        training, space = Training(BATCH, dtype, "adamw"), SearchSpace(mesh=mesh, micro_batches=micro_batches, stages=1)
        plan = plan_graph(after, Machine.adhoc(mesh), training, space)
        assert stage_price(plan).objective_ns == plan.report["objective_ns"]
        assert stage_price(plan).memory_bytes == plan.report["memory_bytes"]
        judge(plan, with_batch(before, BATCH))


def columns(graph: PCG, force: Force, sizes: tuple[int, ...]) -> Plan:
    """Every weight of more than one dim split by the last factor of its rows that all ranks can have a share of."""
    wishes = {}
    for i in graph.of("parameter"):
        numbers = [a for a in atoms(graph)[i].of_dim(0) if not atoms(graph)[i].sizes[a] % max(sizes)]
        letters = [row.output for row in rows(graph, i)]
        wishes[i] = [letters.index(3 + numbers[-1]) if numbers else letters.index(0) for _ in sizes[:1]]
        wishes[i] += [letters.index(0)] * (len(sizes) - 1)
    return force(graph, sizes, random.Random(0), wishes)


def test_columns_of_equal_parts_are_cut_alike(force: Force) -> None:
    """Each rank has its share of every part: rows that are no run of those of the joined weight."""
    graph = attention(True)
    weight = graph.of("parameter")[0]
    assert atoms(graph)[weight].dims == ((3, 2, 4), (8,))
    assert row_names(graph, graph.of("part")[0]) == ("R", "B", "P", "d0", "d1", "d2:0", "d2:1")
    text = columns(graph, force, (2,)).emit()
    assert '"qkv.weight", ((3, 2, 4), 8), ' in text and 'joined={"q.weight": 8, "k.weight": 8, "v.weight": 8}' in text


@pytest.mark.parametrize("name", ["heads", "grouped heads", "frozen", "nested", "convolutions", "unequal convolutions"])
def test_checkpoints_know_the_original_names(name: str, force: Force, tmp_path: Path) -> None:
    """Random values are the same under every plan of both graphs, and go from one to the other and back."""
    graphs = PAIRS[name](True), PAIRS[name](False), PAIRS[name](True), PAIRS[name](True)
    meshes, states = ((2,), (2,), (2, 2), (3,)), list[dict[str, Tensor]]()
    for number, (graph, sizes) in enumerate(zip(graphs, meshes, strict=True)):
        path = tmp_path / f"{number}.py"
        begun(columns(graph, force, sizes)).emit(path)
        states.append(saved(path, None, tmp_path / "initial.pt"))
        states.append(saved(path, tmp_path / f"{number - 1}.pt" if number else None, tmp_path / f"{number}.pt"))
    names = {n.name for n in graphs[1].nodes if n.op == "parameter"}
    for state in states:
        assert state.keys() == names and all(torch.equal(state[n], states[0][n]) for n in names)
    assert all(states[0][n].all() for n in names)


def test_equal_layers_are_one_loop(judge: Judge) -> None:
    """One class names what its layer joins; all parts are named in one line."""
    after = layers(True)
    space = SearchSpace(mesh=(2,), stages=1, overlap=False)  # else the first layer may be planned otherwise
    plan = plan_graph(after, Machine.adhoc((2,)), Training(BATCH, "float64", "adamw"), space)
    text = plan.emit()
    names = ", ".join(f'f"layers.{{i}}.{n}.weight": 8' for n in "qkv")
    assert f"joined={{{names}}}" in text.replace("\n                ", " ")
    assert text.count("class Layer(") == 1 and text.count(".chunk(3, -1)") == 1
    assert "q, k, v = F.linear(" in text
    judge(plan, layers(False))


@pytest.mark.parametrize("mesh", [(2,), (2, 2)])
def test_within_branches_side_by_side(mesh: tuple[int, ...], judge: Judge) -> None:
    """What a branch joins lies at one coordinate, which alone loads it."""
    machine = Machine.adhoc(mesh)
    machine = replace(machine, device=replace(machine.device, launch_ns=200_000))
    plan = plan_graph(branches(True), machine, Training(BATCH, "float64", "adamw"), SearchSpace(mesh=mesh, stages=1))
    assert len(plan.bundles) == 1
    judge(plan, branches(False))


def test_a_fused_activation_is_priced() -> None:
    """Forward saves ReLU's launch and its traffic; backward has the same kernels as before."""
    training, space = Training(BATCH, "float64", "adamw"), SearchSpace(mesh=(1,), stages=1)
    split, fused = (plan_graph(perceptron(merge), Machine.adhoc((1,)), training, space) for merge in (False, True))
    launch = split.machine.device.launch_ns
    assert split.report["objective_ns"] - fused.report["objective_ns"] >= 2 * launch
    of_relu = [item for item in stage_price(split).items if item.kind == "relu" and item.phase == "backward"]
    of_mask = [item for item in stage_price(fused).items if item.kind == "activation"]
    assert [item.ns for item in of_relu] == [item.ns for item in of_mask]
    assert stage_price(split).memory_bytes == stage_price(fused).memory_bytes
    graph = fused.graph
    assert row_names(graph, graph.of("linear_relu")[0]) == ("R", "B", "b.1", "b.0", "o")


class Four(nn.Module):
    """What `nested` is the graph of."""

    def __init__(self) -> None:
        super().__init__()
        self.w0, self.w1, self.w2, self.w3 = (nn.Parameter(torch.zeros(6, 5)) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        a, b, c, d = (F.linear(x, w) for w in (self.w0, self.w1, self.w2, self.w3))
        return ((a.tanh() * b).tanh() - c).tanh() + d


def test_beside_the_module_itself() -> None:
    training = Training(BATCH, "mixed-float16", "adamw")
    space = SearchSpace(mesh=(2, 2), micro_batches=2, fix=(("linear", "o:2,o:1"),), stages=1)
    plan = plan_graph(nested(True), Machine.adhoc((2, 2)), training, space)
    verdict = verify(plan, module=Four(), inputs=(torch.zeros(BATCH, 5),))
    assert verdict["ok"], f"{verdict['failure']}\n{plan}"


def test_a_batch_norm_in_evaluation_folds() -> None:
    """Its running statistics are constants, of which capture makes a product and a sum by channel."""
    module = nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6).eval(), nn.ReLU())
    inputs = (torch.zeros(BATCH, 3, 5, 4),)
    graph = capture(module, inputs, loss="projection")
    (relu,), (conv,) = graph.of("relu"), graph.of("conv")
    add = graph.nodes[relu].inputs[0]
    (mul, shift), x = graph.nodes[add].inputs, graph.nodes[conv].inputs[0]
    scale = graph.nodes[mul].inputs[1]
    b, number = Builder(BATCH), dict[int, int]()
    for i, node in enumerate(graph.nodes):
        b.name(node.name)
        if i == add:
            w, bias = (number[k] for k in graph.nodes[conv].inputs[1:])
            by_channel = b.add("view", number[scale], shape=(6, 1, 1, 1))
            w = b.add("mul", w, by_channel, shape=(6, 3, 3, 3))
            of_bias = b.add("mul", bias, b.add("view", number[scale], shape=(6,)), shape=(6,))
            bias = b.add("add", of_bias, b.add("view", number[shift], shape=(6,)), shape=(6,))
            b.nodes.append(replace(graph.nodes[conv], name="folded", inputs=(number[x], w, bias)))
        elif i not in (conv, mul):
            b.nodes.append(replace(node, inputs=tuple(number[k] for k in node.inputs)))
        number[i] = len(b.nodes) - 1
    folded = b.build(number[graph.loss])
    assert [n.op for n in folded.nodes[-4:]] == ["add", "conv", "relu", "projection"]
    for mesh in ((2,), (2, 2)):
        plan = plan_graph(
            folded, Machine.adhoc(mesh), Training(BATCH, "float64", "adamw"), SearchSpace(mesh=mesh, stages=1)
        )
        verdict = verify(plan, module=module, inputs=inputs)
        assert verdict["ok"], f"{verdict['failure']}\n{plan}"


def test_programs_are_formatted(tmp_path: Path, force: Force) -> None:
    for name in PAIRS:
        columns(PAIRS[name](True), force, (2,)).emit(tmp_path / f"{name.replace(' ', '_')}.py")
    ruff = [sys.executable, "-m", "ruff"]
    for command in (["format", "--diff"], ["check", "--select", "E,F,W,B,I"]):
        done = subprocess.run(
            [*ruff, *command, "--isolated", "--line-length", "120", tmp_path], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout


def test_graphs_in_files() -> None:
    for make in PAIRS.values():
        graph = make(True)
        assert graph_from_json(json.loads(json.dumps(graph_to_json(graph)))) == graph


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"joined": (("q", 5), ("k", 6))}, "is not made up of its joined"),
        ({"joined": (("q", 6), ("q", 6))}, "is not made up of its joined"),
        ({"joined": (("q", 12), ("k", 0))}, "is not made up of its joined"),
        ({"joined": (("q", 6), ("b", 6))}, "'b' is another's name too"),
        ({"joined": (("q", 6), ("k", 6)), "tables": (("q", 6), ("k", 6))}, "is not made up of its tables"),
        ({"tables": (("q", 6), ("k", 6))}, "only look-ups can read"),
    ],
)
def test_what_cannot_be_joined(change: dict[str, Any], words: str) -> None:
    b = Builder(BATCH)
    w = b.parameter("w", (12, 5), **change)
    y = b.add("linear", b.input("x", (BATCH, 5)), w, b.parameter("b", (12,)), shape=(BATCH, 12))
    loss = b.add("projection", y, shape=(), site=0)
    with pytest.raises(PartitaError, match=words):
        b.build(loss)


def test_tied_weights_are_not_joined() -> None:
    graph = nested(True)
    with pytest.raises(PartitaError, match="joins 'w1', which is tied"):
        graph_from_json(graph_to_json(graph) | {"aliases": [["again", "w1"]]})


def test_parts_of_samples_are_tied_to_the_batch() -> None:
    b = Builder(BATCH)
    y = b.add("part", b.input("x", (BATCH, 8)), shape=(2, 8), dim=0, of=2, number=1)
    graph = b.build(b.add("projection", y, shape=(), site=0))
    with pytest.raises(PartitaError, match="tied to a batch of 4"):
        with_batch(graph, 8)


def test_parts_that_are_none() -> None:
    for attributes in ({"of": 2, "number": 2}, {"of": 3, "number": 0}, {"of": 2, "number": 0, "dim": 2}):
        b = Builder(BATCH)
        y = b.add("part", b.input("x", (BATCH, 8)), shape=(BATCH, 4), **{"dim": 1, **attributes})
        with pytest.raises(PartitaError, match="there is no part"):
            b.build(b.add("projection", y, shape=(), site=0))


def test_a_stage_keeps_all_that_it_hands_on() -> None:
    module, inputs = load_module("mbart-4.7b", small=True)
    pcg = capture(module, inputs, batch=4)
    number = next(i for i, b in enumerate(boundaries(pcg)) if len(b.crossing) == 2)
    part = stage(pcg, 0, number).graph
    assert taken_graph(part, {})[0] == part and len(part.sends) == 2
