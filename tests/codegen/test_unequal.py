"""Pipelines whose stages have unequally many devices: prices, bounds and programs."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import combinations, pairwise, product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import partita
from partita import Machine, PartitaError
from partita.codegen.plan.plan import PipelinePlan
from partita.codegen.planner.confirmed_plan import step_ns
from partita.codegen.planner.partial_plan import Openness, decisions_of
from partita.codegen.planner.pipeline_space import pipeline_space
from partita.codegen.planner.price import PriceRequest, price
from partita.codegen.planner.problem import problem_of
from partita.codegen.pricing.pipeline_runs import runs
from partita.codegen.pricing.plan_price import plan_price
from partita.formulation.network.network import INFINITE
from partita.formulation.parallelism import Parallelism
from partita.formulation.pipeline.configuration import Configuration
from partita.formulation.pipeline.shares import divisions
from partita.formulation.pipeline.stage_transfers import stage_transfers
from partita.formulation.search_space import SearchSpace
from partita.model.capture.load import load_model
from partita.model.errors import DoesNotFitError
from partita.model.graph.batch import with_batch
from partita.model.graph.layout import B
from partita.model.machine.machine_choice import MachineChoice
from partita.model.training import Training
from partita.solvers.budget import Budget
from partita.solvers.cache.store import store_in
from partita.solvers.protocol import solver
from partita.solvers.search.part_encoding import encoding
from partita.solvers.search.part_networks import without_addends
from partita.solvers.search.pipeline_problem import PipelineProblem
from partita.solvers.search.result import Solved

from ..levels import some
from .pipelines import check_kept, predicted

SAMPLES = 16


class Uneven(nn.Module):
    """Layers of any width; `tied`: the last one has the weight of the first."""

    def __init__(self, widths: Sequence[int], width: int = 64, tied: bool = False) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(width, wide), nn.GELU(), nn.Linear(wide, width)) for wide in widths
        )
        self.head = nn.Linear(width, widths[0] if tied else 4)
        if tied:
            self.head.weight = self.layers[0][0].weight  # type: ignore[index]

    def forward(self, x: Tensor, wanted: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + layer(x)
        loss: Tensor = (self.head(x)[..., :4] - wanted).square().mean()
        return loss


def planned(
    widths: Sequence[int],
    levels: tuple[int, ...] = (4,),
    width: int = 64,
    *,
    tied: bool = False,
    kib: int | None = None,
    **options: Any,
) -> PipelinePlan:
    """A plan; `kib`: of the memory of a device."""
    machine = Machine.adhoc(levels)
    if kib is not None:
        device = replace(machine.device, memory_bytes=machine.device.reserved_bytes + kib * 1024)
        machine = replace(machine, device=device)
    chosen = {"micro_batches": 4, "unequal_stages": True, "workers": 1, "cache": "none", "offload": False}
    inputs = torch.zeros(SAMPLES, width), torch.zeros(SAMPLES, 4)
    torch.manual_seed(0)
    plan = partita.optimize(Uneven(widths, width, tied), inputs, machine, **chosen | options)  # type: ignore[arg-type]
    assert isinstance(plan, PipelinePlan)
    return plan


HEAVY = (16384, 64, 64, 8192)
"""Widths of layers that no two equal halves of a machine compute as fast."""


@cache
def small() -> PipelinePlan:
    return planned(HEAVY, width=256, stages=3)


def test_stages_with_more_work_have_more_devices() -> None:
    plan = small()
    assert plan.shares == (2, 1, 1)
    assert [part.ranks for part in plan.stages] == [2, 1, 1]
    assert plan.report["bound_ns"] <= plan.report["objective_ns"]
    assert "3 stages of 2, 1, 1 ranks, 1F1B" in str(plan)
    assert plan.summary()["pipeline"]["shares"] == [2, 1, 1]


@pytest.mark.parametrize(
    ("widths", "levels", "options"),
    [
        (HEAVY, (4,), {"stages": 3}),
        ((64, 64, 8192), (2, 2), {"stages": 3, "schedule": "gpipe", "dtype": "mixed-bfloat16"}),
        ((4096, 64, 64, 64), (4,), {"recompute": "full", "micro_batches": 2, "stages": 3}),
        ((4096, 64, 64), (2, 3), {"schedule": "eager-1f1b", "stages": 4}),
    ],
)
def test_programs_train_as_one_device_does(
    widths: Sequence[int], levels: tuple[int, ...], options: dict[str, Any]
) -> None:
    plan = planned(widths, levels, **options)
    assert len({*plan.shares}) > 1
    assert plan.verify()["ok"]


def test_the_step_is_that_of_the_slots() -> None:
    plan = small()
    price = plan_price(plan)
    assert max(run.end_ns for run in runs(plan, price.stages)) == price.objective_ns == plan.report["objective_ns"]


def test_space_time_plans_predict_about_the_same() -> None:
    """An independent pricer, of the emitted program."""
    plan = small()
    found = predicted(plan)
    assert 0.9 < found.step_ns / plan.report["objective_ns"] < 1.1


def test_files_keep_the_plan(tmp_path: Path) -> None:
    plan = small()
    check_kept(plan, tmp_path / "plan.json")
    data = json.loads((tmp_path / "plan.json").read_text())
    (tmp_path / "plan.json").write_text(json.dumps(data | {"shares": [1, 1, 1]}))
    with pytest.raises(PartitaError, match="stages of 1, 1, 1 devices on a machine of 4"):
        partita.load_plan(tmp_path / "plan.json")


def test_all_schedules_are_those_that_it_has() -> None:
    plan = planned((64, 64, 512), stages=3, schedule="all")
    ways = plan.report["space"]["ways"]
    assert [way["schedule"] for way in ways] == ["1f1b", "eager-1f1b", "gpipe"]
    best = min((way for way in ways if way["objective_ns"]), key=lambda way: way["objective_ns"])
    alone = planned((64, 64, 512), stages=3, schedule=best["schedule"])
    assert plan.report["objective_ns"] == alone.report["objective_ns"]


def test_they_have_a_price() -> None:
    """That of the plan with the same options; what fixes all stages alike is refused."""
    machine = MachineChoice(machine="dgx-a100", hierarchy=(1, 4))
    space = SearchSpace(unequal_stages=True, stages=3, micro_batches=4, schedule="gpipe")
    budget, free = Budget(workers=1, store=store_in("none")), Parallelism()
    request = PriceRequest(
        model="mlp", machine=machine, training={"batch": 8, "optimizer": "adamw"}, parallelism=free, space=space,
        budget=budget, small=True, beside=False,
    )  # fmt: skip
    found = price(request)
    assert (found["configuration"], found["priced"]["schedule"]) == ("unequal stages --pp 3", "gpipe")
    assert (found["priced"]["stages"], found["priced"]["micro_batches"], found["priced"]["fits"]) == (3, 4, True)
    built = load_model("mlp", small=True)
    options: dict[str, Any] = {"unequal_stages": True, "stages": 3, "micro_batches": 4, "schedule": "gpipe"}
    plan = partita.optimize(
        built.module, built.inputs, machine.load(), batch=8, loss=built.loss, workers=1, cache="none", offload=False,
        **options,
    )  # fmt: skip
    assert found["priced"]["step_ns"] == plan.report["objective_ns"]
    with pytest.raises(PartitaError, match="leave out --baseline megatron"):
        price(replace(request, baseline="megatron"))
    for given in ({"dp": 2, "zero": 1}, {"zero": 1}, {"micro_batch": 2}, {"sequence_parallel": False}):
        parallelism = Parallelism(**given)
        with pytest.raises(PartitaError, match=f"--unequal-stages: .*; leave out {parallelism}"):
            price(replace(request, parallelism=parallelism))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"schedule": "zero-bubble"}, "--unequal-stages with --schedule zero-bubble"),
        ({"schedule": "interlaced"}, "--unequal-stages with --schedule interlaced"),
        ({"recompute": "selective"}, "--recompute selective: pipelines of unequal stages"),
        ({"rewrite": True}, "--rewrite: pipelines of unequal stages"),
        ({"mesh": (2,)}, "every stage has a mesh and cuts of its own; leave out --mesh"),
        ({"overlap": False}, "--no-overlap: pipelines of unequal stages"),
        ({"stages": 1}, "--unequal-stages needs a pipeline"),
        ({"stages": 5}, "4 devices cannot be divided among 5 stages"),
        ({"stages": 3, "tied": True, "widths": (64, 64)}, "share no weights.*'layers.0.0.weight'"),
    ],
)
def test_what_it_lacks_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(PartitaError, match=words):
        planned(**{"widths": HEAVY} | options)


def test_plans_that_do_not_fit_together_are_refused() -> None:
    plan = small()
    with pytest.raises(PartitaError, match="shares and a schedule"):
        replace(plan, schedule=partita.codegen.plan.plan.schedule_named("1f1b"))
    with pytest.raises(PartitaError, match="stage 0 is planned for"):
        replace(plan, shares=(1, 2, 1))
    second = plan.stages[1]
    received, choices = second.graph.of("receive")[0], [*second.choices]
    choices[received] = replace(choices[received], output=(B,) * len(choices[received].output))
    with pytest.raises(PartitaError, match=r"stage 1: receive of .* as B, for a stage on another mesh"):
        replace(plan, stages=(plan.stages[0], replace(second, choices=tuple(choices)), plan.stages[2]))
    with pytest.raises(PartitaError, match="--start: the decisions of a plan with unequal stages cannot"):
        decisions_of(plan, Openness(plan.graph))


@pytest.mark.parametrize("seed", some(range(12), 6))
def test_no_plan_is_faster_than_the_bound_of_the_search(seed: int) -> None:
    """All divisions, cuts and meshes, each stage with its fastest network."""
    rng = random.Random(seed)
    levels, micros = rng.choice(((4,), (2, 2))), rng.choice((1, 2, 4, 8))
    widths, schedule = [64 << rng.randrange(7) for _ in range(3)], rng.choice(("1f1b", "gpipe", "eager-1f1b"))
    options: dict[str, Any] = {"micro_batches": micros, "recompute": "none", "offload": False, "schedule": schedule}
    plan = planned(widths, levels, **options)
    if rng.random() < 0.5:  # memory binds
        try:
            plan = planned(widths, levels, kib=plan.report["memory_bytes"] * rng.randint(50, 99) // 102400, **options)
        except DoesNotFitError:
            return
    space = SearchSpace(unequal_stages=True, **options)
    problem = problem_of(with_batch(plan.graph, SAMPLES), plan.machine, Training(SAMPLES, optimizer="adamw"), space)
    pipeline, among = PipelineProblem(problem), pipeline_space(problem, space)
    assert among is not None
    meshes = {places[0].devices: [(row, p.matrix) for p in places] for row, places in among.placements.items()}
    none = Configuration((1,) * len(levels), (levels,), micros, among.schedule)

    @cache
    def solved(i: int, j: int, number: int, shares: tuple[int, ...], mesh: Any) -> Solved | None:
        own = replace(none, meshes=(mesh,) * len(shares))
        line = stage_transfers(plan.machine, own.row, shares, len(shares))[number]
        try:
            found = encoding(pipeline, own.of(0), (i, j), own.in_flight(number), transfer=line)
        except PartitaError:
            return None
        answer = solver("auto").solve(without_addends(found))
        return None if answer.assignment is None else (found, answer.assignment)

    least = INFINITE
    for shares in divisions(levels, among.shares):
        for inner in combinations(range(1, pipeline.count - 1), len(shares) - 1):
            bounds = (0, *inner, pipeline.count - 1)
            for chosen in product(*(meshes[share] for share in shares)):
                parts = [solved(*ends, s, shares, chosen[s]) for s, ends in enumerate(pairwise(bounds))]
                stages = [part for part in parts if part is not None]
                if len(stages) == len(parts):
                    least = min(least, step_ns(problem, replace(none, meshes=chosen), bounds, stages))
    assert plan.report["bound_ns"] <= least
    assert plan.report["objective_ns"] <= 1.05 * least
