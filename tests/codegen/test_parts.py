"""Layers in parts of their samples, one after another: what programs look like, and that they compute the same."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from partita.bench.measure import measure
from partita.codegen.plan.plan import Plan
from partita.codegen.planner.plan_graph import plan_graph
from partita.codegen.pricing.stage_price import stage_price
from partita.codegen.verification.verify import verify
from partita.formulation.search_space import RECOMPUTE, SearchSpace
from partita.model.capture.capture import capture
from partita.model.capture.load import load_module
from partita.model.errors import PartitaError
from partita.model.graph.layout import S
from partita.model.graph.pcg import PCG
from partita.model.graph.segments import IN_PARTS, segments
from partita.model.machine.machine import Machine
from partita.model.training import Training

from ..levels import some
from .test_recompute import copies
from .test_recompute import stack as with_dropout

Judge = Callable[..., dict[str, Any]]
BATCH, PLACES, WIDTH = 8, 4, 8


class Layer(nn.Module):
    """A layer of which each part computes the same weights, and reads its own samples and all of the mask."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.norm, self.scale = nn.LayerNorm(width), nn.Parameter(torch.rand(width))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        y = self.norm(x * mask).reshape(x.shape[0] * x.shape[1], -1)
        y = self.down(torch.relu(self.up(y))).reshape(x.shape)
        return x + y * self.scale.exp()


