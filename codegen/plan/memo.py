"""Results that are computed once per plan."""

from collections.abc import Callable, Collection
from copy import copy
from functools import wraps
from typing import Any, TypeVar

P = TypeVar("P")
R = TypeVar("R")


def once_per_plan(function: Callable[[P], R]) -> Callable[[P], R]:
    """Cache a function of one plan in that plan, as `cached_property` does; plans are frozen, but have no hash."""
    key = f"{function.__module__}.{function.__qualname__}"

    @wraps(function)
    def cached(plan: P) -> R:
        known: dict[str, Any] = vars(plan)
        if key not in known:
            known[key] = function(plan)
        result: R = known[key]
        return result

    return cached


def varied(plan: P, computed: Collection[str] = (), **fields: object) -> P:
    """A copy of a plan with other fields, which are not checked, and without what was computed once of the plan.

    `computed`: its cached properties that depend on these fields.
    """
    found = copy(plan)
    for name in (*computed, *(key for key in vars(plan) if "." in key)):
        vars(found).pop(name, None)
    vars(found).update(fields)
    return found
