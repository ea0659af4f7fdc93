"""Cases of the whole decision run as command lines, and rows say what came of them."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from partita.bench import bench
from partita.bench.whole import CASES, SMALL, Case, measure, row, totals
from partita.model.machine.machine import Machine

from ..levels import some


def test_the_small_cases_are_planned_and_proved() -> None:
    names = some([case.name for case in SMALL], 2)
    result = bench("whole", small=True, only=names)
    rows = result["rows"]
    assert [row["case"] for row in rows] == names
    assert (result["cases"], result["planned"], result["reached"]) == (len(names),) * 3
    for found in rows:
        assert 0 < found["bound_ms"] <= found["objective_ms"] and found["gap"] <= 0.01
        assert found["capture_s"] + found["formulate_s"] + found["solve_s"] <= found["total_s"]
        assert 0 < found["memory_gib"] <= found["of_gib"]
        assert 0 < found["asked"] <= found["configurations"] and found["solved"] > 0 == found["left_out"]
    assert json.loads(json.dumps(result, allow_nan=False)) == result
    baseline = json.loads((Path(__file__).parents[1] / "data" / "baseline.json").read_text())["benches"]["whole"]
    for found, wanted in zip(rows, some(baseline, 2), strict=True):
        assert {key: found[key] for key in wanted} == wanted


def test_the_cases_are_those_of_the_papers() -> None:
    assert Counter(case.machine for case in CASES) == {"summit": 28, "v100-32gb": 17, "dgx-h100": 1}
    assert len({case.name for case in CASES}) == len(CASES)
    for case in CASES:
        assert len(case.hierarchy) == len(Machine.load(case.machine, nodes=1).hierarchy)


@pytest.mark.parametrize(
    ("case", "status"),
    [
        (replace(SMALL[1], seconds=0.001), "unknown"),
        (replace(SMALL[0], hierarchy=(4,)), "--hierarchy has 1 levels, machine summit has 3"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_what_has_no_plan_is_a_row_that_says_so(case: Case, status: str) -> None:
    found = measure(case)
    assert found["status"] == status and found["total_s"] > 0
    names = ("objective_ms", "gap", "stages", "mesh", "k", "recompute", "memory_gib")
    assert [found[name] for name in names] == [None] * len(names)
    assert totals([found]) == {"cases": 1, "planned": 0, "reached": 0}


def test_a_pipeline_is_told_in_short() -> None:
    told = {
        "status": "feasible",
        "objective_ns": 2_000_000,
        "bound_ns": 1_990_000,
        "gap": 0.005,
        "mesh": {"pipeline": 2, "axis0": 4, "data": 2},
        "micro_batches": 8,
        "recompute": {"layers.0": "full", "layers.1": "selective", "layers.2": "full"},
        "pipeline": {"stages": 4, "chunks": 2},
        "memory_bytes": 2**30,
        "capacity_bytes": 2**31,
        "seconds": {"capture": 1.0, "formulate": 2.0, "solve": 3.0},
        "space": {"configurations": 5, "configurations_asked": 3, "networks_solved": 7, "left_out": 1},
    }
    assert row(told) == {
        "status": "feasible",
        "objective_ms": 2.0,
        "bound_ms": 1.99,
        "gap": 0.005,
        "stages": 4,
        "mesh": "4x2",
        "k": 8,
        "recompute": "2 full, 1 selective",
        "memory_gib": 1.0,
        "of_gib": 2.0,
        "configurations": 5,
        "asked": 3,
        "solved": 7,
        "left_out": 1,
        "capture_s": 1.0,
        "formulate_s": 2.0,
        "solve_s": 3.0,
    }
