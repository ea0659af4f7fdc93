"""The growth of the search for reduction programs, and P²'s results by name."""

from __future__ import annotations

import pytest

from partita.bench import bench, text
from partita.bench.results import RESULTS
from partita.model.errors import PartitaError


def test_the_optimum_is_no_worse_than_the_best_enumerated_program() -> None:
    result = bench("reductions", small=True)
    for row in result["rows"]:
        assert row["optimal_ms"] <= row["enumerated_ms"] <= row["flat_ms"]
        assert row["programs"] == {1: 3, 2: 47, 3: 825}[row["levels"]]
        assert row["levels"] < 3 or row["optimal_s"] < row["enumerate_s"]
    assert text(result).startswith("$ partita bench reductions --small")


def test_the_paper_s_results_are_there_by_name_and_predicted_in_direction() -> None:
    rows = bench("results")["rows"]
    assert [row["result"].split(":")[0] for row in rows] == [result.name.split(":")[0] for result in RESULTS]
    assert {row["result"][:8] for row in rows} == {f"Result {i}" for i in range(1, 6)}
    ours = {(row["result"][:8], row["what"]): row["ours"] for row in rows}
    assert ours["Result 1", "slowest by fastest matrix, the most"] > 100
    assert ours["Result 2", "programs of an experiment, the most"] == 235
    assert ours["Result 3", "share of experiments, nccl-ring"] > 0.9
    assert ours["Result 5", "speed-up, the most"] > ours["Result 5", "speed-up, mean"] > 1.1


@pytest.mark.parametrize("name", ["reductions", "results"])
def test_no_case_left_is_refused(name: str) -> None:
    with pytest.raises(PartitaError, match="nothing such"):
        bench(name, only=("nothing such",))
