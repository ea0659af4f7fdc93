"""What devices keep besides weights of their own: running statistics, tables with sparse gradients, joined tensors."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import partita
from partita import PartitaError, op_assign, op_join, op_trans, recompute, split
from partita.codegen.plan.plan import Plan
from partita.codegen.plan.spacetime_plan import SpaceTimePlan, space_time
from partita.codegen.planner.context import Context
from partita.codegen.planner.plan_graph import plan_graph
from partita.codegen.pricing.stage_price import stage_price
from partita.codegen.verification.graph_module import GraphModule, _truth
from partita.codegen.verification.reference import state_of
from partita.codegen.verification.synthetic import synthetic
from partita.codegen.verification.threads import run_threads
from partita.codegen.verification.verify import TOLERANCE, Trial, run
from partita.codegen.verification.worker import load_program
from partita.formulation.placement.placement import Placement
from partita.formulation.search_space import SearchSpace
from partita.formulation.spacetime.graph import Graph
from partita.formulation.spacetime.mask import GRADIENT
from partita.model.graph.pcg import PCG
from partita.model.machine.machine import Machine, stage_machine
from partita.model.training import Training
from partita.solvers.budget import Budget

from ..formulation.audit import check
from ..levels import some
from .cases.rewritten import PAIRS
from .conftest import drawn, machine_of
from .conversions import checked, one_by_one, trained
from .pipelines import captured
from .test_buffers import Counting
from .test_buffers import X as COUNTED
from .test_tables import BAGS, BATCH, IDS, Clicks, planned

Write = Callable[[Graph], None]
CLICKS = torch.zeros(BATCH)
IMAGES = torch.zeros(8, 3, 4, 4)


class Convolutions(nn.Module):
    """Batch norms with and without weights, with and without running statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU())
        self.second = nn.Sequential(nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8, affine=False, momentum=0.3), nn.ReLU())
        self.third = nn.BatchNorm1d(8, track_running_stats=False)
        self.scores = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        y = self.second(self.first(x)).flatten(2)
        scores: Tensor = self.scores(self.third(y).mean(2))
        return scores


def by(dim: object, devices: int = 2, micros: int = 1) -> Write:
    """Micro-batches, each split along a dim over devices."""

    def write(graph: Graph) -> None:
        for op in graph.forward:
            for part in op_trans(op, split("batch", micros, "micro")):
                for device, own in enumerate(op_trans(part, split(dim, devices))):  # type: ignore[arg-type]
                    op_assign(own, device)

    return write


def on_one(dim: object) -> Write:
    def write(graph: Graph) -> None:
        by(dim)(graph)
        op_assign(graph.forward, 0)

    return write


def recomputed(graph: Graph) -> None:
    by("batch", 1, 2)(graph)
    recompute([op for op in graph.forward if op.of.path.startswith("first")])


def verified(module: nn.Module, inputs: tuple[Tensor, ...], write: Write, **options: str) -> None:
    graph = partita.graph(module, inputs, batch=len(inputs[0]), loss=None if len(inputs) > 1 else "projection")
    write(graph)
    plan = space_time(graph, **{"dtype": "float64", "optimizer": "sgd", **options})  # type: ignore[arg-type]
    assert check(plan.program) == ()
    verdict = plan.verify(steps=2)
    assert verdict["ok"], verdict["failure"]


def refusal(module: nn.Module, inputs: tuple[Tensor, ...], write: Write, **options: str) -> str:
    with pytest.raises(PartitaError) as error:
        verified(module, inputs, write, **options)
    return str(error.value)


# Planners' plans of models that have them


@pytest.mark.parametrize(
    ("name", "optimizer", "micro_batches"),
    some([("dlrm", "sgd", 2), ("xdl", "sgd", 4), ("unet", "adamw", 1), ("resnext-50", "adamw", 1)], 2),
)
def test_a_planner_s_plan_is_priced_as_there_and_trains(
    name: str, optimizer: str, micro_batches: int, tmp_path: Path
) -> None:
    machine = stage_machine(Machine.load("dgx-a100", nodes=1), (1, 2))
    space = SearchSpace(micro_batches=micro_batches, stages=1, recompute="none", bundles=False, offload=False)
    training = Training(8, "float32", optimizer)
    plan = plan_graph(captured(name, 8), machine, training, space, Budget(workers=1), Context(emits=False))
    graph = plan.space_time_graph()
    found = space_time(graph, machine, optimizer=optimizer)
    assert found.prediction.step_ns == stage_price(plan).objective_ns
    trained(checked(graph, plan.ranks), tmp_path)


