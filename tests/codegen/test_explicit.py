"""Plans as parallel computation graphs: Unity's figures, the same price, the same computation, the same gradients."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from partita import Machine, Plan
from partita.codegen.parallel_graph.graph import PARALLEL, ParallelGraph, moves
from partita.codegen.parallel_graph.text import folded
from partita.codegen.plan.choice import Choice, letter_text
from partita.codegen.planner.plan_graph import plan_graph
from partita.codegen.pricing.stage_price import stage_price
from partita.formulation.placement.placement import of_rows
from partita.formulation.search_space import SearchSpace
from partita.formulation.strategies.strategy import row_names, rows
from partita.formulation.strategies.tensor_classes import classes
from partita.formulation.substitution.arithmetic import Real
from partita.formulation.substitution.evaluate import evaluate
from partita.formulation.substitution.rule import Apply
from partita.formulation.substitution.values import ParallelValue
from partita.model.capture.capture import capture
from partita.model.errors import PartitaError
from partita.model.graph.atoms import atoms
from partita.model.graph.builder import Builder
from partita.model.graph.layout import COLLECTIVES, B, P, R, S, move
from partita.model.graph.pcg import PCG, SOURCES
from partita.model.graph.sparse_tables import sparse_tables
from partita.model.training import Training
from partita.model.zoo import build, zoo
from partita.solvers.budget import Budget

from ..levels import some
from .simulated import COMPUTE, Ranks

Force = Callable[..., Plan]


def by_hand(
    graph: PCG,
    sizes: tuple[int, ...],
    strategies: Mapping[str, str] | None = None,
    stored: Mapping[str, tuple[int, ...]] | None = None,
    micro_batches: int = 1,
) -> Plan:
    """A plan with these rows, one an axis (`b,o`), by the names of nodes; everything else is whole, at R."""
    choices = []
    for index, node in enumerate(graph.nodes):
        if node.op in SOURCES:
            choices.append(Choice((), (stored or {}).get(node.name, (R,) * len(sizes))))
            continue
        wish = (strategies or {}).get(node.name, ",".join("R" for _ in sizes)).split(",")
        found = dict(zip(row_names(graph, index), rows(graph, index), strict=True))
        picked = [found[name] for name in wish]
        inputs = tuple(tuple(row.inputs[k] for row in picked) for k in range(len(node.inputs)))
        choices.append(Choice(inputs, tuple(row.output for row in picked)))
    machine = Machine.adhoc(sizes)
    place = of_rows(tuple(n if a == level else 1 for level in range(len(sizes))) for a, n in enumerate(sizes))
    return Plan(graph, machine, place, micro_batches, tuple(choices), "float64", "sgd")


def shown(plan: Plan) -> list[str]:
    """The lines of a graph without times."""
    cut = [replace(node, work=()) for node in plan.parallel_graph().nodes]
    lines = str(replace(plan.parallel_graph(), nodes=tuple(cut))).splitlines()[2:]
    return [" ".join(line.split()) for line in lines]


# Unity's figures


def two_products() -> PCG:
    """(A x B) x C, and a scalar of it."""
    b = Builder(8)
    a, w, c = (b.parameter(name, shape) for name, shape in (("A", (8, 16)), ("B", (16, 32)), ("C", (32, 4))))
    y = b.add("matmul", a, w, shape=(8, 32), name="AB")
    z = b.add("matmul", y, c, shape=(8, 4), name="ABC")
    return b.build(b.add("sum", z, shape=(), dims=(0, 1), keepdim=False, name="loss"))


def batched_product() -> PCG:
    """output(s, h, o) = sum over i of input(s, h, i) * weight(h, o, i)."""
    b = Builder(8)
    x, w = b.input("input", (8, 4, 16)), b.parameter("weight", (4, 32, 16))
    y = b.add("einsum", x, w, shape=(8, 4, 32), equation="shi,hoi->sho", name="output")
    return b.build(b.add("sum", y, shape=(), dims=(0, 1, 2), keepdim=False, name="loss"))


def agrees(graph: ParallelGraph) -> None:
    """Unity's semantics of operators on parallel tensors gives the same with parallel operators and without."""
    results = []
    for keep in (PARALLEL, ()):
        known: dict[str, ParallelValue] = {}
        applies, number = [], {}
        for index, node in enumerate(graph.nodes):
            number[index] = f"v{index}"
            if not node.inputs:
                known[number[index]] = ParallelValue.of(Real().random((1, *node.tensor.shape), index))
            elif node.operator in PARALLEL and node.operator not in keep:
                number[index] = number[node.inputs[0]]
            else:
                inputs = tuple(number[i] for i in node.inputs)
                attributes = tuple((k, v) for k, v in node.attributes if k != "axes")
                applies.append(Apply(node.operator, inputs, (number[index],), attributes))
        results.append(evaluate(applies, known, Real())[number[len(graph.nodes) - 1]])
    assert results[0].same(results[1], 1e-12)


