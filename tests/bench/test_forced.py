"""Forced plans of a few small cases; the evidence is `partita bench forced`."""

from __future__ import annotations

import pytest
import torch

from partita.bench import forced
from partita.bench.forced import Case, case, excused, named, run, space_of, totals
from partita.bench.random_modules import Block, Net
from partita.model.capture.capture import capture
from partita.model.errors import PartitaError
from partita.model.machine.machine import Device, Level, Machine

SEED, COUNT = 11, 3
DEVICE = Device("slow", 2**34, 0, 4.7e9, {"float32": 8.5e8}, 1.0, 0.0)


def case_of(x: torch.Tensor, *blocks: Block, levels: tuple[Level, ...], share: float | None = None) -> Case:
    module = Net(*blocks)
    return Case(
        0,
        module,
        capture(module, (x,), batch=len(x), loss="projection"),
        len(x),
        Machine("slow", levels, DEVICE),
        share,
    )


def test_no_forced_plan_is_below_the_bound() -> None:
    told: list[str] = []
    sums = totals(run(True, (), told.append, count=COUNT, seed=13))
    assert sums["below"] == sums["worse"] == sums["timed_out"] == sums["unproved"] == 0, "\n".join(told)
    assert sums["cases"] == 1 and sums["forced"] == sums["named"] + sums["equal"] + sums["above"] > 0
    assert sums["refused"] == sum(line.startswith("refused: ") for line in told)


def test_a_plan_below_the_bound_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one is where a report does not name what was left out."""
    monkeypatch.setattr(forced, "excused", lambda plan, known: False)
    monkeypatch.setattr(forced, "random_flags", lambda rng, made: {"rewrite": True, "stages": 1})
    told: list[str] = []
    (row,) = run(True, (), told.append, count=1, seed=SEED)
    assert row["below"] == row["forced"] == 1
    assert f"made, known = case({SEED}).plan(rewrite=True, stages=1), case({SEED}).plan()" in told[1]


def test_a_refusal_is_not_a_search_out_of_time(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = case(SEED).answer({"stages": 64})
    assert not refused.timed_out and "64 stages" in refused.words
    monkeypatch.setattr(forced, "SECONDS", 1e-9)
    out_of_time = case(SEED).answer({})
    assert out_of_time.timed_out and not out_of_time.proved and out_of_time.bound < 1e12


def test_names_without_a_case_are_refused() -> None:
    with pytest.raises(PartitaError, match="no case has nothing"):
        run(True, ("nothing",), print, count=1, seed=SEED)


def test_phrases_of_reports() -> None:
    plan = case(SEED).plan(stages=1)
    assert not named(plan, "pipelines") and not named(plan, "meshes of more than 3 axes")
    assert named(plan, "meshes of more than 0 axes")
    assert not named(plan, "rewritings on meshes of 1 or more axes")


def test_halos_that_are_not_offered_are_named() -> None:
    """A node can be fixed to one where samples divide over all devices; the free search has none."""
    levels = (Level("only", 2, 1e7, 0.0),)
    made = case_of(torch.zeros(4, 2, 8, 8), ("convolution", 2, 2), ("pool",), levels=levels)
    free, halo = made.answer({"stages": 1}), made.plan(stages=1, mesh=(2,), fix=(("parts.0.0", "halo:s0"),))
    assert free.outside == ("rewriting", "halos where samples divide evenly")
    assert free.plan is not None and excused(halo, free) and not excused(free.plan, free)
    odd = case_of(torch.zeros(3, 2, 8, 8), ("convolution", 2, 2), ("pool",), levels=levels)
    assert odd.answer({"stages": 1, "micro_batches": 1}).outside == ("rewriting",)


def test_flags_are_options() -> None:
    assert space_of(rows=((1, 2), (2, 1))).mapping == "rows 1,2/2,1"


def test_orders_of_axes_are_searched() -> None:
    """With three units inside of two, in little memory: the outermost level first is 2.8 % slower."""
    levels = Level("outer", 2, 5e6, 1000.0), Level("inner", 3, 7e7, 20000.0)
    x = torch.zeros(3, 6, dtype=torch.int64)
    made = case_of(x, ("embedding", 60, 24), ("linear", 24, 24), ("tied",), levels=levels, share=0.7)
    one = {"stages": 1, "micro_batches": 1, "recompute": "none"}
    inner, outer = (made.answer(one | {"rows": rows}) for rows in (((1, 3), (2, 1)), ((2, 1), (1, 3))))
    free = made.answer(one)
    assert free.plan is not None and free.plan.report["space"]["axis_order"] == "every order"
    assert free.step == inner.step < outer.step
