"""Backwards in two parts: towards the stage before at once, towards weights later, and nothing twice."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from partita.codegen.pricing.pipeline_runs import runs, weights_ns
from partita.codegen.pricing.plan_price import plan_price
from partita.codegen.verification.worker import load_program
from partita.model.errors import PartitaError
from partita.model.graph.segments import segments

from .conftest import Judge
from .pipelines import at_random, captured, piped


@pytest.mark.parametrize(
    ("name", "size", "mesh", "micros"),
    [("mlp", 4, (1,), 6), ("gpt2", 3, (2,), 4), ("mbart-32b", 2, (3,), 6)],
)
def test_any_choices(judge: Judge, name: str, size: int, mesh: tuple[int, ...], micros: int) -> None:
    graph = captured(name, 12)
    judge(at_random(graph, size, mesh, micros, random.Random(name), schedule="zero-bubble"), graph)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    path = tmp_path_factory.mktemp("program") / "program.py"
    piped(captured("mlp", 24), (2,), (2,), 4, schedule="zero-bubble").emit(path)
    return load_program(path)


class Products(TorchDispatchMode):
    """Counts matrix products."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        self.count += func.overloadpacket.__name__ in ("mm", "addmm")
        return func(*args, **(kwargs or {}))


def test_each_product_is_differentiated_once(program: ModuleType) -> None:
    """Of four linears, of which two share a weight, three wait with their weights; the shared one does not."""
    torch.manual_seed(0)
    first, second, shared = (nn.Parameter(torch.randn(4, 4, dtype=torch.float64)) for _ in range(3))
    scale = nn.Parameter(torch.randn(4, dtype=torch.float64))
    x = torch.randn(3, 4, dtype=torch.float64)

    def compute(x: Tensor) -> Tensor:
        hidden = F.linear(F.linear(x, first * 2).tanh() * scale, shared)
        return F.linear(F.linear(hidden, shared), second.t()).square().sum()

    leaf = x.clone().requires_grad_()
    compute(leaf).backward()
    wanted = {w: w.grad for w in (first, second, shared, scale)}
    for w in wanted:
        w.grad = None
    gradients: list[Tensor] = []
    anchor = torch.zeros((), requires_grad=True)
    (received,) = program.Received.apply(gradients, anchor, x)
    end = compute(received)
    with Products() as inputs:
        later = program.backward_to(anchor, end)
    assert inputs.count == 4 + 2 and torch.equal(gradients[0], leaf.grad)  # of four inputs, and twice of `shared`
    assert first.grad is second.grad is scale.grad is None and torch.allclose(shared.grad, wanted[shared])
    assert later.keys() == {first, second, scale}
    with Products() as weights:
        for w, left in later.items():
            program.accumulate(w, left.toward(w))
    assert weights.count == 2 and anchor.grad is None
    assert all(torch.allclose(w.grad, grad) for w, grad in wanted.items())


def test_less_is_waited_for() -> None:
    """The last stage's backward is shorter by what its weights need: the others begin sooner."""
    split, whole = (piped(captured("gpt2", 16), (3,), (3,), 8, schedule=name) for name in ("zero-bubble", "1f1b"))
    stages = plan_price(split).stages
    end_ns = max(run.end_ns for run in runs(whole, plan_price(whole).stages))
    assert plan_price(split).objective_ns < end_ns <= plan_price(whole).objective_ns
    assert all(0 < 2 * weights_ns(p, cost) < cost.objective_ns for p, cost in zip(split.stages, stages, strict=True))
    assert [part.in_flight for part in split.stages] == [3, 3, 3]


def test_nothing_is_computed_again() -> None:
    plan = piped(captured("gpt2", 16), (2,), (2,), 4, schedule="zero-bubble")
    stages = tuple(replace(part, recompute={segments(part.graph)[0].name: "full"}) for part in plan.stages)
    with pytest.raises(PartitaError, match="split backward would do twice"):
        replace(plan, stages=stages)


def test_the_timeline_has_both_parts(tmp_path: Path) -> None:
    plan = piped(captured("mlp", 24), (2,), (2,), 4, schedule="zero-bubble")
    kinds = Counter((run.kind, run.device) for run in runs(plan, plan_price(plan).stages))
    assert kinds == {(kind, d): 4 for kind in ("forward", "backward", "weights") for d in (0, 1)} | {
        ("update", d): 1 for d in (0, 1)
    }
