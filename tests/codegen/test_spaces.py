"""A wider space never gives a slower plan, a narrower one never a faster plan; what is not searched is said."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from partita.bench.random_modules import Net
from partita.codegen.plan.plan import Plan
from partita.codegen.planner.plan_graph import plan_graph
from partita.codegen.verification.verify import verify
from partita.formulation.rewriting.rules import planner_rules
from partita.formulation.search_space import SearchSpace
from partita.model.capture.capture import capture
from partita.model.graph.pcg import PCG
from partita.model.machine.machine import Device, Level, Machine
from partita.model.training import Training
from partita.solvers.budget import Budget
from partita.solvers.executors import Serial

SERIAL = Budget(executor=Serial())


def machine(*sizes: int, bandwidth: float = 3e7, memory_bytes: int = 2**34) -> Machine:
    """Slow devices and links; launches cost nothing."""
    levels = tuple(Level(f"level{i}", size, bandwidth, 1000.0) for i, size in enumerate(sizes))
    return Machine("slow", levels, Device("slow", memory_bytes, 0, 1e10, {"float32": 1e9}, 1.0, 0.0, 1e9))


def captured(module: nn.Module, *shape: int) -> PCG:
    return capture(module, (torch.zeros(shape),), batch=shape[0], loss="projection")


def planned(graph: PCG, on: Machine, space: SearchSpace) -> Plan:
    return plan_graph(graph, on, Training(graph.batch), space, SERIAL)


# Rewriting


def test_pipelines_are_searched_with_rewriting() -> None:
    graph, two = captured(Net(*[("linear", 48, 48)] * 8), 8, 48), machine(2)
    plain, rewritten = (
        planned(graph, two, SearchSpace(micro_batches=4, rules=rules)) for rules in ((), planner_rules())
    )
    assert plain.size == rewritten.size == 2 and rewritten.report["rewritten"]
    assert plain.report["status"] == rewritten.report["status"] == "optimal"
    assert rewritten.report["objective_ns"] < plain.report["objective_ns"]
    assert verify(rewritten, module=Net(*[("linear", 48, 48)] * 8), inputs=(torch.zeros(8, 48),))["ok"]


def test_alternatives_take_no_memory_from_plans_without_them() -> None:
    """Three weights side by side are one large weight, for which the device would have no room."""
    graph = captured(Net(("branches", "cat", 16, 64, 48, 32), ("linear", 144, 8)), 4, 16)
    tight = machine(2, memory_bytes=38506)  # the least that the graph needs as it was captured
    plain, rewritten = (
        planned(graph, tight, SearchSpace(stages=1, offload=False, rules=rules)) for rules in ((), planner_rules())
    )
    assert rewritten.report["objective_ns"] <= plain.report["objective_ns"]


class ReadTwice(nn.Module):
    """Two linears read the input, and one of them is read again where a pipeline may be cut."""

    def __init__(self) -> None:
        super().__init__()
        self.layers, self.scale = nn.ModuleList(nn.Linear(4, 4) for _ in range(2)), nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        """Vectors [batch, 4]."""
        one, other = self.layers
        first, second, third = torch.relu(other(x)), one(x), torch.relu(other(x))
        return first + second + third + other(second) + self.scale * other(third)


def test_a_stage_receives_what_rewriting_can_do_without() -> None:
    graph = captured(ReadTwice(), 8, 4)
    plain, rewritten = (
        planned(graph, machine(4), SearchSpace(stages=2, micro_batches=2, rules=r)) for r in ((), planner_rules())
    )
    assert rewritten.report["objective_ns"] <= plain.report["objective_ns"]
    assert verify(rewritten, module=ReadTwice(), inputs=(torch.zeros(8, 4),))["ok"]
