"""The bench of schedules: small cases, proved, none worse than a named schedule."""

from __future__ import annotations

import pytest

from partita.bench import bench, text
from partita.model.errors import PartitaError


def test_small_cases_are_proved_and_none_is_worse_than_what_has_a_name() -> None:
    result = bench("schedules", small=True)
    rows = result["rows"]
    assert result["cases"] == len(rows) > 40
    unproved = [row for row in rows if not row["proved"]]
    assert [row["case"] for row in unproved] == ["steady embedding, twice the memory, 2 stages"]
    assert (result["proved"], result["worse_than_named"]) == (len(rows) - 1, 0)
    assert result["better_than_named"] >= 8
    for row in rows:
        assert row["bound_ns"] <= row["found_ns"] <= row["named_ns"] and row["seconds"] >= 0, row
        assert row["proved"] == (row["bound_ns"] == row["found_ns"])
        if row["case"].startswith(("1f1b", "split", "two chunks")):
            assert row["found_ns"] == row["named_ns"]
    counts = f"cases {len(rows)}, proved {len(rows) - 1}, worse_than_named 0"
    assert text(result).splitlines()[-1].startswith(counts)


def test_no_case_left_is_refused() -> None:
    with pytest.raises(PartitaError, match="nothing such"):
        bench("schedules", only=("nothing such",))
