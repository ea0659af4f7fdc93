"""Pictures of predicted beside measured seconds have a point for every row, and are the same for the same rows."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest

from partita.bench import text
from partita.bench.profiles import MISSING
from partita.bench.truth import summary, totals, write
from partita.bench.truth_pictures import errors, pictures, reductions, steps


def run(tier: str, predicted: float, measured: float | None, flops: float = 1.0) -> dict[str, Any]:
    return {"run": "r", "model": "m", "tier": tier, "gpus": 8, "samples": 8, "predicted_s": predicted} | {
        "measured_s": measured,
        "ratio": None if measured is None else predicted / measured,
        "predicted_gib": 1.0,
        "measured_gib": None,
        "fits": True,
        "flops": flops,
    }


def reduction(measured: float, best: float | None) -> dict[str, Any]:
    row = {"system": "2 nodes each with 16 A100", "algorithm": "ring", "predicted_s": 2.0, "measured_s": measured}
    return row | {"best_predicted_s": 1.0, "best_measured_s": best}


RUNS = [run("A", 1.0, 1.0), run("A", 2.0, 1.6, 2.0), run("C", 3.0, 4.0, 8.0), run("megatron", 9.0, 10.0)]
ROWS = [*RUNS, run("failed", 5.0, None), reduction(2.2, 1.1), reduction(3.0, None)]


def test_what_is_drawn() -> None:
    assert steps(ROWS) == {"megatron": [(10.0, 9.0)], "tier A": [(1.0, 1.0), (1.6, 2.0)], "tier C": [(4.0, 3.0)]}
    assert reductions(ROWS) == {
        "A100 ring, all-reduce": [(2.2, 2.0), (3.0, 2.0)],
        "A100 ring, cheapest program": [(1.1, 1.0)],
    }
    found = errors(ROWS)
    assert [len(own) for own in found.values()] == [1, 1, 3, 3]
    assert found["sweep, predicted"] == pytest.approx([0.0, 0.25, 0.25])
    assert found["sweep, constant MFU"] == pytest.approx([0.0, 0.2, 0.6])  # 1, 1.25 and 2 FLOPs a second, by 1.25


def test_a_point_for_every_row() -> None:
    pytest.importorskip("matplotlib")
    files = pictures(ROWS)
    assert set(files) == {"training-steps.svg", "training-errors.svg", "reductions.svg"}
    for name, points in (("training-steps.svg", steps(ROWS)), ("reductions.svg", reductions(ROWS))):
        for series, own in points.items():
            (drawn,) = re.findall(rf'<g id="points of {series}">(.*?)</g>\n  *</g>', files[name].decode(), re.DOTALL)
            assert drawn.count("<use ") == len(own)
    assert files == pictures(ROWS)
    assert set(pictures(RUNS)) == {"training-steps.svg", "training-errors.svg"}


def test_without_matplotlib_a_note_says_what_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert write({"rows": ROWS}, tmp_path / "pictures") == [MISSING] and not (tmp_path / "pictures").exists()


def test_rows_of_several_kinds_are_several_tables() -> None:
    result = {"command": "partita bench truth", "hardware": {}, "rows": [{"a": 1}, {"a": 2}, {"b": 3}]}
    assert [line for line in text(result).splitlines() if line in ("a", "b")] == ["a", "b"]


def test_each_file_of_runs_has_totals_of_its_own() -> None:
    found = summary(RUNS)
    assert isinstance(found, dict)
    assert [own["rows"] for own in found["Runs of the sweep"]] == ["model m", "tier A", "tier C"]
    assert [own["runs"] for own in found["All training runs of a file"]] == [3, 1]
    assert totals(RUNS) == {} and totals(RUNS[:3])["runs"] == 3
