"""Bounds of what all devices of an interlaced pipeline compute together."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from partita import Machine, capture
from partita.codegen.planner.pipeline_space import pipeline_space
from partita.codegen.planner.problem import problem_of
from partita.formulation.network.network import INFINITE
from partita.formulation.pipeline.configuration import Configuration
from partita.formulation.search_space import SearchSpace
from partita.model.training import Training
from partita.solvers.backends.auto import Auto
from partita.solvers.search.shared_operators import least


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


@pytest.mark.parametrize(("kib", "fits"), [(128, True), (32, False)])
def test_the_bound_excludes_what_leaves_no_memory_for_stages(kib: int, fits: bool) -> None:
    """Half of the table with its gradient and two states takes 32 KiB, before anything else."""
    machine = Machine.adhoc((2,))
    machine = replace(machine, device=replace(machine.device, memory_bytes=machine.device.reserved_bytes + kib * 1024))
    ids = torch.zeros(4, 2, dtype=torch.int64)
    space = SearchSpace(schedule="interlaced", stages=2, micro_batches=2, offload=False)
    problem = problem_of(capture(Words(), (ids, ids)), machine, Training(4), space)
    found = pipeline_space(problem, space)
    assert found is not None
    ((row, (placement, *_)),) = found.placements.items()
    bound = least(problem, Configuration(row, placement.matrix, 2, found.schedule), Auto())
    assert (bound.ns < INFINITE) == fits and (bound.bytes <= kib * 1024) == fits
