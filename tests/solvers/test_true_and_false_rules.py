"""Many small rules over all operators: true ones are proved and hold on numbers, false ones are never proved."""

from contextlib import suppress
from pathlib import Path

import numpy as np

from partita.formulation.substitution.rule import Rule
from partita.formulation.substitution.rule_file import load_rules
from partita.formulation.substitution.symbolic.infer import Typed, free_atoms, infer
from partita.formulation.substitution.symbolic.types import Mismatch, Stuck
from partita.formulation.substitution.trial import RuleTrial, can_run, random_trials, small_trials, trial_at
from partita.solvers.proof.verify import verify_rule

from .symbolic_numbers import Numbers, UnknownFunctionError

DATA = Path(__file__).parents[1] / "data"

# True, and not proved today.
OPEN = {
    "flip of joined",
    "gather of relu",
    "pad summed",
    "pad in a product",
}
# Not rules, and not refuted: where both sides are numbers they agree, or the operator is not run.
UNREFUTED = {"exp of log", "square of sqrt", "adaptive mean of a maximum", "detach is nothing"}


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


def test_symbolic_values_are_the_numbers_that_runs_give() -> None:
    """Definitions and normal forms against the evaluator, which knows neither: every tenth rule, both sides."""
    compared = 0
    for rule in (*load_rules(DATA / "true_rules.txt"), *load_rules(DATA / "false_rules.txt"))[::10]:
        with suppress(Mismatch, Stuck):
            typed = infer(rule, agree=False, defined=True)
            rng = np.random.default_rng(0)
            sizes = {atom: int(rng.integers(1, 3)) for atom in free_atoms(typed)}
            run = trial_at(typed, sizes, 0)
            with suppress(UnknownFunctionError):
                compared += run is not None and both_sides(typed, sizes, run)
    assert compared >= 25


def both_sides(typed: Typed, sizes: dict[str, int], run: RuleTrial) -> int:
    numbers = Numbers(typed, sizes, {name: value.array for name, value in run.inputs.items()})
    for pair, *found in zip(typed.outputs, run.source, run.target, strict=True):
        for symbolic, value in zip(pair, found, strict=True):
            made = numbers.array(symbolic)
            finite = np.isfinite(made) & np.isfinite(value.array)
            np.testing.assert_allclose(made[finite], value.array[finite], rtol=1e-8, atol=1e-8, err_msg=typed.rule.name)
    return 1


def test_false_rules_are_not_proved() -> None:
    found = {rule.name: verify_rule(rule) for rule in load_rules(DATA / "false_rules.txt")}
    assert not [name for name, verdict in found.items() if verdict.verdict == "proved"]
    assert {name for name, verdict in found.items() if verdict.verdict == "unknown"} == UNREFUTED
    for verdict in found.values():
        if verdict.counterexample is not None:
            sentence = verdict.counterexample.sentence()
            assert " after the rule " in sentence or " the shapes are " in sentence