class Stack(nn.Module):
    def __init__(self, layers: int, width: int = WIDTH) -> None:
        super().__init__()
        self.enter, self.bias = nn.Linear(width, width), nn.Parameter(torch.rand(width))
        self.layers = nn.ModuleList(Layer(width) for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        x, mask = self.enter(x), self.bias.sigmoid()
        for layer in self.layers:
            x = layer(x, mask)
        return (x**2).mean()


@cache
def stack(layers: int) -> PCG:
    return capture(Stack(layers), (torch.zeros(BATCH, PLACES, WIDTH),))


# What it looks like


def test_a_loop_has_a_class_for_every_number_of_parts(judge: Judge, tmp_path: Path) -> None:
    plan = copies(stack(5), ["full", "2 parts", "2 parts", "none", "4 parts"], 1)
    text = plan.emit(tmp_path / "program.py")
    assert '["full", "2 parts", "2 parts", "none", "4 parts"], strict=True)' in text
    assert "x = recomputed(mode, layer, x, sigmoid, whole=(1,))" in text
    for samples in (8, 4, 2):
        assert f".unflatten(0, ({samples}, 4))" in text
    for command in (["format", "--diff"], ["check", "--select", "E,F,W,B,I"]):
        ruff = [sys.executable, "-m", "ruff", *command, "--isolated", "--line-length", "120", str(tmp_path)]
        done = subprocess.run(ruff, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout
    judge(plan)


def test_a_segment_outside_of_loops_is_a_method(judge: Judge) -> None:
    plan = copies(stack(1), ["2 parts"])
    assert 'x = recomputed("2 parts", self.layers_0, enter, torch.sigmoid(self.bias), whole=(1,))' in plan.emit()
    judge(plan)


def test_a_plan_file_keeps_parts(tmp_path: Path) -> None:
    plan = copies(stack(2), ["2 parts", "full"])
    plan.save(tmp_path)
    found = Plan.load(tmp_path)
    assert found.recompute == {"layers.0": "2 parts", "layers.1": "full"}
    assert "2 parts: layers.0; full: layers.1" in str(found)


# What it computes


MODELS = [
    ("gpt3-1.3b", 1, 2, "mixed-bfloat16"),
    ("swin-1.8b", 2, 1, "float32"),
    ("gpt3-1.3b", 2, 2, "float32"),
    ("alphafold2-87m", 1, 1, "mixed-bfloat16"),
    ("swin-1.8b", 1, 1, "mixed-bfloat16"),
]


@pytest.mark.parametrize(("name", "stages", "micro_batches", "dtype"), some(MODELS, 2))
def test_models_of_the_zoo(
    name: str, stages: int, micro_batches: int, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(RECOMPUTE, "parts", ("2 parts",))
    module, inputs = load_module(name, small=True, device="cpu")
    pcg = capture(module, inputs, batch=4 * micro_batches)
    training = Training(4 * micro_batches, dtype, "adamw")
    space = SearchSpace(micro_batches=micro_batches, stages=stages, recompute="parts")
    plan = plan_graph(pcg, Machine.adhoc((2 * stages,)), training, space)
    assert {*plan.recompute.values()} == {"2 parts"} and len(plan.recompute) == len(segments(pcg))
    verdict = verify(plan, module=module, inputs=inputs, steps=2)
    assert verdict["ok"], verdict["failure"]


def test_one_part_is_there_at_a_time() -> None:
    """What is measured of the program, and what is predicted: the activations of a part, beside what all modes keep."""
    module, x = Stack(3, 32), torch.zeros(BATCH, 256, 32)
    plan = copies(capture(module, (x,)), ["full"] * 3, 1)
    plan = replace(plan, dtype="float32")
    took = {}
    for mode in ("full", "2 parts", "4 parts"):
        again = replace(plan, recompute={s.name: mode for s in segments(plan.graph)})
        ranks = measure(again, (module, (x,)))
        took[mode] = max(rank.peak_bytes for rank in ranks), stage_price(again).memory
    measured = [took[mode][0] for mode in took]
    predicted = [took[mode][1]["recomputed"] for mode in took]
    shared = 32 * 4  # an exponential of a weight, of which every part has its own
    assert predicted[0] - shared == 2 * (predicted[1] - shared) == 4 * (predicted[2] - shared)
    assert measured[0] - measured[1] >= 0.8 * (predicted[0] - predicted[1])
    assert measured[1] > measured[2]


# What cannot be in parts


def test_what_draws_random_numbers_is_refused() -> None:
    with pytest.raises(PartitaError, match=r"'layers.0' in 2 parts: .* draws random numbers .* mode full"):
        copies(with_dropout(1), ["2 parts"], 1)


def test_samples_that_do_not_divide_are_refused() -> None:
    with pytest.raises(PartitaError, match="4 samples of a micro-batch over 1 ranks do not divide into 8"):
        copies(stack(1), ["8 parts"])


def test_gathered_weights_are_refused() -> None:
    plan = copies(stack(1), ["none"])
    weight = next(i for i, n in enumerate(plan.graph.nodes) if n.name == "layers.0.up.weight")
    choices = list(plan.choices)
    choices[weight] = replace(choices[weight], output=(S(0),))
    gathered = replace(plan, choices=tuple(choices))
    with pytest.raises(PartitaError, match=r"'layers.0.up.weight' is gathered, once for each part"):
        replace(gathered, recompute={"layers.0": "2 parts"})


def test_layers_in_parts_convert() -> None:
    graph = copies(stack(1), ["2 parts"]).space_time_graph()
    assert {op.coordinate("samples") for op in graph.forward if op.group is not None} == {0, 1}


# The option


def test_modes_that_an_option_allows() -> None:
    assert SearchSpace(recompute="all").modes == ("none", "full", "selective", *IN_PARTS)
    assert SearchSpace(recompute="parts").modes == ("full", *IN_PARTS)
    assert IN_PARTS.keys().isdisjoint(SearchSpace().modes)


def test_parts_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """A layer with large activations fits in parts alone; the report says what was left out."""
    graph = capture(Stack(2, 32), (torch.zeros(BATCH, 256, 32),))
    device = Machine.adhoc((1,)).device
    training = Training(BATCH, "float32", "adamw")

    def planned(recompute: str, capacity: int | None = None) -> Plan:
        machine = Machine.adhoc((1,))
        if capacity is not None:
            machine = replace(machine, device=replace(device, memory_bytes=capacity, reserved_bytes=0))
        return plan_graph(graph, machine, training, SearchSpace(recompute=recompute, micro_batches=1))

    full = stage_price(planned("full"))
    least = full.memory_bytes - full.memory["recomputed"] // 3
    with pytest.raises(PartitaError):
        planned("auto", least)
    found = planned("all", least)
    assert {*found.recompute.values()} & IN_PARTS.keys()
    assert found.report["status"] == "optimal"
    outside: Sequence[str] = planned("auto").report["space"]["outside"]
    assert "recomputation in parts" in outside and "recomputation in parts" not in found.report["space"]["outside"]
