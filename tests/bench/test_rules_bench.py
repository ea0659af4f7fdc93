"""The bench of generated rules beside the hand-written ones."""

from __future__ import annotations

import json

from partita.bench import rules
from partita.formulation.rewriting.rules import planner_rules
from partita.formulation.substitution.rule_file import basis


def test_a_small_model_by_all_rules() -> None:
    (row,) = rules.run(small=True, only=("xdl",), tell=lambda words: None)
    assert row["all_ms"] <= row["hand_written_ms"] and row["gap"] == 0
    assert row["taken"] == "fuse linear bias relu" and row["matched"] > 1
    kinds = rules.summary([row])
    assert [each["given"] for each in kinds] == [len(planner_rules()), 410, len(basis()) - 410]
    assert kinds[0]["taken"] == 1 and kinds[1]["matched"] > 0 == kinds[2]["matched"]
    assert json.loads(json.dumps(row)) == row


def test_a_form_is_counted_as_its_rule() -> None:
    name = basis()[0].name
    assert rules.origins([f"{name}, reversed, of linears", name, "fuse linear relu"]) == {name, "fuse linear relu"}
