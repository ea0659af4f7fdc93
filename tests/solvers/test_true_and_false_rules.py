"""Many small rules over all operators: true ones are proved and hold on numbers, false ones are never proved."""

from pathlib import Path

from partita.formulation.substitution.rule import Rule
from partita.formulation.substitution.rule_file import load_rules
from partita.formulation.substitution.symbolic.infer import infer
from partita.formulation.substitution.symbolic.types import Stuck
from partita.formulation.substitution.trial import can_run, random_trials, small_trials
from partita.solvers.proof.verify import verify_rule

DATA = Path(__file__).parents[1] / "data"

# True, and not proved today.
OPEN = {
    "flip twice",
    "flip through relu",
    "sum of flip",
    "flip of joined",
    "flip in a product",
    "attention with keys flipped",
    "attention with queries flipped",
    "index of relu",
    "gather of relu",
    "pad summed",
    "pad in a product",
}
# False, and not refuted: where both sides are numbers they agree, or the operator is not run.
UNREFUTED = {"exp of log", "square of sqrt", "adaptive mean of a maximum"}


def agrees(rule: Rule) -> bool:
    """Whether both sides agree on random numbers: negative ones, zeros and ties, small and large."""
    try:
        runs = list(small_trials(infer(rule), 2, seed=100))
    except Stuck:
        runs = [run for run, _ in zip(random_trials(rule), range(2), strict=False)]
    assert runs or not can_run(rule), rule.name
    return all(run.difference() is None for run in runs)


def test_true_rules_are_proved_and_hold() -> None:
    rules = load_rules(DATA / "true_rules.txt")
    unproved = {rule.name for rule in rules if verify_rule(rule).verdict != "proved"}
    assert unproved == OPEN
    assert len(OPEN) < 0.05 * len(rules)
    assert not [rule.name for rule in rules if rule.name not in OPEN and not agrees(rule)]


def test_false_rules_are_not_proved() -> None:
    found = {rule.name: verify_rule(rule) for rule in load_rules(DATA / "false_rules.txt")}
    assert not [name for name, verdict in found.items() if verdict.verdict == "proved"]
    assert {name for name, verdict in found.items() if verdict.verdict == "unknown"} == UNREFUTED
    for verdict in found.values():
        if verdict.counterexample is not None:
            sentence = verdict.counterexample.sentence()
            assert " after the rule " in sentence or " the shapes are " in sentence