def test_figure_6_two_products() -> None:
    """Rows of A stay split through both; or columns of A x B, which are the rows of C: then the result is reduced."""
    rows_of_a = by_hand(two_products(), (4,), {"AB": "m", "ABC": "m"})
    assert shown(rows_of_a) == [
        "%0 = parameter() [8, 16] {0, 1, 2, 3} A",
        "%1 = Partition[0, tensor=4](%0) [8/4, 16] [0, 1, 2, 3]",
        "%2 = parameter() [16, 32] {0, 1, 2, 3} B",
        "%3 = Replicate[tensor=4](%2) [16, 32] x4 [0, 1, 2, 3]",
        "%4 = matmul(%1, %3) [8/4, 32] [0, 1, 2, 3] AB",
        "%5 = parameter() [32, 4] {0, 1, 2, 3} C",
        "%6 = Replicate[tensor=4](%5) [32, 4] x4 [0, 1, 2, 3]",
        "%7 = matmul(%4, %6) [8/4, 4] [0, 1, 2, 3] ABC",
        "%8 = Combine[0, tensor=4](%7) [8, 4] [0, 1, 2, 3]",
        "%9 = sum(%8) [] {0, 1, 2, 3} loss",
    ]
    columns = by_hand(two_products(), (4,), {"AB": "n", "ABC": "k"})
    assert shown(columns) == [
        "%0 = parameter() [8, 16] {0, 1, 2, 3} A",
        "%1 = Replicate[tensor=4](%0) [8, 16] x4 [0, 1, 2, 3]",
        "%2 = parameter() [16, 32] {0, 1, 2, 3} B",
        "%3 = Partition[1, tensor=4](%2) [16, 32/4] [0, 1, 2, 3]",
        "%4 = matmul(%1, %3) [8, 32/4] [0, 1, 2, 3] AB",
        "%5 = parameter() [32, 4] {0, 1, 2, 3} C",
        "%6 = Partition[0, tensor=4](%5) [32/4, 4] [0, 1, 2, 3]",
        "%7 = matmul(%4, %6) [8, 4] x4 [0, 1, 2, 3] ABC",
        "%8 = Reduce[tensor=4](%7) [8, 4] [0, 1, 2, 3]",
        "%9 = sum(%8) [] {0, 1, 2, 3} loss",
    ]
    for plan in (rows_of_a, columns):
        agrees(plan.parallel_graph())


