"""How many rules are generated over each operator set, and how many each step of pruning leaves; the papers' counts.

`pairs` are two graphs that give the same values; `renamed` counts them once up to names, `general` without instances of
others: these are candidates as TASO (743) and Unity (651 more, with parallel operators) count them. `basic` are those
that smaller rules do not lead to, `proved` those of them that ship. `parallel` has a parallel operator in it.
"""

import time
from collections.abc import Mapping, Sequence

from ..formulation.substitution.rule import PARALLEL
from .cases import Row, Tell, chosen
from .rule_generation.command import proves
from .rule_generation.generate import SetResult, generate
from .rule_generation.operator_sets import SETS

TASO, UNITY = 743, 651  # candidates: TASO (SOSP 2019) §3; what parallel operators add, Unity (OSDI 2022) §4
SMALL = 2  # operators a side


def run(small: bool, only: Sequence[str], tell: Tell) -> list[Row]:
    """A row for every operator set, found together; then what they sum up to. Seconds are wall time."""
    sets = chosen(SETS, only, what="operator set")
    start = time.monotonic()
    made = generate(sets, proves, SMALL if small else None, tell=tell)
    seconds = time.monotonic() - start
    rows = list(map(_row, made.sets))
    whole = {key: sum(row[key] for row in rows) for key in rows[0] if key not in ("set", "ops", "s")}
    return [*rows, {"set": "all", "ops": max(row["ops"] for row in rows), **whole, "s": seconds}]


def _row(result: SetResult) -> Row:
    parallel = sum(any(apply.op in PARALLEL for apply in rule.applies) for rule in result.rules)
    return {
        "set": result.chosen.name,
        "ops": result.chosen.most,
        "graphs": result.graphs,
        **{step: result.left[step] for step in ("pairs", "common", "direct", "renamed", "general")},
        "parallel": result.parallel,
        "basic": result.left["basic"],
        "proved": len(result.rules),
        "parallel proved": parallel,
        "s": result.seconds,
    }


def summary(rows: Sequence[Row]) -> Mapping[str, list[Row]]:
    """Candidates, here and in the papers."""
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
