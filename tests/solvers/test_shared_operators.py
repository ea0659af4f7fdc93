"""Bounds of what all devices of an interlaced pipeline compute together."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from partita import Machine, capture
from partita.codegen.planner.pipeline_space import pipeline_space
from partita.codegen.planner.problem import problem_of
from partita.formulation.network.network import INFINITE, Network
from partita.formulation.pipeline.configuration import Configuration
from partita.formulation.search_space import SearchSpace
from partita.model.training import Training
from partita.solvers.backends.auto import Auto
from partita.solvers.protocol import Limits
from partita.solvers.search.part_networks import PartNetworks
from partita.solvers.search.pipeline_problem import PipelineProblem
from partita.solvers.search.planning_problem import PlanningProblem
from partita.solvers.search.result import ConfigurationSpace
from partita.solvers.search.search import search
from partita.solvers.search.shared_operators import _allowed, encoding, least, shares


class Words(nn.Module):
    """A layer for each of two stages, between look-ups and scores of one table of 16 KiB."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(512, 8)
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        x = self.table(ids)
        for layer in self.layers:
            x = x + layer(x)
        return nn.functional.cross_entropy(nn.functional.linear(x, self.table.weight).flatten(0, 1), labels.flatten())


def problem(kib: int) -> tuple[PlanningProblem, ConfigurationSpace, Configuration]:
    """Two stages and two micro-batches on devices of so much memory."""
    machine = Machine.adhoc((2,))
    machine = replace(machine, device=replace(machine.device, memory_bytes=machine.device.reserved_bytes + kib * 1024))
    ids = torch.zeros(4, 2, dtype=torch.int64)
    space = SearchSpace(schedule="interlaced", stages=2, micro_batches=2, offload=False)
    made = problem_of(capture(Words(), (ids, ids)), machine, Training(4), space)
    found = pipeline_space(made, space)
    assert found is not None
    ((row, (placement, *_)),) = found.placements.items()
    return made, found, Configuration(row, placement.matrix, 2, found.schedule)


@pytest.mark.parametrize(("kib", "fits"), [(128, True), (32, False)])
def test_the_bound_excludes_what_leaves_no_memory_for_stages(kib: int, fits: bool) -> None:
    """Half of the table with its gradient and two states takes 32 KiB, before anything else."""
    made, _, configuration = problem(kib)
    bound = least(made, configuration, Auto())
    assert (bound.ns < INFINITE) == fits and (bound.bytes <= kib * 1024) == fits


def test_memory_is_divided_between_stages_and_the_others_as_is_best() -> None:
    """No way to divide it, of twenty, is below the bound of the search, which is close to the best."""
    made, among, configuration = problem(100)
    found, parts = encoding(made, configuration), PartNetworks(PipelineProblem(made), configuration, Auto())
    capacity, known = made.machine.device.capacity_bytes, shares(made, configuration, Auto())
    stages = [parts.encoding(*ends, configuration.in_flight(s)) for s, ends in enumerate(((0, 1), (1, 2)))]

    def fastest(network: Network, room: int) -> int:
        solution = Auto().solve(replace(network, capacities=(max(room, 0),)), Limits())
        return INFINITE if solution.objective is None else solution.objective

    least_step = INFINITE
    for taken in range(0, capacity, capacity // 20):
        shared_ns = fastest(_allowed(found), taken - found.fixed_bytes)
        assert shared_ns >= INFINITE or any(share.ns <= shared_ns and share.bytes <= taken for share in known)
        busy = [fastest(stage.network, capacity - taken - stage.fixed_bytes) for stage in stages]
        if max(shared_ns, *busy) < INFINITE:
            least_step = min(least_step, shared_ns + configuration.step_ns(busy))
    result = search(made, Auto(), space=among)
    assert least(made, configuration, Auto()).ns < known[-1].ns
    assert result.objective is not None and result.bound <= min(least_step, result.objective)
    assert result.bound > 0.95 * least_step
