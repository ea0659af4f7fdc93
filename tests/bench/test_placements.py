"""The bench of joint networks: equal to enumerating placements, or an error in its row."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from partita.bench import placements


def test_joint_networks_are_compared_with_enumeration() -> None:
    rows = placements.run(small=True, only=("of the memory",), tell=lambda words: None)
    assert [row["verdict"] for row in rows] == ["equal, same placement"]
    assert rows[0]["joint_ms"] == rows[0]["enumerated_ms"] and rows[0]["gap"] == 0 and rows[0]["programs"] > 0
    assert placements.totals(rows) == {"cases": 1, "rows": 1, "unequal": 0}
    assert len({case.name for case in placements.CASES}) == len(placements.CASES) >= 30


def test_another_optimum_is_an_error() -> None:
    def plan(objective: int, status: str = "optimal", placement: int = 0) -> Any:
        return SimpleNamespace(report={"objective_ns": objective, "status": status}, placement=placement)

    assert placements.verdict(plan(1), plan(1, placement=1)) == "equal"
    assert (
        placements.verdict(plan(1), plan(2)) == placements.verdict(plan(1), plan(1, "feasible")) == placements.UNEQUAL
    )
