"""Random mutants of rules: what a slip of the pen makes of them."""

import random
from collections.abc import Iterator
from dataclasses import replace

from partita.formulation.substitution.rule import Apply, Rule
from partita.model.errors import PartitaError

UNARY = ("relu", "exp", "gelu", "neg", "contiguous", "transpose")
BINARY = ("add", "mul", "sub", "matmul", "linear", "div")
MOVES = ("partition", "combine", "pipeline", "batch", "tile", "fold")
COPIES = ("replicate", "reduce")


def mutants(rule: Rule, count: int, rng: random.Random) -> Iterator[Rule]:
    """Some mutants of the target, or of its outputs; those that are no rules are left out."""
    for number in range(count):
        try:
            mutant = rng.choice((_operator, _attribute, _inputs, _other, _bypass, _outputs))(rule, rng)
        except PartitaError:
            continue
        if mutant is not None and mutant != rule:
            yield replace(mutant, name=f"{rule.name}, mutant {number}")


def _changed(rule: Rule, place: int, apply: Apply) -> Rule:
    return replace(rule, target=(*rule.target[:place], apply, *rule.target[place + 1 :]))


def _pick(rule: Rule, rng: random.Random) -> tuple[int, Apply] | None:
    if not rule.target:
        return None
    place = rng.randrange(len(rule.target))
    return place, rule.target[place]


def _operator(rule: Rule, rng: random.Random) -> Rule | None:
    picked = _pick(rule, rng)
    for group in (UNARY, BINARY, MOVES, COPIES) if picked else ():
        place, apply = picked
        if apply.op in group:
            return _changed(rule, place, replace(apply, op=rng.choice(group)))
    return None


def _attribute(rule: Rule, rng: random.Random) -> Rule | None:
    picked = _pick(rule, rng)
    if picked is None or not picked[1].attributes:
        return None
    place, apply = picked
    key, value = rng.choice(apply.attributes)
    other = {"dim": rng.choice([0, 1, 2, "replica"]), "degree": rng.choice([2, 3, 4, "d"]), "value": 2.5, "stride": 2}
    if isinstance(value, tuple):
        other[key] = tuple(rng.sample(value, len(value)))
    if key not in other:
        return None
    given = tuple((k, other[key] if k == key else v) for k, v in apply.attributes)
    return _changed(rule, place, replace(apply, attributes=given))


def _inputs(rule: Rule, rng: random.Random) -> Rule | None:
    picked = _pick(rule, rng)
    if picked is None or len(picked[1].inputs) < 2:
        return None
    place, apply = picked
    return _changed(rule, place, replace(apply, inputs=tuple(rng.sample(apply.inputs, len(apply.inputs)))))


def _other(rule: Rule, rng: random.Random) -> Rule | None:
    """Another value where one is read."""
    picked = _pick(rule, rng)
    if picked is None:
        return None
    place, apply = picked
    known = [t.name for t in rule.inputs] + [n for a in rule.target[:place] for n in a.outputs]
    names = list(apply.inputs)
    names[rng.randrange(len(names))] = rng.choice(known)
    return _changed(rule, place, replace(apply, inputs=tuple(names)))


def _bypass(rule: Rule, rng: random.Random) -> Rule | None:
    """One application left out."""
    picked = _pick(rule, rng)
    if picked is None or len(picked[1].outputs) != 1:
        return None
    place, gone = picked
    old, new = gone.outputs[0], rng.choice(gone.inputs)
    later = tuple(replace(a, inputs=tuple(new if n == old else n for n in a.inputs)) for a in rule.target[place + 1 :])
    outputs = tuple((s, new if t == old else t) for s, t in rule.outputs)
    return replace(rule, target=rule.target[:place] + later, outputs=outputs)


def _outputs(rule: Rule, rng: random.Random) -> Rule | None:
    """The target's outputs in another order, or another value as one."""
    targets = [t for _, t in rule.outputs]
    if len(targets) > 1:
        rng.shuffle(targets)
    else:
        targets = [rng.choice([n for a in rule.target for n in a.outputs] + [t.name for t in rule.inputs])]
    return replace(rule, outputs=tuple((s, t) for (s, _), t in zip(rule.outputs, targets, strict=True)))
