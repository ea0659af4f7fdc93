"""The benches of rule generation and of what the shipped rules cover."""

from __future__ import annotations

from pathlib import Path

import pytest

from partita.bench import coverage, generation
from partita.formulation.substitution.rule_file import write_rules
from partita.formulation.substitution.text import parse_rule
from partita.model.errors import PartitaError


def test_counts_go_down_with_every_step_and_add_up() -> None:
    rows = generation.run(True, ("attention", "images"), lambda words: None)
    assert [row["set"] for row in rows] == ["images", "attention", "all"]
    for row in rows:
        steps = [row[key] for key in ("pairs", "common", "direct", "renamed", "general", "basic", "proved")]
        assert steps == sorted(steps, reverse=True) and row["proved"] > 0
    assert rows[-1]["proved"] == rows[0]["proved"] + rows[1]["proved"]
    (table,) = generation.summary(rows).values()
    assert [line["paper"] for line in table] == [743, 651]
    assert sum(line["here"] for line in table) == rows[-1]["general"]


COVERED = """passes:
    x[n, m]
    y = relu(relu(partition(x, dim=0, degree=2)))
  =>
    y = partition(relu(relu(x)), dim=0, degree=2)
"""
FALSE = COVERED.replace("passes", "false").replace("y = partition(relu(relu(x))", "y = partition(relu(x)")


def test_rules_that_follow_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "mine.txt"
    path.write_text(write_rules([parse_rule(COVERED), parse_rule(FALSE)]))
    (row,) = coverage.run(False, (), lambda words: None, [str(path)])
    assert {key: row[key] for key in ("file", "rules", "typed", "apart", "covered", "missed")} == {
        "file": "mine",
        "rules": 2,
        "typed": 2,
        "apart": 0,
        "covered": 1,
        "missed": 1,
    }


def test_without_files_there_is_nothing_to_cover() -> None:
    with pytest.raises(PartitaError, match="needs files of rules"):
        coverage.run(False, (), lambda words: None)
