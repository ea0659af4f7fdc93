"""How many rules are generated over each operator set, and how many every step of pruning leaves, beside the papers'.

`pairs` are two graphs that give the same values; `renamed` counts them once up to names, `general` without instances of
others: these are candidates as TASO (743) and Unity (651 more, with parallel operators) count them. `basic` are those
that smaller rules do not lead to, `proved` those of them that ship. `parallel` has a parallel operator in it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..formulation.substitution.rule import PARALLEL, Rule
from ..solvers.proof.verify import verify_rule
from .cases import chosen
from .rule_generation.generate import Generated, generate
from .rule_generation.operator_sets import SETS

TASO, UNITY = 743, 651  # candidates: TASO (SOSP 2019) §3; what parallel operators add, Unity (OSDI 2022) §4
SMALL = 2  # operators a side

Row = dict[str, Any]


def run(small: bool, only: Sequence[str], tell: Callable[[str], None]) -> list[Row]:
    """A row for every operator set, found together; then what they sum up to. Seconds are wall time."""
    sets = chosen(SETS, only, lambda each: each.name, "operator set")
    start = time.monotonic()
    made = generate(sets, proves, SMALL if small else None, tell=tell)
    seconds = time.monotonic() - start
    rows = [_row(made, number) for number in range(len(made.counts))]
    whole = {key: sum(row[key] for row in rows) for key in rows[0] if key not in ("set", "ops", "s")}
    return [*rows, {"set": "all", "ops": max(row["ops"] for row in rows), **whole, "s": seconds}]


def proves(rule: Rule) -> bool:
    """True if the prover proves a rule."""
    return verify_rule(rule).verdict == "proved"


def _row(made: Generated, number: int) -> Row:
    count = made.counts[number]
    shipped = [found.rule for found in made.rules if found.origin == count.chosen.name]
    return {
        "set": count.chosen.name,
        "ops": count.chosen.most,
        "graphs": count.graphs,
        **{step: count.left[step] for step in ("pairs", "common", "direct", "renamed", "general")},
        "parallel": count.parallel,
        "basic": count.left["basic"],
        "proved": count.proved,
        "parallel proved": sum(map(_is_parallel, shipped)),
        "s": count.seconds,
    }


def _is_parallel(rule: Rule) -> bool:
    return any(apply.op in PARALLEL for side in (rule.source, rule.target) for apply in side)


def summary(rows: Sequence[Row]) -> Mapping[str, list[Row]]:
    """Candidates beside the papers'."""
    whole = rows[-1]
    algebraic = whole["general"] - whole["parallel"]
    return {
        "Candidates before proof, and what smaller rules do not lead to": [
            {
                "rules": "algebraic",
                "paper": TASO,
                "here": algebraic,
                "proved basis": whole["proved"] - whole["parallel proved"],
            },
            {"rules": "parallel", "paper": UNITY, "here": whole["parallel"], "proved basis": whole["parallel proved"]},
        ]
    }
