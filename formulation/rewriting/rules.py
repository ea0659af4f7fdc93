"""The rules that a graph is rewritten by: the planner's, those of a file, and instances at the graph's attributes.

A rule with symbols for attributes, such as `conv(x, w, stride=s, ..)`, stands for a rule at every stride. It is
instantiated at the attributes that a graph's operators have, and each instance is proved by itself.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

from ...model.errors import PartitaError
from ...model.graph.pcg import PCG
from ..substitution.rule import Apply, Rule, Value
from ..substitution.rule_file import basis, load_rules
from ..substitution.text import parse_rules
from .pattern import NUMBERS, WORDS, term_attributes

PLANNER = Path(__file__).parent / "planner.rules"
# stride, padding along both dims, dilation
_USUAL = ((1, 0, 0, 1), (1, 1, 1, 1), (2, 1, 1, 1), (2, 3, 3, 1), (1, 0, 3, 1), (1, 2, 2, 2))
WINDOWS: tuple[Mapping[str, Value], ...] = tuple(
    {"stride": (s, s), "padding": (p, q), "dilation": (e, e), "groups": 1} for s, p, q, e in _USUAL
)
"""Windows at which shipped rules with symbols for attributes are verified if no graph is given."""


@cache
def planner_rules() -> tuple[Rule, ...]:
    """The rules of `partita plan --rewrite`."""
    return tuple(parse_rules(PLANNER.read_text(encoding="utf-8")))


ALL = "all"
"""The planner's rules and the generated ones."""


def rules_for(rewrite: bool | str | Path | Sequence[Rule]) -> tuple[Rule, ...]:
    """The planner's rules (True), with the generated ones ("all"), those of a file, or those given.

    PartitaError: a malformed file, another word.
    """
    if isinstance(rewrite, bool):
        return planner_rules() if rewrite else ()
    if isinstance(rewrite, str):
        if rewrite != ALL:
            raise PartitaError(f"rewrite={rewrite!r}: True, False, {ALL!r}, a path or rules are needed")
        return (*planner_rules(), *basis())
    return load_rules(rewrite) if isinstance(rewrite, Path) else tuple(rewrite)


def rule_sets(rules: Sequence[Rule]) -> tuple[tuple[Rule, ...], ...]:
    """The sets of rules to plan with: the hand-written ones alone first if generated ones are among them."""
    known = frozenset(planner_rules())
    if not rules or all(rule in known for rule in rules):
        return (tuple(rules),)
    generated = frozenset(basis())
    own = tuple(rule for rule in rules if rule not in generated)
    return (own, tuple(rules)) if own and len(own) < len(rules) else (tuple(rules),)


def instances(rule: Rule, pcg: PCG) -> tuple[Rule, ...]:
    """The rule at all attributes that the graph's operators have; the rule itself if it has no such symbols."""
    given: dict[str, list[Mapping[str, Any]]] = {}
    for node in pcg.nodes:
        of_op = given.setdefault(node.op, [])
        attributes = dict(node.attributes)
        if term_attributes(node.op) is not None and attributes not in of_op:
            of_op.append(attributes)
    return tuple(_instances(rule, given))


def usual_instances(rule: Rule) -> tuple[Rule, ...]:
    """The rule at the usual windows; the rule itself if it has no symbols for attributes."""
    return tuple(_instances(rule, {"conv": WINDOWS}))


def _instances(rule: Rule, given: Mapping[str, Iterable[Mapping[str, Any]]]) -> Iterator[Rule]:
    bindings: list[dict[str, Value]] = [{}]
    for apply in rule.source:
        words = _words(apply)
        if words:
            found = (_merged(known, attributes, apply) for known in bindings for attributes in given.get(apply.op, ()))
            bindings = [dict(each) for each in dict.fromkeys(tuple(b.items()) for b in found if b is not None)]
    for binding in bindings:
        name = rule.name + "".join(f", {word}={value}" for word, value in binding.items())
        yield rule.map(partial(_bound, binding), name=name)


def _bound(binding: Mapping[str, Value], apply: Apply) -> Apply:
    return apply.map(lambda _, value: binding.get(value, value) if isinstance(value, str) else value)


def _words(apply: Apply) -> list[tuple[str, str]]:
    """Attributes given as symbols: (attribute, symbol)."""
    own = term_attributes(apply.op) or ()
    return [
        (name, value)
        for name, value in apply.attributes
        if name in own and isinstance(value, str) and value.isidentifier() and value not in WORDS
        and (name not in NUMBERS or apply.op == "conv")
    ]  # fmt: skip


def _merged(known: Mapping[str, Value], attributes: Mapping[str, Any], apply: Apply) -> dict[str, Value] | None:
    """The bindings extended by an operator's attributes; None if they contradict."""
    words = dict(_words(apply))
    if any(attributes.get(name) != value for name, value in apply.attributes if name not in words):
        return None
    bound = dict(known)
    for name, word in words.items():
        if name not in attributes or bound.setdefault(word, attributes[name]) != attributes[name]:
            return None
    return bound
