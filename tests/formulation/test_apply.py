"""Rules applied to small graphs: Megatron's attention and perceptron step by step, and what stands in the way."""

from __future__ import annotations

import runpy
from collections import Counter
from pathlib import Path

import pytest

from partita import PartitaError
from partita.formulation.substitution.apply import Graph, apply_rule, matches
from partita.formulation.substitution.arithmetic import Modular
from partita.formulation.substitution.evaluate import evaluate
from partita.formulation.substitution.rule import PARALLEL, Rule, Tensor
from partita.formulation.substitution.text import parse_rule
from partita.formulation.substitution.trial import random_tensor
from partita.solvers.proof.verify import verify_rule


def graph(inputs: str, body: str, *outputs: str) -> Graph:
    return Graph.parse(f"{inputs}\n{body}", *outputs)


def rule(text: str) -> Rule:
    return parse_rule(text)


def equal(before: Graph, after: Graph) -> None:
    """Both make the same of the same inputs, in the same states."""
    field = Modular()
    given = {t.name: random_tensor(t, {}, field, 7 + number) for number, t in enumerate(before.inputs)}
    results = [evaluate(x.applies, given, field) for x in (before, after)]
    for a, b in zip(before.outputs, after.outputs, strict=True):
        assert results[0][a].same(results[1][b]), (a, b)


def applied(law: Rule, before: Graph, **sizes: int) -> Graph:
    """The graph after the first match, checked."""
    after = apply_rule(law, before, next(iter(matches(law, before, sizes))))
    equal(before, after)
    return after


# Figure 10: Megatron's attention and perceptron as a sequence of substitutions

EXAMPLE = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "megatron.py"))
RULES: tuple[Rule, ...] = EXAMPLE["RULES"]


def test_figure_10_megatron() -> None:
    """After every step the same is computed; of each half one replicate and one reduce are left, and no combine."""
    steps: list[Graph] = EXAMPLE["megatron"]()
    counts = []
    for step in steps:
        equal(steps[0], step)
        counts.append(Counter(apply.op for apply in step.applies if apply.op in PARALLEL))
    assert [dict(count) for count in counts] == [
        {},
        {"replicate": 1, "partition": 3, "combine": 3},
        {"replicate": 1, "partition": 3, "combine": 2},
        {"replicate": 1, "partition": 3, "combine": 2},
        {"replicate": 1, "partition": 3, "combine": 1},
        {"replicate": 1, "partition": 4, "reduce": 1},
        {"replicate": 2, "partition": 5, "reduce": 1, "combine": 1},
        {"replicate": 2, "partition": 5, "reduce": 1, "combine": 1},
        {"replicate": 2, "partition": 6, "reduce": 2},
    ]
    assert str(steps[-1]) == MEGATRON


MEGATRON = """\
x                                                [2, 3, 8]
wq                                               [4, 8, 2]
wk                                               [4, 8, 2]
wv                                               [4, 8, 2]
wo                                               [4, 2, 8]
w1                                               [8, 16]
w2                                               [16, 8]
_0 = replicate(x, degree=2)                      [2, 3, 8]*2
_1 = partition(wq, degree=2, dim=0)              [4/2, 8, 2]
_2 = einsum(_0, _1, equation="bsk,hkd->bhsd")    [2, 4/2, 3, 2]
_4 = partition(wk, degree=2, dim=0)              [4/2, 8, 2]
_5 = einsum(_0, _4, equation="bsk,hkd->bhsd")    [2, 4/2, 3, 2]
_3 = einsum(_2, _5, equation="bhsd,bhtd->bhst")  [2, 4/2, 3, 3]
_6 = softmax(_3, dim=3)                          [2, 4/2, 3, 3]
_7 = partition(wv, degree=2, dim=0)              [4/2, 8, 2]
_8 = einsum(_0, _7, equation="bsk,hkd->bhsd")    [2, 4/2, 3, 2]
_9 = einsum(_6, _8, equation="bhst,bhtd->bhsd")  [2, 4/2, 3, 2]
_10 = partition(wo, degree=2, dim=0)             [4/2, 2, 8]
_11 = einsum(_9, _10, equation="bhsd,hdo->bso")  [2, 3, 8]*2
out = reduce(_11, degree=2)                      [2, 3, 8]
y = add(x, out)                                  [2, 3, 8]
_12 = replicate(y, degree=2)                     [2, 3, 8]*2
_13 = partition(w1, degree=2, dim=1)             [8, 16/2]
_14 = matmul(_12, _13)                           [2, 3, 16/2]
_15 = relu(_14)                                  [2, 3, 16/2]
_16 = partition(w2, degree=2, dim=0)             [16/2, 8]
_17 = matmul(_15, _16)                           [2, 3, 8]*2
down = reduce(_17, degree=2)                     [2, 3, 8]
z = add(y, down)                                 [2, 3, 8]"""


