"""Verdicts on rules of our own: right ones proved, wrong ones refuted with tensors that differ in PyTorch too."""

import json
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from partita.formulation.substitution.arithmetic import Modular, Real
from partita.formulation.substitution.rule import Rule
from partita.formulation.substitution.rule_file import load_rules
from partita.formulation.substitution.symbolic.infer import free_atoms, infer
from partita.formulation.substitution.text import parse_rule
from partita.formulation.substitution.trial import draw, trial_at
from partita.model.errors import PartitaError
from partita.model.operators.sharded import Arithmetic
from partita.solvers.proof.verdict import Verdict
from partita.solvers.proof.verify import at_degrees, generalized, rules_report, verify_rule

from ..formulation.mutants import mutants
from .counterexamples import to_torch

DATA = Path(__file__).parents[1] / "data"
RIGHT = load_rules(DATA / "right_rules.txt")
WRONG = load_rules(DATA / "wrong_rules.txt")


def verdict(text: str) -> Verdict:
    return verify_rule(parse_rule(text))


@pytest.mark.parametrize("rule", RIGHT, ids=lambda rule: rule.name)
def test_right(rule: Rule) -> None:
    found = verify_rule(rule)
    assert found.verdict == "proved", found.note
    assert found.covers


@pytest.mark.parametrize("rule", WRONG, ids=lambda rule: rule.name)
def test_wrong(rule: Rule) -> None:
    found = verify_rule(rule)
    assert found.verdict in ("refuted", "ill-typed"), found.note
    if found.verdict == "refuted":
        assert to_torch(rule, found) > 1e-6
        assert found.counterexample is not None
        assert found.counterexample.difference is None or found.counterexample.difference > 1e-6
        json.dumps(found.to_json(), allow_nan=False)
    else:
        assert found.note
        with pytest.raises(PartitaError, match="no counterexample"):
            to_torch(rule, found)


def test_how_many_are_wrong() -> None:
    words = Counter(verify_rule(rule).verdict for rule in WRONG)
    assert sum(words.values()) >= 60
    assert words["refuted"] >= 45


def test_covers() -> None:
    by_name = {rule.name: verify_rule(rule).covers for rule in RIGHT}
    assert by_name["columns"] == "all sizes, all degrees, where d divides n"
    assert by_name["addition as concat and reduce"] == "all sizes, degree 2 only: does not type-check at 3"
    assert by_name["literal sizes"].startswith("the stated sizes, degree 4 only")
    assert by_name["softmax is what it is"] == "all sizes"


def test_degree_where_it_is_two() -> None:
    found = verdict(
        """replicas added:
        x[b, k], z[b, k]
        y = add(z, reduce(replicate(x, degree=2), degree=2))
      =>
        y = add(x, add(x, z))
    """
    )
    assert (found.verdict, found.covers) == ("proved", "all sizes, degree 2 only: not equal at 3")


def test_a_condition_makes_the_target_fit() -> None:
    text = """commutes where all are one number:
        a[b, k], c[k, n]
        y = mul(matmul(a, c), matmul(a, c))
      =>
        y = mul(matmul(a, c), add(matmul(a, c), sub(a, a)))
    """
    assert verdict(text).verdict == "ill-typed"
    found = verdict(text + "  where n == k\n")
    assert found.verdict == "proved"


def test_an_unknown_is_not_proved() -> None:
    found = verdict(
        """kernel of any size enlarged:
        x[n, c, h, w], k[o, c, p, q]
        y = conv(x, k)
      =>
        y = conv(x, pad(k, pad=(1, 1, 1, 1), value=0), padding=1)
    """
    )
    assert found.verdict == "unknown"
    assert found.note


def test_random_operators_are_unknown() -> None:
    assert verdict("drops:\n x[b, k]\n y = dropout(x, p=0.5)\n =>\n y = dropout(x, p=0.5)").verdict == "unknown"


def test_missing_attribute_is_said() -> None:
    found = verdict("no dim:\n x[b, k]\n y = cat(x, x)\n =>\n y = cat(x, x)")
    assert found.verdict == "ill-typed"
    assert "lacks the attribute dim" in found.note


