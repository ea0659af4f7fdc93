"""Rules as e-graphs match them: sizes solved, other spellings, skipped ones told; costs bounded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn

import partita
from partita import PartitaError
from partita.formulation.rewriting.cost_bound import kernel_cost
from partita.formulation.rewriting.pattern import Pattern, UnmatchableError
from partita.formulation.rewriting.rules import planner_rules, rule_sets
from partita.formulation.rewriting.saturate import Rewritten, SaturationLimits, rewritings
from partita.formulation.rewriting.spelling import as_linear, is_parallel, spelled
from partita.formulation.substitution.rule import Rule
from partita.formulation.substitution.rule_file import basis, read_rules
from partita.formulation.substitution.text import parse_rule, write_rule
from partita.model.graph.builder import Builder
from partita.model.graph.pcg import PCG
from partita.model.machine.machine import Machine
from partita.solvers.proof.rewriting_rules import is_proved, rewriting_rules
from partita.solvers.proof.verify import verify_rule

MACHINE = Machine.adhoc((2,))


def ended(b: Builder, y: int) -> PCG:
    return b.build(b.add("projection", y, shape=(), site=0))


def scaled(b: Builder, name: str, shape: tuple[int, ...]) -> int:
    """An input times a weight, so that it has a gradient."""
    return b.add("mul", b.input(name, shape), b.parameter(f"{name}.scale", shape[-1:]), shape=shape)


def split_and_joined(first: int) -> PCG:
    """Slices of 8 columns, `first` and the rest, side by side again."""
    b = Builder(4)
    x = scaled(b, "x", (4, 8))
    parts = [
        b.add("slice", x, shape=(4, stop - start), dim=1, start=start, stop=stop, step=1)
        for start, stop in ((0, first), (first, 8))
    ]
    return ended(b, b.add("tanh", b.add("cat", *parts, shape=(4, 8), dim=1), shape=(4, 8)))


def rewritten(graph: PCG, *rules: Rule) -> Rewritten:
    chosen = rewriting_rules(rules, graph)
    return rewritings(graph, chosen.own, bounded=chosen.bounded, cost=kernel_cost(MACHINE, "float32"), proved=is_proved)


def test_a_split_that_is_joined_again_vanishes() -> None:
    """Neither size is that of a tensor: both follow from where the slices end."""
    rule = parse_rule("""join:
        x[b, m+n]
        u, v = split(x, dim=1, sizes=(m, n))
        y = cat(u, v, dim=1)
      =>
      outputs y = x""")
    assert verify_rule(rule).verdict == "proved"
    for first in (3, 5):
        found = rewritten(split_and_joined(first), rule)
        assert found.applied["join"] and "mul" in {found.graph.nodes[a].op for a, _ in found.graph.alternatives}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("x[m+n, k]\ny = relu(x)\n=>\nu, v = split(x, dim=0, sizes=(m, n))\ny = relu(x)", "a size does not follow"),
        ("x[n, k]\n=>\ny = relu(x)\noutputs x = y", "without an operator"),
        ("x[n, k], z[n, k]\ny = relu(x)\n=>\ny = relu(z)", "a tensor does not occur"),
        ("x[n, k]\ny = relu(x)\n=>\ny = relu(reduce(x, degree=2))", "layouts"),
        ("x[n, k]\ny = softmax(x, dim=1)\n=>\ny = relu(x)", "does not support softmax"),
    ],
)
def test_rules_without_a_pattern(text: str, why: str) -> None:
    with pytest.raises(UnmatchableError, match=why):
        Pattern(parse_rule("rule:\n" + text)).text()


@pytest.mark.parametrize("dims", [1, 3])
def test_convolutions_of_other_ranks_keep_their_form(dims: int) -> None:
    """The planner's rules are about images."""
    conv = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[dims - 1]

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = conv(2, 3, 3, padding=1), conv(2, 3, 3, padding=1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (self.a(x) + self.b(x)).square().mean()

    plan = partita.optimize(Two(), (torch.zeros(4, 2, *(4,) * dims),), MACHINE, rewrite=True, cache="none")
    assert plan.report["status"] == "optimal" and plan.report["rewritten"] == []
    skipped = plan.report["space"]["rewritings"]["rules"]["skipped"]
    assert (
        "add convolutions of one input" in {name for each in skipped for name in each["examples"]} or len(skipped) > 1
    )


# Spelling


def test_products_of_matrices_as_linears() -> None:
    """Weights are transposed, with all that is done to them."""
    rule = parse_rule("""join:
        x[n, k], w[k, m], v[k, p]
        y = cat(matmul(x, w), matmul(x, v), dim=1)
      =>
        y = matmul(x, cat(w, v, dim=1))""")
    other = as_linear(rule)
    assert other is not None and "y = linear(x, cat(w, v, dim=0))" in write_rule(other)
    assert [tensor.dims for tensor in other.inputs] == [("n", "k"), ("m", "k"), ("p", "k")]
    assert verify_rule(other).verdict == "proved"


def test_no_linear_of_what_is_both_operands() -> None:
    rule = parse_rule("twice:\nx[n, n]\ny = add(matmul(x, x), x)\n=>\ny = add(x, matmul(x, x))")
    assert as_linear(rule) is None


def test_every_form_of_generated_rules_is_sound() -> None:
    """Reversed, of linears, of another function: all are proved, each by itself."""
    b = Builder(4)
    x = b.add("gelu", scaled(b, "x", (4, 8)), shape=(4, 8), approximate="none")
    graph = ended(b, x)
    rules = [rule for rule in basis() if not is_parallel(rule)][5::40]
    forms = [form for rule in rules for form in spelled(rule, graph, both_ways=True) if "window" not in form.name]
    verdicts = {form.name: verify_rule(form).verdict for form in forms}
    assert len(verdicts) > 20 and set(verdicts.values()) == {"proved"}


def test_another_function_in_the_place_of_relu() -> None:
    """cat(gelu(x), gelu(y)) becomes gelu(cat(x, y)): one kernel less."""
    b = Builder(4)
    those = [b.add("gelu", scaled(b, name, (4, 8)), shape=(4, 8), approximate="none") for name in "xy"]
    graph = ended(b, b.add("cat", *those, shape=(4, 16), dim=1))
    found = rewritten(
        graph, *(r for r in basis() if {a.op for a in r.applies} == {"relu", "cat"} and not is_parallel(r))
    )
    assert any("gelu" in name for name in found.made_by.values())
    taken = {found.graph.nodes[alternative].op for alternative, _ in found.graph.alternatives}
    assert "gelu" in taken


def test_broadcasting_is_not_matched() -> None:
    """Operands of one rank whose leading dims differ: a rule is about equal ones."""
    rule = parse_rule("drop:\nx[n, m], y[n, m]\nz = add(relu(x), y)\n=>\nz = add(y, relu(x))")
    for leading, count in (((4, 3), 1), ((4, 1), 0)):
        b = Builder(4)
        x, y = scaled(b, "x", (4, 3, 8)), scaled(b, "y", (*leading, 8))
        graph = ended(b, b.add("add", b.add("relu", x, shape=(4, 3, 8)), y, shape=(4, 3, 8)))
        assert rewritings(graph, [rule]).applied.get("drop", 0) == count


# Files and sets


def test_the_file_of_generated_rules_is_a_rule_file() -> None:
    path = Path(partita.__file__).parent / "formulation" / "substitution" / "data" / "basis.json"
    assert len(read_rules(path.read_text())) == len(basis()) == 800
    with pytest.raises(PartitaError, match="set 0"):
        read_rules(json.dumps({"sets": [{"name": "no rules"}]}))


def test_hand_written_rules_come_first() -> None:
    assert rule_sets(planner_rules()) == (planner_rules(),)
    both = (*planner_rules(), *basis()[:3])
    assert rule_sets(both) == (planner_rules(), both)


# The cost bound


def test_what_costs_too_much_is_deleted() -> None:
    """Concatenating before the function is cheaper than after; the other way round costs more than alpha admits."""
    b = Builder(4)
    x = b.add("cat", scaled(b, "x", (4, 8)), scaled(b, "y", (4, 8)), shape=(4, 16), dim=1)
    graph = ended(b, b.add("relu", x, shape=(4, 16)))
    rules = [rule for rule in basis() if {a.op for a in rule.applies} == {"relu", "cat"} and not is_parallel(rule)]
    chosen, cost = rewriting_rules(rules, graph), kernel_cost(MACHINE, "float32")

    def ways(alpha: float) -> int:
        limits = SaturationLimits(alpha=alpha)
        return rewritings(graph, (), limits, bounded=chosen.bounded, cost=cost, proved=is_proved).ways

    assert ways(1.0) == 0 < ways(2.0)


def test_rules_that_match_too_often_are_named() -> None:
    b = Builder(4)
    those = [b.add("relu", scaled(b, f"x{k}", (4, 8)), shape=(4, 8)) for k in range(12)]
    y = those[0]
    for other in those[1:]:
        y = b.add("mul", y, other, shape=(4, 8))
    graph = ended(b, y)
    pair = parse_rule("""pair:
        x[n, m], y[n, m]
        u = relu(x)
        v = relu(y)
      =>
        u, v = split(relu(cat(x, y, dim=1)), dim=1, sizes=(m, m))""")
    limits = SaturationLimits(matches=1, alpha=10)
    found = rewritings(graph, (), limits, bounded=[pair], cost=kernel_cost(MACHINE, "float32"))
    assert found.often == ("pair",) and found.applied == {} and found.graph is graph
    assert found.to_json()["too_often"] == ["pair"]


def test_unproved_rules_are_named_and_not_applied() -> None:
    wrong = parse_rule("wrong:\nx[n, m]\ny = tanh(relu(x))\n=>\ny = tanh(x)")
    b = Builder(4)
    x = b.add("relu", scaled(b, "x", (4, 8)), shape=(4, 8))
    graph = ended(b, b.add("tanh", x, shape=(4, 8)))
    found = rewritings(graph, (), bounded=[wrong], cost=kernel_cost(MACHINE, "float32"), proved=is_proved)
    assert found.unproved == ("wrong",) and found.graph is graph
