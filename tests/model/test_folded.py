"""Folded graphs: the passes of a model that recycles, beside each other."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from partita import PartitaError, capture
from partita.model.graph.boundaries import boundaries
from partita.model.graph.folded import folded, is_folded, pass_of, passes
from partita.model.graph.pcg import PCG
from partita.model.graph.recycling import twins
from partita.model.graph.stages import stage, stage_kind


class Recycled(nn.Module):
    """Three passes through four layers; each is given a row of what the one before found.

    `halfway`: what it found after two layers, which is read at both ends.
    """

    def __init__(self, halfway: bool = False, recycled: bool = True) -> None:
        super().__init__()
        self.halfway, self.recycled = halfway, recycled
        self.norm = nn.LayerNorm(8)
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))

    def forward(self, given: Tensor) -> Tensor:
        handed = x = torch.zeros_like(given)
        for cycle in range(3):
            with torch.set_grad_enabled(cycle == 2 or not self.recycled):
                before, x = handed, given + self.norm(handed if self.halfway else handed[:, 0][:, None])
                for number, layer in enumerate(self.layers):
                    x = x + torch.relu(layer(x))
                    if number == (1 if self.halfway else 3):
                        handed = x
                if self.halfway:
                    x = x + before
        return x.square().mean()


def captured(**options: bool) -> PCG:
    return capture(Recycled(**options), (torch.zeros(4, 3, 8),))


def test_nodes_of_all_passes_stand_beside_each_other() -> None:
    graph = captured()
    made = folded(graph)
    assert passes(graph) == 3 and passes(made.graph) == 3 and is_folded(made.graph) and not is_folded(graph)
    assert len(made.nodes) == len(graph.nodes) + 4  # two rows are handed on
    repeats = twins(made.graph)
    assert {made.nodes[i]: made.nodes[m] for i, m in repeats.items()} == dict(twins(graph))
    assert all(index < model for index, model in repeats.items())
    handed = made.graph.of("to_pass")
    assert [made.graph.nodes[i].shape for i in handed] == [(4, 1, 8)] * 2
    assert [pass_of(made.graph)[i] for i in (*handed, *made.graph.of("from_pass"))] == [0, 1, 0, 1]


def test_stages_have_their_layers_of_all_passes() -> None:
    made = folded(captured()).graph
    last = len(boundaries(made)) - 1
    assert [len(b.crossing) for b in boundaries(made)[1:-1]] == [3] * (last - 1)
    inner = stage(made, 1, 2).graph
    received = [inner.nodes[i] for i in inner.of("receive")]
    assert [node.gradient for node in received] == [False, False, True]
    assert {twins(inner)[i] for i in inner.of("receive")[:2]} == {inner.of("receive")[2]}
    assert is_folded(inner) and stage_kind(made, 1, 2) == stage_kind(made, 2, 3)
    first, end = stage(made, 0, 1).graph, stage(made, last - 1, last).graph
    assert len(first.of("from_pass")) == len(end.of("to_pass")) == 2 and not inner.of("from_pass")


@pytest.mark.parametrize(
    ("options", "words"),
    [({"halfway": True}, "read in another place than the beginning"), ({"recycled": False}, "a model that recycles")],
)
def test_other_models_are_refused(options: dict[str, bool], words: str) -> None:
    with pytest.raises(PartitaError, match=words):
        folded(captured(**options))