def test_figure_8d_replicate_and_partition_on_one_tensor() -> None:
    b = Builder(8)
    x, w = b.parameter("x", (8, 16)), b.parameter("w", (32, 16))
    y = b.add("linear", x, w, shape=(8, 32), name="y")
    graph = b.build(b.add("sum", y, shape=(), dims=(0, 1), keepdim=False, name="loss"))
    plan = by_hand(graph, (2, 2), {"y": "b.0,o"})
    assert shown(plan) == [
        "%0 = parameter() [8, 16] {0, 1, 2, 3} x",
        "%1 = Partition[0, tensor=2](%0) [8/2, 16] [{0, 1}, {2, 3}]",
        "%2 = Replicate[tensor2=2](%1) [8/2, 16] x2 [[0, 1], [2, 3]]",
        "%3 = parameter() [32, 16] {0, 1, 2, 3} w",
        "%4 = Partition[0, tensor2=2](%3) [32/2, 16] [{0, 2}, {1, 3}]",
        "%5 = Replicate[tensor=2](%4) [32/2, 16] x2 [[0, 1], [2, 3]]",
        "%6 = linear(%2, %5) [8/2, 32/2] [[0, 1], [2, 3]] y",
        "%7 = Combine[0, tensor=2](%6) [8, 32/2] [[0, 1], [2, 3]]",
        "%8 = Combine[1, tensor2=2](%7) [8, 32] [{0, 2}, {1, 3}]",
        "%9 = sum(%8) [] {0, 1, 2, 3} loss",
    ]
    agrees(plan.parallel_graph())


def test_figure_9_a_samples() -> None:
    """The weight is replicated: the backward of that is the sum of its gradients."""
    plan = by_hand(batched_product(), (4,), {"output": "s"}, {"weight": (B,)})
    assert shown(plan) == [
        "%0 = input() [8, 4, 16] {0, 1, 2, 3} input",
        "%1 = Partition[0, data=4](%0) [8/4, 4, 16] [0, 1, 2, 3]",
        "%2 = parameter() [4, 32, 16] {0, 1, 2, 3} weight",
        "%3 = Replicate[data=4](%2) [4, 32, 16] x4 [0, 1, 2, 3]",
        "%4 = einsum(%1, %3) [8/4, 4, 32] [0, 1, 2, 3] output",
        "%5 = Combine[0, data=4](%4) [8, 4, 32] [0, 1, 2, 3]",
        "%6 = sum(%5) [] {0, 1, 2, 3} loss",
    ]
    assert [(w.kind, w.phase) for w in plan.parallel_graph().nodes[3].work] == [("all-reduce", "update")]
    agrees(plan.parallel_graph())


def test_figure_9_b_reduction() -> None:
    plan = by_hand(batched_product(), (4,), {"output": "i"})
    assert shown(plan) == [
        "%0 = input() [8, 4, 16] {0, 1, 2, 3} input",
        "%1 = Partition[2, tensor=4](%0) [8, 4, 16/4] [0, 1, 2, 3]",
        "%2 = parameter() [4, 32, 16] {0, 1, 2, 3} weight",
        "%3 = Partition[2, tensor=4](%2) [4, 32, 16/4] [0, 1, 2, 3]",
        "%4 = einsum(%1, %3) [8, 4, 32] x4 [0, 1, 2, 3] output",
        "%5 = Reduce[tensor=4](%4) [8, 4, 32] [0, 1, 2, 3]",
        "%6 = sum(%5) [] {0, 1, 2, 3} loss",
    ]
    agrees(plan.parallel_graph())


def test_figure_9_c_pipeline() -> None:
    """Micro-batches of a plan end where their losses are added up; in the figure their results are joined again."""
    plan = by_hand(batched_product(), (1,), micro_batches=4)
    assert shown(plan) == [
        "%0 = input() [32, 4, 16] 0 input",
        "%1 = Pipeline[0, 4](%0) [8, 4, 16] 0",
        "%2 = parameter() [4, 32, 16] 0 weight",
        "%3 = einsum(%1, %2) [8, 4, 32] 0 output",
        "%4 = sum(%3) [] 0 loss",
        "%5 = Batch[4](%4) [] 0",
    ]
    graph = plan.parallel_graph()
    product, cut = graph.nodes[3], graph.nodes[1]
    whole = replace(product.tensor, shape=(32, 4, 32))
    joined = replace(cut, operator="batch", name="output", inputs=(3,), tensor=whole, of=product.of)
    figure = replace(graph, nodes=(*graph.nodes[:4], joined), output=4)
    assert str(figure).splitlines()[-1].split() == ["%4", "=", "Batch[0,", "4](%3)", "[32,", "4,", "32]", "0"]


