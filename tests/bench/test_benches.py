"""The registry of benchmarks: what can be run is there, and documented."""

from __future__ import annotations

import ast
from pathlib import Path

import partita.bench as benches
from partita.bench import BENCHES, OPTIONS

ROOT = Path(__file__).parents[2]


def test_every_benchmark_is_registered() -> None:
    found = set()
    for file in sorted((ROOT / "bench").glob("*.py")):
        names = {node.name for node in ast.parse(file.read_text()).body if isinstance(node, ast.FunctionDef)}
        if "run" in names and file.stem not in ("emulated", "ranks"):
            found.add(file.stem)
    assert found == set(BENCHES)


def test_every_benchmark_is_documented() -> None:
    section = (ROOT / "docs" / "cli.md").read_text().partition("## partita bench")[2]
    assert [name for name in BENCHES if f"| `{name}`" not in section] == []


def test_options_belong_to_benchmarks() -> None:
    assert {owner for owner, _, _ in OPTIONS.values()} <= set(BENCHES)
    assert benches.BENCHES is BENCHES
