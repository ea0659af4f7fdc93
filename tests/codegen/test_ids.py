"""Look-ups in a table whose rows are split, by an exchange of ids (`owners`)."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch
from torch import Tensor, nn

from partita.codegen.plan.plan import Plan
from partita.codegen.planner.context import Context
from partita.codegen.planner.plan_graph import plan_graph
from partita.codegen.verification.special import verify_strategy
from partita.codegen.verification.verify import verify
from partita.formulation.search_space import SearchSpace
from partita.formulation.special.owners import largest_share
from partita.model.capture.capture import capture
from partita.model.capture.load import load_module
from partita.model.machine.machine import Machine
from partita.model.training import Training

BATCH = 31


def planned(name: str, mesh: tuple[int, ...], strategy: str, **training: object) -> Plan:
    graph = capture(*load_module(name, small=True), batch=BATCH)
    given = {"dtype": "float64", "optimizer": "sgd", **training}
    training, space = Training(BATCH, **given), SearchSpace(mesh=mesh, fix=(("tables", strategy),), stages=1)  # type: ignore[arg-type]
    return plan_graph(graph, Machine.adhoc(mesh), training, space, context=Context({"reference": name, "small": True}))


def test_its_examples() -> None:
    """Tables that are trained, frozen or sparse; bags with and without weights; uneven rows and samples."""
    verdicts = verify_strategy("owners")
    assert {verdict["ranks"] for verdict in verdicts} == {2, 3}  # 6 samples leave the fourth rank empty
    assert {verdict["example"] for verdict in verdicts} == set(range(5))
    assert all(verdict["ok"] for verdict in verdicts), verdicts


@pytest.mark.parametrize("ranks", [2, 3, 4, 6, 8])
@pytest.mark.parametrize("name", ["dlrm", "xdl"])
def test_joined_tables(name: str, ranks: int) -> None:
    verdict = planned(name, (ranks,), "owners").verify()
    assert verdict["ok"], verdict


def test_beside_other_axes() -> None:
    """Rows over one axis, columns over the other."""
    assert planned("dlrm", (3, 2), "owners,e").verify()["ok"]


class Words(nn.Module):
    """Trained by adamw, in several micro-batches, in mixed precision."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.out = nn.Embedding(37, 6), nn.Linear(6, 1)

    def forward(self, ids: Tensor) -> Tensor:
        loss: Tensor = self.out(torch.tanh(self.words(ids))).square().mean()
        return loss


@pytest.mark.parametrize("dtype", ["float64", "mixed-bfloat16"])
def test_a_dense_gradient(dtype: str) -> None:
    module, inputs = Words(), (torch.zeros(26, 5, dtype=torch.int64),)
    training = Training(26, dtype, "adamw")
    space = SearchSpace(mesh=(4,), micro_batches=2, fix=(("words", "owners"),), stages=1)
    plan = plan_graph(capture(module, inputs, batch=26), Machine.adhoc((4,)), training, space)
    assert "owned_rows(ids, self.words_weight, data, 37)" in plan.emit()
    assert verify(plan, module=module, inputs=inputs)["ok"]


def test_the_rank_of_the_small_tables_answers_most() -> None:
    """Of 3 tables, 12 rows: with 2 ranks, the second has half of the first table and both others."""
    assert largest_share((8, 2, 2), 2) == Fraction(2, 8) / 3 + Fraction(2, 3)
    assert largest_share((12,), 5) == Fraction(3, 12)