@pytest.mark.parametrize("law", RULES, ids=lambda law: law.name)
def test_every_rule_of_figure_10_is_proved(law: Rule) -> None:
    verdict = verify_rule(law)
    assert (verdict.verdict, verdict.covers.partition(", where")[0]) == ("proved", "all sizes, all degrees"), verdict


# Figure 11


def test_figure_11_a_relu_in_parts() -> None:
    law = rule("""spatial relu:
        x[c, h, w]
        y = relu(x)
      =>
        y = combine(relu(partition(x, dim=1, degree=d)), dim=1, degree=d)
      where d divides h
    """)
    after = applied(law, graph("x[3, 8, 6]", "y = relu(x)", "y"), d=4)
    assert [apply.op for apply in after.applies] == ["partition", "relu", "combine"]
    assert verify_rule(law).verdict == "proved"
    assert not list(matches(law, graph("x[3, 8, 6]", "y = relu(x)", "y"), {"d": 3}))  # 3 does not divide 8


def test_figure_11_b_a_sum_is_a_reduction() -> None:
    law = rule("""add is concat and reduce:
        x[n], y[n]
        z = add(x, y)
      =>
        z = reduce(cat(x, y, dim="replica"), degree=2)
    """)
    after = applied(law, graph("a[6], b[6]", "s = relu(a)\nz = add(s, b)", "z"))
    assert [apply.op for apply in after.applies] == ["relu", "cat", "reduce"] and after.outputs == ("z",)
    assert verify_rule(law).verdict == "proved"


# Matching


MERGE = """merge products:
    x[b, k], v[k, n], w[k, m]
    y = matmul(x, v)
    z = matmul(x, w)
  =>
    y, z = split(matmul(x, cat(v, w, dim=1)), dim=1, sizes=(n, m))
"""


def test_several_patterns_and_several_outputs() -> None:
    law, before = (
        rule(MERGE),
        graph("a[2, 3], p[3, 4], q[3, 5]", "y = matmul(a, p)\nz = matmul(a, q)\nr = relu(y)", "r", "z"),
    )
    found = list(matches(law, before))
    assert [match.places for match in found] == [(0, 1), (1, 0)]
    assert found[0].values == {"x": "a", "v": "p", "w": "q", "y": "y", "z": "z"}
    assert found[0].sizes == {"b": 2, "k": 3, "n": 4, "m": 5}
    after = applied(law, before)
    assert [(apply.op, apply.outputs) for apply in after.applies][2:] == [("split", ("y", "z")), ("relu", ("r",))]


def test_attributes_bind_symbols() -> None:
    """And back: what split makes is concatenated again."""
    law = rule("""cat of split:
        x[a, n+m]
        y, z = split(x, dim=1, sizes=(n, m))
        w = cat(y, z, dim=1)
      =>
        w = x
    """)
    body = "y, z = split(x, dim=1, sizes=(3, 4))\nw = cat(y, z, dim=1)\nr = relu(w)"
    after = applied(law, graph("x[2, 7]", body, "r"))
    assert [(apply.op, apply.inputs) for apply in after.applies] == [("relu", ("x",))]
    assert not list(matches(law, graph("x[2, 7]", body.replace("cat(y, z", "cat(z, y"), "r")))
    equal_parts = body.replace("(3, 4)", "(3, 3)").replace("cat(y, z, dim=1)", "cat(y, z, dim=0)")
    assert not list(matches(law, graph("x[2, 6]", equal_parts, "r")))


