"""What a plan's author reads: the operators of a graph with the names that plans take, and hints for wrong ones."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

import partita
from partita.formulation.spacetime.graph import Graph
from partita.formulation.spacetime.listing import listing, table
from partita.formulation.spacetime.names import layer_in, layer_of
from partita.formulation.spacetime.op import Op
from partita.formulation.spacetime.primitives import op_assign, op_join, op_trans, place
from partita.formulation.spacetime.site import caller, told
from partita.formulation.spacetime.stages import in_order, stages
from partita.formulation.spacetime.transformation import Dim, replicate, split, split_value, transformation
from partita.model.capture.capture import capture
from partita.model.errors import PartitaError
from partita.model.graph.builder import Builder
from partita.model.graph.pcg import PCG
from partita.model.wording import cut, did_you_mean
from partita.model.zoo import build


def stack(layers: int = 5) -> PCG:
    """loss = Σ y, with linears `layers.i.up` and relus in a module list."""
    b = Builder(8)
    h = b.input("x", (8, 4))
    for i in range(layers):
        w = b.parameter(f"layers.{i}.up.weight", (4, 4))
        h = b.add("linear", h, w, shape=(8, 4), name=f"layers.{i}.up", path=f"layers.{i}.up")
        h = b.add("relu", h, shape=(8, 4), name=f"layers.{i}.relu", path=f"layers.{i}")
    return b.build(b.add("sum", h, shape=(), dims=(0, 1), keepdim=False, name="loss"))


@pytest.fixture(scope="module")
def gpt() -> PCG:
    return partita.graph(*build("gpt3-1.3b", small=True), batch=8).pcg


def test_equal_layers_are_told_once() -> None:
    assert repr(Graph(stack())).splitlines() == [
        'Graph of 11 operators, batch 8; name, operator, shape, dims as in split("o", n):',
        "  layers.0.up    linear  8x4     batch 8, o 4, i 4",
        "  layers.0.relu  relu    8x4     batch 8, i.0 4",
        "  layers.1 to layers.4, each as layers.0",
        "  loss           sum     scalar  batch 8, d1 4",
    ]


def test_parts_and_devices_are_told() -> None:
    graph = Graph(stack(2))
    for op in graph.find("layers.*"):
        if op.is_forward:
            op_assign(op_trans(op, split("batch", 4, "micro")), 1)
    lines = repr(graph).splitlines()
    assert lines[0].startswith("Graph of 5 operators in 17 parts, batch 8;")
    assert lines[1].endswith("batch 8, o 4, i 4  micro 4, on 1")
    assert lines[3:] == ["  layers.1 as layers.0", "  loss           sum     scalar  batch 8, d1 4"]


def test_a_long_graph_is_cut_and_what_is_left_out_counted(gpt: PCG) -> None:
    graph = Graph(gpt)
    lines = repr(graph).splitlines()
    assert len(lines) == 24
    assert lines[1].split() == ["arange", "arange", "8"]
    assert lines[-1].split() == ["cross_entropy", "cross_entropy", "scalar", "batch", "8,", "n:1", "8"]
    (left,) = (int(line.split()[1]) for line in lines if line.startswith("  ... "))
    (repeated,) = (line for line in lines if "each as" in line)
    assert repeated == "  layers.1 to layers.3, each as layers.0"
    of_a_layer = sum(op.layer == "layers.0" for op in graph.forward)
    assert left + 3 * of_a_layer + len(lines) - 3 == len(graph.forward)


def test_lists_within_lists() -> None:
    assert [layer_of("stages.1.blocks.3.up", depth) for depth in (1, 2, 3)] == ["stages.1", "stages.1.blocks.3", ""]
    b = Builder(2)
    h = b.input("x", (2, 4))
    for name in ("a.0.b.0", "a.0.b.1", "a.1.b.0", "a.1.b.1"):
        h = b.add("relu", h, shape=(2, 4), name=f"{name}.relu", path=name)
    pcg = b.build(b.add("sum", h, shape=(), dims=(0, 1), keepdim=False, name="loss"))
    lines = table([entry for entry in listing(pcg) if entry.operator == "relu"])
    assert [line.split("  ")[0] for line in lines] == ["a.0.b.0.relu", "a.0.b.1 as a.0.b.0", "a.1 as a.0"]


def test_layers_of_nested_lists_are_those_that_are_recomputed() -> None:
    pcg = capture(*build("swin-1.8b", small=True), batch=2)
    paths = {node.path for node in pcg.nodes}
    inside = {path for path in paths if path.startswith("stages.1.blocks.3.")}
    assert inside and {layer_in(pcg, path) for path in inside} == {"stages.1.blocks.3"}
    assert (layer_in(pcg, "merges.0.norm"), layer_in(pcg, "stages.0"), layer_in(pcg, "norm")) == (
        "merges.0",
        "stages.0",
        "",
    )


@pytest.mark.parametrize("model", ["gpt3-1.3b", "mbart-4.7b", "swin-1.8b"])
def test_every_name_that_is_listed_can_be_split(model: str) -> None:
    graph = partita.graph(*build(model, small=True), batch=8)
    listed = {entry.name: entry for entry in listing(graph.pcg)}
    count = 0
    for op in graph.ops:
        for dim in listed[op.of.name].dims:
            names: list[Dim] = [dim.name, *dim.tensors] if op.is_forward else list(dim.tensors)
            for name in names:
                assert op.has(name) or not op.is_forward, (op, name)
            parts = op_trans(op, split(names[0], dim.size))
            assert len(parts) == dim.size and any(
                part.mask(operand).numel < op.mask(operand).numel
                for part in parts[:1]
                for operand in (None, *(range(len(op.of.inputs)) if op.is_forward else ()))
            )
            count += 1
            op = op_join(parts)
    assert count > len(graph.ops)
    assert json.dumps([entry.to_json() for entry in listed.values()])


# Hints


def wrongly(found: object) -> Any:
    """A value where one of another type is needed."""
    return found


def test_words() -> None:
    assert did_you_mean("OP", ["op", "other"]) == "; did you mean op?"
    assert did_you_mean("zzz", ["op", "other"]) == did_you_mean("x", []) == ""
    assert cut("abcde", 4) == ["a", "b", "c", "and 2 more"]
    assert cut("abcd", 4) == [*"abcd"]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda g: g.find("layers.0.upp"), "no operator 'layers.0.upp' in the graph; did you mean layers.0.up"),
        (lambda g: g.find("layer.*.up"), r"did you mean layers.\*.up"),
        (lambda g: place(g, "layers.0.up.wieght", None, [0]), r"did you mean layers.0.up.weight"),
        (lambda g: op_trans(g.forward[0], split(("layers.*.up.wieght", 0), 2)), r"mean layers.\*.up.weight"),
        (lambda g: op_trans(g.forward[0], split("bacth", 2)), r"'bacth': it has batch, o, i; did you mean batch\?"),
        (lambda g: op_trans(g.forward[0], split_value("W", 2)), r"no operand 'W'; it has x, w; did you mean w\?"),
        (lambda g: op_trans(g.forward[0], transformation(["hole", "whole"], 0, 2)), "mean whole"),
        (lambda g: op_trans(g.forward[0], wrongly("replicat")), r"not by 'replicat'; did you mean replicate\?"),
        (lambda g: op_assign(g.forward[0], wrongly("cuda:1")), r"not 'cuda:1'; did you mean 1\?"),
        (
            lambda g: in_order(partita.gpipe(2, 2), _micros(g), "mirco"),
            r"\(now 'mirco'\); the operators have 'micro'; did you mean micro\?",
        ),
    ],
)
def test_wrong_names_are_answered_with_the_nearest(wrong: Callable[[Graph], object], said: str) -> None:
    with pytest.raises(PartitaError, match=said):
        wrong(Graph(stack()))


def _micros(graph: Graph) -> list[list[Op]]:
    for op in graph.forward:
        op_trans(op, split("batch", 2, "micro"))
    return stages(graph, 2)


def test_operators_are_found_by_name_and_pattern() -> None:
    graph = Graph(stack())
    assert [op.name for op in graph.find("layers.*.up.weight")][:2] == [f"layers.{i}.up.weight update" for i in (0, 1)]
    op_trans(graph.find("loss")[0], replicate(2))
    assert len(graph.find("loss")) == 2


# Calls in the user's program


def test_a_call_is_told_with_its_text() -> None:
    site = caller()
    assert re.fullmatch(r"test_spacetime_listing\.py:\d+: caller\(\)", str(site))
    assert told(site, "no") == f"{site}: no" and told(None, "no") == "no"


def test_the_text_of_a_long_call_is_one_shortened_line() -> None:
    graph = Graph(stack())
    op_assign(
        graph.forward,
        1,
    )
    assert str(graph.forward[0].assigned).endswith(": op_assign(graph.forward, 1)")
    op_assign([op for op in graph.forward if op.of.name.startswith("layers") and op.of.name.endswith("a long text")], 1)
    (part,) = op_trans(graph.forward[0], split(("layers.0.up.weight", 0), 1, "a label that is long, and even longer"))
    text = part.made.text  # type: ignore[union-attr]
    assert (
        len(text) == 72
        and text.startswith('op_trans(graph.forward[0], split(("layers.0.up.weight"')
        and text[-3:] == "..."
    )
