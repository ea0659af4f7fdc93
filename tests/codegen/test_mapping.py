"""Planning for a machine mapping: its axes and its placement, and nothing else."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from partita import Machine, PartitaError, optimize
from partita.formulation.placement.mappings import register
from partita.formulation.placement.placement import Placement, of_rows
from partita.formulation.reduction.program import Reduction
from partita.formulation.search_space import SearchSpace


@pytest.fixture
def perceptron() -> tuple[nn.Module, tuple[torch.Tensor]]:
    with torch.device("meta"):
        return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64)), (torch.zeros(16, 64),)


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    from partita.formulation.placement import mappings

    monkeypatch.setattr(mappings, "_known", dict(mappings._known))


def placed(perceptron: tuple[nn.Module, tuple[torch.Tensor]], machine: Machine, mapping: str) -> Placement:
    plan = optimize(*perceptron, machine, mapping=mapping, loss="projection")
    assert plan.report["space"]["placements"] == 1 and plan.report["status"] == "optimal"
    return plan.placement


def test_unity_s_mappings(perceptron: tuple[nn.Module, tuple[torch.Tensor]]) -> None:
    machine = Machine.adhoc((2, 2, 2))
    assert placed(perceptron, machine, "unity-1d") == of_rows([(2, 2, 2)])
    assert placed(perceptron, machine, "unity-2d") == of_rows([(2, 1, 1), (1, 2, 2)])
    assert placed(perceptron, machine, "unity-3d") == of_rows([(2, 1, 1), (1, 2, 1), (1, 1, 2)])


def test_axes_of_size_1_are_left_out(perceptron: tuple[nn.Module, tuple[torch.Tensor]]) -> None:
    assert placed(perceptron, Machine.adhoc((1, 4)), "unity-2d") == of_rows([(1, 4)])


def test_one_s_own_keeps_the_order_of_its_axes(perceptron: tuple[nn.Module, tuple[torch.Tensor]]) -> None:
    register("striped", lambda levels: of_rows([(1, levels[1]), (levels[0], 1)]))
    found = placed(perceptron, Machine.adhoc((2, 4)), "striped")
    assert found.matrix == ((1, 4), (2, 1))
    assert Reduction(found, (1,)).members().tolist() == [[0, 4], [1, 5], [2, 6], [3, 7]]


def test_refusals(perceptron: tuple[nn.Module, tuple[torch.Tensor]]) -> None:
    with pytest.raises(PartitaError, match="--mesh and --mapping both fix the axes"):
        optimize(*perceptron, Machine.adhoc((2, 2)), mapping="unity-2d", mesh=(2, 2), loss="projection")
    with pytest.raises(PartitaError, match="no machine mapping is called 'unity'"):
        optimize(*perceptron, Machine.adhoc((2, 2)), mapping="unity", loss="projection")
    with pytest.raises(PartitaError, match="--mesh and --mapping both fix the axes"):
        SearchSpace(mesh=(2, 2), mapping="unity-2d")
