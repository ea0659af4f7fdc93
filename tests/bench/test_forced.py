"""Forced plans of a few small cases; the evidence is `partita bench forced`."""

from __future__ import annotations

import pytest

from partita.bench import forced
from partita.bench.forced import case, named, run, space_of, totals

SEED, COUNT = 11, 3


def test_no_forced_plan_is_below_the_bound() -> None:
    told: list[str] = []
    sums = totals(run(True, (), told.append, count=COUNT, seed=SEED))
    assert sums["below"] == sums["worse"] == 0, "\n".join(told)
    assert sums["cases"] == 1 and sums["forced"] > 0


def test_a_plan_below_the_bound_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one is where a report does not name what was left out."""
    monkeypatch.setattr(forced, "excused", lambda plan, known: False)
    monkeypatch.setattr(forced, "random_flags", lambda rng, made: {"rewrite": True, "stages": 1})
    told: list[str] = []
    (row,) = run(True, (), told.append, count=1, seed=SEED)
    assert row["below"] > 0
    assert f"made, known = case({SEED}).plan(rewrite=True, stages=1), case({SEED}).plan()" in told[1]


def test_phrases_of_reports() -> None:
    plan = case(SEED).plan(stages=1)
    assert not named(plan, "pipelines") and not named(plan, "meshes of more than 3 axes")
    assert named(plan, "meshes of more than 0 axes")


def test_flags_are_options() -> None:
    assert space_of(rows=((1, 2), (2, 1))).mapping == "rows 1,2/2,1"


def test_orders_of_axes_are_searched() -> None:
    """With three units inside of two: before, the optimum of the outermost level first was 8 % slower."""
    made = case(100)
    free, forced_order = made.plan(stages=1, micro_batches=1), made.plan(rows=((1, 3), (2, 1)), micro_batches=1)
    assert free.report["space"]["axis_order"] == "every order"
    assert free.report["objective_ns"] <= forced_order.report["objective_ns"]
