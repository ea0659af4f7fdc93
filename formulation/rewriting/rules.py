"""The rules by which the planner rewrites graphs: data beside this file, in the notation of rules."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from ..substitution.rule import Rule
from ..substitution.text import parse_rules

PLANNER = Path(__file__).parent / "planner.rules"


@cache
def planner_rules() -> tuple[Rule, ...]:
    """What `partita plan --rewrite` rewrites by."""
    return tuple(parse_rules(PLANNER.read_text(encoding="utf-8")))