# The same price, the same computation


def names_of(graph: PCG) -> dict[str, tuple[str, tuple[str, ...]]]:
    return {n.name: (n.op, tuple(graph.nodes[i].name for i in n.inputs)) for n in graph.nodes}


def without_parallel(graph: ParallelGraph) -> tuple[tuple[str, str, tuple[int, ...]], ...]:
    """(operator, name, inputs) of what remains without parallel operators: the computation that is parallelized."""
    number: dict[int, int] = {}
    left: list[tuple[str, str, tuple[int, ...]]] = []
    for index, node in enumerate(graph.nodes):
        if node.operator in PARALLEL:
            number[index] = number[node.inputs[0]]
            continue
        number[index] = len(left)
        left.append((node.operator, node.name, tuple(number[i] for i in node.inputs)))
    return tuple(left)


def same(plan: Plan) -> ParallelGraph:
    """The parallel graph of a plan, checked: its price, what is left without parallel operators, states and files."""
    graph, cost = plan.parallel_graph(), stage_price(plan)
    assert (graph.objective_ns, graph.memory_bytes) == (cost.objective_ns, cost.memory_bytes)
    left = without_parallel(graph)
    assert {name: (op, tuple(left[i][1] for i in inputs)) for op, name, inputs in left} == names_of(plan.graph)
    for node in graph.nodes:
        if node.operator not in PARALLEL:
            assert not any(work.axes and work.part != "compute" for work in node.work), node.name
        shows = classes(plan.graph).base[node.of] != node.of
        if node.operator in (*PARALLEL, *SOURCES) or shows or not node.inputs:
            continue
        choice = plan.choices[node.of]
        for read, operand, asked in zip(node.inputs, plan.graph.nodes[node.of].inputs, choice.inputs, strict=True):
            letters = " ".join(graph.nodes[read].tensor.letters)
            words = plan_text(plan, operand, asked)
            assert letters == words, (node.name, letters, words)
        assert " ".join(node.tensor.letters) == plan_text(plan, node.of, choice.output)
    assert ParallelGraph.from_json(json.loads(json.dumps(graph.to_json()))) == graph
    assert sum(block.period * block.times for block in folded(graph)) == len(graph.nodes)
    return graph


def plan_text(plan: Plan, node: int, layout: tuple[int, ...]) -> str:
    """The letters of a tensor as the plan says them, axis by axis."""
    known, choice = atoms(plan.graph)[node], plan.choices[node]
    words = [letter_text(known, letter) for letter in layout]
    if choice.at:
        words = [word.replace("P", "spread") for word in words]
    for axis, coordinate in choice.beside:
        words[axis] = f"@{coordinate}"
    return " ".join(words)


@cache
def graph_of(model: str) -> PCG:
    module, inputs = build(model, small=True)
    return capture(module, inputs, batch=12)


def optimizer_for(graph: PCG) -> str:
    return "sgd" if sparse_tables(graph) else "adamw"


TWINS = (
    *("mlp", "resnext-50", "inception-v3", "unet", "bert-large", "dlrm", "xdl", "candle-uno", "gpt2", "gpt3-1.3b"),
    *("llama-7b", "llama-70b", "mixtral-8x7b", "swin-1.8b", "mbart-4.7b", "alphafold2-87m"),
)
"""One model for every small twin of the zoo: larger sizes of a family have the same."""


def test_every_family_of_the_zoo_is_planned() -> None:
    assert {name.partition("-")[0].removesuffix("3") for name in zoo()} == {
        name.partition("-")[0].removesuffix("3") for name in TWINS
    }


