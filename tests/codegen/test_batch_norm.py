"""Batch norms: over the whole batch whatever splits it, over micro-batches, over ranks' parts; running statistics."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import partita
from partita import Machine, PartitaError
from partita.codegen.plan.choice import Choice
from partita.codegen.plan.plan import Plan
from partita.codegen.pricing.stage_price import stage_price
from partita.codegen.verification.statistics import Pieces, pieces
from partita.codegen.verification.threads import run_threads
from partita.codegen.verification.verify import verify
from partita.codegen.verification.worker import load_program
from partita.model.capture.capture import capture
from partita.model.graph.batch import with_batch
from partita.model.graph.buffer_updates import updated
from partita.model.graph.layout import P, is_split
from partita.model.graph.pcg import PCG

from ..levels import some
from .beginnings import begun

Force = Callable[..., Plan]
IMAGES = (torch.zeros(14, 3, 8, 8),)


class Convolutions(nn.Module):
    """Batch norms of every kind: with and without weights, with and without running statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
        self.second = nn.Sequential(nn.Conv2d(8, 8, 3), nn.SyncBatchNorm(8, affine=False, momentum=0.3), nn.ReLU())
        self.third = nn.BatchNorm1d(8, track_running_stats=False, eps=1e-3)
        self.scores = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        y = self.second(self.first(x))
        scores: Tensor = self.scores(self.third(y.flatten(2)).mean(2))
        return scores


def dense() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 2))


def planned(module: nn.Module, inputs: Any, mesh: tuple[int, ...], **options: Any) -> Plan:
    """The optimum, as the cost network and as the plan's own prices have it."""
    plan = partita.optimize(
        module, inputs, Machine.adhoc(mesh), mesh=mesh, **{"dtype": "float64", "loss": "projection", **options}
    )
    found = stage_price(plan)
    assert (found.objective_ns, found.memory_bytes) == (plan.report["objective_ns"], plan.report["memory_bytes"])
    return plan


def same(plan: Plan, module: nn.Module | None = None, inputs: Any = None) -> None:
    """The program trains as the module does, its running statistics too."""
    verdict = verify(plan, module=module, inputs=inputs)
    assert verdict["ok"], f"{verdict['failure']}\n{plan}"
    assert verdict["tolerance"] == 1e-9


@pytest.mark.parametrize("mesh", [(2,), (3,), (2, 2)], ids=str)
def test_the_optimum(mesh: tuple[int, ...]) -> None:
    same(planned(Convolutions(), IMAGES, mesh))


@pytest.mark.parametrize("row", some(["n", "c", "d.0", "R", "B"]))
@pytest.mark.parametrize("mesh", [(3,), (2, 2)], ids=str)
def test_whatever_splits_it(row: str, mesh: tuple[int, ...]) -> None:
    """Statistics are of the whole batch, also where ranks have parts of different sizes, over one axis or several."""
    rows = ",".join([row] * len(mesh))
    plan = planned(Convolutions(), IMAGES, mesh, fix={"first.1": rows, "first.1.moments": rows})
    sums = {x for i in plan.graph.of("moments")[:1] for x in plan.choices[i].output}
    assert (sums == {P}) == (row in ("n", "d.0"))
    same(plan)


@pytest.mark.parametrize(
    ("norm", "shape"),
    [(nn.BatchNorm1d(6), (6,)), (nn.BatchNorm1d(6), (6, 4)), (nn.BatchNorm3d(6), (6, 2, 3, 4))],
    ids=lambda x: str(x) if isinstance(x, tuple) else "",
)
def test_any_number_of_dims(norm: nn.Module, shape: tuple[int, ...]) -> None:
    module = nn.Sequential(norm, nn.Tanh(), nn.Linear(shape[-1], 2))
    same(planned(module, (torch.zeros(6, *shape),), (2, 2)))


