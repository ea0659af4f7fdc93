"""Rules as data: notation, JSON, messages; strategies and op-trans as rules; the parallel operators' duals."""

from collections.abc import Iterator
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from partita.formulation.strategies.row import Row
from partita.formulation.strategies.strategy import rows
from partita.formulation.substitution.arithmetic import Real
from partita.formulation.substitution.evaluate import evaluate
from partita.formulation.substitution.op_trans import OpTrans, row_rule
from partita.formulation.substitution.rule import Apply, Rule, Tensor
from partita.formulation.substitution.rule_file import load_rules, read_rule, read_rules, write_rules
from partita.formulation.substitution.sizes import Size
from partita.formulation.substitution.text import parse_rule, write_rule
from partita.formulation.substitution.values import ParallelValue
from partita.model.errors import PartitaError
from partita.model.graph.builder import Builder
from partita.model.graph.layout import B, P, S
from partita.model.graph.pcg import PCG
from partita.solvers.proof.verify import verify_rule

from ..codegen.cases import CASES

DATA = Path(__file__).parents[1] / "data"
COLUMNS = """columns:
    x[b, k], w[k, n]
    y = matmul(x, w)
  =>
    y = combine(matmul(replicate(x, degree=d), partition(w, degree=d, dim=1)), degree=d, dim=1)
  where d divides n
  note Unity, section 3"""


# Notation


def test_text_is_read() -> None:
    rule = parse_rule(COLUMNS)
    assert rule.inputs == (Tensor("x", ("b", "k")), Tensor("w", ("k", "n")))
    assert rule.source == (Apply("matmul", ("x", "w"), ("y",)),)
    assert [a.op for a in rule.target] == ["replicate", "partition", "matmul", "combine"]
    assert rule.target[1].attributes == (("degree", "d"), ("dim", 1))
    assert (rule.outputs, rule.where, rule.note) == ((("y", "y"),), ("d divides n",), "Unity, section 3")
    assert write_rule(rule) == COLUMNS


@pytest.mark.parametrize("file", ["right_rules.txt", "wrong_rules.txt", "taso_rules.json", "flexflow_rules.json"])
def test_round_trips(file: str) -> None:
    rules = load_rules(DATA / file)
    assert rules
    for rule in rules:
        assert parse_rule(write_rule(rule)) == rule
        assert read_rule(rule.to_json()) == rule
    assert read_rules(write_rules(rules)) == rules
    assert read_rules("\n\n".join(map(write_rule, rules))) == rules


def test_states_and_several_outputs() -> None:
    rule = parse_rule(
        """states:
        x[b/2, n+m]*r, z        # twice on b; as inferred
        u, v = split(x, dim=1, sizes=(n, m))
        t = x
      =>
        v, u = split(x, dim=1, sizes=(m, n))
        t = scale(x, value=-1.5)
      outputs u = v, t
    """
    )
    assert rule.inputs[0] == Tensor("x", ("b", "m+n"), (2, 1), "r")
    assert rule.inputs[1] == Tensor("z")
    assert rule.outputs == (("u", "v"), ("x", "t"))
    assert rule.target[1]["value"] == -1.5
    assert parse_rule(write_rule(rule)) == rule


def test_sizes() -> None:
    assert str(Size.of("2*(n+m) - n")) == "2*m+n"
    assert Size.of("2*n*d").divided(Size.of("d")) == Size.of("2*n")
    assert Size.of("n+m").divided(Size.of("n")) is None
    assert Size.of("d*(n-1)").at({"d": 3, "n": 5}) == 12


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no rules"),
        ("columns\n x[b]\n", "line 1: a rule starts with its name and a colon"),
        ("r:\n x[b]\n y = relu(x)", "line 1, rule 'r': one line holds `=>` alone"),
        ("r:\n x[b]\n y = relu(z)\n =>\n y = relu(x)", "line 3, rule .r.: z is neither an input"),
        ("r:\n x[b]\n y = relu(x)\n =>\n z = relu(x)", "has no outputs"),
        ("r:\n x[b]\n y = frob(x)\n =>\n y = relu(x)", "line 3, rule 'r': unknown operator 'frob'"),
        ("r:\n x[b]\n y = relu(x\n =>\n y = relu(x)", r"line 3, rule 'r': expected `,`"),
        ("r:\n x[b]\n y = partition(x, dim=0)\n =>\n y = x", "partition takes the attributes degree, dim, not dim"),
        ("r:\n x[b]\n y = relu(x)\n y = exp(x)\n =>\n y = x", "line 4, rule 'r': y has a value already"),
        ("r:\n x[b], x[k]\n y = relu(x)\n =>\n y = x", "input x is declared twice"),
        ("r:\n x[b+]\n y = relu(x)\n =>\n y = x", "line 2, rule 'r': size 'b [+]': expected a number or a name"),
        ("r:\n x[b]\n y = relu(x)\n =>\n y = x\n where b about 2", "a condition is `d divides n`"),
        ("r:\n x[b]\n y, z = relu(x)\n =>\n y = x", "relu makes one result, not 2"),
        ("r:\n x[b] $\n y = relu(x)\n =>\n y = x", r"line 2, rule 'r': cannot read '\$'"),
        ("r:\n x[b]\n y = relu(x)\n =>\n y = x\n\nr:\n x[b]\n y = relu(x)\n =>\n y = x", "line 7: a second rule"),
    ],
)
def test_bad_text_says_where(text: str, reason: str) -> None:
    with pytest.raises(PartitaError, match=reason):
        read_rules(text or "# nothing")


