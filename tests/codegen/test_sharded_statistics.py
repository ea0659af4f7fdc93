"""Normalizations and softmax over split dims: statistics are added up over ranks, rows are never gathered."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from partita.codegen.plan.plan import Plan
from partita.codegen.planner.plan_graph import plan_graph
from partita.codegen.pricing.stage_price import stage_price
from partita.codegen.verification.special import around, verify_strategy
from partita.codegen.verification.threads import run_threads
from partita.formulation.search_space import SearchSpace
from partita.formulation.special import special_strategy
from partita.formulation.strategies.strategy import row_names
from partita.model.machine.machine import Machine
from partita.model.training import Training

from .cases import CASES
from .test_ring import Axis

Judge = Callable[..., dict[str, Any]]


@pytest.mark.parametrize(("name", "verdicts"), [("normalize", 25), ("softmax", 8)])
def test_its_examples(name: str, verdicts: int) -> None:
    """Over 2, 3, 4 and 8 ranks, where none is left empty."""
    found = verify_strategy(name)
    assert len(found) == verdicts and all(v["ok"] for v in found), found


def program(name: str) -> dict[str, Any]:
    def all_reduce(x: Tensor, axis: Axis) -> Tensor:
        total = x.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=axis.group)
        return total

    names: dict[str, Any] = {"math": math, "torch": torch, "dist": dist, "all_reduce": all_reduce}
    exec(special_strategy(name).source, names)
    return names


def over(ranks: int, x: Tensor, change: Tensor, call: Callable[[Tensor, Axis], Tensor]) -> tuple[list[Tensor], int]:
    """The result and the gradient of `x`, whose last dim is split; and the bytes that a rank keeps for backward."""
    kept: dict[int, int] = {}

    def body(rank: int) -> list[Tensor]:
        axis = Axis(ranks, rank, dist.new_group(list(range(ranks))))
        mine = x.narrow(-1, *axis.part(x.shape[-1])).clone().requires_grad_()

        def pack(t: Tensor) -> Tensor:
            kept[rank] = kept.get(rank, 0) + t.nbytes
            return t

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            y = call(mine, axis)
        y.backward(change.narrow(-1, *axis.part(x.shape[-1])))
        assert mine.grad is not None
        return [y.detach(), mine.grad]

    parts = run_threads(body, ranks)
    return [torch.cat(list(column), -1) for column in zip(*parts, strict=True)], kept[0]


def whole(x: Tensor, change: Tensor, call: Callable[[Tensor], Tensor]) -> list[Tensor]:
    x = x.double().requires_grad_()
    y = call(x)
    y.backward(change.double())
    assert x.grad is not None
    return [y.detach(), x.grad]


@pytest.mark.parametrize(("dtype", "error"), [(torch.float64, 1e-9), (torch.float32, 1e-4), (torch.bfloat16, 2e-2)])
@pytest.mark.parametrize("ranks", [2, 8])
def test_far_from_the_mean(ranks: int, dtype: torch.dtype, error: float) -> None:
    """Deviations of a hundredth of the mean: the mean of squares less the square of the mean is in float64."""
    draw = torch.Generator().manual_seed(0)
    x, change = (torch.randn(5, 60, generator=draw, dtype=torch.float64) for _ in range(2))
    x, change = (x + 100 if dtype != torch.bfloat16 else x).to(dtype), change.to(dtype)
    functions = program("normalize")
    found, kept = over(ranks, x, change, lambda t, axis: functions["normalize"](t, 1, 60, (axis,), 1e-5))
    for mine, wanted in zip(found, whole(x, change, lambda t: F.layer_norm(t, (60,))), strict=True):
        assert mine.dtype == dtype
        assert (mine.double() - wanted).abs().max() <= error * wanted.abs().max()
    part = 5 * -(-60 // ranks) * x.element_size()
    assert kept == part + 2 * 5 * max(4, x.element_size())  # what came in, and two numbers a row


@pytest.mark.parametrize("logarithm", [False, True])
def test_large_and_hidden_logits(logarithm: bool) -> None:
    """Exponentials that would not fit, and a rank all of whose logits are hidden."""
    draw = torch.Generator().manual_seed(0)
    x, change = (torch.randn(5, 12, generator=draw, dtype=torch.float64) for _ in range(2))
    x = 1e4 + 1e2 * x
    if not logarithm:
        x[:, :4] = -math.inf
    functions = program("softmax")
    found, kept = over(3, x, change, lambda t, axis: functions["sharded_softmax"](t, 1, axis, logarithm))
    call = torch.log_softmax if logarithm else torch.softmax
    for mine, wanted in zip(found, whole(x, change, lambda t: call(t, 1)), strict=True):
        torch.testing.assert_close(mine, wanted, rtol=1e-9, atol=1e-9)
    assert kept == 5 * 4 * 8


def test_which_dims() -> None:
    """Every normalized dim that is one atom; of a group norm space, and channels where they are one group."""
    names = {}
    for op in ("layer_norm", "rms_norm", "group_norm", "softmax"):
        for build in CASES[op]:
            graph, index = around(build)
            names.setdefault(op, []).append([n for n in row_names(graph, index) if n.startswith(("normal", "softmax"))])
    one = ["normalize"]
    assert names["layer_norm"] == [one] * 3 and names["rms_norm"] == [one] * 2
    assert names["group_norm"] == [
        ["normalize:2", "normalize:3"],  # 3 groups of 6 channels, 3 x 2 places
        ["normalize:1", "normalize:2"],
        ["normalize:2", "normalize:3"],
        one,
    ]
    assert names["softmax"] == [["softmax"]] * 2


def planned(example: int, rows: str, mesh: tuple[int, ...]) -> tuple[Plan, int]:
    graph, index = around(special_strategy("normalize").examples[example])
    wish = ((graph.nodes[index].name, rows),)
    training = Training(graph.batch, "float64", "sgd")
    space = SearchSpace(mesh=mesh, micro_batches=1, fix=wish, stages=1)
    return plan_graph(graph, Machine.adhoc(mesh), training, space), index


def test_two_dims_at_once(judge: Judge) -> None:
    """Height on one axis, width on the other; a dim with samples on the other axis."""
    for example, rows in ((2, "normalize:2,normalize:3"), (1, "normalize:1,normalize:2"), (0, "b.1,normalize")):
        plan, _ = planned(example, rows, (2, 2))
        judge(plan)


def test_what_it_sends_and_keeps() -> None:
    """Of 18 rows: mean and mean of squares forward, two sums backward; kept are two numbers."""
    plan, index = planned(0, "normalize", (4,))
    result = stage_price(plan)
    sums = [i for i in result.items if i.at == index and i.kind == "all-reduce" and i.phase != "update"]
    assert [(i.phase, i.bytes) for i in sums] == [("forward", 18 * 16), ("backward", 18 * 16)]
    assert 18 * 16 in [k.bytes for k in result.kept if k.node == index]
