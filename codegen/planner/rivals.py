"""The rivals of a plan: the next best that its search found, to be priced again where a number of the machine moves."""

from collections import Counter
from collections.abc import Iterable

from ..plan.plan import Plan

MOST = 4
"""The most rivals of a plan."""
REACH = 2.0
"""A rival takes at most this times the plan's step: a slower one wins only where one number is wrong by half or
more, or where the plan no longer fits."""
ALIKE = 0.01
"""Plans whose parts of a step differ by at most this share are one: an error of 20 % moves them apart by 0.2 %."""


def rivals(plan: Plan, found: Iterable[Plan]) -> tuple[Plan, ...]:
    """The first of the plans found, the fastest first, each of another kind than the plan and one another."""
    kept = [plan]
    for other in found:
        if len(kept) > MOST or step_ns(other) > REACH * step_ns(plan):
            break
        if not any(_alike(other, one) for one in kept):
            kept.append(other)
    return tuple(kept[1:])


def step_ns(plan: Plan) -> int:
    """The step of a plan that a search found."""
    return int(plan.report["objective_ns"])


def _alike(one: Plan, other: Plan) -> bool:
    """True if two plans spend their step and their memory alike: often one plan on meshes that differ in name only."""
    if (one.dtype, one.size, one.schedule.name) != (other.dtype, other.size, other.schedule.name):
        return False
    (parts, memory), (others, also) = _spent(one), _spent(other)
    apart = max(abs(parts[name] - others[name]) for name in {*parts, *others})
    return apart <= ALIKE * parts.total() and abs(memory - also) <= ALIKE * one.machine.device.capacity_bytes


def _spent(plan: Plan) -> tuple[Counter[str], int]:
    """The ns of all stages by part, and the bytes that the fullest stage needs."""
    parts = Counter[str]()
    for stage in plan.stages:
        parts.update(stage.report["parts_ns"])
    return parts, max(stage.report["memory_bytes"] for stage in plan.stages)