def test_bad_rules_cannot_be_made() -> None:
    x = (Tensor("x", ("b",)),)
    with pytest.raises(PartitaError, match="makes x, a name that is taken"):
        Rule("r", x, (Apply("relu", ("x",), ("x",)),), (), (("x", "x"),))
    with pytest.raises(PartitaError, match="output y is not a value of the target"):
        Rule("r", x, (Apply("relu", ("x",), ("y",)),), (), (("y", "y"),))
    with pytest.raises(PartitaError, match="2 degrees for 1 dims"):
        Tensor("x", ("b",), (1, 1))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"inputs": 3}, "'inputs' is a list"),
        ({"source": [{"op": "relu"}]}, "source 0 lacks 'inputs'"),
        ({"outputs": [["y"]]}, "an output is a pair of names"),
        ({"where": [3]}, "'where' holds strings"),
        ({"note": 3}, "'note' is a str"),
        ({"inputs": [{"name": "x", "dims": ["b", ""]}]}, "input 0: size '': expected a number"),
        ({"inputs": [{"name": "x", "dims": ["b"], "degrees": ["d)"]}]}, r"input 0: size 'd\)': cannot read"),
    ],
)
def test_bad_json_says_which_key(change: dict[str, object], reason: str) -> None:
    with pytest.raises(PartitaError, match=reason):
        read_rule(parse_rule(COLUMNS).to_json() | change)


# Strategies of the planner

# Operators whose rows are proved one by one, with the cases of their emission's tests.
PROVED = {
    "contraction": ("linear", "matmul", "einsum"),
    "elementwise": ("relu", "gelu", "silu", "exp", "neg", "scale", "add", "sub", "mul", "div", "maximum", "where"),
    "convolution": ("conv",),
    "embedding": ("embedding", "embedding_bag", "gather"),
    "normalization": ("layer_norm", "rms_norm", "group_norm", "softmax", "log_softmax"),
    "reduction": ("sum", "mean", "amax", "cumsum", "logsumexp"),
    "views": ("permute", "cat", "part", "roll"),
    "batch_norm": ("moments",),
}


def graphs() -> Iterator[tuple[str, PCG, int]]:
    for names in PROVED.values():
        for name, build in ((n, b) for n in names for b in CASES[n]):
            builder = Builder()
            index = build(builder)
            yield name, PCG(tuple(builder.nodes), index, 6), index


def test_rows_of_strategies_are_proved() -> None:
    proved: dict[str, int] = {}
    for name, pcg, index in graphs():
        for row in rows(pcg, index):
            rule = row_rule(pcg, index, row)
            if rule is not None:
                found = verify_rule(rule)
                assert found.verdict == "proved", (name, row, found.note, write_rule(rule))
                proved[name] = proved.get(name, 0) + 1
    assert set(proved) == {name for names in PROVED.values() for name in names}
    assert sum(proved.values()) > 300


def linear() -> tuple[PCG, int]:
    builder = Builder()
    x, w, c = builder.input("x", (6, 4)), builder.parameter("w", (8, 4)), builder.parameter("c", (8,))
    index = builder.add("linear", x, w, c, shape=(6, 8))
    return PCG(tuple(builder.nodes), index, 6), index


