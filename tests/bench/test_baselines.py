"""The bench of PyTorch's own parallelizations: both sides train alike, and what fails is said."""

from __future__ import annotations

import json

import pytest

from partita.bench import bench, text
from partita.bench.baselines import CASES, RIVALS, Case, measure, totals
from partita.bench.known_plans import DATA, WEIGHTS, planned
from partita.codegen.pricing.plan_price import plan_price
from partita.model.errors import PartitaError
from partita.model.machine.machine import Machine


def test_both_train_alike() -> None:
    """Two ranks, fully sharded: real processes, three steps with the same losses, and times of both."""
    result = bench("baselines", small=True)
    (row,) = result["rows"]
    assert row["why"] == "" and row["loss_error"] < 1e-5
    assert row["ratio"] == pytest.approx(row["seconds"] / row["rival_seconds"])
    assert (result["cases"], result["failed"], result["worst_ratio"]) == (1, 0, row["ratio"])
    assert json.loads(json.dumps(result, allow_nan=False)) == result
    assert "worst_ratio" in text(result)


def test_every_plan_has_its_rival() -> None:
    assert set(WEIGHTS) < set(RIVALS) and len({case.name for case in CASES}) == len(CASES)


@pytest.mark.parametrize("plan", RIVALS)
@pytest.mark.parametrize("model", ["gpt, tiny", "llama, tiny"])
def test_plans_are_what_they_are_called(model: str, plan: str) -> None:
    """Priced apart: ZeRO-1 and sharded weights take less memory than copies, but for what travels ahead."""
    machine = Machine.load("cpu", nodes=2)
    made, copies = (plan_price(planned(model, name, machine, 4, False)).memory_bytes for name in (plan, DATA))
    assert made <= copies and (made < copies or plan == DATA)


def test_what_fails_is_said() -> None:
    """Three ranks cannot split four samples evenly into a weight's dims: the row says why, and the others go on."""
    row = measure(Case("gpt, tiny", "fully sharded", ranks=3, samples=6))
    assert "no dim that 3 ranks can split" in row["why"] and row["ratio"] is None
    assert totals([row]) == {"cases": 1, "failed": 1, "worst_ratio": None}


def test_no_case_left_is_refused() -> None:
    with pytest.raises(PartitaError, match="no case has nowhere"):
        bench("baselines", only=("nowhere",))
