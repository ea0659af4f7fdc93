"""How good a plan is proved to be, and among which: `proven optimal (bound 2.9 ms) among plans without offload`."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...model.errors import PartitaError
from ...solvers.gap import share_above


def proof_text(report: Mapping[str, Any], objective_ns: float, bound: str) -> str:
    """The proof of a plan with this step; `bound` is the report's `bound_ns` with its unit."""
    worst = f"for {worst_of(report)}" if worst_of(report) else ""
    if report.get("status") == "optimal":
        return f"proven optimal{_prefixed(worst)} (bound {bound}){_prefixed(among_text(report))}"
    share = share_above(objective_ns, report["bound_ns"])
    if share is None:
        return f"nothing is proved (bound {bound})"
    most = math.ceil(1e4 * share) / 100  # rounded up: "at most" must hold
    return f"at most {most:,.2f} % above the optimum{_prefixed(worst)} (bound {bound}){_prefixed(among_text(report))}"


def worst_of(report: Mapping[str, Any]) -> str:
    """`the worst of a and b`, of a plan for several machines; else nothing."""
    names = [str(machine["name"]) for machine in report.get("machines", [])]
    return f"the worst of {_listed(names, 'and')}" if names else ""


def on_each_machine(report: Mapping[str, Any], time: Callable[[int], str]) -> str:
    """`2.9 ms on a, 2.1 ms on b`; `time` puts ns in words."""
    return ", ".join(f"{time(machine['objective_ns'])} on {machine['name']}" for machine in report.get("machines", []))


def among_text(report: Mapping[str, Any]) -> str:
    """The plans among which the optimum is one: `among plans with mesh 2x4, without rewriting or offload`."""
    if "outside" not in _space(report):  # a plan file of an earlier version
        return "in the space of its search"
    given, missing = space_phrases(report).values()
    lists = ("with", given, "and"), ("without", missing, "or")
    parts = [f"{word} {_listed(phrases, last)}" for word, phrases, last in lists if phrases]
    return f"among plans {', '.join(parts)}" if parts else ""


def space_phrases(report: Mapping[str, Any]) -> dict[str, Sequence[str]]:
    """What was fixed, and what is outside the space. PartitaError: the report's lists are malformed."""
    return {"Fixed": _phrases(report, "fixed"), "Outside the space": _phrases(report, "outside")}


def _space(report: Mapping[str, Any]) -> Mapping[str, Any]:
    space = report.get("space") or {}
    if not isinstance(space, Mapping):
        raise PartitaError(f"the plan's report: space is {space!r:.60}, no object")
    return space


def _phrases(report: Mapping[str, Any], key: str) -> Sequence[str]:
    found = _space(report).get(key, [])
    if not (isinstance(found, list) and all(isinstance(phrase, str) for phrase in found)):
        raise PartitaError(f"the plan's report: space.{key} is {found!r:.60}, not a list of words")
    return found


def _listed(phrases: Sequence[str], last: str) -> str:
    """`a, b or c`."""
    *first, end = phrases
    return f"{', '.join(first)} {last} {end}" if first else end


def _prefixed(text: str) -> str:
    return f" {text}" if text else ""
