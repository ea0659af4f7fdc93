"""Transformations of a user's own are proved before they are applied; false ones are refused with a counterexample."""

from __future__ import annotations

from itertools import product

import pytest

from partita.formulation.spacetime.graph import Graph
from partita.formulation.spacetime.op import Op
from partita.formulation.spacetime.primitives import op_assign, op_trans
from partita.formulation.spacetime.tasks import tasks
from partita.formulation.spacetime.transformation import Transformation, replicate, split, split_value, transformation
from partita.formulation.strategies.row import Row
from partita.formulation.strategies.strategy import rows
from partita.formulation.substitution.op_trans import row_rule
from partita.formulation.substitution.rule import Rule
from partita.model.errors import PartitaError
from partita.model.graph.builder import Builder
from partita.model.graph.layout import B, P, R, S
from partita.model.graph.pcg import PCG
from partita.solvers.spacetime.prove import prover
from partita.solvers.spacetime.validate import validate


def network() -> PCG:
    """loss = Σ softmax(relu(l(x))) table: a linear with bias, and a matmul of two that have gradients."""
    b = Builder(4)
    x, w, c = b.input("x", (4, 6)), b.parameter("l.weight", (8, 6)), b.parameter("l.bias", (8,))
    h = b.add("linear", x, w, c, shape=(4, 8), name="l")
    r = b.add("relu", h, shape=(4, 8), name="r")
    a = b.add("softmax", r, shape=(4, 8), dim=1, name="a")
    y = b.add("matmul", a, b.parameter("table", (8, 2)), shape=(4, 2), name="y")
    return b.build(b.add("sum", y, shape=(), dims=(0, 1), keepdim=False, name="loss"))


def operators(graph: Graph) -> dict[str, Op]:
    return {op.of.name: op for op in graph.forward}


@pytest.mark.parametrize(
    ("name", "own", "like"),
    [
        ("l", transformation(["whole", 0, 0], 1, 2, "columns"), split("o", 2)),
        ("l", transformation([0, "whole", "whole"], 0, 2), split("batch", 2)),
        ("l", transformation([1, 1, "addends"], "addends", 2, "rows"), split("i", 2)),
        ("y", transformation([1, 0], "addends", 4, "rows"), split("k", 4)),
        ("y", transformation(["addends", "whole"], "addends", 2), split_value("a", 2)),
        ("r", transformation([1], 1, 2), split(1, 2)),
        ("a", transformation(["whole"], "whole", 2), replicate(2)),
    ],
)
def test_a_right_transformation_cuts_as_the_derived_one_does(
    name: str, own: Transformation, like: Transformation
) -> None:
    ours, theirs = Graph(network(), prover), Graph(network())
    for mine, other in zip(op_trans(operators(ours)[name], own), op_trans(operators(theirs)[name], like), strict=True):
        assert repr((mine.reads, mine.writes)) == repr((other.reads, other.writes))
        assert mine.backward is not None and other.backward is not None
        own_backward, derived = mine.backward, other.backward
        assert repr((own_backward.reads, own_backward.writes)) == repr((derived.reads, derived.writes))


def test_a_plan_of_ones_own_is_valid() -> None:
    graph = Graph(network(), prover)
    own = {
        "l": transformation(["whole", 0, 0], 1, 2),
        "r": transformation([1], 1, 2),
        "y": transformation([1, 0], "addends", 2),
    }
    for name, op in operators(graph).items():
        for device, part in enumerate(op_trans(op, own.get(name, replicate(2)))):
            op_assign(part, device)
    assert len(validate(tasks(graph)).order) == len(tasks(graph).ops)


@pytest.mark.parametrize(
    ("name", "own", "said"),
    [
        ("a", transformation([1], 1, 2, "columns"), "columns of softmax 'a' is not accepted: it is ill-typed: .*whole"),
        ("r", transformation(["addends"], "addends", 2), "own of relu 'r' is not accepted: it is false: at d = "),
        ("r", transformation(["whole"], "addends", 2), "the operator gives .* where the parts give"),
        ("l", transformation([1, 1, "whole"], "addends", 2, "rows"), "rows of linear 'l' is not accepted: it is false"),
        ("l", transformation([1, 0, 0], 1, 2), "is not accepted: it is ill-typed"),
        ("y", transformation(["addends", "addends"], "addends", 2), "own of matmul 'y' is not accepted: it is false"),
        ("y", transformation([0, "whole"], "whole", 2), "own of matmul 'y' is not accepted"),
        ("loss", transformation([0], "whole", 2), "own of sum 'loss' is not accepted: it is false"),
    ],
)
def test_a_false_transformation_is_refused(name: str, own: Transformation, said: str) -> None:
    graph = Graph(network(), prover)
    op = operators(graph)[name]
    with pytest.raises(PartitaError, match=said):
        op_trans(op, own)
    assert graph.parts(op.node) == (op,)


def test_what_is_derived_is_what_can_be_proved() -> None:
    """Every cut of four operators: those of their index notation are proved, and no other is."""
    graph = Graph(network())
    pcg, proved = graph.pcg, 0
    for name in ("l", "r", "a", "y"):
        node = operators(graph)[name].node
        derived = {(row.inputs, row.output) for row in rows(pcg, node) if not row.special}
        letters = [
            [shared, P, *(S(d) for d in range(len(pcg.nodes[i].shape)))]
            for i, shared in ((i, B if pcg.nodes[i].gradient else R) for i in pcg.nodes[node].inputs)
        ]
        for inputs in product(*letters):
            for output in (P, *(S(d) for d in range(len(pcg.nodes[node].shape)))):
                rule = row_rule(pcg, node, Row(inputs, output), "cut")
                assert rule is not None
                said = prover(rule)
                assert (said == "") == ((inputs, output) in derived), (name, inputs, output, said)
                proved += not said
    assert proved >= 10


def test_a_proof_is_asked_for_once_for_all_parts() -> None:
    asked: list[Rule] = []

    def spy(rule: Rule) -> str:
        asked.append(rule)
        return ""

    graph = Graph(network(), spy)
    for part in op_trans(operators(graph)["r"], split("batch", 2)):
        op_trans(part, transformation(["addends"], "addends", 2))
    assert len(asked) == 1
