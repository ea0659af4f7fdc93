"""Benchmarks run, say what they ran on, and refuse what they do not know."""

from __future__ import annotations

import json

import pytest

from partita.bench import BENCHES, bench, text
from partita.bench.plan import CASES, SMALL
from partita.model.errors import PartitaError


def test_the_small_cases_are_planned_to_the_end() -> None:
    result = bench("plan", small=True)
    assert [row["case"] for row in result["rows"]] == [case.name for case in SMALL]
    *small, llama = result["rows"]
    assert all(row["status"] == "optimal" and row["gap"] == 0 for row in small)
    assert llama["gap"] < 1e-3  # its lists of streams grow too long
    assert all(0 < row["memory_gib"] <= row["of_gib"] and row["solve_s"] <= row["total_s"] for row in result["rows"])
    assert {"cores", "memory_gib", "python", "torch", "numpy", "numba", "ortools"} <= result["hardware"].keys()
    assert json.loads(json.dumps(result, allow_nan=False)) == result
    shown = text(result).splitlines()
    assert shown[0] == "$ partita bench plan --small" and len(shown) == 4 + len(SMALL)


def test_cases_have_names_of_their_own() -> None:
    assert len({case.name for case in (*CASES, *SMALL)}) == len(CASES) + len(SMALL)


@pytest.mark.parametrize(("name", "only"), [("nothing", ()), ("plan", ("no such case",))])
def test_what_is_not_there_is_refused(name: str, only: tuple[str, ...]) -> None:
    with pytest.raises(PartitaError, match=r"no (benchmark|case)"):
        bench(name, small=True, only=only)
    assert "plan" in BENCHES
