"""Several variants planned one after the other: which is taken, what is reported of each, what ends all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

import partita
from partita.codegen.planner.variants import Variant, best_of
from partita.formulation.search_space import SearchSpace
from partita.model.capture.load import load_module
from partita.model.errors import NoPlanError, PartitaError
from partita.model.machine.machine import Machine
from partita.model.training import Training

VARIANTS = [Variant(Training(8), SearchSpace(schedule=name)) for name in ("1f1b", "zero-bubble", "gpipe")]


def made(step: int, bound: int, *limits: str) -> Any:
    status = "optimal" if step == bound else "feasible"
    space = {"limits_hit": [*limits], "outside": ["rewriting"]}
    return SimpleNamespace(report={"objective_ns": step, "bound_ns": bound, "status": status, "space": space})


def none(bound: int | None, *limits: str, interrupted: bool = False) -> NoPlanError:
    return NoPlanError(
        "none",
        {"objective_ns": None, "bound_ns": bound, "space": {"limits_hit": [*limits], "outside": ["offload"]}},
        interrupted,
    )


def told(
    *found: Any, gap: float = 0.0, variants: Sequence[Variant] = VARIANTS, seconds: float | None = None
) -> tuple[Any, list[Any]]:
    """The best of what each variant gives, and the cutoffs that those planned together had."""
    waiting, cutoffs = iter(found), []

    def planned(together: Sequence[Variant], seconds: float | None, cutoff: int | None) -> list[Any]:
        cutoffs.append(cutoff)
        return [next(waiting) for _ in together]

    return best_of(variants, seconds, gap, planned), cutoffs


def test_each_is_asked_for_less_than_the_best_so_far() -> None:
    best, cutoffs = told(made(100, 100), made(90, 80, "bound"), none(95))
    assert cutoffs == [None, 100, 90]
    report = best.report
    assert (report["objective_ns"], report["bound_ns"], report["status"]) == (90, 80, "feasible")
    assert [way["status"] for way in report["space"]["ways"]] == ["optimal", "feasible", "worse"]
    assert report["space"]["limits_hit"] == ["bound"] and report["gap"] == pytest.approx(1 / 9)


def test_what_is_proved_of_all_is_the_least_bound() -> None:
    best, _ = told(made(100, 100), none(99, "gap"), none(97, "time"), gap=0.02)
    report = best.report
    assert [way["status"] for way in report["space"]["ways"]] == ["optimal", "near", "unknown"]
    assert (report["status"], report["bound_ns"], report["space"]["limits_hit"]) == ("feasible", 97, ["gap", "time"])
    best, _ = told(made(100, 100, "bound"), none(100), PartitaError("fits no placement"))
    assert (best.report["status"], best.report["space"]["limits_hit"]) == ("optimal", [])
    assert best.report["space"]["outside"] == ["rewriting", "offload"]  # what any of them left out


def test_what_is_planned_together_is_compared_with_the_best_of_all() -> None:
    """The second one's plan was the cutoff of the first, also where it was found later."""
    together = [VARIANTS[0], replace(VARIANTS[1], added=True), VARIANTS[2]]
    best, cutoffs = told(none(89, "gap"), made(90, 89, "gap"), none(90), gap=0.02, variants=together)
    assert cutoffs == [None, 90] and best.report["objective_ns"] == 90
    assert [way["status"] for way in best.report["space"]["ways"]] == ["near", "feasible", "worse"]
    best, cutoffs = told(made(99, 88, "gap"), none(89, "time"), made(50, 50), variants=together)
    assert cutoffs == [None, 99] and best.report["bound_ns"] == 50
    assert [way["status"] for way in best.report["space"]["ways"]] == ["feasible", "unknown", "optimal"]


def test_what_ended_for_want_of_time_is_planned_again_the_least_bound_first() -> None:
    asked = none(60, "time"), made(90, 40, "time"), made(80, 80)
    best, cutoffs = told(*asked, none(79, "time"), made(70, 65, "bound"), seconds=1e6)
    assert cutoffs == [None, None, 90, 80, 80]
    ways = [(way["status"], way["bound_ns"], way["objective_ns"]) for way in best.report["space"]["ways"]]
    assert ways == [("feasible", 65, 70), ("feasible", 79, 90), ("optimal", 80, 80)]
    assert (best.report["objective_ns"], best.report["bound_ns"]) == (70, 65)


