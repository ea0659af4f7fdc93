"""The rule of `examples/enlarge.rules`: unlike kernels in one convolution, trained as before."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import partita
from partita.codegen.planner.context import Context
from partita.codegen.planner.plan_graph import plan_graph
from partita.codegen.planner.rewritten_graph import taken_graph
from partita.formulation.rewriting.saturate import rewritings
from partita.formulation.search_space import SearchSpace
from partita.formulation.substitution.rule_file import load_rules
from partita.model.capture.objective import TrainedModule
from partita.model.machine.machine import Machine
from partita.model.training import Training
from partita.solvers.proof.rewriting_rules import rewriting_rules

RULES = Path(__file__).parents[2] / "examples" / "enlarge.rules"


class Two(nn.Module):
    """A point and a window on one image."""

    def __init__(self) -> None:
        super().__init__()
        self.point, self.window = nn.Conv2d(3, 4, 1, bias=False), nn.Conv2d(3, 5, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.point(x).mean() * self.window(x).square().mean()


@pytest.mark.parametrize("levels", [(2,), (3,), (2, 2)])
def test_enlarged_weights_train_as_before(levels: tuple[int, ...]) -> None:
    module, x = Two(), torch.zeros(12, 3, 8, 8)
    graph = partita.capture(module, (x,))
    found = rewritings(graph, rewriting_rules(load_rules(RULES), graph).own)
    assert found.applied == {"enlarge and merge": 1} and not found.limits_hit
    one, _ = taken_graph(found.graph, {node: ways[-1] for node, ways in found.graph.members.items()})
    assert sorted(node.op for node in one.nodes if node.op in ("conv", "pad", "slice")) == [
        "conv",
        "pad",
        "slice",
        "slice",
    ]
    plan = plan_graph(
        one,
        Machine.adhoc(levels),
        Training(12, "float32", "sgd"),
        SearchSpace(stages=1),
        context=Context(module=TrainedModule(module, (x,))),
    )
    verdict = plan.verify()
    assert verdict["ok"], verdict
    assert {node.name for node in plan.graph.nodes if node.op == "parameter"} == {"point.weight", "window.weight"}
