"""`partita rules`, `plan --rewrite` and `show --pcg`: verdicts, files, exit codes and refusals."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from partita.formulation.rewriting.rules import planner_rules
from partita.formulation.substitution.rule_file import basis
from partita.formulation.substitution.text import write_rule

Run = Callable[..., tuple[int, str, str]]

RIGHT = """right:
    x[b, k], w[k, n]
    y = matmul(x, w)
  =>
    y = combine(matmul(replicate(x, degree=d), partition(w, dim=1, degree=d)), dim=1, degree=d)
  where d divides n
"""
WRONG = """wrong:
    x[n, m]
    y = reduce(replicate(x, degree=d), degree=d)
  =>
    y = x
"""
APART = """apart:
    x[b, i], w[o, i], e[o]
    y = relu(linear(x, w, e))
  =>
    y = relu(linear(x, w))
"""


@pytest.fixture
def rules(tmp_path: Path) -> Callable[..., str]:
    """The path of a file with some rules."""

    def write(*texts: str, name: str = "rules.txt") -> str:
        (tmp_path / name).write_text("\n".join(texts))
        return str(tmp_path / name)

    return write


def test_verdicts_as_json(partita: Run, rules: Callable[..., str]) -> None:
    code, out, _ = partita("rules", "verify", rules(RIGHT, WRONG), "--json")
    found = json.loads(out)
    assert code == 1
    assert [found[key] for key in ("rules", "proved", "refuted", "ill_typed", "unknown")] == [2, 1, 1, 0, 0]
    right, wrong = found["verdicts"]
    assert (right["name"], right["verdict"], right["counterexample"]) == ("right", "proved", None)
    assert right["covers"] == "all sizes, all degrees, where d divides n"
    assert (wrong["name"], wrong["verdict"]) == ("wrong", "refuted")
    assert wrong["counterexample"]["source"] != wrong["counterexample"]["target"]


def test_all_proved_is_exit_code_0(partita: Run, rules: Callable[..., str]) -> None:
    code, out, _ = partita("rules", "verify", rules(RIGHT))
    assert code == 0 and "proved     right: all sizes, all degrees" in out and "1 rules, 1 proved" in out


def test_a_published_rule_keeps_its_id(partita: Run, rules: Callable[..., str]) -> None:
    relu = [{"type": "RELU", "in": [[-1, 0]], "attr": {}}, {"type": "RELU", "in": [[0, 0]], "attr": {}}]
    published = {"id": 7, "src": relu, "dst": relu[:1], "out": [[[1, 0], [0, 0]]]}
    code, out, _ = partita("rules", "verify", rules(json.dumps([published]), name="published.json"), "--json")
    (verdict,) = json.loads(out)["verdicts"]
    assert (verdict["id"], verdict["verdict"], code) == (7, "proved", 0)


def test_listed_rules_can_be_read_again(partita: Run, rules: Callable[..., str]) -> None:
    _, text, _ = partita("rules", "list", rules(RIGHT, WRONG))
    code, again, _ = partita("rules", "list", rules(text, name="again.txt"))
    assert code == 0 and again == text
    _, out, _ = partita("rules", "list", rules(RIGHT, WRONG), "--json")
    code, again, _ = partita("rules", "list", rules(json.dumps(json.loads(out)["list"]), name="again.json"))
    assert code == 0 and again == text


def test_all_shipped_rules_are_listed(partita: Run) -> None:
    code, out, _ = partita("rules", "list", "--json")
    found = json.loads(out)
    assert code == 0 and found["rules"] == len(found["names"]) == len(found["list"]) > 700
    assert "fuse linear relu" in found["names"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x = y", "line 1"),
        ("", "empty"),
        (RIGHT.replace("matmul(x, w)", "matmul(x, v)"), "v"),
        (RIGHT.replace("matmul", "nonsense"), "nonsense"),
        (RIGHT.replace("matmul", "matmull"), "line 3, rule 'right': unknown operator 'matmull'; did you mean matmul?"),
        (WRONG.replace("replicate(x, degree=d)", "softmax(x, axis=1)"), "softmax has no attribute axis; it takes dim"),
        (WRONG.replace("degree=d), degree=d)", "degree=d), degree=d"), "line 3, rule 'wrong': expected `,`"),
        (RIGHT.replace("  =>\n", ""), "line"),
    ],
    ids=[
        *(
            "no name",
            "empty",
            "no such input",
            "no such operator",
            "misspelt",
            "no such attribute",
            "open",
            "no target",
        ),
    ],
)
def test_malformed_files_are_bad_input(partita: Run, rules: Callable[..., str], text: str, words: str) -> None:
    code, out, err = partita("rules", "verify", rules(text), "--json")
    assert (code, out) == (2, "") and words in err and "Traceback" not in err


def test_what_cannot_be_written_is_told_before_generating(partita: Run, tmp_path: Path) -> None:
    code, _, err = partita("rules", "generate", str(tmp_path))
    assert code == 2 and str(tmp_path) in err


# Planning with rewritings


def test_plan_with_rewritings(partita: Run) -> None:
    options = ["plan", "mlp", "--small", "--hierarchy", "2", "--json"]
    plain = json.loads(partita(*options)[1])
    code, out, _ = partita(*options, "--rewrite")
    found = json.loads(out)
    assert code == 0 and found["status"] == "optimal" and found["gap"] == 0
    assert found["objective_ns"] < plain["objective_ns"] and plain["rewritten"] == []
    assert {(change["operator"], change["was"]) for change in found["rewritten"]} == {("linear_relu", "relu")}
    assert found["space"]["rewritings"]["ways"] > 0 and found["seconds"]["rewrite"] >= 0


def test_limits_of_rewriting_are_said(partita: Run) -> None:
    options = ["plan", "mlp", "--small", "--hierarchy", "2", "--rewrite", "--json"]
    assert not json.loads(partita(*options)[1])["space"]["limits_hit"]
    found = json.loads(partita(*options, "--rewrite-nodes", "1")[1])
    assert found["space"]["limits_hit"] == ["rewriting: nodes"] and found["status"] == "optimal"


def test_only_proved_rules_rewrite(partita: Run, rules: Callable[..., str]) -> None:
    options = ["plan", "mlp", "--small", "--hierarchy", "2", "--rules"]
    code, out, err = partita(*options, rules(APART))
    assert (code, out) == (2, "") and "apart" in err and "not proved" in err
    code, _, err = partita(*options, rules(RIGHT))
    assert code == 2 and "layouts" in err  # parallel operators are no rewritings


def test_generated_rules_rewrite_too(partita: Run) -> None:
    """The plan is at least as good as by the hand-written rules; the report has a search for each."""
    options = ["plan", "dlrm", "--small", "--hierarchy", "2", "--json"]
    code, out, _ = partita(*options, "--rewrite", "all")
    found = json.loads(out)
    assert code == 0 and found["status"] == "optimal"
    first, second = found["space"]["ways"]
    assert found["objective_ns"] <= first["objective_ns"]
    assert (first["rules"], second["rules"] - len(basis())) == (len(planner_rules()), len(planner_rules()))
    rewritings = second["rewritings"]
    assert any(name not in first["rewritings"]["applied"] for name in rewritings["applied"])
    assert rewritings["rules"]["given"] == second["rules"] and not rewritings["unproved"]
    assert {each["why"] for each in rewritings["rules"]["skipped"]} >= {"layouts decide on parallel operators"}


def test_rules_that_cannot_rewrite_are_skipped_and_told(partita: Run, rules: Callable[..., str]) -> None:
    fuse = next(rule for rule in planner_rules() if rule.name == "fuse linear bias relu")
    code, out, err = partita(
        "plan", "mlp", "--small", "--hierarchy", "2", "--rules", rules(RIGHT, APART, write_rule(fuse)), "--json"
    )
    found = json.loads(out)
    assert code == 0 and {change["rule"] for change in found["rewritten"]} == {fuse.name}
    skipped = found["space"]["rewritings"]["rules"]["skipped"]
    assert [(each["rules"], each["examples"]) for each in skipped] == [(1, ["right"]), (1, ["apart"])]
    assert "2 of 3 rules cannot rewrite (1: layouts decide on parallel operators, such as 'right'; 1: it is" in err


@pytest.mark.parametrize("words", ["--rewrite=some", "--rewrite all --rules rules.txt"])
def test_what_rewrite_takes(partita: Run, words: str) -> None:
    code, _, err = partita("plan", "mlp", "--small", "--hierarchy", "2", *words.split())
    assert code == 2 and "--rewrite" in err


def test_a_plan_shown_as_pcg(partita: Run, tmp_path: Path) -> None:
    folder = str(tmp_path / "plan")
    partita("plan", "mlp", "--small", "--hierarchy", "2", "--mesh", "2", "-o", folder)
    code, text, _ = partita("show", folder, "--pcg")
    assert code == 0 and text.startswith("Parallel graph on") and "mse_loss" in text
    code, out, _ = partita("show", folder, "--pcg", "--json")
    assert code == 0 and json.loads(out)["nodes"]
