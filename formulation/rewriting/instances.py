"""Rules whose attributes are words: `conv(x, w, stride=s, ..)` stands for a rule at every stride.

Such a rule is instantiated at the attributes that the operators of a graph have, and each instance is proved by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from ...model.graph.pcg import PCG
from ..substitution.rule import Apply, Rule, Value
from .pattern import NUMBERS, SIGNATURES, WORDS

_USUAL = (
    (1, 0, 0, 1),
    (1, 1, 1, 1),
    (2, 1, 1, 1),
    (2, 3, 3, 1),
    (1, 0, 3, 1),
    (1, 2, 2, 2),
)  # stride, padding, dilation
WINDOWS: tuple[Mapping[str, Value], ...] = tuple(
    {"stride": (s, s), "padding": (p, q), "dilation": (e, e), "groups": 1} for s, p, q, e in _USUAL
)
"""Windows at which shipped rules with words are verified where no graph says at which."""


def attribute_words(rule: Rule) -> frozenset[str]:
    """The words that stand for attributes of operators."""
    return frozenset(word for apply in rule.source for _, word in _words(apply))


def instances(rule: Rule, pcg: PCG) -> tuple[Rule, ...]:
    """The rule at all attributes that the graph's operators have; itself where it has no words."""
    given: dict[str, list[Mapping[str, Any]]] = {}
    for node in pcg.nodes:
        of_op = given.setdefault(node.op, [])
        attributes = dict(node.attributes)
        if node.op in SIGNATURES and attributes not in of_op:
            of_op.append(attributes)
    return tuple(_instances(rule, given))


def usual_instances(rule: Rule) -> tuple[Rule, ...]:
    """The rule at the usual windows; itself where it has no words."""
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
        yield replace(rule, name=name, source=_bound(rule.source, binding), target=_bound(rule.target, binding))


def _words(apply: Apply) -> list[tuple[str, str]]:
    """Attributes that are words: (attribute, word)."""
    own = SIGNATURES.get(apply.op, ())
    return [
        (name, value)
        for name, value in apply.attributes
        if name in own and isinstance(value, str) and value.isidentifier() and value not in WORDS
        and (name not in NUMBERS or apply.op == "conv")
    ]  # fmt: skip


def _merged(known: Mapping[str, Value], attributes: Mapping[str, Any], apply: Apply) -> dict[str, Value] | None:
    """What is known with an operator's attributes; None where they do not agree."""
    words = dict(_words(apply))
    if any(attributes.get(name) != value for name, value in apply.attributes if name not in words):
        return None
    bound = dict(known)
    for name, word in words.items():
        if name not in attributes or bound.setdefault(word, attributes[name]) != attributes[name]:
            return None
    return bound


def _bound(side: tuple[Apply, ...], binding: Mapping[str, Value]) -> tuple[Apply, ...]:
    def of(value: Value) -> Value:
        return binding.get(value, value) if isinstance(value, str) else value

    return tuple(
        replace(apply, attributes=tuple((name, of(value)) for name, value in apply.attributes)) for apply in side
    )
