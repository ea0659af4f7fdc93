"""`partita rules list|verify`: the rules of a file, or the shipped ones. `bench.rule_generation` generates them."""

from pathlib import Path
from typing import Any, TypeAlias

from ...formulation.rewriting.rules import planner_rules, usual_instances
from ...formulation.substitution.rule import Rule
from ...formulation.substitution.rule_file import basis, load_rules
from ...formulation.substitution.text import write_rule
from .verdict import Verdict
from .verify import rules_report, verify_rule

Answer: TypeAlias = tuple[dict[str, Any], str]
"""The JSON report, and the same in words."""


def list_rules(path: Path | None) -> Answer:
    """All rules: text notation, and JSON."""
    rules = _rules(path)
    result = {"rules": len(rules), "names": [rule.name for rule in rules], "list": [rule.to_json() for rule in rules]}
    return result, "\n\n".join(write_rule(rule).strip() for rule in rules)


def verify_rules(path: Path | None) -> Answer:
    """The verdicts on all rules."""
    rules = _rules(path)
    verdicts = [verify_rule(rule) for rule in rules]
    result = rules_report(rules, verdicts)
    lines = [_line(verdict) for verdict in verdicts]
    names = ("rules", "proved", "refuted", "ill_typed", "unknown")
    return result, "\n".join([*lines, ", ".join(f"{result[name]:,} {name.replace('_', '-')}" for name in names)])


def _rules(path: Path | None) -> tuple[Rule, ...]:
    """The rules of a file, or the shipped ones: the planner's (at usual windows) and the generated basis."""
    if path is not None:
        return load_rules(path)
    return (*(one for rule in planner_rules() for one in usual_instances(rule)), *basis())


def _line(verdict: Verdict) -> str:
    words = [verdict.covers, verdict.note]
    if verdict.counterexample is not None:
        words.append(verdict.counterexample.sentence())
    return f"{verdict.verdict:9}  {verdict.name}: " + "; ".join(word for word in words if word)
