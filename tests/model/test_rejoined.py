"""The whole graph that stages make up."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from partita.codegen.verification.graph_module import GraphModule
from partita.codegen.verification.synthetic import synthetic
from partita.model.graph.atoms import atoms
from partita.model.graph.pcg import PCG
from partita.model.graph.rejoined import rejoined
from partita.model.graph.stages import boundaries, stage

from ..codegen.pipelines import captured
from ..levels import some


def stages_of(graph: PCG, count: int) -> list[PCG]:
    last = len(boundaries(graph)) - 1
    return [stage(graph, *ends).graph for ends in pairwise(round(k * last / count) for k in range(count + 1))]


def links(graph: PCG) -> set[tuple[object, ...]]:
    """The nodes with what they read, in whatever order."""
    names = [node.name for node in graph.nodes]
    return {(n.op, n.name, n.shape, *(names[i] for i in n.inputs)) for n in graph.nodes}


@pytest.mark.parametrize("name", some(["gpt2", "llama-7b", "mbart-4.7b"]))
def test_stages_of_a_graph_make_it_up(name: str) -> None:
    """A table that the first and the last stage have is one, and so are positions that all of them compute."""
    graph = captured(name, 8)
    parts = stages_of(graph, 3)
    whole, places = rejoined(parts)
    assert links(whole) == links(graph) and whole.nodes[whole.loss].name == graph.nodes[graph.loss].name
    assert whole.aliases == graph.aliases
    for part, own in zip(parts, places, strict=True):
        assert [atoms(part)[i] for i in range(len(own))] == [atoms(whole)[at] for at in own]


def test_a_constant_that_stages_compute_in_two_ways_has_two_names() -> None:
    graph = captured("llama-7b", 8)
    first, second = stages_of(graph, 2)
    shared = {node.name for node in first.nodes} & {node.name for node in second.nodes}
    index, node = next((i, n) for i, n in enumerate(second.nodes) if n.op == "cos" and n.name in shared)
    nodes = list(second.nodes)
    nodes[index] = replace(node, op="sin")  # as if rewriting had found another way
    whole, places = rejoined([first, replace(second, nodes=tuple(nodes), part=None)])
    assert whole.nodes[places[1][index]].name == f"{node.name} 2"
    batch = synthetic(graph, 8, 0)
    assert not torch.equal(*(GraphModule(each)(batch, 0) for each in (graph, whole)))
