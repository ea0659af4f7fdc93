"""Convolutional networks at full size: what the solver finds is what practitioners do."""

from __future__ import annotations

from partita.codegen.planner.context import Context
from partita.codegen.planner.plan_graph import plan_graph
from partita.formulation.search_space import SearchSpace
from partita.model.capture.capture import capture
from partita.model.capture.load import load_module
from partita.model.graph.atoms import atoms
from partita.model.graph.layout import B, atom_of, is_split
from partita.model.machine.machine import Machine
from partita.model.training import Training
from partita.model.zoo import entry


def test_resnext_on_one_node_is_data_parallel() -> None:
    """Every convolution and norm splits samples over all axes, and has its weights whole, with addends of gradients."""
    machine, known = Machine.load("summit", nodes=1), entry("resnext-50")
    batch = known.default_batch(False, machine.devices)
    graph = capture(*load_module("resnext-50"), batch=batch)
    plan = plan_graph(
        graph,
        machine,
        Training(batch, known.dtype, known.optimizer),
        SearchSpace(stages=1),
        context=Context({"reference": "resnext-50"}),
    )
    assert plan.report["gap"] == 0
    found = atoms(plan.graph)
    layers = [i for op in ("conv", "batch_norm") for i in plan.graph.of(op)]
    assert len(layers) == 2 * 53
    for i in layers:
        choice, node = plan.choices[i], plan.graph.nodes[i]
        assert all(is_split(letter) and atom_of(letter) in found[i].batch for letter in choice.output), node.name
        for operand, source in enumerate(node.inputs):
            if plan.graph.nodes[source].op == "parameter":
                assert set(choice.inputs[operand]) == {B}, (node.name, operand)
