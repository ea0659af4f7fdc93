"""Pipelines that micro-batches pass several times before they go back (3F1B): prices, bounds and programs."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import partita
from partita import Machine, PartitaError
from partita.codegen.plan.plan import PipelinePlan
from partita.codegen.planner.confirmed_plan import step_ns
from partita.codegen.planner.partial_plan import Openness, decisions_of
from partita.codegen.planner.problem import problem_of
from partita.codegen.pricing.pipeline_runs import phase_ns, runs
from partita.codegen.pricing.plan_price import plan_price
from partita.codegen.pricing.stage_price import stage_price
from partita.formulation.network.network import INFINITE
from partita.formulation.pipeline.configuration import Configuration
from partita.formulation.search_space import SearchSpace
from partita.model.graph.batch import with_batch
from partita.model.graph.folded import passes
from partita.model.graph.layout import S
from partita.model.training import Training
from partita.solvers.protocol import solver
from partita.solvers.search.part_encoding import encoding
from partita.solvers.search.pipeline_problem import PipelineProblem
from partita.solvers.search.result import Solved

from ..levels import some
from .pipelines import check_kept, predicted

SAMPLES, LENGTH = 16, 3


class Recycled(nn.Module):
    """Layers that run several times, at last with gradient; a pass is given the result of the one before."""

    def __init__(self, width: int = 8, layers: int = 4, passes: int = 3, streams: int = 1) -> None:
        super().__init__()
        self.passes, self.streams = passes, streams
        self.embed = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)) for _ in range(layers)
        )
        self.head = nn.Linear(width, 4)

    def forward(self, given: Tensor, wanted: Tensor) -> Tensor:
        start = self.embed(given)
        x = z = torch.zeros_like(start)
        for cycle in range(self.passes):
            with torch.set_grad_enabled(cycle == self.passes - 1):
                x, z = start + self.norm(z[:, 0])[:, None], start
                for layer in self.layers:
                    x = x + layer(x)
                    z = z + x if self.streams == 2 else x
        return (self.head(x if self.streams == 1 else x * z) - wanted).square().mean()


def planned(module: nn.Module, devices: int = 4, width: int = 8, **options: Any) -> PipelinePlan:
    chosen = {"stages": 2, "micro_batches": 4, "schedule": "3f1b", "workers": 1, "cache": "none", "offload": False}
    inputs = torch.zeros(SAMPLES, LENGTH, width), torch.zeros(SAMPLES, LENGTH, 4)
    plan = partita.optimize(module, inputs, Machine.adhoc((devices,)), **chosen | options)  # type: ignore[arg-type]
    assert isinstance(plan, PipelinePlan)
    return plan


@cache
def small() -> PipelinePlan:
    torch.manual_seed(0)
    return planned(Recycled(), stages=4)


@pytest.mark.parametrize(
    ("module", "options"),
    [
        ({}, {"stages": 4}),
        ({"passes": 2}, {"recompute": "full"}),
        ({"passes": 4, "layers": 3}, {"micro_batches": 2}),
        ({"streams": 2}, {"micro_batches": 8, "dtype": "mixed-bfloat16"}),
        ({"layers": 3}, {"micro_batches": 1}),
    ],
)
def test_programs_train_as_one_device_does(module: dict[str, int], options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    plan = planned(Recycled(**module), **options)
    assert plan.schedule.passes == passes(plan.graph) == module.get("passes", 3)
    assert plan.report["bound_ns"] <= plan.report["objective_ns"]
    assert plan.verify()["ok"]


def test_the_step_is_that_of_the_slots() -> None:
    """Every pass has its slots; all updates follow the last of them."""
    plan = small()
    price = plan_price(plan)
    slots = runs(plan, price.stages)
    forwards = [run for run in slots if run.kind == "forward" and run.stage == 1 and run.micro_batch == 2]
    assert len(forwards) == 3 and all(a.end_ns <= b.start_ns for a, b in pairwise(forwards))
    last = max(run.end_ns for run in slots if run.kind != "update")
    updates = max(phase_ns(stage, "update") for stage in price.stages)
    assert last + updates == price.objective_ns == plan.report["objective_ns"]


def test_passes_without_gradient_keep_nothing_but_what_waits() -> None:
    """The embedding, which all passes read, of all micro-batches between passes, and one row of what each hands on."""
    plan = small()
    first, between = plan.stages[0], plan.schedule.between_passes(plan.size, plan.micro_batches)
    samples = SAMPLES // plan.micro_batches
    assert [first.graph.nodes[i].shape for i in first.graph.of("from_pass")] == [(samples, 1, 8)] * 2
    memory, without = (stage_price(first, between_passes=count).memory["activations"] for count in (between, 0))
    assert first.in_flight == between == 4
    assert memory - without == 4 * samples * 8 * (between * LENGTH + 2 * between // 2)
    assert plan_price(plan).stages[0].memory["activations"] == memory


def test_space_time_plans_predict_about_the_same() -> None:
    """An independent pricer, of the emitted program, which has messages of its own."""
    plan = small()
    found = predicted(plan)
    assert 0.8 < found.step_ns / plan.report["objective_ns"] < 1.2


def test_files_keep_the_plan(tmp_path: Path) -> None:
    plan = small()
    check_kept(plan, tmp_path / "plan.json")
    assert str(plan)


def test_it_is_chosen_where_no_schedule_is_named_and_it_is_faster() -> None:
    """Gradients of many weights between nodes take longer than a few activations."""
    torch.manual_seed(0)
    inputs = torch.zeros(SAMPLES, LENGTH, 1024), torch.zeros(SAMPLES, LENGTH, 4)
    plan = partita.optimize(
        Recycled(1024), inputs, Machine.adhoc((4, 1)), workers=1, cache="none", offload=False, micro_batches=4
    )
    assert plan.schedule.name == "3f1b"
    ways = {way["schedule"]: way["objective_ns"] for way in plan.report["space"]["ways"]}
    assert ways["3f1b"] == plan.report["objective_ns"] < ways["1f1b"]


@pytest.mark.parametrize(
    ("module", "options", "words"),
    [
        ({"passes": 1}, {}, "need a model that recycles"),
        ({}, {"recompute": "selective"}, "--recompute selective: 3f1b pipelines"),
        ({}, {"rewrite": True}, "--rewrite: 3f1b pipelines"),
        ({}, {"compile": True}, "--compile"),
        ({}, {"stages": 4, "chunks": 2}, "--schedule 3f1b with --chunks 2"),
    ],
)
def test_what_it_lacks_is_refused(module: dict[str, int], options: dict[str, Any], words: str) -> None:
    with pytest.raises(PartitaError, match=words):
        planned(Recycled(**module), **options)


def test_plans_that_do_not_fit_the_model_are_refused() -> None:
    plan = small()
    with pytest.raises(PartitaError, match="2 passes of schedule 3f1b: the model has 3"):
        replace(plan, schedule=replace(plan.schedule, passes=2))
    first = plan.stages[0]
    handed, choices = first.graph.of("from_pass")[0], [*first.choices]
    choices[handed] = replace(choices[handed], output=(S(1),) * len(choices[handed].output))
    with pytest.raises(PartitaError, match=r"stage 0: a pass hands .* to the next as .*, not by samples"):
        replace(plan, stages=(replace(first, choices=tuple(choices)), *plan.stages[1:]))


def test_files_of_models_that_do_not_recycle_are_refused(tmp_path: Path) -> None:
    plan = planned(Recycled(passes=1), schedule="1f1b")
    plan.save(tmp_path / "plan.json")
    text = (tmp_path / "plan.json").read_text().replace('"schedule": "1f1b"', '"schedule": "3f1b"')
    (tmp_path / "plan.json").write_text(text)
    with pytest.raises(PartitaError, match="need a model that recycles"):
        partita.load_plan(tmp_path / "plan.json")


def test_programs_by_operators_lack_what_needs_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop of one's own, and decisions of a plan to start from."""
    with pytest.raises(PartitaError, match="--start: the decisions of a plan with schedule 3f1b cannot"):
        decisions_of(small(), Openness(small().graph))
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    with pytest.raises(PartitaError, match="schedule '3f1b': its program runs operator by operator"):
        small().parallelize(Recycled())


