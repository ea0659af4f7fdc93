"""The benchmark of spread tables, on small twins."""

from __future__ import annotations

from partita.bench import bench, text


def test_spread() -> None:
    result = bench("spread", small=True, only=("xdl",))
    assert [row["case"] for row in result["rows"]] == ["xdl, 4", "xdl, 6"]
    for row in result["rows"]:
        assert row["gap"] <= 0.01
        assert row["columns, spread"] <= row["columns, round-robin"]
        assert row["GiB, spread"] < row["GiB, round-robin"] and row["GiB, spread"] < row["GiB, greedy"]
        assert row["step ms, chosen"] <= row["step ms, expert"]
    assert "Predicted step" in text(result)
