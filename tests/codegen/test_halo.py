"""Windows along split dims: the exchange of rows by itself, and networks whose every window is split by space."""

from __future__ import annotations

from math import prod
from typing import Any

import pytest
import torch
from torch import nn

from partita.codegen.emission.spmd.emit import emit
from partita.codegen.plan.plan import Plan
from partita.codegen.planner.plan_graph import plan_graph
from partita.codegen.verification.special import verify_strategy
from partita.codegen.verification.verify import verify
from partita.formulation.search_space import SearchSpace
from partita.formulation.strategies.strategy import row_names
from partita.model.capture.capture import capture
from partita.model.graph.layout import P
from partita.model.graph.pcg import PCG
from partita.model.machine.machine import Machine
from partita.model.training import Training
from partita.model.zoo.resnext import ResNeXt
from partita.model.zoo.unet import UNet

from ..levels import some

SPLIT = ("conv", "conv_transpose", "max_pool", "moments", "batch_norm")


def test_every_row_on_two_to_eight_ranks() -> None:
    verdicts = verify_strategy("halo")
    assert all(v["ok"] for v in verdicts), [v for v in verdicts if not v["ok"]]
    assert {v["ranks"] for v in verdicts} == {2, 3, 4, 8}
    assert len(verdicts) > 50


def resnext() -> tuple[nn.Module, dict[str, torch.Tensor]]:
    module = ResNeXt(stem=12, blocks=(1, 2), width=12, groups=6, classes=12)
    return module, {"images": torch.zeros(2, 3, 64, 64), "labels": torch.zeros(2, dtype=torch.int64)}


def unet() -> tuple[nn.Module, dict[str, torch.Tensor]]:
    module = UNet(width=4, levels=3, classes=3)
    return module, {"images": torch.zeros(2, 1, 32, 32), "labels": torch.zeros(2, 32, 32, dtype=torch.int64)}


def spatial(graph: PCG, dims: tuple[int, ...]) -> tuple[tuple[str, str], ...]:
    """Every window, and what norms count, split along these spatial dims, one an axis."""
    fixed = []
    for i in (i for op in SPLIT for i in graph.of(op)):
        names = row_names(graph, i)
        rows = [next(n for n in (f"halo:s{d}", f"s{d}", f"d.{d}") if n in names) for d in dims]
        fixed.append((graph.nodes[i].name, ",".join(rows)))
    return tuple(fixed)


def split(graph: PCG, mesh: tuple[int, ...], dims: tuple[int, ...]) -> Plan:
    """The best plan of one image that does so; the solver decides on the rest."""
    training = Training(1, "float64", "sgd")
    space = SearchSpace(mesh=mesh, micro_batches=1, fix=spatial(graph, dims), stages=1)
    return plan_graph(graph, Machine.adhoc((prod(mesh),)), training, space)


@pytest.mark.parametrize(
    ("make", "mesh", "dims"),
    some(
        [
            (resnext, (2,), (1,)),
            (resnext, (3,), (0,)),  # 64, 32, 16 and 8 rows in three parts
            (resnext, (2, 3), (1, 0)),
            (unet, (4,), (0,)),
            (unet, (8,), (1,)),  # one row each in the middle
            (unet, (3, 2), (0, 1)),
        ]
    ),
)
def test_one_image_split_by_space(make: Any, mesh: tuple[int, ...], dims: tuple[int, ...]) -> None:
    """The same loss, gradients, weights and running statistics, which count all of space."""
    module, inputs = make()
    plan = split(capture(module, inputs, batch=2), mesh, dims)
    verdict = verify(plan, module=module, inputs=inputs)
    assert verdict["ok"], verdict
    assert all(set(plan.choices[i].output) == {P} for i in plan.graph.of("moments"))


def test_what_is_written() -> None:
    """Corners come along with the second dim; aligned windows need no rows of others."""
    module, inputs = unet()
    plan = split(capture(module, inputs, batch=2), (2, 2), (0, 1))
    program, (rows, columns) = " ".join(emit(plan).split()), plan.axes
    assert (
        f"halo(halo(images, 2, {rows}, (32, 32), (-1, 1)), 3, {columns}, (32, 32), (-1, 1)), self.top_first_weight"
        in program
    )
    assert "pool = F.max_pool2d(second_norm, 2)" in program
    assert program.count("crop(") == program.count("def crop(") == 1


def test_one_large_image_is_split_by_space() -> None:
    """At full size the solver does so by itself, but for the deepest levels, which have most of the weights."""
    with torch.device("meta"):
        module = UNet()
        inputs = {"images": torch.zeros(2, 1, 1024, 1024), "labels": torch.zeros(2, 1024, 1024, dtype=torch.int64)}
    graph = capture(module, inputs, batch=2)
    plan = plan_graph(
        graph, Machine.load("dgx-a100", nodes=1), Training(1, "float32", "sgd"), SearchSpace(mesh=(8,), stages=1)
    )
    program = emit(plan)
    assert program.count("F.conv2d(halo(") >= 16
    assert plan.report["gap"] == 0
