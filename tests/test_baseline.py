"""Objectives, bounds and plans stay what they were at commit 3f1c9f5 (`tests/data/baseline.json`).

Since then what depends on no input costs no time in a step, which took 5 us off most steps of small models.
And weight traffic hides, which lowered most objectives and raised none; on the preset cpu it hides no more.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from partita.bench import bench

from .levels import exhaustive, some

Run = Callable[..., tuple[int, str, str]]
ONLY = {"zoo": ("mlp", "bert", "dlrm")}
"""One twin of a family where others are the same."""
BASELINE = json.loads((Path(__file__).parent / "data" / "baseline.json").read_text())


@exhaustive
@pytest.mark.parametrize("name", [name for name in BASELINE["benches"] if name != "whole"])  # tests/bench/test_whole.py
def test_small_benches_give_what_they_gave(name: str) -> None:
    found = {row.get("case", row.get("model")): row for row in bench(name, True, ONLY.get(name, ()))["rows"]}
    wanted = {row.get("case", row.get("model")): row for row in BASELINE["benches"][name]}
    for case, row in found.items():
        assert {key: row[key] for key in wanted[case]} == wanted[case]
    assert len(found) == len(ONLY.get(name, wanted))


@pytest.mark.parametrize("wanted", some(BASELINE["plans"], 6), ids=lambda row: row["plan"])
def test_command_lines_plan_what_they_planned(partita: Run, wanted: dict[str, Any]) -> None:
    code, out, _ = partita("plan", *wanted["plan"].split(), "--cache", "none", "--json")
    found = json.loads(out)
    found["pipeline"] = {key: (found.get("pipeline") or {}).get(key) for key in wanted.get("pipeline", {})}
    assert code == 0 and {key: found[key] for key in wanted if key not in ("plan", "exit")} == {
        key: value for key, value in wanted.items() if key not in ("plan", "exit")
    }
