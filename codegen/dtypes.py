"""The best plan among several dtypes: one search each, the best so far as the cutoff of the next.

Which dtypes train a model well enough is the user's to say; which of those is the fastest follows from the prices.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from ..model.cost import precision
from ..model.errors import NoPlanError, PartitaError
from .pipeline.plan import PipelinePlan
from .plan import Plan

Planned: TypeAlias = Callable[[str, float | None, int | None], Plan | PipelinePlan]
"""Plans in a dtype, in so many seconds, for less than so many ns; NoPlanError where there is nothing so good."""


def full_name(dtype: str) -> str:
    """`float16` and `bfloat16` mean computing in them with float32 parameters."""
    return f"mixed-{dtype}" if dtype in ("float16", "bfloat16") else dtype


def named(dtypes: str | Sequence[str]) -> tuple[str, ...]:
    """Dtypes by their full names, each once; a text may name several, joined by commas. PartitaError: unknown ones."""
    found = dtypes.split(",") if isinstance(dtypes, str) else dtypes
    names = tuple(dict.fromkeys(full_name(dtype.strip()) for dtype in found))
    if not names:
        raise PartitaError("no dtype is named")
    return tuple(precision(name).name for name in names)


def best_of(dtypes: Sequence[str], seconds: float | None, planned: Planned) -> Plan | PipelinePlan:
    """The plan that takes the least time; of those that take as long the one whose dtype is named first.

    The time that is left is shared evenly among the dtypes that are left. What each of them gave is in the report's
    `space`. Raises what the last dtype raised where none has a plan.
    """
    if len(dtypes) == 1:
        return planned(dtypes[0], seconds, None)
    start, failure = time.monotonic(), PartitaError("no dtype is named")
    best: Plan | PipelinePlan | None = None
    told: list[dict[str, Any]] = []
    for number, dtype in enumerate(dtypes):
        left = None if seconds is None else (seconds - (time.monotonic() - start)) / (len(dtypes) - number)
        cutoff = None if best is None else int(best.report["objective_ns"])
        try:
            made = planned(dtype, left if left is None else max(left, 0.1), cutoff)
        except NoPlanError as error:
            bound = error.summary["bound_ns"]
            worse = cutoff is not None and bound is not None and bound >= cutoff
            told.append(_told(dtype, "worse" if worse else "unknown", bound))
            failure = error
            if error.interrupted:
                break
        except PartitaError as error:  # fits nowhere
            told.append(_told(dtype, "infeasible") | {"words": str(error)})
            failure = error
        else:
            told.append({"dtype": dtype, **{k: made.report[k] for k in ("status", "objective_ns", "bound_ns")}})
            best = made
    if best is None:
        raise failure
    _tell(best, told, dtypes)
    return best


def _told(dtype: str, status: str, bound_ns: int | None = None) -> dict[str, Any]:
    return {"dtype": dtype, "status": status, "objective_ns": None, "bound_ns": bound_ns}


def _tell(best: Plan | PipelinePlan, told: list[dict[str, Any]], dtypes: Sequence[str]) -> None:
    """What is proved of the best plan among all dtypes."""
    report, objective = best.report, best.report["objective_ns"]
    missing = len(told) < len(dtypes)  # of these nothing is known
    bounds = [0] * missing + [found["bound_ns"] for found in told if found["status"] != "infeasible"]
    bound = min(0 if found is None else found for found in (objective, *bounds))
    report |= {
        "bound_ns": bound,
        "gap": (objective - bound) / objective,
        "status": "optimal" if bound == objective else "feasible",
        "space": report["space"] | {"dtypes": told},
    }