@pytest.mark.parametrize(
    ("inputs", "output"),
    [
        ((S(1), S(1), B), P),  # a bias that every addend adds
        ((S(0), B, B), S(1)),  # samples joined as columns
        ((S(1), S(1), P), S(0)),  # addends joined as samples
        ((B, S(0), B), S(1)),  # the bias is not split
        ((P, P, P), P),  # the product of two sums is not the sum of products
        ((P, B, B), P),  # the bias is not an addend
        ((B, B, B), P),  # d equal addends
    ],
)
def test_wrong_rows_are_found_out(inputs: tuple[int, ...], output: int) -> None:
    pcg, index = linear()
    rule = row_rule(pcg, index, Row(inputs, output))
    assert rule is not None
    assert verify_rule(rule).verdict in ("refuted", "ill-typed")


def test_op_trans_of_a_user() -> None:
    q, k, v = (Tensor(name, ("h", size, "e")) for name, size in (("q", "s"), ("k", "t"), ("v", "t")))
    heads = OpTrans("heads", "attention", (q, k, v), (0, 0, 0), 0, (("causal", False),))
    assert verify_rule(heads.rule()).covers == "all sizes, all degrees, where d divides h"
    keys = OpTrans("keys", "attention", (q, k, v), ("whole", 1, 1), "addends", (("causal", False),))
    assert verify_rule(keys.rule()).verdict == "ill-typed"
    with pytest.raises(PartitaError, match="2 cuts for 3 tensors"):
        OpTrans("few", "attention", (q, k, v), (0, 0), 0).rule()
    with pytest.raises(PartitaError, match="a cut is a dim, 'whole' or 'addends', not 'half'"):
        OpTrans("half", "attention", (q, k, v), (0, 0, "half"), 0).rule()


# Duality (Unity §3.3): the backward of each parallel operator is another one


def matrix(apply: Apply, replicas: int, shape: tuple[int, ...], degrees: tuple[int, ...]) -> np.ndarray:
    """The linear map of an application on all entries of a tensor, a column for every entry."""
    columns = []
    for place in product(*map(range, (replicas, *shape))):
        array = np.zeros((replicas, *shape))
        array[place] = 1.0
        value = ParallelValue.of(array, degrees)
        columns.append(evaluate([apply], {"x": value}, Real())["y"].array.ravel())
    return np.array(columns).T


def move(op: str, **attributes: int) -> Apply:
    return Apply(op, ("x",), ("y",), tuple(attributes.items()))


@pytest.mark.parametrize("degree", [2, 3])
def test_each_parallel_operator_is_the_transpose_of_its_dual(degree: int) -> None:
    whole, cut, one, many = (2 * degree, 3), (degree, 1), (1, 1), 2 * degree
    n = whole[0] * whole[1]
    spread = matrix(move("replicate", degree=degree), 2, whole, one)
    assert np.array_equal(spread.T, matrix(move("reduce", degree=degree), many, whole, one))
    assert not np.array_equal(spread.T @ spread, np.eye(2 * n))  # the two do not undo each other
    for push, pop in (("partition", "combine"),):
        there = matrix(move(push, dim=0, degree=degree), 1, whole, one)
        assert np.array_equal(there.T, matrix(move(pop, dim=0, degree=degree), 1, whole, cut))
    tiled = matrix(move("tile", dim=0, degree=degree), 1, whole, one)
    longer = (whole[0] * degree, whole[1])
    assert np.array_equal(tiled.T, matrix(move("fold", dim=0, degree=degree), 1, longer, cut))


@pytest.mark.parametrize("degree", [2, 3])
def test_pipeline_and_batch_are_each_others_transpose(degree: int) -> None:
    """Both keep all entries; what one pushes the other pops."""
    shape = (2 * degree, 3)
    there = matrix(move("pipeline", dim=0, degree=degree), 1, shape, (1, 1))
    value = ParallelValue.of(np.arange(1.0, 1 + 6 * degree).reshape(1, *shape))
    piped = evaluate([move("pipeline", dim=0, degree=degree)], {"x": value}, Real())["y"]
    back = evaluate([move("batch", dim=0, degree=degree)], {"x": piped}, Real())["y"]
    assert back.state == value.state
    batch = (back.array.ravel()[:, None] == value.array.ravel()[None, :]).astype(float)  # all entries differ
    assert np.array_equal(there.T, batch)
