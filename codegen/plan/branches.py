"""Parallel branches of a plan: the bundles that it has."""

from __future__ import annotations

from ...formulation.bundles.bundles import Bundle, find_bundles
from .stage_plan import StagePlan


def bundles(plan: StagePlan) -> dict[int, Bundle]:
    """The bundles whose branches run in parallel, by the `cat` that joins them."""
    return {b.join: b for b in find_bundles(plan.graph) if len(plan.choices[b.join].joins) == len(b.branches) + 1}