@pytest.mark.parametrize("statistics", ["batch", "micro-batch", "local"])
@pytest.mark.parametrize("seed", some(range(4)))
def test_plans_that_nobody_would_choose(force: Force, statistics: str, seed: int) -> None:
    """Any rows and layouts; with 7 samples a micro-batch, ranks that normalize alone have 4 and 3, or 3, 3 and 1."""
    count = {"batch": 1, "micro-batch": 2, "local": 1 + seed % 2}[statistics]
    graph = with_batch(capture(Convolutions(), IMAGES, statistics=statistics, loss="projection"), 14 // count)
    plan = force(graph, [(2,), (3,), (2, 2), (3, 2)][seed], random.Random(seed), None, count)
    same(plan, Convolutions(), IMAGES)


# Pieces


def test_the_pieces_of_ranks_and_micro_batches() -> None:
    fix = {"1": "n,n", "0": "b.0,b.0"}
    local = planned(dense(), (torch.zeros(30, 4),), (2, 2), statistics="local", micro_batches=2, fix=fix)
    first = (tuple(range(4)), tuple(range(4, 8)), tuple(range(8, 12)), tuple(range(12, 15)))
    assert pieces(local) == (Pieces(0, 0, (first, tuple(tuple(i + 15 for i in part) for part in first))),)
    assert "F.batch_norm(" in local.emit()
    assert "moments" not in local.emit()
    micro = planned(dense(), (torch.zeros(14, 4),), (2, 2), statistics="micro-batch", micro_batches=2, fix=fix)
    assert pieces(micro) == (Pieces(0, 0, ((tuple(range(7)),), (tuple(range(7, 14)),))),)
    assert not pieces(planned(dense(), (torch.zeros(14, 4),), (2, 2)))
    same(local)
    same(micro)


@pytest.mark.parametrize("dtype", ["bfloat16", "mixed-float16"])
def test_narrow_dtypes_with_statistics_of_their_own(dtype: str) -> None:
    """The program widens the weights of its batch norm; verified, they are wide already."""
    local = planned(dense(), (torch.zeros(14, 4),), (2,), statistics="local", dtype=dtype, fix={"1": "n"})
    assert "precise(" in local.emit()
    same(local)


def test_wrong_pieces_are_found() -> None:
    """A program of local statistics is no program of those of the batch."""
    module, inputs = dense(), (torch.zeros(14, 4),)
    local = planned(module, inputs, (2,), statistics="local", fix={"1": "n"})
    assert not verify(replace(local, graph=_renumbered(local.graph)), module=module, inputs=inputs)["ok"]


def _renumbered(graph: PCG) -> PCG:
    """With another call site, so that the module normalizes the whole batch."""
    nodes = [
        replace(n, attributes=tuple((k, 9 if k == "site" else v) for k, v in n.attributes))
        if n.op == "local_batch_norm"
        else n
        for n in graph.nodes
    ]
    return replace(graph, nodes=tuple(nodes))


def test_micro_batches_would_change_the_statistics() -> None:
    inputs = (torch.zeros(12, 4),)
    assert planned(dense(), inputs, (2,)).report["space"]["micro_batches"] == [1]
    with pytest.raises(PartitaError, match=r"'1' normalizes over the whole batch.*--statistics micro-batch"):
        planned(dense(), inputs, (2,), micro_batches=2)
    assert planned(dense(), inputs, (2,), statistics="micro-batch").report["space"]["micro_batches"] == [1, 2, 3, 4, 6]
    with pytest.raises(PartitaError, match="'rank': choose from batch, micro-batch, local"):
        planned(dense(), inputs, (2,), statistics="rank")


def test_a_rank_does_not_normalize_a_single_value() -> None:
    """14 samples over 2 x 2 ranks and 2 micro-batches would leave one to the last."""
    with pytest.raises(PartitaError, match="'1' cannot be fixed to n,n"):
        planned(dense(), (torch.zeros(14, 4),), (2, 2), statistics="local", micro_batches=2, fix={"1": "n,n"})
    same(planned(dense(), (torch.zeros(14, 4),), (2, 2), statistics="local", micro_batches=2))


# Running statistics


def test_running_statistics_are_stored_as_they_are_updated() -> None:
    plan = planned(dense(), (torch.zeros(12, 4),), (2,), fix={"1": "c"})
    buffers = updated(plan.graph)
    assert len(buffers) == 2
    assert all(is_split(plan.choices[i].output[0]) for i in buffers)
    held = {kept.node: kept.bytes for kept in stage_price(plan).kept if kept.part == "states"}
    assert [held[i] for i in buffers] == [3 * 8, 3 * 8]
    same(plan)
    broken = list(plan.choices)
    broken[next(iter(buffers))] = Choice((), (0,))
    with pytest.raises(PartitaError, match="running_mean' is updated in a layout other than the stored one"):
        replace(plan, choices=tuple(broken))


def test_a_plan_file_and_a_checkpoint(tmp_path: Path) -> None:
    """Running statistics that are split are written whole, and the module can load them."""
    module = dense()
    plan = planned(module, (torch.zeros(12, 4),), (2,), dtype="float32", fix={"1": "c"})
    begun(plan).save(tmp_path)
    assert Plan.load(tmp_path).choices == plan.choices
    program = load_program(tmp_path / "program.py")

    def train(rank: int) -> dict[str, Tensor]:
        mesh = program.Mesh()
        model = program.Model(mesh)
        program.initialize(model)
        before = program.whole_weights(model, mesh)
        program.train_step(model, program.make_optimizer(model, mesh), program.synthetic(0), mesh, 0)
        after = program.whole_weights(model, mesh)
        return {"before": before, "after": after} if rank == 0 else {}

    states: Any = run_threads(train, 2)[0]
    assert states["before"]["1.running_mean"].tolist() == [0] * 6
    assert states["before"]["1.running_var"].tolist() == [1] * 6
    assert (states["after"]["1.running_var"] != 1).all()
    module.load_state_dict(states["after"])


def test_mixed_precision_keeps_statistics_in_full(tmp_path: Path) -> None:
    """A mean far from zero, of more values than bfloat16 counts: what is summed in 16 bits would be far off."""
    module = nn.Sequential(nn.Embedding(7, 6), nn.Flatten(0, 1), nn.BatchNorm1d(6), nn.Linear(6, 2))
    inputs = (torch.zeros(64, 16, dtype=torch.int64),)
    options: dict[str, Any] = {"mesh": (2,), "dtype": "mixed-bfloat16", "fix": {"2": "n:0"}, "loss": "projection"}
    for statistics in ("batch", "local"):
        plan = partita.optimize(module, inputs, Machine.adhoc((2,)), statistics=statistics, **options)
        plan.emit(tmp_path / f"{statistics}.py")
        program = load_program(tmp_path / f"{statistics}.py")
        state = {k: v for k, v in module.state_dict().items() if "tracked" not in k}
        state["0.weight"] = 10 + torch.randn(7, 6, generator=torch.Generator().manual_seed(1))

        def train(rank: int, program: Any = program, state: dict[str, Tensor] = state) -> tuple[Tensor, Tensor]:
            mesh = program.Mesh()
            model = program.Model(mesh)
            program.load(model, state, mesh)
            assert {p.dtype for p in model.parameters()} == {torch.float32}
            program.train_step(model, program.make_optimizer(model, mesh), program.synthetic(0), mesh, 0)
            after = program.whole_weights(model, mesh)
            return (after["2.running_mean"], after["2.running_var"]) if rank == 0 else (torch.empty(0),) * 2

        mean, var = run_threads(train, 2)[0]
        ids = program.synthetic(0)["input"].flatten()
        x = state["0.weight"].bfloat16().float()[ids if statistics == "batch" else ids[: len(ids) // 2]]
        torch.testing.assert_close(mean, 0.1 * x.mean(0), rtol=1e-5, atol=0)
        torch.testing.assert_close(var, 0.9 + 0.1 * x.var(0), rtol=1e-3, atol=0)


# Evaluation, and what is refused


def test_a_norm_that_stands_still() -> None:
    """In evaluation the running statistics are constants, and a norm is a product and a sum."""
    module = Convolutions()
    for norm in (module.first[1], module.second[1]):
        norm.eval()
        norm.running_mean.copy_(torch.linspace(-1, 1, 8))
        norm.running_var.copy_(torch.linspace(0.5, 2, 8))
    plan = planned(module, IMAGES, (2, 2))
    assert len(plan.graph.of("batch_norm")) == 1
    assert not updated(plan.graph)
    same(plan)


def twice() -> nn.Module:
    norm = nn.BatchNorm1d(4)
    return nn.Sequential(nn.Linear(4, 4), norm, nn.Linear(4, 4), norm)


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (twice(), "'1.running_mean' is updated by '1' .* called once"),
        (nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, momentum=None)), "'1' averages .* give it a momentum"),
    ],
    ids=["twice", "cumulative"],
)
def test_refusals(module: nn.Module, words: str) -> None:
    with pytest.raises(PartitaError, match=words):
        capture(module, (torch.zeros(6, 4),), loss="projection")


def test_the_program_is_formatted(tmp_path: Path) -> None:
    machine = Machine.adhoc((2, 2))
    for number, options in enumerate(({}, {"statistics": "local"}, {"dtype": "mixed-bfloat16"})):
        path = tmp_path / f"program{number}.py"
        asked = {"mesh": (2, 2), "fix": {"first.1": "n,c"}, "loss": "projection"} | options
        partita.optimize(Convolutions(), IMAGES, machine, **asked).emit(path)
        for command in (["format", "--diff"], ["check", "--select", "E,F,W,B,I"]):
            ruff = [sys.executable, "-m", "ruff", *command, "--isolated", "--line-length", "120", path]
            done = subprocess.run(ruff, capture_output=True, text=True)
            assert done.returncode == 0, done.stdout