def test_megatron_as_one_rule() -> None:
    """Attention, residual and MLP of a Transformer layer, by heads and columns (Unity, Figure 10)."""
    found = verdict(
        """megatron:
        x[b, s, m], q[h*e, m], k[h*e, m], v[h*e, m], o[m, h*e], u[f, m], w[m, f]
        qs = permute(view(linear(x, q), shape=(b, s, h, e)), dims=(0, 2, 1, 3))
        ks = permute(view(linear(x, k), shape=(b, s, h, e)), dims=(0, 2, 1, 3))
        vs = permute(view(linear(x, v), shape=(b, s, h, e)), dims=(0, 2, 1, 3))
        a = view(permute(attention(qs, ks, vs, causal=True), dims=(0, 2, 1, 3)), shape=(b, s, h*e))
        r = add(x, linear(a, o))
        y = add(r, linear(gelu(linear(r, u)), w))
      =>
        xs = replicate(x, degree=d)
        qp = permute(view(linear(xs, partition(q, dim=0, degree=d)), shape=(b, s, h, e)), dims=(0, 2, 1, 3))
        kp = permute(view(linear(xs, partition(k, dim=0, degree=d)), shape=(b, s, h, e)), dims=(0, 2, 1, 3))
        vp = permute(view(linear(xs, partition(v, dim=0, degree=d)), shape=(b, s, h, e)), dims=(0, 2, 1, 3))
        ap = view(permute(attention(qp, kp, vp, causal=True), dims=(0, 2, 1, 3)), shape=(b, s, h*e))
        rp = add(x, reduce(linear(ap, partition(o, dim=1, degree=d)), degree=d))
        hidden = gelu(linear(replicate(rp, degree=d), partition(u, dim=0, degree=d)))
        y = add(rp, reduce(linear(hidden, partition(w, dim=1, degree=d)), degree=d))
    """
    )
    assert found.verdict == "proved", found.note
    assert found.covers.startswith("all sizes, all degrees")


def test_report() -> None:
    rules = (*RIGHT[:2], WRONG[0])
    report = rules_report(rules, [verify_rule(rule) for rule in rules])
    assert {k: v for k, v in report.items() if k != "verdicts"} == {
        "rules": 3,
        "proved": 2,
        "refuted": 1,
        "ill_typed": 0,
        "unknown": 0,
    }
    assert report["verdicts"][2]["counterexample"]["inputs"]


def test_sizes_that_are_expressions() -> None:
    """An expression is a size of its own, whatever it meets later."""
    text = "joined:\n x[n+1, m], z[n+2, m]\n y = relu(x)\n u = relu(z)\n =>\n y = relu(sub(add(x, z), z))\n u = relu(z)"
    found = verdict(text)
    assert (found.verdict, found.note) == ("ill-typed", "the target type-checks only where 1+n == 2+n")
    assert verdict(text.replace("n+2", "n+1")).verdict == "proved"


def test_windows_that_are_of_one_length_at_some_sizes() -> None:
    """Three of four heights give as many places, which is no proof for the fourth."""
    found = verdict(
        """kernel enlarged on one side:
        x[n, c, h, w], k[o, c, 1, 1]
        y = conv(x, k, stride=4)
      =>
        y = conv(x, pad(k, pad=(0, 1, 0, 1), value=0), stride=4)
    """
    )
    assert found.verdict in ("refuted", "ill-typed")
    assert "the outputs agree only where (h) / 4 rounded up == (-1+h) / 4 rounded up" in found.note


def test_ids_that_a_table_may_lack() -> None:
    text = "ids:\n w[n, e], v[m, e], i[b]\n y = {}\n =>\n y = {}"
    both, none = "embedding(cat(w, {}, dim=0), i)", "scale(embedding(w, {}), value=0)"
    assert verdict(text.format(none.format("i"), none.format("i"))).verdict == "proved"
    assert verdict(text.format(none.format("i"), none.format("shift(i, value=1)"))).verdict == "unknown"
    assert verdict(text.format(both.format("v"), both.format("scale(v, value=0)"))).verdict == "refuted"
    assert verdict(text.format(both.format("v"), "embedding(w, i)")).verdict == "unknown"
    assert verdict(text.format("embedding(w, i)", both.format("w"))).verdict == "proved"


def test_ids_in_parts() -> None:
    """Only what the source looks up is known to be numbers of rows."""
    text = """ids in parts:
        w[n, e], i[b+c]
        p, q = split(i, dim=0, sizes=(b, c))
        y = embedding(w, p)
        z = relu(q)
      =>
        p, q = split(i, dim=0, sizes=(b, c))
        y = sub(embedding(w, p), scale(embedding(w, {}), value=0))
        z = relu(q)
    """
    assert verdict(text.format("p")).verdict == "proved"
    assert verdict(text.format("q").replace("[b+c]", "[b+b]").replace("(b, c)", "(b, b)")).verdict == "unknown"


