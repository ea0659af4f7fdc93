"""What is measured: bytes that are alive, and what programs of space-time plans take beside what is predicted."""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from partita.bench.allocations import Allocations
from partita.bench.measure import Measured, measure
from partita.codegen.plan.spacetime_plan import SpaceTimePlan, space_time
from partita.formulation.spacetime.graph import Graph
from partita.formulation.spacetime.primitives import op_assign, op_trans, recompute
from partita.formulation.spacetime.stages import layers
from partita.formulation.spacetime.transformation import split
from partita.model.capture.capture import capture
from partita.model.capture.load import load_module
from partita.model.errors import PartitaError
from partita.model.graph.batch import with_batch
from partita.model.machine.machine import Machine

MODULE = load_module("gpt3-1.3b", small=True, sequence=64)


# Bytes that are alive


def test_a_storage_counts_once_and_as_long_as_anything_shows_it() -> None:
    with Allocations() as seen:
        x = torch.zeros(1000)
        assert seen.now_bytes == 4000
        y = x[:10].view(2, 5)
        x.add_(1)
        assert seen.now_bytes == 4000
        del x
        assert seen.now_bytes == 4000
        del y
        assert (seen.now_bytes, seen.peak_bytes) == (0, 4000)
        seen.reset()
        assert seen.peak_bytes == 0


def test_what_autograd_keeps_counts_until_it_has_gone_back() -> None:
    with Allocations() as seen:
        w, x = torch.ones(100, 100, requires_grad=True), torch.ones(10, 100)
        before = seen.now_bytes
        loss = F.relu(x @ w).sum()
        assert seen.now_bytes - before == 4 * (1000 + 1)  # what ReLU gives, and the sum
        (gradient,) = torch.autograd.grad(loss, w)
        assert seen.now_bytes - before == 4 * (10_000 + 1)
        assert gradient.shape == w.shape


def test_what_was_there_and_what_is_in_a_file_does_not_count(tmp_path: object) -> None:
    known = torch.ones(100)
    with Allocations() as seen:
        seen.leave_out([known])
        view = known[:50]
        mapped = torch.from_file(f"{tmp_path}/file", shared=True, size=100)
        assert seen.now_bytes == 0
        copy = view + mapped[:50]
        assert seen.now_bytes == 4 * len(copy)


# Programs


def plan(mode: str = "none", ranks: int = 1, dtype: str = "float32") -> SpaceTimePlan:
    graph = Graph(with_batch(capture(*MODULE), 4))
    for layer in layers(graph):
        parts = [op_trans(op, split("batch", ranks)) for op in layer]
        for rank in range(ranks):
            ops = [part[rank] for part in parts]
            op_assign(ops, rank)
            if mode != "none" and ops[0].layer:
                recompute(ops, selective=mode == "selective")
    return space_time(graph, Machine.load("cpu"), dtype=dtype, module=MODULE)


@cache
def measured(mode: str = "none", dtype: str = "float32") -> tuple[SpaceTimePlan, Measured]:
    made = plan(mode, dtype=dtype)
    return made, measure(made, steps=1)[0]


@pytest.mark.parametrize(
    ("mode", "dtype"),
    [
        ("none", "float32"),
        ("full", "float32"),
        ("selective", "float32"),
        ("none", "mixed-bfloat16"),
        ("none", "mixed-bfloat16-fp32grad"),
    ],
)
def test_peaks_are_about_as_predicted(mode: str, dtype: str) -> None:
    """A program may keep the gradients of the step before, and names of its functions hold some tensors longer."""
    made, found = measured(mode, dtype)
    predicted, gradients = made.prediction.peak_bytes[0], made.prediction.memory[0].peak["weights"]
    assert 0.99 * predicted <= found.peak_bytes <= 1.08 * predicted + gradients
    assert found.resting_bytes < found.peak_bytes and found.step_ns > 0


@pytest.mark.parametrize("mode", ["full", "selective"])
def test_recomputation_saves_what_it_is_predicted_to(mode: str) -> None:
    """What stands in for fused attention computes it again: on a GPU a selective layer keeps its result."""
    (plain, more), (less, fewer) = measured(), measured(mode)
    saved = plain.prediction.peak_bytes[0] - less.prediction.peak_bytes[0]
    assert more.peak_bytes - fewer.peak_bytes == pytest.approx(saved, rel=0.15 if mode == "selective" else 0.1)


def test_products_that_are_kept_run_once(monkeypatch: pytest.MonkeyPatch) -> None:
    run, seen = Allocations.__torch_dispatch__, Counter[str]()

    def counting(self: Allocations, function: Any, *args: Any) -> Any:
        seen[function.overloadpacket.__name__] += 1
        return run(self, function, *args)

    monkeypatch.setattr(Allocations, "__torch_dispatch__", counting)
    products = dict[str, int]()
    for mode in ("none", "selective", "full"):
        seen.clear()
        measure(plan(mode), steps=1)
        products[mode] = seen["mm"] + seen["addmm"] + seen["bmm"]
    assert products["selective"] == products["none"] < products["full"]


def test_every_rank_is_measured() -> None:
    alone, shared = measured()[1], measure(plan(ranks=2), steps=1)
    assert len(shared) == 2
    assert all(each.peak_bytes < alone.peak_bytes for each in shared)


def test_what_programs_do_not_run_in_is_refused() -> None:
    with pytest.raises(PartitaError, match="2 ranks"):
        measure(plan(ranks=2), device="cuda")
