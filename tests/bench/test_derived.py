"""The bench that derives parallel rules from the strategy space."""

from __future__ import annotations

import json
import random
from collections import Counter

import pytest

from partita.bench import derived
from partita.bench.derivation.derive import VERDICTS, derive
from partita.formulation.rewriting.spelling import is_parallel
from partita.formulation.substitution.rule import PARALLEL
from partita.formulation.substitution.rule_file import basis
from partita.formulation.substitution.text import parse_rule, parse_rules
from partita.solvers.proof.verify import verify_rule

from ..formulation.mutants import mutants


def test_some_rules_of_every_family_are_derived() -> None:
    rows = derived.run(small=True, only=(), tell=lambda words: None)
    counts = {row["family"]: {verdict: row[verdict] for verdict in VERDICTS if row[verdict]} for row in rows}
    assert counts == {
        "moves alone": {"layouts": 2},
        "elementwise": {"layouts": 2},
        "softmax": {"layouts": 2},
        "matmul": {"layouts": 1, "sequential": 1},
        "cat and split": {"layouts": 2},
        "tensors as replicas": {"layouts": 2},
        "in time": {"micro-batches": 1, "not derived": 1},
        "only tensors as replicas": {"branches": 1, "sequential": 1},
        "Unity's figures": {"layouts": 1, "sequential": 1},
    }
    reasons = {(row["family"], row["why"]) for row in derived.summary(rows)}
    assert ("in time", "a part of the graph runs in steps, another at once") in reasons
    assert json.loads(json.dumps(rows)) == rows and "why" not in rows[0]


def test_every_parallel_rule_is_in_one_family() -> None:
    found = derived.families()
    shipped = [rule for name, rules in found.items() if name != derived.EXAMPLES for rule in rules]
    assert sorted(rule.name for rule in shipped) == sorted(rule.name for rule in basis() if is_parallel(rule))
    assert sum(any(apply.op in PARALLEL for apply in rule.applies) for rule in shipped) == 257


def test_figures_11b_and_16b_take_branches() -> None:
    rules = {rule.name: rule for rule in parse_rules(derived.FIGURES)}
    assert derive(rules["figure 11b"]).verdict == "branches"
    joined = derive(rules["figure 16b"])
    assert (joined.verdict, joined.why) == ("sequential", "by 'add-matmul to matmul-cat'")
    assert derive(rules["figure 10, queries by heads"]).verdict == "layouts"


SOURCE = "wrong:\n x[n, m], y[m, k]\n z = matmul(x, y)\n =>\n "
CUT = "matmul(partition(x, dim=1, degree=d), partition(y, dim=0, degree=d))"
WRONG = {
    "layouts that disagree": (
        "wrong:\n x[n, m]\n y = relu(partition(x, dim=0, degree=d))\n =>\n y = partition(relu(x), dim=1, degree=d)",
        "no sizes",
    ),
    "a degree that does not divide": (
        "wrong:\n x[3, m]\n y = relu(x)\n =>\n y = combine(relu(partition(x, dim=0, degree=2)), dim=0, degree=2)",
        "no sizes",
    ),
    "addends taken for copies": (
        SOURCE.replace("matmul(x, y)", "replicate(matmul(x, y), degree=d)") + f"z = {CUT}\n where d divides m",
        "different layouts",
    ),
    "a function of addends": (
        SOURCE.replace("matmul(x, y)", "relu(matmul(x, y))") + f"z = reduce(relu({CUT}), degree=d)\n where d divides m",
        "relu has no row",
    ),
    "copies that are added up": (
        "wrong:\n x[n, m]\n y = relu(x)\n =>\n y = reduce(relu(replicate(x, degree=d)), degree=d)",
        "different tensors",
    ),
    "another branch": (
        'wrong:\n x[n, m], y[n, m]\n z = add(x, x)\n =>\n z = reduce(cat(x, y, dim="replica"), degree=2)',
        "different tensors",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_rule_is_not_derived(name: str) -> None:
    text, why = WRONG[name]
    found = derive(parse_rule(text))
    assert found.verdict == "not derived" and why in found.why, found


def test_no_false_mutant_is_derived() -> None:
    shipped = [rule for rules in derived.families().values() for rule in rules]
    rng, counts = random.Random(3), Counter[bool]()
    for mutant in (mutant for rule in shipped[::16] for mutant in mutants(rule, 2, rng)):
        found = derive(mutant)
        counts[found.verdict == "not derived"] += 1
        assert found.verdict == "not derived" or verify_rule(mutant).verdict == "proved", mutant
    assert counts[True] > 10 and counts[False] > 0
