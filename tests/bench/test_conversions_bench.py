"""The bench of planners' plans as space-time plans."""

from __future__ import annotations

from partita.bench import bench


def test_small_cases() -> None:
    found = bench("conversions", small=True)
    assert (found["converted"], found["of"], found["verified"]) == (2, 2, 2)
    data, pipeline = found["rows"]
    assert data["step"] == pipeline["step"] == 1
