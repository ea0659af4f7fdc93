"""The bench of RVD search: what it counts, and that the small one runs."""

from __future__ import annotations

from partita.bench import bench
from partita.bench.rvd import Scale, scaled
from partita.model.machine.machine import Machine


def test_small() -> None:
    result = bench("rvd", small=True, only=("table 3", "random", "left"))
    assert result["cases"] == result["equal_to_exact"] == 6 + 4 and result["worse_than_p2p"] == 0
    assert 0 < result["max_search_ms"] == max(row["search_ms"] or 0 for row in result["rows"])
    assert {row["path"] for row in result["rows"]} >= {"reduce-scatter, reduce-scatter, RD-gather"}
    (figure_17,) = (table for title, table in result["summary"].items() if title.startswith("Figure 17"))
    assert figure_17 == [{"cases": 6, "faster": 4, "at most": figure_17[0]["at most"]}]


def test_one_collective_from_one_device_to_many_and_back() -> None:
    result = bench("rvd", small=True, only=("one",))
    assert [row["path"] for row in result["rows"]] == ["broadcast", "reduce"] * 2
    assert result["cases"] == result["equal_to_exact"] == 4
    assert all(row["rvd_ms"] < row["p2p_ms"] for row in result["rows"])


def test_each_way_is_faster_than_the_one_before() -> None:
    """Where tensor parallelism spans two servers, sends take many times as long."""
    machine, second = Machine.load("v100-32gb", nodes=4), 10**9
    wide, narrow = (scaled(Scale("right", 2, tensor), second, machine) for tensor in (16, 2))
    for row in (wide, narrow):
        assert row["p2p_ms"] >= row["intra_ms"] >= row["rvd_ms"]
    assert wide["p2p_ms"] > 10 * wide["intra_ms"] and narrow["p2p_ms"] < 2 * narrow["intra_ms"]
