"""`partita rules list|verify`: the rules of a file, or the shipped ones. `bench.rule_generation` generates them."""

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias

from ...formulation.rewriting.rules import instances, planner_rules, usual_instances
from ...formulation.substitution.rule import Rule
from ...formulation.substitution.rule_file import basis, load_rules
from ...formulation.substitution.text import write_rule
from ...model.errors import PartitaError
from ...model.graph.pcg import PCG
from .verdict import Verdict
from .verify import rules_report, verify_rule

Answer: TypeAlias = tuple[dict[str, Any], str]
"""The JSON report, and the same in words."""


@lru_cache(maxsize=4096)
def _proved(rule: Rule) -> Verdict:
    return verify_rule(rule)


def proved_instances(rules: Sequence[Rule], pcg: PCG) -> tuple[Rule, ...]:
    """The proved rules, those with symbols for attributes instantiated at the attributes of the graph's operators.

    Raises PartitaError for the first rule that is not proved; instances whose verdict is unknown are left out.
    """
    found = []
    for rule in rules:
        for one in instances(rule, pcg):
            verdict = None if one == rule and rule in planner_rules() else _proved(one)  # the tests prove these
            if verdict is None or verdict.verdict == "proved":
                found.append(one)
            elif one == rule or verdict.verdict != "unknown":
                why = f"{verdict.note}".rstrip()
                raise PartitaError(f"rule {one.name!r} is {verdict.verdict}, not proved: it cannot rewrite. {why}")
    return tuple(found)


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
