"""The best plan among several dtypes and schedules: one search each, the best so far as the cutoff of the next.

Which dtypes train a model well enough is the user's to say; which of those is the fastest follows from the prices.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

from ...model.errors import NoPlanError, PartitaError
from ...model.machine.precision import precision
from ...solvers.protocol import Limits
from ..plan.pipeline_plan import PipelinePlan
from ..plan.plan import Plan


class Way(NamedTuple):
    """One of several that are tried: stages of a pipeline run in the order of `schedule`, `chunks` on every device."""

    dtype: str
    schedule: str
    chunks: int


Planned: TypeAlias = Callable[[Way, float | None, int | None], Plan | PipelinePlan]
"""Plans in one way, in so many seconds, for less than so many ns; NoPlanError where there is nothing so good."""


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


def best_of(ways: Sequence[Way], seconds: float | None, gap: float, planned: Planned) -> Plan | PipelinePlan:
    """The plan that takes the least time; of those that take as long the one of the way that is named first.

    The time that is left is shared evenly among the ways that are left. What each of them gave is in the report's
    `space`: `worse` is proved to take as long as the best so far, `near` as long but for the share `gap`, with which
    each search ends. An interrupt ends all. Where none has a plan, raises what the first way raised, or the first one
    that had too little time.
    """
    if len(ways) == 1:
        return planned(ways[0], seconds, None)
    start, failures = time.monotonic(), list[PartitaError]()
    best: Plan | PipelinePlan | None = None
    told: list[dict[str, Any]] = []
    for number, way in enumerate(ways):
        left = None if seconds is None else (seconds - (time.monotonic() - start)) / (len(ways) - number)
        cutoff = None if best is None else int(best.report["objective_ns"])
        try:
            made = planned(way, left if left is None else max(left, 0.1), cutoff)
        except NoPlanError as error:
            failures.append(error)
            bound, limits = error.summary["bound_ns"], error.summary["space"]["limits_hit"]
            told.append(_told(way, _failed(bound, cutoff, gap), bound) | {"limits_hit": limits})
        except PartitaError as error:  # fits nowhere
            failures.append(error)
            told.append(_told(way, "infeasible") | {"words": str(error), "limits_hit": []})
        else:
            best, limits = made, made.report["space"]["limits_hit"]
            known = {k: made.report[k] for k in ("status", "bound_ns", "objective_ns")}
            told.append(_told(way, **known) | {"limits_hit": limits})
        if "interrupt" in told[-1]["limits_hit"]:
            break
    if best is None:
        raise next((error for error in failures if isinstance(error, NoPlanError)), failures[0])
    _tell(best, told, ways)
    return best


def _failed(bound: int | None, cutoff: int | None, gap: float) -> str:
    """What is known where no plan was found."""
    if cutoff is None or bound is None or bound < Limits(cutoff=cutoff, gap=gap).ceiling(None):
        return "unknown"
    return "worse" if bound >= cutoff else "near"


def _told(way: Way, status: str, bound_ns: int | None = None, objective_ns: int | None = None) -> dict[str, Any]:
    return {**way._asdict(), "status": status, "objective_ns": objective_ns, "bound_ns": bound_ns}


def _tell(best: Plan | PipelinePlan, told: list[dict[str, Any]], ways: Sequence[Way]) -> None:
    """What is proved of the best plan among all ways."""
    report, objective = best.report, best.report["objective_ns"]
    missing = len(told) < len(ways)  # of these nothing is known
    bounds = [0] * missing + [found["bound_ns"] for found in told if found["status"] != "infeasible"]
    bound = min(0 if found is None else found for found in (objective, *bounds))
    limits = {limit for way in told if way["status"] != "worse" for limit in way["limits_hit"]}
    limits -= {"gap", "bound", "time"} if bound == objective else set()
    report |= {
        "bound_ns": bound,
        "gap": (objective - bound) / objective,
        "status": "optimal" if bound == objective else "feasible",
        "space": report["space"] | {"ways": told, "limits_hit": sorted(limits)},
    }
