"""Objectives, bounds and plans stay what they were at commit 3f1c9f5 (`tests/data/baseline.json`)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from partita.bench import bench

Run = Callable[..., tuple[int, str, str]]
BASELINE = json.loads((Path(__file__).parent / "data" / "baseline.json").read_text())


@pytest.mark.parametrize("name", list(BASELINE["benches"]))
def test_small_benches_give_what_they_gave(name: str) -> None:
    rows = {row.get("case", row.get("model")): row for row in bench(name, small=True)["rows"]}
    for wanted in BASELINE["benches"][name]:
        found = rows[wanted.get("case", wanted.get("model"))]
        assert {key: found[key] for key in wanted} == wanted


@pytest.mark.parametrize("wanted", BASELINE["plans"], ids=lambda row: row["plan"])
def test_command_lines_plan_what_they_planned(partita: Run, wanted: dict[str, Any]) -> None:
    code, out, _ = partita("plan", *wanted["plan"].split(), "--cache", "none", "--json")
    found = json.loads(out)
    found["pipeline"] = {key: (found.get("pipeline") or {}).get(key) for key in wanted.get("pipeline", {})}
    assert code == 0 and {key: found[key] for key in wanted if key not in ("plan", "exit")} == {
        key: value for key, value in wanted.items() if key not in ("plan", "exit")
    }