@pytest.mark.parametrize("model", some(TWINS, 5))
def test_the_best_plans_of_the_zoo(model: str) -> None:
    """Models take turns at two meshes."""
    graph = graph_of(model)
    mesh, dtype = (((2,), "float32"), ((2, 3), "mixed-bfloat16"))[TWINS.index(model) % 2]
    training, space = Training(12, dtype, optimizer_for(graph)), SearchSpace(mesh=mesh, micro_batches=1, stages=1)
    same(plan_graph(graph, Machine.adhoc(mesh), training, space, Budget(gap=0.02)))


@pytest.mark.parametrize("model", some(TWINS))
def test_any_plan_of_the_zoo(model: str, force: Force) -> None:
    """Random rows, shared layouts, storage: every kind of move."""
    graph = graph_of(model)
    mesh = (2, 2) if len(graph.nodes) < 500 else (3,)
    same(force(graph, mesh, random.Random(model), None, 1, optimizer_for(graph)))


# Run on simulated ranks, forward and backward


def perceptron() -> PCG:
    """Every kind of read: biases, a residual, a weight that is read twice, once transposed."""
    b = Builder(6)
    x, w, bias = b.input("x", (6, 4)), b.parameter("w", (5, 4)), b.parameter("bias", (5,))
    v, s = b.parameter("v", (5, 4)), b.parameter("s", (4,))
    x = b.add("mul", x, s, shape=(6, 4), name="scaled")
    h = b.add("relu", b.add("linear", x, w, bias, shape=(6, 5), name="up"), shape=(6, 5), name="relu")
    y = b.add("matmul", h, v, shape=(6, 4), name="down")
    y = b.add("add", x, y, shape=(6, 4), name="residual")
    t = b.add("permute", v, shape=(4, 5), dims=(1, 0), name="transposed")
    z = b.add("mul", b.add("matmul", y, t, shape=(6, 5), name="out"), h, shape=(6, 5), name="gated")
    return b.build(b.add("sum", z, shape=(), dims=(0, 1), keepdim=False, name="loss"))


@pytest.mark.parametrize("sizes", some([(2,), (3,), (2, 2), (2, 3), (3, 2)], 2), ids=str)
def test_ranks_compute_the_same_loss_and_gradients(sizes: tuple[int, ...], force: Force) -> None:
    """Random plans, each operator run shard by shard: every move, its dual, and what it leaves where."""
    graph, rng, seen = perceptron(), random.Random(str(sizes)), set[tuple[str, bool]]()
    torch.manual_seed(0)
    for count in (1,) * 20 + (2,) * 10:
        plan = force(graph, sizes, rng, None, count, rng.choice(("sgd", "adamw")))
        same(plan)
        whole = {
            node.name: torch.randn(6 * count if node.op == "input" else node.shape[0], *node.shape[1:]).double()
            for node in graph.nodes
            if node.op in SOURCES
        }
        leaves = {name: x.clone().requires_grad_() for name, x in whole.items()}
        values: list[Tensor] = []
        for node in graph.nodes:
            made = (
                leaves[node.name] if node.op in SOURCES else COMPUTE[node.op](node, *(values[i] for i in node.inputs))
            )
            values.append(made)
        values[graph.loss].backward()  # type: ignore[no-untyped-call]
        ranks = Ranks(plan, whole)
        losses, gradients = ranks.run()
        for loss in losses:
            torch.testing.assert_close(loss, values[graph.loss].detach())
        letters = {node.name: node.tensor.letters for node in ranks.graph.nodes if node.operator == "parameter"}
        for name, found in gradients.items():
            for rank, gradient in enumerate(found):
                expected = leaves[name].grad
                assert expected is not None
                torch.testing.assert_close(gradient, ranks.local(expected, letters[name], rank))
        seen |= {(node.operator, bool(node.get("first"))) for node in ranks.graph.nodes if node.operator in PARALLEL}
    assert len(seen) == 8  # all six, and two of them with `first`


# Moves, text, files


