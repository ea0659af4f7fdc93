"""The bench of long sequences plans every kind of attention."""

from __future__ import annotations

import pytest

from partita.bench import bench
from partita.model.errors import PartitaError


def test_a_small_twin() -> None:
    rows = bench("sequence", small=True)["rows"]
    assert [row["attention"] for row in rows] == ["gathered keys", "ring", "heads", "free"]
    memory = {row["attention"]: row["memory_gib"] for row in rows if row["status"] == "optimal"}
    steps = {row["attention"]: row["step_ms"] for row in rows if row["status"] == "optimal"}
    assert memory["ring"] < memory["gathered keys"]
    assert steps["free"] == min(steps.values())


def test_a_kind_that_is_not_there_is_refused() -> None:
    with pytest.raises(PartitaError, match="no kind of attention"):
        bench("sequence", small=True, only=("nothing such",))
