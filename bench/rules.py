"""Generated rules beside the planner's: what they match, what plans take of them, and which never change a plan.

Every model of Unity's evaluation (OSDI 2022, section 7) is planned by `--rewrite all`: first by the hand-written rules
alone, then by all for a step that beats the first, both under one bound. `matched` are rules with at least one match,
`taken` those that made an alternative of the final plan, each counted once in all its forms.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..formulation.rewriting.rules import ALL, planner_rules, rules_for
from ..formulation.rewriting.spelling import is_parallel
from ..formulation.search_space import SearchSpace
from ..formulation.substitution.rule_file import basis
from ..model.machine.machine import Machine
from ..solvers.budget import Budget
from .cases import Row, Tell, captured, measured, plan_of_one_stage
from .joint import MODELS, SECONDS, Case

CASES = tuple(Case(model, 1) for model in MODELS)
SMALL = tuple(Case(model, 1, small=True) for model in MODELS)


def run(small: bool, only: Sequence[str], tell: Tell) -> list[Row]:
    """Plan every model by hand-written and by all rules; steps in ms, seconds of both searches."""
    return measured(SMALL if small else CASES, only, tell, measure)


def measure(case: Case) -> Row:
    """One model: the best plan by hand-written rules, and the best of all."""
    machine = Machine.load("summit", nodes=case.nodes)
    graph, training = captured(case.model, machine, small=case.small)
    start = time.monotonic()
    made = plan_of_one_stage(
        graph, machine, training, SearchSpace(stages=1, rules=rules_for(ALL)), Budget(time_limit=SECONDS)
    )
    seconds, report = time.monotonic() - start, made.report
    first, second = report["space"]["ways"]
    found: Mapping[str, Any] = second.get("rewritings", {"applied": {}, "seconds": 0.0})
    matched = origins(found["applied"])
    taken = origins(change["rule"] for change in report["rewritten"] if "rule" in change)
    return {
        "case": case.name,
        "hand_written_ms": None if first["objective_ns"] is None else first["objective_ns"] / 1e6,
        "all_ms": report["objective_ns"] / 1e6,
        "gap": report["gap"],
        "better": first["objective_ns"] is None or report["objective_ns"] < first["objective_ns"],
        "both_s": seconds,
        "saturation_s": found["seconds"],
        "alternatives": found.get("ways"),
        "matched": len(matched),
        "taken": ", ".join(sorted(taken)) or "none",
        "too often": len(found.get("too_often", ())),
        "too costly": found.get("too_costly"),
        "limits": ", ".join(limit.removeprefix("rewriting: ") for limit in report["space"]["limits_hit"]) or "none",
        "rules": sorted(matched),
    }


def origins(forms: Iterable[str]) -> frozenset[str]:
    """The rules of which these are forms: a form's name is its rule's, and what was changed."""
    names = {rule.name for rule in (*planner_rules(), *basis())}
    return frozenset(_origin(form, names) for form in forms)


def _origin(form: str, names: set[str]) -> str:
    parts = form.split(", ")
    return next(name for n in range(len(parts), 0, -1) if (name := ", ".join(parts[:n])) in names)


def summary(rows: list[Row]) -> list[Row]:
    """How many rules of each kind match on some model, and are taken by some plan."""
    matched = frozenset[str]().union(*(row.pop("rules") for row in rows))  # too long a list for a table
    taken = frozenset[str]().union(*(row["taken"].split(", ") for row in rows))
    kinds = {
        "hand-written": list(planner_rules()),
        "generated, without parallel operators": [rule for rule in basis() if not is_parallel(rule)],
        "generated, with parallel operators or states": [rule for rule in basis() if is_parallel(rule)],
    }
    return [
        {
            "rules": kind,
            "given": len(those),
            "matched": sum(rule.name in matched for rule in those),
            "taken": sum(rule.name in taken for rule in those),
            "never change a plan": sum(rule.name not in taken for rule in those),
        }
        for kind, those in kinds.items()
    ]