def test_what_others_read_stays() -> None:
    law = rule("""columns:
        x[b, k], w[k, n]
        y = relu(matmul(x, w))
      =>
        y = combine(relu(matmul(replicate(x, degree=d), partition(w, dim=1, degree=d))), dim=1, degree=d)
      where d divides n
    """)
    after = applied(law, graph("x[2, 3], w[3, 4]", "p = matmul(x, w)\ny = relu(p)", "y", "p"), d=2)
    assert Counter(apply.op for apply in after.applies)["matmul"] == 2 and after.outputs == ("y", "p")


CUTS = ("partition", "pipeline")  # in space, and in time


def test_states_are_compared() -> None:
    """The law is about whole tensors; what is partitioned already is another thing."""
    law = rule("""columns:
        x[b, k], w[k, n]
        y = matmul(x, w)
      =>
        y = combine(matmul(replicate(x, degree=d), partition(w, dim=1, degree=d)), dim=1, degree=d)
      where d divides n
    """)
    assert list(matches(law, graph("x[4, 2], w[2, 4]", "y = matmul(x, w)", "y"), {"d": 2}))
    assert not list(matches(law, graph("x[4/2, 2], w[2, 4]*2", "y = matmul(x, w)", "y"), {"d": 2}))
    assert not list(matches(law, graph("x[4, 2], w[2, 5]", "y = matmul(x, w)", "y"), {"d": 2}))
    parts = rule("parts:\nx[n/d]\ny = relu(x)\n=>\ny = relu(x)")
    found = [list(matches(parts, graph("x[4]", f"p = {op}(x, dim=0, degree=2)\ny = relu(p)", "y"))) for op in CUTS]
    assert [[match.sizes for match in each] for each in found] == [[{"n": 4, "d": 2}], []]


def test_a_result_in_another_state_is_refused() -> None:
    law = rule("""not a rule:
        x[n]
        y = relu(x)
      =>
        y = relu(partition(x, dim=0, degree=2))
    """)
    before = graph("x[4]", "y = relu(x)", "y")
    with pytest.raises(PartitaError, match=r"makes \[4/2\] of y, which is \[4\]"):
        apply_rule(law, before, next(matches(law, before)))


def test_a_target_that_does_not_apply_is_refused() -> None:
    law = rule("""does not divide:
        x[n]
        y = relu(x)
      =>
        y = combine(relu(partition(x, dim=0, degree=d)), dim=0, degree=d)
    """)
    before = graph("x[4]", "y = relu(x)", "y")
    with pytest.raises(PartitaError, match="does not apply to these states"):
        apply_rule(law, before, next(matches(law, before, {"d": 3})))
    with pytest.raises(PartitaError, match="give a number for d"):
        apply_rule(law, before, next(matches(law, before)))


def test_a_condition_needs_numbers() -> None:
    law = rule("""spatial relu:
        x[n]
        y = relu(x)
      =>
        y = combine(relu(partition(x, dim=0, degree=d)), dim=0, degree=d)
      where d divides n
    """)
    with pytest.raises(PartitaError, match="give a number for d"):
        list(matches(law, graph("x[4]", "y = relu(x)", "y")))


def test_merging_what_depends_on_each_other_is_refused() -> None:
    law, before = rule(MERGE), graph("a[3, 3], p[3, 3]", "y = matmul(a, p)\nu = relu(y)\nz = matmul(a, u)", "z")
    with pytest.raises(PartitaError, match="would depend on itself"):
        apply_rule(law, before, next(matches(law, before)))


def test_conditions_choose_among_matches() -> None:
    law = rule("""equal widths:
        x[b, n], y[b, m]
        z = cat(x, y, dim=1)
      =>
        z = cat(x, y, dim=1)
      where n == m, n >= 3
    """)
    widths = [(3, 3), (2, 2), (3, 4), (4, 4)]
    found = [bool(list(matches(law, graph(f"x[2, {n}], y[2, {m}]", "z = cat(x, y, dim=1)", "z")))) for n, m in widths]
    assert found == [True, False, False, True]


def test_a_graph_says_what_it_lacks() -> None:
    with pytest.raises(PartitaError, match="does not make r"):
        Graph((Tensor("x", ("4",)),), (), ("r",))