@pytest.mark.parametrize("seed", some(range(8), 2))
def test_weights_that_a_rewriting_joined(seed: int, tmp_path: Path) -> None:
    name = sorted(name for name in PAIRS if any(node.get("joined") for node in PAIRS[name](True).nodes))[seed % 3]
    before, after, sizes = PAIRS[name](False), PAIRS[name](True), ((2,), (3,), (2, 2))[seed % 3]
    place = Placement(sizes, tuple((size,) for size in sizes))
    choices = drawn(after, sizes, random.Random(seed), {})
    plan = Plan(after, machine_of(sizes), place, 1, choices, "float64", "adamw")
    made = space_time(plan.space_time_graph(), Machine.adhoc(sizes), optimizer="adamw")
    judge(made, before, tmp_path / "program.py")


def judge(made: SpaceTimePlan, graph: PCG, path: Path) -> None:
    made.emit(path)
    state, batches, truth = _truth(graph, made.optimizer, 2)
    verdict = run([Trial(path, made.pcg, made.ranks, state, batches, truth, TOLERANCE)], timeout=60)[0]
    assert verdict["ok"], verdict["failure"]


# Running statistics, and other buffers that forward changes


@pytest.mark.parametrize(
    "write",
    some([by("batch", 2, 2), by(("first.1.weight", 0)), on_one(("first.1.weight", 0)), recomputed]),
)
def test_statistics_are_of_the_batch_and_change_once_a_step(write: Write) -> None:
    """Also of micro-batches, where a device has two halves of the channels, and where forward runs again."""
    verified(Convolutions(), (IMAGES,), write)


PIECES: list[tuple[int, dict[str, Any]]] = [
    (2, {"stages": 2, "micro_batches": 4, "schedule": "1f1b", "recompute": "full"}),
    (1, {"stages": 1, "micro_batches": 2, "dtype": "mixed-bfloat16"}),
    (4, {"stages": 2, "micro_batches": 4, "schedule": "zero-bubble"}),
    (2, {"stages": 1, "micro_batches": 5, "batch": 20, "recompute": "parts"}),
]


def of_micro_batches(devices: int, options: dict[str, Any]) -> Plan:
    """Batch norms of a planner's plan normalize every micro-batch by its own statistics."""
    given = {"batch": 16, "workers": 1, "loss": "projection", "statistics": "micro-batch", "dropout": "counters"}
    return partita.optimize(Convolutions(), (IMAGES,), Machine.adhoc((devices,)), **given | options)


@pytest.mark.parametrize(("devices", "options"), some(PIECES, 2))
def test_micro_batches_are_normalized_by_their_own_statistics(devices: int, options: dict[str, Any]) -> None:
    plan = of_micro_batches(devices, options)
    made = space_time(plan.space_time_graph(), plan.machine, dtype=plan.dtype)
    assert check(made.program) == ()
    verdict = made.verify(steps=2)
    assert verdict["ok"], verdict["failure"]


def test_running_statistics_follow_micro_batches_in_whatever_order(tmp_path: Path) -> None:
    """They are those of micro-batches one after another, though a device computes the last one first."""
    graph = of_micro_batches(1, {"stages": 1, "micro_batches": 3, "batch": 12, "recompute": "full"}).space_time_graph()
    graph = one_by_one(graph, 0)
    graph.clear_orders()
    of = [[op for op in graph.forward if op.coordinate("micro") == micro] for micro in range(3)]
    partita.op_order(of[2], of[0])
    partita.op_order(of[0], of[1])
    trained(checked(graph, 1), tmp_path)


def test_statistics_of_a_micro_batch_are_not_those_of_several() -> None:
    graph = one_by_one(of_micro_batches(1, {"stages": 1, "micro_batches": 2}).space_time_graph(), 0)
    graph.clear_orders()
    norm = op_join([op for op in graph.forward if op.of.name == "first.1"])
    op_assign(norm, 0)
    with pytest.raises(
        PartitaError, match=r"each of 2 micro-batches by its own.*several: split its batch into 2 first"
    ):
        space_time(graph)
    op_assign(op_trans(norm, split("batch", 2)), 0)
    assert check(space_time(graph).program) == ()


def test_a_device_with_running_statistics_normalizes_all_micro_batches() -> None:
    graph = one_by_one(of_micro_batches(1, {"stages": 1, "micro_batches": 2}).space_time_graph(), 0)
    op_assign(next(op for op in graph.forward if op.of.op == "batch_norm"), 1)
    with pytest.raises(PartitaError, match=r"running statistics on device \d, which normalizes 1 of 2 micro-batches"):
        space_time(graph)


def test_other_buffers_change() -> None:
    verified(Counting(), (COUNTED,), by("batch"))


def test_what_would_change_otherwise_is_refused() -> None:
    def apart(graph: Graph) -> None:
        by("batch", 1)(graph)
        (norm,) = (op for op in graph.find("first.1") if op.of.op == "batch_norm")
        one, other = op_trans(norm, split("batch", 2))
        op_assign([one, *op_trans(other, split(("first.1.weight", 0), 2))], 0)

    assert "no device has overlapping parts" in refusal(Convolutions(), (IMAGES,), apart)
    assert "needs the whole batch at once" in refusal(Counting(), (COUNTED,), by("batch", 1, 2))

    def again(graph: Graph) -> None:
        by("batch", 1)(graph)
        recompute(graph.forward[:-1])

    assert "has changed when it is recomputed" in refusal(Counting(), (COUNTED,), again)


