"""Generation of rules on sets that can be checked by hand, each step of pruning alone, and the rules that ship."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache

import pytest

from partita.bench.coverage import covered
from partita.bench.rule_generation import generate as module
from partita.bench.rule_generation.consequences import Rewriter, basic
from partita.bench.rule_generation.enumeration import graphs
from partita.bench.rule_generation.expressions import canonical, identified, size, variables
from partita.bench.rule_generation.generate import generate, to_json, written
from partita.bench.rule_generation.operator_sets import SETS, Operation, OperatorSet
from partita.bench.rule_generation.pool import Pool
from partita.bench.rule_generation.writing import rules, trial_sizes
from partita.formulation.substitution import rule_file
from partita.formulation.substitution.arithmetic import Modular
from partita.formulation.substitution.rule import PARALLEL, REPLICA, Rule, Tensor
from partita.formulation.substitution.rule_file import BASIS, basis
from partita.formulation.substitution.text import parse_rule, write_rule
from partita.formulation.substitution.trial import random_inputs, trial
from partita.model.errors import PartitaError
from partita.solvers.proof.verify import verify_rule

from ..levels import exhaustive

FIELD = Modular()
DEGREES = ({"n": 4, "d": 2}, {"n": 18, "d": 3})
RELU, ADD, MUL, MATMUL = Operation("relu"), Operation("add", 2), Operation("mul", 2), Operation("matmul", 2)
PARTITION, COMBINE, PIPELINE, BATCH = (
    Operation(name, 1, (("degree", "d"), ("dim", 0))) for name in ("partition", "combine", "pipeline", "batch")
)
REPLICATE, REDUCE = (Operation(name, 1, (("degree", "d"),)) for name in ("replicate", "reduce"))
CAT = Operation("cat", 2, (("dim", 0),))
CAT_REPLICAS = Operation("cat", 2, (("dim", REPLICA),))
SPLIT = Operation("split", 1, (("dim", 0), ("parts", 2)), 2)
X, Y, Z = (Tensor(name, ("n", "n")) for name in "xyz")
CUT = Tensor("c", ("n", "n"), ("d", 1))
COPIES = Tensor("u", ("n", "n"), (1, 1), "d")


def over(
    *operations: Operation,
    inputs: Sequence[Tensor] = (X,),
    trials: Sequence[Mapping[str, int]] = DEGREES,
    most: int = 2,
    outputs: int = 1,
) -> OperatorSet:
    return OperatorSet("tried", operations, tuple(inputs), tuple(trials), most, outputs)


def bodies(chosen: OperatorSet, composed: bool = False) -> list[str]:
    """The statements of both sides of every rule, in one line each."""
    return [" => ".join(_sides(rule)) for rule in generate([chosen], composed=composed).rules]


def _sides(rule: Rule) -> list[str]:
    lines = write_rule(replace(rule, where=(), outputs=rule.outputs)).splitlines()
    text = "\n".join(line for line in lines[2:] if not line.strip().startswith("where"))
    return ["; ".join(line.strip() for line in side.strip().splitlines()) for side in text.split("=>")]


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        (
            over(RELU, PARTITION, COMBINE),
            [
                "out = combine(partition(x, degree=d, dim=0), degree=d, dim=0) => outputs out = x",
                "out = relu(partition(x, degree=d, dim=0)) => out = partition(relu(x), degree=d, dim=0)",
            ],
        ),
        (over(ADD, inputs=(X, Y, Z)), ["out = add(x, add(y, z)) => out = add(y, add(x, z))"]),
        (
            over(RELU, CAT, inputs=(X, Y, Z), most=3),
            [
                "out = cat(cat(x, y, dim=0), z, dim=0) => out = cat(x, cat(y, z, dim=0), dim=0)",
                "out = relu(cat(x, y, dim=0)) => out = cat(relu(x), relu(y), dim=0)",
            ],
        ),
        (over(PARTITION, PIPELINE), []),  # a step in time is none in space
        (
            over(RELU, REDUCE, inputs=(COPIES,)),
            [],  # relu does not pass through a sum
        ),
        (
            over(ADD, REDUCE, inputs=(COPIES, replace(COPIES, name="v"), replace(COPIES, name="w")), most=3),
            [
                "out = add(u, add(v, w)) => out = add(v, add(u, w))",
                "out = reduce(add(u, v), degree=d) => out = add(reduce(u, degree=d), reduce(v, degree=d))",
            ],
        ),
    ],
)
def test_all_rules_over_a_few_operators(chosen: OperatorSet, expected: list[str]) -> None:
    assert sorted(bodies(chosen)) == sorted(expected)


def test_a_second_degree_drops_what_holds_for_two_alone() -> None:
    """Add is Reduce of a concatenation along the replica dim: for as many tensors as the degree."""
    chosen = over(ADD, CAT_REPLICAS, REDUCE, inputs=(X, Y))
    once = over(ADD, CAT_REPLICAS, REDUCE, inputs=(X, Y), trials=DEGREES[:1])
    assert generate([chosen]).sets[0].left["renamed"] < generate([once], composed=True).sets[0].left["renamed"]
    assert not [body for body in bodies(chosen) if "reduce(cat" in body and "add" in body]


def test_partitioned_variables_are_essential() -> None:
    """Without them no rule starts with combine."""
    plain, cut = (bodies(over(RELU, COMBINE, PARTITION, inputs=given)) for given in ((X,), (X, CUT)))
    assert not [body for body in plain if "combine(relu" in body or "relu(combine" in body]
    assert [body for body in cut if "relu(combine" in body] == [
        "out = relu(combine(c, degree=d, dim=0)) => out = combine(relu(c), degree=d, dim=0)"
    ]


def test_the_megatron_columns_and_rows_are_found() -> None:
    columns = Operation("partition", 1, (("degree", "d"), ("dim", 1)))
    found = bodies(over(MATMUL, columns, PARTITION, REPLICATE, REDUCE, inputs=(X, Y), most=3))
    assert "out = partition(matmul(x, y), degree=d, dim=1)" in {body.split(" => ")[0] for body in found}
    assert any("matmul(replicate(x, degree=d), partition(y, degree=d, dim=1))" in body for body in found)


def test_two_outputs_merge_products_that_share_an_input() -> None:
    cat, split = (
        Operation(op, arity, given, results)
        for op, arity, given, results in (("cat", 2, (("dim", 1),), 1), ("split", 1, (("dim", 1), ("parts", 2)), 2))
    )
    sizes = ({"n": 4}, {"n": 6})
    found = generate([over(MATMUL, cat, split, inputs=(X, Y, Z), trials=sizes, most=3, outputs=2)]).rules
    merged = [rule for rule in found if len(rule.outputs) == 2 and "matmul" in rule.name]
    assert [
        "    x[n, m], y[m, k], z[m, p]",
        "    out0 = matmul(x, y)",
        "    out1 = matmul(x, z)",
        "  =>",
        "    out0, out1 = split(matmul(x, cat(y, z, dim=1)), dim=1, sizes=(k, p))",
    ] in [write_rule(rule).splitlines()[1:] for rule in merged]


def numbered(chosen: OperatorSet) -> Pool:
    return Pool(chosen, chosen.trials[0], FIELD)


def test_every_graph_is_enumerated_once() -> None:
    chosen = over(RELU, PARTITION, ADD, inputs=(X, Y), most=3)
    found = [frozenset(graph.applications) for graph in graphs(numbered(chosen), chosen, frozenset({2}))]
    some = [applications for applications in found if applications]
    assert len(some) == len(set(some))


def test_an_operator_is_evaluated_once_on_equal_values() -> None:
    pool = numbered(over(PARTITION, COMBINE, RELU, inputs=(X,)))
    (cut,) = pool.apply(0, (0,))
    assert pool.apply(1, (cut,)) == (0,)  # combined again it is x itself
    before = pool.evaluations
    assert pool.apply(2, pool.apply(1, (cut,))) == pool.apply(2, (0,))
    assert pool.evaluations == before + 1
    assert pool.apply(1, (0,)) == ()  # does not apply


def test_time_is_told_from_space() -> None:
    pool = numbered(over(PARTITION, PIPELINE))
    assert pool.apply(0, (0,)) != pool.apply(1, (0,))


def test_weights_and_data_have_their_places() -> None:
    kernel = Tensor("w", ("n", "n", "3", "3"))
    image = Tensor("x", ("n", "n", "h", "h"))
    conv = Operation("conv", 2, (("padding", 1),), weights=(False, True))
    chosen = OperatorSet("tried", (conv, ADD), (image, kernel), ({"n": 2, "h": 3},), weights=(kernel,))
    pool = numbered(chosen)
    assert pool.apply(0, (0, 1)) and not pool.apply(0, (1, 0)) and not pool.apply(0, (0, 0))
    assert not pool.apply(1, (0, 1))  # data and a weight of the same shape


KINDS = [[0, 1, 2]]
COMMUTES = frozenset({1})  # of the operations: 0 matmul, 1 add, 2 relu


def test_renamings_and_exchanged_sides_are_one_pair() -> None:
    pair = ((0, 0, 0, (1, 0, 1, 2)),), ((1, 0, (0, 0, 0, 1), (0, 0, 0, 2)),)
    other = ((1, 0, (0, 0, 2, 0), (0, 0, 2, 1)),), ((0, 0, 2, (1, 0, 1, 0)),)
    assert canonical(pair, KINDS, COMMUTES) == canonical(other, KINDS, COMMUTES)
    third = ((0, 0, (1, 0, 1, 2), 0),), pair[1]
    assert canonical(pair, KINDS, COMMUTES) != canonical(third, KINDS, COMMUTES)


def test_identified_variables_give_all_proper_instances() -> None:
    pair = ((1, 0, 0, (1, 0, 1, 2)),), ((1, 0, (1, 0, 0, 1), 2),)
    assert len(list(identified(pair, KINDS, COMMUTES))) == 4  # of the five partitions of three variables
    assert variables(pair[0][0]) == {0, 1, 2} and size(pair[0]) == 2


def test_what_smaller_rules_lead_to_is_not_basic() -> None:
    chosen = over(RELU, PARTITION, PIPELINE)
    relu, cut, steps = ((lambda x, n=n: (n, 0, x)) for n in range(3))
    one, two = ((relu(cut(0)),), (cut(relu(0)),)), ((relu(steps(0)),), (steps(relu(0)),))
    both = (relu(cut(steps(0))),), (cut(steps(relu(0))),)
    assert basic([both, two, one], frozenset(), numbered(chosen)) == [two, one]
    assert basic([both, one], frozenset(), numbered(chosen)) == [one, both]


def test_a_path_counts_only_where_all_on_it_has_one_value() -> None:
    """The rule serves in no state in which it does not hold: here it is wrong from the start."""
    rewriter = Rewriter(frozenset(), numbered(over(RELU, PARTITION)))
    rewriter.add((((0, 0, 0),), ((0, 0, (0, 0, 0)),)))
    assert not rewriter.joins((0, 0, 0), (0, 0, (0, 0, 0)))


WORDS = over(MATMUL, ADD, CAT, SPLIT, RELU, PARTITION, inputs=(X, Y, Z))


@pytest.mark.parametrize(
    ("pair", "inputs"),
    [
        ((((0, 0, (2, 0, 0, 1), 2),), ((2, 0, (0, 0, 0, 2), (0, 0, 1, 2)),)), "x[n, m], y[k, m], z[m, p]"),
        ((((2, 0, (3, 0, 0), (3, 1, 0)),), (0,)), "x[m+n, k]"),
        (
            (((1, 0, (3, 0, (4, 0, 0)), (3, 1, (4, 0, 0))),), ((1, 0, (4, 0, (3, 0, 0)), (4, 0, (3, 1, 0))),)),
            "x[2*n, m]",
        ),
        ((((0, 0, 0, (0, 0, 1, 0)),), ((0, 0, (0, 0, 0, 1), 0),)), "x[n, m], y[m, n]"),
    ],
)
def test_sizes_are_as_general_as_the_operators_let_them_be(pair: tuple[object, object], inputs: str) -> None:
    rule = next(rules(pair, WORDS))  # type: ignore[arg-type]
    assert write_rule(rule).splitlines()[1].strip() == inputs


def test_a_rule_says_what_is_divided() -> None:
    rule = next(rules((((4, 0, (5, 0, (5, 0, 0))),), ((5, 0, (5, 0, (4, 0, 0))),)), WORDS))
    assert rule.where == ("d*d divides n",)


@cache
def shipped() -> dict[str, list[str]]:
    return {each["name"]: each["rules"] for each in json.loads(BASIS.read_text())["sets"]}


def test_the_shipped_rules_are_read_named_and_true() -> None:
    found = basis()
    assert len(found) == sum(map(len, shipped().values())) > 500
    assert len({rule.name for rule in found}) == len(found)
    assert BASIS.stat().st_size < 500_000
    for rule in found:
        assert trial(rule, trial_sizes(rule, 2), FIELD, seed=5).holds, rule.name


def test_shipped_rules_are_proved() -> None:
    """Every tenth; all of them were when the file was made."""
    assert [rule.name for rule in basis()[::10] if verify_rule(rule).verdict != "proved"] == []


def test_the_shipped_rules_are_what_is_generated() -> None:
    attention = [each for each in SETS if each.name == "attention"]
    again = generate(attention, lambda rule: verify_rule(rule).verdict == "proved")
    assert [_body(write_rule(rule)) for rule in again.rules] == [_body(text) for text in shipped()["attention"]]


def _body(text: str) -> str:
    """Without the name, whose number counts rules of all sets."""
    return text.split("\n", 1)[1]


@exhaustive
def test_the_same_file_under_other_hashes() -> None:
    code = (
        "from partita.bench.rule_generation.generate import generate, written\n"
        "from partita.bench.rule_generation.operator_sets import SETS\n"
        "print(written(generate(SETS, most=2)), end='')"
    )
    seed = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
    env = {**os.environ, "PYTHONHASHSEED": seed}
    other = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, check=True, text=True)
    assert other.stdout == written(generate(SETS, most=2))


def test_the_file_says_how_it_was_made() -> None:
    head = json.loads(BASIS.read_text())
    assert (head["prime"], head["seed"]) == (FIELD.prime, 0)
    assert [each["name"] for each in head["sets"]] == [each.name for each in SETS]
    for each in head["sets"]:
        steps = [
            each[step] for step in ("pairs", "inputs", "common", "direct", "renamed", "general", "basic", "proved")
        ]
        assert steps == sorted(steps, reverse=True) and each["graphs"] > 0


def test_what_is_not_proved_is_left_out() -> None:
    chosen = over(RELU, PARTITION, COMBINE)
    made = generate([chosen], lambda rule: "relu" in rule.name)
    assert [rule.name for rule in made.rules] == ["relu-partition to partition-relu"]
    assert [_sides(rule)[1] for rule in made.unproved] == ["outputs out = x"]
    assert to_json(made)["sets"][0]["proved"] == 1
    assert json.loads(written(made))["format"] == module.FORMAT


def test_parallel_operators_of_the_sets_are_those_of_rules() -> None:
    names = {operation.op for each in SETS for operation in each.operations}
    assert names >= set(PARALLEL) - {"tile", "fold"}


def test_a_broken_basis_says_how_to_make_it_again(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    monkeypatch.setattr(rule_file, "BASIS", BASIS.with_name("none.json"))
    basis.cache_clear()
    with pytest.raises(PartitaError, match="partita rules generate"):
        basis()
    basis.cache_clear()


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        ("relu(relu(partition(x, dim=0, degree=2)))", "partition(relu(relu(x)), dim=0, degree=2)", True),
        ("relu(add(x, add(y, z)))", "relu(add(z, add(y, x)))", True),
        ("matmul(x, add(y, z))", "add(matmul(x, z), matmul(x, y))", True),
        ("relu(add(x, y))", "add(relu(x), relu(y))", False),
        ("matmul(x, y)", "matmul(y, x)", False),
    ],
)
def test_what_the_shipped_rules_lead_to(source: str, target: str, expected: bool) -> None:
    rule = parse_rule(f"tried:\n    x[4, 4], y[4, 4], z[4, 4]\n    out = {source}\n  =>\n    out = {target}\n")
    assert covered(rule, random_inputs(rule, {}, FIELD), basis()) is expected
