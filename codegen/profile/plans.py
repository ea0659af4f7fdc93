"""The plans whose kernels a profile measures: a model split in several ways."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ...formulation.parallelism import Parallelism
from ...formulation.placement.placement import divisors
from ...formulation.search_space import SearchSpace
from ...model.errors import PartitaError
from ...model.graph.pcg import PCG
from ...model.machine.machine import Machine
from ...model.training import Training
from ...solvers.budget import Budget
from ...solvers.executors import Serial
from ..plan.plan import Plan
from ..planner.context import Context
from ..planner.plan_graph import plan_graph
from ..planner.planner import prepared
from .request import ProfileRequest


def asked_plans(request: ProfileRequest, ranks: int) -> Iterator[Plan]:
    """Plans of the model on so many ranks, see `plans_of`."""
    assert request.model is not None
    machine = Machine.load("cpu", nodes=ranks).without_memory_limit()
    budget = Budget(executor=Serial(), gap=0.1)
    graph, training, context = prepared(
        request.model, machine, request.training, SearchSpace(), budget, small=request.small
    )
    yield from plans_of(graph, training, machine, replace(context, emits=False))


def plans_of(graph: PCG, training: Training, machine: Machine, context: Context) -> Iterator[Plan]:
    """A plan for every product of sizes of parallelism that the model allows."""
    budget, ranks, found = Budget(executor=Serial(), gap=0.1), machine.devices, 0
    refused = PartitaError(f"a batch of {training.batch} cannot be divided among {ranks} ranks")
    for stages, tp in ((s, t) for s in divisors(ranks) for t in divisors(ranks // s)):
        for micro_batches in (1, 2, 4) if stages == 1 else (stages, 2 * stages):
            dp = ranks // stages // tp
            if training.batch % (dp * micro_batches):
                continue
            space = SearchSpace(
                parallelism=Parallelism(dp=dp, tp=tp, zero=0),
                stages=stages,
                micro_batches=micro_batches,
                recompute="none",
                offload=False,
                bundles=False,
            )
            try:
                yield plan_graph(graph, machine, training, space, budget, context)
                found += 1
            except PartitaError as error:  # a model that cannot be split so
                refused = error
    if not found:
        raise refused
