"""Pipelines in two directions over the same devices (Chimera): prices, memory, bounds and programs."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import partita
from partita import Machine, PartitaError
from partita.codegen.plan.plan import PipelinePlan
from partita.codegen.planner.confirmed_plan import step_ns
from partita.codegen.planner.context import Context
from partita.codegen.planner.plan_graph import plan_graph
from partita.codegen.planner.problem import problem_of
from partita.codegen.pricing.pipeline_runs import phase_ns, runs
from partita.codegen.pricing.plan_price import plan_price
from partita.formulation.parallelism import Parallelism
from partita.formulation.pipeline.configuration import Configuration
from partita.formulation.search_space import SearchSpace
from partita.formulation.spacetime.mask import PTensor
from partita.formulation.spacetime.materialized import Collective
from partita.formulation.strategies.role_rows import dimension_kinds
from partita.model.capture.capture import capture
from partita.model.capture.objective import TrainedModule
from partita.model.graph.atoms import dimensions
from partita.model.graph.batch import with_batch
from partita.model.graph.layout import B, S
from partita.model.graph.stages import stage
from partita.model.training import Training
from partita.solvers.budget import Budget
from partita.solvers.protocol import solver
from partita.solvers.search.part_encoding import encoding
from partita.solvers.search.pipeline_problem import PipelineProblem
from partita.solvers.search.result import Solved

from ..levels import some
from .pipelines import check_kept, predicted

SAMPLES, LENGTH, WIDTH = 16, 3, 8


class Layers(nn.Module):
    """Residual layers of these inner widths; `tied`: the last product reads the weight of the first, `twice`: and so
    does one between them.
    """

    def __init__(
        self, inner: tuple[int, ...] = (16,) * 4, dropout: float = 0, tied: bool = False, twice: bool = False
    ) -> None:
        super().__init__()
        self.embed, self.head = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(2))
        if tied:
            self.head.weight = self.embed.weight
        self.twice = twice
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, n), nn.GELU(), nn.Linear(n, WIDTH), nn.Dropout(dropout)) for n in inner
        )

    def forward(self, given: Tensor, wanted: Tensor) -> Tensor:
        x = self.embed(given)
        for number, layer in enumerate(self.layers):
            x = x + layer(x)
            if self.twice and number == len(self.layers) // 2:
                x = x + self.embed(x)
        return (self.head(x) - wanted).square().mean()


class Centered(Layers):
    """The mean of all samples is taken away before the loss."""

    def forward(self, given: Tensor, wanted: Tensor) -> Tensor:
        return super().forward(given - given.mean(), wanted)


def planned(
    module: nn.Module, hierarchy: tuple[int, ...] = (4,), dtype: str = "float32", **options: Any
) -> PipelinePlan:
    inputs = torch.zeros(SAMPLES, LENGTH, WIDTH), torch.zeros(SAMPLES, LENGTH, WIDTH)
    graph = capture(module, inputs, batch=SAMPLES, dropout="counters")
    chosen: dict[str, Any] = {"stages": 2, "micro_batches": 2, "schedule": "chimera", "offload": False}
    plan = plan_graph(
        graph,
        Machine.adhoc(hierarchy),
        Training(SAMPLES, dtype=dtype),
        SearchSpace(**chosen | options),
        Budget(workers=1),
        Context(module=TrainedModule(module, inputs, None)),
    )
    assert isinstance(plan, PipelinePlan)
    return plan


@cache
def small() -> PipelinePlan:
    torch.manual_seed(0)
    return planned(Layers(), stages=4)


@pytest.mark.parametrize(
    ("module", "hierarchy", "options"),
    [
        ({}, (2,), {"micro_batches": 1}),
        ({}, (2,), {"micro_batches": 4, "dtype": "mixed-bfloat16"}),
        ({}, (4,), {"stages": 4}),
        ({"inner": (16,) * 6}, (4,), {"stages": 4, "micro_batches": 4, "recompute": "full"}),
        ({}, (2, 2), {"mesh": (2,)}),
        ({"tied": True}, (2, 2), {"stages": 4, "micro_batches": 1}),
        ({"dropout": 0.1}, (2, 2), {"parallelism": Parallelism(tp=2, dp=1)}),
        ({"inner": (32,) * 4}, (2, 2), {"parallelism": Parallelism(dp=2, tp=1, zero=1)}),
        ({"inner": (32,) * 4}, (2, 2), {"parallelism": Parallelism(dp=2, tp=1, zero=3)}),
    ],
)
def test_programs_train_as_one_device_does(
    module: dict[str, Any], hierarchy: tuple[int, ...], options: dict[str, Any]
) -> None:
    torch.manual_seed(0)
    plan = planned(Layers(**module), hierarchy, **options)
    assert plan.report["bound_ns"] <= plan.report["objective_ns"]
    assert plan.verify()["ok"]


def test_the_step_is_that_of_the_slots() -> None:
    """Half of all forwards of a stage are on either of its devices; updates begin once all gradients are summed."""
    plan = small()
    price = plan_price(plan)
    slots = runs(plan, price.stages)
    places = {(run.device, run.micro_batch % 2) for run in slots if (run.kind, run.stage) == ("forward", 1)}
    assert places == {(1, 0), (2, 1)}
    assert len([run for run in slots if run.kind == "backward"]) == 4 * 2 * plan.micro_batches
    sums = [stage.completing_ns for stage in price.stages]
    updates = [phase_ns(stage, "update") - own for stage, own in zip(price.stages, sums, strict=True)]
    lasts = [max(run.end_ns for run in slots if run.micro_batch >= 0 and run.device == d) for d in range(4)]
    summed = max(last + sums[d] + sums[3 - d] for d, last in enumerate(lasts))
    assert price.objective_ns == summed + max(updates[d] + updates[3 - d] for d in range(4))
    assert price.objective_ns == plan.report["objective_ns"]


def test_a_device_holds_two_stages_with_all_their_weights() -> None:
    plan = small()
    price = plan_price(plan)
    held = [stage.memory_bytes for stage in price.stages]
    assert price.memory_bytes == max(held[0] + held[3], held[1] + held[2]) == plan.report["memory_bytes"]
    weights = [sum(part.graph.nodes[i].numel for i in part.graph.of("parameter")) for part in plan.stages]
    states = [stage.memory["states"] for stage in price.stages]
    assert all(8 * n <= held <= 16 * n for n, held in zip(weights, states, strict=True))  # states may be in shards


def test_gradients_of_both_copies_are_summed() -> None:
    """Each stage sums them over the axis of directions, once a step, as data parallelism does."""
    plan = small()
    for part, price in zip(plan.parts, plan_price(plan).stages, strict=True):
        assert part.axes[0] == "direction"
        assert all(part.choices[i].output[0] == B for i in part.graph.of("parameter"))
        assert any(item.reduces for item in price.items)


def test_space_time_plans_predict_the_same() -> None:
    """An independent pricer, of the emitted program, which has messages of its own."""
    plan = small()
    assert predicted(plan).step_ns == pytest.approx(plan.report["objective_ns"], rel=1e-5)


@pytest.mark.parametrize(("stages", "twice"), [(2, False), (2, True), (4, False)])
def test_a_weight_of_both_ends_is_summed_and_updated_once(stages: int, twice: bool) -> None:
    """Its stages lie on the same devices, which add up all of its gradients, and send none to others; so do those of
    any weight if there are two.
    """
    plan, name = planned(Layers(tied=True, twice=twice), (stages,), stages=stages), "embed.weight"
    assert plan.size == stages
    items = [
        [item.kind for item in price.items if item.phase == "update" and part.graph.nodes[item.node].name == name]
        for part, price in zip(plan.parts, plan_price(plan).stages, strict=True)
    ]
    assert items == [["all-reduce", "update"], *[[]] * (stages - 1)]
    made = partita.space_time(plan.space_time_graph(), plan.machine, optimizer=plan.optimizer)
    (table,) = (i for i in plan.graph.of("parameter") if plan.graph.nodes[i].name == name)
    sums = [i.source.tensor for own in made.program.devices for i in own if isinstance(i, Collective)]
    assert sums.count(PTensor("gradient", table)) == 2  # on both devices
    assert made.prediction.step_ns == pytest.approx(plan.report["objective_ns"], rel=1e-5)


def test_files_keep_the_plan(tmp_path: Path) -> None:
    plan = small()
    check_kept(plan, tmp_path / "plan.json")
    assert "Chimera" in str(plan)


def test_it_is_among_all_schedules() -> None:
    plan = partita.optimize(
        Layers(), (torch.zeros(SAMPLES, LENGTH, WIDTH),) * 2, Machine.adhoc((2,)), schedule="all", micro_batches=2,
        workers=1, cache="none",
    )  # fmt: skip
    ways = {way["schedule"]: way for way in plan.report["space"]["ways"]}
    assert ways["chimera"]["status"] in ("optimal", "feasible", "worse", "near")


@pytest.mark.parametrize(
    ("module", "hierarchy", "options", "words"),
    [
        (Layers, (3,), {"stages": 3}, "needs an even number of stages"),
        (Layers, (3, 2), {"stages": 6}, "even on the outermost level"),
        (Centered, (2,), {}, "reduces over samples before the loss"),
        (Layers, (2,), {"recompute": "selective"}, "--recompute selective: chimera pipelines"),
        (Layers, (2,), {"compile": True}, "--compile"),
        (Layers, (4,), {"chunks": 2}, "--schedule chimera with --chunks 2"),
        (Layers, (2,), {"micro_batches": 16}, "no legal strategy|no strategy"),
    ],
)
def test_what_it_lacks_is_refused(
    module: type[Layers], hierarchy: tuple[int, ...], options: dict[str, Any], words: str
) -> None:
    with pytest.raises(PartitaError, match=words):
        planned(module((16,) * 8), hierarchy, **options)


def test_plans_whose_directions_would_wait_are_refused() -> None:
    plan = small()
    first = plan.stages[0]
    weight, choices = first.graph.of("parameter")[0], [*first.choices]
    choices[weight] = replace(choices[weight], output=(S(0), *choices[weight].output[1:]))
    with pytest.raises(PartitaError, match=r"stage 0: .* takes both directions at once"):
        replace(plan, stages=(replace(first, choices=tuple(choices)), *plan.stages[1:]))


@pytest.mark.parametrize("seed", some(range(12), 4))
def test_no_cut_is_faster_than_the_bound_of_the_search(seed: int) -> None:
    """All cuts into two or four stages of two devices, each with its fastest network; the first and the last share a
    weight or do not.
    """
    rng = random.Random(seed)
    size, micros, inner = rng.choice((2, 4)), rng.choice((1, 2, 4)), tuple(64 << rng.randrange(9) for _ in range(5))
    module = Layers(inner, tied=seed % 2 == 1, twice=seed % 4 == 3 and size == 2)
    plan = planned(module, (size,), stages=size, micro_batches=micros, recompute="none")
    space = SearchSpace(schedule="chimera", stages=size, micro_batches=micros, recompute="none", offload=False)
    whole = with_batch(plan.graph, SAMPLES)
    problem = problem_of(whole, plan.machine, Training(SAMPLES, optimizer=plan.optimizer), space)
    pipeline = PipelineProblem(problem)
    own = Configuration(plan.row, plan.stages[0].placement.matrix[1:] or ((1,),), micros, plan.schedule)

    @cache
    def solved(i: int, j: int, flying: int) -> Solved:
        found = encoding(pipeline, own, (i, j), flying)
        answer = solver("auto").solve(replace(found.network, chains=()))
        assert answer.assignment is not None
        return found, answer.assignment

    steps = {}
    for inside in combinations(range(1, pipeline.count - 1), size - 1):
        bounds = (0, *inside, pipeline.count - 1)
        stages = [solved(*ends, own.in_flight(s)) for s, ends in enumerate(pairwise(bounds))]
        steps[bounds] = step_ns(problem, own, bounds, stages)
    assert plan.report["bound_ns"] <= min(steps.values())
    assert plan.report["objective_ns"] == steps[plan.bounds] <= 1.1 * min(steps.values())


def test_equal_stages_of_two_models_know_which_dims_count_samples() -> None:
    """The dims of either model have numbers of their own."""
    found = []
    for inner in ((16,) * 2, (16,) * 3):
        graph = capture(Layers(inner), (torch.zeros(SAMPLES, LENGTH, WIDTH),) * 2, batch=SAMPLES)
        found.append(stage(graph, 0, 1).graph)
    assert found[0] == found[1]
    for first in found:
        (sent,) = first.of("send")
        assert dimensions(first)[sent][0] in dimension_kinds(first).samples