def test_a_plan_that_a_second_search_does_not_improve_stays_with_the_better_bound() -> None:
    best, cutoffs = told(made(90, 40, "time"), none(95), none(95), none(90), seconds=1e6)
    assert cutoffs == [None, 90, 90, 90] and best.report["status"] == "optimal"
    assert best.report["space"]["ways"][0]["objective_ns"] == 90 and best.report["space"]["limits_hit"] == []
    _, cutoffs = told(made(90, 89, "time"), none(95), none(95), gap=0.05, seconds=1e6)
    assert cutoffs == [None, 90, 90]  # within the gap


def test_the_status_of_two_searches_is_of_both() -> None:
    """The first one's bound is the better one: it proves the second one's plan, and that there is none below it."""
    best, _ = told(made(90, 80, "time"), none(95), none(95), made(80, 70, "time"), seconds=1e6)
    assert (best.report["status"], best.report["bound_ns"]) == ("optimal", 80)
    assert [way["status"] for way in best.report["space"]["ways"]] == ["optimal", "worse", "worse"]
    together = [VARIANTS[0], replace(VARIANTS[1], added=True), VARIANTS[2]]
    asked = none(89, "time"), made(90, 60, "time"), none(91)
    best, _ = told(*asked, none(88, "time"), made(89, 70, "time"), variants=together, seconds=1e6)
    ways = [(way["status"], way["bound_ns"], way["objective_ns"]) for way in best.report["space"]["ways"]]
    assert ways[:2] == [("worse", 89, None), ("feasible", 70, 89)]
    fits_nowhere, interrupted = PartitaError("fits no placement"), none(None, "interrupt", interrupted=True)
    asked = fits_nowhere, none(60, "time"), made(90, 90)
    best, _ = told(*asked, interrupted, none(60, "interrupt"), variants=together, seconds=1e6)
    assert [way["bound_ns"] for way in best.report["space"]["ways"]] == [None, 60, 90]


@pytest.mark.parametrize("second", [made(90, 10, "interrupt"), none(10, "interrupt", interrupted=True)])
def test_an_interrupt_ends_all(second: Any) -> None:
    best, cutoffs = told(made(100, 100), second, made(1, 1))
    assert cutoffs == [None, 100] and best.report["space"]["limits_hit"] == ["interrupt"]
    assert (best.report["bound_ns"], best.report["gap"]) == (0, 1.0)  # nothing is known of the last variant


def test_where_none_has_a_plan_the_first_failure_is_told() -> None:
    with pytest.raises(PartitaError, match="fits no placement"):
        told(PartitaError("fits no placement"), PartitaError("too few layers"), PartitaError("too few micro-batches"))
    with pytest.raises(NoPlanError):
        told(PartitaError("fits no placement"), none(10, "time"), PartitaError("too few micro-batches"))


def test_where_none_has_a_plan_in_time_the_bound_is_that_of_all() -> None:
    with pytest.raises(NoPlanError) as raised:
        told(none(60, "time"), none(40, "time"), PartitaError("fits no placement"))
    found = raised.value.summary
    assert (found["status"], found["bound_ns"], found["gap"]) == ("unknown", 40, None)
    assert [way["status"] for way in found["space"]["ways"]] == ["unknown", "unknown", "infeasible"]
    with pytest.raises(NoPlanError) as raised:
        told(none(60, "time"), none(50, "interrupt", interrupted=True))
    assert raised.value.summary["bound_ns"] == 0  # nothing is known of the last variant
    with pytest.raises(PartitaError, match="fits no placement"):  # as a second search proves
        told(none(60, "time"), *[PartitaError("fits no placement")] * 3, seconds=1e6)


def test_schedules_are_one_where_there_is_no_pipeline() -> None:
    module, inputs = load_module("mlp", small=True)
    asked = {"batch": 8, "workers": 1, "cache": "none", "schedule": "all", "micro_batches": 1}
    for options in ({"stages": 1}, {"mesh": (2,)}):
        plan = partita.optimize(module, inputs, Machine.adhoc((2,)), **asked, **options)
        assert "ways" not in plan.report["space"]
