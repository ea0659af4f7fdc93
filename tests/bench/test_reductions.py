"""The growth of the search for reduction programs, and P²'s results by name."""

from __future__ import annotations

import pytest

from partita.bench import bench, text
from partita.bench.results import BY_LEVELS, FOUR_NODES, NOTES, results, totals
from partita.model.errors import PartitaError


def test_the_optimum_is_no_worse_than_the_best_enumerated_program() -> None:
    result = bench("reductions", small=True)
    for row in result["rows"]:
        assert row["optimal_ms"] <= row["enumerated_ms"] <= row["flat_ms"]
        assert row["programs"] == {1: 3, 2: 47, 3: 825}[row["levels"]]
        assert row["levels"] < 3 or row["optimal_s"] < row["enumerate_s"]
    assert text(result).startswith("$ partita bench reductions --small")


def test_the_paper_s_results_are_there_by_name() -> None:
    """Every cell of tables 3 and 4 once."""
    names = [one.name for one in results()]
    assert len(set(names)) == len(names)
    assert {name[:8] for name in names} == {*(f"Result {i}" for i in range(1, 6)), "Section "}
    cells = [name for name in names if name.startswith("Result 1") and name.endswith("all-reduce, s")]
    assert len(cells) == 11 * 2 * 2
    for letter in ("F1", "F2", "G1", "G2", "H1", "H2", "I1", "I2", "J1", "K1", "K2", "L1"):
        assert sum(f": {letter}, " in name and "by axes" not in name for name in names) == 3
    assert {one.why for one in results()} <= {*NOTES, ""}


def test_rows_differ_for_a_reason_that_is_told() -> None:
    result = bench("results", only=("Result 4", "E3"))
    rows = {row["what"]: row for row in result["rows"]}
    assert result["open"] == 0 and result["explained"] + result["within_15_percent"] == len(rows)
    for row in rows.values():
        assert (row["note"] is not None) == (abs(row["ratio"] - 1) > 0.15)
        assert row["ratio"] == row["ours"] / row["paper"]
    # By axes the programs gain what was measured, or as little.
    assert all(abs(row["ratio"] - 1) < 0.15 for what, row in rows.items() if what[2] == "," and "by axes" in what)
    assert rows["H1, speed-up"]["ours"] > 1.7 and rows["H1, speed-up, by axes"]["ours"] < 1.02
    assert rows["H1 by H2, best programs"]["ours"] == pytest.approx(1.0)
    printed = text(result)
    assert all(f"{NOTES.index(note) + 1}. {note}" in printed for note in (BY_LEVELS, FOUR_NODES))


def test_a_row_without_a_reason_is_open() -> None:
    assert totals([{"ratio": 1.2, "note": None}, {"ratio": 1.2, "note": 1}, {"ratio": 1.1, "note": None}]) == {
        "within_15_percent": 1,
        "explained": 1,
        "open": 1,
    }


@pytest.mark.parametrize("name", ["reductions", "results"])
def test_no_case_left_is_refused(name: str) -> None:
    with pytest.raises(PartitaError, match="nothing such"):
        bench(name, only=("nothing such",))
