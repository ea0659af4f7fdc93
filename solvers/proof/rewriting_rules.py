"""Which rules may rewrite a graph: those that are proved and whose operators it has; and why the others may not."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from ...formulation.rewriting.pattern import Pattern, UnmatchableError, term_attributes
from ...formulation.rewriting.rules import instances, planner_rules
from ...formulation.rewriting.spelling import is_parallel, spelled
from ...formulation.substitution.rule import Rule
from ...formulation.substitution.rule_file import basis
from ...model.errors import PartitaError
from ...model.graph.pcg import PCG
from .verdict import Verdict
from .verify import verify_rule

PARALLEL = "layouts decide on parallel operators"
ABSENT = "the graph lacks its operators"
EXAMPLES = 3


@dataclass(frozen=True, slots=True)
class RewritingRules:
    """The rules that may rewrite a graph: hand-written ones (`own`), forms of generated or published ones (`bounded`).

    `skipped`: the names of the rules of which no form is used, by reason. Bounded forms are proved where they match.
    """

    own: tuple[Rule, ...]
    bounded: tuple[Rule, ...]
    given: int
    skipped: Mapping[str, tuple[str, ...]]

    def to_json(self) -> dict[str, Any]:
        skipped = [
            {"why": why, "rules": len(names), "examples": list(names[:EXAMPLES])} for why, names in self.skipped.items()
        ]
        used = self.given - sum(len(names) for names in self.skipped.values())
        forms = len(self.own) + len(self.bounded)
        return {"given": self.given, "used": used, "forms": forms, "skipped": skipped, "words": self.words()}

    def words(self) -> str:
        """The rules that are skipped, in a sentence; empty if none is, or only for want of operators."""
        told = {why: names for why, names in self.skipped.items() if why != ABSENT}
        count = sum(map(len, told.values()))
        reasons = "; ".join(f"{len(names)}: {why}, such as {names[0]!r}" for why, names in told.items())
        return f"{count} of {self.given} rules cannot rewrite ({reasons})" if count else ""


@lru_cache(maxsize=8192)
def _proved(rule: Rule) -> Verdict:
    return verify_rule(rule)


def rewriting_rules(rules: Sequence[Rule], pcg: PCG) -> RewritingRules:
    """The rules that may rewrite a graph, at the attributes of its operators; bounded ones are to be proved yet.

    Raises PartitaError if all are skipped, and not only because the graph lacks their operators.
    """
    shipped = frozenset(planner_rules())
    generated = frozenset(basis()) if any(rule not in shipped for rule in rules) else frozenset[Rule]()
    skipped: dict[str, str] = {}
    details: dict[str, str] = {}
    forms: dict[Rule, list[Rule]] = {}
    for rule in rules:
        try:
            forms[rule] = list(_forms(rule, pcg, rule in shipped, rule in generated))
        except UnmatchableError as error:
            skipped[rule.name], details[rule.name] = error.why, str(error)
        except PartitaError as error:  # it does not type-check
            skipped[rule.name], details[rule.name] = "it is ill-typed", f"rule {rule.name!r} is ill-typed: {error}"
    reachable = _reachable(forms.values(), pcg)
    used: dict[Rule, list[Rule]] = {}
    for rule, those in forms.items():
        found = [form for form in those if {apply.op for apply in form.source} <= reachable]
        if not found:
            skipped[rule.name] = ABSENT
            continue
        bounded = rule in generated or rule.id is not None  # many: proved if they match
        used[rule] = found if bounded else [form for form in found if form in shipped or is_proved(form)]
        if not used[rule]:
            verdict = _proved(found[0])
            skipped[rule.name] = "it is refuted" if verdict.verdict == "refuted" else f"it is {verdict.verdict}"
            details[rule.name] = f"rule {rule.name!r} is {verdict.verdict}, not proved: {verdict.note}".rstrip(": ")
    if details and len(skipped) == len(rules) and ABSENT not in skipped.values():
        name, words = next(iter(details.items()))
        raise PartitaError(f"none of the {len(rules)} rules can rewrite: {words}")
    reasons: dict[str, list[str]] = {}
    for name, why in skipped.items():
        reasons.setdefault(why, []).append(name)
    many = [rule for rule in used if rule in generated or rule.id is not None]
    used = {rule: those for rule, those in used.items() if those}
    return RewritingRules(
        tuple(dict.fromkeys(form for rule, those in used.items() for form in those if rule not in many)),
        tuple(dict.fromkeys(form for rule in many for form in used.get(rule, ()))),
        len(rules),
        {why: tuple(names) for why, names in reasons.items()},
    )


def is_proved(rule: Rule) -> bool:
    """True if a rule is proved."""
    return _proved(rule).verdict == "proved"


def _forms(rule: Rule, pcg: PCG, shipped: bool, generated: bool) -> Iterable[Rule]:
    """The forms of a rule that patterns can be made of. Raises PartitaError: there is none."""
    if not shipped and is_parallel(rule):
        raise UnmatchableError(rule, PARALLEL)
    refusal: UnmatchableError | None = None
    found = []
    for form in [rule] if shipped else spelled(rule, pcg, both_ways=generated):
        for one in instances(form, pcg):
            try:
                Pattern(one).text()
            except UnmatchableError as error:
                refusal = refusal or error
            else:
                found.append(one)
    if refusal is not None and not found:
        raise refusal
    return found


def _reachable(forms: Iterable[Sequence[Rule]], pcg: PCG) -> set[str]:
    """The operators that the graph has, and those that rules may make of them; a split stands for parts and slices."""
    reachable = {node.op for node in pcg.nodes if term_attributes(node.op) is not None}
    reachable |= {"split"} if reachable & {"part", "slice"} else set()
    every = [({a.op for a in form.source}, {a.op for a in form.target}) for those in forms for form in those]
    while True:
        before = len(reachable)
        for source, target in every:
            if source <= reachable:
                reachable |= target
        if len(reachable) == before:
            return reachable
