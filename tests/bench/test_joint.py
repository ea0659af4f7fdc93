"""The bench of joint planning: three plans of a model, of which the joint one is never worse."""

from __future__ import annotations

import json

import pytest

from partita.bench import joint
from partita.model.errors import PartitaError


def test_small_twins_are_planned_in_three_ways() -> None:
    rows = joint.run(small=True, only=("mlp", "candle"), tell=lambda words: None)
    assert [row["case"] for row in rows] == ["mlp, 6 V100", "candle-uno, 6 V100"]
    for row in rows:
        assert row["joint_ms"] <= min(row["plain_ms"], row["sequential_ms"]) and row["best"].startswith("joint")
        assert row["gap"] == row["gap_others"] == 0 and row["total_s"] > row["rewrite_s"] > 0
        assert "relu by linear_relu" in row["rewritten"] and "relu by linear_relu" in row["rewritten first"]
        assert (row["why"] == "equal") == (row["gain"] == 0)
    assert json.loads(json.dumps(rows)) == rows


def test_a_joint_plan_that_is_worse_is_an_error() -> None:
    assert joint.verdict({"plain": 3, "sequential": 2, "joint": 1}) == "joint"
    assert joint.verdict({"plain": 1, "sequential": 2, "joint": 1}) == "joint, plain"
    assert joint.verdict({"plain": 3, "sequential": 1, "joint": 2}) == joint.WORSE


def test_changes_are_counted_by_operator() -> None:
    changes = [{"name": str(n), "operator": "part", "was": "linear"} for n in range(3)]
    changes.append({"name": "x", "operator": "linear_relu", "was": "relu"})
    assert joint.counted(changes) == "3 linear by part, 1 relu by linear_relu"
    assert joint.counted([]) == "nothing"


def test_a_name_that_no_case_has_is_refused() -> None:
    with pytest.raises(PartitaError, match="no case has nothing such in its name"):
        joint.run(small=True, only=("nothing such",), tell=lambda words: None)
