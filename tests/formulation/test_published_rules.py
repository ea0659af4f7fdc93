"""The rules that TASO and FlexFlow published: read, and proved or refuted; whole files where they are at hand."""

import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from partita.formulation.substitution.rule import Rule
from partita.formulation.substitution.rule_file import load_rules, read_rules
from partita.model.errors import PartitaError
from partita.solvers.proof.verdict import Verdict
from partita.solvers.proof.verify import verify_rule

from ..solvers.counterexamples import to_torch

DATA = Path(__file__).parents[1] / "data"
WHOLE = Path(__file__).parents[3] / "shared" / "rules"


def verdicts(rules: tuple[Rule, ...]) -> list[Verdict]:
    return [verify_rule(rule) for rule in rules]


def kind(verdict: Verdict) -> str:
    if verdict.verdict != "proved":
        return verdict.verdict
    return "proved, degree 2 only" if "degree 2 only" in verdict.covers else "proved"


def run_refuted(rules: tuple[Rule, ...], found: list[Verdict]) -> int:
    """How many are refuted, each different in PyTorch too."""
    refuted = [(rule, v) for rule, v in zip(rules, found, strict=True) if v.verdict == "refuted"]
    assert all(to_torch(rule, v) > 1e-6 for rule, v in refuted)
    return len(refuted)


def test_excerpt_of_taso() -> None:
    """Grouped convolutions among them, which 99, 100, 130 and 131 are where both parts are alike."""
    rules = load_rules(DATA / "taso_rules.json")
    found = {v.name: v.covers for v in verdicts(rules)}
    assert len(found) >= 20
    assert all(covers.startswith("all sizes") for covers in found.values())
    assert found["rule 0"] == "all sizes"
    for number in (99, 100, 130, 131):
        assert "where joined parts that meet are of equal sizes" in found[f"rule {number}"]


def test_excerpt_of_flexflow() -> None:
    rules = load_rules(DATA / "flexflow_rules.json")
    found = verdicts(rules)
    kinds = {rule.name: kind(v) for rule, v in zip(rules, found, strict=True)}
    assert set(kinds.values()) == {"proved", "proved, degree 2 only", "refuted", "ill-typed"}
    assert kinds["taso_rule_0"] == "proved"
    assert kinds["taso_rule_494"] == "proved, degree 2 only"  # Add = Concat; Reduce
    assert kinds["taso_rule_420"] == "refuted"  # a fold of a concatenation adds other blocks up
    assert kinds["taso_rule_458"] == "ill-typed"  # a linear with more replicas than tasks
    assert run_refuted(rules, found) >= 5


@pytest.mark.skipif(not WHOLE.is_dir(), reason="the published files are not at hand")
def test_all_of_taso() -> None:
    rules = load_rules(WHOLE / "taso.json")
    assert Counter(map(kind, verdicts(rules))) == {"proved": 133}


@pytest.mark.skipif(not WHOLE.is_dir(), reason="the published files are not at hand")
def test_all_of_flexflow() -> None:
    """Rule 445 adds up four blocks of a concatenation of two, which holds at degree 2."""
    rules = load_rules(WHOLE / "flexflow.json")
    start = time.process_time()
    found = verdicts(rules)
    assert time.process_time() - start < 60
    assert Counter(map(kind, found)) == {
        "proved": 446,
        "proved, degree 2 only": 40,
        "ill-typed": 143,
        "refuted": 11,
    }
    assert all("degree 2 only: " in v.covers for v in found if kind(v) == "proved, degree 2 only")
    assert run_refuted(rules, found) == 11


# Files that are wrong

GOOD: dict[str, Any] = {
    "id": 7,
    "src": [{"type": "RELU", "in": [[-1, 0]], "attr": {}}],
    "dst": [{"type": "RELU", "in": [[-1, 0]], "attr": {}}],
    "out": [[[0, 0], [0, 0]]],
}


def test_good_one_is_read() -> None:
    (rule,) = read_rules(json.dumps([GOOD]))
    assert rule.name == "rule 7"
    assert verify_rule(rule).verdict == "proved"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"src": []}, "'src' is a list that is not empty"),
        ({"dst": [{"type": "FROBNICATE", "in": [[-1, 0]], "attr": {}}]}, "dst op 0: op FROBNICATE is not known"),
        ({"dst": [{"in": [[-1, 0]]}]}, "dst op 0: an op is an object with a string `type`"),
        ({"dst": [{"type": "RELU", "in": [[0, 0]], "attr": {}}]}, "dst op 0: op 0 is not an earlier one"),
        ({"dst": [{"type": "RELU", "in": [[1, 0]], "attr": {}}]}, "dst op 0: op 1 is not an earlier one"),
        ({"dst": [{"type": "RELU", "in": [[-1, 1]], "attr": {}}]}, "an input has output 0 only"),
        ({"dst": [{"type": "RELU", "in": [-1], "attr": {}}]}, r"a tensor is \[op, output\]"),
        ({"dst": [{"type": "RELU", "in": [], "attr": {}}]}, "RELU takes 1 inputs, not 0"),
        ({"dst": [{"type": "RELU", "attr": {}}]}, "RELU lacks `in`"),
        ({"dst": [{"type": "PARTITION", "in": [[-1, 0]], "attr": {}}]}, "PARTITION lacks the attribute PARALLEL_DIM"),
        ({"dst": [{"type": "RELU", "in": [[-1, 0]], "attr": {"ACTI": "x"}}]}, "`attr` maps names to whole numbers"),
        ({"dst": [{"type": "MATMUL", "in": [[-1, 0], [-2, 0]], "attr": {"ACTI": 9}}]}, "ACTI is one of"),
        ({"out": [[[0, 0], [0, 3]]]}, "op 0 has 1 outputs, so none is number 3"),
        ({"out": [[[5, 0], [0, 0]]]}, "op 5 is not an earlier one"),
        ({"out": [[0, 0]]}, r"a tensor is \[op, output\]"),
        ({"out": [[[0, 0]]]}, "an output is a pair"),
        ({"name": 3}, "the name of a rule is a string"),
    ],
)
def test_bad_rules_say_where(change: dict[str, Any], reason: str) -> None:
    with pytest.raises(PartitaError, match=f"entry 0: .*{reason}"):
        read_rules(json.dumps([GOOD | change]))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "the file is empty"),
        ("  \n", "the file is empty"),
        ("[]", "found none"),
        ("{}", "lacks 'name'"),
        ("[1]", "a rule is an object, not 1"),
        ("[{", "line 1: not JSON"),
        ('{"rules": 3}', "expected a list of rules"),
        (json.dumps([GOOD, GOOD]), "entry 1: a second rule is called"),
    ],
)
def test_bad_files_say_why(text: str, reason: str) -> None:
    with pytest.raises(PartitaError, match=reason):
        read_rules(text)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(PartitaError, match="cannot read rules from"):
        load_rules(tmp_path / "none.json")
