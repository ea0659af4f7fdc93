"""Objectives, bounds and plans stay what they were at commit 3f1c9f5 (`tests/data/baseline.json`).

Since then what depends on no input costs no time in a step, which took 5 us off most steps of small models.
And weight traffic hides, which lowered most objectives and raised none.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from partita.bench import bench

Run = Callable[..., tuple[int, str, str]]
ONLY = {"zoo": ("mlp", "bert", "dlrm")}
"""One twin of a family where others are the same; those that take longer are checked by hand."""
SLOW = (
    "gpt2 --small --hierarchy 2x2 --rewrite --stages 2",
    "gpt2 --small --hierarchy 2x2 --dtype bfloat16,float32",
    "gpt2 --small --hierarchy 2x2 --batch 8",
    "gpt2 --small --hierarchy 2x2 --batch 8 --stages 2 --schedule gpipe",
    "gpt2 --small --machine cpu",
    "mbart-4.7b --small --hierarchy 2x2 --no-overlap",
)
"""Plans that take most of a minute here, and are checked by hand."""
BASELINE = json.loads((Path(__file__).parent / "data" / "baseline.json").read_text())


@pytest.mark.parametrize("name", [name for name in BASELINE["benches"] if name != "whole"])  # tests/bench/test_whole.py
def test_small_benches_give_what_they_gave(name: str) -> None:
    found = {row.get("case", row.get("model")): row for row in bench(name, True, ONLY.get(name, ()))["rows"]}
    wanted = {row.get("case", row.get("model")): row for row in BASELINE["benches"][name]}
    for case, row in found.items():
        assert {key: row[key] for key in wanted[case]} == wanted[case]
    assert len(found) == len(ONLY.get(name, wanted))


PLANS = [row for row in BASELINE["plans"] if row["plan"] not in SLOW]


@pytest.mark.parametrize("wanted", PLANS, ids=lambda row: row["plan"])
def test_command_lines_plan_what_they_planned(partita: Run, wanted: dict[str, Any]) -> None:
    code, out, _ = partita("plan", *wanted["plan"].split(), "--cache", "none", "--json")
    found = json.loads(out)
    found["pipeline"] = {key: (found.get("pipeline") or {}).get(key) for key in wanted.get("pipeline", {})}
    assert code == 0 and {key: found[key] for key in wanted if key not in ("plan", "exit")} == {
        key: value for key, value in wanted.items() if key not in ("plan", "exit")
    }
