"""The operators of `bench operators` that need nothing but PyTorch; a wrong answer is told."""

from __future__ import annotations

from typing import Any

import pytest

from partita.bench import operators
from partita.bench.operators import VERIFIED, WRONG, _few, _machine, measured, totals


def test_operators_are_split_and_verified() -> None:
    rows = [measured(found, _machine()) for found in _few()[:2]]
    assert [(row["result"], row["split"]) for row in rows] == [(VERIFIED, 1)] * 2


def test_a_wrong_operator_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(trials: Any) -> list[dict[str, Any]]:
        return [{"ok": False, "failure": "the largest error is 1\nof x0"}]

    monkeypatch.setattr(operators, "run_trials", wrong)
    row = measured(_few()[0], _machine())
    assert row["result"] == f"{WRONG}: the largest error is 1"
    assert totals([row, row | {"result": "cannot capture it"}]) == {
        "operators": 2, "verified": 0, "refused": 1, "skipped": 0, "wrong": 1, "samples": 0, "split": 0,
    }  # fmt: skip