def test_statistics_of_a_device_s_own_samples_are_refused() -> None:
    graph = partita.graph(Convolutions(), (IMAGES,), batch=8, loss="projection", statistics="local")
    by("batch")(graph)
    with pytest.raises(PartitaError, match=r'statistics of its own samples.*statistics="batch"'):
        space_time(graph)


# Tables


@pytest.mark.parametrize(
    ("bags", "write"),
    some(
        [
            (False, by(("tables.weight", 1), 2, 3)),
            (True, by(("tables.weight", 0), 3, 2)),
            (False, by("batch", 1, 4)),
        ]
    ),
)
def test_sparse_gradients(bags: bool, write: Write) -> None:
    """Of columns, of rows, of micro-batches."""
    verified(Clicks(bags), (BAGS if bags else IDS, CLICKS), write)


def test_dense_gradients_of_joined_tables() -> None:
    verified(Clicks(sparse=False), (IDS, CLICKS), by("batch", 2), optimizer="adamw")


def test_sparse_gradients_are_not_sent() -> None:
    said = refusal(Clicks(), (IDS, CLICKS), by("batch", 2))
    assert "looks up ids that device 0 does not" in said and "sparse=False" in said
    with pytest.raises(PartitaError, match="which adamw cannot apply"):
        space_time(partita.graph(Clicks(), (IDS, CLICKS), batch=len(IDS)), optimizer="adamw")

    def cut(graph: Graph) -> None:
        by("batch", 1)(graph)
        for op in op_trans(graph.find("tables.weight")[0], split(0, 2)):
            op_assign(op, 0)

    assert "looks it up in other parts" in refusal(Clicks(), (IDS, CLICKS), cut)


@pytest.mark.parametrize("dtype", some(["float32", "mixed-bfloat16-fp32grad"], 2))
def test_what_is_kept_is_what_is_predicted(dtype: str, tmp_path: Path) -> None:
    """Weights and statistics of a rank, and for each look-up of a step half a row with its id."""
    graph = partita.graph(Clicks(norm=True), (IDS, CLICKS), batch=BATCH)
    by(("tables.weight", 1), 2, 3)(graph)
    plan = space_time(graph, dtype=dtype, optimizer="sgd")
    plan.emit(tmp_path / "program.py")
    program = load_program(tmp_path / "program.py")
    ruff = [sys.executable, "-m", "ruff", "format", "--diff", "--isolated", "--line-length", "120"]
    done = subprocess.run([*ruff, tmp_path / "program.py"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout

    def kept(_: int) -> int:
        model = program.Model(program.Mesh())
        return sum(part.nbytes for name, part in model.parts.items())

    for living, held in zip(plan.prediction.living, run_threads(kept, 2), strict=True):
        assert living.always["weights"] == held
        table = next(i for i in graph.pcg.of("parameter") if graph.pcg.nodes[i].name == "tables.weight")
        own = [span for span in living.spans if span.tensor == (GRADIENT, table)]
        assert [span.size_bytes for span in own] == [4 * 4 * (4 * 4 + 8)] * 3
        assert len({span.touched[-1] for span in own}) == 1


def test_training_goes_on_under_the_other_program(tmp_path: Path) -> None:
    """From the planner's program to the converted one's and back: as without the stop."""
    plan = planned(Clicks(sparse=False, norm=True), (IDS, CLICKS), (2, 2), "ids,e:0", optimizer="adamw")
    plan.emit(tmp_path / "0.py")
    space_time(plan.space_time_graph(), plan.machine, optimizer="adamw").emit(tmp_path / "1.py")
    programs = [load_program(tmp_path / f"{number}.py") for number in range(2)]
    state, batches = state_of(GraphModule(plan.graph)), [synthetic(plan.graph, BATCH, step) for step in range(3)]

    def losses(program: ModuleType, first: int, last: int, folder: Path) -> list[float]:
        def work(_: int) -> list[float]:
            mesh = program.Mesh()
            model = program.Model(mesh, dtype=torch.float64)
            program.load(model, state if not first else {name: 7 * x for name, x in state.items()}, mesh)
            optimizer = program.make_optimizer(model, mesh)
            if first:
                assert program.resume(model, optimizer, folder) == first
            found = [float(program.train_step(model, optimizer, batches[k], mesh, k)) for k in range(first, last)]
            program.save_training(model, optimizer, folder, last)
            return found

        return run_threads(work, program.RANKS)[0]

    whole = losses(programs[0], 0, 3, tmp_path / "whole")
    for number, (one, other) in enumerate((programs, programs[::-1])):
        folder = tmp_path / f"saved {number}"
        assert losses(one, 0, 2, folder) + losses(other, 2, 3, folder) == pytest.approx(whole, rel=1e-12)
