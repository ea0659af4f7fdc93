"""Interlaced pipelines: found by the search, priced twice, computed by all devices and verified."""

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import partita
from partita import Machine, PartitaError, capture
from partita.codegen.plan.plan import PipelinePlan, Plan
from partita.codegen.planner import by_operators
from partita.codegen.planner.by_operators import interlaced_too
from partita.codegen.pricing.on_machine import step_on
from partita.codegen.pricing.pipeline_runs import SHARED, runs
from partita.codegen.pricing.plan_price import plan_price
from partita.formulation.pipeline.configuration import step_ns
from partita.formulation.search_space import SearchSpace
from partita.model.graph.layout import B, is_split
from partita.model.training import Training

from .pipelines import check_kept, predicted

SAMPLES, WIDTH, WORDS, KIB = 8, 8, 512, 80


class Tied(nn.Module):
    """Layers between the look-ups and the scores of one large table."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH)) for _ in range(4)
        )

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        x = self.table(ids)
        for layer in self.layers:
            x = x + layer(x)
        return nn.functional.cross_entropy(nn.functional.linear(x, self.table.weight).flatten(0, 1), labels.flatten())


def examples() -> tuple[Tensor, Tensor]:
    return torch.zeros(SAMPLES, 2, dtype=torch.int64), torch.zeros(SAMPLES, 2, dtype=torch.int64)


def machine(devices: int, kib: int | None = None) -> Machine:
    made = Machine.adhoc((devices,))
    if kib is None:
        return made
    return replace(made, device=replace(made.device, memory_bytes=made.device.reserved_bytes + kib * 1024))


def planned(on: Machine, schedule: str = "interlaced", **options: object) -> partita.Plan:
    chosen = {"stages": 4, "micro_batches": 4, "workers": 1, "cache": "none", "offload": False} | options
    torch.manual_seed(0)
    return partita.optimize(Tied(), examples(), on, schedule=schedule, **chosen)  # type: ignore[arg-type]


@cache
def small() -> PipelinePlan:
    """On devices that cannot hold the table, its gradient and its states."""
    made = planned(machine(4, KIB))
    assert isinstance(made, PipelinePlan)
    return made


def test_a_large_program_is_not_written_to_see_that_it_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    plan, written = small(), list[Plan]()
    monkeypatch.setattr(Plan, "emit", lambda own: written.append(own))
    by_operators.try_to_write(plan)
    monkeypatch.setattr(by_operators, "MOST_WRITTEN", 0)
    by_operators.try_to_write(plan)
    assert written == [plan]


def test_a_table_is_split_over_all_devices_where_memory_is_scarce() -> None:
    plan = small()
    assert plan.shared is not None
    (table,) = plan.shared.graph.of("parameter")
    assert is_split(plan.shared.choices[table].output[0])
    assert plan_price(plan).memory_bytes <= KIB * 1024
    assert plan.verify()["ok"]


def test_tables_are_read_as_they_are_stored_and_only_parts_have_buffers() -> None:
    """Buffers for the whole table and its gradient, as where it may be gathered, alone take 32 KiB."""
    plan = planned(machine(4, 56))
    price = plan_price(plan)
    assert price.shared is not None and isinstance(plan, PipelinePlan) and plan.shared is not None
    assert price.shared.memory["reserve"] < 2 * WORDS * WIDTH * 4 / 2
    assert price.memory_bytes <= 56 * 1024
    (table,) = plan.shared.graph.of("parameter")
    choices = [*plan.shared.choices]
    choices[table] = replace(choices[table], output=(B, B))
    with pytest.raises(PartitaError, match=r"reads 'table\.weight' in another layout than it is stored in"):
        replace(plan, shared=replace(plan.shared, choices=tuple(choices)))


def test_the_other_schedule_is_kept_where_the_table_fits_no_stage() -> None:
    plan = planned(machine(4, KIB), "1f1b,interlaced")
    assert plan.schedule.name == "interlaced"
    assert plan.report["objective_ns"] == small().report["objective_ns"]
    assert {way["schedule"]: way["status"] for way in plan.report["space"]["ways"]}["1f1b"] == "infeasible"


def test_it_is_tried_where_no_schedule_is_named_and_tables_crowd_a_stage() -> None:
    plan = planned(machine(4, KIB), "auto")
    assert plan.schedule.name == "interlaced"
    assert plan.report["objective_ns"] == small().report["objective_ns"]
    assert [way["schedule"] for way in plan.report["space"]["ways"]] == ["1f1b", "interlaced"]
    assert "schedules other than 1f1b and interlaced" in plan.report["space"]["outside"]


@pytest.mark.parametrize(
    ("options", "tried"),
    [
        ({}, True),
        ({"schedule": "zero-bubble,all"}, True),
        ({"schedule": "1f1b"}, False),
        ({"stages": 1}, False),
        ({"chunks": 2, "stages": 2}, False),
        ({"compile": True}, False),
        ({"offload": True}, False),
        ({"recompute": "selective"}, False),
        ({"overlap": False}, False),
    ],
)
def test_it_is_left_out_where_an_option_excludes_it(options: dict[str, Any], tried: bool) -> None:
    graph, space = capture(Tied(), examples()), SearchSpace(**options)
    found = interlaced_too(graph, machine(4, KIB), Training(SAMPLES), space)
    assert found == (replace(space, schedule="interlaced") if tried else None)


def test_it_is_left_out_where_tables_are_small_and_where_a_model_excludes_it() -> None:
    training = Training(SAMPLES)
    assert interlaced_too(capture(Tied(), examples()), machine(4, 100 * KIB), training, SearchSpace()) is None
    assert interlaced_too(capture(Shifted(), examples()), machine(4, KIB), training, SearchSpace()) is None
    assert interlaced_too(capture(Tied(), examples()), machine(1, KIB), training, SearchSpace()) is None


def test_the_step_is_that_of_slots_or_of_the_formula_and_no_less_than_the_bound() -> None:
    plan = small()
    price = plan_price(plan)
    assert price.shared is not None
    slots = runs(plan, price.stages, price.shared)
    formula = price.shared.objective_ns + step_ns(4, plan.micro_batches, price.busy_ns)
    assert price.objective_ns == max(formula, max(run.end_ns for run in slots)) == plan.report["objective_ns"]
    assert plan.report["bound_ns"] <= price.objective_ns
    both = [run for run in slots if run.stage == SHARED and run.micro_batch == 3]
    assert {run.device for run in both} == {0, 1, 2, 3}
    assert price.memory_bytes == max(s.memory_bytes for s in price.stages) + price.shared.memory_bytes


def test_space_time_plans_predict_about_the_same() -> None:
    """An independent pricer, of the emitted program, which has messages of its own; the step was 1.09 times as long."""
    plan = small()
    found = predicted(plan)
    assert 0.8 < found.step_ns / plan.report["objective_ns"] < 1.2
    assert max(found.peak_bytes) <= 1.1 * plan.report["memory_bytes"]


def test_files_keep_the_plan(tmp_path: Path) -> None:
    plan = small()
    check_kept(plan, tmp_path / "plan.json")


def test_what_does_not_fit_together_is_refused() -> None:
    plan = small()
    assert plan.shared is not None
    with pytest.raises(PartitaError, match="schedule 1f1b has no operators on all devices"):
        replace(plan, schedule="1f1b")  # type: ignore[arg-type]
    with pytest.raises(PartitaError, match="schedule interlaced needs operators on all devices"):
        replace(plan, shared=None)
    with pytest.raises(PartitaError, match="another dtype"):
        replace(plan, shared=replace(plan.shared, dtype="float64"))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"recompute": "parts"}, "--recompute parts"),
        ({"rewrite": True}, "--rewrite"),
        ({"compile": True}, "--compile"),
        ({"overlap": False}, "--no-overlap"),
    ],
)
def test_options_that_its_programs_lack_are_refused(options: dict[str, object], words: str) -> None:
    with pytest.raises(PartitaError, match=words):
        planned(machine(4), **options)


class Shifted(Tied):
    """Looks up its labels, one place to the right, too."""

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        shifted = torch.cat([torch.zeros_like(labels[:, :1]), labels[:, :-1]], 1)
        x = self.table(ids) + self.table(shifted)
        for layer in self.layers:
            x = x + layer(x)
        return nn.functional.cross_entropy(nn.functional.linear(x, self.table.weight).flatten(0, 1), labels.flatten())


class Masked(Tied):
    """Its loss is a mean over the labels that count, in the whole batch."""

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        x = self.table(ids)
        for layer in self.layers:
            x = x + layer(x)
        scores = nn.functional.linear(x, self.table.weight).flatten(0, 1)
        mask = labels.flatten() != 0
        each = nn.functional.cross_entropy(scores, labels.flatten(), reduction="none")
        return (each * mask).sum() / mask.sum()


@pytest.mark.parametrize(
    ("model", "why"),
    [(Shifted, r"'table\.weight' is read both by the layers and by"), (Masked, "needs the whole batch at once")],
)
def test_models_whose_slots_cannot_be_ordered_are_refused(model: type[nn.Module], why: str) -> None:
    with pytest.raises(PartitaError, match=why):
        partita.optimize(
            model(), examples(), machine(4), schedule="interlaced", stages=4, micro_batches=4, workers=1, cache="none"
        )


def test_stages_that_leave_a_larger_share_are_a_plan_too() -> None:
    """With the larger share the step is less than the bound of the share in which the stages were sought."""
    torch.manual_seed(0)
    model = Tied()
    model.table = nn.Embedding(2 * WORDS, 2 * WIDTH)
    model.layers = nn.ModuleList(nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)) for _ in range(4))
    options = {"stages": 2, "micro_batches": 4, "recompute": "none", "offload": False, "gap": 0.05}
    plan = partita.optimize(model, examples(), machine(4, 200), workers=1, cache="none", **options)  # type: ignore[arg-type]
    assert plan.schedule.name == "interlaced"
    assert plan.report["bound_ns"] <= plan.report["objective_ns"] == step_on(plan, plan.machine)