def test_moves_are_the_operators_of_the_letters() -> None:
    words = {
        (a, b): "; ".join(f"{operator}{' first' * first}" for operator, _, first in moves(a, b))
        for a, b in product(("R", "S(0)", "B", "P"), repeat=2)
    }
    assert words == {
        ("R", "R"): "",
        ("R", "S(0)"): "partition",
        ("R", "B"): "replicate",
        ("R", "P"): "replicate first",
        ("S(0)", "R"): "combine",
        ("S(0)", "S(0)"): "",
        ("S(0)", "B"): "combine; replicate",
        ("S(0)", "P"): "combine; replicate first",
        ("B", "R"): "reduce first",
        ("B", "S(0)"): "reduce first; partition",
        ("B", "B"): "",
        ("B", "P"): "reduce first; replicate first",
        ("P", "R"): "reduce",
        ("P", "S(0)"): "reduce; partition",
        ("P", "B"): "reduce; replicate",
        ("P", "P"): "",
    }
    assert [x[0] for x in moves("S(0)", "S(1)")] == ["combine", "partition"]


def test_what_is_marked_first_sends_nothing() -> None:
    """Other moves send where they combine or reduce, and backward where they partition or replicate."""
    letters = {"R": R, "S(0)": S(0), "S(1)": S(1), "B": B, "P": P}
    for (a, source), (b, target) in product(letters.items(), repeat=2):
        found = {operator for operator, _, _ in moves(a, b)}
        first = any(first for _, _, first in moves(a, b))
        action = move(source, target)
        assert (action.value in COLLECTIVES) == (bool(found & {"combine", "reduce"}) and not first), (a, b)
        assert (action.gradient in COLLECTIVES) == (bool(found & {"partition", "replicate"}) and not first), (a, b)


def perceptrons(count: int) -> PCG:
    b = Builder(8)
    x = b.input("x", (8, 16))
    for i in range(count):
        path = f"layers.{i}"
        up, down = b.parameter(f"{path}.up.weight", (64, 16)), b.parameter(f"{path}.down.weight", (16, 64))
        h = b.add("relu", b.add("linear", x, up, shape=(8, 64), name=f"{path}.up"), shape=(8, 64), name=f"{path}.relu")
        y = b.add("linear", h, down, shape=(8, 16), name=f"{path}.down")
        x = b.add("add", x, y, shape=(8, 16), name=f"{path}.add")
    return b.build(b.add("sum", x, shape=(), dims=(0, 1), keepdim=False, name="loss"))


def test_equal_layers_are_told_once() -> None:
    """Megatron's perceptron, samples over the other axis; the first layer's input has no gradient."""
    rows_of = {"up": "b.0,o", "relu": "i.1,i.0", "down": "b.0,i", "add": "i.1,R"}
    strategies = {f"layers.{i}.{name}": row for i in range(4) for name, row in rows_of.items()}
    stored = {f"layers.{i}.{w}.weight": (B, S(d)) for i in range(4) for w, d in (("up", 0), ("down", 1))}
    plan = by_hand(perceptrons(4), (2, 4), strategies | {"loss": "d0,R"}, stored, micro_batches=2)
    text = str(plan.parallel_graph())
    assert text == str(plan.parallel_graph())
    assert text == LAYERS


