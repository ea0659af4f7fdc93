"""Programs of planned models, as files that were read: what they look like is part of what is promised.

`python tests/codegen/test_golden.py` writes them again, where a change is meant.
"""

from pathlib import Path

import pytest

from partita.codegen.emission.common.defaults import SEED
from partita.codegen.plan.plan import Plan
from partita.codegen.planner.context import Context
from partita.codegen.planner.plan_graph import plan_graph
from partita.formulation.search_space import SearchSpace
from partita.model.capture.capture import capture
from partita.model.capture.initial import constructed
from partita.model.capture.load import load_module
from partita.model.machine.machine import Machine
from partita.model.training import Training
from partita.model.zoo.registry import entry

GOLDEN = Path(__file__).parent / "golden"
PLANS = {
    "llama-7b": ("dgx-h100", 8, (8, 8)),  # batch over both axes, weights sharded inside a node
    "gpt3-15b": ("dgx-a100", 4, (4, 8)),  # memory binds: kinds of layers that differ in what is sharded how far
}


def planned(name: str) -> Plan:
    preset, nodes, mesh = PLANS[name]
    known, machine = entry(name), Machine.load(preset, nodes=nodes)
    module, inputs = load_module(name)
    batch = known.default_batch(False, machine.devices)
    training = Training(batch, known.dtype, known.optimizer)
    space = SearchSpace(mesh=mesh, micro_batches=4, recompute="none", stages=1)  # as a search of all numbers finds
    graph = capture(module, inputs, batch=batch)
    initial = constructed(lambda: load_module(name, device="cpu")[0], graph.originals, SEED)
    context = Context({"reference": name, "batch": batch}, initial=initial)
    return plan_graph(graph, machine, training, space, context=context)


@pytest.mark.parametrize("name", PLANS)
def test_golden(name: str) -> None:
    assert planned(name).emit() == (GOLDEN / f"{name}.txt").read_text()


if __name__ == "__main__":
    for each in PLANS:
        (GOLDEN / f"{each}.txt").write_text(planned(each).emit())
