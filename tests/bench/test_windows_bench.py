"""The search with hidden traffic beside the additive one, on a small twin."""

from __future__ import annotations

from partita.bench import bench


def test_hiding_is_never_worse_and_both_end_within_the_gap() -> None:
    result = bench("windows", small=True)
    assert [row["memory"] for row in result["rows"]] == ["free", "60%"]
    for row in result["rows"]:
        assert not row["why"] and row["gap"] <= 0.01 and row["seconds"] > 0 < row["additive_s"]
        assert row["additive_ns"] is None or row["additive_ns"] >= row["step_ns"] * (1 - row["gap"])
    assert (result["cases"], result["within_gap"], result["below"]) == (2, 2, 0)