LAYERS = """\
Parallel graph on data=2 x tensor=4, 2 micro-batches: 697 us a step, 52 KiB a device.

%0 = input()                      [16, 16]       {0, 1, .., 7}                     x
%1 = Pipeline[0, 2](%0)           [8, 16]        {0, 1, .., 7}
%2 = Partition[0, data=2](%1)     [8/2, 16]      [{0, 1, 2, 3}, {4, 5, 6, 7}]
%3 = parameter()                  [64/4, 16]     [{0, 4}, {1, 5}, {2, 6}, {3, 7}]  layers.0.up.weight  12 ns
%4 = Replicate[data=2](%3)        [64/4, 16] x2  [[0, 1, 2, 3], [4, 5, 6, 7]]      backward all-reduce 106 ns
%5 = linear(%2, %4)               [8/2, 64/4]    [[0, 1, 2, 3], [4, 5, 6, 7]]      layers.0.up  20 us
%6 = relu(%5)                     [8/2, 64/4]    [[0, 1, 2, 3], [4, 5, 6, 7]]      layers.0.relu  20 us
%7 = parameter()                  [16, 64/4]     [{0, 4}, {1, 5}, {2, 6}, {3, 7}]  layers.0.down.weight  12 ns
%8 = Replicate[data=2](%7)        [16, 64/4] x2  [[0, 1, 2, 3], [4, 5, 6, 7]]      backward all-reduce 106 ns
%9 = linear(%6, %8)               [8/2, 16] x4   [[0, 1, 2, 3], [4, 5, 6, 7]]      layers.0.down  20 us
%10 = Partition[0, data=2](%1)    [8/2, 16]      [{0, 1, 2, 3}, {4, 5, 6, 7}]
3 times, layers.1-3:
  %11 = Reduce[tensor=4](%9|%20)  [8/2, 16]      [[0, 1, 2, 3], [4, 5, 6, 7]]      all-reduce 50.8 us
  %12 = add(%10|%12, %11)         [8/2, 16]      [{0, 1, 2, 3}, {4, 5, 6, 7}]      layers.0.add  20 us
  %13 = Replicate[tensor=4](%12)  [8/2, 16] x4   [[0, 1, 2, 3], [4, 5, 6, 7]]      backward all-reduce 50.8 us
  %14 = parameter()               [64/4, 16]     [{0, 4}, {1, 5}, {2, 6}, {3, 7}]  layers.1.up.weight  12 ns
  %15 = Replicate[data=2](%14)    [64/4, 16] x2  [[0, 1, 2, 3], [4, 5, 6, 7]]      backward all-reduce 106 ns
  %16 = linear(%13, %15)          [8/2, 64/4]    [[0, 1, 2, 3], [4, 5, 6, 7]]      layers.1.up  20 us
  %17 = relu(%16)                 [8/2, 64/4]    [[0, 1, 2, 3], [4, 5, 6, 7]]      layers.1.relu  20 us
  %18 = parameter()               [16, 64/4]     [{0, 4}, {1, 5}, {2, 6}, {3, 7}]  layers.1.down.weight  12 ns
  %19 = Replicate[data=2](%18)    [16, 64/4] x2  [[0, 1, 2, 3], [4, 5, 6, 7]]      backward all-reduce 106 ns
  %20 = linear(%17, %19)          [8/2, 16] x4   [[0, 1, 2, 3], [4, 5, 6, 7]]      layers.1.down  20 us
%41 = Reduce[tensor=4](%40)       [8/2, 16]      [[0, 1, 2, 3], [4, 5, 6, 7]]      all-reduce 50.8 us
%42 = add(%32, %41)               [8/2, 16]      [{0, 1, 2, 3}, {4, 5, 6, 7}]      layers.3.add  20 us
%43 = sum(%42)                    [] x2          [{0, 1, 2, 3}, {4, 5, 6, 7}]      loss  20 us
%44 = Batch[2](%43)               [] x2          [{0, 1, 2, 3}, {4, 5, 6, 7}]
%45 = Reduce[data=2](%44)         []             [{0, 1, 2, 3}, {4, 5, 6, 7}]"""


def test_branches_side_by_side_run_on_devices_of_their_own() -> None:
    graph = graph_of("inception-v3")
    plan = plan_graph(
        graph, Machine.adhoc((4,)), Training(12, "float32", "sgd"), SearchSpace(mesh=(4,), micro_batches=1, stages=1)
    )
    explicit = same(plan)
    alone = [node for node in explicit.nodes if "@1" in node.tensor.letters]
    assert alone and {node.mapping.devices for node in alone} == {(1,)}


