"""Weights and gradients that travel together: nothing reads one before its message is sent."""

from __future__ import annotations

from pathlib import Path

import partita
from partita.formulation.spacetime.primitives import recompute
from partita.formulation.spacetime.stages import layers
from partita.model.capture.load import import_file
from partita.model.zoo import build

FOLDER = Path(__file__).parents[2] / "examples" / "plans"


def test_an_update_waits_for_the_bucket_of_its_gradient_in_a_recomputed_group() -> None:
    """Gradients of two layers that are recomputed together travel in one message, after an update between them."""
    module = import_file(FOLDER / "allreduce_overlap.py")
    graph = partita.graph(*build("gpt3-1.3b", small=True, sizes={"layers": 4}), batch=8)
    module.plan(graph, range(2))
    own = {ops[0].layer: ops for ops in layers(graph) if ops[0].layer}
    for device in range(2):
        for group in (("layers.2", "layers.1"), ("layers.3",)):
            recompute([op for layer in group for op in own[layer] if op.device == device])
    plan = partita.space_time(graph)
    assert 'into="gradients"' in plan.source()
    assert plan.verify()["ok"]