def test_dropout_is_from_counters() -> None:
    module = Recycled()
    for layer in module.layers:
        layer.append(nn.Dropout(0.1))  # type: ignore[operator]
    assert planned(module).verify()["ok"]


class Uneven(Recycled):
    """Layers of any width."""

    def __init__(self, widths: Sequence[int]) -> None:
        super().__init__(64, 0)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(64, wide), nn.GELU(), nn.Linear(wide, 64)) for wide in widths
        )


@pytest.mark.parametrize("seed", some(range(12), 2))
def test_no_cut_is_faster_than_the_bound_of_the_search(seed: int) -> None:
    """All cuts into two or four stages of one device, each with its fastest network."""
    rng = random.Random(seed)
    size, micros, widths = rng.choice((2, 4)), rng.choice((1, 2, 4, 16)), [64 << rng.randrange(9) for _ in range(4)]
    plan = planned(Uneven(widths), size, 64, stages=size, micro_batches=micros, recompute="none")
    space = SearchSpace(schedule="3f1b", stages=size, micro_batches=micros, recompute="none", offload=False)
    whole = with_batch(plan.graph, SAMPLES)
    problem = problem_of(whole, plan.machine, Training(SAMPLES, optimizer=plan.optimizer), space)
    pipeline = PipelineProblem(problem)
    own = Configuration(plan.row, plan.stages[0].placement.matrix, micros, plan.schedule)

    @cache
    def solved(i: int, j: int, flying: int) -> Solved:
        found = encoding(pipeline, own, (i, j), flying)
        variables = [*found.network.variables]
        for node in (*found.pcg.of("receive"), *found.pcg.of("send")):  # all layouts are one on one device
            if node in found.operators:
                number, options = found.operators[node]
                fits = np.array([options.output_space.layout(int(code)) == (S(0),) for code in options.output])
                cost = np.where(fits, variables[number].cost, INFINITE)
                variables[number] = replace(variables[number], cost=cost)
        answer = solver("auto").solve(replace(found.network, variables=tuple(variables), chains=()))
        assert answer.assignment is not None
        return found, answer.assignment

    steps = {}
    for inner in combinations(range(1, pipeline.count - 1), size - 1):
        bounds = (0, *inner, pipeline.count - 1)
        stages = [solved(*ends, own.in_flight(s)) for s, ends in enumerate(pairwise(bounds))]
        steps[bounds] = step_ns(problem, own, bounds, stages)
    assert plan.report["bound_ns"] <= min(steps.values())
    assert plan.report["objective_ns"] == steps[plan.bounds] <= 1.1 * min(steps.values())
