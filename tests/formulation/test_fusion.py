"""What compiled layers fuse: elementwise functions and norms in a row, with nothing between them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from partita import capture
from partita.formulation.placement.placement import placements
from partita.formulation.strategies.fusion import fused_operands
from partita.model.graph.pcg import PCG
from partita.model.graph.stages import boundaries, stage
from partita.model.machine.machine import Machine

from .encodings import encoded_with


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.gate, self.up, self.down = nn.LayerNorm(8), *(nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        y = nn.functional.silu(self.gate(y)) * self.up(y)
        x = x + self.down(y)
        return x * torch.tanh(x.exp())


class Net(nn.Module):
    def __init__(self, layers: int = 2) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x.square().sum()


@pytest.fixture(scope="module")
def graph() -> PCG:
    return capture(Net(), (torch.zeros(4, 8),))


def fused(graph: PCG, layer: int) -> dict[str, list[str]]:
    """Operator -> the operators whose results it is handed, in one layer."""
    found = fused_operands(graph)
    nodes = {i: node for i, node in enumerate(graph.nodes) if node.path.startswith(f"layers.{layer}")}
    return {
        n.op: [graph.nodes[n.inputs[place]].op for place in sorted(found[i])] for i, n in nodes.items() if i in found
    }


def test_elementwise_functions_in_a_row(graph: PCG) -> None:
    """Not: after a product (silu, add), of another layer (layer_norm), or with a product on the way."""
    for layer in range(2):
        assert fused(graph, layer) == {"mul": ["add", "tanh"], "exp": ["add"], "tanh": ["exp"]}
    gated = next(i for i in graph.of("mul") if graph.nodes[graph.nodes[i].inputs[0]].op == "silu")
    assert fused_operands(graph)[gated] == frozenset({0})  # the other operand is a product


def test_a_stage_has_the_fusions_of_the_whole(graph: PCG) -> None:
    whole = fused_operands(graph)
    for first in range(len(boundaries(graph)) - 1):
        part = stage(graph, first, first + 1)
        places = {i: place for i, place in enumerate(part.nodes) if part.graph.nodes[i].op not in ("receive", "send")}
        assert fused_operands(part.graph) == {i: whole[place] for i, place in places.items() if place in whole}


def test_what_is_fused_launches_and_reads_nothing(graph: PCG) -> None:
    """Two layers of four fused nodes; mul is handed both operands, or one of two."""
    machine = Machine.adhoc((1,))
    device, place = machine.device, placements(machine.hierarchy, mesh=(1,))[0]
    plain, compiled = (
        encoded_with(graph, machine, place, compile=compile, overlap=False, optimizer="sgd").network
        for compile in (False, True)
    )
    assert len(plain.variables) == len(compiled.variables)
    saved = [int((a.cost - b.cost).min()) for a, b in zip(plain.variables, compiled.variables, strict=True)]
    assert min(saved) == 0
    tensor_ns = 4 * 8 * 4 / device.memory_bandwidth * 1e9
    operands = [1, 2, 1, 1] * 2  # silu * up; x * tanh; exp; tanh
    expected = sum(2 * device.launch_ns + 3 * tensor_ns * count for count in operands)
    assert sum(saved) == pytest.approx(expected, abs=2 * len(operands))
