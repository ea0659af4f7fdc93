"""The best plan among several dtypes, schedules and sets of rules: one search each, with the best so far as its cutoff.

The user names the dtypes that train a model well enough; prices decide which is the fastest.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from ...formulation.rewriting.rules import rule_sets
from ...formulation.search_space import SearchSpace
from ...formulation.strategies.named_rows import exact_fixes
from ...model.errors import NoPlanError, PartitaError
from ...model.graph.pcg import PCG
from ...model.machine.machine import Machine
from ...model.training import Training
from ...solvers.gap import relative_gap
from ...solvers.protocol import Limits
from ..plan.plan import Plan
from .by_operators import further_spaces
from .pipeline_space import looked_at
from .rivals import rivals, step_ns
from .start import started


@dataclass(frozen=True, slots=True)
class Variant:
    """A training in one dtype, and a search space with one schedule and one set of rules of those that are compared.

    `added`: its schedule is tried beside those that `--schedule` stands for, together with the one listed before it.
    """

    training: Training
    space: SearchSpace
    schedules: tuple[tuple[str, int], ...] = ()
    several_rule_sets: bool = False
    added: bool = False

    def to_json(self) -> dict[str, Any]:
        rules = {"rules": len(self.space.rules)} if self.several_rule_sets else {}
        return {"dtype": self.training.dtype, "schedule": self.space.schedule, "chunks": self.space.chunks, **rules}


WORTHWHILE = 0.1
"""Share of the time that has to be left for variants that ended for want of time to be planned again."""
PlanVariants: TypeAlias = Callable[[Sequence[Variant], float | None, int | None], Sequence[Plan | PartitaError]]
"""Plans variants together, given seconds and a cutoff in ns: a plan of each, or why it has none (NoPlanError: none that
is known beats the cutoff and the others)."""


def variants(graph: PCG, machine: Machine, training: Training, space: SearchSpace) -> list[Variant]:
    """Every dtype of the training with every schedule of the space, and these with every set of its rules.

    Where the space leaves the schedule open, interlaced and repeated pipelines are among them if they may pay
    (`further_spaces`).
    What is fixed has the names of the graph's operators in them. PartitaError: see `exact_fixes` and `started`.
    """
    space = started(space, graph, machine, training)
    if len(space.schedules) > 1 and not looked_at(graph, space):
        space = replace(space, schedule="auto", chunks=1)
    sets, space = rule_sets(space.rules), replace(space, fix=exact_fixes(graph, space.fix, bool(space.rules)))
    found = []
    for one in training.each_dtype():
        further = further_spaces(graph, machine, one, space)
        spaces = [*space.each_schedule(), *further]
        names = tuple((other.schedule, other.chunks) for other in spaces)
        found += [
            Variant(one, replace(other, rules=rules), names, len(sets) > 1, added=other in further)
            for other in spaces
            for rules in sets
        ]
    return found


def best_with_rivals(variants: Sequence[Variant], seconds: float | None, gap: float, plan: PlanVariants) -> Plan:
    """The best of all variants (`best_of`); plans of the others, and their rivals, are among its rivals."""
    found: list[Plan] = []

    def planned(together: Sequence[Variant], left: float | None, cutoff: int | None) -> Sequence[Plan | PartitaError]:
        outcomes = plan(together, left, cutoff)
        for made in outcomes:
            if not isinstance(made, PartitaError):
                found.extend((replace(made, rivals=()), *made.rivals))
        return outcomes

    best = best_of(variants, seconds, gap, planned)
    return replace(best, rivals=rivals(best, sorted(found, key=step_ns)))


def best_of(variants: Sequence[Variant], seconds: float | None, gap: float, plan: PlanVariants) -> Plan:
    """The plan with the shortest step; ties go to the first variant listed.

    The variants left share the time left; an added one shares that of the one before it. What is left at the end is
    shared by those that ended for want of time, the least bound first. The report's `space` has the outcome of each:
    `worse` is proved to take at least as long as the best so far, `near` the same within the share `gap`, with which
    each search ends. An interrupt ends all. If no variant has a plan, raises the first NoPlanError, whose summary says
    the same of all, or, if it is proved that none has one, the first other error.
    """
    contest = _Contest(_together(variants), seconds, gap, plan)
    contest.run()
    if contest.best is None:
        proved = all(outcome["status"] == "infeasible" for each in contest.outcomes for outcome in each)
        error = next(each for each in contest.failures if isinstance(each, NoPlanError) != proved)
        if isinstance(error, NoPlanError):
            contest.report_all(error.summary)
        raise error
    contest.report_all(contest.best.report)
    return contest.best


class _Contest:
    """Groups of variants that are planned together, the best plan so far, and the outcome of each variant."""

    def __init__(self, groups: Sequence[Sequence[Variant]], seconds: float | None, gap: float, plan: PlanVariants):
        self.groups, self.seconds, self.gap, self.plan = groups, seconds, gap, plan
        self.start = time.monotonic()
        self.best: Plan | None = None
        self.failures: list[PartitaError] = []
        self.outside: dict[str, None] = {}  # what any variant left out
        self.outcomes: list[list[dict[str, Any]]] = [[] for _ in groups]

    @property
    def cutoff(self) -> int | None:
        return None if self.best is None else int(self.best.report["objective_ns"])

    def run(self) -> None:
        self._plan_each(range(len(self.groups)))
        late = [number for number, outcomes in enumerate(self.outcomes) if any(map(self._is_late, outcomes))]
        if self.seconds is not None and len(self.groups) > 1 and self._left(self.seconds) > WORTHWHILE * self.seconds:
            self._plan_each(sorted(late, key=self._bound))

    def _left(self, seconds: float) -> float:
        return seconds - (time.monotonic() - self.start)

    def _is_late(self, outcome: Mapping[str, Any]) -> bool:
        """True if time ended the search of a variant that may have a better plan."""
        bound = outcome["bound_ns"] or 0
        return "time" in outcome["limits_hit"] and bound < Limits(cutoff=self.cutoff, gap=self.gap).ceiling(None)

    def _bound(self, number: int) -> int:
        """The least bound of a group's variants."""
        return min(outcome["bound_ns"] or 0 for outcome in self.outcomes[number] if outcome["status"] != "infeasible")

    def _plan_each(self, numbers: Sequence[int]) -> None:
        """Plan the groups of these numbers, until an interrupt."""
        for place, number in enumerate(numbers):
            if any("interrupt" in outcome["limits_hit"] for outcomes in self.outcomes for outcome in outcomes):
                return
            left = self.seconds
            if left is not None and len(self.groups) > 1:
                left = max(self._left(left) / (len(numbers) - place), 0.1)
            self._plan_group(number, left)

    def _plan_group(self, number: int, left: float | None) -> None:
        group, known = self.groups[number], self.outcomes[number]
        try:
            found = self.plan(group, left, self.cutoff)
        except PartitaError as error:
            found = [error] * len(group)
        plans = [one for one in (self.best, *found) if one is not None and not isinstance(one, PartitaError)]
        self.best = min(plans, key=step_ns, default=None)
        outcomes = [self._outcome(variant, made) for variant, made in zip(group, found, strict=True)]
        self.outcomes[number] = [self._both(*each) for each in zip(known, outcomes, strict=True)] if known else outcomes

    def _outcome(self, variant: Variant, made: Plan | PartitaError) -> dict[str, Any]:
        if isinstance(made, PartitaError):
            self.failures.append(made)
        if isinstance(made, NoPlanError):
            bound, searched = made.summary["bound_ns"], made.summary["space"]
            known = {"status": _status(None, bound, self.cutoff, self.gap), "bound_ns": bound}
        elif isinstance(made, PartitaError):  # fits nowhere
            return _outcome(variant, "infeasible") | {"words": str(made), "limits_hit": []}
        else:
            searched = made.report["space"]
            known = {key: made.report[key] for key in ("status", "bound_ns", "objective_ns")}
        self.outside |= dict.fromkeys(searched["outside"])
        outcome = _outcome(variant, **known) | {"limits_hit": searched["limits_hit"]}
        return outcome | _rewritings(variant, searched)

    def _both(self, first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
        """What two searches of a variant found: the second is asked for a step below the first one's, if any."""
        steps = [one["objective_ns"] for one in (first, second) if one["objective_ns"] is not None]
        bounds = [one["bound_ns"] for one in (first, second) if one["bound_ns"] is not None]
        if second["status"] == "infeasible" and not steps:
            return second
        step = min(steps, default=None)
        bound = min([max(bounds), *steps]) if bounds else None
        status = _status(step, bound, self.cutoff, self.gap)
        return second | {"status": status, "objective_ns": step, "bound_ns": bound}

    def report_all(self, report: dict[str, Any]) -> None:
        """Put into the report of the best plan, or of none found in time, what is proved of several variants."""
        outcomes, objective = [outcome for each in self.outcomes for outcome in each], report["objective_ns"]
        if (count := sum(map(len, self.groups))) == 1:
            return
        missing = len(outcomes) < count  # nothing is known of those
        bounds = [0] * missing + [found["bound_ns"] or 0 for found in outcomes if found["status"] != "infeasible"]
        bound = min(bounds if objective is None else [objective, *bounds])
        limits = {limit for found in outcomes if found["status"] != "worse" for limit in found["limits_hit"]}
        limits |= {limit for found in outcomes for limit in found["limits_hit"] if limit.startswith("rewriting: ")}
        limits -= {"gap", "bound", "refused", "time"} if bound == objective else set()
        space = {"outside": list(self.outside), "ways": outcomes, "limits_hit": sorted(limits)}
        report |= {
            "bound_ns": bound,
            "gap": None if objective is None else relative_gap(objective, bound),
            "status": _status(objective, bound, None, 0),
            "space": report["space"] | space,
        }


def _together(variants: Sequence[Variant]) -> list[list[Variant]]:
    """The variants that are planned together: an added one with the one before it."""
    groups: list[list[Variant]] = []
    for variant in variants:
        if variant.added and len(groups[-1]) == 1:
            groups[-1].append(variant)
        else:
            groups.append([variant])
    return groups


def _status(objective: int | None, bound: int | None, cutoff: int | None, gap: float) -> str:
    """The status of a variant with a plan of this step, or none below the cutoff."""
    if objective is not None:
        return "optimal" if bound == objective else "feasible"
    if cutoff is None or bound is None or bound < Limits(cutoff=cutoff, gap=gap).ceiling(None):
        return "unknown"
    return "worse" if bound >= cutoff else "near"


def _outcome(
    variant: Variant, status: str, bound_ns: int | None = None, objective_ns: int | None = None
) -> dict[str, Any]:
    return {**variant.to_json(), "status": status, "objective_ns": objective_ns, "bound_ns": bound_ns}


def _rewritings(variant: Variant, space: Mapping[str, Any]) -> dict[str, Any]:
    """What saturation did, if that differs between variants."""
    return {"rewritings": space["rewritings"]} if variant.several_rule_sets and "rewritings" in space else {}