# Mutants


def holds(rule: Rule, arithmetic: Arithmetic) -> bool:
    """Whether both sides agree at all of several small sizes at which they apply."""
    typed, rng = infer(rule), np.random.default_rng(0)
    atoms = free_atoms(typed)
    drawn = [draw(typed, atoms, rng, number) for number in range(6)]
    tried = [trial_at(typed, values, seed, arithmetic) for seed, values in enumerate(drawn) if values is not None]
    tolerance = 0.0 if isinstance(arithmetic, Modular) else 1e-9
    return all(a.same(b, tolerance) for s in tried if s is not None for a, b in zip(s.source, s.target, strict=True))


@pytest.mark.parametrize("seed", range(4))
def test_mutants(seed: int) -> None:
    """No false proof at several sizes and degrees, over a field and over floats; no refutation without a difference."""
    words: Counter[str] = Counter()
    for rule in RIGHT:
        for mutant in mutants(rule, 4, random.Random(f"{seed} {rule.name}")):
            found = verify_rule(mutant)
            words[found.verdict] += 1
            if found.verdict == "proved":
                symbolic, names = generalized(mutant)
                forms = [mutant]
                if names and "all degrees" in found.covers:
                    forms += [at_degrees(symbolic, dict.fromkeys(names, degree)) for degree in (2, 3)]
                assert all(holds(form, arithmetic) for form in forms for arithmetic in (Real(), Modular())), mutant
            elif found.counterexample is not None:
                assert to_torch(mutant, found) > 1e-9, mutant
    assert words["refuted"] > 20
    assert words["ill-typed"] > 10


def test_renamed_rules_have_one_verdict() -> None:
    for rule in (*RIGHT[:8], *WRONG[:8]):
        names = {t.name: f"in_{t.name}" for t in rule.inputs}
        tensors = tuple(replace(t, name=names[t.name]) for t in rule.inputs)
        sides = [
            tuple(replace(a, inputs=tuple(names.get(n, n) for n in a.inputs)) for a in side)
            for side in (rule.source, rule.target)
        ]
        outputs = tuple((names.get(s, s), names.get(t, t)) for s, t in rule.outputs)
        other = Rule(rule.name, tensors, sides[0], sides[1], outputs, rule.where)
        assert verify_rule(other).verdict == verify_rule(rule).verdict


@pytest.mark.parametrize(
    ("text", "covers"),
    [
        (
            "x[b, k]\n y = combine(partition(x, dim=0, degree=2), dim=0, degree=2)",
            "all sizes, all degrees, where the degree divides b",
        ),
        (
            "x[n+m, k]\n y = combine(partition(x, dim=0, degree=d), dim=0, degree=d)",
            "all sizes, all degrees, where d divides m+n",
        ),
        ("x[n, n]\n y = transpose(transpose(x))", "all sizes"),
        ("x[3, 4]\n y = transpose(transpose(x))", "the stated sizes"),
    ],
)  # fmt: skip
def test_what_is_nothing(text: str, covers: str) -> None:
    inputs, result = text.split("\n")
    assert verdict(f"nothing:\n {inputs}\n y = x\n =>\n{result}").covers == covers


def test_sizes_that_only_the_target_asks() -> None:
    """Declared sizes stand for themselves: square matrices are no proof for others."""
    found = verdict("square:\n x[n, m]\n y = relu(x)\n =>\n y = relu(sub(add(x, transpose(x)), transpose(x)))")
    assert (found.verdict, found.note) == ("ill-typed", "the target type-checks only where n == m")
    assert (
        verdict("square:\n x[n, n]\n y = relu(x)\n =>\n y = relu(sub(add(x, transpose(x)), transpose(x)))").verdict
        == "proved"
    )


def test_windows_of_other_sizes() -> None:
    text = "windows:\n x[n, c, h, w], k[o, c, 3, 3]\n y = conv(x, k, kernel=(3, 3), padding=1)\n =>\n"
    assert verdict(text + " y = conv(x, k, kernel=(3, 3), padding=(1, 1))").verdict == "proved"
    assert verdict(text + " y = conv(x, k, kernel=(5, 5), padding=1)").verdict == "ill-typed"
