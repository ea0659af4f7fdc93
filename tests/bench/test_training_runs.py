"""Statistics of predicted training runs, on rows made by hand, and files that hold no runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from partita.bench.training_runs import constant_mfu_error, megatron, summary, sweep, totals
from partita.model.errors import PartitaError


def row(predicted: float, measured: float | None, **given: Any) -> dict[str, Any]:
    ratio = None if measured is None else predicted / measured
    made = {"model": "1B", "tier": "A", "gpus": 8, "samples": 4, "predicted_gib": 10.0, "measured_gib": 10.0}
    made |= {"run": "r", "predicted_s": predicted, "measured_s": measured, "ratio": ratio, "fits": True, "flops": 1.0}
    return made | given


ROWS = [
    row(1.0, 1.0),
    row(2.2, 2.0, measured_gib=20.0),
    row(0.9, 1.2),  # predicted to be the fastest, a fifth slower than the fastest
    row(4.0, 4.0, fits=False),
    row(9.0, None, measured_gib=None, fits=False),
    row(9.0, None, measured_gib=None),
]


def test_totals_are_what_they_say() -> None:
    found = totals(ROWS)
    assert found["runs"] == 4 and found["top1_regret"] == pytest.approx(0.2)
    assert found["group_spearman"] == found["spearman"] == pytest.approx(0.8)
    assert found["median_abs_error"] == pytest.approx(0.05) and found["median_ratio"] == pytest.approx(1.0)
    assert found["memory_within_15"] == 0.75 and found["oom_caught"] == 0.5 and found["oom_false"] == 0.25


def test_groups_of_fewer_than_four_runs_say_nothing() -> None:
    found = totals(ROWS[:3])
    assert found["group_spearman"] is None and found["top1_regret"] is None and found["oom_caught"] is None


def test_constant_mfu_is_exact_where_time_follows_flops() -> None:
    assert constant_mfu_error([row(1.0, 2.0, flops=4.0), row(1.0, 3.0, flops=6.0)]) == 0.0


def test_the_summary_has_tiers_and_models() -> None:
    assert [own["rows"] for own in summary(ROWS)] == ["model 1B", "tier A"]


@pytest.mark.parametrize(
    ("data", "words"),
    [([], "has no 'ultrascale_sweep'"), ({"ultrascale_sweep": {}}, "'about' is missing")],
)
def test_files_without_runs_are_refused(tmp_path: Path, data: Any, words: str) -> None:
    file = tmp_path / "runs.json"
    file.write_text(json.dumps(data))
    with pytest.raises(PartitaError, match=words):
        sweep(file)
    with pytest.raises(PartitaError, match="has no 'megatron_table1'"):
        megatron(file)
