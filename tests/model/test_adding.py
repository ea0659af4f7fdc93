"""A new operator from outside: one entry, and it is captured, planned, emitted and verified."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

import partita
from partita.formulation.strategies.strategy import row_names
from partita.formulation.substitution.text import parse_rule
from partita.model.operators import operator as registry
from partita.model.operators.algebra import Algebra
from partita.model.operators.operator import Operator, register
from partita.solvers.proof.verify import verify_rule

from ..solvers.counterexamples import to_torch


@pytest.fixture
def renorm() -> Iterator[None]:
    before = dict(registry._REGISTRY) if registry.operators() else {}
    register(
        Operator(
            "renorm", ("x",), "y[n, i..] = f(x[n, :])[i..]", "torch.renorm({x}, {p}, 0, {maxnorm})",
            saved=("x",), captures="aten::renorm", attributes=("p", "dim", "maxnorm"),
        )
    )  # fmt: skip
    yield
    registry._REGISTRY.clear()
    registry._REGISTRY.update(before)


@pytest.fixture
def cube() -> Iterator[None]:
    before = dict(registry._REGISTRY) if registry.operators() else {}
    algebra = Algebra(real=lambda given, a: a**3)
    register(Operator("cube", ("x",), "y[i..] = f(x[i..])", "{x} ** 3", saved=("x",), algebra=algebra))
    yield
    registry._REGISTRY.clear()
    registry._REGISTRY.update(before)


class Model(nn.Module):
    """Rows of at most a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 6)

    def forward(self, x: Tensor) -> Tensor:
        return torch.renorm(self.inner(x), 2, 0, 0.5).square().sum()


def test_an_operator_of_a_users_own(renorm: None) -> None:
    plan = partita.optimize(Model(), (torch.zeros(6, 4),), partita.Machine.adhoc((2,)), batch=6, fix={"renorm": "n"})
    (node,) = plan.graph.of("renorm")
    assert row_names(plan.graph, node) == ("R", "B", "n")
    assert dict(plan.graph.nodes[node].attributes) == {"p": 2, "dim": 0, "maxnorm": 0.5}
    assert "torch.renorm(" in plan.emit()
    assert plan.verify()["ok"]


def test_rules_use_it(cube: None) -> None:
    """Its notation proves rules, its function refutes them, its expression does so in PyTorch."""
    law = "{}:\n    x[n, m]\n    y = cube(scale(x, value=2))\n  =>\n    y = scale(cube(x), value={})\n"
    moved = "moved:\n    x[n, m]\n    y = cube(partition(x, dim=0, degree=2))\n  =>\n"
    moved += "    y = partition(cube(x), dim=0, degree=2)\n"
    assert verify_rule(parse_rule(moved)).verdict == "proved"
    wrong = parse_rule(law.format("wrong", 4))
    verdict = verify_rule(wrong)
    assert verdict.verdict == "refuted" and to_torch(wrong, verdict) > 0
    assert verify_rule(parse_rule(law.format("right", 8))).verdict == "unknown"  # `f` is opaque


def test_without_it_capture_decomposes_the_call() -> None:
    graph = partita.capture(Model(), (torch.zeros(6, 4),))
    assert not graph.of("renorm") and graph.of("norm")
