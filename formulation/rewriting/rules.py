"""The planner's rewrite rules: `planner.rules`, in the notation of rules."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

from ..substitution.rule import Rule
from ..substitution.rule_file import load_rules
from ..substitution.text import parse_rules

PLANNER = Path(__file__).parent / "planner.rules"


@cache
def planner_rules() -> tuple[Rule, ...]:
    """The rules of `partita plan --rewrite`."""
    return tuple(parse_rules(PLANNER.read_text(encoding="utf-8")))


def rules_for(rewrite: bool | Path | Sequence[Rule]) -> tuple[Rule, ...]:
    """The planner's rules if `rewrite` is true, those of a file, or those given. PartitaError: a malformed file."""
    if isinstance(rewrite, bool):
        return planner_rules() if rewrite else ()
    return load_rules(rewrite) if isinstance(rewrite, Path) else tuple(rewrite)