def test_tables_are_spread() -> None:
    """Each rank has some tables: parts along the rows, of which nothing is said but that there are so many."""
    graph = graph_of("dlrm")
    training, space = Training(12, "float32", "sgd"), SearchSpace(mesh=(3,), fix=(("tables", "spread"),), stages=1)
    nodes = same(plan_graph(graph, Machine.adhoc((3,)), training, space)).nodes
    (table,) = (node for node in nodes if "spread" in node.tensor.letters)
    assert (table.operator, table.tensor.degrees, table.tensor.replicas) == ("parameter", (3, 1), 1)
    (lookup,) = (node for node in nodes if node.operator == "embedding")
    assert [word.split(": ")[1] for word in lookup["special"]] == ["spread"]
    assert {work.kind for work in lookup.work if work.axes} == {"all-to-all"}


Edit = Callable[[dict[str, Any]], object]
WRONG: dict[str, Edit] = {
    "not a parallel graph of format": lambda d: d.update(format=2),
    "'nodes' is missing": lambda d: d.pop("nodes"),
    "'tensor' is missing": lambda d: d["nodes"][3].pop("tensor"),
    "objective_ns is": lambda d: d.update(objective_ns=1),
    "are not earlier nodes": lambda d: d["nodes"][1].update(inputs=[1]),
    "does not give this tensor": lambda d: d["nodes"][1]["tensor"]["dims"][0].update(size=4),
    "axis tensor is at R, not S(0)": lambda d: d["nodes"][1].update(operator="combine"),
    "degree 8 over the axes tensor": lambda d: d["nodes"][1]["attributes"].update(degree=8),
    "does not have the state": lambda d: d["nodes"][4]["tensor"].update(replicas=2),
    "mapping 9 of": lambda d: d["nodes"][1].update(mapping=9),
    "mapping of the tasks": lambda d: d["nodes"][1].update(mapping=0),
    "are not an array of": lambda d: d["mappings"][1].update(devices=[[0], [1], [2]]),
    "distinct numbers": lambda d: d["mappings"][1].update(devices=[[0], [1], [2], [2]]),
    "is not an integer": lambda d: d["nodes"][1].update(of="w"),
    "neither true nor false": lambda d: d["nodes"][1].update(gradient=1),
    "is not a name": lambda d: d["nodes"][1].update(name=7),
    "below 0": lambda d: d["nodes"][0].update(kept={"states": -4}),
    "is the output": lambda d: d.update(output=99),
    "micro-batches": lambda d: d.update(micro_batches=0),
}


@pytest.mark.parametrize("words", WRONG)
def test_a_malformed_file_is_refused(words: str) -> None:
    data = json.loads(json.dumps(by_hand(two_products(), (4,), {"AB": "m", "ABC": "m"}).parallel_graph().to_json()))
    WRONG[words](data)
    with pytest.raises(PartitaError, match=re.escape(words)):
        ParallelGraph.from_json(data)


@pytest.mark.parametrize("data", [None, [], 3, {}, {"format": 1}, {"format": 1, "axes": 3}])
def test_what_is_no_parallel_graph_is_refused(data: object) -> None:
    with pytest.raises(PartitaError):
        ParallelGraph.from_json(data)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_a_damaged_file_is_read_or_refused(data: st.DataObject) -> None:
    """One place of a good file holds something else: no other error than the one for users."""
    plan = by_hand(batched_product(), (4,), {"output": "s"}, {"weight": (B,)}, micro_batches=2)
    good = json.loads(json.dumps(plan.parallel_graph().to_json()))
    place: Any = good
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        key = data.draw(st.sampled_from(keys))
        inner = place[key]
        if not isinstance(inner, dict | list) or not inner or data.draw(st.booleans()):
            break
        place = inner
    place[key] = data.draw(
        st.sampled_from([None, -1, 0, 1, 2, 7, 2**70, 0.5, True, "", "R", "S(0)", "S(7)", [], {}, [0]])
    )
    try:
        graph = ParallelGraph.from_json(good)
    except PartitaError:
        return
    assert str(graph) and ParallelGraph.from_json(graph.to_json()) == graph
