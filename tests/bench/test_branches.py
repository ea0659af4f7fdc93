"""The bench of branches says what side by side gains."""

from __future__ import annotations

import pytest

from partita.bench import bench
from partita.model.errors import PartitaError


def test_a_small_twin_gains() -> None:
    (row,) = bench("branches", small=True, only=("candle",))["rows"]
    assert row["bundles"] == 1 and row["gap"] == 0 and row["gap_without"] == 0
    assert row["step_ms"] < row["without_ms"] and 0 < row["gain"] < 1


def test_a_name_that_no_case_has_is_refused() -> None:
    with pytest.raises(PartitaError, match="no case has nothing such in its name"):
        bench("branches", only=("nothing such",))
