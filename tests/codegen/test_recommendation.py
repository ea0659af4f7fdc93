"""Recommendation models on 8 V100: plans against what an expert writes by hand, in the same cost model.

The expert gives every device whole tables, dealt out by number, in which it looks up the whole batch; one all-to-all
hands the rows to where their samples are, another one the gradients back; the perceptrons are data parallel.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from partita.codegen.plan.plan import Plan
from partita.codegen.planner.context import Context
from partita.codegen.planner.plan_graph import plan_graph
from partita.codegen.pricing.stage_price import stage_price
from partita.formulation.search_space import SearchSpace
from partita.formulation.strategies.transitions import Transitions
from partita.model.capture.capture import capture
from partita.model.capture.load import load_module
from partita.model.graph.atoms import atoms
from partita.model.graph.dtypes import ITEMSIZE
from partita.model.graph.layout import Action, B, atom_of, is_split
from partita.model.machine.machine import Machine
from partita.model.machine.roofline import Roofline
from partita.model.training import Training
from partita.model.zoo import entry

MODELS = ("dlrm", "xdl")


@cache
def planned(name: str, wired: bool = False) -> Plan:
    """The full-size model on 8 V100 of 16 GB behind one switch, or as the server is wired, with the zoo's batch."""
    machine, known = Machine.load("gcp-v100", nodes=1), entry(name)
    if not wired:
        machine = replace(machine, levels=tuple(replace(level, wiring=None) for level in machine.levels))
    batch = known.default_batch(False, machine.devices)
    graph = capture(*load_module(name), batch=batch)
    return plan_graph(
        graph,
        machine,
        Training(batch, known.dtype, known.optimizer),
        SearchSpace(stages=1),
        context=Context({"reference": name}),
    )


def lookup(plan: Plan) -> int:
    (found,) = (i for op in ("embedding", "embedding_bag") for i in plan.graph.of(op))
    return found


def expert_ns(plan: Plan) -> int:
    """The expert's step: for the rest what the plan pays, whose perceptrons are data parallel too.

    It has the benefit of the doubt: the look-ups of a device are one kernel, which finds its ids where they are needed,
    and every device sends as much as any other.
    """
    graph, machine, found = plan.graph, plan.machine, lookup(plan)
    table, numbers = graph.nodes[found].inputs
    own = {found, table, numbers, *graph.nodes[numbers].inputs}
    own |= {i for i, node in enumerate(graph.nodes) if node.op == "view" and found in node.inputs}
    rest = sum(item.total_ns for item in stage_price(plan).items if item.node not in own)

    tables, row = graph.nodes[table]["tables"], graph.nodes[table].shape[1] * ITEMSIZE["float32"]
    ids = math.prod(graph.nodes[numbers].shape) // len(tables) * math.ceil(len(tables) / machine.devices)
    device = Roofline(machine, "float32")
    looked_up = np.float64(ids * (2 * row + ITEMSIZE["int64"]))  # read, and written side by side
    gradient = np.float64(ids * (row + ITEMSIZE["int64"]))
    work = np.float64(0)
    kernels = device.ns(work, looked_up) + device.ns(work, 2 * looked_up) + device.memory_ns(5 * gradient)
    message = plan.batch * len(tables) * row // machine.devices
    exchange = Transitions(machine, plan.placement).step_ns(0, Action.EXCHANGE, message)
    return rest + int(kernels) + 2 * exchange


@pytest.mark.parametrize("name", MODELS)
def test_tables_are_split_and_so_is_the_batch_of_perceptrons(name: str) -> None:
    plan = planned(name)
    graph = plan.graph
    table = graph.nodes[lookup(plan)].inputs[0]
    assert plan.report["gap"] == 0
    assert plan.placement.sizes == (8,)
    assert graph.nodes[table].numel * ITEMSIZE["float32"] > plan.machine.device.capacity_bytes  # exceed one device
    assert is_split(plan.choices[table].output[0])
    linear = graph.of("linear")
    assert len(linear) == {"dlrm": 8, "xdl": 5}[name]
    for i in linear:
        x, weight, bias = (letters[0] for letters in plan.choices[i].inputs)
        assert atom_of(x) in atoms(graph)[graph.nodes[i].inputs[0]].batch
        assert (weight, bias) == (B, B)


@pytest.mark.parametrize("wired", [False, True], ids=["switch", "wired"])
@pytest.mark.parametrize("name", MODELS)
def test_as_good_as_the_expert(name: str, wired: bool) -> None:
    """As the server is wired, an exchange passes PCIe between GPUs without NVLink, and the expert loses by far."""
    plan = planned(name, wired)
    assert plan.report["objective_ns"] <= expert_ns(plan)


def test_the_expert_by_hand() -> None:
    """Four tables on the busiest device: 8192 rows of 512 bytes from each."""
    plan = planned("dlrm")
    found = lookup(plan)
    table, numbers = plan.graph.nodes[found].inputs
    rest = stage_price(plan)
    own = [item for item in rest.items if item.node in (found, table, numbers)]
    looked_up = 4 * 8192 * (2 * 512 + 8) / 810e9 * 1e9
    expected = 3 * looked_up + 2 * 5000 + 5 * 4 * 8192 * (512 + 8) / 810e9 * 1e9
    exchange = [item.ns for item in own if item.kind == Action.EXCHANGE.value]
    assert len(exchange) == 2
    by_hand = rest.objective_ns - sum(item.total_ns for item in own) + expected + sum(exchange)
    assert expert_ns(plan) == pytest.approx(by_hand, abs=10)
