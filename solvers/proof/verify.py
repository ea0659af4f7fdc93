"""The verdict on a rule: type it, run it on numbers, prove it for all sizes and degrees that the theory reaches.

Inputs that only the target reads, and type errors, make a rule ill-typed. Z3 compares the normal forms of both values
(`decide`), first with degrees as symbols, then as stated. Both sides are run on numbers, at least once for a proof, and
a difference refutes the rule. Otherwise it is `unknown`.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import product
from typing import Any, TypeAlias

from ...formulation.substitution.rule import Rule, Tensor
from ...formulation.substitution.sizes import Size
from ...formulation.substitution.symbolic.indices import Index, every
from ...formulation.substitution.symbolic.infer import Differ, Typed, infer
from ...formulation.substitution.symbolic.terms import Body, free_of, row
from ...formulation.substitution.symbolic.types import Mismatch, Stuck, Unifier
from ...formulation.substitution.symbolic.values import Symbolic
from ...formulation.substitution.text import condition_parts, write_rule
from ...formulation.substitution.trial import RuleTrial, can_run, random_trials, small_trials
from .covers import covers, extra_conditions
from .decide import Decider
from .verdict import Counterexample, Verdict

Variables: TypeAlias = "tuple[tuple[str, str], ...]"
RUNS, MORE_RUNS = 2, 24  # sizes at which a rule is run: before the proof, and after a failed one


def verify_rule(rule: Rule, seconds: float = 10.0) -> Verdict:
    """The verdict on one rule; Z3 gets at most `seconds`."""
    start = time.perf_counter()
    try:
        verdict = _verdict(rule, seconds)
    except RecursionError:
        verdict = Verdict(rule.name, "unknown", note="its values are nested too deeply")
    return replace(verdict, seconds=time.perf_counter() - start)


def rules_report(rules: Sequence[Rule], verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """Counts by verdict, and the verdicts, as a JSON object."""
    words = [v.verdict for v in verdicts]
    return {
        "rules": len(verdicts),
        "proved": words.count("proved"),
        "refuted": words.count("refuted"),
        "ill_typed": words.count("ill-typed"),
        "unknown": words.count("unknown"),
        "verdicts": [
            ({} if rule.id is None else {"id": rule.id}) | verdict.to_json()
            for rule, verdict in zip(rules, verdicts, strict=True)
        ],
    }


def _verdict(rule: Rule, seconds: float) -> Verdict:
    try:
        typed = _typed(rule)
        phase, required = extra_conditions(typed)
        if phase == "outputs":
            return _differing_outputs(rule, f"the outputs agree only where {required}")
    except Differ as error:
        return _differing_outputs(rule, str(error))
    except Mismatch as error:
        return Verdict(rule.name, "ill-typed", note=str(error))
    except Stuck as error:
        return _refuted(rule.name, random_trials(rule)) or Verdict(rule.name, "unknown", note=str(error))
    lacking = _unbound_inputs(rule)
    if lacking or required:
        only = f"the target type-checks only where {required}"
        return Verdict(rule.name, "ill-typed", note=lacking or only)
    runs = list(small_trials(typed, RUNS))
    found = _refuted(rule.name, runs)
    if found is not None:
        return found
    fit = bool(runs) or not can_run(rule)  # an operator without an evaluation can only be proved
    reason = "" if fit else "no small sizes were found at which both sides can be run"
    for defined in (False, True) if fit else ():
        text, reason = _covered(rule, seconds, defined)
        if text:
            return Verdict(rule.name, "proved", text)
    found = _refuted(rule.name, small_trials(typed, MORE_RUNS, seed=1))
    return found or Verdict(rule.name, "unknown", note=reason or "neither proved nor refuted")


def _typed(rule: Rule) -> Typed:
    """The rule typed; by definitions of functions where their names do not decide the sizes."""
    try:
        return infer(rule)
    except Stuck:
        with suppress(Mismatch):
            return infer(rule, defined=True)
        raise


def _covered(rule: Rule, seconds: float, defined: bool) -> tuple[str, str]:
    """What a proof covers, with functions as names or by definition; or empty, and why there is none."""
    try:
        general = _general(rule, seconds, defined)
        if general:
            return general, ""
        typed = infer(rule, defined=defined)
        if not extra_conditions(typed)[1] and proved(typed, seconds):
            return covers(typed, _degrees(rule)) + _at_other_degrees(rule), ""
    except (Mismatch, Stuck) as error:
        return "", str(error)
    return "", ""


def _differing_outputs(rule: Rule, reason: str) -> Verdict:
    """A rule whose sides type-check but whose outputs differ in dims or states: refuted if both run, else ill-typed."""
    found = _refuted(rule.name, small_trials(infer(rule, agree=False), RUNS))
    return replace(found, note=reason) if found else Verdict(rule.name, "ill-typed", note=reason)


def _unbound_inputs(rule: Rule) -> str:
    """Names the inputs that only the target reads; empty if there are none."""
    read = [{n for a in side for n in a.inputs} for side in rule.sides]
    for pair in rule.outputs:
        for names, name in zip(read, pair, strict=True):
            names.add(name)
    only = ", ".join(t.name for t in rule.inputs if t.name in read[1] - read[0])
    return f"the target reads {only}, which the source lacks" if only else ""


def proved(typed: Typed, seconds: float) -> bool:
    """True if Z3 proves all outputs equal at every place. Raises Stuck for values without a normal form."""
    decider = Decider(typed.unifier, seconds, typed.scope.defined)
    for condition in typed.rule.where:
        left, word, right = condition_parts(condition)
        if word == ">=":
            decider.assume(*(typed.scope.number(str(size)) for size in (left, right)))
    _assume_row_numbers(typed, decider)
    for source, target in typed.outputs:
        for replica, indices, variables in _everywhere(source, typed.unifier):
            if not decider.equal(source.at(replica, indices), target.at(replica, indices), variables):
                return False
    return True


def _everywhere(value: Symbolic, unifier: Unifier) -> Iterator[tuple[Index, tuple[Index, ...], Variables]]:
    """All places of a value: replica index, indices, and the variables that count atoms."""
    dims = [list(every(unifier.resolve(t))) for t in (value.replicas, *value.dims)]
    for choice in product(*dims):
        replica, *indices = (index for index, _ in choice)
        yield replica, tuple(indices), tuple(v for _, variables in choice for v in variables)


def _assume_row_numbers(typed: Typed, decider: Decider) -> None:
    """Ids that the source looks up are row numbers. Raises Stuck unless those of the target then are, too."""
    given, required = set[tuple[Body, Size]](), list[tuple[Body, Size]]()
    for phase, ids, rows in typed.scope.lookups:
        for replica, indices, variables in _everywhere(ids, typed.unifier):
            value = ids.at(replica, indices)
            body = row(tuple(v for v in variables if v[0] in free_of(value)), value)
            (given.add if phase == "source" else required.append)((body, typed.unifier.size(rows)))
    for body, count in given:
        decider.learn(body, count)
    if not all((body, count) in given or decider.within(body, count) for body, count in required):
        raise Stuck("ids of the target may lie outside its table")


def _general(rule: Rule, seconds: float, defined: bool) -> str:
    """What a proof with symbolic degrees covers; empty if there is none."""
    symbolic, names = generalized(rule)
    if not names:
        return ""
    try:
        typed = infer(symbolic, names, defined=defined)
        if extra_conditions(typed)[1] or not proved(typed, seconds):
            return ""
    except (Mismatch, Stuck):
        return ""
    text = covers(typed, ())
    return text.replace(next(iter(names)), "the degree") if len(names) == 1 else text


def generalized(rule: Rule) -> tuple[Rule, frozenset[str]]:
    """The rule with a symbol for every numeric degree, and these symbols."""
    names = {d: f"degree_{d}" for d in _degrees(rule)}
    symbolic = _with_degrees(rule, lambda value: names.get(value, value) if isinstance(value, int) else value)
    return symbolic, frozenset(names.values())


def _degrees(rule: Rule) -> tuple[int, ...]:
    """The numeric degrees of a rule."""
    return tuple(sorted({d for d in rule.degrees if isinstance(d, int) and d > 1}))


def _with_degrees(rule: Rule, of: Callable[[Any], Any]) -> Rule:
    """The rule with all degrees, and numbers of replicas, mapped."""

    tensors = tuple(Tensor(t.name, t.dims, tuple(map(of, t.degrees)), of(t.replicas)) for t in rule.inputs)
    return rule.map(lambda apply: apply.map(lambda k, v: of(v) if k == "degree" else v), inputs=tensors)


def _at_other_degrees(rule: Rule) -> str:
    """What runs at other degrees than the stated ones show; a proof does not cover those."""
    stated = _degrees(rule)
    symbolic, names = generalized(rule)
    for other in (3, 4) if stated else ():
        if other in stated:
            continue
        moved = at_degrees(symbolic, dict.fromkeys(names, other))
        try:
            runs: Iterable[RuleTrial] = list(small_trials(infer(moved), RUNS))
        except Mismatch:
            return f": does not type-check at {other}"
        except Stuck:
            runs = random_trials(moved)
        if any(run.difference() is not None for run in runs):
            return f": not equal at {other}"
    return ""


def at_degrees(rule: Rule, values: Mapping[str, int]) -> Rule:
    """The rule with numbers for symbolic degrees."""
    return _with_degrees(rule, lambda value: values.get(value, value) if isinstance(value, str) else value)


def _refuted(name: str, runs: Iterable[RuleTrial]) -> Verdict | None:
    for run in runs:
        number = run.difference()
        if number is not None:
            return Verdict(name, "refuted", counterexample=counterexample(run, number))
    return None


def counterexample(run: RuleTrial, number: int) -> Counterexample:
    """The trial as plain numbers."""
    import numpy as np

    source, target = run.source[number], run.target[number]
    difference = None
    if source.state == target.state:
        with np.errstate(invalid="ignore"):
            gaps = np.abs(source.array - target.array)
        finite = gaps[np.isfinite(gaps)]
        difference = float(finite.max()) if finite.size == np.isfinite(source.array).sum() else None
    return Counterexample(
        rule=write_rule(run.rule),
        sizes=dict(run.sizes),
        inputs={name: value.array.tolist() for name, value in run.inputs.items()},
        outputs=run.rule.outputs[number],
        source=source.array.tolist(),
        target=target.array.tolist(),
        difference=difference,
    )
